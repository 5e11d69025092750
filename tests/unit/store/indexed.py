"""Stores with an index of small files."""

from pathlib import Path
from typing import Any

from tests.unit.store.directory import HOST, Directory
from tests.unit.store.looked_up import find_by_key

from turbopump.store.message_store import MessageStore, NewMessage

ALWAYS = (0, 1 << 60)
SLOTS, ENTRIES = 7, 32


def indexed(root: Path, **config: Any) -> Directory:
    return Directory(root, **{"index_slots": SLOTS, "index_entries": ENTRIES, **config})


def put(
    store: MessageStore,
    body: bytes,
    keys: str = "",
    unique: str = "",
    topic: str = "T",
    sys_flag: int = 0,
) -> int:
    properties = (f"KEYS\x01{keys}\x02" if keys else "") + (
        f"UNIQ_KEY\x01{unique}\x02" if unique else ""
    )
    message = NewMessage(body, properties.encode(), 0, 0, unique or None, keys or None)
    return store.put(
        topic, 0, message, sys_flag=sys_flag, born_timestamp=0, born_host=HOST, store_host=HOST
    ).offset


def fill(directory: Directory, store: MessageStore, count: int = 60, start: int = 0) -> None:
    for number in range(start, start + count):
        directory.clock.now += 500
        put(store, b"%d" % number, f"key{number % 10} every", f"ID{number:04d}")


def answers(store: MessageStore) -> dict[str, list[int]]:
    """The offsets that every key gives, and those of a range of time: equal indexes have equal
    answers."""
    found = {}
    for key in (
        *(f"ID{number:04d}" for number in range(80)),
        *(f"key{number}" for number in range(10)),
        "every",
        "never",
    ):
        found[key] = [hit.offset for hit in find_by_key(store.lookup, "T", key, *ALWAYS)]
    start = 1_700_000_000_000
    for second in range(0, 40, 3):
        hits = find_by_key(
            store.lookup, "T", "every", start + second * 1000, start + second * 1000 + 4000
        )
        found[f"every at {second}"] = [hit.offset for hit in hits]
    return found
