"""Files of the log that are deleted, moved, replaced or cut under the running store: nothing is
called kept that a start would not find, and a line says which file."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stand_ins import raises, returns
from tests.unit.store.directory import Directory, bodies, put

from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import StoreClosedError, StoreDamagedError


def cut(path: Path) -> None:
    os.truncate(path, 200)


def replace(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copyfile(path, copy)
    copy.rename(path)


def move_away(path: Path) -> None:
    path.rename(path.parent.parent / "old segment")


def segment(directory: Directory, number: int = 0) -> Path:
    return sorted(directory.paths.commit_log.iterdir())[number]


@pytest.mark.parametrize("lose", [Path.unlink, cut])
def test_what_is_written_to_a_file_that_was_deleted_or_cut_is_never_called_kept(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    directory = Directory(tmp_path / "store", flushed_only=True)
    store = directory.open()
    kept = put(store, b"kept")
    store.flusher.flush_log()
    assert store.durable.value == kept.log_end
    lose(segment(directory))
    put(store, b"lost")
    store.flusher.flush_log()
    assert store.durable.value == kept.log_end
    (line,) = directory.failures
    assert str(directory.paths.commit_log / f"{0:020d}") in line
    assert "was deleted" in line or "was cut from 4096 to 200 bytes" in line
    assert "the store is read-only until a restart" in line
    with pytest.raises(StoreClosedError, match="a file of the commit log is lost"):
        put(store, b"refused")
    store.close()
    assert directory.paths.abort.exists(), "that was no clean stop"


@pytest.mark.parametrize("lose", [Path.unlink, cut, replace, move_away])
def test_a_look_at_the_files_finds_what_was_done_before_anything_is_written(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    directory = Directory(tmp_path / "store")
    store = directory.open()
    put(store, b"one")
    store.flusher.check_files()
    assert directory.failures == []
    lose(segment(directory))
    for _ in range(3):
        store.flusher.check_files()
    (line,) = directory.failures
    assert "a file of the commit log is lost" in line
    with pytest.raises(StoreClosedError):
        put(store, b"refused")
    store.close()


def test_a_file_deleted_just_before_a_stop_makes_that_no_clean_one(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "store")
    store = directory.open()
    put(store, b"one")
    segment(directory).unlink()
    store.close()
    assert "a file of the commit log is lost" in directory.failures[0]
    assert directory.paths.abort.exists()


def test_an_older_file_that_is_gone_is_named_once_and_new_messages_are_taken(
    tmp_path: Path,
) -> None:
    directory = Directory(tmp_path / "store")
    store = directory.open()
    for number in range(16):
        put(store, bytes(900) + b"%d" % number)
    gone = segment(directory, 1)
    gone.unlink()
    for _ in range(10):
        store.flusher.check_files()
    (line,) = directory.failures
    assert str(gone) in line
    assert "copy its content back before the next start, which is refused without it" in line
    put(store, b"taken")
    assert len(bodies(store)) == 17, "what is open can be read"
    store.close()
    with pytest.raises(StoreDamagedError, match="is missing"):
        directory.open()


def test_what_a_deleted_file_held_can_be_copied_back_while_the_store_is_open(
    tmp_path: Path,
) -> None:
    directory = Directory(tmp_path / "store")
    store = directory.open()
    for number in range(3):
        put(store, b"%d" % number)
    path = segment(directory)
    path.unlink()
    store.flusher.check_files()
    source = directory.failures[0].split("copy its content from ")[1].split(";")[0]
    shutil.copyfile(source, path)
    store.close()
    assert bodies(directory.open()) == [b"0", b"1", b"2"]


def test_a_page_that_is_gone_is_noticed_by_the_next_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory(tmp_path / "store", flushed_only=True)
    store = directory.open()
    monkeypatch.setattr(SystemDisk, "lost_pages", returns(SystemDisk().lost_pages() + 2))
    put(store, b"lost")
    store.flusher.flush_log()
    assert store.durable.value == 0
    assert "2 pages of the store's files are lost" in directory.failures[0]
    store.close()


def test_messages_that_only_the_queues_know_of_are_counted_at_the_start(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "store")
    store = directory.open()
    for number in range(9):
        put(store, b"%d" % number, queue_id=number % 2)
    twin = directory.copy(tmp_path / "killed")
    store.close()
    os.truncate(segment(twin), 4 * 93)
    again = twin.open()
    assert len(bodies(again)) + len(bodies(again, queue_id=1)) == 4
    (line,) = twin.failures
    assert "written up to 837, and its last good message ends at 372" in line
    assert "the queues had 5 messages behind that" in line
    again.close()


def test_a_name_that_cannot_be_looked_up_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = SystemDisk().create_segment(tmp_path / "a", 4096)

    monkeypatch.setattr(os, "stat", raises(OSError(errno.EACCES, os.strerror(errno.EACCES))))
    assert segment.lost(by_name=True) is None
    segment.close()
    assert segment.lost() is None
