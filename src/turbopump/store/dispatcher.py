"""Dispatch of log entries to consume queues and key index, for live writes and for recovery.

Each entry gets a unit in its queue (unless it is a prepared or rolled back transaction message) and
is indexed by its keys. Readers see the unit at once, or when ``Confirmed`` says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from turbopump.message.delivery_time import SCHEDULE_TOPIC, DelayLevels
from turbopump.message.java import tags_code
from turbopump.message.properties import (
    KEYS,
    NAME_END,
    TAGS,
    TRANSACTION_MASK,
    UNIQ_KEY,
    SysFlag,
    value_after,
)
from turbopump.store.confirmed import Confirmed
from turbopump.store.index.key_index import KeyIndex
from turbopump.store.log.commit_log import NewMessage
from turbopump.store.log.parsed_entry import ParsedEntry
from turbopump.store.queues.consume_queue import ConsumeQueue

_TAGS: Final = TAGS + NAME_END
_KEYS: Final = KEYS + NAME_END
_UNIQ_KEY: Final = UNIQ_KEY + NAME_END
_PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)


class Dispatcher:
    """Dispatcher of log entries. ``dispatched`` is the log offset up to which every entry is
    dispatched.

    ``index`` None: messages are not indexed by key.
    """

    def __init__(
        self, index: KeyIndex | None, confirmed: Confirmed, delay_levels: DelayLevels
    ) -> None:
        self._index = index
        self._delay_levels = delay_levels
        self._hidden = confirmed.hidden
        self.dispatched = 0
        self.last_store_timestamp = 0

    def dispatch(
        self,
        queue: ConsumeQueue,
        index: int,
        offset: int,
        size: int,
        tags: int,
        sys_flag: int,
        store_timestamp: int,
        unique: str | None,
        keys: str | None,
    ) -> bool:
        """Dispatch one entry; return False if its queue lacks the units before ``index``. Raises
        OSError if a new file cannot be made."""
        end = offset + size
        if not sys_flag & SysFlag.TRANSACTION_PREPARED:  # prepared, or both bits: rolled back
            if not queue.append(index, offset, size, tags):
                return False
            if self._hidden is None:
                queue.end.advance(index + 1)
            else:
                self._hidden.append((end, queue, index + 1))
        if self._index is not None:
            self._index.add_message(queue.topic, unique, keys, sys_flag, offset, store_timestamp)
        self.dispatched = end
        self.last_store_timestamp = store_timestamp
        return True

    def dispatch_many(
        self,
        queues: Iterable[tuple[ConsumeQueue, bytes]],
        keys: list[tuple[int, int, int]],
        end: int,
        sys_flag: int,
        store_timestamp: int,
    ) -> None:
        """Dispatch adjacent entries just written, which end at ``end``.

        - ``queues``: for each queue, the packed units that follow its last unit. The caller has
          made room.
        - ``keys``: the entries of the key index.
        """
        if not sys_flag & _PREPARED:
            for queue, units in queues:
                appended = queue.append_many(queue.max_index, units)
                assert appended
                if self._hidden is None:
                    queue.end.advance(queue.max_index)
                else:
                    self._hidden.append((end, queue, queue.max_index))
        if self._index is not None:
            self._index.add_many(keys, sys_flag)
        self.dispatched = end
        self.last_store_timestamp = store_timestamp

    def dispatch_parsed(self, parsed: ParsedEntry, queue: ConsumeQueue | None) -> None:
        """Dispatch an entry found by a walk over the log, with a checked queue offset. ``queue``
        None: the queue no longer exists. Readers see no change."""
        text = parsed.properties
        if queue is not None and not parsed.sys_flag & _PREPARED:
            queue.append(parsed.queue_offset, parsed.offset, parsed.size, self.unit_tags(parsed))
        if self._index is not None:
            unique, keys = value_after(text, _UNIQ_KEY), value_after(text, _KEYS)
            self._index.add_message(
                parsed.topic,
                unique,
                keys,
                parsed.sys_flag & TRANSACTION_MASK,
                parsed.offset,
                parsed.store_timestamp,
            )
        self.dispatched = parsed.offset + parsed.size
        self.last_store_timestamp = parsed.store_timestamp

    def dispatch_copied(self, parsed: ParsedEntry, queue: ConsumeQueue | None) -> None:
        """Dispatch an entry that a slave has just copied, as ``dispatch_parsed`` does. Readers see
        it at once, or when it is confirmed."""
        self.dispatch_parsed(parsed, queue)
        if queue is None or parsed.sys_flag & _PREPARED:
            return
        if self._hidden is None:
            queue.end.advance(queue.max_index)
        else:
            self._hidden.append((self.dispatched, queue, queue.max_index))

    def unit_tags(self, parsed: ParsedEntry) -> int:
        """Return the tagsCode for the unit of an entry."""
        if parsed.topic == SCHEDULE_TOPIC:
            due = self._delay_levels.due_ms(parsed.properties, parsed.store_timestamp)
            if due is not None:
                return due
        tags = value_after(parsed.properties, _TAGS)
        return tags_code(tags) if tags else 0

    def delayed_tags(self, message: NewMessage, now_ms: int) -> int:
        """Return the tagsCode of a message in the schedule topic: its delivery time."""
        due = self._delay_levels.due_ms(message.properties.decode(errors="replace"), now_ms)
        return message.tags_code if due is None else due
