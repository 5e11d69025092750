"""POP through kills, power cuts, clean stops, lost acknowledgements and consumers that die with
messages in their hands, in virtual time: nothing is lost, and each message that was not
acknowledged is at a consumer again within two seconds of its time.

A sample in `make test`, the whole in `make sim`.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from tests.loops import in_loop, on_a_client_s_host
from tests.simulation.figures import Figures
from tests.simulation.handed_out import HandOut, Place, handed_out, place_of
from tests.simulation.one_broker import HOST, OneBroker, one_broker
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.popping import Popped, Popper
from tests.unit.broker.talking import Client

from turbopump.errors import RemotingError
from turbopump.message.properties import encode_properties
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import SendMessageV2

WHOLE = "TURBOPUMP_SIM_MINUTES" in os.environ
FAILURES = int(os.environ.get("TURBOPUMP_SIM_POP", "100" if WHOLE else "6"))
"""In each of the first three seeds; in the others, which `make sim` adds, twelve."""
CONSUMERS, QUEUES = 3, 4
INVISIBLE_MAX_MS = 15_000
LATE_MS = 2000
"""So long after the end of its invisible time a message is back at the latest. A broker that is
down then has so long from its return."""
ON_THE_WIRE_MS = 20
"""A broker may answer for so long a client that has gone."""


@dataclass
class Receipt:
    """A message in a consumer's hands. ``known``: it is certain that the broker counts it as not
    acknowledged."""

    got_ms: int
    known: bool = True


@dataclass
class PopWorld:
    """What was sent, popped and acknowledged, by body: ``done`` are those that a consumer
    acknowledged, ``in_time`` those where the broker said so while they were its. ``down`` is when
    the broker was, ``unanswered`` when pops and changes of a time were under way of which nobody
    got the answer (ms)."""

    world: OneBroker
    rng: random.Random
    sent: set[bytes] = field(default_factory=set)
    done: set[bytes] = field(default_factory=set)
    in_time: set[bytes] = field(default_factory=set)
    receipts: dict[Place, Receipt] = field(default_factory=dict)
    came: Counter[bytes] = field(default_factory=Counter)
    down: list[tuple[int, int]] = field(default_factory=list)
    clients: dict[Client, None] = field(default_factory=dict)
    unanswered: list[tuple[int, int]] = field(default_factory=list)
    producing: bool = True
    calm: bool = False
    after_done: int = 0
    deaths: int = 0

    def now(self) -> int:
        return self.world.simulation.clock(HOST).now_ms()

    def client(self) -> Client:
        client = Client(f"{HOST}:10911")
        self.clients[client] = None
        return client

    async def produce(self) -> None:
        number = 0
        while self.producing:
            client = self.client()
            try:
                while self.producing:
                    number += 1
                    body = b"%d" % number
                    text = encode_properties({"UNIQ_KEY": f"U{number}"})
                    request = SendMessageV2(topic="T", queue_id=number % QUEUES, properties=text)
                    if (await client.ask(request, body, timeout=3)).code == ResponseCode.SUCCESS:
                        self.sent.add(body)
                    await asyncio.sleep(self.rng.uniform(0, 0.4))
            except (RemotingError, OSError):
                await self.part(client)

    async def consume(self) -> None:
        """Pop, handle, acknowledge; now and then not; after a death the next life."""
        while True:
            client = self.client()
            popper = Popper(client, self.now)
            try:
                while await self.handle(popper):
                    pass
                self.deaths += 1
            except (RemotingError, OSError):
                pass
            await self.part(client)

    async def handle(self, popper: Popper) -> bool:
        """One pop and what becomes of it. False: the consumer dies."""
        invisible = self.rng.randrange(1000, INVISIBLE_MAX_MS)
        with self.answered():
            found = await popper.pop(invisible_ms=invisible, poll_ms=5000)
        mine = []
        for one in found:
            receipt = self.receipts[place_of(one)] = Receipt(self.now())
            self.came[one.body] += 1
            self.after_done += one.body in self.in_time
            mine.append((one, receipt))
        if not self.calm and self.rng.random() < 0.03:
            return False
        await asyncio.sleep(self.rng.uniform(0, 0.3))
        for one, receipt in mine:
            draw = 1.0 if self.calm else self.rng.random()
            if draw < 0.1:
                continue  # the acknowledgement is lost on its way
            if draw < 0.2:
                await self.change(popper, one, receipt)
            else:
                await self.acknowledge(popper, one, receipt)
        return True

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Round a request with which the broker may hand out a message: note it if the answer does
        not come."""
        begun = self.now()
        try:
            yield
        except (RemotingError, OSError):
            self.unanswered.append((begun, self.now()))
            raise

    async def acknowledge(self, popper: Popper, one: Popped, receipt: Receipt) -> None:
        receipt.known = False
        self.done.add(one.body)  # the broker may count it as done without our hearing of it
        assert await popper.ack(one) == ResponseCode.SUCCESS
        if self.now() < one.handle.visible_at_ms:
            self.in_time.add(one.body)  # else it may be on its way to somebody already

    async def change(self, popper: Popper, one: Popped, receipt: Receipt) -> None:
        receipt.known = False
        with self.answered():
            answer = await popper.change(one, self.rng.randrange(1000, 10_000))
        if answer.code == ResponseCode.SUCCESS:
            self.receipts[place_of(one)] = Receipt(self.now())
        else:
            assert answer.code == ResponseCode.NO_MESSAGE
            receipt.known = True

    async def part(self, client: Client) -> None:
        self.clients.pop(client, None)
        await client.close()
        await asyncio.sleep(0.1)

    async def fail(self, number: int) -> None:
        """One failure."""
        deed = number % 5
        if deed == 4:
            for client in list(self.clients):
                if self.rng.random() < 0.5:
                    await client.close()
            return
        began = self.now()
        if deed == 3:
            await self.world.stop()
        else:
            self.world.kill(power_cut=deed == 1)
        await asyncio.sleep(self.rng.uniform(0.05, 4))
        for client in list(self.clients):
            await client.close()
        await self.world.up()
        self.down.append((began, self.now()))

    # --- judging
    # ----------------------------------------------------------------------------------------------

    def limit(self, visible_ms: int) -> int:
        """When a message with this end of its invisible time must be back at the latest (ms)."""
        for began, back in self.down:
            if began <= visible_ms + LATE_MS and visible_ms < back:
                visible_ms = back
        return visible_ms + LATE_MS

    def returns(self, handed: dict[Place, HandOut]) -> Iterator[Return]:
        """When each message came back that was handed out and certainly not acknowledged. What was
        handed out with an answer that nobody got is one of them; its time runs from then on."""
        copies = defaultdict(list)
        for place, one in handed.items():
            receipt = self.receipts.get(place)
            copies[one.body].append(
                (one, receipt.got_ms if receipt is not None else place.pop_time_ms)
            )
        for place, one in handed.items():
            receipt = self.receipts.get(place)
            if receipt is None or receipt.known:
                back = min(
                    (when for other, when in copies[one.body] if one.returns_as(other)),
                    default=None,
                )
                yield Return(place, one, receipt is not None, back)

    def explains(self, place: Place) -> bool:
        """Whether there was a request whose answer, with this message in it, was lost."""
        return any(
            begun <= place.pop_time_ms <= ended + ON_THE_WIRE_MS for begun, ended in self.unanswered
        )


