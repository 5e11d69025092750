"""What reads structs of msgspec, made by one thread at a time.

msgspec keeps what it knows of a class with the class, from when it begins to find that out: a
second thread that reads the same class meanwhile takes half of it for all, and the process dies.
So whatever may be first with a class outside of an import, where two loops may run in two threads,
goes through here. It must not know any class.
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
