"""Types of source columns, and conversion of their values into Arrow arrays.

A column is converted as a whole. Only if that fails, its values are converted one by one, to find
the wrong ones. ``widened`` says which type holds the values of two. The rule: a value keeps its
meaning, or becomes a fault. There is one exception: MySQL's zero dates become null, and are
counted.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

DECIMAL_DIGITS: Final = 38
"""Digits of Delta's decimals. MySQL's have up to 65; longer ones become texts."""
UNSIGNED_LONG: Final = pa.decimal128(20, 0)
TIMESTAMP: Final = pa.timestamp("us", "UTC")
WALL_TIME: Final = pa.timestamp("us")


class ColumnType(NamedTuple):
    """Type of a source column.

    - ``kind``: name of the conversion, a key of ``_CONVERSIONS``.
    - ``arrow``: type of the converted values.
    - ``detail``: labels of an enum or set, the unit of a time, or the scale of a decimal.
    """

    kind: str
    arrow: pa.DataType
    detail: tuple[Any, ...] = ()


class Converted(NamedTuple):
    """Converted values of a column.

    ``zero_dates`` is the number of zero dates, which became null. ``faults`` has the faults of
    wrong values by their index; these are null in ``array``.
    """

    array: pa.Array
    zero_dates: int
    faults: dict[int, str]


TEXT: Final = ColumnType("text", pa.string())
INFERRED: Final = ColumnType("inferred", pa.null())
"""Type of a JSON value without a description."""

_INTEGERS: Final = {
    "tinyint": (pa.int8(), pa.int16()),
    "smallint": (pa.int16(), pa.int32()),
    "mediumint": (pa.int32(), pa.int32()),
    "int": (pa.int32(), pa.int64()),
    "integer": (pa.int32(), pa.int64()),
    "bigint": (pa.int64(), UNSIGNED_LONG),
}
"""Types of MySQL's integers, signed and unsigned."""
_BYTES: Final = {
    "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "geometry", "point",
    "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection",
}  # fmt: skip
_MYSQL: Final = re.compile(r"\s*([a-z]+)\s*(?:\((.*?)\))?(.*)", re.IGNORECASE | re.DOTALL)
_LABEL: Final = re.compile(r"'((?:[^']|'')*)'")


def mysql_type(text: str, bytes_in: str = "latin-1") -> ColumnType:
    """Return the type for the text of a MySQL type, such as ``bigint(20) unsigned``.

    ``bytes_in`` is the form of bytes in the format's texts: ``latin-1`` or ``base64``. A type that
    is unknown, or that Delta does not have, becomes text.
    """
    found = _MYSQL.match(text)
    if found is None:
        return TEXT
    name, arguments, rest = found[1].lower(), found[2] or "", found[3].lower()
    if name in _INTEGERS:
        return ColumnType("integer", _INTEGERS[name]["unsigned" in rest])
    if name in ("bool", "boolean"):
        return ColumnType("integer", pa.int8())
    if name in ("decimal", "numeric", "dec", "fixed"):
        digits, _, scale = (arguments or "10").partition(",")
        precision, decimals = int(digits), int(scale or 0)
        if precision > DECIMAL_DIGITS:
            return TEXT
        return ColumnType("number", pa.decimal128(precision, decimals))
    if name in ("float", "double", "real"):
        return ColumnType("number", pa.float32() if name == "float" else pa.float64())
    if name == "bit":
        width = int(arguments or 1)
        wide = pa.int64() if width < 64 else UNSIGNED_LONG
        return ColumnType("flag", pa.bool_()) if width == 1 else ColumnType("integer", wide)
    if name == "year":
        return ColumnType("integer", pa.int16())
    if name in ("date", "datetime", "timestamp"):
        kinds = {"date": pa.date32(), "datetime": WALL_TIME, "timestamp": TIMESTAMP}
        return ColumnType(name, kinds[name])
    if name in _BYTES:
        return ColumnType(bytes_in, pa.binary())
    if name in ("enum", "set"):
        labels = tuple(label.replace("''", "'") for label in _LABEL.findall(text))
        return ColumnType(name, pa.string(), labels) if labels else TEXT
    return TEXT


