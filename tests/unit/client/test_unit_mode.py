"""Clients in unit mode, and what a broker makes of them: topics flagged as units' own."""

from __future__ import annotations

import json

from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import Talk, consumer, converse, subscription
from tests.unit.client.producers import producer_of
from tests.unit.client.push_consumers import consumer_of
from tests.unit.client.scripted_cluster import scripted_cluster
from tests.waits import until

from turbopump.protocol.requests.send import SendMessageV2
from turbopump.protocol.requests.topics import CreateTopic


@in_loop(simulated)
async def test_heartbeats_sends_and_new_topics_say_that_a_client_is_in_unit_mode(
    simulation: Simulation, /
) -> None:
    unit = {"unit_mode": True, "unit_name": "east"}
    async with scripted_cluster(simulation) as cluster:
        cluster.name_server.route("TBW102", cluster.broker, perm=7)
        async with producer_of(cluster, **unit) as producer, consumer_of(cluster, **unit):
            assert producer.client_id.endswith("@east")
            await producer.send("orders", b"x")
            await producer.send("new", b"x")
            await until(lambda: any(one.consumer_data_set for one in cluster.broker.heartbeats))
        broker = cluster.broker
        (consumer,) = broker.heartbeats[-1].consumer_data_set
        assert consumer.unit_mode is True
        assert {send.unit_mode for send in broker.requests(SendMessageV2)} == {True}
        assert [made.topic_sys_flag for made in broker.requests(CreateTopic)] == [1]


@in_loop(simulated)
async def test_without_it_nothing_says_so(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster) as producer,
        consumer_of(cluster),
    ):
        await producer.send("orders", b"x")
        await until(lambda: any(one.consumer_data_set for one in cluster.broker.heartbeats))
        assert {send.unit_mode for send in cluster.broker.requests(SendMessageV2)} == {False}
        beats = cluster.broker.heartbeats
        assert {one.unit_mode for beat in beats for one in beat.consumer_data_set} == {False}


@in_loop(converse)
async def test_topics_made_for_clients_in_unit_mode_are_flagged(talk: Talk, /) -> None:
    # RocketMQ: 1 is a topic that such a producer made, 2 the retry topic of such a consumer
    units = consumer("g", subscription(), unitMode=True)
    beat = {"clientID": "c", "consumerDataSet": [units, consumer("plain", subscription())]}
    assert (await talk.client.heartbeat(json.dumps(beat).encode())).code == 0
    await talk.client.send(topic="by-sending", unit_mode=True, default_topic_queue_nums=4)
    await talk.client.send(topic="plain", default_topic_queue_nums=4)
    await talk.client.send(topic="%RETRY%plain", unit_mode=True)
    await talk.client.create("by-our-producer", if_absent=True, topic_sys_flag=1)
    flags = {
        name: talk.broker.tables.topics.find(name)
        for name in ("%RETRY%g", "%RETRY%plain", "by-sending", "plain", "by-our-producer")
    }
    assert {name: topic and topic.topic_sys_flag for name, topic in flags.items()} == {
        "%RETRY%g": 2,
        "%RETRY%plain": 0,
        "by-sending": 1,
        "plain": 0,
        "by-our-producer": 1,
    }
