"""Decoder of JSON bodies. It converts values to column types by a Spark schema.

A column gets exactly the value that the sender wrote; otherwise the row does not fit. Spark's
``from_json`` also accepts texts with another meaning (``1e400`` as infinity, ``"1,000.00"`` as
1000, milliseconds as seconds) and texts that no other parser accepts. Here these bodies are
rejected, with a code for the reason (``Misfit``). docs/guide/pipelines.md has the table; a test
compares. Rows, files and Spark beyond its types are unknown here.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

UNITS: Final = {"s": 1_000_000, "ms": 1000, "us": 1}
"""Units of a number that is a timestamp, with their microseconds."""
UNIT_KEY: Final = "timestampUnit"
"""Key of a timestamp's unit in the metadata of a field of the lake's schema."""
SHOWN: Final = 80
"""Maximum characters of a value in a reason."""

_EPOCH: Final = datetime(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST: Final = (datetime.min - _EPOCH) // _MICROSECOND
_LAST: Final = (datetime.max - _EPOCH) // _MICROSECOND
"""Last time in microseconds; Python cannot show times before ``_FIRST`` or after this."""
_TIME: Final = re.compile(
    r"(\d{4})-(\d\d?)-(\d\d?)"
    r"(?:[T ](\d\d?):(\d\d?)(?::(\d\d?)(?:\.(\d+))?)?"
    r" ?(Z|UTC|GMT|(?:UTC|GMT)?([+-])(\d\d?)(?::?(\d\d))?)?)?",
    re.ASCII,
)
_DECIMAL: Final = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_EXACT: Final = Context(prec=200, Emax=10_000, Emin=-10_000)
_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
"""Texts of doubles that are not numbers. Python's ``json`` writes them without quotes, Spark's
``to_json`` in quotes."""
_INTEGERS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}

Converter = Callable[[Any], Any]
"""Function that converts a JSON value other than null into a value of its Arrow column. Raises
Misfit."""


class Misfit(Exception):  # noqa: N818
    """Raised for a message body that does not fit the schema of the lake.

    The error has a code, a sentence, and for some codes the field.
    """

    def __init__(self, code: str, text: str, field: str = "") -> None:
        super().__init__(f"{code} {field}: {text}" if field else f"{code}: {text}")


class NumberText(str):
    """Number in JSON that is kept as text, exactly as the sender wrote it.

    Only integers that Python can convert are not kept as text.
    """

    __slots__ = ()


_decoder: Final = json.JSONDecoder(parse_float=NumberText, parse_constant=NumberText)
_any_digits: Final = json.JSONDecoder(
    parse_float=NumberText, parse_constant=NumberText, parse_int=NumberText
)


class JsonReader:
    """Decoder of JSON bodies into values for the fields of a Spark schema."""

    def __init__(self, schema: StructType) -> None:
        self._fields = [
            (
                each.name,
                each.nullable,
                _converter(each.dataType, each.name, (each.metadata or {}).get(UNIT_KEY, "s")),
            )
            for each in schema.fields
        ]

    def row(self, body: bytes) -> list[Any]:
        """Decode a body. For each field of the schema, return a value.

        The call takes about 1 µs, and 0.3 µs per field. Raises Misfit if the body does not fit.
        """
        try:
            return self._values(parsed_object(body))
        except RecursionError:
            raise Misfit("not_json", "nested too deeply") from None

    def _values(self, found: dict[str, Any]) -> list[Any]:
        row = []
        for name, nullable, read in self._fields:
            value = found.get(name)
            if value is not None:
                value = read(value)
            elif not nullable:
                raise Misfit("missing", "absent, or null", name)
            row.append(value)
        return row


def parsed_object(body: bytes) -> dict[str, Any]:
    """Parse a body as one JSON object.

    If a field is repeated, its last value counts. Raises Misfit if the body is anything else, or
    RecursionError for deep nesting.
    """
    try:
        text = body.decode("utf-8")
        try:
            found = _decoder.decode(text)
        except json.JSONDecodeError:
            raise
        except ValueError:  # the number has more digits than Python converts
            found = _any_digits.decode(text)
    except UnicodeDecodeError as error:
        raise Misfit("not_utf8", f"{error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise Misfit(
                "extra_data", f"more follows the first value, at character {error.pos}"
            ) from None
        raise Misfit("not_json", str(error)) from None
    if type(found) is not dict:
        raise Misfit("not_object", f"it is {shown(found)}")
    return found


def shown(value: Any) -> str:
    """Return a value as JSON text, cut to a length that suits an error."""
    text = json_text(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}…"


def json_text(value: Any) -> str:
    """Return a value as JSON text. Numbers are as the sender wrote them."""
    if type(value) is NumberText:
        return str(value)
    if type(value) is dict:
        pairs = (f"{json_text(name)}:{json_text(each)}" for name, each in value.items())
        return f"{{{','.join(pairs)}}}"
    if type(value) is list:
        return f"[{','.join(map(json_text, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _converter(kind: DataType, field: str, unit: str) -> Converter:
    """Return a function that converts JSON values to a Spark type."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    said = kind.simpleString()
    if isinstance(kind, StructType):
        return _struct(
            {each.name: _converter(each.dataType, f"{field}.{each.name}", unit) for each in kind},
            field,
            said,
        )
    if isinstance(kind, ArrayType):
        return _array(_converter(kind.elementType, f"{field}[]", unit), field, said)
    if isinstance(kind, MapType):
        return _map(
            _text(f"{field}[]"), _converter(kind.valueType, f"{field}[]", unit), field, said
        )
    if isinstance(kind, DecimalType):
        return _decimal(kind.precision, kind.scale, field, said)
    if said in _INTEGERS:
        return _integer(_INTEGERS[said], field, said)
    if said == "timestamp":
        return _timestamp(unit, field)
    return _PLAIN[said](field)


