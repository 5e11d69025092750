"""Debezium's JSON messages, with or without their schema.

::

    {"schema":{…},"payload":{"before":{"id":1,"n":"w"},"after":{"id":1,"n":"x"},"op":"u",
     "source":{"db":"shop","schema":"public","table":"orders","ts_ms":1589373560000,…},
     "ts_ms":1589373560798}}

Without ``schema`` (``schemas.enable=false``) the message is the payload, and types are inferred
unless declared. A body does not tell the key, which is declared. ``op`` is c, u, d, r (snapshot), t
(truncate) or m (of the application). An empty body is the tombstone of a deleted key.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import msgspec

from turbopump.spark.changes.change import (
    DELAY_BITS,
    EXISTED,
    INSERTED,
    SKIPPED,
    TOLERANCE_MS,
    UNKNOWN,
    Change,
    ChangeOptions,
    Layout,
    NoChange,
    key_change,
    position_of,
)
from turbopump.spark.changes.column_types import INFERRED, ColumnType, connect_type, mysql_type
from turbopump.spark.changes.statements import statement

_UNAVAILABLE: Final = "__debezium_unavailable_value"
"""Value of a large PostgreSQL column that an update did not change."""
_NONE: Final = msgspec.Raw(b"null")


class _Source(msgspec.Struct):
    db: str | None = ""
    schema: str | None = None
    table: str | None = ""
    ts_ms: int | None = 0


class _Payload(msgspec.Struct):
    op: str | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    source: _Source | None = None
    ts_ms: int | None = 0
    ddl: str | None = None
    status: str | None = None


class _Message(_Payload):
    schema: msgspec.Raw = _NONE
    payload: _Payload | None = None


class DebeziumFormat:
    """Parser of ``debezium-json``. ``ChangeFormat`` describes the methods."""

    tolerance = TOLERANCE_MS << DELAY_BITS

    def __init__(self, options: ChangeOptions) -> None:
        self._options = options
        self._decoder = msgspec.json.Decoder(_Message, float_hook=Decimal)
        self._layouts: dict[tuple[Any, ...], Layout] = {}
        self._types: dict[bytes, dict[str, ColumnType]] = {}

    def parse(self, body: bytes) -> list[Change] | NoChange:
        if body in (b"", b"null"):
            return SKIPPED
        try:
            message = self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return NoChange("fault", f"not_change: {error}")
        payload = message.payload or message
        op, source = payload.op, payload.source or _Source()
        database, table = _database_of(source), source.table or ""
        if payload.ddl is not None:
            return statement(payload.ddl, database, table)
        if op == "t":
            return statement("TRUNCATE", database, table, truncates=True)
        if op is None and payload.status is None and payload.before is None is payload.after:
            # a heartbeat has only a time
            return SKIPPED if payload.ts_ms else NoChange("fault", "not_change: it has no op")
        if op == "m" or payload.status is not None:
            return SKIPPED
        row = payload.before if op == "d" else payload.after
        if op not in ("c", "u", "d", "r") or row is None:
            return NoChange("fault", f"not_change: the op {op!r} is unknown, or has no row")
        if _UNAVAILABLE in row.values():
            row = {name: _known(name, value, payload.before) for name, value in row.items()}
            if op != "d" and _UNAVAILABLE in row.values():
                return NoChange(
                    "fault",
                    f"unavailable {database}.{table}: a column has no value: set REPLICA IDENTITY "
                    "FULL",
                )
        layout = self._layout_of(database, table, bytes(message.schema), row)
        if not layout.keys:
            return NoChange("fault", f"no_key {layout.name}: declare its key (--key)")
        captured = payload.ts_ms or source.ts_ms or 0
        position = position_of(source.ts_ms or captured, captured)
        if op == "u":
            return key_change(layout, row, payload.before or {}, position)
        if op == "d":
            return [Change(layout, row, True, EXISTED, position)]
        return [Change(layout, row, False, INSERTED if op == "c" else UNKNOWN, position)]

    def _layout_of(self, database: str, table: str, schema: bytes, row: dict[str, Any]) -> Layout:
        key = database, table, schema, *row
        layout = self._layouts.get(key)
        if layout is None:
            known = self._types_in(schema)
            declared = self._options.types
            columns = {
                name: known.get(name, INFERRED) if text is None else mysql_type(text, "base64")
                for name in row
                for text in (declared.get(f"{database}.{table}.{name}"),)
            }
            keys = self._options.keys_of(database, table, ())
            layout = self._layouts[key] = Layout(database, table, keys, columns)
        return layout

    def _types_in(self, schema: bytes) -> dict[str, ColumnType]:
        """Return the types of columns in the schema of a message, or nothing without a schema."""
        found = self._types.get(schema)
        if found is None:
            described = msgspec.json.decode(schema) or {}
            found = {
                column["field"]: connect_type(column)
                for part in described.get("fields", ())
                if part.get("field") in ("after", "before")
                for column in part.get("fields", ())
            }
            self._types[schema] = found
        return found


def _database_of(source: _Source) -> str:
    """Return the name of the database, with the schema if the database has schemas."""
    return f"{source.db}.{source.schema}" if source.schema else source.db or ""


def _known(name: str, value: Any, before: dict[str, Any] | None) -> Any:
    return (before or {}).get(name, value) if value == _UNAVAILABLE else value
