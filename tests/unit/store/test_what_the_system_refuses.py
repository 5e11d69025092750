"""Errors of the system at the seam: what the disk makes of them, and how it gets by where a system
lacks a call."""

import errno
import fcntl
import os
import struct
import sys
from pathlib import Path

import pytest
from tests.stand_ins import raises
from tests.unit.store.directory import Directory, put

from turbopump.disk.read_only_disk import LockState, ReadOnlyDisk
from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import StoreError


@pytest.fixture
def disk() -> SystemDisk:
    return SystemDisk()


def refuse(monkeypatch: pytest.MonkeyPatch, call: str, error: int) -> None:
    """From now on the system answers this call with an error."""

    def refused(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, call, refused)


def test_a_cold_read_of_a_file_that_became_shorter_is_an_error_with_the_place(
    disk: SystemDisk, tmp_path: Path
) -> None:
    segment = disk.create_segment(tmp_path / "a", 8192)
    os.truncate(tmp_path / "a", 5000)
    assert segment.read_cold(4990, 10) == bytes(10)
    with pytest.raises(OSError, match=r"a ends at byte 5000") as caught:
        segment.read_cold(4990, 20)
    assert caught.value.errno == errno.EIO
    segment.close()


def test_a_cold_read_that_comes_in_parts_is_put_together(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(bytes(range(256)))
    segment, looked_at = disk.open_segment(tmp_path / "a"), ReadOnlyDisk().open_file(tmp_path / "a")
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 7), at))
    if hasattr(os, "preadv"):
        monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: _some(fd, buffers, at))
    assert segment.read_cold(10, 100) == bytes(range(10, 110))
    assert looked_at.read(10, 100) == bytes(range(10, 110))
    segment.close()
    looked_at.close()


def _some(fd: int, buffers: list[memoryview], at: int) -> int:
    """``preadv`` that is given 7 bytes at most."""
    data = os.pread(fd, 7, at)
    view = memoryview(buffers[0]).cast("B")
    view[: len(data)] = data
    return len(data)


def test_holes_are_told_from_data_and_a_file_system_that_cannot_tell_has_none(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 20)
    segment, looked_at = disk.open_segment(path), ReadOnlyDisk().open_file(path)
    assert segment.data_from(0) is None
    assert looked_at.data_from(0) is None
    refuse(monkeypatch, "lseek", errno.EINVAL)
    assert segment.data_from(4096) == 4096
    assert looked_at.data_from(4096) == 4096
    monkeypatch.delattr(os, "SEEK_DATA")
    assert segment.data_from(8192) == 8192
    assert looked_at.data_from(8192) == 8192
    assert segment.data_from(1 << 20) is None
    assert looked_at.data_from(1 << 20) is None
    segment.close()
    looked_at.close()


def test_a_lock_that_fails_for_another_reason_than_a_holder_says_so_and_is_not_held(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "lockf", raises(OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))))
        with pytest.raises(OSError, match="No locks available"):
            disk.lock(tmp_path / "lock")
    disk.lock(tmp_path / "lock").release()


def test_a_system_without_linux_calls_gets_by_with_plain_ones(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(sys, "platform", "darwin")
    segment = disk.create_segment(tmp_path / "a", 10_000)
    segment.populate(0, 10_000)
    segment.buffer[0:5] = b"hello"
    segment.sync()
    segment.close()
    assert (tmp_path / "a").read_bytes() == b"hello" + bytes(9_995)


def test_a_bad_sector_is_an_error_with_the_file_and_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(bytes(100))
    with ReadOnlyDisk().open_file(tmp_path / "a") as file:
        refuse(monkeypatch, "pread", errno.EIO)
        with pytest.raises(OSError, match="Input/output error at byte 40") as caught:
            file.read(40, 10)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(tmp_path / "a"))


def test_who_holds_a_lock_is_read_in_the_layout_of_macos_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bsd = struct.Struct("qqihh")  # start, length, pid, type, whence
    holder = [4711]

    def answer(_fd: int, command: int, question: bytes) -> bytes:
        assert command == fcntl.F_GETLK
        assert bsd.unpack(question) == (0, 1, 0, fcntl.F_WRLCK, 0)
        return (
            bsd.pack(0, 1, holder[0], fcntl.F_WRLCK, 0)
            if holder
            else bsd.pack(0, 1, 0, fcntl.F_UNLCK, 0)
        )

    (tmp_path / "lock").write_bytes(b"lock")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "fcntl", answer)
    assert ReadOnlyDisk().lock_state(tmp_path / "lock") == LockState(True, 4711)
    holder.clear()
    assert ReadOnlyDisk().lock_state(tmp_path / "lock") == LockState(False, None)


def test_a_place_that_cannot_be_a_store_directory_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(
            StoreError,
            match=r"file.* cannot be a store directory \((File "
            r"exists|Not a directory)\)",
        ):
            Directory(root).open()


def test_a_start_that_fails_gives_the_lock_back(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "store")
    directory.open().close()
    foreign = directory.paths.commit_log / f"{0:020d}"
    foreign.write_bytes(b"x" * 100_000)
    with pytest.raises(StoreError, match="has 100000 bytes"):
        directory.open()
    foreign.unlink()
    store = directory.open()
    put(store, b"served")
    store.close()
