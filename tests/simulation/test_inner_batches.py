"""Topics with ``queue.type=BatchCQ`` through power cuts, kills, stops and the loss of their queues:
what was acknowledged of a batch is there, at its offset, in order, and of no batch only a part.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.loops import in_loop
from tests.simulation.figures import Figures
from tests.simulation.one_broker import HOST, OneBroker, with_one_broker
from tests.simulation.store_story import HOST_BYTES, StoreStory
from tests.simulation.world.ledger import Ledger, Queue, Send
from tests.simulation.world.simulation import Simulation, run_simulation
from tests.unit.broker.talking import Client
from tests.unit.store.batches import put_inner

from turbopump.errors import RemotingError
from turbopump.message.batch import decode_batch, encode_batch
from turbopump.message.codec import decode_entries
from turbopump.message.message import Message
from turbopump.message.properties import SysFlag, encode_properties
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import SendBatchMessage, SendMessageReply, SendMessageV2
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.batch_consume_queue import BATCH_UNIT_SIZE

BATCHED = "B"
QUEUES = 2
FAILURES = 12
"""Of the broker, in each seed."""


def taken_apart(data: bytes) -> list[list[tuple[int, bytes]]]:
    """Of each entry of a pull (queue offset, body) of each message in it."""
    found = []
    for entry in decode_entries(data):
        inner = entry.sys_flag & SysFlag.INNER_BATCH
        bodies = [item.body for item in decode_batch(entry.body)] if inner else [entry.body]
        found.append([(entry.queue_offset + number, body) for number, body in enumerate(bodies)])
    return found


@dataclass
class Batches:
    """``ledger`` knows each message of a batch by itself, ``whole`` the bodies of each batch, by
    its first."""

    ledger: Ledger
    whole: dict[bytes, list[bytes]] = field(default_factory=dict)
    broken: list[list[bytes]] = field(default_factory=list)
    _numbers: int = 0

    def new(self, sender: str, count: int, at: float, rng: random.Random) -> list[Send]:
        """Sends of as many messages as are to be one entry."""
        self._numbers += 1
        bodies = [
            b"%d.%d " % (self._numbers, part) + b"x" * rng.choice((0, 10, 100))
            for part in range(count)
        ]
        self.whole[bodies[0]] = bodies
        return [self.ledger.send(sender, BATCHED, body, at) for body in bodies]

    def came(self, group: str, queue: Queue, entries: Iterable[list[tuple[int, bytes]]]) -> None:
        for messages in entries:
            bodies = [body for _, body in messages]
            if self.whole.get(bodies[0], bodies[:1]) != bodies:
                self.broken.append(bodies)
            for offset, body in messages:
                self.ledger.delivered(group, "reader", queue, offset, body)


class BatchStory(StoreStory):
    """The store's lives with inner batches and single messages in the queues of one topic, beside a
    plain one. Now and then a life begins without some of the files of its queues, as if somebody
    had removed them."""

    def __init__(self, simulation: Simulation, *, flushed_only: bool) -> None:
        super().__init__(simulation, flushed_only=flushed_only)
        self.batches = Batches(self.ledger)
        self.queues_lost = 0
        self.skipped: list[int] = []
        """Queue offsets that a read passed over, although there is a message."""
        self.config = replace(
            self.config,
            with_crc=True,
            batch_queue_file_size=BATCH_UNIT_SIZE * self.rng.choice((10, 50, 1000)),
        )

    def open(self) -> MessageStore:
        mount = self.simulation.disk(HOST).mount()
        if self.rng.random() < 0.2:
            directory = Path("/store/batchconsumequeue") / BATCHED / str(self.rng.randrange(QUEUES))
            for name in mount.list_directory(directory):
                mount.remove(directory / name)
                self.queues_lost += 1
        return MessageStore.open(
            self.config,
            mount,
            self.simulation.clock(HOST),
            self.failed,
            is_batch=lambda topic: topic == BATCHED,
        )

    def failed(self, text: str) -> None:
        """Where a unit that is missing may have been in a file that is gone, all is read again:
        that is said, and well."""
        if not text.startswith(
            "a consume queue was not as it should be, all queues and indexes are written again"
        ):
            super().failed(text)

    def queues(self) -> list[Queue]:
        return [
            *super().queues(),
            *(Queue(BATCHED, "broker-a", queue_id) for queue_id in range(QUEUES)),
        ]

    def put(self, store: MessageStore) -> None:
        if self.rng.random() < 0.4:
            super().put(store)
            return
        queue = Queue(BATCHED, "broker-a", self.rng.randrange(QUEUES))
        count = self.rng.choice((1, 2, 3, 10))
        sends = self.batches.new("writer", count, self.simulation.loop.time(), self.rng)
        placed = put_inner(
            store, [send.body for send in sends], queue.queue_id, BATCHED, store_host=HOST_BYTES
        )
        self.waiting += [
            (send, queue, placed.queue_offset + number, placed.log_end)
            for number, send in enumerate(sends)
        ]

    def read(self, store: MessageStore, positions: dict[Queue, int], group: str) -> None:
        super().read(store, positions, group)
        if group == "at the end":
            self.read_from_anywhere(store)

    def came(self, group: str, queue: Queue, data: bytes) -> None:
        if queue.topic == BATCHED:
            self.batches.came(group, queue, taken_apart(data))
        else:
            super().came(group, queue, data)

    def read_from_anywhere(self, store: MessageStore) -> None:
        """From offsets in the middle of a batch, too: then it comes whole. Nothing is skipped but
        gaps."""
        there = defaultdict(set)
        for delivery in self.ledger.deliveries:
            if delivery.group == "at the end":
                there[delivery.queue].add(delivery.offset)
        for queue in self.queues()[-QUEUES:]:
            end = store.max_offset(BATCHED, queue.queue_id)
            for _ in range(20 if end else 0):
                offset = self.rng.randrange(end)
                found = store.get(BATCHED, queue.queue_id, offset, 1)
                entries = taken_apart(found.data)
                self.batches.came("anywhere", queue, entries)
                came = {place for messages in entries for place, _ in messages}
                self.skipped += sorted(
                    place for place in there[queue] - came if offset <= place < found.next_offset
                )


def tell(seed: int, *, flushed_only: bool) -> BatchStory:
    simulation = Simulation(seed)
    story = BatchStory(simulation, flushed_only=flushed_only)
    run_simulation(simulation, lambda _: story.run())
    return story


@pytest.mark.parametrize("flushed_only", [False, True])
def test_what_was_flushed_of_inner_batches_is_there_whole_and_in_order(
    seed: int, flushed_only: bool, figures: Figures
) -> None:
    story = tell(seed, flushed_only=flushed_only)
    ledger, batches = story.ledger, story.batches
    assert (
        ledger.violations(ordered=[] if flushed_only else ["at the end"], groups=["at the end"])
        == []
    )
    assert batches.broken == []
    assert story.skipped == []
    acknowledged = {send.body for send in ledger.acknowledged if send.topic == BATCHED}
    figures.count(
        batches=len(batches.whole),
        messages_in_them=sum(map(len, batches.whole.values())),
        of_them_acknowledged=len(acknowledged),
        queue_files_lost=story.queues_lost,
        lost=0,
        at_one_offset_with_another=0,
        in_pieces=0,
    )


@dataclass
class BatchWorld:
    """A broker through failures, two senders of batches and single messages, and a reader that
    follows each queue."""

    world: OneBroker
    rng: random.Random
    batches: Batches
    sending: bool = True
    read_to: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(QUEUES), 0))

    def now(self) -> float:
        return self.world.simulation.loop.time()

    async def send(self, sender: str) -> None:
        """Only what is answered with SEND_OK counts as acknowledged; whatever else becomes of a
        request is a maybe."""
        while self.sending:
            client = Client(f"{HOST}:10911")
            try:
                while self.sending:
                    await self.send_one(sender, client, self.rng.randrange(QUEUES))
                    await asyncio.sleep(self.rng.uniform(0, 0.5))
            except (RemotingError, OSError):
                await asyncio.sleep(0.2)
            finally:
                await client.close()

    async def send_one(self, sender: str, client: Client, queue_id: int) -> None:
        sends = self.batches.new(sender, self.rng.choice((1, 2, 5, 20)), self.now(), self.rng)
        messages = [
            Message(BATCHED, send.body, properties={"UNIQ_KEY": send.body.hex()}) for send in sends
        ]
        request: SendMessageV2 | SendBatchMessage
        if len(sends) == 1:
            request = SendMessageV2(
                topic=BATCHED,
                queue_id=queue_id,
                properties=encode_properties({"UNIQ_KEY": sends[0].body.hex()}),
            )
            body = sends[0].body
        else:
            text = encode_properties({"UNIQ_KEY": f"B{sends[0].body.hex()}"})
            request, body = (
                SendBatchMessage(topic=BATCHED, queue_id=queue_id, batch=True, properties=text),
                encode_batch(messages),
            )
        try:
            answer = await client.ask(request, body, timeout=3)
            good = answer.code == ResponseCode.SUCCESS
        except (RemotingError, OSError):
            for send in sends:
                send.maybe(self.now())
            raise
        first = answer.header(SendMessageReply).queue_offset if good else -1
        for number, send in enumerate(sends):
            if good:
                send.acknowledged(Queue(BATCHED, "broker-a", queue_id), first + number, self.now())
            else:
                send.maybe(self.now())

    async def read(self) -> None:
        """What consumers see while the broker lives and dies."""
        while True:
            client = Client(f"{HOST}:10911")
            try:
                while True:
                    for queue_id in self.read_to:
                        self.read_to[queue_id] = await self.read_on(
                            client, queue_id, self.read_to[queue_id], "while running"
                        )
                    await asyncio.sleep(0.3)
            except (RemotingError, OSError):
                await asyncio.sleep(0.2)
            finally:
                await client.close()

    async def read_on(self, client: Client, queue_id: int, offset: int, group: str) -> int:
        """One pull; where to go on."""
        answer, reply = await client.pull(offset, topic=BATCHED, queue_id=queue_id)
        self.batches.came(group, Queue(BATCHED, "broker-a", queue_id), taken_apart(answer.body))
        return reply.next_begin_offset

    async def fail(self, deed: int) -> None:
        if deed == 0:
            await self.world.stop()
        else:
            self.world.kill(power_cut=deed > 1)
        await asyncio.sleep(self.rng.uniform(0.05, 2))
        await self.world.up()


@in_loop(
    with_one_broker,
    flush_disk_type="SYNC_FLUSH",
    mapped_file_size_commit_log=64 << 10,
    mapper_file_size_batch_consume_queue=BATCH_UNIT_SIZE * 20,
    max_message_size=8192,
)
async def test_brokers_that_lose_their_power_keep_every_inner_batch_they_acknowledged(
    world: OneBroker, /, seed: int, figures: Figures
) -> None:
    await world.client.create(BATCHED, queues=QUEUES, attributes="+queue.type=BatchCQ")
    source = world.simulation.source("batches")
    story = BatchWorld(world, source, Batches(Ledger()))
    reader = asyncio.ensure_future(story.read())
    senders = [asyncio.ensure_future(story.send(name)) for name in ("one", "other")]
    for number in range(FAILURES):
        await asyncio.sleep(source.uniform(1, 6))
        await story.fail(number % 4)
    await asyncio.sleep(3)
    story.sending = False
    await asyncio.gather(*senders)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    for queue_id in range(QUEUES):
        offset, following = -1, 0
        while following > offset:
            offset, following = (
                following,
                await story.read_on(world.client, queue_id, following, "at the end"),
            )
    ledger, batches = story.batches.ledger, story.batches
    assert ledger.violations(ordered=["at the end"]) == []
    assert batches.broken == []
    assert any(len(bodies) > 1 for bodies in batches.whole.values())
    figures.count(
        batches=len(batches.whole),
        acknowledged_messages=len(ledger.acknowledged),
        failures=FAILURES,
    )
    figures.count(lost=0, out_of_order=0, at_one_offset_with_another=0, in_pieces=0)
