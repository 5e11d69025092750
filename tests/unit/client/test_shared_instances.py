"""Which clients of a process share an instance; but for those on several event loops in virtual
time."""

from __future__ import annotations

import asyncio
import gc
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import async_does_nothing
from tests.unit.client.push_consumers import broadcasting
from tests.unit.client.scripted_cluster import ScriptedCluster, scripted_cluster
from tests.waits import until

from turbopump import blocking
from turbopump.auth.signatures import Credentials
from turbopump.client.heartbeat import InstanceMember
from turbopump.client.instance import ClientInstance
from turbopump.client.producer import Producer
from turbopump.client.pull_consumer import PullConsumer
from turbopump.client.push_consumer import PushConsumer
from turbopump.client.settings import ClientSettings
from turbopump.client.shared_instances import join_broadcasting
from turbopump.errors import ConfigError, NotStartedError
from turbopump.protocol.requests.clients import ConsumerData
from turbopump.testing import BrokerThread


def client_of(kind: type, cluster: ScriptedCluster, **settings: object):  # type: ignore[no-untyped-def]
    return kind(cluster.name_server.address, **{**cluster.settings, **settings})


def connections(cluster: ScriptedCluster) -> int:
    server = cluster.broker.server
    assert server is not None
    return len(server.connections)


@in_loop(simulated)
async def test_clients_of_one_process_share_a_client_id_and_their_connections(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        client_of(Producer, cluster) as one,
        client_of(Producer, cluster, group="others") as other,
        client_of(PushConsumer, cluster, group="readers", topic="orders") as consumer,
    ):
        await asyncio.gather(one.send("orders", b"x"), other.send("orders", b"y"))
        assert one.client_id == other.client_id == consumer.client_id
        assert connections(cluster) == 1
        await until(lambda: len(cluster.broker.heartbeats[-1].producer_data_set) == 2)
        assert [data.group_name for data in cluster.broker.heartbeats[-1].consumer_data_set] == [
            "readers"
        ]


@in_loop(simulated)
async def test_a_second_consumer_of_a_group_gets_an_instance_of_its_own_and_its_share(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        client_of(PushConsumer, cluster, group="readers", topic="orders") as one,
        client_of(PushConsumer, cluster, group="readers", topic="orders") as other,
    ):
        assert other.client_id == f"{one.client_id}#2"
        await until(lambda: len(one.queues) == len(other.queues) == 2)


@pytest.mark.parametrize(
    ("kind", "settings"), [(Producer, {}), (PullConsumer, {}), (PushConsumer, {"topic": "orders"})]
)
@in_loop(simulated)
async def test_a_duplicate_is_refused_only_under_an_equal_name(
    simulation: Simulation, /, kind: type, settings: dict[str, object]
) -> None:
    async with scripted_cluster(simulation) as cluster:
        first = client_of(kind, cluster, group="g", instance_name="till", **settings)
        second = client_of(kind, cluster, group="g", instance_name="till", **settings)
        async with first:
            what = "producer" if kind is Producer else "consumer"
            with pytest.raises(
                ConfigError, match=f"already has a {what} of group 'g' under instance_name='till'"
            ):
                await second.start()
            async with client_of(
                kind, cluster, group="other", instance_name="till", **settings
            ) as third:
                assert first.client_id == third.client_id == "127.0.0.1@till"
        async with second:
            assert second.client_id == "127.0.0.1@till"


@in_loop(simulated)
async def test_producers_of_one_group_without_a_name_share_an_instance_as_traces_do(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        client_of(Producer, cluster, trace=True) as one,
        client_of(Producer, cluster, trace=True) as other,
        client_of(Producer, cluster, namespace="a", instance_name="till", trace=True) as north,
        client_of(Producer, cluster, namespace="b", instance_name="till", trace=True) as south,
    ):
        assert one.client_id == other.client_id
        assert north.client_id == south.client_id == "127.0.0.1@till"


@in_loop(simulated)
async def test_the_unit_is_in_the_client_id_and_other_name_servers_mean_another_instance(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        client_of(Producer, cluster, instance_name="till", unit_name="north") as north,
        client_of(Producer, cluster) as plain,
        Producer(f"{cluster.name_server.address};127.0.0.1:1", **cluster.settings) as elsewhere,
    ):
        assert north.client_id == "127.0.0.1@till@north"
        assert len({north.client_id, plain.client_id, elsewhere.client_id}) == 3


