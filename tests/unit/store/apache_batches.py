"""Store directories as Apache's broker leaves them with a BatchCQ topic: a batch is one entry of
the log, and its unit lies in ``batchconsumequeue/``."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.unit.store.directory import Directory, put

from turbopump.message.batch import encode_item
from turbopump.message.codec import decode_entries
from turbopump.message.properties import SysFlag
from turbopump.store.files import StorePaths
from turbopump.store.message_store import MessageStore, NewMessage
from turbopump.store.provenance import APACHE_LOCK_MARK

INNER: Final = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
TOPIC: Final = "B"
TOPICS: Final = '{"dataVersion":{"counter":1,"timestamp":1},"topicConfigTable":{%s}}'
_TOPIC: Final = (
    '"%s":{"attributes":{%s},"order":false,"perm":6,"readQueueNums":1,'
    '"topicFilterType":"SINGLE_TAG","topicName":"%s","topicSysFlag":0,"writeQueueNums":1}'
)
_UNIT: Final = struct.Struct(">qiqqqhii")
_UNITS_A_FILE: Final = 10


def put_inner(store: MessageStore, bodies: Sequence[bytes], topic: str = TOPIC) -> None:
    """Store a batch as one entry, at the end of queue 0; the offsets of its other messages are
    gaps."""
    queue = store.queues.find_or_make(topic, 0)
    base = queue.max_index
    items = b"".join(
        encode_item(0, body, f"UNIQ_KEY\x01ID{base + number}\x02".encode())
        for number, body in enumerate(bodies)
    )
    properties = (
        f"UNIQ_KEY\x01U{base}\x02INNER_NUM\x01{len(bodies)}\x02INNER_BASE\x01{base}\x02".encode()
    )
    host = bytes([127, 0, 0, 1]) + (10911).to_bytes(4)
    store.put(
        topic,
        0,
        NewMessage(items, properties, 0),
        sys_flag=INNER,
        born_timestamp=0,
        born_host=host,
        store_host=host,
    )
    queue.fill_gap(base + len(bodies), store.log.end)


def make_store(directory: Directory, batches: Sequence[Sequence[bytes]]) -> None:
    """A stopped store of Apache's: a plain topic ``T``, to which each number of a batch was sent,
    and the BatchCQ topic ``B`` with the batches, and one plain message behind them."""
    store = directory.open()
    for number, bodies in enumerate(batches):
        put(store, b"%d" % number)
        put_inner(store, bodies)
    put(store, b"alone", TOPIC)
    store.close()
    leave_as_apache(directory.paths)


def leave_as_apache(paths: StorePaths) -> None:
    """Make of a stopped store of ours one of Apache's, whose topic ``B`` is a BatchCQ topic."""
    units = [
        _UNIT.pack(at, size, 0, stored_ms, base, count, -1, 0)
        for at, size, stored_ms, base, count in _entries(paths)
    ]
    shutil.rmtree(paths.consume_queues / TOPIC)
    queue = paths.batch_consume_queues / TOPIC / "0"
    queue.mkdir(parents=True)
    for first in range(0, len(units), _UNITS_A_FILE):
        data = b"".join(units[first : first + _UNITS_A_FILE])
        name = f"{first * _UNIT.size:020}"
        (queue / name).write_bytes(data.ljust(_UNITS_A_FILE * _UNIT.size, b"\0"))
    for ours in paths.root.glob("turbopump.*"):
        ours.unlink()
    paths.lock.write_bytes(APACHE_LOCK_MARK)
    write_topics(paths)


def write_topics(paths: StorePaths) -> None:
    """The table of both topics, as Apache writes it."""
    paths.config.mkdir(exist_ok=True)
    topics = (_TOPIC % ("T", "", "T"), _TOPIC % (TOPIC, '"queue.type":"BatchCQ"', TOPIC))
    paths.table("topics").write_text(TOPICS % ",".join(topics))


def batch_files(paths: StorePaths) -> dict[Path, bytes]:
    """Apache's files of batch queues, and what they hold."""
    return {
        path: path.read_bytes()
        for path in sorted(paths.batch_consume_queues.rglob("*"))
        if path.is_file()
    }


def _entries(paths: StorePaths) -> list[tuple[int, int, int, int, int]]:
    """Of each entry of ``B``: offset, size, store time, queue offset, and how many messages."""
    found = []
    for path in sorted(paths.commit_log.iterdir()):
        for entry in decode_entries(_whole_entries(path.read_bytes())):
            if entry.topic == TOPIC:
                count = int(entry.properties.get("INNER_NUM", "1"))
                place = entry.commit_log_offset, entry.store_size
                found.append((*place, entry.store_timestamp, entry.queue_offset, count))
    return found


def _whole_entries(segment: bytes) -> bytes:
    at = 0
    while segment[at + 4 : at + 8] in (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab"):
        at += int.from_bytes(segment[at : at + 4])
    return segment[:at]
