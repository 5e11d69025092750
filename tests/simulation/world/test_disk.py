"""The disk in memory: what survives a power cut, a kill and an error, and that it is a Disk."""

import errno
import gc
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.world.disk import SimulatedDisk
from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.mount import PowerCut
from tests.simulation.world.simulation import START_MS, SimulatedClock
from tests.stand_ins import does_nothing

from turbopump.disk.disk import Disk, Segment
from turbopump.errors import StoreLockedError

ROOT = Path("/store")
LOG = ROOT / "log"
SECTORS = 16
SIZE = SECTORS * 512


def new_disk(seed: int = 1, capacity: int = 1 << 20) -> SimulatedDisk:
    loop = SimulatedLoop(seed)
    disk = SimulatedDisk(loop, random.Random(seed), SimulatedClock(loop), capacity=capacity)
    mounted(disk)
    return disk


def mounted(disk: SimulatedDisk) -> Disk:
    mount: Disk = disk.mount()
    mount.make_directory(ROOT)
    return mount


def the(disk: SimulatedDisk) -> Disk:
    assert disk.mounted is not None
    return disk.mounted


def run_until(disk: SimulatedDisk, outcomes: list[OSError | None], count: int = 1) -> None:
    while len(outcomes) < count:
        disk.loop._run_once()


def after_power_cuts(prepare: Callable[[SimulatedDisk], None], seeds: int = 200) -> list[Disk]:
    found = []
    for seed in range(seeds):
        disk = new_disk(seed)
        prepare(disk)
        disk.power_cut()
        found.append(mounted(disk))
    return found


def test_what_was_synced_is_there_after_every_power_cut() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        segment = the(disk).create_segment(LOG, SIZE)
        segment.buffer[0:5] = b"first"
        segment.sync()
        segment.buffer[512:1024] = b"2" * 512

    seconds = set()
    for mount in after_power_cuts(prepare):
        segment = mount.open_segment(LOG)
        assert segment.read(0, 5) == b"first"
        seconds.add(segment.read(512, 512).count(b"2"))
    assert {0, 512} < seconds  # and torn ones


def test_of_what_was_not_synced_any_subset_of_sectors_survives() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        segment = the(disk).create_segment(LOG, SIZE)
        segment.sync()
        segment.buffer[:] = b"x" * SIZE

    patterns = set()
    for mount in after_power_cuts(prepare):
        segment = mount.open_segment(LOG)
        patterns.add(
            "".join(
                "x" if segment.read(at, 512) == b"x" * 512 else "." for at in range(0, SIZE, 512)
            )
        )
    assert "x" * SECTORS in patterns
    assert "." * SECTORS in patterns
    assert any(".x" in pattern for pattern in patterns)  # a later sector without an earlier one


def test_a_file_never_synced_may_be_gone_or_empty_or_there() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        the(disk).create_segment(LOG, SIZE)

    assert {mount.file_size(LOG) for mount in after_power_cuts(prepare)} == {None, 0, SIZE}


def prepare_strict(prepare: Any, disk: SimulatedDisk) -> None:
    disk.strict_directories = True
    prepare(disk)


def test_a_new_file_that_was_synced_keeps_its_name_unless_directories_are_strict() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        the(disk).create_segment(LOG, SIZE).sync()

    assert {mount.file_size(LOG) for mount in after_power_cuts(prepare)} == {SIZE}
    assert {
        mount.file_size(LOG) for mount in after_power_cuts(partial(prepare_strict, prepare))
    } == {None, SIZE}


def test_a_replaced_file_is_the_old_or_the_new_one_wherever_the_power_is_cut() -> None:
    table = ROOT / "table.json"
    found = set()
    for seed in range(40):
        for nth in range(1, 6):
            disk = new_disk(seed)
            the(disk).replace_file(table, b"old" * 500)
            disk.cut_power_at(nth=nth)
            with pytest.raises(PowerCut):
                the(disk).replace_file(table, b"new" * 500)
            found.add(mounted(disk).read_file(table))
    assert found == {b"old" * 500, b"new" * 500}


def test_a_replaced_file_stays_replaced_and_its_predecessor_stays_as_bak() -> None:
    table = ROOT / "table.json"
    disk = new_disk()
    the(disk).replace_file(table, b"old")
    the(disk).replace_file(table, b"new")
    disk.power_cut()
    mount = mounted(disk)
    assert mount.read_file(table) == b"new"
    assert mount.read_file(ROOT / "table.json.bak") == b"old"
    assert mount.list_directory(ROOT) == ["table.json", "table.json.bak"]


