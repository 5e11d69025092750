"""Writer of a master's table changes into its log.

A change is noted when its table makes it. All changes of one turn of the event loop share records.
Offsets of consumers change all the time, so they are recorded at most every ``OFFSETS_EVERY_S``. A
topic that a send creates is recorded at once. Its record is then in the log before the message, and
the answer to the send covers both. If the log cannot take a record, for want of a new file or of
disk space, later changes wait behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.table_records.record import OFFSETS, Change, change_of, encode_record
from turbopump.errors import MessageError, RoomInMakingError, StoreError
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_not_written = RepeatedLine(
    log, logging.ERROR, "changes of tables cannot be recorded and wait changes=%d cause=%s"
)

OFFSETS_EVERY_S: Final = 0.1
"""Minimum seconds between two records of the offsets of consumers."""


class RecordWriter:
    """Writer of a master's table changes into its log.

    - ``append``: a function that stores the body of a record in the log and returns the end of its
      message. It raises the errors of ``MessageStore.put``.
    - ``on_written``: a function that is called when all noted changes are in the log.
    - ``end``: the log offset behind the last record of this writer.
    """

    def __init__(
        self,
        append: Callable[[bytes], int],
        offsets: ConsumerOffsets,
        on_written: Callable[[], None],
    ) -> None:
        self.append = append
        self._offsets = offsets
        self._on_written = on_written
        self._loop = asyncio.get_running_loop()
        self._changes: list[Change] = []
        self._noted = 0
        """Number of changes so far. Those of offsets count, too."""
        self._written = 0
        """Number of changes that are in the log. Earlier ones are written first."""
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._offsets_written = 0.0
        self._waiting: list[asyncio.Future[None]] = []
        self._waits_for_room = False
        self._ends: dict[str, int] = {}
        self.end = 0

    @property
    def is_behind(self) -> bool:
        """True while noted changes are not in the log yet."""
        return self._written < self._noted

    def note(self, table: str, key: str, value: Any, *, at_once: bool = False) -> bool:
        """Note the new value of an entry of a table.

        With ``at_once`` it is in the log before the call returns. Return False if it waits for a
        new file of the log.
        """
        self._noted += 1
        self._changes.append(change_of(table, key, value))
        if at_once:
            self.write()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._write_scheduled)
        return not self._waits_for_room

    def note_offsets(self) -> None:
        """Note that the table of offsets has changes."""
        self._noted += 1
        if self._timer is None:
            due = max(self._offsets_written + OFFSETS_EVERY_S, self._loop.time())
            self._timer = self._loop.call_at(due, self.write)

    def write(self) -> None:
        """Write all noted changes into the log now, as far as it has room."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.is_behind:
            return
        self._waits_for_room = False
        noted = self._noted
        taken = self._offsets.take_changes()
        if taken:
            self._offsets_written = self._loop.time()
        self._changes += [change_of(OFFSETS, key, change) for key, change in taken]
        try:
            while self._changes:
                record = encode_record(self._changes)
                self.end = self.append(record.body)
                for change in self._changes[: record.changes]:
                    self._ends[change.table] = self.end
                del self._changes[: record.changes]
        except RoomInMakingError:
            self._waits_for_room = True
            return  # ``write`` is called when there is room
        except (StoreError, MessageError, OSError) as error:
            _not_written(len(self._changes), error, kind=str(error))
            return
        self._written = noted
        self._on_written()
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def end_of(self, *tables: str) -> int:
        """Return the log offset behind the last record with a change of these tables."""
        return max((self._ends.get(table, 0) for table in tables), default=0)

    async def written(self) -> None:
        """Wait until all changes noted so far are in the log."""
        noted = self._noted
        while self._written < noted:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(waiter)
            await waiter

    def close(self) -> None:
        """Write the last changes. No change is noted afterwards."""
        self.write()
        self._noted = self._written

    def _write_scheduled(self) -> None:
        self._is_scheduled = False
        self.write()
