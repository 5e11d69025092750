"""Change of a row in a database, and the interface of the formats that describe changes.

A format parses the body of one message. The result is a list of changes in the order of the
database, or a ``NoChange`` that says why there are none. Formats keep caches, so one object of a
format parses the messages of one task. Types of columns are in ``column_types``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from turbopump.spark.changes.column_types import ColumnType

INSERTED: Final = 0
"""Value of ``Change.existed``: the row did not exist before the change."""
EXISTED: Final = 1
UNKNOWN: Final = -1

ANY_TABLE: Final = "*"
"""Name of all tables in declared keys."""


class Layout:
    """Key and columns of a source table, as some of its messages describe them.

    Equal layouts are one object, because a format caches them.
    """

    __slots__ = ("columns", "database", "keys", "table")

    def __init__(
        self, database: str, table: str, keys: tuple[str, ...], columns: dict[str, ColumnType]
    ) -> None:
        self.database = database
        self.table = table
        self.keys = keys
        self.columns = columns

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"


class Change(NamedTuple):
    """One change of one row.

    - ``values``: the row after the change. If ``deleted``, at least the key of the row.
    - ``existed``: INSERTED, EXISTED or UNKNOWN: the row's existence before the change.
    - ``position``: time of the change in the source; a later change has a larger one.
    """

    layout: Layout
    values: dict[str, Any]
    deleted: bool
    existed: int
    position: int


class NoChange(NamedTuple):
    """Reason why a message has no changes.

    ``kind`` is ``skipped`` if nothing is lost, ``statement`` for a statement such as DROP that the
    pipeline does not execute, or ``fault``. ``reason`` begins with a code.
    """

    kind: str
    reason: str


SKIPPED: Final = NoChange("skipped", "")


class ChangeOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Declarations of a user about the source database.

    - ``keys``: columns of the key by ``DATABASE.TABLE``, or by ``*`` for all other tables.
    - ``types``: MySQL types by ``DATABASE.TABLE.COLUMN``; they override those in messages.
    """

    keys: dict[str, tuple[str, ...]] = {}
    types: dict[str, str] = {}

    def keys_of(self, database: str, table: str, told: tuple[str, ...]) -> tuple[str, ...]:
        """Return the key of a table: the declared one, else the one that messages tell."""
        declared = self.keys.get(f"{database}.{table}")
        return declared or told or self.keys.get(ANY_TABLE, ())


class ChangeFormat(Protocol):
    """Parser of one format.

    ``tolerance`` is a difference of positions. Within it, the order of one queue's messages is
    trusted more than positions. It is 0 if positions are exact.
    """

    tolerance: int

    def __init__(self, options: ChangeOptions) -> None: ...

    def parse(self, body: bytes) -> list[Change] | NoChange:
        """Parse the body of a message."""
        ...


def key_change(
    layout: Layout, row: dict[str, Any], old: Mapping[str, Any], position: int
) -> list[Change]:
    """Return the changes for an update of a row.

    ``old`` has former values of columns, of all or only of changed ones. If a column of the key has
    changed, the update is a delete of the old key and an insert.
    """
    for name in layout.keys:
        if name in old and old[name] != row.get(name):
            former = {key: old.get(key, row.get(key)) for key in layout.keys}
            return [
                Change(layout, former, True, EXISTED, position),
                Change(layout, row, False, INSERTED, position),
            ]
    return [Change(layout, row, False, EXISTED, position)]


TOLERANCE_MS: Final = 3_600_000
"""Time by which a source's times may run backwards in one queue.

MySQL stamps a change with the start of its statement. A statement that waits for a lock, or runs
for minutes, so gets an earlier time than the changes committed before it.
"""
DELAY_BITS: Final = 21


def position_of(source_ms: int, captured_ms: int) -> int:
    """Return the position of a change by its time in the source, then by the time of its capture.

    Source times have a resolution of a second, so the delay of the capture (up to 35 minutes)
    orders changes of the same second.
    """
    delay = captured_ms - source_ms
    return source_ms << DELAY_BITS | max(0, min(delay, (1 << DELAY_BITS) - 1))
