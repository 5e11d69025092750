"""Which clients of a process share an instance, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.scripted_cluster import ScriptedCluster, scripted_cluster, until

from turbopump.client.producer import Producer
from turbopump.client.pull_consumer import PullConsumer
from turbopump.client.push_consumer import PushConsumer
from turbopump.errors import ConfigError, NotStartedError
from turbopump.testing.simulation import Simulation, simulate


def client_of(kind: type, cluster: ScriptedCluster, **settings: object):  # type: ignore[no-untyped-def]
    return kind(cluster.name_server.address, **{**cluster.settings, **settings})


def connections(cluster: ScriptedCluster) -> int:
    server = cluster.broker._server
    assert server is not None
    return len(server.connections)


def test_clients_of_one_process_share_a_client_id_and_their_connections() -> None:
    async def scenario(simulation: Simulation) -> None:
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
            assert [data.group_name for data in cluster.broker.heartbeats[-1].consumer_data_set] == ["readers"]

    simulate(1, scenario)


def test_a_second_consumer_of_a_group_gets_an_instance_of_its_own_and_its_share() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with (
            scripted_cluster(simulation) as cluster,
            client_of(PushConsumer, cluster, group="readers", topic="orders") as one,
            client_of(PushConsumer, cluster, group="readers", topic="orders") as other,
        ):
            assert other.client_id == f"{one.client_id}#2"
            await until(lambda: len(one.queues) == len(other.queues) == 2)

    simulate(1, scenario)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(Producer, {}), (PullConsumer, {}), (PushConsumer, {"topic": "orders"})],
)
def test_a_duplicate_is_refused_only_under_an_equal_name(kind: type, settings: dict[str, object]) -> None:
    async def scenario(simulation: Simulation) -> None:
        async with scripted_cluster(simulation) as cluster:
            first = client_of(kind, cluster, group="g", instance_name="till", **settings)
            second = client_of(kind, cluster, group="g", instance_name="till", **settings)
            async with first:
                what = "producer" if kind is Producer else "consumer"
                with pytest.raises(ConfigError, match=f"a {what} of group 'g' under instance_name='till' already"):
                    await second.start()
                async with client_of(kind, cluster, group="other", instance_name="till", **settings) as third:
                    assert first.client_id == third.client_id == "127.0.0.1@till"
            async with second:
                assert second.client_id == "127.0.0.1@till"

    simulate(1, scenario)


def test_producers_of_one_group_and_no_name_share_an_instance_and_traces_of_one_name_too() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with (
            scripted_cluster(simulation) as cluster,
            client_of(Producer, cluster, trace=True) as one,
            client_of(Producer, cluster, trace=True) as other,
            client_of(Producer, cluster, namespace="a", instance_name="till", trace=True) as north,
            client_of(Producer, cluster, namespace="b", instance_name="till", trace=True) as south,
        ):
            assert one.client_id == other.client_id
            assert north.client_id == south.client_id == "127.0.0.1@till"

    simulate(1, scenario)


def test_the_unit_stands_in_the_client_id_and_other_name_servers_mean_another_instance() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with (
            scripted_cluster(simulation) as cluster,
            client_of(Producer, cluster, instance_name="till", unit_name="north") as north,
            client_of(Producer, cluster) as plain,
            Producer(f"{cluster.name_server.address};127.0.0.1:1", **cluster.settings) as elsewhere,
        ):
            assert north.client_id == "127.0.0.1@till@north"
            assert len({north.client_id, plain.client_id, elsewhere.client_id}) == 3

    simulate(1, scenario)


def test_who_leaves_takes_nothing_from_the_others() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with scripted_cluster(simulation) as cluster, client_of(Producer, cluster, group="stay") as stays:
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
            assert [data.group_name for data in cluster.broker.heartbeats[-1].producer_data_set] == ["stay"]

    simulate(1, scenario)


def test_the_last_one_closes_the_instance_and_its_name_is_not_used_again() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with scripted_cluster(simulation) as cluster:
            ids = []
            for _ in range(2):
                async with client_of(Producer, cluster) as producer:
                    await producer.send("orders", b"x")
                    ids.append(producer.client_id)
                await until(lambda: connections(cluster) == 0)
            assert ids[1] == f"{ids[0]}#2"

    simulate(1, scenario)


def test_a_member_that_comes_while_a_heartbeat_is_under_way_is_in_the_next() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with scripted_cluster(simulation) as cluster, client_of(Producer, cluster, group="early") as early:
            await early.send("orders", b"x")  # the first heartbeat is on its way
            async with client_of(Producer, cluster, group="late"):
                await until(lambda: len(cluster.broker.heartbeats) >= 2)
                groups = [data.group_name for data in cluster.broker.heartbeats[-1].producer_data_set]
                assert groups == ["early", "late"]
                assert simulation.loop.time() < 5

    simulate(1, scenario)


def test_a_member_that_is_announced_while_a_heartbeat_is_under_way_waits_for_the_next() -> None:
    """Its wait once began with the old heartbeat, which had just ended, again and again: the loop got no turn."""

    async def scenario(simulation: Simulation) -> None:
        async with (
            scripted_cluster(simulation) as cluster,
            client_of(Producer, cluster) as producer,
            client_of(PullConsumer, cluster, group="readers") as consumer,
        ):
            sent = await producer.send("orders", b"x")  # the first heartbeat is on its way
            await consumer.commit(sent.queue, 1)
            assert [data.group_name for data in cluster.broker.heartbeats[-1].consumer_data_set] == ["readers"]

    simulate(1, scenario)
