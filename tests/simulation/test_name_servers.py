"""A name server that is killed and starts again knows every topic within seconds, also those that
are made meanwhile."""

import asyncio

from tests.loops import in_loop
from tests.unit.broker.registering import NAME_SERVERS, World, tell

RESTARTS = 10
"""Of each seed."""
WHOLE_S = 5.0
"""How soon it knows everything after it listens."""


@in_loop(tell)
async def test_a_name_server_that_starts_again_has_every_topic_within_five_seconds(
    world: World, /, seed: int
) -> None:
    restarted, steady = NAME_SERVERS
    for host in NAME_SERVERS:
        await world.start_name_server(host)
    await world.start_broker()
    made: list[str] = []
    making = asyncio.ensure_future(world.make_topics(made))
    for _ in range(RESTARTS):
        world.simulation.end(restarted, power_cut=False)
        await asyncio.sleep(world.simulation.random.choice([0.0, 0.3, 4.0, 20.0]))
        await world.start_name_server(restarted)
        before = made.copy()
        await asyncio.sleep(WHOLE_S)
        assert await world.topics(restarted) >= {*before, "TBW102"}
        await asyncio.sleep(world.simulation.random.choice([0.0, 5.0, 40.0]))
    making.cancel()
    await asyncio.sleep(WHOLE_S)
    assert await world.topics(restarted) == await world.topics(steady) >= set(made)
