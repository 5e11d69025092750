"""Queue files and index files that retention cannot delete, or not all in one go."""

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.stand_ins import raises
from tests.unit.store.directory import Directory, bodies, put
from tests.unit.store.retained import (
    ALWAYS,
    BODIES,
    INDEXED,
    clean,
    fill,
    flush,
    keep_for,
    make_old,
    segments,
)

from turbopump.disk.system_disk import SystemDisk
from turbopump.store.message_store import MessageStore
from turbopump.store.retention import QUEUES_AT_ONCE, NextStep


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return keep_for(Directory(tmp_path, **INDEXED))


def with_old_segments(directory: Directory) -> MessageStore:
    store = directory.open()
    fill(store)
    make_old(directory, segments(directory)[:5])
    return store


def delete_segments(store: MessageStore) -> None:
    store.retention.begin_round()
    following = [NextStep.AT_ONCE]
    while following[-1] is not NextStep.NOTHING:
        store.retention.delete_next(following.append)


def refuse(root: Path, unlink: Any, path: Path) -> None:
    if path.is_relative_to(root) and path.name.isdigit():
        raise OSError(errno.EROFS, "Read-only file system")
    unlink(path)


def refusing(root: Path) -> Callable[[Path], None]:
    """An ``unlink`` that deletes no numbered file below this directory."""
    unlink = os.unlink

    return partial(refuse, root, unlink)


def test_queue_files_that_cannot_be_removed_stay_and_the_queue_begins_where_the_log_does(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = with_old_segments(directory)
    queue = directory.paths.consume_queue("T", 0)
    files = sorted(queue.iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refusing(queue))
        clean(store)
    assert sorted(queue.iterdir()) == files
    assert directory.failures == [
        "files of queues cannot be deleted: [Errno 30] Read-only file system"
    ]
    assert bodies(store) == BODIES[20:]
    store.close()


def test_index_files_that_cannot_be_removed_are_told_of_and_found_no_more(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = with_old_segments(directory)
    files = sorted(directory.paths.index.iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refusing(directory.paths.index))
        clean(store)
    assert sorted(directory.paths.index.iterdir()) == files
    assert directory.failures == [
        "index files cannot be deleted, the next start tries again: "
        "[Errno 30] Read-only file system"
    ]
    assert bodies(store) == BODIES[20:]
    store.close()


def test_index_files_go_also_where_it_cannot_be_noted_which_are_left(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = with_old_segments(directory)
    before = len(list(directory.paths.index.iterdir()))

    delete_segments(store)
    with monkeypatch.context() as patched:
        patched.setattr(
            SystemDisk, "replace_file", raises(OSError(errno.ENOSPC, "No space left on device"))
        )
        following = [NextStep.AT_ONCE]
        while following[-1] is not NextStep.NOTHING:
            store.retention.trim_next(following.append)
    assert before - len(list(directory.paths.index.iterdir())) == 2
    assert (
        "the list of index files cannot be saved, and the next start fills the index again: "
        in directory.failures[-1]
    )
    store.close()


def test_many_queues_are_trimmed_a_number_at_a_time(tmp_path: Path) -> None:
    directory = keep_for(Directory(tmp_path), reserved_ms=ALWAYS.reserved_ms)
    store = directory.open()
    count = QUEUES_AT_ONCE + 8
    for queue_id in range(count):
        put(store, b"old" * 30, queue_id=queue_id)
    fill(store)
    make_old(directory, segments(directory)[:4])
    delete_segments(store)
    assert store.log.start == 4 * 4096
    flush(store)

    def begun() -> int:
        return sum(store.min_offset("T", queue_id) > 0 for queue_id in range(count))

    trimmed: list[NextStep] = []
    store.retention.trim_next(trimmed.append)
    assert begun() == QUEUES_AT_ONCE
    store.retention.trim_next(trimmed.append)
    assert begun() == count
    store.retention.trim_next(trimmed.append)
    assert [one is NextStep.NOTHING for one in trimmed] == [False, False, True]
    store.close()