def _wrong(value: Any, field: str, said: str) -> Misfit:
    return Misfit("wrong_type", f"{shown(value)} is not {said}", field)


def _outside(value: Any, field: str, said: str) -> Misfit:
    return Misfit("out_of_range", f"{shown(value)} does not fit {said}", field)


def _struct(fields: dict[str, Converter], field: str, said: str) -> Converter:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong(value, field, said)
        return {
            name: None if (each := value.get(name)) is None else read_field(each)
            for name, read_field in fields.items()
        }

    return read


def _array(read_element: Converter, field: str, said: str) -> Converter:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise _wrong(value, field, said)
        return [None if each is None else read_element(each) for each in value]

    return read


def _map(read_key: Converter, read_value: Converter, field: str, said: str) -> Converter:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong(value, field, said)
        return [
            (read_key(key), None if each is None else read_value(each))
            for key, each in value.items()
        ]

    return read


def _text(field: str) -> Converter:
    """Return a converter to text. A value that is not text becomes its JSON."""

    def read(value: Any) -> Any:
        text = value if type(value) is str else json_text(value)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                said = f"{shown(text)} holds half a surrogate pair"
                raise Misfit("not_text", said, field) from None
        return text

    return read


def _boolean(field: str) -> Converter:
    def read(value: Any) -> Any:
        if type(value) is not bool:
            raise _wrong(value, field, "boolean")
        return value

    return read


def _integer(bits: int, field: str, said: str) -> Converter:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def read(value: Any) -> Any:
        if type(value) is not int:
            raise _wrong(value, field, said)
        if not low <= value <= high:
            raise _outside(value, field, said)
        return value

    return read


def _double(field: str) -> Converter:
    return _floating(field, "double", float)


def _float(field: str) -> Converter:
    return _floating(field, "float", struct.Struct("<f").pack)


def _floating(field: str, said: str, check: Callable[[float], object]) -> Converter:
    """Return a converter to floating-point numbers.

    ``check`` raises OverflowError for a number that is out of range. ``said`` is the name of the
    type in errors.
    """

    def read(value: Any) -> Any:
        if type(value) is not int and type(value) is not NumberText and value not in _NO_NUMBERS:
            raise _wrong(value, field, said)
        try:
            found = float(value)
            check(found)
        except OverflowError:
            raise _outside(value, field, said) from None
        if math.isinf(found) and value not in _NO_NUMBERS:
            raise _outside(value, field, said)
        return found

    return read


