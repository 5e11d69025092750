"""How far groups are behind: pulled and popped, filtered, offline, and the age of what waits."""

import asyncio
from typing import Any

from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.metrics.scraping import scrape
from tests.unit.broker.popping import Popper
from tests.unit.broker.talking import SERVER, Talk, in_virtual_time, subscription

from turbopump.broker.metrics.all_metrics import metrics_of
from turbopump.metrics.family import Metrics
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.groups import (
    CreateGroup,
    SimpleSubscriptionData,
    SubscriptionGroupConfig,
)
from turbopump.protocol.requests.offsets import UpdateConsumerOffset

NAMES = {
    "consumer_lag_messages": "lag",
    "consumer_lag_latency_milliseconds": "age",
    "consumer_inflight_messages": "inflight",
    "consumer_queueing_latency_milliseconds": "queueing",
    "consumer_ready_messages": "ready",
}


def lag(
    talk: Talk, group: str = "g", *, retry: bool = False, metrics: Metrics | None = None
) -> dict[str, float]:
    labels = f"consumer_group={group} topic=T is_retry={str(retry).lower()} is_system=false"
    found = scrape(talk.broker, *NAMES, metrics=metrics)
    return {short: found[f"{name} {labels}"] for name, short in NAMES.items()}


async def ten_messages(talk: Talk, simulation: Simulation, tags: str = "") -> None:
    await talk.client.create()
    for _ in range(10):
        await talk.client.send(b"x", properties=f"TAGS\x01{tags}\x02" if tags else "")
        await asyncio.sleep(1)


@in_loop(in_virtual_time)
async def test_a_group_that_pulls_has_messages_in_hand_and_messages_to_get(
    talk: Talk, simulation: Simulation, /
) -> None:
    await ten_messages(talk, simulation)
    await talk.client.join("c")
    done = UpdateConsumerOffset(consumer_group="g", topic="T", queue_id=0, commit_offset=2)
    assert (await talk.client.code(done))[0] == 0
    await talk.client.pull(2, max_msg_nums=3)
    metrics = metrics_of(talk.broker.parts)
    found = lag(talk, metrics=metrics)
    await asyncio.sleep(1)  # what was not in memory is read
    found = lag(talk, metrics=metrics)
    age, queueing = found.pop("age"), found.pop("queueing")
    assert found == {"lag": 8, "inflight": 3, "ready": 5}
    assert (round(age, -3), round(queueing, -3)) == (9000, 6000)
    assert await talk.client.all_bodies() == [b"x"] * 10
    done.commit_offset = 10
    assert (await talk.client.code(done))[0] == 0
    assert set(lag(talk).values()) == {0}


@in_loop(in_virtual_time)
async def test_of_a_filtered_topic_only_what_the_group_wants_counts(
    talk: Talk, simulation: Simulation, /
) -> None:
    await ten_messages(talk, simulation, "blue")
    await talk.client.send(b"x", properties="TAGS\x01red\x02")
    await talk.client.join("c", "g", subscription(expression="red"))
    done = UpdateConsumerOffset(consumer_group="g", topic="T", queue_id=0, commit_offset=0)
    assert (await talk.client.code(done))[0] == 0
    # what is not in memory, as chance has it here, is not compared
    assert {lag(talk)["lag"] for _ in range(20)} == {1, 11}


@in_loop(in_virtual_time)
async def test_a_group_that_pops_has_rows_of_its_retry_topic_too(
    talk: Talk, simulation: Simulation, /
) -> None:
    await ten_messages(talk, simulation)
    await talk.client.join("c", consumeType="CONSUME_POP")
    popper = Popper(talk.client, simulation.clock(SERVER).now_ms)
    popped = await popper.pop(max_msg_nums=4, invisible_ms=2000)
    assert await popper.ack(popped[0]) == ResponseCode.SUCCESS
    found = lag(talk)
    assert (found["lag"], found["inflight"], found["ready"]) == (9, 3, 6)
    assert set(lag(talk, retry=True).values()) == {0}
    await asyncio.sleep(20)
    found = lag(talk)
    assert (found["lag"], found["inflight"], found["ready"]) == (6, 0, 6)
    assert lag(talk, retry=True)["ready"] == 3


@in_loop(in_virtual_time)
async def test_a_group_that_is_not_connected_has_no_rows(
    talk: Talk, simulation: Simulation, /
) -> None:
    await ten_messages(talk, simulation)
    await talk.client.pull()
    assert scrape(talk.broker, *NAMES) == {}


@in_loop(in_virtual_time, use_static_subscription=True)
async def test_with_static_subscriptions_groups_that_are_not_connected_have_rows(
    talk: Talk, simulation: Simulation, /
) -> None:
    await ten_messages(talk, simulation)
    wanted: Any = (SimpleSubscriptionData(topic="T", expression_type="TAG", expression="*"),)
    group = SubscriptionGroupConfig(group_name="g", subscription_data_set=wanted)
    assert (await talk.client.code(CreateGroup(), fastjson.encode(group)))[0] == 0
    done = UpdateConsumerOffset(consumer_group="g", topic="T", queue_id=0, commit_offset=4)
    assert (await talk.client.code(done))[0] == 0
    assert lag(talk)["lag"] == 6
