"""From the log to what is derived from it: one walk for live writes and recovery alike.

Each entry becomes a unit of its queue (unless it is a prepared or rolled back transaction message) and is indexed by its keys. A
queue's visible end follows:
at once, or, if only flushed messages may be seen, when the flush has passed the entry.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from turbopump.message.java_hash import tags_code
from turbopump.message.properties import KEYS, NAME_END, TAGS, UNIQ_KEY, value_after
from turbopump.message.sysflag import TRANSACTION_MASK, SysFlag
from turbopump.store.consume_queue import ConsumeQueue
from turbopump.store.entry_mark import EntryMark
from turbopump.store.key_index import KeyIndex
from turbopump.store.watermark import Watermark

_TAGS: Final = TAGS + NAME_END
_KEYS: Final = KEYS + NAME_END
_UNIQ_KEY: Final = UNIQ_KEY + NAME_END
_PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)


class Dispatcher:
    """``dispatched`` is the physical offset up to which every entry has been handed on.

    ``index`` None: messages are not indexed by key. ``flushed`` not None: queue ends become visible only as it passes their entries.
    """

    def __init__(self, index: KeyIndex | None = None, flushed: Watermark | None = None) -> None:
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

    def dispatch_mark(self, mark: EntryMark, queue: ConsumeQueue) -> None:
        """Hand on an entry found by walking the log, whose place in its queue is known to fit. What readers see does not change."""
        text = mark.properties
        if not mark.sys_flag & _PREPARED:
            tags = value_after(text, _TAGS)
            queue.append(mark.queue_offset, mark.offset, mark.size, tags_code(tags) if tags else 0)
        if self._index is not None:
            unique, keys = value_after(text, _UNIQ_KEY), value_after(text, _KEYS)
            self._index.add(mark.topic, unique, keys, mark.sys_flag & TRANSACTION_MASK, mark.offset, mark.store_timestamp)
        self.dispatched = mark.offset + mark.size
        self.last_store_timestamp = mark.store_timestamp

    def show_flushed(self) -> None:
        """Make visible what the flush has passed."""
        if self._flushed is None:
            return
        flushed, unseen = self._flushed.value, self._unseen
        while unseen and unseen[0][0] <= flushed:
            _, queue, end = unseen.popleft()
            queue.end.advance(end)
