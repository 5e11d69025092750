"""Builtins from a JSON text -> a typed body, as leniently as fastjson reads.

Real peers send numbers as strings and strings as numbers, enums as ordinals, `null` for what has a
default, and whole objects as map keys. This module turns such builtins into what `msgspec.convert`
takes. Its one rule: a value that fits as it is stays untouched. It must not know JSON text.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from turbopump.errors import BodyError
from turbopump.struct_decoders import convert

T = TypeVar("T")
_MISSING = object()


def shape(value: Any, wanted: type[T]) -> T:
    """Convert builtins to `wanted`; FastjsonError says which field does not fit."""
    shaped = _shape(value, _type_info(cast(Any, wanted)))
    try:
        return convert(None if shaped is _MISSING else shaped, wanted)
    except (msgspec.ValidationError, RecursionError, UnicodeEncodeError) as error:
        raise FastjsonError(
            f"JSON that is no {getattr(wanted, '__name__', wanted)}: {error}"
        ) from None


@cache
def _type_info(wanted: Any) -> inspect.Type:
    return inspect.type_info(wanted)


@cache
def _fields(wanted: type) -> dict[str, inspect.Field]:
    info = _type_info(wanted)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: field for field in info.fields}


def _shape(value: Any, info: inspect.Type) -> Any:
    """The value as `msgspec.convert` wants it; `_MISSING` where fastjson would leave the
    default."""
    shaper = _SHAPERS.get(type(info))
    return value if shaper is None else shaper(value, info)


def _shape_struct(value: Any, info: inspect.StructType) -> Any:
    # a standard-JSON writer quotes the whole key
    if isinstance(value, str) and value.startswith("{"):
        value = parse_tolerant(value)
    if isinstance(value, tuple):
        value = dict(value)
    if not isinstance(value, dict):
        return value
    fields = _fields(info.cls)
    shaped = {}
    for name, item in value.items():
        field = fields.get(name)
        if field is None:
            continue
        item = _shape(item, field.type)
        kept = item is not None or field.required or _is_nullable(field.type)
        if kept and item is not _MISSING:
            shaped[name] = item
    return shaped


def _shape_map(value: Any, info: inspect.DictType) -> Any:
    if isinstance(value, tuple):
        value = dict(value)
    if not isinstance(value, dict):
        return value
    key_is_struct = isinstance(info.key_type, inspect.StructType)
    nullable = _is_nullable(info.value_type)
    shaped = {}
    for key, item in value.items():
        key = _shape(key, info.key_type)
        if key_is_struct:
            key = _convert_key(key, info.key_type)
        item = _shape(item, info.value_type)
        if item is not _MISSING and (nullable or item is not None):
            shaped[key] = item
    return shaped


def _convert_key(key: Any, info: inspect.Type) -> Any:
    assert isinstance(info, inspect.StructType)
    try:
        return convert(key, info.cls)
    except msgspec.ValidationError as error:
        raise FastjsonError(f"a JSON map key that is no {info.cls.__name__}: {error}") from None


def _shape_elements(value: Any, info: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    nullable = _is_nullable(info.item_type)
    shaped = (_shape(item, info.item_type) for item in value)
    return [item for item in shaped if item is not _MISSING and (nullable or item is not None)]


def _shape_str(value: Any, info: inspect.Type) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _shape_int(value: Any, info: inspect.Type) -> Any:
    if isinstance(value, str) and value.strip() in ("", "null"):
        return _MISSING
    return value


def _shape_enum(value: Any, info: inspect.EnumType) -> Any:
    """By name, or by ordinal (the C++ client). An unknown one is as if absent, as in fastjson."""
    members: list[enum.Enum] = list(info.cls)
    if isinstance(value, str) and value in info.cls.__members__:
        return info.cls.__members__[value].value
    try:
        ordinal = int(value)
    except (TypeError, ValueError):
        return _MISSING
    if issubclass(info.cls, int):
        return ordinal if any(member.value == ordinal for member in members) else _MISSING
    return members[ordinal].value if 0 <= ordinal < len(members) else _MISSING


def _shape_union(value: Any, info: inspect.UnionType) -> Any:
    if value is None:
        return value
    real = [t for t in info.types if not isinstance(t, inspect.NoneType)]
    return _shape(value, real[0]) if len(real) == 1 else value


def _is_nullable(info: inspect.Type) -> bool:
    if isinstance(info, inspect.UnionType):
        return any(isinstance(t, inspect.NoneType) for t in info.types)
    return isinstance(info, inspect.AnyType | inspect.NoneType)


_SHAPERS: dict[type, Callable[[Any, Any], Any]] = {
    inspect.StructType: _shape_struct,
    inspect.DictType: _shape_map,
    inspect.ListType: _shape_elements,
    inspect.SetType: _shape_elements,
    inspect.FrozenSetType: _shape_elements,
    inspect.VarTupleType: _shape_elements,
    inspect.StrType: _shape_str,
    inspect.IntType: _shape_int,
    inspect.EnumType: _shape_enum,
    inspect.UnionType: _shape_union,
}


# Text in the fastjson dialect -> Python builtins, for what a strict JSON parser refuses.
# Apache's peers write maps with bare number keys (`{0:"a"}`) and with whole objects as keys
# (`{{"topic":"t"}:5}`), and their reader also takes unquoted names, single quotes, stray commas,
# comments and `NaN`. This parser reads all of those. Its one rule: everything is bounded (text,
# depth, digits, entries), and whatever is wrong is a `FastjsonError`. An object used as a key
# becomes a tuple of its (name, value) pairs.
MAX_BYTES = 64 << 20
"""Longest text read at all. A frame is at most 16 MiB; only a broker's own files may be longer."""
MAX_TOLERANT_CHARS = 8 << 20
"""Longest text given to this parser, which is some 50 times slower than the strict one."""
MAX_ENTRIES = 1_000_000
"""Most members and elements of one document, all levels together."""
MAX_TOLERANT_STEPS = 200_000
"""Most members, elements and escapes for this parser, which needs some 5 µs for each."""
MAX_DEPTH = 64
MAX_DIGITS = 400
"""Most characters of one number: more than any double needs, few enough to convert in no time."""

