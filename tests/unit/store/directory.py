"""A store directory for tests: opened, written to, copied as a kill would leave it, opened
again."""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from turbopump.disk.system_disk import SystemDisk
from turbopump.message.batch import encode_item
from turbopump.message.codec import decode_entries
from turbopump.message.java import tags_code
from turbopump.store.files import StorePaths
from turbopump.store.message_store import MessageStore, NewMessage, PutResult
from turbopump.store.packed_batch import pack_batch
from turbopump.store.queues.consume_queue import UNIT_SIZE, unpack_unit
from turbopump.store.store_config import StoreConfig

HOST = bytes([127, 0, 0, 1]) + (10911).to_bytes(4)
OVERHEAD = 91 + 1
"""Bytes of an entry of topic ``T`` around its body, if it has no properties."""
SEGMENT = 4096


class TestClock:
    """Wall time that moves when told to."""

    __test__ = False

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000


class Directory:
    """A store directory on the real disk. ``failures`` is what stores opened here reported."""

    def __init__(self, root: Path, **config: Any) -> None:
        self.paths = StorePaths(root)
        self.config = StoreConfig(
            paths=self.paths, **{"segment_size": SEGMENT, "queue_file_size": 200, **config}
        )
        self.clock = TestClock()
        self.failures: list[str] = []

    def open(self, **hooks: Any) -> MessageStore:
        return self.open_on(SystemDisk(), **hooks)

    def open_on(self, disk: SystemDisk, **hooks: Any) -> MessageStore:
        return MessageStore.open(self.config, disk, self.clock, self.failures.append, **hooks)

    def copy(self, root: Path) -> "Directory":
        """What another process would find if this one were killed now."""
        shutil.copytree(self.paths.root, root)
        twin = Directory(root)
        twin.config = replace(self.config, paths=twin.paths)
        twin.clock = self.clock
        return twin


def put(
    store: MessageStore,
    body: bytes,
    topic: str = "T",
    queue_id: int = 0,
    *,
    tag: str = "",
    **more: Any,
) -> PutResult:
    properties = f"TAGS\x01{tag}\x02".encode() if tag else b""
    message = NewMessage(body, properties, tags_code(tag) if tag else 0)
    fields: dict[str, Any] = {
        "sys_flag": 0,
        "born_timestamp": 0,
        "born_host": HOST,
        "store_host": HOST,
        **more,
    }
    return store.put(topic, queue_id, message, **fields)


def put_batch(
    store: MessageStore,
    bodies: Iterable[bytes],
    topic: str = "T",
    queue_id: int = 0,
    properties: bytes = b"",
) -> tuple[PutResult, list[int]]:
    """Where the batch is, and the physical offset of each message."""
    batch = pack_batch(b"".join([encode_item(0, body, properties) for body in bodies]), topic, b"")
    facts: dict[str, Any] = {
        "sys_flag": 0,
        "born_timestamp": 0,
        "born_host": HOST,
        "store_host": HOST,
    }
    placed, units = store.put_batch(topic, queue_id, batch, **facts)
    return placed, [unpack_unit(units, at)[0] for at in range(0, len(units), UNIT_SIZE)]


def bodies(
    store: MessageStore,
    topic: str = "T",
    queue_id: int = 0,
    accept: Callable[[int], bool] | None = None,
) -> list[bytes]:
    """Every message of a queue, read in order; checks that offsets are consecutive where nothing is
    filtered."""
    found: list[bytes] = []
    offset = store.min_offset(topic, queue_id)
    while True:
        result = store.get(topic, queue_id, offset, 32, accept)
        messages = list(decode_entries(result.data))
        places = [message.queue_offset for message in messages]
        if accept is None and not result.gaps:
            assert places == list(range(offset, offset + len(messages)))
        assert places == sorted(set(places))
        assert (
            accept is not None
            or len(messages) + result.gaps >= result.next_offset - offset
            or not messages
        )
        for message in messages:
            assert message.topic == topic
            found.append(message.body)
        if result.next_offset <= offset:
            return found
        offset = result.next_offset