_CONNECT: Final = {
    "int8": ColumnType("integer", pa.int8()),
    "int16": ColumnType("integer", pa.int16()),
    "int32": ColumnType("integer", pa.int32()),
    "int64": ColumnType("integer", pa.int64()),
    "float": ColumnType("number", pa.float32()),
    "float32": ColumnType("number", pa.float32()),
    "double": ColumnType("number", pa.float64()),
    "float64": ColumnType("number", pa.float64()),
    "boolean": ColumnType("flag", pa.bool_()),
    "bytes": ColumnType("base64", pa.binary()),
}
_CONNECT_TIMES: Final = {
    "io.debezium.time.Date": ColumnType("days", pa.date32()),
    "org.apache.kafka.connect.data.Date": ColumnType("days", pa.date32()),
    "io.debezium.time.Timestamp": ColumnType("since 1970", WALL_TIME, (1000,)),
    "org.apache.kafka.connect.data.Timestamp": ColumnType("since 1970", WALL_TIME, (1000,)),
    "io.debezium.time.MicroTimestamp": ColumnType("since 1970", WALL_TIME, (1,)),
    "io.debezium.time.NanoTimestamp": ColumnType("nanoseconds", WALL_TIME),
    "io.debezium.time.ZonedTimestamp": ColumnType("zoned", TIMESTAMP),
    "io.debezium.time.Time": ColumnType("time of day", pa.string(), (1000,)),
    "org.apache.kafka.connect.data.Time": ColumnType("time of day", pa.string(), (1000,)),
    "io.debezium.time.MicroTime": ColumnType("time of day", pa.string(), (1,)),
}


def connect_type(column: dict[str, Any]) -> ColumnType:
    """Return the type for a column of a Kafka Connect schema, as Debezium writes it."""
    name, parameters = column.get("name") or "", column.get("parameters") or {}
    if name in _CONNECT_TIMES:
        return _CONNECT_TIMES[name]
    if name == "org.apache.kafka.connect.data.Decimal":
        scale = int(parameters.get("scale", 0))
        precision = int(parameters.get("connect.decimal.precision", DECIMAL_DIGITS))
        if max(precision, scale) > DECIMAL_DIGITS:
            return ColumnType("unscaled text", pa.string(), (scale,))
        return ColumnType("unscaled", pa.decimal128(precision, scale), (scale,))
    if name == "io.debezium.data.Bits":
        wide = int(parameters.get("length", 64)) >= 64
        return ColumnType("little endian", UNSIGNED_LONG if wide else pa.int64())
    return _CONNECT.get(column.get("type", ""), TEXT)


def convert(values: Sequence[Any], kind: ColumnType, zone: str = "UTC") -> Converted:
    """Convert the values of a column.

    ``zone`` is the time zone of texts in columns of type ``timestamp``.
    """
    convert_all = _CONVERSIONS[kind.kind]
    zero_dates = 0
    if kind.kind in ("date", "datetime", "timestamp"):
        values, zero_dates = _without_zero_dates(values)
    try:
        return Converted(convert_all(values, kind, zone), zero_dates, {})
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException):
        pass
    faults: dict[int, str] = {}
    pieces: list[pa.Array] = []
    for index, value in enumerate(values):
        try:
            pieces.append(convert_all([value], kind, zone))
        except (ValueError, TypeError, ArithmeticError, pa.ArrowException):
            faults[index] = f"{_shown(value)} is not {kind.arrow}"
            pieces.append(pa.nulls(1, kind.arrow))
    wanted = kind.arrow if kind is not INFERRED else pa.string()
    return Converted(pa.concat_arrays(pieces).cast(wanted), zero_dates, faults)


def _texts(values: Sequence[Any]) -> pa.Array:
    """Return values as texts. JSON's objects and lists become JSON texts."""
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        return str(value)
    return msgspec.json.encode(value).decode()


def _shown(value: Any) -> str:
    text = _text(value)
    return repr(text if len(text) <= 40 else text[:40] + "…")


_ZERO_DATE: Final = r"^0000|-00"


