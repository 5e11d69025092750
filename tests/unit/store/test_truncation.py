"""A log that is cut: what the next start finds, also after a crash at each step of the cut."""

import random
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from tests.simulation.world.disk import SimulatedDisk
from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.mount import PowerCut
from tests.simulation.world.simulation import SimulatedClock
from tests.stand_ins import does_nothing
from tests.unit.store.directory import HOST, Directory, bodies, put
from tests.unit.store.indexed import answers
from tests.unit.store.inspected import SLOTS, numbered_store, verified
from tests.unit.store.looked_up import find_by_key

from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import StoreDamagedError, StoreLockedError
from turbopump.store.files import StorePaths
from turbopump.store.log.scanner import EntryWalk
from turbopump.store.message_store import MessageStore, NewMessage
from turbopump.store.store_config import StoreConfig
from turbopump.store.truncation import cut_store

TOPICS = ("quiet", "T", "U")


class Machine:
    """A store on a simulated disk, closed cleanly: 30 messages of three topics in eight files."""

    def __init__(self, seed: int) -> None:
        self.loop = SimulatedLoop(seed)
        self.loop.set_exception_handler(does_nothing)
        self.clock = SimulatedClock(self.loop)
        self.disk = SimulatedDisk(self.loop, random.Random(seed), self.clock)
        self.disk.sync_seconds = (0.001, 0.001)
        self.config = StoreConfig(
            paths=StorePaths(Path("/store")),
            segment_size=4096,
            queue_file_size=100,
            index_slots=10,
            index_entries=8,
            is_replica=True,
        )
        self.reported: list[str] = []
        self.ends: list[int] = []
        """The end of the log after each message, and after 0 messages."""
        self.topics: list[str] = []
        self.store = self.open()
        self.ends.append(0)
        for number in range(30):
            self.put("quiet" if number < 8 else "TU"[number % 2])
        self.store.confirmed.note_replicas(self.store.log.end, sole=True)
        self.close()
        for directory in self.disk.directories:
            self.disk.sync_directory(directory)
        self.disk.strict_directories = True

    def open(self) -> MessageStore:
        mount = self.disk.mount()
        self.store = MessageStore.open(self.config, mount, self.clock, self.reported.append)
        return self.store

    def close(self) -> None:
        self.store.close()
        self.disk.kill()

    def put(self, topic: str) -> int:
        number = self.topics.count(topic)
        key = f"k{number}"
        message = NewMessage(b"%d" % number * 900, f"KEYS\x01{key}\x02".encode(), 0, keys=key)
        placed = self.store.put(
            topic, 0, message, sys_flag=0, born_timestamp=0, born_host=HOST, store_host=HOST
        )
        self.topics.append(topic)
        self.ends.append(placed.log_end)
        return placed.queue_offset

    def cut(self, offset: int) -> None:
        cut_store(self.config, self.disk.mount(), self.clock, offset, self.reported.append)
        self.disk.kill()

    def check(self, messages: int) -> None:
        """Only the first messages are there. New ones get the next offsets."""
        store = self.open()
        assert store.log.end == self.ends[messages]
        assert store.recovery.clean
        assert store.recovery.entries == 0
        kept = self.topics[:messages]
        assert len(list(EntryWalk(store.log).entries(store.log.start))) == messages
        assert self.reported == []
        store.confirmed.note_replicas(store.log.end, sole=True)
        for topic in TOPICS:
            found = len(bodies(store, topic))
            assert found == kept.count(topic)
            queue = store.queues.find(topic, 0)
            assert (0 if queue is None else queue.max_index) == found
            for index in range(self.topics.count(topic)):
                has_key = bool(find_by_key(store.lookup, topic, f"k{index}", 0, 1 << 60))
                assert has_key == (index < found)
        del self.topics[messages:], self.ends[messages + 1 :]
        for topic in TOPICS:
            assert self.put(topic) == kept.count(topic)
        self.close()


@pytest.mark.parametrize("messages", [0, 1, 4, 7, 8, 12, 27, 29, 30])
def test_a_cut_log_ends_there_and_so_do_queues_and_index(messages: int) -> None:
    machine = Machine(1)
    machine.cut(machine.ends[messages])
    machine.check(messages)


def test_a_log_is_cut_at_the_start_of_a_file() -> None:
    machine = Machine(1)
    machine.cut(4096)
    machine.open()
    assert machine.store.log.end == 4096
    assert machine.reported == []


def kill_at(disk: SimulatedDisk, nth: int) -> None:
    """Kill the process, and not the machine, at its nth next operation."""
    perform = disk.perform
    left = nth

    def counted(operation: str, path: Path) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            disk.kill()
            raise PowerCut
        perform(operation, path)

    disk.perform = counted  # type: ignore[method-assign]


@pytest.mark.parametrize("messages", [3, 28])
@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_any_step_leaves_a_prefix_and_the_repeated_cut_is_as_without(
    messages: int, *, power: bool
) -> None:
    ends = set()
    for step in count(1):
        machine = Machine(step)
        offset = machine.ends[messages]
        if power:
            machine.disk.cut_power_at(nth=step)
        else:
            kill_at(machine.disk, step)
        try:
            cut_store(
                machine.config, machine.disk.mount(), machine.clock, offset, machine.reported.append
            )
        except PowerCut:
            machine.disk.__dict__.pop("perform", None)
        else:
            break
        store = machine.open()
        assert store.log.end >= offset
        ends.add(store.log.end)
        machine.reported.clear()
        machine.close()
        machine.cut(offset)
        machine.check(messages)
    assert step > 10
    assert len(ends) > 1


