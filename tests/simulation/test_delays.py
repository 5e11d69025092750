"""Delayed messages over a day with memory drops, and the ladder of retries to the dead letters, in
virtual time.

A sample in `make test`, the whole in `make sim`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from dataclasses import dataclass, field
from functools import partial

from tests.loops import in_loop, simulated
from tests.simulation.figures import Figures
from tests.simulation.one_broker import EIGHTEEN_LEVELS, HOST, OneBroker, with_one_broker
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import Client

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.producer import Producer
from turbopump.client.push_consumer import PushConsumer
from turbopump.config.delay_levels import DEFAULT_LEVELS, parse_delay_levels
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.errors import RemotingError
from turbopump.message.codec import decode_entries
from turbopump.message.properties import encode_properties
from turbopump.namesrv.server import NameServer
from turbopump.protocol.requests.send import SendMessageV2

WHOLE = "TURBOPUMP_SIM_MINUTES" in os.environ
COUNT = 200_000 if WHOLE else 800
DROPS = 20 if WHOLE else 3
DAY_S = 86_400.0 if WHOLE else 5_400.0
TABLE = EIGHTEEN_LEVELS if WHOLE else "1s 10s 1m 10m 1h"
CALM = {
    "scrub_bytes_per_second": 0,
    "flush_interval_commit_log": 10_000,
    "flush_interval_consume_queue": 10_000,
}
"""What would otherwise take most of the test's seconds."""
SETTLED_S = 5.0
"""So long after a start of the broker its lateness is not judged."""
APACHE_LADDER_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
LADDER_S = APACHE_LADDER_S if WHOLE else tuple(step // 10 for step in APACHE_LADDER_S)
"""The delays of levels 3 to 18. The sample has a tenth of them: the whole lasts 7 hours."""


@dataclass
class Day:
    """What happens in one day: ``sent`` is number → (begun, answered or None, level), times in s of
    the broker's clock."""

    world: OneBroker
    sent: dict[int, tuple[float, float | None, int]] = field(default_factory=dict)
    down: list[tuple[float, float]] = field(default_factory=list)

    def now(self) -> float:
        return self.world.simulation.clock(HOST).now_ms() / 1000

    async def send(self) -> None:
        """Bursts all day long; every message's level is drawn so that it is due within the day."""
        rng, end = self.world.simulation.source("sender"), self.now() + DAY_S
        delays = [delay / 1000 for delay in parse_delay_levels(TABLE)]
        burst = max(COUNT // 400, 1)
        for first in range(0, COUNT, burst):
            levels = [level for level, delay in enumerate(delays, 1) if self.now() + delay < end]
            numbers = range(first, min(first + burst, COUNT))
            await asyncio.gather(*(self._send_one(n, rng.choice(levels)) for n in numbers))
            await asyncio.sleep(DAY_S * 0.95 * burst / COUNT * rng.uniform(0.5, 1.5))

    async def _send_one(self, number: int, level: int) -> None:
        begun = self.now()
        self.sent[number] = (begun, None, level)
        text = encode_properties({"UNIQ_KEY": f"U{number}", "DELAY": str(level)})
        request = SendMessageV2(topic="T", queue_id=0, properties=text)
        try:
            answer = await self.world.client.ask(request, b"%d" % number)
        except RemotingError:
            return
        if answer.code == 0:
            self.sent[number] = (begun, self.now(), level)

    async def drop(self) -> None:
        """The broker's memory is dropped now and then, by a kill, a power cut or a clean stop."""
        rng = self.world.simulation.source("drops")
        for number in range(DROPS):
            await asyncio.sleep(DAY_S / (DROPS + 1))
            began = self.now()
            if number % 3 == 2:
                await self.world.stop()
            else:
                self.world.kill(power_cut=number % 3 == 1)
            await asyncio.sleep(rng.uniform(0.1, 5))
            await self.world.up()
            self.down.append((began, self.now() + SETTLED_S))


async def delivered(client: Client) -> list[tuple[int, float]]:
    """(number, time of delivery) of every message of the topic."""
    found: list[tuple[int, float]] = []
    offset = 0
    while True:
        answer, header = await client.pull(offset)
        found += [
            (int(message.body), message.store_timestamp / 1000)
            for message in decode_entries(answer.body)
        ]
        if header.next_begin_offset <= offset:
            return found
        offset = header.next_begin_offset


@in_loop(
    with_one_broker,
    message_delay_level=TABLE,
    flush_disk_type="SYNC_FLUSH",
    mapped_file_size_commit_log=256 << 10,
    mapped_file_size_consume_queue=20 * 2_000,
    message_index_enable=False,
    file_reserved_time=100,
    **CALM,
)
async def test_a_day_of_delayed_messages_with_memory_drops_loses_none_and_is_never_early(
    world: OneBroker, /, figures: Figures
) -> None:
    day = Day(world)
    end = day.now() + DAY_S
    await asyncio.gather(day.send(), day.drop())
    await asyncio.sleep(max(end - day.now(), 0) + 60)
    delays = [delay / 1000 for delay in parse_delay_levels(TABLE)]
    first: dict[int, float] = {}
    arrivals = await delivered(world.client)
    for number, at in arrivals:
        first.setdefault(number, at)
    acknowledged = {
        number: answered for number, (_, answered, _) in day.sent.items() if answered is not None
    }
    assert len(acknowledged) > COUNT * 0.99
    assert set(acknowledged) - set(first) == set(), "lost"
    early = [
        number
        for number, at in arrivals
        if at < day.sent[number][0] + delays[day.sent[number][2] - 1] - 0.001
    ]
    assert early == []
    late = []
    for number, answered in acknowledged.items():
        due = answered + delays[day.sent[number][2] - 1]
        if not any(began - 0.001 <= due <= back for began, back in day.down):
            late.append(first[number] - due)
    late.sort()
    assert late[int(len(late) * 0.99)] <= 1.0
    levels = len({level for _, _, level in day.sent.values()})
    figures.count(
        messages=len(acknowledged), delay_levels=levels, lost=0, early=0, memory_drops=DROPS
    )
    figures.count(came_twice=len(arrivals) - len(first))
    figures.sample(late_ms=[round(each * 1000, 1) for each in late])


def test_unless_told_otherwise_a_broker_has_apache_s_ladder() -> None:
    assert parse_delay_levels(DEFAULT_LEVELS) == tuple(
        1000 * seconds for seconds in (1, 5, *APACHE_LADDER_S)
    )


async def name_server(simulation: Simulation) -> None:
    await NameServer(
        NamesrvConfig(bind_address="10.0.0.9"), clock=simulation.clock("10.0.0.9")
    ).start()
    await asyncio.get_running_loop().create_future()


async def handle(
    seen: list[tuple[float, Delivery]], simulation: Simulation, message: Delivery
) -> None:
    seen.append((simulation.loop.time(), message))
    raise ValueError("not today")


async def main(seen: list[tuple[float, Delivery]], simulation: Simulation) -> None:
    levels = " ".join(f"{seconds}s" for seconds in (1, 5, *LADDER_S))
    settings = {"namesrv_addr": "10.0.0.9:9876", "message_delay_level": levels, **CALM}
    world = OneBroker(simulation, settings)
    await world.up()
    await world.client.create()
    clock = simulation.clock("10.0.0.2")
    client = {"clock": clock, "random": simulation.source("client"), "local_ip": "10.0.0.2"}
    async with (
        PushConsumer(
            "10.0.0.9:9876",
            group="g",
            topic="T",
            handler=partial(handle, seen, simulation),
            **client,
        ),  # type: ignore[arg-type]
        Producer("10.0.0.9:9876", group="p", **client) as producer,  # type: ignore[arg-type]
    ):
        sent = await producer.send("T", b"body", tags="paid", keys=["k"])
        await asyncio.sleep(sum(LADDER_S) + 60)
    (dead,) = await world.client.messages(topic="%DLQ%g")
    assert (dead.body, dead.msg_id, dead.tags, dead.keys) == (b"body", sent.msg_id, "paid", ["k"])
    assert (dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (17, "T")
    assert {message.msg_id for _, message in seen} == {sent.msg_id}
    await world.client.close()
    await world.stop()


@in_loop(simulated)
async def test_the_ladder_of_retries_has_sixteen_steps_and_ends_as_one_dead_letter(
    simulation: Simulation, /, figures: Figures
) -> None:
    seen: list[tuple[float, Delivery]] = []

    simulation.boot("10.0.0.9").start(name_server(simulation)).add_done_callback(
        lambda done: done.exception()
    )
    await simulation.boot("10.0.0.2").start(main(seen, simulation))
    simulation.end("10.0.0.9", power_cut=False)
    assert [message.attempt for _, message in seen] == list(range(1, 18))
    assert {(message.topic, message.body) for _, message in seen} == {("T", b"body")}
    steps = [later - at for (at, _), (later, _) in itertools.pairwise(seen)]
    assert len(steps) == len(LADDER_S)
    for step, wanted in zip(steps, LADDER_S, strict=True):
        assert abs(step - wanted) <= 1
        figures.most(seconds_off=round(abs(step - wanted), 3))
    figures.count(steps=len(steps), dead_letters=1)