def _without_zero_dates(values: Sequence[Any]) -> tuple[Sequence[Any], int]:
    """Replace dates with a zero as year, month or day by null. Also return their number."""
    texts = _texts(values)
    is_zero = pc.match_substring_regex(texts, _ZERO_DATE)
    count = pc.sum(is_zero).as_py() or 0
    if not count:
        return values, 0
    return pc.if_else(is_zero, None, texts).to_pylist(), count


def _integers(values: Sequence[Any], kind: ColumnType, _zone: str) -> pa.Array:
    if all(value is None or type(value) is int for value in values):
        return pa.array(values, UNSIGNED_LONG).cast(kind.arrow)
    return _texts(values).cast(kind.arrow)


def _cast_texts(values: Sequence[Any], kind: ColumnType, _zone: str) -> pa.Array:
    return _texts(values).cast(kind.arrow)


_FLAGS: Final = {"0": False, "1": True, "false": False, "true": True, "\0": False, "\1": True}


def _flags(values: Sequence[Any], _kind: ColumnType, _zone: str) -> pa.Array:
    try:
        return pa.array(values, pa.bool_())
    except pa.ArrowInvalid:
        pass
    found = [None if text is None else _FLAGS.get(text) for text in _texts(values).to_pylist()]
    if sum(value is None for value in found) > sum(value is None for value in values):
        raise ValueError("neither 0 nor 1")
    return pa.array(found, pa.bool_())


def _timestamps(values: Sequence[Any], _kind: ColumnType, zone: str) -> pa.Array:
    """Convert texts without a zone, which are in ``zone``.

    An hour that occurs twice at the end of summer time is the first one.
    """
    times = _texts(values).cast(WALL_TIME)
    if zone == "UTC":
        return times.cast(TIMESTAMP)
    return pc.assume_timezone(times, zone, ambiguous="earliest", nonexistent="latest").cast(
        TIMESTAMP
    )


def _zoned(values: Sequence[Any], _kind: ColumnType, _zone: str) -> pa.Array:
    times = [None if value is None else datetime.fromisoformat(value) for value in values]
    return pa.array(times, TIMESTAMP)


def _latin_bytes(values: Sequence[Any], _kind: ColumnType, _zone: str) -> pa.Array:
    return pa.array(
        [None if value is None else value.encode("latin-1") for value in values], pa.binary()
    )


def _base64_bytes(values: Sequence[Any], _kind: ColumnType, _zone: str) -> pa.Array:
    return pa.array([None if value is None else _decoded(value) for value in values], pa.binary())


def _decoded(value: str) -> bytes:
    return base64.b64decode(value, validate=True)


def _labels(values: Sequence[Any], kind: ColumnType, _zone: str) -> pa.Array:
    """Return the labels of an enum. A source may give their numbers instead, from 1.

    Number 0 is MySQL's empty text for a wrong value.
    """
    by_number = {str(number): label for number, label in enumerate(kind.detail, 1)} | {"0": ""}
    known = set(kind.detail)
    return pa.array(
        [text if text in known else by_number.get(text, text) for text in _plain(values)],
        pa.string(),
    )


def _label_sets(values: Sequence[Any], kind: ColumnType, _zone: str) -> pa.Array:
    """Return the labels of a set, with commas. A source may give a bit for each label instead."""
    known = set(kind.detail)

    def labels(text: str | None) -> str | None:
        if text is None or text in known or not text.isdecimal():
            return text
        bits = int(text)
        return ",".join(label for at, label in enumerate(kind.detail) if bits >> at & 1)

    return pa.array([labels(text) for text in _plain(values)], pa.string())


def _plain(values: Sequence[Any]) -> list[Any]:
    return [value if value is None else _text(value) for value in values]


def _days(values: Sequence[Any], _kind: ColumnType, _zone: str) -> pa.Array:
    return pa.array(values, pa.int32()).cast(pa.date32())


def _since_1970(values: Sequence[Any], kind: ColumnType, _zone: str) -> pa.Array:
    micros = pc.multiply_checked(pa.array(values, pa.int64()), kind.detail[0])
    return micros.cast(WALL_TIME)