def test_a_removal_may_be_undone_by_a_power_cut() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        the(disk).write_file(LOG, b"data")
        the(disk).remove(LOG)

    assert {mount.read_file(LOG) for mount in after_power_cuts(prepare)} == {None, b"data"}


def test_a_directory_that_was_removed_with_its_files_is_back_if_they_are() -> None:
    directory = ROOT / "queue"

    def prepare(disk: SimulatedDisk) -> None:
        the(disk).make_directory(directory)
        the(disk).write_file(directory / "file", b"data")
        the(disk).remove(directory / "file")
        the(disk).remove(directory)

    found = set()
    for mount in after_power_cuts(prepare):
        content = mount.read_file(directory / "file")
        assert content is None or mount.list_directory(ROOT) == ["queue"]
        found.add(content)
    assert found == {None, b"data"}


def test_a_killed_process_leaves_everything_it_wrote_synced_or_not() -> None:
    disk = new_disk()
    segment = the(disk).create_segment(LOG, SIZE)
    segment.buffer[0:4] = b"data"
    the(disk).lock(ROOT / "lock")
    disk.kill()
    segment.buffer[0:4] = b"late"  # a dead process's memory
    mount = mounted(disk)
    mount.lock(ROOT / "lock")
    assert mount.open_segment(LOG).read(0, 4) == b"data"
    disk.power_cut()
    # it was never synced, the kill changed nothing about that
    assert mounted(disk).file_size(LOG) in (None, 0, SIZE)


def test_a_dead_process_reaches_nothing() -> None:
    disk = new_disk()
    dead = the(disk)
    segment = dead.create_segment(LOG, SIZE)
    disk.kill()
    mounted(disk)
    with pytest.raises(PowerCut):
        dead.read_file(LOG)
    with pytest.raises(PowerCut):
        segment.sync()


def test_a_sync_beside_the_process_covers_what_was_written_before_it() -> None:
    for seed in range(50):
        disk = new_disk(seed)
        segment = the(disk).create_segment(LOG, SIZE)
        segment.buffer[0:6] = b"before"
        outcomes: list[OSError | None] = []
        the(disk).start_sync([segment], outcomes.append)
        segment.buffer[512:518] = b"during"
        assert outcomes == []
        run_until(disk, outcomes)
        assert outcomes == [None]
        disk.power_cut()
        found = mounted(disk).open_segment(LOG)
        assert found.read(0, 6) == b"before"
        if found.read(512, 6) == bytes(6):
            break
    else:
        pytest.fail("no power cut lost what was written during the sync")


def test_a_failed_sync_is_not_repaired_by_the_next_one() -> None:
    lost = 0
    for seed in range(20):
        disk = new_disk(seed)
        segment = the(disk).create_segment(LOG, SIZE)
        segment.sync()
        segment.buffer[0:4] = b"data"
        disk.fail("sync")
        with pytest.raises(OSError, match=r"Input/output error.*/store/log"):
            segment.sync()
        segment.sync()  # says that all is well
        disk.power_cut()
        lost += mounted(disk).open_segment(LOG).read(0, 4) == bytes(4)
    assert lost > 0


def test_the_nth_operation_of_a_kind_fails_with_the_error_asked_for() -> None:
    disk = new_disk()
    disk.fail("create", errno.ENOSPC, nth=2, times=2)
    mount = the(disk)
    mount.create_segment(ROOT / "1", SIZE)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            mount.create_segment(ROOT / "2", SIZE)
    mount.create_segment(ROOT / "2", SIZE)


def test_an_operation_beside_the_process_reports_its_error() -> None:
    disk = new_disk()
    disk.fail("create", errno.ENOSPC)
    made: list[Segment] = []
    outcomes: list[OSError | None] = []
    for _ in range(2):
        the(disk).start(lambda: made.append(the(disk).create_segment(LOG, SIZE)), outcomes.append)
    run_until(disk, outcomes, 2)
    assert sorted(outcome.errno if outcome and outcome.errno else 0 for outcome in outcomes) == [
        0,
        errno.ENOSPC,
    ]
    assert len(made) == 1


