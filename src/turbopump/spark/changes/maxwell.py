"""Maxwell's JSON messages.

::

    {"database":"test","table":"e","type":"update","ts":1477053234,"xid":23396,"commit":true,
     "data":{"id":1,"m":5.444},"old":{"m":4.2},"primary_key_columns":["id"]}

A message has one row with JSON values but without types, which are inferred unless declared.
``ts`` counts seconds. ``xid`` is the transaction, and ``xoffset`` the row within it, except for the
last one. ``primary_key_columns`` needs ``output_primary_key_columns=true``. Bytes are base64.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import msgspec

from turbopump.spark.changes.change import (
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
)
from turbopump.spark.changes.column_types import INFERRED, mysql_type
from turbopump.spark.changes.statements import statement

_ROW_BITS: Final = 8
_TRANSACTION_BITS: Final = 22
_SECOND_BITS: Final = _ROW_BITS + _TRANSACTION_BITS


class _Message(msgspec.Struct):
    type: str
    database: str | None = ""
    table: str | None = ""
    ts: int = 0
    xid: int | None = 0
    xoffset: int | None = None
    primary_key_columns: tuple[str, ...] = ()
    data: dict[str, Any] | None = None
    old: Any = None
    """Former values of changed columns. For a statement: the former definition."""
    sql: str | None = ""


class MaxwellFormat:
    """Parser of ``maxwell``. ``ChangeFormat`` describes the methods."""

    tolerance = TOLERANCE_MS // 1000 << _SECOND_BITS

    def __init__(self, options: ChangeOptions) -> None:
        self._options = options
        self._decoder = msgspec.json.Decoder(_Message, float_hook=Decimal)
        self._layouts: dict[tuple[Any, ...], Layout] = {}

    def parse(self, body: bytes) -> list[Change] | NoChange:
        try:
            message = self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return NoChange("fault", f"not_change: {error}")
        kind, row = message.type, message.data
        if kind in ("bootstrap-start", "bootstrap-complete", "heartbeat"):
            return SKIPPED
        if kind.startswith(("table-", "database-")):
            return statement(message.sql or kind, message.database or "", message.table or "")
        if kind not in ("insert", "update", "delete", "bootstrap-insert") or row is None:
            return NoChange("fault", f"not_change: the type {kind!r} is unknown, or has no data")
        layout = self._layout_of(message, row)
        if not layout.keys:
            return NoChange("fault", f"no_key {layout.name}: declare its key (--key)")
        position = _position(message)
        if kind == "update":
            return key_change(layout, row, message.old or {}, position)
        if kind == "delete":
            return [Change(layout, row, True, EXISTED, position)]
        existed = INSERTED if kind == "insert" else UNKNOWN
        return [Change(layout, row, False, existed, position)]

    def _layout_of(self, message: _Message, row: dict[str, Any]) -> Layout:
        database, table = message.database or "", message.table or ""
        key = database, table, message.primary_key_columns, *row
        layout = self._layouts.get(key)
        if layout is None:
            declared = self._options.types
            columns = {
                name: INFERRED if text is None else mysql_type(text, bytes_in="base64")
                for name in row
                for text in (declared.get(f"{database}.{table}.{name}"),)
            }
            keys = self._options.keys_of(database, table, message.primary_key_columns)
            layout = self._layouts[key] = Layout(database, table, keys, columns)
        return layout


def _position(message: _Message) -> int:
    """Return second, transaction and row. The last row of a transaction has no ``xoffset``."""
    transaction = (message.xid or 0) & (1 << _TRANSACTION_BITS) - 1
    last = (1 << _ROW_BITS) - 1
    row = last if message.xoffset is None else min(message.xoffset, last)
    return message.ts << _SECOND_BITS | transaction << _ROW_BITS | row
