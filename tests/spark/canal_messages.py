"""Canal's messages for tests, from rows of texts."""

from __future__ import annotations

import json
from typing import Any

TYPES = {"id": "bigint(20)", "name": "varchar(20)", "amount": "decimal(10,2)"}
Row = dict[str, Any]


def canal(
    kind: str,
    *rows: Row,
    old: list[Row] | None = None,
    es: int = 1_000,
    ts: int | None = None,
    table: str = "shop.orders",
    types: dict[str, str] | None = None,
    keys: tuple[str, ...] = ("id",),
    **more: Any,
) -> bytes:
    """One message as canal writes it. ``es`` and ``ts`` are in milliseconds."""
    database, _, name = table.partition(".")
    message = {
        "data": list(rows) or None,
        "database": database,
        "es": es,
        "id": 1,
        "isDdl": False,
        "mysqlType": types or {name: TYPES[name] for name in TYPES if name in rows[0]},
        "old": old,
        "pkNames": list(keys) or None,
        "sql": "",
        "table": name,
        "ts": es + 500 if ts is None else ts,
        "type": kind,
    }
    return json.dumps({**message, **more}).encode()


def statement(sql: str, kind: str = "ALTER", **more: Any) -> bytes:
    """One message with a statement, as canal writes it."""
    return canal(kind, {}, isDdl=True, sql=sql, data=None, pkNames=None, **more)
