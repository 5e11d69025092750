"""Conversion of fastjson's dialect to standard JSON, and of parsed JSON to a typed body.

Real peers send numbers as strings and strings as numbers, enums as ordinals, `null` for fields with
a default, and whole objects as map keys. `shape` turns these values into what `msgspec.convert`
accepts. A value that fits already stays unchanged.
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
from turbopump.struct_decoders import convert, decoder_of

T = TypeVar("T")
_MISSING = object()


class FastjsonError(BodyError):
    """Raised when a JSON text cannot be decoded, exceeds a limit, or does not fit the expected
    type."""


def shape(value: Any, wanted: type[T]) -> T:
    """Convert parsed JSON to a value of the type `wanted`, as fastjson would.

    Raise FastjsonError with the name of the field that does not fit.
    """
    try:
        shaped = _shape(value, _type_info(cast(Any, wanted)))
        return convert(None if shaped is _MISSING else shaped, wanted)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FastjsonError(
            f"JSON is not a {getattr(wanted, '__name__', wanted)}: {error}"
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
    """Return a parsed value in the form that `msgspec.convert` accepts for the type `info`.

    Return `_MISSING` if fastjson would keep the field's default.
    """
    shaper = _SHAPERS.get(type(info))
    return value if shaper is None else shaper(value, info)


def _shape_struct(value: Any, info: inspect.StructType) -> Any:
    # An object used as a key is quoted as a whole.
    if isinstance(value, str) and value.startswith("{"):
        value = decoder_of(Any).decode(value)
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
        raise FastjsonError(f"a JSON map key is not a {info.cls.__name__}: {error}") from None


def _shape_elements(value: Any, info: Any) -> Any:
    if not isinstance(value, list):
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
    """Return the value of an enum member. Java peers send its name, C++ peers its ordinal.

    An unknown name or ordinal counts as absent, as in fastjson.
    """
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


# Apache's peers write maps with bare number keys (`{0:"a"}`) and with whole objects as keys
# (`{{"topic":"t"}:5}`). In standard JSON neither can stand before a colon, so one regular
# expression finds them. The expression takes linear time for any text: a string without an end
# matches up to the end of the text. A key that contains another object stays unchanged, and msgspec
# refuses it; no peer writes one.
_STRING = r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)'
_STRING_OR_KEY = re.compile(
    rf"{_STRING}|((?<=[{{,\s])-?\d++(?=\s*+:))|(\{{(?:[^{{}}\"]++|{_STRING})*+\}}(?=\s*+:))",
    re.DOTALL,
)


def to_standard(text: str) -> str:
    r"""Quote the keys of a fastjson text, so that it becomes standard JSON.

    `{0:1,{"topic":"t"}:2}` becomes `{"0":1,"{\"topic\":\"t\"}":2}`. All other text stays unchanged.
    """
    return _STRING_OR_KEY.sub(_quoted, text)


def _quoted(match: re.Match[str]) -> str:
    if match[1] is not None:
        return f'"{match[1]}"'
    return match[0] if match[2] is None else msgspec.json.encode(match[2]).decode()
