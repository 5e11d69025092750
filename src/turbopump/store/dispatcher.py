"""From the log to what is derived from it: one walk for live writes and recovery alike.

Each entry becomes a unit of its queue (unless it is a prepared or rolled back transaction message) and is indexed by its keys. A
queue's visible end follows:
at once, or, if only flushed messages may be seen, when the flush has passed the entry.
"""

from __future__ import annotations

from collections import deque

from turbopump.message.java_hash import tags_code
from turbopump.message.properties import KEYS, TAGS, UNIQ_KEY, property_value
from turbopump.message.sysflag import TRANSACTION_MASK, SysFlag
from turbopump.store.commit_log import EntryMark
from turbopump.store.consume_queue import ConsumeQueue
from turbopump.store.consume_queue_table import ConsumeQueueTable
from turbopump.store.key_index import KeyIndex
from turbopump.store.watermark import Watermark


class Dispatcher:
    """``dispatched`` is the physical offset up to which every entry has been handed on.

    ``index`` None: messages are not indexed by key. ``flushed`` not None: queue ends become visible only as it passes their entries.
    """

    def __init__(self, queues: ConsumeQueueTable, index: KeyIndex | None = None, flushed: Watermark | None = None) -> None:
        self._queues = queues
        self._index = index
        self._flushed = flushed
        self._unseen: deque[tuple[int, ConsumeQueue, int]] = deque()
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
        """Hand on one entry; False if its queue lacks the units before ``index``. Raises OSError if a new file cannot be made."""
        end = offset + size
        if not sys_flag & SysFlag.TRANSACTION_PREPARED:  # prepared, or both bits: rolled back
            if not queue.append(index, offset, size, tags):
                return False
            if self._flushed is None:
                queue.end.advance(index + 1)
            else:
                self._unseen.append((end, queue, index + 1))
        if self._index is not None:
            self._index.add(queue.topic, unique, keys, sys_flag, offset, store_timestamp)
        self.dispatched = end
        self.last_store_timestamp = store_timestamp
        return True

    def dispatch_mark(self, mark: EntryMark) -> bool:
        """Hand on an entry found by walking the log."""
        queue = self._queues.find_or_make(mark.topic, mark.queue_id)
        properties = mark.properties
        tags = property_value(properties, TAGS)
        return self.dispatch(
            queue,
            mark.queue_offset,
            mark.offset,
            mark.size,
            tags_code(tags) if tags else 0,
            mark.sys_flag & TRANSACTION_MASK,
            mark.store_timestamp,
            property_value(properties, UNIQ_KEY),
            property_value(properties, KEYS),
        )

    def show_flushed(self) -> None:
        """Make visible what the flush has passed."""
        if self._flushed is None:
            return
        flushed, unseen = self._flushed.value, self._unseen
        while unseen and unseen[0][0] <= flushed:
            _, queue, end = unseen.popleft()
            queue.end.advance(end)
