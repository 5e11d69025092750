"""Java's two integer widths as annotated types, for structs that are read from outside.

A number beyond its width is refused when it is decoded, so later code needs no check.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Annotated

import msgspec

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""Java `int`: 32 bits, signed."""
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Java `long`: 64 bits, signed."""


def parse_long(text: str) -> int | None:
    """Parse a number like Java's ``Long.parseLong``, and return None for any other text."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 40):
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else None


# Java's ``String.hashCode`` gives the tag code of a ConsumeQueue unit and the key hash of an index.
# It is ``s[0]·31^(n-1) + … + s[n-1]`` over UTF-16 units, as a signed 32-bit number.
def java_hash(text: str) -> int:
    """Return the hash that Java computes for a String, as a signed 32-bit number.

    Takes about 40 ns for each character.
    """
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(data), 2):
            value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


@lru_cache(maxsize=4096)
def tags_code(tags: str) -> int:
    """Return the number that represents a message's tags in a consume queue.

    The number is the tags' hash, sign-extended to 64 bits, or 0 without tags.
    """
    return java_hash(tags)


def java_hash_code(value: object) -> int:
    """Return Java's ``hashCode`` of a String, Integer, Long, Boolean or Double.

    An int beyond 32 bits counts as a Long. Raise TypeError for other types, whose hash does not
    depend on the value alone.
    """
    if isinstance(value, str):
        return java_hash(value)
    if isinstance(value, bool):
        return 1231 if value else 1237
    if isinstance(value, int):
        if -0x8000_0000 <= value <= 0x7FFF_FFFF:
            return value
        if -(1 << 63) <= value < 1 << 63:
            return _folded(value & 0xFFFF_FFFF_FFFF_FFFF)
        raise TypeError(f"the key {value} does not fit a Java long; give a str")
    if isinstance(value, float):
        bits = 0x7FF8_0000_0000_0000 if value != value else int.from_bytes(struct.pack(">d", value))
        return _folded(bits)
    raise TypeError(
        f"a key of type {type(value).__name__} has no hash that others share; give a "
        "str, int, bool or float"
    )


def _folded(bits: int) -> int:
    value = (bits ^ bits >> 32) & 0xFFFF_FFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value
