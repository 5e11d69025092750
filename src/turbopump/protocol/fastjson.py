"""The one reader and writer of JSON as Apache's peers speak it (the fastjson 1.2 dialect).

`decode` tries the fast strict parser first; only what that refuses (bare number keys, objects as
keys, enums by ordinal, numbers for strings, …) goes to the tolerant one. `encode` writes what a
Java peer would. Its one rule: bounded work, and `FastjsonError` for whatever is wrong. It must not
know any particular body.
"""

from __future__ import annotations

import base64
import enum
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from turbopump.protocol.fastjson_read import (
    MAX_BYTES,
    MAX_ENTRIES,
    FastjsonError,
    parse_tolerant,
    shape,
)

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


# --- Python values -> text exactly as Apache's fastjson 1.2.83 writes it.
#
# Three forms: the wire (compact), config files (tab-indented) and the standard JSON that the name
# server gives to clients that ask for it. Its one rule: byte for byte what a Java peer would write
# for the same value (golden files hold it to that). Struct members are sorted by wire name and nulls
# left out; map entries keep their order. A Java List is a Python list, a Java Set a tuple or set: the
# indented form breaks lines in the first and not in the second.

_SPECIAL = re.compile('[\x00-\x1f"\\\\\x7f-\x9f\u2028\u2029]')
_SPECIAL_OR_NOT_ASCII = re.compile('[\x00-\x1f"/\\\\\x7f-\U0010ffff]')
_SHORT_ESCAPES = {
    char: f"\\{letter}" for char, letter in zip('"\\/\b\t\n\f\r', '"\\/btnfr', strict=True)
}


class Writer:
    """Writes one value; `indented` breaks lines as config files do, `standard` quotes every key,
    sorts map entries and escapes everything beyond ASCII (fastjson's BrowserCompatible and
    MapSortField)."""

    def __init__(self, *, indented: bool = False, standard: bool = False) -> None:
        self.indented = indented
        self.standard = standard
        self.level = 0
        self.pieces: list[str] = []

    def text(self, value: Any) -> str:
        self.write(value)
        return "".join(self.pieces)

    def write(self, value: Any) -> None:
        kind: Any = type(value)
        if kind is str:
            self.pieces.append(self.quote(value))
        elif kind is int:
            self.pieces.append(int.__repr__(value))
        else:
            _writer_of(kind)(self, value)

    def quote(self, text: str) -> str:
        special = _SPECIAL_OR_NOT_ASCII if self.standard else _SPECIAL
        if special.search(text) is not None:
            text = special.sub(_escape, text)
        return f'"{text}"'

    def line(self) -> None:
        if self.indented:
            self.pieces.append("\n" + "\t" * self.level)

    def write_struct(self, value: msgspec.Struct) -> None:
        self.pieces.append("{")
        self.level += 1
        self.line()
        first = True
        for attribute, opening in _members(type(value)):
            member = getattr(value, attribute)
            if member is None:
                continue
            if not first:
                self.pieces.append(",")
                self.line()
            first = False
            self.pieces.append(opening)
            self.write(member)
        self.level -= 1
        self.line()
        self.pieces.append("}")

    def write_map(self, value: dict[Any, Any]) -> None:
        entries: Iterable[tuple[Any, Any]] = ((k, v) for k, v in value.items() if v is not None)
        if self.standard:
            entries = sorted(entries, key=lambda entry: _sort_key(entry[0]))
        self.pieces.append("{")
        self.level += 1
        first = True
        for key, item in entries:
            if not first:
                self.pieces.append(",")
            first = False
            if isinstance(key, str) and not isinstance(key, enum.Enum):
                self.line()
                self.pieces.append(self.quote(key))
            elif self.standard:
                self.pieces.append(self.quote(Writer().text(key)))
            else:
                self.write(key)  # no line break: fastjson makes one for string keys only
            self.pieces.append(":")
            self.write(item)
        self.level -= 1
        if value:
            self.line()
        self.pieces.append("}")

    def write_list(self, value: list[Any]) -> None:
        self.pieces.append("[")
        self.level += 1
        for position, item in enumerate(value):
            if position:
                self.pieces.append(",")
            self.line()
            self.write(item)
        self.level -= 1
        if value:
            self.line()
        self.pieces.append("]")

    def write_set(self, value: Iterable[Any]) -> None:
        self.pieces.append("[")
        for position, item in enumerate(value):
            if position:
                self.pieces.append(",")
            self.write(item)
        self.pieces.append("]")

    def write_null(self, value: None) -> None:
        self.pieces.append("null")

    def write_bool(self, value: bool) -> None:
        self.pieces.append("true" if value else "false")

    def write_int(self, value: int) -> None:
        self.pieces.append(int.__repr__(value))

    def write_float(self, value: float) -> None:
        self.pieces.append(java_double(value))

    def write_str(self, value: str) -> None:
        self.pieces.append(self.quote(str(value)))

    def write_enum(self, value: enum.Enum) -> None:
        self.pieces.append(self.quote(value.name))

    def write_bytes(self, value: bytes) -> None:
        self.pieces.append(f'"{base64.b64encode(value).decode()}"')


_BY_TYPE: tuple[tuple[tuple[type, ...], Callable[[Writer, Any], None]], ...] = (
    ((enum.Enum,), Writer.write_enum),
    ((type(None),), Writer.write_null),
    ((bool,), Writer.write_bool),
    ((int,), Writer.write_int),
    ((float,), Writer.write_float),
    ((str,), Writer.write_str),
    ((bytes, bytearray, memoryview), Writer.write_bytes),
    ((dict,), Writer.write_map),
    ((list,), Writer.write_list),
    ((tuple, set, frozenset), Writer.write_set),
    ((msgspec.Struct,), Writer.write_struct),
)


@cache
def _writer_of(kind: type) -> Callable[[Writer, Any], None]:
    for types, writer in _BY_TYPE:
        if issubclass(kind, types):
            return writer
    raise TypeError(f"fastjson has no form for {kind.__name__}")


@cache
def _members(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """(attribute, `"wireName":`) of a struct in the order in which fastjson writes bean members."""
    fields = sorted(msgspec.structs.fields(kind), key=lambda field: field.encode_name)
    return tuple((field.name, f'"{field.encode_name}":') for field in fields)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    short = _SHORT_ESCAPES.get(char)
    if short is not None:
        return short
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))


def _sort_key(key: Any) -> Any:
    return key.encode("utf-16-be", "surrogatepass") if isinstance(key, str) else key


def java_double(value: float) -> str:
    """A double as Java's `Double.toString` writes it; `null` for NaN and the infinities, as
    fastjson does."""
    if value != value or value in (float("inf"), float("-inf")):
        return "null"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = repr(value)
        return text if "." in text else text + ".0"
    mantissa, _, exponent = f"{value!r}".partition("e")
    if not exponent:
        digits = mantissa.lstrip("-").replace(".", "")
        point = mantissa.lstrip("-").index(".")
        stripped = digits.lstrip("0")
        power = point - 1 - (len(digits) - len(stripped))
        stripped = stripped.rstrip("0") or "0"
        sign = "-" if value < 0 else ""
        return f"{sign}{stripped[0]}.{stripped[1:] or '0'}E{power}"
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"
