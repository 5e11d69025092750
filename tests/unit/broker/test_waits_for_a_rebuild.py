"""Readers of a damaged queue wait for its rebuild, but not for ever, and skip nothing."""

import asyncio

import pytest
from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.popping import Popper, pop_request
from tests.unit.broker.talking import SERVER, Talk, in_virtual_time, pull

from turbopump.broker.reading import REBUILD_WAIT_S
from turbopump.message.codec import decode_entries
from turbopump.protocol.codes import ResponseCode
from turbopump.store.queues.checked_entries import REBUILDING
from turbopump.store.repair.queue_rebuild import QueueRebuild


def begin_endless_walk(rebuild: QueueRebuild) -> None:
    """Stand for a walk over a log of many terabytes."""
    rebuild._walking = True


async def damage_the_first_unit(talk: Talk) -> None:
    await talk.client.create()
    for number in range(5):
        await talk.client.send(b"%d" % number)
    queue = talk.broker.store.queue("T", 0)
    assert queue is not None
    queue.rewrite(0, 0, 0, 0)


@in_loop(in_virtual_time)
async def test_a_pull_that_waits_too_long_for_a_rebuild_gets_an_error_and_skips_nothing(
    talk: Talk, simulation: Simulation, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    await damage_the_first_unit(talk)
    loop = asyncio.get_running_loop()
    with monkeypatch.context() as patched:
        patched.setattr(QueueRebuild, "_begin_walk", begin_endless_walk)
        began = loop.time()

        refused = await talk.client.ask(pull(suspend_ms=20_000), timeout=60)

        assert REBUILD_WAIT_S <= loop.time() - began < REBUILD_WAIT_S + 1
        assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, REBUILDING)
    talk.broker.store.rebuild._end_walk(None)

    found = await talk.client.ask(pull(), timeout=60)

    assert [one.body for one in decode_entries(found.body)] == [b"0", b"1", b"2", b"3", b"4"]


@in_loop(in_virtual_time)
async def test_a_pull_is_answered_with_its_messages_as_soon_as_the_rebuild_is_over(
    talk: Talk, simulation: Simulation, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    await damage_the_first_unit(talk)
    loop, rebuild = asyncio.get_running_loop(), talk.broker.store.rebuild
    began = loop.time()
    with monkeypatch.context() as patched:
        patched.setattr(QueueRebuild, "_begin_walk", begin_endless_walk)
        pulled = loop.create_task(talk.client.ask(pull(), timeout=60))
        await asyncio.sleep(1)
        assert not pulled.done()
    rebuild._end_walk(None)

    found = await pulled

    assert [one.body for one in decode_entries(found.body)] == [b"0", b"1", b"2", b"3", b"4"]
    assert loop.time() - began < 2


@in_loop(in_virtual_time)
async def test_a_pop_that_waits_too_long_for_a_rebuild_gets_its_messages_later(
    talk: Talk, simulation: Simulation, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    await damage_the_first_unit(talk)
    loop = asyncio.get_running_loop()
    popper = Popper(talk.another(), simulation.clock(SERVER).now_ms)
    with monkeypatch.context() as patched:
        patched.setattr(QueueRebuild, "_begin_walk", begin_endless_walk)
        began = loop.time()

        answer = await popper.client.ask(pop_request(popper.now_ms()), timeout=60)

        assert REBUILD_WAIT_S <= loop.time() - began < REBUILD_WAIT_S + 1
        assert answer.code != ResponseCode.SUCCESS
    talk.broker.store.rebuild._end_walk(None)

    assert len(await popper.pop()) == 5
