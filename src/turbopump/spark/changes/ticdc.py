"""TiCDC's form of canal's messages, with ``enable-tidb-extension=true``.

::

    {…, "type":"INSERT", "_tidb":{"commitTs":163963314122145239}}

``commitTs`` orders all changes of a TiDB cluster exactly. ``old`` has all columns, changed or not.
A TIDB_WATERMARK has no rows. Without the extension the format is ``canal-json``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from turbopump.spark.changes.canal import CanalFormat, FlatMessage
from turbopump.spark.changes.change import Change, NoChange


class _Extension(msgspec.Struct):
    commitTs: int = 0  # noqa: N815


class TidbMessage(FlatMessage):
    tidb: _Extension | None = msgspec.field(default=None, name="_tidb")


class TicdcFormat(CanalFormat):
    """Parser of ``ticdc``. ``ChangeFormat`` describes the methods."""

    tolerance = 0
    message = TidbMessage

    def parse(self, body: bytes) -> list[Change] | NoChange:
        found = super().parse(body)
        if isinstance(found, list) and not found[0].position:
            return NoChange("fault", "no_commit_ts: set enable-tidb-extension=true in TiCDC")
        return found

    def position(self, message: Any) -> int:
        return 0 if message.tidb is None else int(message.tidb.commitTs)