@in_loop(simulated)
async def test_who_leaves_takes_nothing_from_the_others(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        client_of(Producer, cluster, group="stay") as stays,
    ):
        leaves = client_of(Producer, cluster, group="leave")
        twin = client_of(Producer, cluster, group="leave")
        await leaves.start()
        await twin.start()
        await leaves.send("orders", b"x")
        await until(lambda: len(cluster.broker.heartbeats) > 0)
        await leaves.close()
        assert cluster.broker.farewells == []  # its twin still speaks for the group
        with pytest.raises(NotStartedError, match="is closed"):
            await leaves.send("orders", b"x")
        await twin.close()
        assert [farewell.producer_group for farewell in cluster.broker.farewells] == ["leave"]
        await stays.send("orders", b"x")
        assert connections(cluster) == 1
        await asyncio.sleep(31)
        assert [data.group_name for data in cluster.broker.heartbeats[-1].producer_data_set] == [
            "stay"
        ]


@in_loop(simulated)
async def test_the_last_one_closes_the_instance_and_its_name_is_not_used_again(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        ids = []
        for _ in range(2):
            async with client_of(Producer, cluster) as producer:
                await producer.send("orders", b"x")
                ids.append(producer.client_id)
            await until(lambda: connections(cluster) == 0)
        assert ids[1] == f"{ids[0]}#2"


@in_loop(simulated)
async def test_a_member_that_comes_while_a_heartbeat_is_under_way_is_in_the_next(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        client_of(Producer, cluster, group="early") as early,
    ):
        await early.send("orders", b"x")  # the first heartbeat is on its way
        async with client_of(Producer, cluster, group="late"):
            await until(lambda: len(cluster.broker.heartbeats) >= 2)
            groups = [data.group_name for data in cluster.broker.heartbeats[-1].producer_data_set]
            assert groups == ["early", "late"]
            assert simulation.loop.time() < 5


@in_loop(simulated)
async def test_a_member_announced_while_a_heartbeat_is_under_way_waits_for_the_next(
    simulation: Simulation, /
) -> None:
    """Its wait once began with the old heartbeat, which had just ended, again and again: the loop
    got no turn."""
    async with (
        scripted_cluster(simulation) as cluster,
        client_of(Producer, cluster) as producer,
        client_of(PullConsumer, cluster, group="readers") as consumer,
    ):
        sent = await producer.send("orders", b"x")  # the first heartbeat is on its way
        await consumer.commit(sent.queue, 1)
        assert [data.group_name for data in cluster.broker.heartbeats[-1].consumer_data_set] == [
            "readers"
        ]


ONE, OTHER = Credentials("one", "secret-1"), Credentials("other", "secret-2")


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ({"credentials": ONE}, {"credentials": OTHER}, "with other credentials, and"),
        ({}, {"credentials": OTHER}, "with other credentials, and"),
        ({"namespace_v2": "n"}, {}, "with another namespace_v2, and"),
        (
            {"credentials": ONE, "namespace_v2": "n"},
            {},
            "with other credentials and with another namespace_v2, and",
        ),
    ],
)
@in_loop(simulated)
async def test_a_name_in_use_is_refused_to_who_cannot_share_its_instance(
    simulation: Simulation, /, first: dict[str, object], second: dict[str, object], says: str
) -> None:
    """Replies to the one once went to the other."""
    async with scripted_cluster(simulation) as cluster:
        refused = client_of(Producer, cluster, group="b", instance_name="till", **second)
        async with (
            client_of(Producer, cluster, group="a", instance_name="till", **first),
            client_of(
                Producer, cluster, group="b", instance_name="till", unit_name="north", **second
            ),
        ):
            with pytest.raises(
                ConfigError,
                match=rf"instance_name='till' is in use in this process {says} "
                r".*close the other",
            ):
                await refused.start()
        async with refused:
            assert refused.client_id == "127.0.0.1@till"


