"""Decoding of message bodies into columns: JSON by a Spark schema, Avro by an Avro schema.

No row is dropped. A row whose body does not fit the schema is stored in the table ``_rejected``,
with the reason. ``turbopump.spark.pipelines.json_values`` decodes JSON, and fastavro decodes Avro.
The destination of rows is unknown here.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException

from turbopump.errors import ConfigError
from turbopump.spark.options import BODY_FAULT, did_you_mean
from turbopump.spark.pipelines.body_names import named, without_names
from turbopump.spark.pipelines.json_values import UNIT_KEY, UNITS, JsonReader, Misfit
from turbopump.spark.pipelines.lake import DATA, REJECTED, Bodies

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def json_bodies(
    ddl: str,
    *,
    kept: bool = True,
    timestamp_unit: str | Mapping[str, str] = "s",
    prefix: str = "",
    struct: str = "",
) -> Bodies:
    """Define that message bodies are JSON objects. The fields in ``ddl`` become columns of the
    lake.

    ``ddl`` lists the fields with Spark's types, such as ``carrier string not null, delay int``.

    - ``kept``: keep the column ``body``.
    - ``timestamp_unit``: unit of numbers in ``timestamp`` fields, since 1970: ``s``, ``ms`` or
      ``us``; or the units by outermost field, such as ``{"created": "ms"}``.
    - ``prefix``: prefix of the columns' names, except for fields with a name after AS: ``date AS
      day date``.
    - ``struct``: name of one column that contains all fields, instead of a prefix.

    A Spark session must be running. Raises ConfigError for an invalid Spark DDL, an unsupported
    type, ``not null`` inside a field, and an unknown unit.
    """
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    if SparkSession.getActiveSession() is None:  # Spark's JVM parses the schema
        raise ConfigError(
            "json_bodies needs a running Spark session: call turbopump.spark.rocketmq_session() "
            "before it"
        )
    plain, names = without_names(ddl)
    try:
        schema = StructType.fromDDL(plain)
    except PySparkException as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{ddl!r} is not a Spark schema, such as 'carrier string, delay int': {reason}"
        ) from None
    if not isinstance(schema, StructType):
        raise ConfigError(
            f"{ddl!r} has no fields: expected fields such as 'carrier string, delay int'"
        )
    _check_fields(schema)
    units = timestamp_unit
    timed = [each.name for each in schema.fields if _has_timestamp(each.dataType)]
    if isinstance(units, str):
        units = dict.fromkeys(timed or schema.names, units)
    for name, unit in units.items():
        if unit not in UNITS:
            raise ConfigError(f"unknown timestamp unit {unit!r}: use one of {', '.join(UNITS)}")
        if unit == "s":
            continue
        if name not in timed:
            raise ConfigError(
                f"the timestamp unit {unit} is for the field {name!r}, but the schema has no "
                f"timestamp there{did_you_mean(name, timed)}"
            )
        schema[name].metadata = {**(schema[name].metadata or {}), UNIT_KEY: unit}
    bodies = Bodies(kind="json", schema=schema.json(), kept=kept)
    return named(bodies, schema.names, names, prefix, struct)


def _has_timestamp(kind: DataType) -> bool:
    return '"timestamp"' in kind.json()


_JSON_TYPES: Final = (
    "string",
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal",
    "date",
    "timestamp",
    "timestamp_ntz",
    "binary",
)
"""Supported types of a field of a JSON body or of a part of it, besides structs, arrays and
maps."""


def _check_fields(schema: StructType, within: str = "") -> None:
    for name in schema.names:
        alike = [each for each in schema.names if each.lower() == name.lower()]
        if len(alike) > 1:
            raise ConfigError(f"the bodies' schema has the column {within}{name} twice: {alike}")
    for each in schema.fields:
        _check_type(f"{within}{each.name}", each.dataType)


def _check_type(name: str, kind: DataType) -> None:
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    if isinstance(kind, StructType):
        for each in kind.fields:
            if not each.nullable:
                raise ConfigError(
                    f"the field {name}.{each.name} is not null, which only the outermost "
                    "fields of a body can be: remove NOT NULL there"
                )
        _check_fields(kind, f"{name}.")
    elif isinstance(kind, ArrayType):
        _check_type(f"{name}[]", kind.elementType)
    elif isinstance(kind, MapType):
        _check_type(f"{name}[]", kind.valueType)
        if kind.keyType != StringType():
            raise ConfigError(
                f"the field {name} is a map of {kind.keyType.simpleString()}: the names in JSON "
                "objects are texts: expected map<string, …>"
            )
    elif kind.simpleString().partition("(")[0] not in _JSON_TYPES:
        raise ConfigError(
            f"the field {name} has the type {kind.simpleString()}, which is not "
            f"supported: use {', '.join(_JSON_TYPES)}, struct, array or map"
        )


def avro_bodies(schema: str, *, kept: bool = True, prefix: str = "", struct: str = "") -> Bodies:
    """Define that message bodies are Avro records. The fields of a record become columns of the
    lake.

    ``schema`` is an Avro schema as JSON text. The bodies have no header. ``kept``, ``prefix`` and
    ``struct`` are as in ``json_bodies``. Raises ConfigError for an invalid schema, or for a schema
    without columns.
    """
    bodies = Bodies(kind="avro", schema=_compact(schema), kept=kept)
    fastavro = _fastavro()
    try:
        fastavro.parse_schema(_avro_schema(bodies))
        names = [field.name for field in body_columns(bodies)]
    except ConfigError:
        raise
    except Exception as error:  # fastavro raises any type of error for an invalid schema
        reason = f"{type(error).__name__} {_short(str(error))}"
        raise ConfigError(f"the Avro schema cannot be used: {reason}") from None
    return named(bodies, names, {}, prefix, struct)


def body_columns(bodies: Bodies) -> list[pa.Field]:
    """Return the columns whose values come from message bodies."""
    if bodies.kind == "json":
        from pyspark.sql.pandas.types import to_arrow_schema

        return list(to_arrow_schema(_json_schema(bodies), timezone="UTC"))
    assert bodies.kind == "avro", bodies.kind
    return list(_arrow_record(_avro_schema(bodies)))


def split_bodies(rows: pa.Table, bodies: Bodies) -> dict[str, pa.Table]:
    """Decode the bodies, and divide the rows by the result. Rows with a bad body are rejected.

    A body is bad if it does not fit the schema of the lake. ``rows`` must have the columns ``body``
    and ``bodyFault``. Rows that fit get new columns after their own columns; the names of both may
    be the same. Rejected rows have a ``reason``, which is a fixed code and a text.
    """
    read, fields = _json_row(bodies) if bodies.kind == "json" else _avro_row(bodies)
    values: list[list[Any]] = [[] for _ in fields]
    reasons: list[str | None] = []
    nothing = [None] * len(fields)
    for body, fault in zip(rows["body"].to_pylist(), rows[BODY_FAULT].to_pylist(), strict=True):
        row = nothing
        reason = None
        try:
            if fault is not None:
                raise Misfit("body_fault", fault)
            row = read(body)
        except Misfit as misfit:
            reason = str(misfit).encode(errors="backslashreplace").decode()
        reasons.append(reason)
        for column, value in zip(values, row, strict=True):
            column.append(value)
    why = pa.array(reasons, pa.string())
    fits = pc.is_null(why)
    good = rows.filter(fits)
    for field, column in zip(fields, values, strict=True):
        good = good.append_column(field, pa.array(column, field.type).filter(fits))
    wrong = rows.append_column("reason", why).filter(pc.invert(fits))
    return {DATA: good, REJECTED: wrong}


RowReader = Callable[[bytes], list[Any]]
"""Function that decodes a body into a value for each column. Raises Misfit."""


def _json_row(bodies: Bodies) -> tuple[RowReader, list[pa.Field]]:
    return JsonReader(_json_schema(bodies)).row, body_columns(bodies)


def _avro_row(bodies: Bodies) -> tuple[RowReader, list[pa.Field]]:
    fastavro = _fastavro()
    schema = fastavro.parse_schema(_avro_schema(bodies))
    fields = body_columns(bodies)

    def read(body: bytes) -> list[Any]:
        source = io.BytesIO(body)
        try:
            value = fastavro.schemaless_reader(source, schema)
        except Exception as error:  # fastavro raises any type of error for invalid bytes
            raise Misfit("not_avro", f"{type(error).__name__} {_short(str(error))}") from None
        if source.tell() != len(body):
            left = len(body) - source.tell()
            raise Misfit("extra_data", f"{left} bytes follow the record")
        for each in fields:
            try:
                pa.scalar(value[each.name], each.type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                raise Misfit("out_of_range", _short(str(error)), each.name) from None
        return [value[each.name] for each in fields]

    return read, fields


# Arrow types of Avro's types. The only supported union is that of one type and null.
_SIMPLE: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL: Final[dict[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
DECIMAL: Final = "decimal"
DECIMAL_DIGITS_MAX: Final = 38


def _arrow_record(schema: Any) -> pa.Schema:
    if not (isinstance(schema, dict) and schema.get("type") == "record"):
        raise ConfigError("the Avro schema is not a record: only fields can become columns")
    return pa.schema(
        [(each["name"], _arrow_type(each["type"], each["name"])) for each in schema["fields"]]
    )


def _arrow_type(schema: Any, field: str) -> Any:
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) == 1:
            return _arrow_type(others[0], field)
    elif isinstance(schema, str):
        if schema in _SIMPLE:
            return _SIMPLE[schema]
    elif schema.get("logicalType") == DECIMAL:
        if schema["precision"] <= DECIMAL_DIGITS_MAX:
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
    elif schema.get("logicalType") in _LOGICAL:
        return _LOGICAL[schema["logicalType"]]
    elif schema["type"] == "array":
        return pa.list_(_arrow_type(schema["items"], field))
    elif schema["type"] == "map":
        return pa.map_(pa.string(), _arrow_type(schema["values"], field))
    elif schema["type"] == "record":
        return pa.struct(list(_arrow_record(schema)))
    else:
        return _arrow_type(schema["type"], field)
    raise ConfigError(
        f"the Avro field {field} has the type {_short(schema)}, which is not supported: "
        "leave the schema out, and decode bodies when you read the lake"
    )


def _avro_schema(bodies: Bodies) -> Any:
    return _with_known_logical_types(json.loads(bodies.schema))


def _with_known_logical_types(schema: Any) -> Any:
    """Copy an Avro schema without the logical types that columns do not support.

    fastavro then returns the plain values, such as the text of a ``uuid`` or the number of a
    ``time-millis``.
    """
    if isinstance(schema, list):
        return [_with_known_logical_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _with_known_logical_types(value)
        for name, value in schema.items()
        if name != "logicalType" or value == DECIMAL or value in _LOGICAL
    }


def _fastavro() -> Any:
    try:
        import fastavro
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Avro bodies need {error.name}, which is not installed: pip install 'turbopump[lake]'"
        ) from None
    return fastavro


def _json_schema(bodies: Bodies) -> StructType:
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(bodies.schema))


def _compact(schema: str) -> str:
    try:
        return json.dumps(json.loads(schema), separators=(",", ":"))
    except ValueError as error:
        raise ConfigError(f"the Avro schema is not JSON: {error}") from None


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"