def _nanoseconds(values: Sequence[Any], _kind: ColumnType, _zone: str) -> pa.Array:
    return pa.array([value if value is None else value // 1000 for value in values], WALL_TIME)


def _times_of_day(values: Sequence[Any], kind: ColumnType, _zone: str) -> pa.Array:
    """Return times as texts, as MySQL writes them: they may be negative, or have 838 hours."""

    def text(value: int) -> str:
        seconds, micros = divmod(abs(value * kind.detail[0]), 1_000_000)
        minutes, second = divmod(seconds, 60)
        whole = f"{'-' * (value < 0)}{minutes // 60:02}:{minutes % 60:02}:{second:02}"
        return f"{whole}.{micros:06}" if micros else whole

    return pa.array([None if value is None else text(value) for value in values], pa.string())


def _unscaled(values: Sequence[Any], kind: ColumnType, _zone: str) -> pa.Array:
    numbers = [None if value is None else _big_number(value, kind) for value in values]
    if pa.types.is_string(kind.arrow):
        return pa.array([value if value is None else f"{value:f}" for value in numbers])
    return pa.array(numbers, kind.arrow)


def _big_number(value: Any, kind: ColumnType) -> Decimal:
    if not isinstance(value, str):
        raise TypeError("not base64")
    number = int.from_bytes(_decoded(value), "big", signed=True)
    sign, digits = number < 0, tuple(map(int, str(abs(number))))
    return Decimal((sign, digits, -kind.detail[0]))


def _little_endian(values: Sequence[Any], kind: ColumnType, _zone: str) -> pa.Array:
    numbers = [
        value if value is None else int.from_bytes(_decoded(value), "little") for value in values
    ]
    return pa.array(numbers, kind.arrow)


def _inferred(values: Sequence[Any], _kind: ColumnType, _zone: str) -> pa.Array:
    """Return values in the narrowest type of: boolean, int64, decimal(20,0), double, text."""
    classes = {type(value) for value in values if value is not None}
    if not classes:
        return pa.nulls(len(values))
    if classes == {bool}:
        return pa.array(values, pa.bool_())
    if classes == {int}:
        try:
            return pa.array(values, pa.int64())
        except (OverflowError, pa.ArrowInvalid):
            return pa.array(values, UNSIGNED_LONG)
    if classes <= {int, Decimal, float}:
        return pa.array([None if value is None else float(value) for value in values])
    return _texts(values)


_CONVERSIONS: Final[dict[str, Callable[[Sequence[Any], ColumnType, str], pa.Array]]] = {
    "text": _cast_texts,
    "inferred": _inferred,
    "integer": _integers,
    "number": _cast_texts,
    "flag": _flags,
    "date": _cast_texts,
    "datetime": _cast_texts,
    "timestamp": _timestamps,
    "zoned": _zoned,
    "latin-1": _latin_bytes,
    "base64": _base64_bytes,
    "enum": _labels,
    "set": _label_sets,
    "days": _days,
    "since 1970": _since_1970,
    "nanoseconds": _nanoseconds,
    "time of day": _times_of_day,
    "unscaled": _unscaled,
    "unscaled text": _unscaled,
    "little endian": _little_endian,
}

_DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


def widened(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """Return a type that holds all values of two types, or None if there is none but text.

    The result is ``old`` if that is wide enough.
    """
    if old == new or pa.types.is_null(new):
        return old
    if pa.types.is_null(old):
        return new
    if old in _DIGITS and new in _DIGITS:
        return max(old, new, key=_DIGITS.__getitem__)
    exact = [_digits(old), _digits(new)]
    if None not in exact:
        whole = max(each[0] for each in exact if each)
        scale = max(each[1] for each in exact if each)
        return pa.decimal128(whole + scale, scale) if whole + scale <= DECIMAL_DIGITS else None
    numbers = [_is_number(old), _is_number(new)]
    if all(numbers) and (pa.types.is_floating(old) or pa.types.is_floating(new)):
        return pa.float64()
    if {old, new} == {pa.date32(), WALL_TIME}:
        return WALL_TIME
    return None


def _digits(kind: pa.DataType) -> tuple[int, int] | None:
    """Return the digits of an exact number before and after the point."""
    if kind in _DIGITS:
        return _DIGITS[kind], 0
    return (kind.precision - kind.scale, kind.scale) if pa.types.is_decimal(kind) else None


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or _digits(kind) is not None
