"""An index file that finds no room: sends are refused until it does, and no message is missing from
the index in the end."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.simulation.world.disk import SimulatedDisk
from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.simulation import SimulatedClock
from tests.stand_ins import does_nothing
from tests.unit.store.directory import HOST
from tests.unit.store.looked_up import find_by_key

from turbopump.errors import StoreClosedError
from turbopump.store.files import StorePaths
from turbopump.store.index.index_file import index_file_size
from turbopump.store.message_store import MessageStore, NewMessage
from turbopump.store.store_config import StoreConfig

INDEX = Path("/store/index")
FILE_SIZE = index_file_size(10, 8)


class Machine:
    """A store whose index files lie on a disk with room for two of them."""

    def __init__(self) -> None:
        self.loop = SimulatedLoop(1)
        self.clock = SimulatedClock(self.loop)
        self.disk = SimulatedDisk(self.loop, random.Random(1), self.clock)
        self.disk.capacities = {INDEX: 2 * FILE_SIZE}
        self.config = StoreConfig(
            StorePaths(Path("/store")), segment_size=1 << 16, index_slots=10, index_entries=8
        )
        self.store = self.open()
        self.sent = 0

    def open(self) -> MessageStore:
        self.store = MessageStore.open(self.config, self.disk.mount(), self.clock, does_nothing)
        return self.store

    def put(self) -> None:
        key = f"k{self.sent}"
        message = NewMessage(b"body", f"KEYS\x01{key}\x02".encode(), 0, keys=key)
        self.store.put(
            "T", 0, message, sys_flag=0, born_timestamp=0, born_host=HOST, store_host=HOST
        )
        self.sent += 1

    def run(self, seconds: float) -> None:
        """As the broker's timetable has it."""

        def second() -> None:
            self.store.flusher.flush_log()
            self.store.flusher.flush_queues()
            self.store.space.check_space()

        for moment in range(int(seconds)):
            self.loop.call_later(moment, second)
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run_forever()

    def fill(self) -> None:
        """Send until that is refused; two files of seven entries have then long been full."""
        full = rf"no space for {FILE_SIZE} bytes in /store/index \(No space left"
        with pytest.raises(StoreClosedError, match=full):  # noqa: PT012
            while True:
                self.put()
        assert 14 < self.sent <= 100
        self.run(3)
        with pytest.raises(StoreClosedError, match="no space"):
            self.put()

    def found(self) -> int:
        return sum(
            len(find_by_key(self.store.lookup, "T", f"k{number}", 0, 1 << 60))
            for number in range(self.sent)
        )


def test_with_room_again_everything_is_indexed_and_sends_are_taken() -> None:
    machine = Machine()
    machine.fill()
    assert machine.found() == 14
    machine.disk.capacities[INDEX] = 1 << 20
    machine.run(3)
    machine.put()
    assert machine.found() == machine.sent
    machine.store.close()
    again = machine.open()
    assert again.recovery is not None
    assert not again.recovery.rebuilt
    assert machine.found() == machine.sent


def stop(machine: Machine) -> None:
    machine.store.close()


def kill(machine: Machine) -> None:
    machine.disk.kill()


def cut_power(machine: Machine) -> None:
    machine.disk.power_cut()


@pytest.mark.parametrize("end", [stop, kill, cut_power])
@pytest.mark.parametrize("seconds", [0, 3])
def test_what_waited_for_room_is_indexed_by_the_next_start(
    end: Callable[[Machine], None], seconds: float
) -> None:
    machine = Machine()
    machine.fill()
    machine.run(seconds)
    end(machine)
    machine.disk.capacities[INDEX] = 1 << 20
    machine.open()
    assert machine.store.max_offset("T", 0) == machine.sent
    assert machine.found() == machine.sent


def test_a_start_without_room_for_the_index_serves_and_goes_on_when_there_is_room() -> None:
    machine = Machine()
    machine.fill()
    machine.disk.kill()
    machine.open()
    assert machine.store.max_offset("T", 0) == machine.sent
    machine.run(3)
    with pytest.raises(StoreClosedError, match="no space"):
        machine.put()
    machine.disk.capacities[INDEX] = 1 << 20
    machine.run(3)
    machine.put()
    assert machine.found() == machine.sent
