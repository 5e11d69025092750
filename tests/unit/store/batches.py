"""Inner batches for tests of the store: topic ``B`` has ``queue.type=BatchCQ``."""

from typing import Any

from tests.unit.store.directory import HOST, Directory

from turbopump.message.batch import decode_batch, encode_item
from turbopump.message.codec import decode_entries
from turbopump.message.properties import SysFlag
from turbopump.store.disk import SystemDisk
from turbopump.store.message_store import MessageStore, NewMessage, PutResult
from turbopump.store.queues.batch_consume_queue import (
    BATCH_UNIT_SIZE,
    BatchConsumeQueue,
    BatchUnit,
    pack_batch_unit_into,
)

INNER = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)


class BatchDirectory(Directory):
    """A directory whose store knows that ``B`` is a topic of batches. Queue files have ten
    units."""

    def __init__(self, *args: Any, **config: Any) -> None:
        super().__init__(*args, **{"batch_queue_file_size": BATCH_UNIT_SIZE * 10, **config})

    def open(self) -> MessageStore:
        return MessageStore.open(
            self.config,
            SystemDisk(),
            self.clock,
            self.failures.append,
            is_batch=lambda topic: topic == "B",
        )


def put_inner(
    store: MessageStore, bodies: list[bytes], queue_id: int = 0, topic: str = "B", **more: Any
) -> PutResult:
    queue = store.queues.find_or_make(topic, queue_id)
    properties = (
        f"UNIQ_KEY\x01U{queue.max_index}\x02INNER_NUM\x01{len(bodies)}\x02"
        f"INNER_BASE\x01{queue.max_index}\x02"
    )
    message = NewMessage(
        b"".join(encode_item(0, body, b"") for body in bodies), properties.encode(), 0
    )
    fields: dict[str, Any] = {
        "sys_flag": INNER,
        "born_timestamp": 0,
        "born_host": HOST,
        "store_host": HOST,
        **more,
    }
    return store.put(topic, queue_id, message, count=len(bodies), **fields)


def queue_of(store: MessageStore, queue_id: int = 0) -> BatchConsumeQueue:
    queue = store.queue("B", queue_id)
    assert isinstance(queue, BatchConsumeQueue)
    return queue


def messages(
    store: MessageStore, offset: int | None = None, queue_id: int = 0, count: int = 32
) -> list[tuple[int, bytes]]:
    """(queue offset, body) of every message of a queue, read in order."""
    found: list[tuple[int, bytes]] = []
    at = store.min_offset("B", queue_id) if offset is None else offset
    while True:
        result = store.get("B", queue_id, at, count)
        for entry in decode_entries(result.data):
            inner = entry.sys_flag & SysFlag.INNER_BATCH
            parts = [item.body for item in decode_batch(entry.body)] if inner else [entry.body]
            found.extend((entry.queue_offset + number, body) for number, body in enumerate(parts))
        if result.next_offset <= at:
            return [one for one in found if offset is None or one[0] >= offset]
        at = result.next_offset


def unit_bytes(unit: BatchUnit) -> bytes:
    """A unit as it lies in its file."""
    data = bytearray(BATCH_UNIT_SIZE)
    pack_batch_unit_into(data, 0, unit)
    return bytes(data)
