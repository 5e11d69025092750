"""Two stores that share a directory: the second is refused, whichever they share, and the first is
not disturbed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.directory import Directory, bodies, put

from turbopump.disk.locks import FileLock
from turbopump.errors import StoreLockedError
from turbopump.store.files import StorePaths


def with_paths(root: Path, **paths: Any) -> Directory:
    directory = Directory(root)
    directory.paths = StorePaths(root, **paths)
    directory.config = replace(directory.config, paths=directory.paths)
    return directory


@pytest.mark.parametrize(
    "key",
    [
        "commit_log_directories",
        "read_only_commit_logs",
        "one of several",
        "consume_queue_directory",
        "another name",
    ],
)
def test_a_second_store_that_shares_a_directory_is_refused_until_the_first_is_closed(
    tmp_path: Path, key: str
) -> None:
    shared, link = tmp_path / "shared", tmp_path / "link"
    shared.mkdir()
    link.symlink_to(shared)
    value: dict[str, Any] = {
        "commit_log_directories": {"commit_log_directories": (shared,)},
        "read_only_commit_logs": {"commit_log_directories": (shared,)},
        "one of several": {"commit_log_directories": (tmp_path / "alone", shared)},
        "consume_queue_directory": {"consume_queue_directory": shared},
        "another name": {"commit_log_directories": (link,)},
    }
    others = {
        "read_only_commit_logs": {"read_only_commit_logs": (shared,)},
        "another name": {"commit_log_directories": (shared,)},
    }
    first = with_paths(tmp_path / "a", **value[key])
    log = {"consume_queue_directory": {"consume_queue_directory": shared}}.get(
        key, {"commit_log_directories": (shared,)}
    )
    second = with_paths(tmp_path / "b", **others.get(key, log))
    store = first.open()
    put(store, b"one")
    with pytest.raises(StoreLockedError, match=f"{shared} is in use by another broker"):
        second.open()
    put(store, b"two")
    assert bodies(store) == [b"one", b"two"]
    store.close()
    other = second.open()
    other.close()


def test_a_store_whose_lock_file_was_removed_is_still_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory(tmp_path / "store")
    store = directory.open()
    put(store, b"one")
    directory.paths.lock.rename(tmp_path / "moved")
    monkeypatch.setattr(FileLock, "_held_here", set())  # as in another process
    with pytest.raises(StoreLockedError, match="is in use by another broker: stop that one"):
        Directory(tmp_path / "store").open()
    put(store, b"two")
    assert bodies(store) == [b"one", b"two"]
    store.close()
    again = Directory(tmp_path / "store").open()
    assert bodies(again) == [b"one", b"two"]
    again.close()


def test_a_directory_that_is_named_twice_is_not_held_against_itself(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "log")
    directory = with_paths(
        tmp_path / "store", commit_log_directories=(tmp_path / "log", tmp_path / "link")
    )
    store = directory.open()
    put(store, b"one")
    assert bodies(store) == [b"one"]
    store.close()


def test_what_holds_a_store_leaves_no_file_in_the_directory_of_its_log(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "store")
    store = directory.open()
    assert list(directory.paths.commit_log.iterdir()) == [], (
        "Apache's broker takes every file there for a segment"
    )
    store.close()
