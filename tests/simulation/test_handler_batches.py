"""Handlers that take several messages at once, through kills, power cuts, lost connections and
members that come and go: nothing is lost. In order, no message is begun before the one ahead of it
succeeded: what is in a list before one that failed is done, and what is behind it comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

import pytest
from tests.simulation.figures import Figures
from tests.simulation.ordered_group import FAILURES, QUEUES, TOPIC, WHOLE, World, war
from tests.simulation.world.process import SimulatedProcess
from tests.simulation.world.simulation import Simulation

from turbopump.client.consumer.delivery import Delivery, Retry

BATCH = 4
WHOLE_SEEDS = 2
"""So many seeds have all the failures of `make sim`, the others the sample."""


class Lists(World):
    """Members go through their lists, and say by the message or by the call what failed. A list
    must not take longer than a lock lives."""

    consumer_settings: ClassVar[dict[str, Any]] = {"handler_batch": BATCH}

    def __init__(self, simulation: Simulation, *, failing: float) -> None:
        super().__init__(simulation, failing=failing)
        self.sizes: set[int] = set()

    def handler(self, rng: Random, process: SimulatedProcess) -> Callable[[Any], object]:
        async def handle(messages: list[Delivery]) -> Retry | None:
            self.sizes.add(len(messages))
            for message in messages:
                if not await self.handle(message.queue_id, message.queue_offset, rng, process):
                    if rng.random() < 0.5:
                        message.retry()
                        return None
                    if rng.random() < 0.5:
                        return Retry()  # those before it too
                    raise ZeroDivisionError
            return None

        return handle


class UnorderedLists(Lists):
    """What failed comes again from the broker, elsewhere, or stays with its consumer for a
    while."""

    consumer_settings: ClassVar[dict[str, Any]] = {"handler_batch": BATCH, "ordered": False}

    def __init__(self, simulation: Simulation, *, failing: float) -> None:
        super().__init__(simulation, failing=failing)
        self.places: dict[str, tuple[int, int]] = {}
        self.retried = 0

    def handler(self, rng: Random, process: SimulatedProcess) -> Callable[[Any], object]:
        async def handle(messages: list[Delivery]) -> Retry | None:
            self.sizes.add(len(messages))
            assert len({(message.topic, message.queue_id) for message in messages}) == 1
            for message in messages:
                self.places.setdefault(message.msg_id, (message.queue_id, message.queue_offset))
            await asyncio.sleep(rng.choice((0.0, 0.1, rng.uniform(0, self.longest))))
            for message in messages:
                if rng.random() < self.failing:
                    self.retried += 1
                    message.retry(delay=rng.choice((1, 5, None)))
            if rng.random() < self.failing:
                raise ZeroDivisionError
            for message in messages:
                if not message.settled:
                    queue, offset = self.places[message.msg_id]
                    assert message.topic == TOPIC
                    self.watch.succeeded[queue].add(offset)
            return None

        return handle


def failures_of(seed: int) -> int:
    if WHOLE and seed > 20:
        pytest.skip("so many such runs are enough")
    return FAILURES if seed <= WHOLE_SEEDS else 8


def test_through_every_failure_no_message_of_a_list_is_begun_before_the_one_ahead_succeeded(
    seed: int, figures: Figures
) -> None:
    failures = failures_of(seed)
    world = war(Lists, seed, failures)
    assert world.watch.wrong == []
    assert world.missing == 0
    assert world.handled > 100
    assert len(world.watch.succeeded) == QUEUES
    assert max(world.sizes) > 1 or seed > WHOLE_SEEDS, "a short war may leave no queue behind"
    figures.count(
        failures=failures, messages=world.handled, lost=0, begun_before_the_one_ahead_succeeded=0
    )


def test_without_order_nothing_is_lost(seed: int, figures: Figures) -> None:
    failures = failures_of(seed)
    world = war(UnorderedLists, seed, failures)
    assert world.missing == 0
    assert world.handled > 100
    assert world.retried > 10
    assert max(world.sizes) > 1 or seed > WHOLE_SEEDS, "a short war may leave no queue behind"
    figures.count(failures=failures, messages=world.handled, lost=0)
