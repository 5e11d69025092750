"""A row of files by itself: the spare one that is made ahead, and how a row is removed."""

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from turbopump.disk.disk import Done, Segment
from turbopump.disk.system_disk import SystemDisk
from turbopump.store.mapped_file_queue import MappedFileQueue

SIZE = 4096


class SlowDisk(SystemDisk):
    """A disk that does what is started beside the owner when ``work`` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[Callable[[], None], Done]] = []

    def start(self, operation: Callable[[], None], done: Done) -> None:
        self.waiting.append((operation, done))

    def work(self) -> None:
        while self.waiting:
            operation, done = self.waiting.pop(0)
            try:
                operation()
            except OSError as error:
                done(error)
            else:
                done(None)


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


def row(disk: SlowDisk, root: Path) -> MappedFileQueue:
    made = MappedFileQueue(disk, [root / "log"], SIZE, ahead=True)
    disk.make_directory(root / "log")
    made.append_file(0)
    return made


def test_one_spare_file_is_made_however_often_it_is_asked_for_and_becomes_the_next(
    disk: SlowDisk, tmp_path: Path
) -> None:
    files = row(disk, tmp_path)
    files.prepare_next()
    files.prepare_next()
    assert len(disk.waiting) == 1
    disk.work()
    files.prepare_next()
    assert disk.waiting == []
    assert (tmp_path / "log.spare").stat().st_size == SIZE
    files.append_file(SIZE)
    assert not (tmp_path / "log.spare").exists()
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == [
        f"{0:020d}",
        f"{SIZE:020d}",
    ]
    files.close()


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: os.truncate(path, 100)], ids=["deleted", "cut"]
)
def test_a_spare_file_that_somebody_has_deleted_or_cut_is_made_again(
    disk: SlowDisk, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    files = row(disk, tmp_path)
    files.prepare_next()
    disk.work()
    damage(tmp_path / "log.spare")
    file = files.append_file(SIZE)
    assert file.segment.path.stat().st_size == SIZE
    assert not (tmp_path / "log.spare").exists()
    files.close()


def test_a_row_that_is_not_to_look_ahead_makes_no_spare_file(
    disk: SlowDisk, tmp_path: Path
) -> None:
    files = MappedFileQueue(disk, [tmp_path / "queue"], SIZE)
    files.append_file(0)
    files.prepare_next()
    assert disk.waiting == []
    files.close()


def noted(create: Any, made: list[Segment], path: Path, size: int) -> Segment:
    made.append(create(path, size))
    return made[-1]


def test_a_spare_file_that_is_ready_after_the_row_was_closed_is_let_go(
    disk: SlowDisk, tmp_path: Path
) -> None:
    made: list[Segment] = []
    create = disk.create_segment

    disk.create_segment = partial(noted, create, made)  # type: ignore[method-assign, assignment]
    files = row(disk, tmp_path)
    files.prepare_next()
    files.close()
    disk.work()
    with pytest.raises(ValueError, match="closed"):
        made[-1].read(0, 1)


def full(path: Path, size: int) -> Segment:
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


def test_a_spare_file_that_cannot_be_made_is_tried_again_by_the_roll_which_says_why(
    disk: SlowDisk, tmp_path: Path
) -> None:
    files = row(disk, tmp_path)
    create = disk.create_segment

    disk.create_segment = full  # type: ignore[method-assign, assignment]
    files.prepare_next()
    disk.work()
    with pytest.raises(OSError, match="No space left"):
        files.append_file(SIZE)
    disk.create_segment = create  # type: ignore[method-assign]
    assert files.append_file(SIZE).start == SIZE
    files.close()


def test_a_removed_row_takes_its_files_and_leaves_what_is_not_its_own(
    disk: SlowDisk, tmp_path: Path
) -> None:
    files = row(disk, tmp_path)
    (tmp_path / "log" / f"{8 * SIZE:020d}").write_bytes(b"one that could not be loaded")
    (tmp_path / "log" / "notes.txt").write_bytes(b"not ours")
    files.prepare_next()
    disk.work()
    files.remove_all()
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["notes.txt"]
    (tmp_path / "log" / "notes.txt").unlink()
    row(disk, tmp_path).remove_all()
    assert list(tmp_path.iterdir()) == []