def _decimal(precision: int, scale: int, field: str, said: str) -> Converter:
    """Return a converter to decimals.

    The converter accepts a number, or a text that is a number.
    """

    def read(value: Any) -> Any:
        if type(value) is not int and not (isinstance(value, str) and _DECIMAL.fullmatch(value)):
            raise _wrong(value, field, said)
        try:
            found = Decimal(value)
        except (InvalidOperation, ValueError):  # the exponent is out of range
            raise _outside(value, field, said) from None
        if not found:
            return Decimal(0)
        if found.adjusted() >= precision - scale:
            raise _outside(value, field, said)
        digits = "".join(map(str, found.as_tuple().digits)).rstrip("0")
        if len(digits) - found.adjusted() - 1 > scale:
            raise Misfit("inexact", f"{shown(value)} has digits that {said} drops", field)
        return found.quantize(Decimal(1).scaleb(-scale), context=_EXACT)

    return read


def _binary(field: str) -> Converter:
    """Return a converter from Base64 text to bytes."""

    def read(value: Any) -> Any:
        if type(value) is not str:
            raise _wrong(value, field, "binary")
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise Misfit("wrong_type", f"{shown(value)} is not base64", field) from None

    return read


def _date(field: str) -> Converter:
    def read(value: Any) -> Any:
        at, _ = _time(value, field, "date")
        if at % _DAY_US:
            raise Misfit("inexact", f"{shown(value)} has a time of day that date drops", field)
        return at // _DAY_US

    return read


def _timestamp(unit: str, field: str) -> Converter:
    factor = UNITS[unit]

    def read(value: Any) -> Any:
        if type(value) is int:
            at = value * factor
            if not _FIRST <= at <= _LAST:
                text = f"{shown(value)} {unit} since 1970 is outside of the years 1 to 9999"
                raise Misfit("out_of_range", text, field)
            return at
        at, offset = _time(value, field, "timestamp")
        return _in_years(at - (offset or 0), value, field)

    return read


def _timestamp_ntz(field: str) -> Converter:
    def read(value: Any) -> Any:
        at, offset = _time(value, field, "timestamp_ntz")
        if offset is not None:
            raise _wrong(value, field, "timestamp_ntz, which has no zone")
        return at

    return read


_DAY_US: Final = 86_400_000_000


def _in_years(at: int, value: Any, field: str) -> int:
    if not _FIRST <= at <= _LAST:
        raise Misfit("out_of_range", f"{shown(value)} is outside of the years 1 to 9999", field)
    return at


def _time(value: Any, field: str, said: str) -> tuple[int, int | None]:
    """Parse a date or time such as ``2026-01-02T03:04:05.678+01:00``.

    The first result is the microseconds since 1970, as if the zone of the text were UTC. The second
    is the offset of the zone in microseconds, or None if the text has no zone. Digits after the
    microseconds are dropped.
    """
    found = _TIME.fullmatch(value if type(value) is str else "")
    if found is None:
        raise _wrong(value, field, said)
    year, month, day, hour, minute, second, fraction, zone, sign, hours, minutes = found.groups()
    if year == "0000":
        raise Misfit("out_of_range", f"{shown(value)} is outside of the years 1 to 9999", field)
    try:
        at = datetime(
            int(year),
            int(month),
            int(day),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            int((fraction or "")[:6].ljust(6, "0")),
        )
    except ValueError:
        raise _wrong(value, field, said) from None
    offset = None
    if zone is not None:
        offset = (int(hours or 0) * 60 + int(minutes or 0)) * 60_000_000
        if offset > 18 * 3600 * 1_000_000 or int(minutes or 0) > 59:
            raise _wrong(value, field, said)
        if sign == "-":
            offset = -offset
    return (at - _EPOCH) // _MICROSECOND, offset


_PLAIN: Final[dict[str, Callable[[str], Converter]]] = {
    "string": _text,
    "boolean": _boolean,
    "float": _float,
    "double": _double,
    "date": _date,
    "timestamp_ntz": _timestamp_ntz,
    "binary": _binary,
}
