"""Messages for any time and at delay levels over a day with memory drops, and recalls against
deliveries, in virtual time.

A sample in `make test`, the whole in `make sim`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from tests.loops import in_loop, on_a_client_s_host
from tests.simulation.figures import Figures
from tests.simulation.kept_timers import arrivals
from tests.simulation.one_broker import EIGHTEEN_LEVELS, HOST, OneBroker, one_broker
from tests.simulation.world.process import ProcessKilled
from tests.simulation.world.simulation import Simulation

from turbopump.broker.interceptors import Destination
from turbopump.config.delay_levels import parse_delay_levels
from turbopump.errors import NotStartedError, RemotingError
from turbopump.message.properties import encode_properties
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import (
    RecallMessage,
    SendMessage,
    SendMessageReply,
    SendMessageV2,
)

WHOLE = "TURBOPUMP_SIM_MINUTES" in os.environ
COUNT = int(os.environ.get("TURBOPUMP_SIM_TIMERS", "1080000" if WHOLE else "2000"))
"""Of these a million waits at once: the shortest levels are over before the last is sent."""
DROPS = 20 if WHOLE else 3
DAY_S = 86_400.0 if WHOLE else 7_200.0
RACES = 10_000 if WHOLE else 200
TABLE = EIGHTEEN_LEVELS if WHOLE else "1s 5s 30s 1m 5m 10m 30m 1h"
AT_LEVELS = 0.25
"""So many of the messages have a delay level, the others a time of their own."""
CALM = {
    "scrub_bytes_per_second": 0,
    "flush_interval_commit_log": 10_000,
    "flush_interval_consume_queue": 20_000,
    "timer_flush_interval_ms": 60_000,
    "message_index_enable": False,
}
"""What would otherwise take most of the test's seconds: every sync of this disk compares whole
files."""
SETTLED_S = 30.0
"""So long after a start of the broker its lateness is not judged: it catches up."""
FIRST_S = 600.0
"""In this time most of them are sent; the rest of the day they wait."""


@dataclass
class Day:
    """``due`` is number → time of delivery in ms, of those that are on the disk; ``at_levels`` are
    those with a delay level, ``pending`` is how many waited at once; ``down`` are times (ms) that
    do not count."""

    world: OneBroker
    rng: random.Random
    due: dict[int, int] = field(default_factory=dict)
    at_levels: set[int] = field(default_factory=set)
    pending: int = 0
    down: list[tuple[int, int]] = field(default_factory=list)
    sent: int = 0

    def now(self) -> int:
        return self.world.simulation.clock(HOST).now_ms()

    async def send(self, count: int, end: int) -> None:
        """Messages for any time until ``end``, stored as the broker stores what it is sent; counted
        once they are on the disk."""
        broker, burst, delays = self.world.broker, 500, parse_delay_levels(TABLE)
        for first in range(0, count, burst):
            numbers = range(self.sent, self.sent + min(burst, count - first))
            self.sent += len(numbers)
            due, log_end = {}, 0
            levels = [level for level, delay in enumerate(delays, 1) if self.now() + delay < end]
            for number in numbers:
                if levels and self.rng.random() < AT_LEVELS:
                    level = self.rng.choice(levels)
                    self.at_levels.add(number)
                    due[number], asked = self.now() + delays[level - 1], {"DELAY": str(level)}
                else:
                    due[number] = self.rng.randrange(self.now() + 1, end)
                    asked = {"TIMER_DELIVER_MS": str(due[number])}
                text = encode_properties({"UNIQ_KEY": f"U{number}", **asked})
                destination = broker.parts.delivering.interceptors.find(
                    SendMessage(topic="T", queue_id=0), Destination("T", 0, text, 0)
                )
                assert isinstance(destination, Destination)
                placed = await broker.parts.delivering.forwarding.append(
                    destination.topic, destination.queue_id, b"%d" % number, destination.properties
                )
                log_end = placed.log_end
            flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            broker.store.durable.when(log_end, lambda flushed=flushed: flushed.set_result(None))  # type: ignore[misc]
            broker.store.flusher.flush_log()
            await flushed
            self.due.update(due)
            if self.sent == COUNT:
                self.pending = sum(at > self.now() for at in self.due.values())
            await asyncio.sleep(FIRST_S * burst / COUNT)

    async def drop(self, number: int) -> None:
        """The broker's memory is dropped, by a kill, a power cut or a clean stop."""
        began = self.now()
        if number % 3 == 2:
            await self.world.stop()
        else:
            self.world.kill(power_cut=number % 3 == 1)
        await asyncio.sleep(self.rng.uniform(0.1, 5))
        await self.world.up()
        # what was delivered after the last flush is lost with the power, and delivered again
        self.down.append((began - 12_000, self.now() + int(SETTLED_S * 1000)))


