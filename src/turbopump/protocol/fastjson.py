"""The one reader and writer of JSON as Apache's peers speak it (the fastjson 1.2 dialect).

`decode` tries the fast strict parser first; only what that refuses (bare number keys, objects as
keys, enums by ordinal, numbers for strings, …) goes to the tolerant one. `encode` writes what a
Java peer would. Its one rule: bounded work, and `FastjsonError` for whatever is wrong. It must not
know any particular body.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from turbopump.protocol.fastjson_shape import shape
from turbopump.protocol.fastjson_text import MAX_BYTES, MAX_ENTRIES, FastjsonError, parse_tolerant
from turbopump.protocol.fastjson_write import Writer

__all__ = ["FastjsonError", "decode", "encode", "encode_indented", "encode_standard", "parse"]

T = TypeVar("T")

_STRING_OR_BARE_KEY = re.compile(rb'"(?:[^"\\]++|\\.)*+"|((?<=[{,])-?\d++(?=:))', re.DOTALL)
_REFUSALS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode(data: bytes | bytearray | memoryview, type: type[T]) -> T:  # noqa: A002
    """Read `data` (UTF-8) as a value of `type`: a body Struct, `dict[int, str]`,
    `dict[MessageQueue, int]`, …

    Unknown fields are ignored, absent ones take their default, later duplicates win. Raises
    FastjsonError for text that is not JSON, does not fit the type, or is beyond the bounds (64 MiB,
    a million entries, 64 levels).
    """
    _check_bounds(data)
    try:
        return cast(T, _decoder(cast(Any, type)).decode(data))
    except _REFUSALS:
        return shape(parse(data), type)


def parse(data: bytes | bytearray | memoryview) -> Any:
    """Read `data` into dict, list, str, int, float, bool and None. Bare number keys may arrive as
    str or int, object keys as tuples of (name, value) pairs. Raises FastjsonError as `decode`
    does."""
    _check_bounds(data)
    data = bytes(data)
    for text in (data, None):
        try:
            return _decoder(Any).decode(_quote_bare_keys(data) if text is None else text)
        except _REFUSALS:
            continue
    return parse_tolerant(data.decode("utf-8", "replace"))


def encode(value: Any) -> bytes:
    """The wire form: compact, members sorted, nulls left out, `{0:"…"}` and `{{"brokerName":…}:…}`
    for maps whose keys are no strings, enums by name, bytes as base64."""
    return Writer().text(value).encode("utf-8", "replace")


def encode_indented(value: Any) -> bytes:
    """The form of a broker's config files: as `encode`, indented with tabs, no final newline."""
    return Writer(indented=True).text(value).encode("utf-8", "replace")


def encode_standard(value: Any) -> bytes:
    """Standard JSON as the name server answers 105 with: every key quoted, map entries sorted, pure
    ASCII."""
    return Writer(standard=True).text(value).encode("ascii")


@cache
def _decoder(wanted: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(wanted, strict=False)


def _check_bounds(data: bytes | bytearray | memoryview) -> None:
    if len(data) > MAX_BYTES:
        raise FastjsonError(f"JSON text of {len(data)} bytes is longer than {MAX_BYTES}")
    if len(data) > MAX_ENTRIES and bytes(data).count(b",") > MAX_ENTRIES:
        raise FastjsonError(f"JSON text with more than {MAX_ENTRIES} entries")


def _quote_bare_keys(data: bytes) -> bytes:
    """`{0:1,2:3}` -> `{"0":1,"2":3}`, strings untouched: makes Apache's offset files readable at
    full speed."""
    return _STRING_OR_BARE_KEY.sub(lambda m: m[0] if m[1] is None else b'"%b"' % m[1], data)
