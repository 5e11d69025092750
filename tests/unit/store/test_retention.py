"""What a store deletes, when, in which order, and what a crash in the middle of it leaves."""

import errno
import os
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from tests.simulation.world.disk import SimulatedDisk
from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.mount import PowerCut
from tests.simulation.world.simulation import SimulatedClock
from tests.stand_ins import does_nothing, raises
from tests.unit.store.directory import HOST, Directory, bodies, put
from tests.unit.store.looked_up import find_by_key
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

from turbopump.disk.disk import Piece
from turbopump.disk.system_disk import SystemDisk
from turbopump.message.codec import decode_entries
from turbopump.store.disk_space import SpaceLevel
from turbopump.store.files import StorePaths
from turbopump.store.log.scanner import EntryWalk
from turbopump.store.message_store import MessageStore, NewMessage
from turbopump.store.queues.read_result import GetStatus
from turbopump.store.retention import MANUAL_ROUNDS, NextStep
from turbopump.store.store_config import StoreConfig


def test_old_segments_go_and_queues_and_indexes_begin_where_the_log_does(tmp_path: Path) -> None:
    directory = keep_for(Directory(tmp_path, **INDEXED))
    notes: list[str] = []
    store = directory.open(log_info=notes.append)
    fill(store)
    make_old(directory, segments(directory)[:5])
    index_files = len(list(directory.paths.index.iterdir()))

    assert clean(store)
    assert store.log.start == 5 * 4096
    assert [path.name for path in segments(directory)] == [
        f"{number * 4096:020d}" for number in range(5, 10)
    ]
    assert store.min_offset("T", 0) == 20
    assert bodies(store) == BODIES[20:]
    first_queue_file = min(directory.paths.consume_queue("T", 0).iterdir())
    assert first_queue_file.name == f"{20 * 20:020d}", "two files of ten units are gone"
    assert index_files - len(list(directory.paths.index.iterdir())) == 2, (
        "two files of seven messages lay before all that is left"
    )
    result = store.get("T", 0, 3, 32)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 20)
    assert len(notes) == 5
    assert "older than fileReservedTime; the log begins at 4096" in notes[0]
    assert put(store, b"next").queue_offset == 40
    store.close()
    assert directory.failures == []

    again = directory.open()
    assert again.recovery is not None
    assert (again.recovery.clean, again.recovery.rebuilt, again.recovery.entries) == (
        True,
        False,
        0,
    )
    assert bodies(again) == [*BODIES[20:], b"next"]
    again.close()


def test_after_a_kill_nothing_that_retention_left_is_built_again(tmp_path: Path) -> None:
    directory = keep_for(Directory(tmp_path / "a", **INDEXED))
    store = directory.open()
    fill(store)
    make_old(directory, segments(directory)[:5])
    clean(store)
    twin = directory.copy(tmp_path / "b")
    store.close()
    found = twin.open()
    assert found.recovery is not None
    assert not found.recovery.rebuilt
    assert bodies(found) == BODIES[20:]
    found.close()


def test_the_first_young_segment_ends_a_round_and_the_last_is_never_deleted(tmp_path: Path) -> None:
    directory = keep_for(Directory(tmp_path))
    store = directory.open()
    fill(store)
    make_old(directory, segments(directory))
    make_old(directory, segments(directory)[2:3], hours=71)
    clean(store)
    assert store.log.start == 2 * 4096
    make_old(directory, segments(directory))
    clean(store)
    assert store.log.start == 9 * 4096
    clean(store)
    assert bodies(store) == BODIES[36:]
    store.close()


