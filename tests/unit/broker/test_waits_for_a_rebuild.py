"""Readers of a damaged queue wait for its rebuild, but not for ever, and skip nothing."""

import asyncio
from collections.abc import Callable

from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.popping import Popper, pop_request
from tests.unit.broker.talking import SERVER, Talk, in_virtual_time, pull

from turbopump.broker.reading import REBUILD_WAIT_S
from turbopump.message.codec import decode_entries
from turbopump.protocol.codes import ResponseCode
from turbopump.store.queues.checked_entries import REBUILDING

BODIES = [b"0", b"1", b"2", b"3", b"4"]


class HeldWalk:
    """Stands for a walk over many terabytes: it goes on when the test says so."""

    def __init__(self, talk: Talk) -> None:
        self._held: list[Callable[[], object]] = []
        self._loop = asyncio.get_running_loop()
        self._reads = talk.broker.store.rebuild.reads
        self._reads.take_turns(self._held.append, self._loop.time)

    def resume(self) -> None:
        self._reads.take_turns(self._loop.call_soon, self._loop.time)
        for step in self._held:
            step()


async def with_a_damaged_unit(talk: Talk) -> HeldWalk:
    await talk.client.create()
    for body in BODIES:
        await talk.client.send(body)
    queue = talk.broker.store.queue("T", 0)
    assert queue is not None
    queue.rewrite(0, 0, 0, 0)
    return HeldWalk(talk)


@in_loop(in_virtual_time)
async def test_a_pull_that_waits_too_long_for_a_rebuild_gets_an_error_and_skips_nothing(
    talk: Talk, simulation: Simulation, /
) -> None:
    walk = await with_a_damaged_unit(talk)
    loop = asyncio.get_running_loop()
    began = loop.time()

    refused = await talk.client.ask(pull(suspend_ms=20_000), timeout=60)

    assert REBUILD_WAIT_S <= loop.time() - began < REBUILD_WAIT_S + 1
    assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, REBUILDING)

    walk.resume()
    found = await talk.client.ask(pull(), timeout=60)

    assert [one.body for one in decode_entries(found.body)] == BODIES


@in_loop(in_virtual_time)
async def test_a_pull_is_answered_with_its_messages_as_soon_as_the_rebuild_is_over(
    talk: Talk, simulation: Simulation, /
) -> None:
    walk = await with_a_damaged_unit(talk)
    loop = asyncio.get_running_loop()
    began = loop.time()
    pulled = loop.create_task(talk.client.ask(pull(), timeout=60))
    await asyncio.sleep(1)
    assert not pulled.done()

    walk.resume()
    found = await pulled

    assert [one.body for one in decode_entries(found.body)] == BODIES
    assert loop.time() - began < 2


@in_loop(in_virtual_time)
async def test_a_pop_that_waits_too_long_for_a_rebuild_gets_its_messages_later(
    talk: Talk, simulation: Simulation, /
) -> None:
    walk = await with_a_damaged_unit(talk)
    loop = asyncio.get_running_loop()
    popper = Popper(talk.another(), simulation.clock(SERVER).now_ms)
    began = loop.time()

    refused = await popper.client.ask(pop_request(popper.now_ms()), timeout=60)

    assert REBUILD_WAIT_S <= loop.time() - began < REBUILD_WAIT_S + 1
    assert refused.code != ResponseCode.SUCCESS

    walk.resume()

    assert [one.body for one in await popper.pop()] == BODIES
