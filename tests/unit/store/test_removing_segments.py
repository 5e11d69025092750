"""Files that go while somebody still reads them: their names go, their bytes stay until the last
reader is done."""

import errno
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.file_descriptors import open_count

from turbopump.disk.disk import Piece
from turbopump.disk.system_disk import SystemDisk


class Owner:
    """A thread's place where outcomes arrive."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self._arrived = threading.Condition()

    def post(self, call: object) -> None:
        with self._arrived:
            self.calls.append(call)
            self._arrived.notify()

    def work(self, count: int) -> None:
        """Run the next so many outcomes."""
        for _ in range(count):
            with self._arrived:
                assert self._arrived.wait_for(lambda: self.calls, timeout=30)
                call = self.calls.pop(0)
            assert callable(call)
            call()


def done(
    outcomes: list[tuple[int, OSError | None, bytes]],
    segments: Any,
    gone: int,
    error: OSError | None,
) -> None:
    outcomes.append((gone, error, segments[0].read(0, 5)))
    for segment in segments:
        segment.close()


def test_removed_segments_can_be_read_until_closed_and_are_freed_in_a_thread(
    tmp_path: Path,
) -> None:
    owner = Owner()
    disk = SystemDisk(owner.post)
    segments = [disk.create_segment(tmp_path / name, 4096) for name in ("0", "1")]
    segments[0].buffer[:5] = b"hello"
    before = open_count()
    outcomes: list[tuple[int, OSError | None, bytes]] = []

    disk.start_remove(segments, partial(done, outcomes, segments))
    owner.work(2)
    assert outcomes == [(2, None, b"hello")]
    assert list(tmp_path.iterdir()) == []
    disk.close()
    assert open_count() == before - 4, "two descriptors and two maps"


def test_a_file_that_is_gone_already_counts_as_removed_and_one_that_cannot_go_ends_the_row(
    tmp_path: Path,
) -> None:
    disk = SystemDisk()
    segments = [disk.create_segment(tmp_path / name, 4096) for name in ("0", "1", "2")]
    (tmp_path / "0").unlink()
    (tmp_path / "1").unlink()
    (tmp_path / "1").mkdir()
    outcomes: list[tuple[int, int | None]] = []
    disk.start_remove(
        segments,
        lambda gone, error: outcomes.append((gone, error.errno if error is not None else None)),
    )
    assert outcomes == [(1, errno.EISDIR)]
    assert (tmp_path / "2").exists()


def test_a_segment_closed_during_a_read_is_read_to_the_end(tmp_path: Path) -> None:
    owner = Owner()
    disk = SystemDisk(owner.post)
    segment = disk.create_segment(tmp_path / "0", 4096)
    segment.buffer[:5] = b"hello"
    found: list[object] = []
    disk.start_read([Piece(segment, 0, 5)], found.extend)
    segment.close()
    owner.work(1)
    assert found == [b"hello"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        segment.read_cold(0, 5)
    assert segment.read_cached(0, 5) is None
    segment.evict(0, 5)  # nothing to forget
    disk.close()


def test_a_segment_closed_during_a_sync_is_synced_as_asked(tmp_path: Path) -> None:
    owner = Owner()
    disk = SystemDisk(owner.post)
    segment = disk.create_segment(tmp_path / "0", 4096)
    outcomes: list[OSError | None] = []
    disk.start_sync([segment], outcomes.append)
    segment.close()
    owner.work(1)
    assert outcomes == [None]
    disk.close()


def test_a_view_of_a_closed_segment_stays_good(tmp_path: Path) -> None:
    disk = SystemDisk()
    segment = disk.create_segment(tmp_path / "0", 4096)
    segment.buffer[:5] = b"hello"
    view = memoryview(segment.buffer)[:5]
    segment.close()
    assert bytes(view) == b"hello"


def test_a_new_file_that_finds_no_room_says_where(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No space|too large") as caught:
        SystemDisk().create_segment(tmp_path / "0", 1 << 60)
    assert caught.value.filename == str(tmp_path / "0")
    assert list(tmp_path.iterdir()) == []


def test_room_is_counted_as_df_counts_it(tmp_path: Path) -> None:
    space, figures = SystemDisk().space(tmp_path), os.statvfs(tmp_path)
    assert space.total == (figures.f_blocks - figures.f_bfree + figures.f_bavail) * figures.f_frsize
    assert abs(space.used_percent - 100 * (space.total - space.free) / space.total) < 1