def test_a_round_deletes_a_bounded_number(tmp_path: Path) -> None:
    directory = keep_for(Directory(tmp_path), batch_max=3)
    store = directory.open()
    fill(store)
    make_old(directory, segments(directory))
    starts = []
    for _ in range(4):
        clean(store)
        starts.append(store.log.start // 4096)
    assert starts == [3, 6, 9, 9]
    store.close()


def test_nothing_goes_at_another_hour_unless_asked_for_or_space_is_short(tmp_path: Path) -> None:
    directory = keep_for(Directory(tmp_path), hours=frozenset(), batch_max=1)
    store = directory.open()
    fill(store)
    make_old(directory, segments(directory)[:3])
    assert not clean(store)
    store.space.level = SpaceLevel.CLEAN
    assert clean(store)
    assert store.log.start == 4096
    store.space.level = SpaceLevel.NORMAL
    assert not clean(store)
    store.retention.request_deletion()
    assert [clean(store) for _ in range(MANUAL_ROUNDS + 1)] == [True] * MANUAL_ROUNDS + [False]
    assert store.log.start == 3 * 4096, "the others are young"
    store.close()


@pytest.mark.parametrize(("forcibly", "left"), [(True, 9), (False, 0)])
def test_the_oldest_go_whatever_their_age_if_space_forces_it_and_that_is_allowed(
    tmp_path: Path, forcibly: bool, left: int
) -> None:
    directory = keep_for(Directory(tmp_path), hours=frozenset(), forcibly=forcibly)
    store = directory.open()
    fill(store)
    store.space.level = SpaceLevel.CLEAN_FORCIBLY
    assert clean(store)
    assert store.log.start == left * 4096
    store.close()


def test_a_segment_stays_until_the_units_of_its_messages_are_on_the_disk(tmp_path: Path) -> None:
    directory = keep_for(Directory(tmp_path))
    store = directory.open()
    fill(store, wanted=BODIES[:10])
    for body in BODIES[10:]:
        put(store, body)
    make_old(directory, segments(directory))
    clean(store)
    assert store.log.start == 2 * 4096, "the third segment has a message that came after the sync"
    flush(store)
    clean(store)
    assert store.log.start == 9 * 4096
    store.close()


@pytest.mark.parametrize("killed", [False, True])
def test_a_queue_whose_messages_are_all_gone_goes_on_at_its_next_offset(
    tmp_path: Path, killed: bool
) -> None:
    directory = keep_for(Directory(tmp_path / "a"))
    store = directory.open()
    fill(store, "quiet", BODIES[:12])
    fill(store)
    make_old(directory, segments(directory)[:6])
    clean(store)
    assert (store.min_offset("quiet", 0), store.max_offset("quiet", 0)) == (12, 12)
    twin = directory.copy(tmp_path / "b") if killed else directory
    store.close()
    again = twin.open()
    assert again.recovery is not None
    assert not again.recovery.rebuilt
    assert (again.min_offset("quiet", 0), again.max_offset("quiet", 0)) == (12, 12)
    assert put(again, b"late", "quiet").queue_offset == 12
    assert bodies(again, "quiet") == [b"late"]
    again.close()


def test_after_a_clean_start_old_segments_can_go_before_anything_is_written(tmp_path: Path) -> None:
    directory = keep_for(Directory(tmp_path / "a", **INDEXED))
    store = directory.open()
    fill(store)
    store.close()
    make_old(directory, segments(directory)[:4])
    again = directory.open()
    clean(again)
    assert again.log.start == 4 * 4096
    killed = directory.copy(tmp_path / "b")
    again.close()
    for each in (directory, killed):
        found = each.open()
        assert found.recovery is not None
        assert not found.recovery.rebuilt, "that index files were deleted is known"
        assert bodies(found) == BODIES[16:]
        found.close()


def test_a_segment_that_cannot_be_removed_stays_and_so_do_those_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = keep_for(Directory(tmp_path))
    store = directory.open()
    fill(store)
    make_old(directory, segments(directory)[:4])

    unlink = os.unlink

    def refuse(path: Path) -> None:
        if path.name.isdigit():
            raise OSError(errno.EROFS, "Read-only file system")
        unlink(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        clean(store)
    assert store.log.start == 0
    assert bodies(store) == BODIES
    assert (
        "cannot be deleted (Read-only file system): trying again with the next round"
        in directory.failures[-1]
    )
    clean(store)
    assert store.log.start == 4 * 4096
    store.close()


def test_a_segment_whose_age_cannot_be_asked_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = keep_for(Directory(tmp_path))
    store = directory.open()
    fill(store)
    make_old(directory, segments(directory))

    with monkeypatch.context() as patched:
        patched.setattr(SystemDisk, "modified_ms", raises(OSError(errno.EIO, "Input/output error")))
        clean(store)
    assert store.log.start == 0
    assert "is not deleted: [Errno 5] Input/output error" in directory.failures[-1]
    store.close()


class Machine:
    """A store on a simulated disk, three topics in it, each quiet a part of the time."""

    def __init__(self, seed: int, *roots: Path) -> None:
        self.loop = SimulatedLoop(seed)
        # PowerCut, in what was under way
        self.loop.set_exception_handler(does_nothing)
        self.clock = SimulatedClock(self.loop)
        self.disk = SimulatedDisk(self.loop, random.Random(seed), self.clock)
        self.disk.sync_seconds = (0.001, 0.001)
        self.disk.on_power_cut = self.loop.stop
        self.config = StoreConfig(
            paths=StorePaths(Path("/store"), roots),
            segment_size=4096,
            queue_file_size=100,
            index_slots=10,
            index_entries=8,
            retention=replace(ALWAYS, reserved_ms=0, batch_max=4),
        )
        self.kept: dict[str, list[bytes]] = {"quiet": [], "T": [], "U": []}
        self.store = self.open()
        for number in range(30):
            self.put("quiet" if number < 8 else "TU"[number % 2])
        flush(self.store)
        self.run(1)
        for directory in self.disk.directories:
            self.disk.sync_directory(directory)
        # from now on each directory loses on its own what was not synced
        self.disk.strict_directories = True

    def open(self) -> MessageStore:
        self.store = MessageStore.open(self.config, self.disk.mount(), self.clock, does_nothing)
        return self.store

    def put(self, topic: str) -> int:
        body = b"%s %d " % (topic.encode(), len(self.kept[topic])) + b"x" * 900
        key = f"k{len(self.kept[topic])}"
        message = NewMessage(body, f"KEYS\x01{key}\x02".encode(), 0, keys=key)
        placed = self.store.put(
            topic, 0, message, sys_flag=0, born_timestamp=0, born_host=HOST, store_host=HOST
        )
        self.kept[topic].append(body)
        return placed.queue_offset

    def run(self, seconds: float) -> None:
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run_forever()

    def clean(self) -> None:
        """A round as the broker runs it, and time for it."""

        def deleted(following: NextStep) -> None:
            if following is NextStep.NOTHING:
                self.store.retention.trim_next(trimmed)
            else:
                self.loop.call_later(0.01, self.store.retention.delete_next, deleted)

        def trimmed(following: NextStep) -> None:
            if following is not NextStep.NOTHING:
                self.loop.call_later(0.01, self.store.retention.trim_next, trimmed)

        self.store.retention.begin_round()
        self.store.retention.delete_next(deleted)
        self.run(5)

    def check(self) -> None:
        """Every message from the log's beginning on is there, in order, and offsets go on where
        they were."""
        for topic, wanted in self.kept.items():
            first, end = self.store.min_offset(topic, 0), self.store.max_offset(topic, 0)
            assert end == len(wanted)
            found = bodies(self.store, topic)
            assert found == wanted[first:]
            unit = self.store.queues.find_or_make(topic, 0).unit(first) if first < end else None
            assert unit is None or unit[0] >= self.store.log.start
            assert unit is not None or self.store.log.start > 0
            assert self.put(topic) == end
            for index in range(first, end):
                assert find_by_key(self.store.lookup, topic, f"k{index}", 0, 1 << 60), (
                    "its index entry is there"
                )
        marks = list(EntryWalk(self.store.log).entries(self.store.log.start))
        assert len(marks) == sum(len(bodies(self.store, topic)) for topic in self.kept), (
            "every message of the log is in its queue"
        )


def kill_at(disk: SimulatedDisk, loop: SimulatedLoop, nth: int) -> None:
    """Kill the process, and not the machine, at its nth next operation."""
    perform: Callable[[str, Path], None] = disk.perform
    left = nth

    def counted(operation: str, path: Path) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            disk.kill()
            loop.stop()
            raise PowerCut
        perform(operation, path)

    disk.perform = counted  # type: ignore[method-assign]


@pytest.mark.parametrize("roots", [(), (Path("/one/log"), Path("/two/log"))])
def test_a_crash_at_any_step_of_a_round_leaves_a_shorter_log_and_queues_that_fit_it(
    roots: tuple[Path, ...],
) -> None:
    machine = Machine(0, *roots)
    before = machine.disk.operations
    machine.clean()
    steps = machine.disk.operations - before
    assert machine.store.log.start == 4 * 4096
    assert steps > 12, (
        "four segments, each with its directory; queue files, index files and the note of them"
    )
    machine.check()
    started = set()
    for power in (False, True):
        for step in count(1):
            crashed = Machine(step, *roots)
            if power:
                crashed.disk.cut_power_at(nth=step)
            else:
                kill_at(crashed.disk, crashed.loop, step)
            crashed.clean()
            if crashed.disk.mounted is not None:  # the round was over before
                break
            crashed.disk.__dict__.pop("perform", None)
            crashed.open()
            started.add(crashed.store.log.start // 4096)
            crashed.check()
            flush(crashed.store)
            crashed.run(1)
            crashed.clean()
            crashed.check()
        assert step > 12
    assert started == {0, 1, 2, 3, 4}


def test_a_round_that_ends_with_the_store_leaves_nothing_half_done() -> None:
    for moment in range(40):
        machine = Machine(moment)
        machine.store.retention.begin_round()
        machine.store.retention.delete_next(does_nothing)
        machine.run(moment / 10_000)
        machine.store.close()
        machine.open()
        assert machine.store.recovery is not None
        assert not machine.store.recovery.rebuilt
        machine.check()


def test_a_message_that_is_read_from_the_disk_while_its_segment_goes_is_read() -> None:
    machine = Machine(0)
    segment = machine.store.log.files.files[0].segment
    machine.disk.sync_seconds = (2.0, 2.0)
    found: list[bytes | OSError] = []
    assert machine.disk.mounted is not None
    machine.disk.mounted.start_read([Piece(segment, 0, 2000)], found.extend)
    machine.disk.sync_seconds = (0.001, 0.001)
    gone: list[int] = []
    machine.loop.call_later(0.5, lambda: gone.append(machine.store.log.start))
    machine.clean()
    assert gone == [4 * 4096], "it had gone before it was read"
    (entry,) = found
    assert isinstance(entry, bytes)
    assert next(decode_entries(entry[: int.from_bytes(entry[:4])])).body == machine.kept["quiet"][0]
