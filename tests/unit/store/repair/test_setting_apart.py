"""`turbopump store set-apart`: a log that the disk cannot read in places is given a readable copy,
and exactly what lay there is told."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.crash.in_memory import (
    ROOT,
    Image,
    Opened,
    StillClock,
    config,
    make_disk,
    open_disk,
    open_image,
)
from tests.simulation.world.mount import PowerCut, SimulatedSegment
from tests.stand_ins import raises, returns
from tests.unit.store.bad_sectors import EIO, SEGMENT, bad_sectors, filled, segment
from tests.unit.store.directory import Directory, bodies, put
from tests.unit.store.inspected import tree

from turbopump.disk import system_disk as disks
from turbopump.disk.mapped_segments import MappedSegment
from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import StoreDamagedError, StoreError, StoreLockedError
from turbopump.store.repair.lost_messages import LostMessages
from turbopump.store.repair.setting_apart import SettingApart, set_apart
from turbopump.store.repair.unreadable_sectors import SECTOR, UnreadableRange


def run(directory: Directory, *, dry_run: bool = False) -> SettingApart:
    return set_apart(directory.paths, SystemDisk(), dry_run=dry_run)


def offsets_of(lost: list[LostMessages]) -> set[tuple[str, int, int]]:
    return {
        (one.topic, one.queue_id, offset) for one in lost for offset in range(one.first, one.end)
    }


def given(directory: Directory, queues: int = 2) -> set[int]:
    """The numbers of all messages that a store opened there gives."""
    store = directory.open()
    numbers = {
        int(body.split(b" ")[0])
        for queue_id in range(queues)
        for body in bodies(store, queue_id=queue_id)
    }
    store.close()
    return numbers


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize(
    "sectors",
    [
        [(0, 0)],
        [(0, 7)],
        [(0, 15)],
        [(1, 0)],
        [(1, 3), (1, 4), (1, 9)],
        [(0, 15), (1, 0)],
        [(0, 5), (2, 2)],
    ],
)
def test_what_lay_in_the_sectors_is_told_and_the_next_start_gives_all_else(
    tmp_path: Path, stopped: bool, sectors: list[tuple[int, int]]
) -> None:
    directory = filled(tmp_path / "store", stopped=stopped)
    originals = {
        number: (segment(directory, number), segment(directory, number).read_bytes())
        for number, _ in sectors
    }
    with bad_sectors(*((segment(directory, number), sector) for number, sector in sectors)):
        found = run(directory)
        kept = given(directory)
    missing = set(range(150)) - kept
    assert missing
    assert offsets_of(found.lost) == {("T", number % 2, number // 2) for number in missing}
    assert sum(one.end - one.start for one in found.ranges) == len(sectors) * SECTOR
    assert {one.cause for one in found.ranges} == {EIO}
    for path, data in originals.values():
        assert found.kept[path].read_bytes() == data
        assert found.kept[path].parent == directory.paths.root / "commitlog.unreadable"
    assert len(found.kept) == len(originals)
    assert not found.at_the_end
    assert sorted(
        path.name for path in (directory.paths.root / "commitlog.unreadable").iterdir()
    ) == sorted(path.name for path, _ in originals.values())


@pytest.mark.parametrize("sector", [0, 4])
def test_a_start_that_was_refused_names_the_command_and_is_none_behind_it(
    tmp_path: Path, sector: int
) -> None:
    directory = filled(tmp_path / "store", stopped=False)
    with bad_sectors((segment(directory, 0), sector)):
        with pytest.raises(OSError, match="turbopump store set-apart"):
            directory.open()
        found = run(directory)
        assert found.ranges == [
            UnreadableRange(sector * SECTOR, (sector + 1) * SECTOR, segment(directory, 0), EIO)
        ]
        store = directory.open()
        assert store.recovery is not None
        (damage,) = store.recovery.damages
        assert damage.start <= sector * SECTOR < (sector + 1) * SECTOR <= damage.end
        put(store, b"150 goes on")
        assert bodies(store)[-1] == b"150 goes on"
        store.close()


def test_a_dry_run_tells_the_same_and_changes_nothing(tmp_path: Path) -> None:
    directory = filled(tmp_path / "store", stopped=True)
    before = tree(directory.paths.root)
    with bad_sectors((segment(directory, 1), 3)):
        dry = run(directory, dry_run=True)
        assert tree(directory.paths.root) == before
        found = run(directory)
    assert (dry.ranges, dry.lost, dry.kept) == (found.ranges, found.lost, {})
    assert found.lost


def test_a_log_that_can_be_read_is_left_as_it_is(tmp_path: Path) -> None:
    directory = filled(tmp_path / "store", stopped=True)
    before = tree(directory.paths.root)
    heard: list[tuple[int, int]] = []
    found = set_apart(
        directory.paths, SystemDisk(), on_progress=lambda done, size: heard.append((done, size))
    )
    assert (found.ranges, found.lost, found.kept) == ([], [], {})
    assert tree(directory.paths.root) == before
    assert heard == [(number * SEGMENT, 3 * SEGMENT) for number in range(4)]


@pytest.mark.parametrize("times", [2, 6])
def test_what_can_be_read_when_it_is_tried_again_is_no_loss(tmp_path: Path, times: int) -> None:
    directory = filled(tmp_path / "store", stopped=True)
    before = {path.name: path.read_bytes() for path in directory.paths.commit_log.iterdir()}
    with bad_sectors((segment(directory, 0), 2), times=times):
        found = run(directory)
    assert (found.ranges, found.lost, found.kept) == ([], [], {})
    assert {path.name: path.read_bytes() for path in directory.paths.commit_log.iterdir()} == before
    assert given(directory) == set(range(150))
    assert not [path for path in directory.paths.root.rglob("*") if path.suffix == ".copy"]


def test_a_store_that_a_broker_has_is_left_alone(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "store")
    store = directory.open()
    put(store, b"new")
    with pytest.raises(StoreLockedError, match="in use by another broker"):
        run(directory)
    store.close()


def test_a_directory_without_segments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no segments"):
        run(Directory(tmp_path))
    assert not list(tmp_path.iterdir())


def test_without_room_for_the_copies_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = filled(tmp_path / "store", stopped=True)
    before = tree(directory.paths.root)
    plain, calls = os.posix_fallocate, []

    def posix_fallocate(fd: int, at: int, size: int) -> None:
        calls.append(size)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(fd, at, size)

    monkeypatch.setattr(disks.os, "posix_fallocate", posix_fallocate)
    with (
        bad_sectors((segment(directory, 0), 2), (segment(directory, 1), 2)),
        pytest.raises(
            StoreError,
            match=rf"No space left on device.*takes {SEGMENT} bytes there; "
            r"nothing was changed",
        ),
    ):
        run(directory)
    assert tree(directory.paths.root) == before


def test_a_copy_that_cannot_be_synced_takes_no_originals_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = filled(tmp_path / "store", stopped=True)
    before = tree(directory.paths.root)

    monkeypatch.setattr(MappedSegment, "sync", raises(OSError(errno.EIO, EIO)))
    with bad_sectors((segment(directory, 0), 2)), pytest.raises(OSError, match=EIO):
        run(directory)
    assert tree(directory.paths.root) == before


@pytest.mark.parametrize("nth", range(1, 5))
def test_where_names_cannot_be_made_durable_the_segment_is_there_whole_or_as_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    directory = filled(tmp_path / "store", stopped=True)
    path = segment(directory, 0)
    original, calls = path.read_bytes(), []
    plain = SystemDisk.sync_directory

    def sync_directory(disk: SystemDisk, of: Path) -> None:
        calls.append(of)
        if len(calls) == nth:
            raise OSError(errno.EIO, EIO, str(of))
        plain(disk, of)

    monkeypatch.setattr(SystemDisk, "sync_directory", sync_directory)
    with bad_sectors((path, 2)):
        with pytest.raises(OSError, match=EIO):
            run(directory)
        assert path.exists()
        run(directory)
        assert original in [
            one.read_bytes() for one in (directory.paths.root / "commitlog.unreadable").iterdir()
        ]
        assert len(given(directory)) in range(143, 150)


def test_a_second_run_on_a_disk_that_goes_on_to_fail_keeps_both_originals(tmp_path: Path) -> None:
    directory = filled(tmp_path / "store", stopped=True)
    path = segment(directory, 0)
    first, second = path.read_bytes(), b""
    with bad_sectors((path, 2)):
        run(directory)
    second = path.read_bytes()
    with bad_sectors((path, 8)):
        found = run(directory)
    kept = directory.paths.root / "commitlog.unreadable"
    assert found.kept == {path: kept / f"{path.name}.1"}
    assert ((kept / path.name).read_bytes(), (kept / f"{path.name}.1").read_bytes()) == (
        first,
        second,
    )


def test_where_the_log_is_its_own_file_system_originals_stay_and_starts_pass_them_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = filled(tmp_path / "store", stopped=True)
    path = segment(directory, 0)
    monkeypatch.setattr(SystemDisk, "same_file_system", returns(False))
    with bad_sectors((path, 2)):
        found = run(directory)
        assert found.kept == {path: directory.paths.commit_log / "unreadable" / path.name}
        assert len(given(directory)) in range(143, 150)


def test_of_the_end_of_the_log_it_is_told_that_offsets_are_given_again(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "store", segment_size=SEGMENT)
    store = directory.open()
    placed = [put(store, b"%d " % number + b"x" * 900) for number in range(30)]
    twin = directory.copy(tmp_path / "killed")
    store.close()
    with bad_sectors((segment(twin, 0), placed[-1].offset // SECTOR)):
        found = run(twin)
        assert found.at_the_end
        first = found.lost[0].first
        assert found.lost == [LostMessages("T", 0, first, 30)]
        assert found.readable_end == placed[first].offset
        again = twin.open()
    assert len(bodies(again)) == first
    assert put(again, b"next").queue_offset == first
    again.close()


@pytest.mark.parametrize("queues", ["gone", "cut by a start that was refused"])
def test_without_units_the_messages_behind_tell(tmp_path: Path, queues: str) -> None:
    directory = filled(tmp_path / "store", stopped=False)
    with bad_sectors((segment(directory, 1), 3)):
        if queues == "gone":
            shutil.rmtree(directory.paths.consume_queues)
        else:
            with pytest.raises(OSError, match=EIO):
                directory.open()
        found = run(directory)
        kept = given(directory)
    missing = set(range(150)) - kept
    assert len(missing) in range(4, 7)
    assert offsets_of(found.lost) == {("T", number % 2, number // 2) for number in missing}


def test_a_queue_that_cannot_be_read_either_is_told(tmp_path: Path) -> None:
    directory = filled(tmp_path / "store", stopped=True)
    queue = min((directory.paths.consume_queues / "T" / "1").iterdir())
    with bad_sectors((segment(directory, 0), 2), (queue, 0)):
        found = run(directory, dry_run=True)
    assert found.unread_queues == [queue]
    assert {one.queue_id for one in found.lost} == {0, 1}


# --- on the simulated disk, whose power is cut
# -------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("size", [None, 0, 4096, SEGMENT // 2])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_segment_that_is_cut_or_gone_is_not_called_whole_where_a_broker_misses_it(
    tmp_path: Path, number: int, size: int | None, stopped: bool
) -> None:
    directory = filled(tmp_path / "store", stopped=stopped)
    path = segment(directory, number)
    path.unlink() if size is None else os.truncate(path, size)
    begins_later = number == 0 and size is None  # as after retention
    dry, found = run(directory, dry_run=True), run(directory)
    assert dry.missing == found.missing
    assert not found.kept
    try:
        store = directory.open()
    except StoreDamagedError:
        refused = True
    else:
        store.close()
        refused = any("lost" in line or "last good" in line for line in directory.failures)
    if begins_later:
        assert not found.missing
    elif number < 2 or stopped:
        assert bool(found.missing) == refused
    if number < 2 and not begins_later:
        missed = segment(directory, 0) if size is None else path
        assert found.missing[0].startswith(f"{missed} has ")


SMALL = config(segment_size=16384, queue_file_size=2000, index_slots=10, index_entries=200)
BAD = ROOT / "commitlog" / f"{16384:020}"


def image() -> Image:
    found = open_image({}, SMALL)
    for number in range(40):
        found.put("T", 0, b"%d " % number + b"x" * 900, f"key-{number}")
    found.store.close()
    return found.image()


@contextmanager
def bad_platter() -> Iterator[None]:
    """One sector of the second segment cannot be read, wherever that lies; it can where zeros were
    written in its place."""
    plain = SimulatedSegment.read_cold

    def read_cold(self: SimulatedSegment, at: int, size: int) -> bytes:
        data = plain(self, at, size)
        start, end = max(SECTOR - at, 0), max(2 * SECTOR - at, 0)
        if self.path.name.startswith(BAD.name) and any(data[start:end]):
            raise OSError(errno.EIO, EIO)
        return data

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SimulatedSegment, "read_cold", read_cold)
        yield


def survivors(found: Opened) -> dict[int, bytes]:
    return found.bodies("T", 0)


def test_a_power_cut_in_any_step_leaves_the_segment_or_its_copy_and_a_second_run_ends_it() -> None:
    before, cut_at, ended = image(), 0, False
    with bad_platter():
        while not ended:
            cut_at += 1
            clock = StillClock()
            disk, loop = make_disk(before, clock)
            disk.cut_power_at(nth=cut_at)
            try:
                set_apart(SMALL.paths, disk.mount())
                ended = True
                disk.kill()
            except PowerCut:
                pass
            disk.clear_faults()
            contents = {path: file.content for path, file in disk.files.items()}
            whole = [path for path, data in contents.items() if data == before[BAD]]
            assert whole, f"the original is gone after a cut at operation {cut_at}"
            assert BAD in contents, f"the segment has no file after a cut at operation {cut_at}"
            set_apart(SMALL.paths, disk.mount())
            disk.kill()
            opened = open_disk(disk, loop, SMALL, clock)
            kept = survivors(opened)
            assert len(kept) in range(33, 40)
            assert all(kept[number].startswith(b"%d " % number) for number in kept)
            opened.store.close()
            disk.kill()
    assert cut_at > 10
