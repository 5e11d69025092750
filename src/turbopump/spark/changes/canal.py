"""Canal's JSON messages (FlatMessage), which Aliyun DTS, Huawei DRS and others write as well.

::

    {"data":[{"id":"1","name":"x"}],"old":[{"name":"w"}],"type":"UPDATE","database":"shop",
     "table":"orders","pkNames":["id"],"mysqlType":{"id":"bigint unsigned","name":"varchar(9)"},
     "es":1589373560000,"ts":1589373560798,"id":9,"isDdl":false,"sql":"","sqlType":{…}}

A message has several rows. All values are texts or null. ``old`` has only the changed columns, and
a DELETE has its row in ``data``. ``es`` is the time of the statement in full seconds, and ``ts``
the time at which canal read it. ``id`` is a number of canal's batch, which does not order anything.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from turbopump.spark.changes.change import (
    DELAY_BITS,
    EXISTED,
    INSERTED,
    SKIPPED,
    TOLERANCE_MS,
    Change,
    ChangeOptions,
    Layout,
    NoChange,
    key_change,
    position_of,
)
from turbopump.spark.changes.column_types import TEXT, mysql_type
from turbopump.spark.changes.statements import statement

_NULL: Final = msgspec.Raw(b"null")
_ROW_CHANGES: Final = {"INSERT", "UPDATE", "DELETE"}
_ERAS: Final = {"GTID", "MHEARTBEAT", "XACOMMIT", "XAROLLBACK", "TIDB_WATERMARK", "BOOTSTRAP"}
"""Types of messages that only mark a time."""


class FlatMessage(msgspec.Struct):
    """Fields of a message, as far as they matter. The two raw fields identify a layout."""

    type: str
    database: str | None = ""
    table: str | None = ""
    es: int | None = 0
    ts: int | None = 0
    isDdl: bool | None = False  # noqa: N815
    sql: str | None = ""
    pkNames: msgspec.Raw = _NULL  # noqa: N815
    mysqlType: msgspec.Raw = _NULL  # noqa: N815
    data: list[dict[str, Any]] | None = None
    old: list[dict[str, Any] | None] | None = None


class CanalFormat:
    """Parser of ``canal-json``. ``ChangeFormat`` describes the methods."""

    tolerance = TOLERANCE_MS << DELAY_BITS
    message: type[FlatMessage] = FlatMessage

    def __init__(self, options: ChangeOptions) -> None:
        self._options = options
        self._decoder = msgspec.json.Decoder(self.message)
        self._layouts: dict[tuple[Any, ...], Layout] = {}

    def parse(self, body: bytes) -> list[Change] | NoChange:
        try:
            message = self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return NoChange("fault", f"not_change: {error}")
        kind = message.type
        rows = message.data
        if message.isDdl or kind not in _ROW_CHANGES or not rows:
            return self._without_rows(message)
        layout = self._layout_of(message, rows)
        if not layout.keys:
            return NoChange("fault", f"no_key {layout.name}: declare its key (--key)")
        position = self.position(message)
        if kind != "DELETE":
            absent = _absent_column(rows, layout)
            if absent is not None:
                return NoChange(
                    "fault",
                    f"partial {layout.name}: a row has no column {absent}: set "
                    "binlog_row_image=FULL",
                )
        if kind == "INSERT":
            return [Change(layout, row, False, INSERTED, position) for row in rows]
        if kind == "DELETE":
            return [Change(layout, row, True, EXISTED, position) for row in rows]
        old = message.old or [None] * len(rows)
        if len(old) != len(rows):
            return NoChange("fault", f"not_change: {len(rows)} rows, but {len(old)} old ones")
        changes: list[Change] = []
        for row, former in zip(rows, old, strict=True):
            changes += key_change(layout, row, former or {}, position)
        return changes

    def position(self, message: Any) -> int:
        """Return the position of the changes of a message."""
        source = message.es or message.ts or 0
        return position_of(source, message.ts or source)

    def _without_rows(self, message: FlatMessage) -> NoChange:
        kind = message.type
        if kind in _ERAS or (kind in _ROW_CHANGES and not message.isDdl):
            return SKIPPED
        if not message.isDdl and not message.sql:
            return NoChange("fault", f"not_change: the type {kind!r} is unknown")
        return statement(
            message.sql or kind,
            message.database or "",
            message.table or "",
            truncates=kind == "TRUNCATE",
        )

    def _layout_of(self, message: FlatMessage, rows: list[dict[str, Any]]) -> Layout:
        """Return the layout of a message's rows. The layout has each column of the rows."""
        key = (
            message.database or "",
            message.table or "",
            bytes(message.mysqlType),
            bytes(message.pkNames),
        )
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = self._new_layout(*key)
        columns = layout.columns
        untold = {name for row in rows for name in row.keys() - columns.keys()}
        if not untold:
            return layout
        wider = (*key, *sorted(untold))
        if wider not in self._layouts:
            types = {**columns, **dict.fromkeys(sorted(untold), TEXT)}
            self._layouts[wider] = Layout(layout.database, layout.table, layout.keys, types)
        return self._layouts[wider]

    def _new_layout(self, database: str, table: str, types: bytes, keys: bytes) -> Layout:
        told = msgspec.json.decode(types) or {}
        named = msgspec.json.decode(keys) or []
        columns = {
            name: mysql_type(self._options.types.get(f"{database}.{table}.{name}", text))
            for name, text in told.items()
        }
        return Layout(
            database, table, self._options.keys_of(database, table, tuple(named)), columns
        )


def _absent_column(rows: list[dict[str, Any]], layout: Layout) -> str | None:
    """Return a column that one of the rows does not have, if there is one."""
    for row in rows:
        if len(row) < len(layout.columns):
            return next(name for name in layout.columns if name not in row)
    return None
