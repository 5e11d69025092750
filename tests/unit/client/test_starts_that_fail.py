"""Clients whose start does not end well, or consumers whose queues cannot be divided for a while: a
scripted cluster in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.scripted_cluster import ScriptedCluster, scripted_cluster
from tests.waits import until, until_some

from turbopump import LitePullConsumer, MessageQueue, Producer, PushConsumer, SimpleConsumer
from turbopump.client.consumer.queue_listeners import QueueListeners
from turbopump.errors import NotStartedError, RouteNotFoundError
from turbopump.message.queue_shares import allocate_average
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.requests.clients import GetConsumerListByGroup

Consumer = PushConsumer | LitePullConsumer | SimpleConsumer


def consumer_of(kind: type[Consumer], cluster: ScriptedCluster, **settings: object) -> Consumer:
    return kind(
        cluster.name_server.address, group="readers", topic="orders", **cluster.settings, **settings
    )


@pytest.mark.parametrize(
    ("kind", "silent"),
    [
        (PushConsumer, RequestCode.GET_CONSUMER_LIST_BY_GROUP),
        (LitePullConsumer, RequestCode.GET_CONSUMER_LIST_BY_GROUP),
        (LitePullConsumer, RequestCode.HEART_BEAT),
        (SimpleConsumer, RequestCode.HEART_BEAT),
    ],
)
@in_loop(simulated)
async def test_a_start_that_is_given_up_leaves_no_member_behind(
    simulation: Simulation, /, kind: type[Consumer], silent: RequestCode
) -> None:
    async with scripted_cluster(simulation) as cluster:
        cluster.broker.script[silent].append(None)  # it hangs for a while
        consumer = consumer_of(kind, cluster)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1), consumer:
                pass
        await asyncio.sleep(70)
        assert not cluster.broker.members["readers"], "nobody keeps queues that nobody consumes"
        async with consumer:
            assert list(cluster.broker.members["readers"]) == [consumer.client_id]
        with pytest.raises(NotStartedError, match="is closed"):
            await consumer.start()


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer, SimpleConsumer])
@in_loop(simulated)
async def test_a_start_that_failed_may_be_called_again(
    simulation: Simulation, /, kind: type[Consumer]
) -> None:
    """It once said that the consumer was closed, which nobody had done."""
    async with scripted_cluster(simulation) as cluster:
        consumer = consumer_of(kind, cluster, instance_name="till")
        cluster.name_server.silent = True
        for _ in range(2):
            with pytest.raises(RouteNotFoundError):
                await consumer.start()
        cluster.name_server.silent = False
        async with consumer:
            assert list(cluster.broker.members["readers"]) == ["127.0.0.1@till"]


async def route(_topic: str) -> Any:
    return SimpleNamespace(subscribe_queues=())


def listen(
    loop: asyncio.AbstractEventLoop,
    told: asyncio.Queue[int],
    _topic: str,
    queues: Sequence[MessageQueue],
) -> None:
    loop.call_soon_threadsafe(told.put_nowait, len(queues))


@in_loop
async def test_a_plain_listener_is_told_after_a_start_that_was_called_again() -> None:
    """Its thread pool once ended with the first start."""
    told: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    listeners = QueueListeners(None)
    await listeners.add_listener("orders", partial(listen, loop, told))
    listeners.close()
    spawn = lambda work, name: loop.create_task(work, name=name)  # noqa: E731
    running = loop.create_task(
        listeners.run(cast(Any, SimpleNamespace(routes=SimpleNamespace(get=route), spawn=spawn)))
    )
    await asyncio.sleep(0)  # it has looked at the route
    queues = (MessageQueue("orders", "broker-a", 0),)
    listeners.route_changed(cast(Any, SimpleNamespace(topic="orders", subscribe_queues=queues)))
    assert await asyncio.wait_for(told.get(), 60) == 1
    running.cancel()
    listeners.close()


class NoEntropy(Random):
    there = True

    def getrandbits(self, bits: int) -> int:
        if not self.there:
            raise OSError("no entropy")
        return super().getrandbits(bits)


@pytest.mark.parametrize("trace", [False, True])
@in_loop(simulated)
async def test_a_producer_whose_start_fails_leaves_its_place_and_may_be_started_once_more(
    simulation: Simulation, /, trace: bool
) -> None:
    async with scripted_cluster(simulation) as cluster:
        source = NoEntropy(1)
        settings = {**cluster.settings, "random": source, "instance_name": "till"}
        producer = Producer(cluster.name_server.address, group="sellers", trace=trace, **settings)
        async with Producer(cluster.name_server.address, group="others", **settings) as other:
            source.there = False
            with pytest.raises(OSError, match="no entropy"):
                await producer.start()
            source.there = True
            await other.send("orders", b"x")
            await until_some(cluster.broker.heartbeats)
            assert [
                data.group_name for data in cluster.broker.heartbeats[-1].producer_data_set
            ] == ["others"]
            async with Producer(cluster.name_server.address, group="sellers", **settings):
                pass
            async with producer:
                await producer.send("orders", b"x")


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
@in_loop(simulated)
async def test_a_start_that_is_overtaken_by_a_close_says_so_and_nothing_goes_on(
    simulation: Simulation, /, kind: type[Consumer]
) -> None:
    async with scripted_cluster(simulation) as cluster:
        cluster.broker.script[RequestCode.GET_CONSUMER_LIST_BY_GROUP].append(None)
        consumer = consumer_of(kind, cluster)
        start = asyncio.ensure_future(consumer.start())
        await until(cluster.broker.requests, GetConsumerListByGroup)
        await consumer.close()
        with pytest.raises(NotStartedError, match="closed during its start"):
            await start
        told = len(cluster.broker.received)
        await asyncio.sleep(70)
        assert len(cluster.broker.received) == told
        assert not [task for task in asyncio.all_tasks() if "balancer" in task.get_name()]


def allocate(
    rooms: Any, queues: Sequence[MessageQueue], clients: Sequence[str], client_id: str
) -> list[MessageQueue]:
    assert rooms["everybody"]
    return allocate_average(queues, clients, client_id)


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
@in_loop(simulated)
async def test_an_allocation_that_raises_is_told_and_the_next_one_counts(
    simulation: Simulation, /, kind: type[Consumer], caplog: pytest.LogCaptureFixture
) -> None:
    rooms = {"nobody": "here"}

    async with scripted_cluster(simulation, queues=2) as cluster:
        consumer = consumer_of(kind, cluster, allocation=partial(allocate, rooms))
        assert isinstance(consumer, PushConsumer | LitePullConsumer)
        async with consumer:
            await asyncio.sleep(30)
            told = [
                record for record in caplog.records if "rebalance failed" in record.getMessage()
            ]
            assert [
                ("KeyError('everybody')" in record.getMessage(), bool(record.exc_info))
                for record in told
            ] == [(True, True)]
            rooms["everybody"] = "here"
            await asyncio.sleep(2)
            ours = consumer.queues if isinstance(consumer, PushConsumer) else consumer.assigned
            assert ours == [MessageQueue("orders", "broker-a", number) for number in range(2)]
