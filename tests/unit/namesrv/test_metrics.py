"""Metrics of a name server: brokers, topics, registrations, expiries and requests."""

import asyncio
from collections.abc import Mapping

from tests.loops import in_loop
from tests.unit.metrics.reading import series_of
from tests.unit.namesrv.world import World, play

from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.metrics.family import Family
from turbopump.namesrv.metrics import (
    ADDRESSES,
    BROKERS,
    EXPIRIES,
    REGISTRATIONS,
    REQUESTS,
    TOPICS,
    metrics_of,
)


def read(world: World, family: Family) -> Mapping[tuple[str, ...], object]:
    server = world.server
    metrics = metrics_of(NamesrvConfig(metrics_label="zone:a"), server.table, server.times)
    assert metrics.labels == {"node_type": "namesrv", "zone": "a"}
    return series_of(metrics, family)


@in_loop(play)
async def test_registrations_and_requests_are_counted(world: World, /) -> None:
    assert read(world, REGISTRATIONS) == {}
    master, slave, other = world.peer(), world.peer(), world.peer()
    await master.register()
    await slave.register(broker_id=1)
    await master.register()
    await other.register()  # the name and id of the master, which answers
    assert (read(world, BROKERS), read(world, ADDRESSES)) == ({(): 1}, {(): 2})
    assert read(world, TOPICS) == {(): 2}
    registrations = read(world, REGISTRATIONS)
    assert registrations["accepted",] == 3
    assert sum(registrations.values()) > 3  # type: ignore[arg-type]
    await master.route("T")
    await master.route("none")
    requests = read(world, REQUESTS)
    assert requests["get_routeinfo_by_topic", "success"] == 1
    assert requests["get_routeinfo_by_topic", "topic_not_exist"] == 1
    assert requests["register_broker", "success"] == 3


@in_loop(play)
async def test_brokers_that_are_gone_are_counted_by_cause(world: World, /) -> None:
    assert read(world, EXPIRIES) == {("silent",): 0, ("connection_lost",): 0}
    silent = world.peer()
    await silent.register(heartbeat_timeout_millis=1000)
    async with asyncio.timeout(60):
        while read(world, BROKERS) != {(): 0}:
            await asyncio.sleep(1)
    assert read(world, EXPIRIES)["silent",] == 1