def cut_directory(directory: Directory, offset: int) -> None:
    cut_store(directory.config, SystemDisk(), directory.clock, offset, directory.failures.append)


def entry_end(store: MessageStore, number: int) -> int:
    parsed = list(EntryWalk(store.log).entries())[number]
    return parsed.offset + parsed.size


@pytest.mark.parametrize("number", [0, 1, 17, 29, 30, 31, 48, 49])
def test_a_cut_store_is_as_one_that_was_stopped_at_the_cut(tmp_path: Path, number: int) -> None:
    directory = numbered_store(tmp_path / "cut")
    store = directory.open()
    offset = number and entry_end(store, number - 1)
    store.close()
    cut_directory(directory, offset)
    twin = numbered_store(tmp_path / "stopped", number)
    checked, expected = verified(tmp_path / "cut"), verified(tmp_path / "stopped")
    assert checked.findings.counts == {}
    assert (checked.units, checked.index_entries) == (expected.units, expected.index_entries)
    found, wanted = directory.open(), twin.open()
    assert found.recovery == wanted.recovery
    assert answers(found) == answers(wanted)
    assert directory.failures == []


@pytest.mark.parametrize("number", [3, 40])
def test_a_cut_with_a_damaged_index_leaves_the_index_to_recovery(
    tmp_path: Path, number: int
) -> None:
    directory = numbered_store(tmp_path)
    store = directory.open()
    offset = entry_end(store, number - 1)
    wanted = answers(store)
    store.close()
    newest = sorted(directory.paths.index.iterdir())[-1]
    data = bytearray(newest.read_bytes())
    data[40 : 40 + SLOTS * 4] = bytes(SLOTS * 4)
    newest.write_bytes(data)
    cut_directory(directory, offset)
    found = {key: [at for at in hits if at < offset] for key, hits in wanted.items()}
    assert answers(directory.open()) == found


def test_a_store_that_was_killed_is_recovered_after_the_cut(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "killed")
    store = directory.open()
    ends = [put(store, b"%d" % number).log_end for number in range(5)]
    store.flusher.flush_all_now()
    twin = directory.copy(tmp_path / "copy")
    cut_directory(twin, ends[2])
    again = twin.open()
    assert not again.recovery.clean
    assert bodies(again) == [b"0", b"1", b"2"]


def test_readers_beyond_a_cut_are_set_back_if_they_have_seen_what_is_cut(tmp_path: Path) -> None:
    """Readers who see unconfirmed messages would skip the next ones, which get the same offsets."""
    directory = Directory(tmp_path, is_replica=True, shows_unconfirmed=True)
    store = directory.open()
    ends = [put(store, b"%d" % number).log_end for number in range(5)]
    store.close()
    cut_directory(directory, ends[2])
    again = directory.open()
    put(again, b"other")
    assert again.get("T", 0, 5, 1).next_offset == 3


def test_a_deletion_of_a_topic_behind_the_cut_has_not_happened(tmp_path: Path) -> None:
    """The new master has the topic: the record of its deletion was not confirmed."""
    directory = Directory(tmp_path)
    store = directory.open()
    put(store, b"kept", topic="gone")
    end = put(store, b"one").log_end
    put(store, b"two")
    store.delete_queues("gone", does_nothing)
    store.close()
    cut_directory(directory, end)
    again = directory.open()
    assert again.log.end == end
    assert (bodies(again, "gone"), bodies(again)) == ([b"kept"], [b"one"])


@pytest.mark.parametrize("messages", [1, 5, 9])
def test_segments_in_several_directories_are_cut(tmp_path: Path, messages: int) -> None:
    roots = (tmp_path / "one", tmp_path / "two")
    directory = Directory(tmp_path / "store")
    paths = replace(directory.paths, commit_log_directories=roots)
    directory.config = replace(directory.config, paths=paths)
    store = directory.open()
    ends = [put(store, b"x" * 2000).log_end for _ in range(10)]
    store.close()
    cut_directory(directory, ends[messages - 1])
    again = directory.open()
    assert again.log.end == ends[messages - 1]
    assert len(bodies(again)) == messages


def test_a_store_in_use_is_not_cut(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    put(directory.open(), b"one")
    with pytest.raises(StoreLockedError):
        cut_directory(directory, 0)


def test_a_log_that_is_shorter_stays(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    store = directory.open()
    end = put(store, b"one").log_end
    store.close()
    cut_directory(directory, end + 5000)
    again = directory.open()
    assert again.recovery.clean
    assert again.log.end == end


def test_a_log_is_not_cut_before_its_beginning(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    store = directory.open()
    for _ in range(5):
        put(store, b"x" * 2000)
    store.close()
    (directory.paths.commit_log / "00000000000000000000").unlink()
    with pytest.raises(StoreDamagedError, match="begins at 4096, and cannot be cut at 95"):
        cut_directory(directory, 95)
