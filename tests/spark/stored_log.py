"""Store directories on a real disk, written by our own store, and what the plain twin reads of
them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.spark.plain_twin import message
from tests.unit.store.apache_batches import leave_as_apache, put_inner
from tests.unit.store.directory import Directory

from turbopump.clock import SystemClock
from turbopump.disk.system_disk import SystemDisk
from turbopump.message.entry import MAGIC_BLANK
from turbopump.spark.commitlog import log_options, log_schema, plan, scan_options
from turbopump.spark.log_scan import scan
from turbopump.store.files import StorePaths
from turbopump.store.message_store import MessageStore, NewMessage
from turbopump.store.store_config import StoreConfig

SEGMENT_SIZE = 64 * 1024
HOST = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")
Row = dict[str, Any]


def make_log(
    directory: Path,
    count: int = 400,
    *,
    with_crc: bool = False,
    body_size: int = 400,
    segment_size: int = SEGMENT_SIZE,
    topics: tuple[str, ...] = ("orders", "bills"),
) -> None:
    """Messages of the topics in turns, each topic in two queues, in segments of ``segment_size``
    bytes; stored one ms after the other from 1000 on."""
    config = StoreConfig(
        StorePaths(directory),
        segment_size=segment_size,
        queue_file_size=20 * max(100, count),
        with_crc=with_crc,
    )
    clock = _Counting()
    store = MessageStore.open(config, SystemDisk(), clock, print)
    for number in range(count):
        clock.ms = 1000 + number
        body = (b"%d " % number) * body_size
        text = f"UNIQ_KEY\x01{number:032X}\x02TAGS\x01t{number % 3}\x02"
        store.put(
            topics[number % len(topics)],
            number // len(topics) % 2,
            NewMessage(body[:body_size], text.encode(), number),
            sys_flag=0,
            born_timestamp=number,
            born_host=HOST,
            store_host=HOST,
        )
    store.flusher.flush_log()
    store.finish_background()
    store.close()


def make_batch_log(directory: Path) -> None:
    """Three inner batches of four messages in topic B, as Apache's broker has stored them."""
    made = Directory(directory, segment_size=SEGMENT_SIZE)
    store = made.open()
    for first in range(0, 12, 4):
        put_inner(store, [b"%d" % number for number in range(first, first + 4)])
    store.close()
    leave_as_apache(made.paths)


class _Counting(SystemClock):
    ms = 1000

    def now_ms(self) -> int:
        return self.ms


def segments(directory: Path) -> list[Path]:
    return sorted((directory / "commitlog").iterdir())


def plain_rows(directory: Path) -> list[Row]:
    """Every entry of an undamaged log, by the plain twin."""
    found = []
    for path in segments(directory):
        raw, at = path.read_bytes(), 0
        while at + 8 <= len(raw):
            magic = int.from_bytes(raw[at + 4 : at + 8])
            if magic in (0, MAGIC_BLANK):
                break
            row = message(raw, at, "")
            row["brokerName"] = None
            found.append({**row, "segment": path.name, "status": "ok"})
            at += row["storeSize"]
    return found


def read_log(path: Path, tasks: int = 1, **options: object) -> list[Row]:
    """Return the rows of ``format("rocketmqCommitlog")``, read without Spark, in the log's
    order."""
    given = log_options({"path": str(path), **{name: str(v) for name, v in options.items()}})
    schema = log_schema(given.columns)
    planned, store = plan(given, tasks)
    found = []
    for task in planned:
        for part in task:
            for batch in scan(part, scan_options(given, schema, store)):
                batch.validate(full=True)
                assert batch.schema == schema
                pydicts = "strict" if "properties" in schema.names else None
                found += batch.to_pylist(maps_as_pydicts=pydicts)
    return sorted(found, key=lambda row: row.get("commitLogOffset", 0))
