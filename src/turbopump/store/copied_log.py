"""A slave's way into the store: the bytes of its master's log, entry by entry.

The rule: the log gets the very bytes that came, at the very offset, and only whole entries and
blanks that were checked. What is derived from an entry is what recovery derives from it: the same
``LogReplay`` says where it belongs, the same dispatcher writes it to the queues and the index. This
module must not know where the bytes come from.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from turbopump.errors import CopyError
from turbopump.message.properties import SysFlag
from turbopump.store.log.commit_log import BLANK_SIZE_MIN, CommitLog
from turbopump.store.log.dispatcher import Dispatcher
from turbopump.store.log.parsed_entry import (
    ParsedEntry,
    inner_count,
    parse_entry,
    parse_usual_entries,
)
from turbopump.store.log.scanner import NO_DIRECTORY, LogScanner
from turbopump.store.queues.consume_queue_table import ConsumeQueueTable
from turbopump.store.recovery.queue_ends import NotedQueueEnds
from turbopump.store.recovery.recovery import LogReplay

_PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)
_TOPICS_KEPT: Final = 10_000


class Copied(NamedTuple):
    """``end``: where the log ends now. ``wanted``: so many bytes from there on it takes to go
    on."""

    end: int
    wanted: int


class CopiedLog:
    """Appends copied bytes to an open store's ``log``. ``faults`` are entries whose position in
    their queue could not be, and which therefore are in the log but not in a queue."""

    def __init__(self, log: CommitLog, queues: ConsumeQueueTable, dispatcher: Dispatcher) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._scanner = LogScanner()
        self._topics: dict[bytes, str] = {}
        self._replay = LogReplay(
            log,
            queues,
            dispatcher,
            NotedQueueEnds(),
            {},
            log.start,
            rebuilding=True,
            queues_agree=True,
        )
        self.faults: list[str] = []

    def append(self, start: int, data: bytes) -> Copied:
        """Take what ``data``, which lies at ``start`` of the master's log, has of whole entries.
        ``start`` is the end of this log, or the start of a segment if it has none.

        Raises CopyError if what lies there is no good entry, RoomInMakingError if the next file is
        being made, OSError on a full disk; what came before is taken. About 8 µs an entry of 1 KiB.
        """
        log = self._log
        if not log.files and start:
            log.begin_at(start)
        if start != log.end:
            raise CopyError(
                f"the master sends its log from {start} on, and the log here ends at {log.end}; "
                "empty the slave's store so that it is copied anew"
            )
        if len(self._topics) > _TOPICS_KEPT:
            self._topics.clear()
        at = 0
        while len(data) - at >= BLANK_SIZE_MIN:
            limit = log.segment_end(log.end)
            stop = min(len(data), at + limit - BLANK_SIZE_MIN - log.end)
            entries = parse_usual_entries(data, at, stop, log.end, _asks_no_crc, self._topics)
            for parsed in entries:
                self._take(parsed, data[at : at + parsed.size])
                at += parsed.size
            if entries:
                continue
            position = log.end
            self._scanner.hold(position, data[at:])
            found = self._scanner.judge(position, limit)
            if isinstance(found, int):
                return Copied(position, found)
            if found.fault is not None:
                raise CopyError(f"no good entry at offset {position} of the log: {found.fault}")
            if found.entry is not None:
                parsed_one = parse_entry(found.entry, position)
                if parsed_one is None:
                    raise CopyError(
                        f"no good entry at offset {position} of the log: {NO_DIRECTORY}"
                    )
                self._topics[parsed_one.topic.encode()] = parsed_one.topic
                self._take(parsed_one, found.entry)
                at += parsed_one.size
                continue
            size = limit - position
            if len(data) - at < size:
                return Copied(position, size)
            log.reserve(0)  # it may be the first of its segment
            log.copy_blank(data[at : at + size])
            at += size
        return Copied(log.end, BLANK_SIZE_MIN)

    def _take(self, parsed: ParsedEntry, entry: bytes) -> None:
        log, replay, size = self._log, self._replay, parsed.size
        log.reserve(size)
        replay.begin = log.start
        queue, fault, wanted = replay.place(parsed)
        if queue is not None and not parsed.sys_flag & _PREPARED:
            if parsed.queue_offset and not queue.max_index and not queue.is_batch:
                queue.begin_at(parsed.queue_offset)
            queue.make_room(inner_count(parsed) if queue.is_batch else 1)
        buffer, at = log.room
        buffer[at : at + size] = entry
        log.written(size)
        if fault is not None:
            self.faults.append(f"entry at offset {parsed.offset}: {fault}")
        elif wanted:
            self._dispatcher.dispatch_copied(parsed, queue)


def _asks_no_crc(_offset: int) -> bool:
    """Apache's master writes entries without a CRC over the whole."""
    return False