class Return(NamedTuple):
    """``answered``: a consumer got the message; ``back_ms`` is when one got it the next time, or
    when it was on its way with an answer that nobody got."""

    place: Place
    handed: HandOut
    answered: bool
    back_ms: int | None


@in_loop(on_a_client_s_host)
async def test_nothing_is_lost_and_what_is_not_acknowledged_is_back_in_time(
    simulation: Simulation, /, seed: int, figures: Figures
) -> None:
    if seed > (20 if WHOLE else 3):
        pytest.skip("so many such runs are enough")
    failures = FAILURES if seed <= 3 else 12

    async with one_broker(
        simulation,
        flush_disk_type="SYNC_FLUSH",
        scrub_bytes_per_second=0,
        message_index_enable=False,
    ) as world:
        await world.client.create(queues=QUEUES)
        pop = PopWorld(world, world.simulation.source("pops"))
        tasks = [asyncio.ensure_future(pop.consume()) for _ in range(CONSUMERS)]
        producer = asyncio.ensure_future(pop.produce())
        for number in range(failures):
            await asyncio.sleep(pop.rng.uniform(2, 12))
            for task in (*tasks, producer):
                if task.done():
                    task.result()
            await pop.fail(number)
        await asyncio.sleep(5)
        pop.producing, pop.calm = False, True
        await producer
        await asyncio.sleep(60)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in list(pop.clients):
            await client.close()
        assert pop.sent - pop.done == set(), "lost"
        handed = await handed_out(world.client, QUEUES)
        assert pop.receipts.keys() <= handed.keys(), "answered, and not written down"
        returns = list(pop.returns(handed))
        assert [
            one
            for one in returns
            if one.back_ms is None or one.back_ms > pop.limit(one.handed.visible_ms)
        ] == [], "late"
        unanswered = [one.place for one in returns if not one.answered]
        assert [place for place in unanswered if not pop.explains(place)] == [], (
            "handed out to nobody"
        )
        times = [(one.handed.visible_ms, one.back_ms) for one in returns if one.back_ms is not None]
        back = sorted(
            back - visible for visible, back in times if pop.limit(visible) == visible + LATE_MS
        )
        assert len(back) > len(pop.sent) // 20
        figures.count(
            failures=failures,
            consumers_died=pop.deaths,
            messages=len(pop.sent),
            lost=0,
            unacknowledged_came_back=len(returns),
        )
        figures.count(of_them_handed_out_to_nobody=len(unanswered), later_than_two_seconds=0)
        figures.count(
            deliveries_more_than_messages=pop.came.total() - len(pop.came),
            of_them_after_an_acknowledgement=pop.after_done,
        )
        figures.sample(back_after_its_time_ms=[float(each) for each in back])
