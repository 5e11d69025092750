"""Properties that a user gives a message, and those of a received one that he hands on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.loops import in_loop
from tests.stand_ins import does_nothing

from turbopump.client.producer import Producer
from turbopump.client.pull_consumer import PullConsumer
from turbopump.client.transaction_producer import TransactionProducer, TransactionState
from turbopump.errors import MessageError
from turbopump.message.message import Message, ReceivedMessage
from turbopump.testing import running_broker

JAVA_S = [
    "KEYS",
    "TAGS",
    "WAIT",
    "DELAY",
    "RETRY_TOPIC",
    "REAL_TOPIC",
    "REAL_QID",
    "TRAN_MSG",
    "PGROUP",
    "MIN_OFFSET",
    "MAX_OFFSET",
    "BUYER_ID",
    "ORIGIN_MESSAGE_ID",
    "TRANSFER_FLAG",
    "CORRECTION_FLAG",
    "MQ2_FLAG",
    "RECONSUME_TIME",
    "MSG_REGION",
    "TRACE_ON",
    "EXTEND_UNIQ_INFO",
    "MAX_RECONSUME_TIMES",
    "CONSUME_START_TIME",
    "DUP_INFO",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "INSTANCE_ID",
    "CORRELATION_ID",
    "REPLY_TO_CLIENT",
    "TTL",
    "ARRIVE_TIME",
    "PUSH_REPLY_TIME",
    "CLUSTER",
    "MSG_TYPE",
    "POP_CK",
    "POP_CK_OFFSET",
    "1ST_POP_TIME",
    "INNER_MULTI_QUEUE_OFFSET",
    "TIMER_DELAY_SEC",
    "TIMER_DELIVER_MS",
    "__BORNHOST",
    "BORN_TIMESTAMP",
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "TIMER_ROLL_TIMES",
    "TIMER_OUT_MS",
    "TIMER_DEL_UNIQKEY",
    "TIMER_DELAY_LEVEL",
    "TIMER_DELAY_MS",
    "__CRC32#",
    "DLQ_ORIGIN_TOPIC",
    "DLQ_ORIGIN_MESSAGE_ID",
]
"""``MessageConst.STRING_HASH_SET`` of 5.3.3 but for UNIQ_KEY."""


@pytest.mark.parametrize("name", JAVA_S)
def test_names_of_rocketmq_s_own_are_refused_as_java_refuses_them(name: str) -> None:
    with pytest.raises(MessageError, match=f"property '{name}' belongs to RocketMQ: "):
        Message("orders", b"x", properties={"mine": "1", name: "v"})
    with pytest.raises(MessageError, match=f"property '{name}'"):
        Message("orders", b"x").with_property(name, "v")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("KEYS", "give keys="),
        ("TAGS", "give tags="),
        ("DELAY", "give delay_level="),
        ("TIMER_DELIVER_MS", "give deliver_at="),
        ("TIMER_DELAY_SEC", "give delay="),
        ("TRAN_MSG", "send_in_transaction"),
        ("TIMER_DEL_UNIQKEY", "Producer.recall"),
        ("POP_CK", "choose another name"),
    ],
)
def test_the_refusal_says_what_to_use_instead(name: str, instead: str) -> None:
    with pytest.raises(MessageError, match=instead):
        Message("orders", b"x", properties={name: "v"})


@pytest.mark.parametrize(
    "properties", [{"": "v"}, {"a": ""}, {" ": "v"}, {"a": " \t"}, {"UNIQ_KEY": ""}]
)
def test_what_is_blank_is_refused_for_it_would_be_lost(properties: dict[str, str]) -> None:
    with pytest.raises(MessageError, match="is blank, and would be lost"):
        Message("orders", b"x", properties=properties)


@pytest.mark.parametrize(
    "name", ["UNIQ_KEY", "CHECK_IMMUNITY_TIME_IN_SECONDS", "__SHARDINGKEY", "traceparent", "keys"]
)
def test_an_id_of_one_s_own_and_what_java_lets_through_may_be_given(name: str) -> None:
    assert Message("orders", b"x", properties={name: " v"}).properties == {name: " v"}


def test_own_properties_are_told_apart_from_those_that_rocketmq_keeps_among_them() -> None:
    message = Message(
        "orders",
        b"x",
        tags="t",
        keys="k",
        delay_level=3,
        wait_store_ok=False,
        properties={"mine": "1"},
    )
    assert message.user_properties == {"mine": "1"}
    assert message.with_property("more", "2").properties == {**message.properties, "more": "2"}


@in_loop
async def test_a_received_message_is_sent_on_with_its_senders_properties_not_the_brokers() -> None:
    async with running_broker() as broker:
        await broker.create_topic("orders", 1)
        await broker.create_topic("copies", 1)
        async with Producer(broker.namesrv) as producer:
            await producer.send(
                Message("orders", b"x", tags="t", keys="k", delay=0.1, properties={"mine": "1"})
            )
            (got,) = await messages_of(broker.namesrv, "orders", 1)
            assert got.user_properties == {"UNIQ_KEY": got.msg_id, "mine": "1"}
            await producer.send("copies", got.body, properties=got.properties)
            await producer.send("copies", got.body, properties={**got.properties, "hop": "2"})
            await producer.send(
                Message("copies", got.body, properties=got.properties).with_property("hop", "3")
            )
            with pytest.raises(MessageError, match="blank"):
                Message("copies", b"x", properties={**got.properties, "hop": ""})
            empty: Any = {"mine": "1", "lost": ""}
            message = Message("orders", b"x")
            message.properties = empty
            with pytest.raises(MessageError, match="property 'lost' with the value '' is blank"):
                await producer.send(message)
            with pytest.raises(MessageError, match="property 'lost'"):
                await producer.send_batch([message])
        copies = await messages_of(broker.namesrv, "copies", 3)
        assert [copy.properties.get("hop") for copy in copies] == [None, "2", "3"]
        for copy in copies:
            assert (copy.tags, copy.keys, copy.msg_id, copy.properties["mine"]) == (
                "t",
                ["k"],
                got.msg_id,
                "1",
            )
            assert not any(name.startswith(("TIMER", "REAL_")) for name in copy.properties)


async def execute(message: Message, _arg: object) -> TransactionState:
    assert message.properties["TRAN_MSG"] == "true"
    return TransactionState.COMMIT


@in_loop
async def test_a_message_with_everything_can_still_be_the_one_of_a_transaction() -> None:
    async with running_broker() as broker:
        await broker.create_topic("orders", 1)

        async with TransactionProducer(
            broker.namesrv, group="shop", checker=does_nothing, executor=execute
        ) as producer:
            message = Message("orders", b"x", tags="t", keys="k", properties={"mine": "1"})
            await producer.send_in_transaction(message)
        (got,) = await messages_of(broker.namesrv, "orders", 1)
        assert (got.tags, got.keys, got.properties["mine"]) == ("t", ["k"], "1")
        async with Producer(broker.namesrv) as plain:
            await plain.send("orders", b"again", properties=got.properties)
        _, again = await messages_of(broker.namesrv, "orders", 2)
        assert not {"TRAN_MSG", "PGROUP", "__transactionId__"} & again.properties.keys()


async def messages_of(namesrv: str, topic: str, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    async with PullConsumer(namesrv, group="reader") as consumer, asyncio.timeout(60):
        (queue,) = await consumer.queues(topic)
        while len(found) < count:
            found += (await consumer.pull(queue, len(found), wait=5.0)).messages
    return found


def test_a_new_property_holds_no_separator_of_names() -> None:
    with pytest.raises(MessageError, match=r"U\+0001 or U\+0002"):
        Message("orders", b"x", properties={"p": "a\x01b"})
