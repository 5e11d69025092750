"""36: a message that was sent back comes again later, by way of its group's retry topic, until it
is a dead letter."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import Client, Talk, in_virtual_time, pull, take_nothing

from turbopump.message.codec import decode_entries
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.message.properties import encode_properties
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.assignment import LockBatchMq, LockBatchRequestBody
from turbopump.protocol.requests.groups import (
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    GroupRetryPolicyType,
    SubscriptionGroupConfig,
)
from turbopump.protocol.requests.send import ConsumerSendMsgBack

RETRY, DEAD = "%RETRY%g", "%DLQ%g"
LEVELS = "1s 2s 3s 4s 5s"


def back(message: ReceivedMessage, level: int = 0, **fields: Any) -> ConsumerSendMsgBack:
    return ConsumerSendMsgBack(
        offset=message.commit_log_offset, group="g", delay_level=level, **fields
    )


async def sent(client: Client, body: bytes = b"x", **properties: str) -> ReceivedMessage:
    await client.send(
        body, properties=encode_properties({"UNIQ_KEY": "U1", "TAGS": "paid", **properties}), flag=9
    )
    return (await client.messages())[-1]


async def next_of(client: Client, topic: str, offset: int) -> ReceivedMessage:
    answer = await client.ask(pull(offset, topic=topic, suspend_ms=100_000), timeout=120)
    (message,) = decode_entries(answer.body)
    return message


@in_loop(in_virtual_time, message_delay_level=LEVELS)
async def test_each_retry_waits_a_level_longer_and_the_last_one_is_a_dead_letter(
    talk: Talk, simulation: Simulation, /
) -> None:
    client, loop = talk.client, asyncio.get_running_loop()
    await client.create()
    first = message = await sent(client)
    for attempt in range(3):
        began = loop.time()
        assert await client.code(back(message, max_reconsume_times=3)) == (0, "")
        message = await next_of(client, RETRY, attempt)
        wanted = 3 + attempt
        assert wanted <= loop.time() - began < wanted + 0.05
        assert message.reconsume_times == attempt + 1
        assert (message.body, message.tags, message.flag, message.msg_id) == (b"x", "paid", 9, "U1")
        assert message.born_timestamp == first.born_timestamp
        assert message.properties["RETRY_TOPIC"] == "T"
        assert message.properties["ORIGIN_MESSAGE_ID"] == first.offset_msg_id
    assert await client.code(back(message, max_reconsume_times=3)) == (0, "")
    (dead,) = await client.messages(topic=DEAD)
    assert (dead.body, dead.reconsume_times, dead.properties["DELAY"]) == (b"x", 4, "0")
    assert (dead.properties["RETRY_TOPIC"], dead.properties["ORIGIN_MESSAGE_ID"]) == (
        "T",
        first.offset_msg_id,
    )
    topic = talk.broker.tables.topics.find(DEAD)
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)
    assert talk.broker.store.max_offset(RETRY, 0) == 3


@in_loop(in_virtual_time, message_delay_level=LEVELS)
async def test_the_consumer_may_choose_the_level_or_the_dead_letters(
    talk: Talk, simulation: Simulation, /
) -> None:
    client, loop = talk.client, asyncio.get_running_loop()
    await client.create()
    message = await sent(client)
    began = loop.time()
    assert await client.code(back(message, 1)) == (0, "")
    await next_of(client, RETRY, 0)
    assert 1 <= loop.time() - began < 1.05
    assert await client.code(back(message, -1)) == (0, "")
    assert [one.body for one in await client.messages(topic=DEAD)] == [b"x"]


@in_loop(in_virtual_time, message_delay_level=LEVELS)
async def test_the_group_s_own_limits_hold_where_the_consumer_says_nothing(
    talk: Talk, simulation: Simulation, /
) -> None:
    client, groups = talk.client, talk.broker.tables.groups
    await client.create()
    groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=0))
    message = await sent(client)
    assert await client.code(back(message)) == (0, "")
    assert len(await client.messages(topic=DEAD)) == 1
    groups.put(SubscriptionGroupConfig(group_name="g", retry_queue_nums=0))
    end = talk.broker.store.log.end
    assert await client.code(back(message)) == (0, "")
    assert talk.broker.store.log.end == end, "a group without retry queues gets nothing again"
    groups.put(SubscriptionGroupConfig(group_name="g", retry_queue_nums=5))
    for _ in range(20):
        assert await client.code(back(message, 1)) == (0, "")
    await asyncio.sleep(1.1)
    assert talk.broker.store.max_offset(RETRY, 0) == 20, "its retry topic has one queue"


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (
            GroupRetryPolicy(
                type=GroupRetryPolicyType.EXPONENTIAL,
                exponential_retry_policy=ExponentialRetryPolicy(initial=1000, max=4500),
            ),
            [1, 2, 4, 5],
        ),
        (
            GroupRetryPolicy(
                customized_retry_policy=CustomizedRetryPolicy(next=(9000, 9000, 1000, 3500))
            ),
            [1, 4, 4],
        ),
        (GroupRetryPolicy(), [3, 4, 5]),
    ],
)
@in_loop(in_virtual_time, message_delay_level=LEVELS)
async def test_the_group_s_retry_policy_chooses_the_first_level_that_waits_as_long(
    talk: Talk, simulation: Simulation, /, policy: GroupRetryPolicy, seconds: list[int]
) -> None:
    client, loop = talk.client, asyncio.get_running_loop()
    await client.create()
    talk.broker.tables.groups.put(
        SubscriptionGroupConfig(group_name="g", group_retry_policy=policy)
    )
    message = await sent(client)
    for attempt, wanted in enumerate(seconds):
        began = loop.time()
        assert await client.code(back(message)) == (0, "")
        message = await next_of(client, RETRY, attempt)
        assert wanted <= loop.time() - began < wanted + 0.05


@in_loop(in_virtual_time, message_delay_level=LEVELS)
async def test_the_maximum_of_the_member_that_was_started_last_holds_for_the_whole_group(
    talk: Talk, simulation: Simulation, /
) -> None:
    client = talk.client
    await client.create()
    others = [Client(client.address) for _ in range(3)]
    for other, (maximum, started) in zip(others, [(0, 3), (9, 2), (None, 4)], strict=True):
        more = {} if maximum is None else {"maxReconsumeTimes": maximum, "startedAt": started}
        await other.join(f"member-{started}", "g", **more)
    await client.join("first", "g", maxReconsumeTimes=5, startedAt=1)
    message = await sent(client)
    assert await client.code(back(message, max_reconsume_times=5)) == (0, "")
    assert len(await client.messages(topic=DEAD)) == 1, "the one started at 3 has told 0"
    for other in others[:2]:
        await other.close()
    await asyncio.sleep(1)
    assert await client.code(back(message, 1, max_reconsume_times=5)) == (0, "")
    assert len(await client.messages(topic=DEAD)) == 1, "that one has gone"
    await others[2].close()


@in_loop(in_virtual_time, message_delay_level=LEVELS)
async def test_why_a_message_was_sent_back_goes_with_it_until_somebody_says_otherwise(
    talk: Talk, simulation: Simulation, /
) -> None:
    client = talk.client
    await client.create()
    message = await sent(client)
    assert await client.code(
        back(message, failure="ValueError: no\x01stock\x02\n" + "!" * 400)
    ) == (0, "")
    message = await next_of(client, RETRY, 0)
    told = message.properties["TURBOPUMP_FAILURE"]
    assert told.startswith("1 ValueError: no stock !!!")
    assert len(told) == 302
    assert await client.code(back(message)) == (0, "")
    message = await next_of(client, RETRY, 1)
    assert "TURBOPUMP_FAILURE" not in message.properties, "it was not the reason of this attempt"
    assert await client.code(back(message, level=-1, failure="no stock")) == (0, "")
    (dead,) = await client.messages(topic=DEAD)
    assert (dead.properties["TURBOPUMP_FAILURE"], dead.reconsume_times) == ("3 no stock", 3)
    full = await sent(client, filler="x" * 20_000)
    assert await client.code(back(full, level=-1, failure="no stock")) == (0, "")
    assert "TURBOPUMP_FAILURE" not in (await client.messages(topic=DEAD))[-1].properties, (
        "there is no room for it"
    )


@in_loop(in_virtual_time)
async def test_what_cannot_be_taken_back_is_refused_with_apache_s_code(
    talk: Talk, simulation: Simulation, /
) -> None:
    client = talk.client
    await client.create()
    message = await sent(client)
    code, remark = await client.code(
        ConsumerSendMsgBack(offset=message.commit_log_offset + 1, group="g", delay_level=0)
    )
    assert code == ResponseCode.SYSTEM_ERROR
    assert remark.startswith("look message by offset failed, ")
    code, remark = await client.code(
        ConsumerSendMsgBack(offset=message.commit_log_offset, group="g g", delay_level=0)
    )
    assert code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "subscription group not exist, g g" in remark


@in_loop(in_virtual_time, message_delay_level=LEVELS)
async def test_a_consumer_s_own_retry_waits_and_one_too_many_is_a_dead_letter(
    talk: Talk, simulation: Simulation, /
) -> None:
    client = talk.client
    text = encode_properties(
        {"UNIQ_KEY": "U1", "DELAY": "1", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "O"}
    )
    await client.send(b"1", topic=RETRY, properties=text, reconsume_times=2, max_reconsume_times=2)
    retried = await next_of(client, RETRY, 0)
    assert (retried.body, retried.reconsume_times) == (b"1", 2)
    await client.send(b"2", topic=RETRY, properties=text, reconsume_times=3, max_reconsume_times=2)
    await client.send(b"3", topic=RETRY, properties=text, reconsume_times=17)
    dead = await client.messages(topic=DEAD)
    assert [(one.body, one.properties["DELAY"]) for one in dead] == [(b"2", "-1"), (b"3", "-1")]
    await asyncio.sleep(10)
    assert talk.broker.store.max_offset(RETRY, 0) == 1


@in_loop(in_virtual_time, message_delay_level=LEVELS)
async def test_a_group_that_consumes_in_order_gives_up_for_good(
    talk: Talk, simulation: Simulation, /
) -> None:
    client = talk.client
    text = encode_properties({"DELAY": "1"})
    body = LockBatchRequestBody(
        consumer_group="g", client_id="c", mq_set=(MessageQueue("T", "broker-a", 0),)
    )
    await client.create()
    await client.ask(LockBatchMq(), fastjson.encode(body))
    await client.send(
        b"given up", topic=RETRY, properties=text, reconsume_times=1, max_reconsume_times=5
    )
    await client.send(
        b"of others", topic="%RETRY%h", properties=text, reconsume_times=1, max_reconsume_times=5
    )
    await client.send(b"resent", topic=RETRY, properties=text)
    assert [message.body for message in await client.messages(topic=DEAD)] == [b"given up"]
    assert (await next_of(client, RETRY, 0)).body == b"resent"
    assert (await next_of(client, "%RETRY%h", 0)).body == b"of others"
    await asyncio.sleep(60)
    await client.send(
        b"when no lock is held",
        topic=RETRY,
        properties=text,
        reconsume_times=1,
        max_reconsume_times=5,
    )
    assert (await next_of(client, RETRY, 1)).body == b"when no lock is held"


@in_loop(
    in_virtual_time,
    message_delay_level=LEVELS,
    flush_disk_type="SYNC_FLUSH",
    sync_flush_timeout=700,
)
async def test_under_sync_flush_a_message_is_taken_back_when_the_copy_is_on_the_disk(
    talk: Talk, simulation: Simulation, /
) -> None:
    client, store = talk.client, talk.broker.store
    await client.create()
    message = await sent(client)
    assert await client.code(back(message)) == (0, "")
    assert store.durable.value == store.log.end
    store.flusher.log_busy = True  # as if a sync took for ever
    code, remark = await client.code(back(message))
    assert code == ResponseCode.SYSTEM_ERROR
    assert "the disk has not answered within 700 ms" in remark


@in_loop(in_virtual_time, message_delay_level=LEVELS)
async def test_a_store_that_takes_nothing_takes_nothing_back(
    talk: Talk, simulation: Simulation, /
) -> None:
    client = talk.client
    await client.create()
    message = await sent(client)
    take_nothing(talk.broker, "the disk is full")
    code, remark = await client.code(back(message))
    assert (code, remark) == (
        ResponseCode.SYSTEM_ERROR,
        "the message was not taken back: the disk is full",
    )