@in_loop(on_a_client_s_host)
async def test_a_day_of_timers_and_delays_with_memory_drops_loses_none_and_is_never_early(
    simulation: Simulation, /, seed: int, figures: Figures
) -> None:
    if seed > 1 and "TURBOPUMP_SIM_TIMERS" not in os.environ:
        pytest.skip("one such day is enough")

    async with one_broker(
        simulation,
        mapped_file_size_commit_log=8 << 20,
        mapped_file_size_consume_queue=20 * 20_000,
        mapped_file_size_timer_log=4 << 20,
        file_reserved_time=1000,
        message_delay_level=TABLE,
        **CALM,
    ) as world:
        world.simulation.disk(HOST).capacity = 16 << 30
        day = Day(world, world.simulation.source("day"))
        end = day.now() + int(DAY_S * 1000)
        await world.simulation.process(HOST).start(day.send(COUNT, end))
        for number in range(DROPS):
            await asyncio.sleep(
                max((end - day.now()) / 1000 / (DROPS + 1 - number) * day.rng.uniform(0.8, 1.0), 1)
            )
            if number % 2 == 0:  # some are on their way at that moment
                sending = world.simulation.process(HOST).start(day.send(COUNT // 100, end))
                await asyncio.sleep(day.rng.uniform(0, 5))
                await day.drop(number)
                with contextlib.suppress(ProcessKilled, NotStartedError):
                    await sending
            else:
                await day.drop(number)
        await asyncio.sleep(max(end - day.now(), 0) / 1000 + 30)
        came = await world.simulation.process(HOST).start(arrivals(world))
        first: dict[int, int] = {}
        for number, at in came:
            first.setdefault(number, at)
        assert len(day.due) >= COUNT
        assert set(day.due) - set(first) == set(), "lost"
        assert [
            number for number, at in came if number in day.due and at < day.due[number]
        ] == [], "early"
        late: dict[bool, list[float]] = {False: [], True: []}
        for number, due in day.due.items():
            if not any(began <= due <= back for began, back in day.down):
                late[number in day.at_levels].append(first[number] - due)
        for some in late.values():
            some.sort()
            assert some[int(len(some) * 0.99)] <= 1000
            assert some[-1] <= 2000
        twice = len(came) - len(first)
        assert twice <= COUNT * DROPS * 2 * 60 / DAY_S + 100, "more than a minute's"
        at_levels = len(day.at_levels & day.due.keys())
        figures.count(
            timer_messages=len(day.due) - at_levels,
            at_delay_levels=at_levels,
            pending_at_once=day.pending,
            lost=0,
            early=0,
        )
        figures.count(memory_drops=DROPS, came_twice=twice)
        figures.sample(timers_late_ms=late[False], levels_late_ms=late[True])


@dataclass
class Races:
    """What came of each message: ``won`` is number → whether its recall was accepted, None if no
    answer came."""

    world: OneBroker
    rng: random.Random
    won: dict[int, bool | None] = field(default_factory=dict)
    kills: int = 0

    @property
    def decided(self) -> int:
        """How many were told who won."""
        return sum(won is not None for won in self.won.values())

    async def race(self, number: int) -> None:
        """Send a message for a time soon, and recall it about when it is delivered."""
        world = self.world
        deliver = world.simulation.clock(HOST).now_ms() + self.rng.randrange(1500, 5000)
        text = encode_properties({"UNIQ_KEY": f"U{number}", "TIMER_DELIVER_MS": str(deliver)})
        try:
            answer = await world.client.ask(
                SendMessageV2(topic="T", queue_id=0, properties=text), b"%d" % number
            )
        except RemotingError:
            return
        handle = answer.header(SendMessageReply).recall_handle
        assert handle is not None
        at = (
            deliver
            - deliver % 1000
            + self.rng.choice((self.rng.gauss(1000, 30), self.rng.uniform(-1500, 2500)))
        )
        await asyncio.sleep(max(at - world.simulation.clock(HOST).now_ms(), 0) / 1000)
        try:
            answer = await world.client.ask(RecallMessage(topic="T", recall_handle=handle))
        except RemotingError:
            self.won[number] = None
            return
        if answer.code != ResponseCode.SUCCESS:
            assert answer.code == ResponseCode.ILLEGAL_OPERATION, answer
            assert "timestamp invalid" in (answer.remark or "")
        self.won[number] = answer.code == ResponseCode.SUCCESS

    async def round(self, numbers: range) -> None:
        """Many at once; now and then the broker is killed on the way."""
        kill = self.rng.random() < 0.2
        races = asyncio.gather(*(self.race(number) for number in numbers))
        if kill:
            await asyncio.sleep(self.rng.uniform(0.5, 7))
            self.world.kill(power_cut=self.rng.random() < 0.5)
            self.kills += 1
            await asyncio.sleep(self.rng.uniform(0, 2))
            with contextlib.suppress(Exception):
                await races
            await self.world.up()
        await races


@in_loop(on_a_client_s_host)
async def test_of_a_recall_and_a_delivery_exactly_one_wins(
    simulation: Simulation, /, seed: int, figures: Figures
) -> None:
    if seed > 1 and WHOLE:
        pytest.skip("so many races are enough")

    async with one_broker(
        simulation,
        flush_disk_type="SYNC_FLUSH",
        scrub_bytes_per_second=0,
        mapped_file_size_commit_log=256 << 10,
    ) as world:
        races = Races(world, world.simulation.source("races"))
        begun = 0
        while races.decided < RACES:
            await races.round(range(begun, begun + 50))
            begun += 50
        await asyncio.sleep(10)
        came = Counter(
            number for number, _ in await world.simulation.process(HOST).start(arrivals(world))
        )
        both = [number for number, won in races.won.items() if won and came[number]]
        none = [number for number, won in races.won.items() if won is False and not came[number]]
        assert (both, none) == ([], [])
        accepted = sum(won is True for won in races.won.values())
        refused = sum(won is False for won in races.won.values())
        assert min(accepted, refused) > RACES // 10
        if not races.kills:
            assert max(came.values()) == 1
        figures.count(
            races=races.decided,
            recalls_won=accepted,
            came_too_late=refused,
            won_by_both=0,
            won_by_none=0,
        )
        figures.count(without_an_answer=begun - races.decided, kills=races.kills)
