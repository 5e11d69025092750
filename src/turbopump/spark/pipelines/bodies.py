"""Bodies as columns: JSON by a Spark schema, Avro by an Avro schema.

The one rule: no row is dropped. A body that does not fit keeps its row, in the table ``_rejected``,
with the reason in words. JSON is read by Spark's ``from_json`` before the rows reach the writer;
Avro by fastavro in the writer. It must not know where rows go.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException

from turbopump.errors import ConfigError
from turbopump.spark.pipelines.body_names import named, without_names
from turbopump.spark.pipelines.lake import DATA, REJECTED, Bodies

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

PARSED: Final = "_parsed"
"""The column in which Spark hands over what it read out of a JSON body."""
CORRUPT: Final = "_turbopump_corrupt"


def json_bodies(ddl: str, *, kept: bool = True, prefix: str = "", struct: str = "") -> Bodies:
    """Bodies are JSON objects with these fields, such as ``carrier string not null, delay int``.

    ``kept``: the column ``body`` stays. A column has the field's name, or that behind AS in
    ``date AS day date``; else with the ``prefix``. ``struct``: one column of this name has all of
    them within it. Needs a running session. Raises ConfigError for what is no Spark DDL, a type for
    which there is no column, and ``not null`` within a field.
    """
    from pyspark.sql.types import StructType

    plain, names = without_names(ddl)
    try:
        schema = StructType.fromDDL(plain)
    except PySparkException as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{ddl!r} is no Spark schema, such as 'carrier string, delay int': {reason}"
        ) from None
    if not isinstance(schema, StructType):
        raise ConfigError(f"{ddl!r} has no fields: 'carrier string, delay int' is expected")
    for each in schema.fields:
        _check_type(each.name, each.dataType)
    bodies = Bodies(kind="json", schema=schema.json(), kept=kept)
    return named(bodies, schema.names, names, prefix, struct)


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
"""What a field of a JSON body, or a part of one, may be; beside structs, arrays and maps."""


def _check_type(name: str, kind: DataType) -> None:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        for each in kind.fields:
            if not each.nullable:
                raise ConfigError(
                    f"the field {name}.{each.name} is not null: that can be asked of the fields of "
                    "a body, not of what is within them. Leave it out there"
                )
            _check_type(f"{name}.{each.name}", each.dataType)
    elif isinstance(kind, ArrayType):
        _check_type(f"{name}[]", kind.elementType)
    elif isinstance(kind, MapType):
        _check_type(f"{name}[]", kind.keyType)
        _check_type(f"{name}[]", kind.valueType)
    elif kind.simpleString().partition("(")[0] not in _JSON_TYPES:
        raise ConfigError(
            f"the field {name} has the type {kind.simpleString()}, for which there is no column: "
            f"{', '.join(_JSON_TYPES)}, struct, array and map are known"
        )


def avro_bodies(schema: str, *, kept: bool = True, prefix: str = "", struct: str = "") -> Bodies:
    """Bodies are Avro records without a header, of this schema (JSON text). Columns have a
    ``prefix``, or are within a ``struct``, as in ``json_bodies``.

    Raises ConfigError for a schema that is none, or that has no columns.
    """
    bodies = Bodies(kind="avro", schema=_compact(schema), kept=kept)
    fastavro = _fastavro()
    try:
        fastavro.parse_schema(_avro_schema(bodies))
        names = [field.name for field in body_columns(bodies)]
    except ConfigError:
        raise
    except Exception as error:  # fastavro raises whatever the schema leads it into
        reason = f"{type(error).__name__} {_short(str(error))}"
        raise ConfigError(f"the Avro schema cannot be used: {reason}") from None
    return named(bodies, names, {}, prefix, struct)


def body_columns(bodies: Bodies) -> list[pa.Field]:
    """The columns that bodies become."""
    if bodies.kind == "json":
        from pyspark.sql.pandas.types import to_arrow_schema

        return list(to_arrow_schema(_json_schema(bodies), timezone="UTC"))
    assert bodies.kind == "avro", bodies.kind
    return list(_arrow_record(_avro_schema(bodies)))


def with_parsed(rows: DataFrame, bodies: Bodies) -> DataFrame:
    """Rows with the column ``_parsed`` where Spark reads the bodies; what it reads is judged in
    ``split_bodies``."""
    if bodies.kind != "json":
        return rows
    from pyspark.sql.functions import col, from_json, is_valid_utf8, when
    from pyspark.sql.types import StringType, StructField, StructType

    schema = StructType(
        [
            *(StructField(each.name, each.dataType) for each in _json_schema(bodies)),
            StructField(CORRUPT, StringType()),
        ]
    )
    text = col("body").cast("string")
    # from_json takes the first of an array for the whole, and any bytes for text.
    is_object = is_valid_utf8(text) & text.rlike(r"^[ \t\r\n]*\{")
    # A lake has one zone, whatever the session of this run has.
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "timeZone": "UTC"}
    return rows.withColumn(PARSED, when(is_object, from_json(text, schema, options)))


def split_bodies(rows: pa.Table, bodies: Bodies) -> dict[str, pa.Table]:
    """The rows that fit, with their new columns, and those that do not, with ``reason``."""
    found, reasons = (_json_values if bodies.kind == "json" else _avro_values)(rows, bodies)
    fits = pc.is_null(reasons)
    if bodies.kind == "json":
        rows = rows.drop_columns([PARSED])
    good = rows.filter(fits)
    for name, column in found.items():
        good = good.append_column(name, column.filter(fits))
    wrong = rows.append_column("reason", reasons).filter(pc.invert(fits))
    return {DATA: good, REJECTED: wrong}


Values = tuple[dict[str, Any], Any]
"""A column for each field, and why a row does not fit (null if it does)."""


def _json_values(rows: pa.Table, bodies: Bodies) -> Values:
    schema = _json_schema(bodies)
    parsed = rows[PARSED].combine_chunks()
    if isinstance(parsed, pa.ChunkedArray):
        parsed = pa.concat_arrays(parsed.chunks)
    columns = {each.name: pc.struct_field(parsed, each.name) for each in schema}
    wrong = pc.or_(pc.is_null(parsed), pc.is_valid(pc.struct_field(parsed, CORRUPT)))
    for each in schema:
        if not each.nullable:
            wrong = pc.or_(wrong, pc.is_null(columns[each.name]))
    reasons: list[str | None] = [None] * rows.num_rows
    for at in pc.indices_nonzero(wrong).to_pylist():
        reasons[at] = _json_fault(rows["body"][at].as_py(), parsed[at].as_py(), schema)
    return columns, pa.array(reasons, pa.string())


def _json_fault(body: bytes, parsed: dict[str, Any] | None, schema: StructType) -> str:
    try:
        value = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start}"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    if not isinstance(value, dict):
        return f"JSON, but no object: {_short(value)}"
    read = parsed or {}
    for each in schema:
        if value.get(each.name) is None and not each.nullable:
            return f"{each.name} is missing, or null"
        if value.get(each.name) is not None and read.get(each.name) is None:
            there = _short(json.dumps(value[each.name], ensure_ascii=False))
            return f"{each.name} is {there}, not {each.dataType.simpleString()}"
    return "does not fit the schema"


def _avro_values(rows: pa.Table, bodies: Bodies) -> Values:
    fastavro = _fastavro()
    schema = fastavro.parse_schema(_avro_schema(bodies))
    record = _arrow_record(_avro_schema(bodies))
    values: list[dict[str, Any] | None] = []
    reasons: list[str | None] = []
    for body in rows["body"].to_pylist():
        value, reason = _avro_value(fastavro, schema, record, body)
        values.append(value)
        reasons.append(reason)
    columns = {
        each.name: pa.array([None if v is None else v[each.name] for v in values], each.type)
        for each in record
    }
    return columns, pa.array(reasons, pa.string())


def _avro_value(
    fastavro: Any, schema: Any, record: pa.Schema, body: bytes
) -> tuple[dict[str, Any] | None, str | None]:
    source = io.BytesIO(body)
    try:
        value = fastavro.schemaless_reader(source, schema)
    except Exception as error:  # fastavro raises whatever the bytes lead it into
        return None, f"not Avro of the schema: {type(error).__name__} {_short(str(error))}"
    if source.tell() != len(body):
        return None, f"not Avro of the schema: {len(body) - source.tell()} bytes follow the record"
    try:
        for each in record:
            pa.scalar(value[each.name], each.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        return None, f"{each.name} does not fit its column: {_short(str(error))}"
    return value, None


# Avro's types as Arrow's. Names of types that were given before stand for them; a union is what
# may be null, nothing else.
_SIMPLE: Final[dict[str, Callable[[], Any]]] = {
    "boolean": pa.bool_,
    "int": pa.int32,
    "long": pa.int64,
    "float": pa.float32,
    "double": pa.float64,
    "bytes": pa.binary,
    "string": pa.string,
    "enum": pa.string,
    "fixed": pa.binary,
}
_LOGICAL: Final[dict[str, Callable[[], Any]]] = {
    "date": pa.date32,
    "timestamp-millis": lambda: pa.timestamp("us", tz="UTC"),
    "timestamp-micros": lambda: pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": lambda: pa.timestamp("us"),
    "local-timestamp-micros": lambda: pa.timestamp("us"),
}
DECIMAL: Final = "decimal"
DECIMAL_DIGITS_MAX: Final = 38


def _arrow_record(schema: Any) -> pa.Schema:
    if not (isinstance(schema, dict) and schema.get("type") == "record"):
        raise ConfigError("the Avro schema is no record: only fields can become columns")
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
            return _SIMPLE[schema]()
    elif schema.get("logicalType") == DECIMAL:
        if schema["precision"] <= DECIMAL_DIGITS_MAX:
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
    elif schema.get("logicalType") in _LOGICAL:
        return _LOGICAL[schema["logicalType"]]()
    elif schema["type"] == "array":
        return pa.list_(_arrow_type(schema["items"], field))
    elif schema["type"] == "map":
        return pa.map_(pa.string(), _arrow_type(schema["values"], field))
    elif schema["type"] == "record":
        return pa.struct(list(_arrow_record(schema)))
    else:
        return _arrow_type(schema["type"], field)
    raise ConfigError(
        f"the Avro field {field} has the type {_short(schema)}, for which there is no column: "
        "leave the schema out, and read bodies where they are used"
    )


def _avro_schema(bodies: Bodies) -> Any:
    return _with_known_logical_types(json.loads(bodies.schema))


def _with_known_logical_types(schema: Any) -> Any:
    """The schema without the logical types that have no column: fastavro then gives the plain
    values, the text of a ``uuid`` and the number of a ``time-millis``."""
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
            f"Avro bodies need {error.name}, which is not installed: pip install '.[lake]' in a "
            "checkout of Turbopump"
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
