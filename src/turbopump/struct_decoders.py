"""Decoders for msgspec structs, built by one thread at a time.

msgspec stores information about a class with that class while it builds a decoder. A second thread
that decodes the same class meanwhile would use incomplete information, and the process would crash.
Code that may be the first to use a class outside an import, with two loops in two threads,
therefore gets its decoder here.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_building = threading.RLock()
_known: set[Any] = set()
"""Types for which ``convert`` has finished a first call."""


@cache
def decoder_of(type_: Any, *, strict: bool = False) -> msgspec.json.Decoder[Any]:
    """Return a JSON decoder for this type. Every call returns the same decoder."""
    with _building:
        return msgspec.json.Decoder(type_, strict=strict)


def convert(value: Any, type_: type[T]) -> T:
    """Convert a value to this type. Text is accepted in place of a number.

    The function works like ``msgspec.convert`` with ``strict=False``. Raises
    msgspec.ValidationError if the value does not fit.
    """
    if type_ in _known:
        return msgspec.convert(value, type_, strict=False)
    with _building:
        try:
            return msgspec.convert(value, type_, strict=False)
        finally:
            _known.add(type_)
