"""Ordered consumption through kills, power cuts, lost connections and members that come and go: of
each queue one handler at a time, and none begins with a message before the one ahead of it
succeeded. What comes twice comes as a repeated prefix.
"""

import asyncio

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.figures import Figures
from tests.simulation.ordered_group import CONSUMERS, FAILURES, QUEUES, WHOLE, World, war
from tests.simulation.world.simulation import Simulation, simulate


def test_through_every_failure_no_handler_begins_before_the_message_ahead_succeeded(
    seed: int, figures: Figures
) -> None:
    failures = FAILURES if seed <= 5 else 8
    world = war(World, seed, failures)
    assert world.watch.wrong == []
    assert world.missing == 0
    assert world.handled > 100
    assert len(world.watch.succeeded) == QUEUES
    figures.count(failures=failures, messages=world.handled, lost=0)
    figures.count(
        begun_before_the_one_ahead_succeeded=0, repeated_after_a_failure=world.watch.repeated
    )


@in_loop(simulated)
async def test_members_that_come_and_go_hand_over_without_a_message_handled_twice(
    simulation: Simulation, /, seed: int, figures: Figures
) -> None:
    changes = 200 if WHOLE and seed <= 5 else 8
    world = World(simulation, failing=0.1)
    world.start()
    await asyncio.sleep(20)
    for _ in range(changes):
        await asyncio.sleep(simulation.random.uniform(1, 40))
        world.check_alive()
        world.stop(simulation.random.choice(CONSUMERS))
    await asyncio.sleep(60)
    await world.drain()
    await world.end()
    assert world.watch.wrong == []
    assert world.watch.repeated == 0
    assert world.missing == 0
    figures.count(members_stopped=changes, messages=world.handled, lost=0, handled_twice=0)


async def careless(simulation: Simulation) -> World:
    world = World(simulation, failing=0.1, longest=20)
    world.start()
    await asyncio.sleep(20)
    await world.fail(10)
    await world.end()
    return world


def test_without_locks_two_members_handle_one_queue_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: were this to pass without an overlap, the tests above had no teeth."""
    from turbopump.broker.queue_locks import QueueLocks

    monkeypatch.setattr(
        QueueLocks, "lock", lambda self, group, queues, client_id, now: dict.fromkeys(queues, 0)
    )

    assert any(
        "while" in wrong for seed in range(1, 6) for wrong in simulate(seed, careless).watch.wrong
    )
