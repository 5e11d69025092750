"""A store through kills and power cuts, and what must be there afterwards."""

import asyncio
from collections import defaultdict
from pathlib import Path

from tests.simulation.world.ledger import Ledger, Queue, Send
from tests.simulation.world.process import ProcessKilled
from tests.simulation.world.simulation import Simulation

from turbopump.message.codec import decode_entries
from turbopump.store.files import StorePaths
from turbopump.store.message_store import MessageStore, NewMessage
from turbopump.store.store_config import StoreConfig

HOST = "10.0.0.1"
TOPICS = ("orders", "payments")
QUEUES = 2
LIVES = 8
HOST_BYTES = bytes([10, 0, 0, 1]) + (10911).to_bytes(4, "big")


class StoreStory:
    """One store directory through several lives, each ended by a power cut, a kill or a clean
    stop."""

    def __init__(self, simulation: Simulation, *, flushed_only: bool) -> None:
        self.simulation = simulation
        self.rng = simulation.random
        self.ledger = Ledger()
        self.flushed_only = flushed_only
        self.config = StoreConfig(
            paths=StorePaths(Path("/store")),
            segment_size=self.rng.choice((4096, 16_384, 65_536)),
            queue_file_size=20 * self.rng.choice((10, 50, 1000)),
            flushed_only=flushed_only,
        )
        # few of the queue files are mapped at a time, or all of them
        simulation.disk(HOST).maps_max = 2 if self.config.segment_size == 4096 else 1000
        self.written = 0
        self.waiting: list[tuple[Send, Queue, int, int]] = []
        self.read_to: dict[Queue, int] = defaultdict(int)
        self.rebuilding: str | None = None

    async def run(self) -> None:
        for _ in range(LIVES):
            await self.live()
        store = self.open()
        self.read(store, dict.fromkeys(self.queues(), 0), "at the end")
        store.close()

    async def live(self) -> None:
        process = self.simulation.boot(HOST)
        disk = self.simulation.disk(HOST)
        life = process.start(self.work())
        ending = self.rng.choice(
            ("power cut", "power cut", "power cut in an operation", "kill", "stop")
        )
        if ending == "power cut in an operation":
            disk.cut_power_at(nth=self.rng.randint(1, 120))
        if ending != "stop":
            delay = self.rng.uniform(0, 8)
            self.simulation.loop.call_later(delay, self.end, ending.startswith("power cut"))
        try:
            await life
        except ProcessKilled:
            self.settle(None)
        disk.clear_faults()

    def end(self, power_cut: bool) -> None:
        self.simulation.end(HOST, power_cut=power_cut)

    async def work(self) -> None:
        store = self.open()
        flush_at = 0.0
        for _ in range(self.rng.randint(1, 150)):
            for _ in range(self.rng.randint(1, 4)):
                self.put(store)
            if self.flushed_only or self.simulation.loop.time() >= flush_at:
                store.flusher.flush_log()
                flush_at = self.simulation.loop.time() + 0.5
            if self.rng.random() < 0.1:
                store.flusher.flush_queues()
            await asyncio.sleep(self.rng.uniform(0, 0.1))
            self.settle(store)
            if self.flushed_only:
                self.read(store, self.read_to, "while running")
        store.close()
        self.settle(store)
        self.simulation.end(HOST, power_cut=False)

    def open(self) -> MessageStore:
        mount = self.simulation.disk(HOST).mount()
        self.rebuilding = None
        store = MessageStore.open(self.config, mount, self.simulation.clock(HOST), self.failed)
        if self.rebuilding is not None:
            assert store.recovery is not None
            assert store.recovery.damages, f"the log is whole, yet: {self.rebuilding}"
        return store

    def failed(self, text: str) -> None:
        """Where a power cut tore a message that was not flushed, and its queue ends with a file
        there, the next file may have been taken away: then the queues are written again. Where it
        took the end of a log that had begun a segment, that is said."""
        if (
            text.startswith("the log had been written up to")
            and ("was not on the disk when the power failed") in text
        ):
            return
        assert "are written again" in text, f"no fault was injected, yet: {text}"
        self.rebuilding = text

    def queues(self) -> list[Queue]:
        return [
            Queue(topic, "broker-a", queue_id) for topic in TOPICS for queue_id in range(QUEUES)
        ]

    def put(self, store: MessageStore) -> None:
        queue = self.rng.choice(self.queues())
        self.written += 1
        body = f"{self.written} ".encode() + b"x" * self.rng.choice((0, 10, 200, 1500))
        send = self.ledger.send("writer", queue.topic, body, self.simulation.loop.time())
        placed = store.put(
            queue.topic,
            queue.queue_id,
            NewMessage(body, b"KEYS\x01k\x02", 0),
            sys_flag=0,
            born_timestamp=self.simulation.clock(HOST).now_ms(),
            born_host=HOST_BYTES,
            store_host=HOST_BYTES,
        )
        self.waiting.append((send, queue, placed.queue_offset, placed.log_end))

    def settle(self, store: MessageStore | None) -> None:
        """Messages that the flush has passed are acknowledged; without a store, the rest may or may
        not be there.
        """
        now = self.simulation.loop.time()
        rest = []
        for send, queue, offset, log_end in self.waiting:
            if store is None:
                send.maybe(now)
            elif store.durable.value >= log_end:
                send.acknowledged(queue, offset, now)
            else:
                rest.append((send, queue, offset, log_end))
        self.waiting = rest

    def read(self, store: MessageStore, positions: dict[Queue, int], group: str) -> None:
        for queue in self.queues():
            self.read_queue(store, queue, positions, group)

    def read_queue(
        self, store: MessageStore, queue: Queue, positions: dict[Queue, int], group: str
    ) -> None:
        while (
            found := store.get(queue.topic, queue.queue_id, positions[queue], 32)
        ).next_offset > positions[queue]:
            self.came(group, queue, found.data)
            positions[queue] = found.next_offset

    def came(self, group: str, queue: Queue, data: bytes) -> None:
        for message in decode_entries(data):
            self.ledger.delivered(group, "reader", queue, message.queue_offset, message.body)
