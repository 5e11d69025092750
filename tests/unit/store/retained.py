"""Stores of which old segments are removed."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.store.directory import HOST, Directory

from turbopump.store.message_store import MessageStore, NewMessage
from turbopump.store.retention import NextStep, RetentionRules

HOUR_MS = 3_600_000
ALWAYS = RetentionRules(hours=frozenset(range(24)))
INDEXED: dict[str, Any] = {"index_slots": 10, "index_entries": 8}
BODIES = [b"%03d " % number + b"x" * 900 for number in range(40)]
"""Four to a segment of 4096: ten segments, four queue files of ten units, six index files of seven
messages."""


def keep_for(directory: Directory, **rules: Any) -> Directory:
    directory.config = replace(directory.config, retention=replace(ALWAYS, **rules))
    return directory


def fill(store: MessageStore, topic: str = "T", wanted: list[bytes] = BODIES) -> None:
    for body in wanted:
        message = NewMessage(body, b"", 0, unique=body[:3].decode())
        store.put(topic, 0, message, sys_flag=0, born_timestamp=0, born_host=HOST, store_host=HOST)
    flush(store)


def flush(store: MessageStore) -> None:
    store.flusher.flush_log()
    store.flusher.flush_queues()


def segments(directory: Directory) -> list[Path]:
    return sorted(directory.paths.commit_log.iterdir())


def make_old(directory: Directory, paths: list[Path], hours: float = 73) -> None:
    """Let files have been written last so long ago."""
    written = (directory.clock.now_ms() - hours * HOUR_MS) / 1000
    for path in paths:
        os.utime(path, (written, written))


def clean(store: MessageStore) -> bool:
    """One round to its end; whether it was time for one."""
    due = store.retention.begin_round()
    steps = [store.retention.delete_next] if due else []
    for step in (*steps, store.retention.trim_next):
        following = [NextStep.AT_ONCE]
        while following[-1] is not NextStep.NOTHING:
            step(following.append)
    return due
