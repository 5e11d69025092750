"""Sparse segments on the real disk: blocks where they were asked for, and nothing kept open."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.stand_ins import raises, returns

from turbopump.disk import mapped_segments
from turbopump.disk.disk import Piece
from turbopump.disk.mapped_segments import MappedSparseSegment
from turbopump.disk.system_disk import SystemDisk

SIZE = 1 << 20


def blocks(path: Path) -> int:
    """Bytes that a file has on the disk."""
    return path.stat().st_blocks * 512


def descriptors() -> set[str]:
    """What this process has open below a temporary directory, files alone."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return found


@pytest.fixture
def disk() -> SystemDisk:
    return SystemDisk()


@pytest.fixture
def segment(disk: SystemDisk, tmp_path: Path) -> Iterator[MappedSparseSegment]:
    made = disk.create_sparse(tmp_path / "q", SIZE)
    yield made
    made.close()


def test_a_new_one_has_its_size_and_no_blocks_until_they_are_asked_for(
    segment: MappedSparseSegment,
) -> None:
    assert segment.path.stat().st_size == SIZE
    assert blocks(segment.path) == 0
    segment.allocate(0, 8192)
    assert blocks(segment.path) == 8192
    assert segment.read(0, 4) == bytes(4)


def test_what_is_written_through_the_map_is_in_the_file_and_no_descriptor_is_kept(
    segment: MappedSparseSegment,
) -> None:
    segment.allocate(0, 4096)
    segment.buffer[10:14] = b"unit"
    segment.sync()
    assert str(segment.path) not in descriptors()
    assert segment.path.read_bytes()[10:14] == segment.read(10, 4) == b"unit"
    assert segment.unmap()
    assert segment.read(10, 4) == segment.read_cold(10, 4) == b"unit", "it is read from the file"
    segment.buffer[10:14] = b"UNIT"
    assert segment.read(10, 4) == b"UNIT"
    assert str(segment.path) not in descriptors()


def test_a_full_disk_is_an_error_of_allocating(
    segment: MappedSparseSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        mapped_segments.os,
        "posix_fallocate",
        raises(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
    )
    with pytest.raises(OSError, match="No space left") as failed:
        segment.allocate(0, 4096)
    assert failed.value.filename == str(segment.path)
    assert blocks(segment.path) == 0


def test_views_of_a_map_stay_good_when_it_is_let_go(segment: MappedSparseSegment) -> None:
    segment.allocate(0, 4096)
    segment.buffer[:4] = b"here"
    view = segment.buffer[:4]
    segment.close()
    assert bytes(view) == b"here"


def test_the_end_of_the_data_is_found_without_reading_it_all(segment: MappedSparseSegment) -> None:
    assert segment.tail(100) == (0, b"")
    segment.allocate(0, 8192)
    segment.buffer[5000:5004] = b"last"
    segment.sync()
    at, tail = segment.tail(4096)
    assert at + len(tail) >= 5004
    assert tail.rstrip(b"\0").endswith(b"last")


def test_one_that_is_held_is_not_unmapped_and_is_read_after_its_file_was_replaced(
    disk: SystemDisk, segment: MappedSparseSegment
) -> None:
    segment.allocate(0, 4096)
    segment.buffer[:3] = b"old"
    segment.hold(reading=True)
    assert not segment.unmap()
    segment.close()
    segment.path.unlink()
    disk.create_sparse(segment.path, SIZE).close()
    assert segment.read_cold(0, 3) == b"old"
    segment.release()
    assert str(segment.path) not in {name.removesuffix(" (deleted)") for name in descriptors()}
    with pytest.raises(OSError, match="is closed"):
        segment.read_cold(0, 3)
    assert segment.read_cached(0, 3) is None


def test_without_a_descriptor_a_read_says_so(
    disk: SystemDisk, segment: MappedSparseSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object, *_given: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr(mapped_segments.os, "open", refuse)
    assert segment.read_cached(0, 4) is None
    found: list[Any] = []
    disk.start_read([Piece(segment, 0, 4)], found.extend)
    assert [error.errno for error in found] == [errno.EMFILE]
    with pytest.raises(OSError, match="Too many open files"):
        segment.allocate(0, 4096)


def test_a_file_that_was_cut_is_not_mapped(segment: MappedSparseSegment) -> None:
    os.truncate(segment.path, 5000)
    with pytest.raises(OSError, match=f"it has 5000 bytes, and had {SIZE}"):
        _ = segment.buffer


# --- syncing many


@pytest.fixture
def many(disk: SystemDisk, tmp_path: Path) -> Iterator[list[MappedSparseSegment]]:
    made = [disk.create_sparse(tmp_path / str(number), 8192) for number in range(40)]
    for segment in made:
        segment.allocate(0, 4096)
        segment.buffer[:4] = b"unit"
    yield made
    for segment in made:
        segment.close()


class Synced:
    """What was synced: each file by itself, and whole file systems with this outcome."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, outcome: Callable[[], bool]) -> None:
        self.files = self.file_systems = 0
        plain = mapped_segments.sync_map

        def one(view: memoryview) -> None:
            self.files += 1
            plain(view)

        def every(_fd: int) -> bool:
            self.file_systems += 1
            return outcome()

        monkeypatch.setattr(mapped_segments, "sync_map", one)
        monkeypatch.setattr(mapped_segments, "sync_file_system", every)


def refuse() -> bool:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_few_are_synced_one_by_one_and_many_with_their_file_system(
    disk: SystemDisk, many: list[MappedSparseSegment], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = Synced(monkeypatch, returns(True))
    disk.sync(many[:3])
    assert (synced.files, synced.file_systems) == (3, 0)
    outcomes: list[OSError | None] = []
    disk.start_sync(many, outcomes.append)
    assert (synced.files, synced.file_systems, outcomes) == (3, 1, [None])


@pytest.mark.parametrize("outcome", [returns(False), refuse], ids=["cannot tell", "an error"])
def test_where_the_file_system_does_not_say_that_all_is_well_each_is_synced(
    disk: SystemDisk,
    many: list[MappedSparseSegment],
    monkeypatch: pytest.MonkeyPatch,
    outcome: Callable[[], bool],
) -> None:
    synced = Synced(monkeypatch, outcome)
    disk.sync(many)
    assert (synced.files, synced.file_systems) == (len(many), 1)


def test_a_file_that_cannot_be_synced_is_an_error_of_all(
    disk: SystemDisk, many: list[MappedSparseSegment], monkeypatch: pytest.MonkeyPatch
) -> None:
    Synced(monkeypatch, refuse)
    monkeypatch.setattr(mapped_segments, "sync_map", lambda _view: refuse())
    outcomes: list[OSError | None] = []
    disk.start_sync(many, outcomes.append)
    (error,) = outcomes
    assert error is not None
    assert error.errno == errno.EIO
