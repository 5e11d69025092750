"""Stores made to be inspected, and the ways to damage them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.unit.store.directory import HOST, Directory

from turbopump.disk.read_only_disk import ReadOnlyDisk
from turbopump.message.java import tags_code
from turbopump.protocol import fastjson
from turbopump.store.files import StorePaths
from turbopump.store.inspection import Verification, verify_store
from turbopump.store.message_store import MessageStore, NewMessage

SLOTS, ENTRIES = 7, 60
ENTRIES_AT = 40 + SLOTS * 4
SMALL_FILES = {
    "segment_size": 2048,
    "with_crc": True,
    "queue_file_size": 200,
    "index_slots": SLOTS,
    "index_entries": ENTRIES,
}


def put_numbers(store: MessageStore, start: int, end: int, *, topic: str = "T") -> None:
    """Messages ``body-N`` of two queues, each with a tag, a unique id and two keys."""
    for number in range(start, end):
        pairs = {
            "TAGS": f"tag{number % 3}",
            "UNIQ_KEY": f"ID{number:06}",
            "KEYS": f"k{number} both",
        }
        message = NewMessage(
            f"body-{number}".encode(),
            "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode(),
            tags_code(pairs["TAGS"]),
            unique=pairs["UNIQ_KEY"],
            keys=pairs["KEYS"],
        )
        store.put(
            topic,
            number % 2,
            message,
            sys_flag=0,
            born_timestamp=1,
            born_host=HOST,
            store_host=HOST,
        )


def numbered_store(root: Path, count: int = 50, **config: Any) -> Directory:
    """A cleanly closed store of ``count`` messages, in small files; its clock moves 400 ms with
    every fifth."""
    directory = Directory(root, **{**SMALL_FILES, **config})
    store = directory.open()
    for start in range(0, count, 5):
        put_numbers(store, start, min(start + 5, count))
        directory.clock.now += 400
    store.close()
    return directory


def verified(root: Path, disk: ReadOnlyDisk | None = None, **options: Any) -> Verification:
    return verify_store(StorePaths(root), read_table=fastjson.parse, disk=disk, **options)


@contextmanager
def changed(path: Path, change: Callable[[bytearray], object]) -> Iterator[None]:
    """A file with other bytes, for as long as the block lasts."""
    before = path.read_bytes()
    data = bytearray(before)
    change(data)
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(before)


def flip_bit(at: int, bit: int, data: bytearray) -> None:
    data[at] ^= 1 << bit


def flip(at: int, bit: int = 0) -> Callable[[bytearray], object]:
    return partial(flip_bit, at, bit)


def clear_bytes(end: int, start: int, data: bytearray) -> None:
    data[start:end] = bytes(end - start)


def zero(start: int, end: int) -> Callable[[bytearray], object]:
    return partial(clear_bytes, end, start)


def tree(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its bytes and the time of its last change."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }
