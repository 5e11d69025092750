"""Finding single messages: by place in the log, by key or unique id, by time."""

from __future__ import annotations

from turbopump.errors import StoredMessageError
from turbopump.message.codec import FIXED_SIZE, decode_entry
from turbopump.message.message import ReceivedMessage
from turbopump.store.commit_log import CommitLog
from turbopump.store.consume_queue import ConsumeQueue
from turbopump.store.consume_queue_table import ConsumeQueueTable
from turbopump.store.index_file import IndexHit
from turbopump.store.key_index import KeyIndex


class Lookup:
    """Questions about an open store that are not pulls. ``index`` None: nothing is found by key."""

    def __init__(self, log: CommitLog, queues: ConsumeQueueTable, index: KeyIndex | None) -> None:
        self._log = log
        self._queues = queues
        self._index = index

    def message_at(self, offset: int) -> ReceivedMessage | None:
        """The message whose entry begins at this physical offset of the log; None if there is none."""
        head = self._log.read(offset, 4)
        if head is None or not 0 <= offset < self._log.end:
            return None
        entry = self._log.read(offset, int.from_bytes(head))
        if entry is None or len(entry) < FIXED_SIZE:
            return None
        try:
            message = decode_entry(entry)
        except StoredMessageError:
            return None
        return message if message.commit_log_offset == offset else None

    def offset_at_time(self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False) -> int:
        """The queue offset at a store time in ms. Lower: the first message at or after it (the end if none is); upper: the last at or
        before it (0 if none is). 0 for a queue without messages."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        low, high = queue.min_index, queue.end.value
        while low < high:
            middle = (low + high) // 2
            stored = self._store_timestamp(queue, middle)
            if stored is None or stored < timestamp or (upper and stored == timestamp):
                low = middle + 1
            else:
                high = middle
        if not upper:
            return low
        return low - 1 if low > queue.min_index else 0

    def find_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, count_max: int = 64) -> list[IndexHit]:
        """Where messages may be that have this key or unique id, stored between the times (ms), newest file first. Hashes collide."""
        return self._index.find(topic, key, begin_ms, end_ms, count_max) if self._index is not None else []

    def _store_timestamp(self, queue: ConsumeQueue, index: int) -> int | None:
        unit = queue.unit(index)
        entry = self._log.read(unit[0], unit[1]) if unit is not None else None
        return decode_entry(entry, check_crc=False).store_timestamp if entry is not None else None
