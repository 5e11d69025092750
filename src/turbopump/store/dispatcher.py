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
    """Writes a queue unit and index keys for each entry of the log.

    ``dispatched`` is the log offset up to which every entry is dispatched. ``index`` is None if
    messages are not indexed by key.
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
        """Write the queue unit and the index keys of one entry.

        Return False if the queue lacks the units before ``index``. Raises OSError if a new file
        cannot be made.
        """
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
        """Write the queue units and index keys of adjacent entries that were just written to the
        log.

        - ``queues``: for each queue, the packed units that follow its last unit. The caller has
          made room.
        - ``keys``: entries for the key index.
        - ``end``: log offset at which the last entry ends.
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
        """Write the queue unit and the index keys of an entry that recovery has found in the log.

        The queue offset must be checked before. ``queue`` is None if the queue no longer exists.
        The call does not change what readers see.
        """
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
        """Write the queue unit and the index keys of an entry that a slave has just copied.

        Readers see the message at once, or when it is confirmed.
        """
        self.dispatch_parsed(parsed, queue)
        if queue is None or parsed.sys_flag & _PREPARED:
            return
        if self._hidden is None:
            queue.end.advance(queue.max_index)
        else:
            self._hidden.append((self.dispatched, queue, queue.max_index))

    def unit_tags(self, parsed: ParsedEntry) -> int:
        """Return the tags code to write into the queue unit of an entry.

        Units of the schedule topic get the delivery time in ms instead.
        """
        if parsed.topic == SCHEDULE_TOPIC:
            due = self._delay_levels.due_ms(parsed.properties, parsed.store_timestamp)
            if due is not None:
                return due
        tags = value_after(parsed.properties, _TAGS)
        return tags_code(tags) if tags else 0

    def delayed_tags(self, message: NewMessage, now_ms: int) -> int:
        """Return the delivery time in ms of a message in the schedule topic. Return the tags code
        of a message without a delay."""
        due = self._delay_levels.due_ms(message.properties.decode(errors="replace"), now_ms)
        return message.tags_code if due is None else due
