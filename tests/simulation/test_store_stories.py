"""The small stories behind seeds that once failed: each is a crash after which the store said
something untrue."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fuzzing import some
from tests.simulation.world.disk import SimulatedDisk
from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.simulation import SimulatedClock

from turbopump.message.codec import decode_entries
from turbopump.store.files import StorePaths
from turbopump.store.message_store import MessageStore, NewMessage
from turbopump.store.queues.read_result import GetResult
from turbopump.store.store_config import StoreConfig

CONFIG = StoreConfig(
    paths=StorePaths(Path("/store")), segment_size=16 * 1024, queue_file_size=20 * 1000
)
HOST_BYTES = bytes([10, 0, 0, 1]) + (10911).to_bytes(4, "big")
TOPIC = "orders"


class Machine:
    """One disk and the store on it, driven by hand."""

    def __init__(self, seed: int) -> None:
        self.loop = SimulatedLoop(seed)
        self.clock = SimulatedClock(self.loop)
        self.rng = random.Random(seed)
        self.disk = SimulatedDisk(self.loop, random.Random(f"{seed}/disk"), self.clock)
        self.store = self.open()

    def open(self) -> MessageStore:
        self.store = MessageStore.open(CONFIG, self.disk.mount(), self.clock, self._report)
        return self.store

    def _report(self, error: str) -> None:
        """What was written and never synced may be gone after a power cut, and is told so; no other
        error is right in these stories."""
        if "was not on the disk when the power failed" not in error:
            pytest.fail(error)

    def put(self, body: bytes) -> None:
        message = NewMessage(body, b"", 0)
        self.store.put(
            TOPIC,
            0,
            message,
            sys_flag=0,
            born_timestamp=0,
            born_host=HOST_BYTES,
            store_host=HOST_BYTES,
        )

    def pages(self) -> Iterator[GetResult]:
        offset = 0
        while (found := self.store.get(TOPIC, 0, offset, 32)).next_offset > offset:
            yield found
            offset = found.next_offset

    def bodies(self) -> list[bytes]:
        return [message.body for page in self.pages() for message in decode_entries(page.data)]

    def run(self, seconds: float) -> None:
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run_forever()


def test_what_was_recovered_after_a_kill_is_on_the_disk_before_it_counts_as_flushed() -> None:
    """A kill leaves unsynced messages in the page cache: recovery finds them, and a power cut may
    still take them."""
    for seed in some(range(40)):
        machine = Machine(seed)
        for number in range(20):
            machine.put(b"%d" % number)
        machine.disk.kill()
        store = machine.open()
        assert store.durable.value == store.log.end
        found = machine.bodies()
        machine.disk.power_cut()
        machine.open()
        assert machine.bodies()[: len(found)] == found


def test_units_that_recovery_cut_off_do_not_come_back_and_point_into_other_messages() -> None:
    """The queue's sync may overtake the log's. What is cut off then must be cut off on the disk
    before new messages follow."""
    for seed in some(range(60)):
        machine = Machine(seed)
        for number in range(30):
            machine.put(b"old %d" % number)
        machine.store.flusher.flush_queues()
        machine.run(0.1)
        machine.disk.power_cut()
        machine.open()
        # the checkpoint must have moved on, or the next recovery walks the whole log
        machine.run(10)
        for number in range(machine.rng.randint(1, 40)):
            machine.put(b"new %d " % number + b"x" * machine.rng.choice((0, 30, 300)))
        machine.store.flusher.flush_log()
        machine.run(0.1)
        flushed = machine.bodies()
        machine.disk.power_cut()
        machine.open()
        assert machine.bodies() == flushed


def test_a_unit_torn_by_a_power_cut_is_not_believed() -> None:
    """A unit of 20 bytes may lie across two sectors of which one survived: it then points
    anywhere."""
    for seed in some(range(150)):
        machine = Machine(seed)
        sent = [b"%d" % number for number in range(200)]
        for body in sent[:100]:
            machine.put(body)
        machine.store.flusher.flush_log()
        machine.run(0.1)
        for body in sent[100:]:
            machine.put(body)
        machine.disk.power_cut()
        machine.open()
        found = machine.bodies()
        assert found[:100] == sent[:100]
        assert found == [body for body in sent if body in set(found)], "each at most once, in order"
        last = sent.index(found[-1])
        passed = sum(page.gaps for page in machine.pages())
        assert machine.store.max_offset(TOPIC, 0) == last + 1 == len(found) + passed, (
            "what is lost in between is a gap"
        )
