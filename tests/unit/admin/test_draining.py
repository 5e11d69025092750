"""A broker that is being drained: no sends, consumers finish, slaves have everything."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.loops import CLIENT, in_loop
from tests.unit.broker.replicas import (
    MASTER,
    NAMESRV,
    SLAVE,
    Replicas,
    eventually,
    same_logs,
    with_replicas,
)

from turbopump.admin.broker_figures import BrokerFigures
from turbopump.admin.cluster import Servers
from turbopump.admin.draining import (
    DrainedBroker,
    DrainState,
    drain,
    find_broker,
    set_write_permission,
    waiting_messages,
)
from turbopump.client.push_consumer import ConsumeFrom, PushConsumer
from turbopump.errors import ClientError
from turbopump.protocol.requests.namesrv import GetRouteInfo
from turbopump.protocol.requests.topics import PERM_READ, PERM_WRITE


@asynccontextmanager
async def wiped(replicas: Replicas) -> AsyncIterator[tuple[Servers, DrainedBroker]]:
    """Its write permission is gone."""
    async with Servers([f"{NAMESRV}:9876"]) as servers:
        broker = await find_broker(servers, "broker-a")
        assert await set_write_permission(servers, broker, wiped=True) == {}
        yield servers, broker


async def permission(servers: Servers) -> int | None:
    route = await servers.ask_name_servers(GetRouteInfo(topic="T"))
    return route.queue_datas[0].perm


async def with_messages(replicas: Replicas, count: int = 5) -> None:
    """A master and a slave that has its messages."""
    master, slave = await replicas.master(), await replicas.slave()
    client = replicas.client_of(MASTER)
    await client.create()
    for number in range(count):
        await client.send(b"%d" % number)
    await same_logs(master, slave)


async def states(
    replicas: Replicas, servers: Servers, broker: DrainedBroker, routes_s: float = 0.0
) -> AsyncIterator[DrainState]:
    clock = replicas.simulation.clock(CLIENT)
    async for state in drain(servers, broker, clock, routes_s=routes_s):
        yield state


@in_loop(with_replicas)
async def test_a_broker_is_drained_when_clients_know_and_its_slave_has_everything(
    replicas: Replicas, /
) -> None:
    await with_messages(replicas)
    async with wiped(replicas) as (servers, broker):
        assert await permission(servers) == PERM_READ
        seen = [state async for state in states(replicas, servers, broker, routes_s=3.0)]
        assert [state.drained for state in seen] == [False] * (len(seen) - 1) + [True]
        assert list(seen[0].waits_for()) == ["clients may send for 3 s more"]
        assert seen[-1].seconds >= 3.0
        assert await set_write_permission(servers, broker, wiped=False) == {}
        assert await permission(servers) == PERM_READ | PERM_WRITE


@in_loop(with_replicas)
async def test_it_waits_for_a_slave_that_does_not_copy(replicas: Replicas, /) -> None:
    await with_messages(replicas)
    async with wiped(replicas) as (servers, broker):
        replicas.kill(SLAVE)
        rounds = states(replicas, servers, broker)
        await eventually(
            lambda: not replicas.brokers[MASTER].parts.listening.replication.master.slaves
        )
        assert list((await anext(rounds)).waits_for()) == ["1 slave does not copy"]
        await replicas.slave()
        async with asyncio.timeout(60):
            async for state in rounds:
                seen = state
        assert (seen.drained, list(seen.slaves.values())) == (True, [0])


@in_loop(with_replicas)
async def test_it_waits_for_consumers_and_only_names_groups_that_have_none(
    replicas: Replicas, /
) -> None:
    await with_messages(replicas)
    async with PushConsumer(
        f"{NAMESRV}:9876",
        group="gone",
        topic="T",
        consume_from=ConsumeFrom.FIRST,
        local_ip=CLIENT,
        clock=replicas.simulation.clock(CLIENT),
        random=replicas.simulation.source("gone"),
    ) as reader:
        async for message in reader:
            if message.queue_offset == 1:
                break
    async with wiped(replicas) as (servers, broker):
        (state,) = [one async for one in states(replicas, servers, broker)]
        assert state.drained
        assert set(state.unread) == {"gone"}
        client = replicas.client_of(MASTER)
        await client.join("c1", "gone")
        assert (await anext(states(replicas, servers, broker))).behind == state.unread


@in_loop(with_replicas)
async def test_a_broker_that_is_not_there_is_named_with_those_that_are(
    replicas: Replicas, /
) -> None:
    await replicas.master()
    async with Servers([f"{NAMESRV}:9876"]) as servers:
        with pytest.raises(ClientError, match=r"no broker broker-b.*there are: broker-a"):
            await find_broker(servers, "broker-b")


@in_loop(with_replicas)
async def test_name_servers_that_only_the_broker_knows_are_told_too(replicas: Replicas, /) -> None:
    await replicas.master(namesrv_addr=f"{NAMESRV}:9876;10.0.0.8:9876")
    async with Servers([f"{NAMESRV}:9876"]) as servers:
        broker = await find_broker(servers, "broker-a")
        assert broker.name_servers == (f"{NAMESRV}:9876", "10.0.0.8:9876")
        failed = await set_write_permission(servers, broker, wiped=True)
        assert list(failed) == ["10.0.0.8:9876"]


def test_what_waits_on_the_disk_is_counted_by_kind() -> None:
    figures = {
        "scheduleMessageOffset_1": "17,20",
        "scheduleMessageOffset_2": "4,4",
        "timerCongestNum": "2",
        "timerOffsetBehind": "1",
        "transactionsPending": "5",
    }
    assert waiting_messages(BrokerFigures.read(figures)) == {
        "delayed messages": 3,
        "timer messages": 3,
        "transactions without an end": 5,
    }
