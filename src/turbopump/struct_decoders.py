"""Decoders for msgspec structs, built by one thread at a time.

msgspec stores its knowledge of a class with the class while it builds it: a second thread that
decodes the same class meanwhile uses half of it, and the process crashes. So code that may be the
first to use a class outside of an import, with two loops in two threads, gets its decoder here.
Particular classes are unknown here.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_building = threading.RLock()
_known: set[Any] = set()
"""Types that ``convert`` has met."""


@cache
def decoder_of(type_: Any, *, strict: bool = False) -> msgspec.json.Decoder[Any]:
    """A decoder of JSON for this type."""
    with _building:
        return msgspec.json.Decoder(type_, strict=strict)


def convert(value: Any, type_: type[T]) -> T:
    """``msgspec.convert``, not strict: numbers may be texts. Raises msgspec.ValidationError."""
    if type_ in _known:
        return msgspec.convert(value, type_, strict=False)
    with _building:
        try:
            return msgspec.convert(value, type_, strict=False)
        finally:
            _known.add(type_)