@in_loop(simulated)
async def test_a_name_serves_two_clusters_and_one_named_by_other_lists_of_name_servers(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        here, beside, elsewhere = cluster.name_server.address, "127.0.0.1:1", "127.0.0.1:2"
        named = {**cluster.settings, "instance_name": "till"}
        async with (
            Producer([here, beside], group="a", **named) as one,
            Producer([beside, here], group="b", **named) as other,
            Producer(elsewhere, group="a", **named) as apart,
        ):
            assert one.client_id == other.client_id == apart.client_id == "127.0.0.1@till"
            with pytest.raises(ConfigError, match="with other name servers of the same cluster"):
                await Producer(here, group="c", **named).start()


NOBODY = "127.0.0.1:1"
"""Nothing is asked of a name server at the start."""


async def start_on_two_loops(second: Any) -> None:
    async with Producer(NOBODY, group="a", instance_name="two-loops"):
        with pytest.raises(
            ConfigError,
            match=r"in use in this process on another event "
            r"loop, and .*close the other client first",
        ):
            await asyncio.to_thread(second.start)


@pytest.mark.parametrize("kind", [blocking.Producer, blocking.PullConsumer])
def test_a_name_in_use_on_one_loop_is_refused_on_another_until_it_is_free(kind: type) -> None:
    """A second consumer of the group once started there, and messages were handled twice."""

    second = kind(NOBODY, group="b", instance_name="two-loops")
    asyncio.run(start_on_two_loops(second))
    with (
        kind(NOBODY, group="b", instance_name="two-loops"),
        pytest.raises(ConfigError, match="on another event loop"),
    ):
        asyncio.run(start_on_two_loops(second))
    asyncio.run(start_on_two_loops(second))


async def left_open(kept: list[Producer]) -> str:
    producer = Producer(NOBODY, instance_name="left-open")
    await producer.start()
    kept.append(producer)
    return producer.client_id


def test_a_name_is_free_again_when_the_loop_of_who_had_it_is_closed() -> None:
    kept: list[Producer] = []
    assert asyncio.run(left_open(kept)) == asyncio.run(left_open(kept))


def dropped() -> str:
    loop = asyncio.SelectorEventLoop()
    producer = Producer(NOBODY, instance_name="dropped")
    loop.run_until_complete(producer.start())
    return producer.client_id


async def joins(settings: ClientSettings) -> tuple[ClientSettings, ClientInstance]:
    member = InstanceMember("readers", consumer=partial(ConsumerData, "readers"))
    return join_broadcasting(settings, settings.environment(), member)


def dropped_while_it_broadcasts() -> str:
    loop = asyncio.SelectorEventLoop()
    settings = ClientSettings((NOBODY,))
    _, instance = loop.run_until_complete(joins(settings))
    return instance.client_id


def test_a_name_is_free_again_when_the_loop_of_who_had_it_is_dropped() -> None:
    """It was held for ever: what was to be forgotten with the loop knew the loop."""

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        assert dropped() == dropped()
        assert dropped_while_it_broadcasts() == dropped_while_it_broadcasts()
        gc.collect()


@in_loop(simulated)
async def test_who_has_a_name_has_it_though_nobody_keeps_the_client(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        await client_of(Producer, cluster, instance_name="till", group="a").start()
        gc.collect()
        with pytest.raises(ConfigError, match=r"already has a .* under instance_name='till'"):
            await client_of(Producer, cluster, instance_name="till", group="a").start()


@in_loop(simulated)
async def test_broadcasting_consumers_without_a_name_share_one_unless_of_one_group(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation, queues=1) as cluster,
        broadcasting(cluster, simulation, credentials=ONE) as one,
        broadcasting(cluster, simulation, group="others", credentials=OTHER) as other,
        broadcasting(cluster, simulation) as second,
    ):
        assert one.client_id == other.client_id == "127.0.0.1@DEFAULT"
        assert second.client_id == "127.0.0.1@DEFAULT#2"


async def on_two_loops(broker: BrokerThread, settings: dict[str, Any]) -> list[str]:
    async with PushConsumer(broker.namesrv, **settings) as one:
        other = blocking.PushConsumer(broker.namesrv, **settings)
        await asyncio.to_thread(other.start)
        ids = [one.client_id, other.client_id]
        await asyncio.to_thread(other.close)
        return ids


def test_two_of_a_group_that_broadcast_on_two_loops_are_both_served(tmp_path: Path) -> None:
    """The second once was refused for the name DEFAULT, which nobody had given."""

    settings: dict[str, Any] = {
        "group": "readers",
        "topic": "orders",
        "handler": async_does_nothing,
        "broadcast": True,
        "offsets_directory": tmp_path,
        "local_ip": "10.0.0.7",
    }

    with BrokerThread() as broker:
        assert asyncio.run(on_two_loops(broker, settings)) == [
            "10.0.0.7@DEFAULT",
            "10.0.0.7@DEFAULT#2",
        ]