def test_operations_beside_the_process_leave_nothing_for_the_cycle_collector() -> None:
    """A simulation runs without it: a day of a million messages would keep each piece of the disk
    that it ever read."""
    disk = new_disk()
    outcomes: list[OSError | None] = []
    gc.collect()
    gc.disable()
    try:
        for count in range(1, 101):
            the(disk).start(does_nothing, outcomes.append)
            run_until(disk, outcomes, count)
        assert gc.collect() < 100
    finally:
        gc.enable()


def test_a_full_disk_refuses_a_segment_and_takes_it_when_there_is_room_again() -> None:
    disk = new_disk(capacity=3 * SIZE)
    mount = the(disk)
    for name in "12":
        mount.create_segment(ROOT / name, SIZE)
    assert mount.space(ROOT) == (3 * SIZE, SIZE)
    with pytest.raises(OSError, match="No space left"):
        mount.create_segment(LOG, 2 * SIZE)
    mount.remove(ROOT / "1")
    assert mount.create_segment(LOG, 2 * SIZE).size == 2 * SIZE


def test_closing_the_disk_finishes_what_is_under_way_and_refuses_more() -> None:
    disk = new_disk()
    mount = the(disk)
    segment = mount.create_segment(LOG, SIZE)
    segment.buffer[0:4] = b"data"
    outcomes: list[OSError | None] = []
    mount.start_sync([segment], outcomes.append)
    mount.close()
    with pytest.raises(RuntimeError, match="closed"):
        mount.start(does_nothing, outcomes.append)
    run_until(disk, outcomes)
    disk.power_cut()
    assert mounted(disk).open_segment(LOG).read(0, 4) == b"data"


def test_it_behaves_as_a_file_system_does() -> None:
    disk = new_disk()
    mount = the(disk)
    lock = mount.lock(ROOT / "lock")
    with pytest.raises(StoreLockedError):
        mount.lock(ROOT / "lock")
    lock.release()
    mount.lock(ROOT / "lock")
    mount.create_segment(LOG, SIZE)
    with pytest.raises(FileExistsError):
        mount.create_segment(LOG, SIZE)
    with pytest.raises(FileNotFoundError):
        mount.open_segment(ROOT / "nothing")
    with pytest.raises(FileNotFoundError):
        mount.create_segment(Path("/nowhere/log"), SIZE)
    assert mount.modified_ms(LOG) == START_MS
    assert mount.read_file(ROOT / "nothing") is None
    mount.remove(ROOT / "nothing")
    mount.make_directory(ROOT / "config")
    mount.write_file(ROOT / "config" / "x", b"1")
    mount.write_file(ROOT / "config" / "x", b"23")
    assert mount.list_directory(ROOT) == ["config", "lock", "log"]
    with pytest.raises(OSError, match="not empty"):
        mount.remove(ROOT / "config")
    mount.remove(ROOT / "config" / "x")
    mount.remove(ROOT / "config")
    assert mount.list_directory(ROOT) == ["lock", "log"]


def test_a_segment_takes_its_new_name_along_when_it_is_synced() -> None:
    def prepare(disk: SimulatedDisk) -> None:
        segment = the(disk).create_segment(ROOT / "spare", SIZE)
        the(disk).rename_segment(segment, LOG)
        segment.buffer[0:4] = b"data"
        assert the(disk).list_directory(ROOT) == ["log"]
        segment.sync()

    for mount in after_power_cuts(prepare, seeds=20):
        assert mount.list_directory(ROOT) == ["log"]
        assert mount.open_segment(LOG).read(0, 4) == b"data"


def test_a_closed_segment_can_be_opened_again_with_what_was_written() -> None:
    mount = the(new_disk())
    segment = mount.create_segment(LOG, SIZE)
    segment.buffer[7:11] = b"data"
    segment.close()
    again = mount.open_segment(LOG)
    assert again.read(7, 4) == b"data"
    assert again.size == SIZE


def test_the_same_seed_finds_the_same_disk() -> None:
    def found(seed: int) -> list[bytes | None]:
        disk = new_disk(seed)
        for name in "abcdef":
            segment = the(disk).create_segment(ROOT / name, SIZE)
            segment.buffer[:] = name.encode() * SIZE
        disk.power_cut()
        mount = mounted(disk)
        return [mount.read_file(ROOT / name) for name in "abcdef"]

    assert found(5) == found(5)
    assert len({tuple(found(seed)) for seed in range(10)}) > 5