_SPACE = re.compile(r"(?:[ \t\r\n\f\b﻿]++|/\*(?:[^*]++|\*(?!/))*+\*/|//[^\n]*+)*+")
_SPACE_AND_COMMAS = re.compile(r"(?:[ \t\r\n\f\b﻿,]++|/\*(?:[^*]++|\*(?!/))*+\*/|//[^\n]*+)*+")
_NUMBER = re.compile(r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?")
_WORD = re.compile(r"[^\W\d][\w$.@-]*+|[$@][\w$.@-]*+")
_DOUBLE_QUOTED = re.compile(r'[^"\\]*+')
_SINGLE_QUOTED = re.compile(r"[^'\\]*+")
_HEX = {2: re.compile(r"[0-9a-fA-F]{2}"), 4: re.compile(r"[0-9a-fA-F]{4}")}
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_ESCAPES = {
    **{c: c for c in "\"'\\/"},
    **{str(n): chr(n) for n in range(8)},
    **dict(zip("btnvfFr", "\b\t\n\v\f\f\r", strict=True)),
}
_WORDS = {
    **dict.fromkeys(("true", "TRUE"), True),
    **dict.fromkeys(("false", "FALSE"), False),
    **dict.fromkeys(("null", "NULL", "undefined", "NaN", "Infinity")),
}


class FastjsonError(BodyError):
    """A JSON text that cannot be read, that breaks a bound, or that does not fit the expected
    type."""


def parse_tolerant(text: str, steps_max: int = MAX_TOLERANT_STEPS) -> Any:
    """Read one value: dict, list, str, int, float, bool or None. Keys are str, int (bare numbers)
    or tuples of pairs (object keys). Raises FastjsonError."""
    if len(text) > MAX_TOLERANT_CHARS:
        raise FastjsonError(
            f"JSON text of {len(text)} characters, longer than {MAX_TOLERANT_CHARS}"
        )
    return _Parser(text, steps_max).document()


class _Parser:
    def __init__(self, text: str, steps_max: int) -> None:
        self.text = text
        self.at = 0
        self.steps = 0
        self.steps_max = steps_max

    def document(self) -> Any:
        value = self.value(0)
        self.skip(_SPACE)
        if self.at != len(self.text):
            raise self.error("something follows the value")
        return value

    def value(self, depth: int) -> Any:
        self.skip(_SPACE)
        char = self.text[self.at : self.at + 1]
        if char == "{":
            return self.object(depth + 1)
        if char == "[":
            return self.array(depth + 1)
        if char in ('"', "'"):
            return self.string(char)
        word = _WORD.match(self.text, self.at)
        if word is None:
            return self.number()
        if word[0] not in _WORDS:
            raise self.error("an unknown word")
        self.at = word.end()
        return _WORDS[word[0]]

    def object(self, depth: int) -> dict[Any, Any]:
        self.enter(depth)
        members: dict[Any, Any] = {}
        while True:
            self.skip(_SPACE_AND_COMMAS)
            if self.take("}"):
                return members
            key = self.key(depth)
            self.skip(_SPACE)
            if not self.take(":"):
                raise self.error("no colon after a key")
            members[key] = self.value(depth)
            self.end_of_entry("}")

    def key(self, depth: int) -> Any:
        char = self.text[self.at : self.at + 1]
        if char in ('"', "'"):
            return self.string(char)
        if char == "{":
            return _hashable(self.object(depth + 1))
        word = _WORD.match(self.text, self.at)
        if word is None:
            return self.number()
        self.at = word.end()
        return word[0]

    def array(self, depth: int) -> list[Any]:
        self.enter(depth)
        elements: list[Any] = []
        while True:
            self.skip(_SPACE_AND_COMMAS)
            if self.take("]"):
                return elements
            elements.append(self.value(depth))
            self.end_of_entry("]")

    def string(self, quote: str) -> str:
        plain = _DOUBLE_QUOTED if quote == '"' else _SINGLE_QUOTED
        self.at += 1
        pieces = []
        while True:
            piece = plain.match(self.text, self.at)
            assert piece is not None, "the pattern also matches nothing"
            pieces.append(piece[0])
            self.at = piece.end()
            if self.take(quote):
                break
            if not self.take("\\"):
                raise self.error("a string without its end")
            pieces.append(self.escape())
        return _SURROGATE_PAIR.sub(_join_pair, "".join(pieces))

    def escape(self) -> str:
        self.step()
        char = self.text[self.at : self.at + 1]
        self.at += 1
        if char in ("u", "x"):
            digits = _HEX[4 if char == "u" else 2].match(self.text, self.at)
            if digits is None:
                raise self.error("an escape without its hex digits")
            self.at = digits.end()
            return chr(int(digits[0], 16))
        if char not in _ESCAPES:
            raise self.error("an unknown escape")
        return _ESCAPES[char]

    def number(self) -> int | float:
        match = _NUMBER.match(self.text, self.at)
        if match is None:
            raise self.error("no value")
        if len(match[0]) > MAX_DIGITS:
            raise self.error("too many digits")
        self.at = match.end()
        try:
            return int(match[0])
        except ValueError:
            return float(match[0])

    def enter(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} levels")
        self.at += 1

    def end_of_entry(self, closing: str) -> None:
        self.step()
        self.skip(_SPACE)
        if self.text[self.at : self.at + 1] not in (",", closing):
            raise self.error("no comma between two entries")

    def step(self) -> None:
        self.steps += 1
        if self.steps > self.steps_max:
            raise self.error(f"more than {self.steps_max} entries and escapes")

    def skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        assert match is not None, "the pattern also matches nothing"
        self.at = match.end()

    def take(self, char: str) -> bool:
        if self.text.startswith(char, self.at):
            self.at += 1
            return True
        return False

    def error(self, what: str) -> FastjsonError:
        near = self.text[max(0, self.at - 10) : self.at + 20]
        return FastjsonError(
            f"not JSON, nor what fastjson reads: {what} at character {self.at}, near {near!r}"
        )


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(_hashable(item) for item in value)
    return value


def _join_pair(match: re.Match[str]) -> str:
    high, low = match[0][0], match[0][1]
    return chr(0x10000 + ((ord(high) - 0xD800) << 10) + (ord(low) - 0xDC00))
