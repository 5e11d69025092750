"""Ordered POP by `SimpleConsumer(ordered=True)`, through kills, power cuts, lost connections and
members that come and go: no member handles a message before the one ahead of it succeeded. While
the broker dies no worse than by a clean stop, one member handles a queue at a time, too.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.simulation.ordered_group import (
    BROKER,
    FAILURES,
    GROUP,
    NAMESRV,
    QUEUES,
    TOPIC,
    World,
    war,
)

from turbopump import SimpleConsumer
from turbopump.client.push_consumer import ConsumeFrom
from turbopump.errors import TurbopumpError

WHOLE_SEEDS = 2
"""So many seeds have all the failures of `make sim`, the others the sample."""
INVISIBLE_S = 20.0
BATCH = 4


class PoppingWorld(World):
    """Members receive a few messages at a time, and handle one after the other. One that fails
    comes again after a second, with those behind it in its queue."""

    async def consumer(self, host: str) -> None:
        rng, process = self.source(host), self.simulation.process(host)
        loop = self.simulation.loop
        async with SimpleConsumer(
            f"{NAMESRV}:9876",
            group=GROUP,
            topic=TOPIC,
            ordered=True,
            consume_from=ConsumeFrom.FIRST,
            clock=self.simulation.clock(host),
            random=rng,
            local_ip=host,
        ) as consumer:
            stop = self.stops[host] = asyncio.Event()
            while not stop.is_set():
                visible_at = loop.time() + INVISIBLE_S
                try:
                    received = await consumer.receive(BATCH, INVISIBLE_S, timeout=5)
                except TurbopumpError:
                    await asyncio.sleep(1)
                    continue
                failed: set[int] = set()
                for message in received:
                    queue, offset = message.queue_id, message.queue_offset
                    in_time = loop.time() + self.longest < visible_at
                    with suppress(TurbopumpError):
                        if (
                            queue not in failed
                            and in_time
                            and await self.handle(queue, offset, rng, process)
                        ):
                            await consumer.ack(message)
                        else:
                            failed.add(queue)
                            await consumer.change_invisible_time(message, 1)


class GentlerWorld(PoppingWorld):
    """The broker's process is broken by nothing."""

    def fail_once(self, deed: float, host: str) -> None:
        if deed < 0.15:
            self.stop(BROKER)
        elif deed < 0.35:
            self.simulation.end(host, power_cut=False)
        elif deed < 0.5:
            self.stop(host)
        elif deed < 0.65:
            self.simulation.network.reset(BROKER, host)
        else:
            self.cut_off(host)


def test_through_every_failure_no_handler_begins_before_the_message_ahead_succeeded(
    seed: int,
) -> None:
    world = war(PoppingWorld, seed, FAILURES if seed <= WHOLE_SEEDS else 8)
    assert [wrong for wrong in world.watch.wrong if "succeeded" in wrong] == []
    assert world.missing == 0
    assert world.handled > 100
    assert len(world.watch.succeeded) == QUEUES


def test_while_the_broker_forgets_nothing_a_queue_has_one_handler_at_a_time(seed: int) -> None:
    world = war(GentlerWorld, seed, FAILURES if seed <= WHOLE_SEEDS else 8)
    assert world.watch.wrong == []
    assert world.missing == 0
    assert world.handled > 100
