"""The exporter's view of a cluster: everything that is there, nothing that has gone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tests.loops import CLIENT, in_loop
from tests.unit.broker.replicas import (
    MASTER,
    NAMESRV,
    SLAVE,
    Replicas,
    same_logs,
    until_joined,
    with_replicas,
)

from turbopump.admin.cluster import Servers
from turbopump.admin.exporter import Collector
from turbopump.admin.exporter.collector import KEPT_S
from turbopump.client.push_consumer import ConsumeFrom, PushConsumer
from turbopump.metrics.prometheus_text import text_pieces
from turbopump.protocol.requests.topics import DeleteTopic

NAME_SERVER: Final = f"{NAMESRV}:9876"
BROKER: Final = 'cluster="DefaultCluster",broker="broker-a"'


def series(collector: Collector, name: str) -> dict[str, float]:
    """Value of each series of a metric, by the text of its labels."""
    found = {}
    for line in "".join(text_pieces(collector.metrics)).splitlines():
        labelled, _, value = line.rpartition(" ")
        if labelled.partition("{")[0] == name:
            found[labelled.partition("{")[2].removesuffix("}")] = float(value)
    return found


@asynccontextmanager
async def collecting(replicas: Replicas, *more: str) -> AsyncIterator[Collector]:
    async with Servers([NAME_SERVER, *more]) as servers:
        yield Collector(servers, replicas.simulation.clock(CLIENT), 15)


async def with_messages(replicas: Replicas, count: int) -> None:
    """A master and a slave that has its messages."""
    master, slave = await replicas.master(), await replicas.slave()
    client = replicas.client_of(MASTER)
    await client.create()
    for number in range(count):
        await client.send(b"%d" % number)
    await until_joined(master)
    await same_logs(master, slave)


@in_loop(with_replicas)
async def test_brokers_topics_and_a_group_that_is_behind_are_shown(replicas: Replicas, /) -> None:
    await with_messages(replicas, 5)
    async with (
        collecting(replicas) as collector,
        PushConsumer(
            NAME_SERVER,
            group="late",
            topic="T",
            consume_from=ConsumeFrom.FIRST,
            local_ip=CLIENT,
            clock=replicas.simulation.clock(CLIENT),
            random=replicas.simulation.source("late"),
        ) as reader,
    ):
        for _ in range(2):
            (await anext(aiter(reader))).done()
        await reader.commit()
        await asyncio.sleep(30)
        await collector.collect()
        assert series(collector, "turbopump_exporter_up") == {
            f'{BROKER},broker_id="0"': 1,
            f'{BROKER},broker_id="1"': 1,
        }
        assert series(collector, "turbopump_exporter_namesrv_brokers") == {
            f'namesrv="{NAME_SERVER}"': 2
        }
        assert series(collector, "rocketmq_producer_offset")[f'{BROKER},topic="T"'] == 5
        slave = f'cluster="DefaultCluster",brokerIP="{SLAVE}:10911",broker="broker-a"'
        assert series(collector, "rocketmq_broker_commitlog_diff") == {slave: 0}
        group = f'{BROKER},topic="T",group="late"'
        assert series(collector, "rocketmq_consumer_offset")[group] == 2
        behind = 'group="late",topic="T",countOfOnlineConsumers="1",msgModel="1"'
        assert series(collector, "rocketmq_group_diff") == {behind: 3}
        latency_ms = series(collector, "rocketmq_group_get_latency_by_storetime")[group]
        assert 30_000 <= latency_ms < 60_000
        clients = "".join(series(collector, "rocketmq_client_consume_ok_msg_tps"))
        assert f'clientId="{reader.client_id}",group="late",topic="T"' in clients


@in_loop(with_replicas)
async def test_a_silent_broker_is_a_series_and_its_last_answers_stay_for_a_minute(
    replicas: Replicas, /
) -> None:
    await with_messages(replicas, 1)
    async with collecting(replicas) as collector:
        await collector.collect()
        replicas.kill(SLAVE)
        await collector.collect()
        slave = f'{BROKER},broker_id="1"'
        assert series(collector, "turbopump_exporter_up")[slave] == 0
        assert len(series(collector, "rocketmq_broker_commitlog_diff")) == 1
        await asyncio.sleep(KEPT_S)
        await collector.collect()
        assert series(collector, "rocketmq_broker_commitlog_diff") == {}
        assert series(collector, "turbopump_exporter_age_seconds")[slave] > KEPT_S


@in_loop(with_replicas)
async def test_a_broker_that_no_name_server_lists_is_down_for_a_time_then_forgotten(
    replicas: Replicas, /
) -> None:
    await with_messages(replicas, 1)
    async with Servers([NAME_SERVER]) as servers:
        collector = Collector(servers, replicas.simulation.clock(CLIENT), 15, remembered_s=90)
        await collector.collect()
        await replicas.stop(SLAVE)
        await collector.collect()
        assert series(collector, "turbopump_exporter_up")[f'{BROKER},broker_id="1"'] == 0
        await asyncio.sleep(90)
        await collector.collect()
        assert series(collector, "turbopump_exporter_up") == {f'{BROKER},broker_id="0"': 1}


@in_loop(with_replicas)
async def test_the_series_of_a_deleted_topic_and_of_its_readers_leave(
    replicas: Replicas, /
) -> None:
    await with_messages(replicas, 1)
    client = replicas.client_of(MASTER)
    await client.join("c1", "g")
    async with Servers([NAME_SERVER]) as servers:
        collector = Collector(servers, replicas.simulation.clock(CLIENT), 15)
        await collector.collect()
        ends = series(collector, "rocketmq_producer_offset")
        await servers.ask(f"{MASTER}:10911", DeleteTopic(topic="T"))
        await collector.collect()
        left = series(collector, "rocketmq_producer_offset")
        assert ends.keys() - left.keys() == {f'{BROKER},topic="T"'}


@in_loop(with_replicas)
async def test_a_name_server_that_does_not_answer_is_a_series(replicas: Replicas, /) -> None:
    await replicas.master()
    gone = "10.0.0.77:9876"
    async with collecting(replicas, gone) as collector:
        await collector.collect()
        assert series(collector, "turbopump_exporter_namesrv_up") == {
            f'namesrv="{NAME_SERVER}"': 1,
            f'namesrv="{gone}"': 0,
        }
        assert f'namesrv="{gone}"' not in series(collector, "turbopump_exporter_namesrv_brokers")
