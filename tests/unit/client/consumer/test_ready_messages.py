"""Messages that wait for a taker: takers that are cancelled, in whatever order that and the next
message come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.ready_messages import MessageStream, NoMoreMessages, ReadyMessages


class Nobody:
    dropped = False

    def delivery_done(self, message: Delivery) -> None: ...

    def delivery_failed(self, message: Delivery, delay: float | None, level: int) -> None: ...

    def delivery_abandoned(self, message: Delivery) -> None: ...


def delivery(offset: int) -> Delivery:
    message = Delivery.__new__(Delivery)
    message.queue_offset = offset
    message.deliver(Nobody(), 1)
    return message


async def read(ready: ReadyMessages) -> list[int]:
    return [message.queue_offset async for message in MessageStream(ready)]


HAPPENINGS: dict[str, Callable[[ReadyMessages], None]] = {
    "a message comes": lambda ready: ready.add_messages([delivery(0)]),
    "a message is given back": lambda ready: ready.give_back(delivery(0)),
    "it goes on after a pause": lambda ready: (
        ready.pause(),
        ready.add_messages([delivery(0)]),
        ready.resume(),
    )[-1],  # type: ignore[func-returns-value]
}


@pytest.mark.parametrize("happening", HAPPENINGS)
@pytest.mark.parametrize("cancelled", ["before", "after"])
@in_loop(simulated)
async def test_a_reader_that_is_cancelled_in_the_turn_of_a_message_leaves_it_to_the_next(
    simulation: Simulation, /, happening: str, cancelled: str
) -> None:
    ready = ReadyMessages()
    leaves, stays = asyncio.create_task(read(ready)), asyncio.create_task(ready.take_next())
    await asyncio.sleep(0.1)
    if cancelled == "before":
        leaves.cancel()
    HAPPENINGS[happening](ready)
    if cancelled == "after":
        leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    assert (await stays).queue_offset == 0


@pytest.mark.parametrize("cancelled", ["before", "after"])
@in_loop(simulated)
async def test_a_reader_that_is_cancelled_in_the_turn_in_which_the_consumer_closes_is_cancelled(
    simulation: Simulation, /, cancelled: str
) -> None:
    ready = ReadyMessages()
    leaves, stays = asyncio.create_task(read(ready)), asyncio.create_task(ready.take_next())
    await asyncio.sleep(0.1)
    if cancelled == "before":
        leaves.cancel()
    ready.close()
    if cancelled == "after":
        leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    with pytest.raises(NoMoreMessages):
        await stays


@in_loop(simulated)
async def test_a_reader_that_is_cancelled_while_nothing_comes_is_no_longer_waited_for(
    simulation: Simulation, /
) -> None:
    ready = ReadyMessages()
    leaves, stays = asyncio.create_task(read(ready)), asyncio.create_task(ready.take_next())
    await asyncio.sleep(0.1)
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    ready.add_messages([delivery(7)])
    assert (await stays).queue_offset == 7
