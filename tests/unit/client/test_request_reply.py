"""Requests that wait for a reply, and replies, against a scripted cluster in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation, simulate
from tests.unit.client.producers import REQUEST, a_request
from tests.unit.client.scripted_cluster import (
    ScriptedBroker,
    ScriptedCluster,
    refusal,
    scripted_cluster,
)
from tests.waits import until, until_count, until_has

from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.client.producer import Producer
from turbopump.client.push_consumer import PushConsumer
from turbopump.client.request_reply import reply_to
from turbopump.client.sending.settings import DEFAULT_GROUP
from turbopump.errors import (
    ClientErrorCode,
    ConfigError,
    MessageError,
    NotStartedError,
    RemotingError,
    ReplyError,
    RequestError,
    RequestTimeoutError,
    SendError,
)
from turbopump.message.compression import compress
from turbopump.message.message import Message, MessageQueue, ReceivedMessage
from turbopump.message.properties import LZ4, ZLIB, ZSTD, SysFlag, decode_properties
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests.clients import Heartbeat
from turbopump.protocol.requests.send import SendMessageV2, SendReplyMessageV2

Scenario = Callable[[ScriptedCluster, Producer], Coroutine[Any, Any, None]]


def producer_of(cluster: ScriptedCluster, **settings: Any) -> Producer:
    return Producer(cluster.name_server.address, **{**cluster.settings, **settings})


async def main(brokers: int, scenario: Scenario, settings: Any, simulation: Simulation) -> None:
    async with scripted_cluster(simulation, brokers=brokers) as cluster:
        cluster.name_server.route("c_REPLY_TOPIC", *cluster.brokers, queues=1)
        async with producer_of(cluster, **settings) as producer:
            await scenario(cluster, producer)


def with_producer(scenario: Scenario, *, brokers: int = 1, **settings: Any) -> None:
    simulate(1, partial(main, brokers, scenario, settings))


def asked(cluster: ScriptedCluster) -> list[tuple[ScriptedBroker, dict[str, str]]]:
    """Every request that came to a broker: where, and with what properties."""
    return [
        (broker, decode_properties(request.properties or ""))
        for broker in cluster.brokers
        for request in broker.requests(SendMessageV2)
    ]


async def until_asked(cluster: ScriptedCluster, count: int) -> None:
    """Wait until so many requests came to the brokers."""
    await until(lambda: len(asked(cluster)) == count)


async def answer(
    cluster: ScriptedCluster,
    body: bytes = b"re",
    *,
    number: int = 0,
    sys_flag: int = 0,
    **more: Any,
) -> None:
    """Push a reply to the request ``number``; the producer takes it."""
    await until(lambda: len(asked(cluster)) > number)
    broker, properties = asked(cluster)[number]
    text = f"CORRELATION_ID\x01{properties['CORRELATION_ID']}\x02MSG_TYPE\x01reply"
    taken = await broker.push_reply(properties["REPLY_TO_CLIENT"], text, body, sys_flag, **more)
    assert taken is not None
    assert taken.code == ResponseCode.SUCCESS


# --- asking
# -----------------------------------------------------------------------------------------------


@in_loop(with_producer)
async def test_a_request_is_given_as_a_topic_and_a_body_too(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    waiting = asyncio.create_task(producer.request("orders", b"what?", tags="t", timeout=5))
    await answer(cluster, b"that")
    assert (await waiting).body == b"that"
    ((_, sent),) = asked(cluster)
    assert sent["TAGS"] == "t"
    with pytest.raises(TypeError, match="a topic without a body"):
        await producer.request("orders")


@in_loop(with_producer)
async def test_a_request_says_who_waits_and_gets_the_reply_that_is_pushed(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    request = Message("orders", b"what?", tags="t", properties={"colour": "red"})
    waiting = asyncio.create_task(producer.request(request, timeout=5))
    await answer(cluster, b"that", host="::1:40000")
    reply = await waiting
    assert (reply.body, reply.born_host, reply.store_timestamp) == (b"that", ("::1", 40000), 2)
    assert reply.properties["MSG_TYPE"] == "reply"
    assert reply.properties["ARRIVE_TIME"] == str(cluster.settings["clock"].now_ms())
    ((_, sent),) = asked(cluster)
    assert (sent["REPLY_TO_CLIENT"], sent["TTL"], sent["TAGS"], sent["colour"]) == (
        producer.client_id,
        "5000",
        "t",
        "red",
    )
    assert reply.properties["CORRELATION_ID"] == sent["CORRELATION_ID"]
    assert request.properties == {"TAGS": "t", "colour": "red"}, "the caller's own is not changed"


@in_loop(with_producer)
async def test_the_broker_knows_the_producer_before_it_gets_the_request(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    cluster.broker.script[RequestCode.HEART_BEAT].append(None)  # the first is lost
    waiting = asyncio.create_task(producer.request(Message("orders", b"x"), timeout=20))
    await answer(cluster)
    await waiting
    kinds = [type(request) for request, _ in cluster.broker.received]
    assert kinds.index(SendMessageV2) > kinds.index(Heartbeat) + 1, (
        "only after a heartbeat was answered"
    )


@in_loop(with_producer)
async def test_many_requests_at_once_each_get_their_own_reply(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    waiting = [
        asyncio.create_task(producer.request(Message("orders", f"{n}"), timeout=60))
        for n in range(300)
    ]
    await until_asked(cluster, 300)
    sent = [
        (request, body)
        for request, body in cluster.broker.received
        if isinstance(request, SendMessageV2)
    ]
    ids = {decode_properties(request.properties or "")["CORRELATION_ID"] for request, _ in sent}
    assert len(ids) == 300
    for number in reversed(range(300)):
        await answer(cluster, b"re:" + sent[number][1], number=number)
    assert [reply.body for reply in await asyncio.gather(*waiting)] == [
        b"re:%d" % n for n in range(300)
    ]


@pytest.mark.parametrize("kind", [ZLIB, LZ4, ZSTD])
@in_loop(with_producer)
async def test_a_compressed_reply_is_read(
    cluster: ScriptedCluster, producer: Producer, /, kind: int
) -> None:
    waiting = asyncio.create_task(producer.request(Message("orders", b"x")))
    body, sys_flag = compress(b"long " * 1000, kind)
    await answer(cluster, body, sys_flag=sys_flag)
    assert (await waiting).body == b"long " * 1000


@in_loop(with_producer)
async def test_a_reply_that_says_it_is_compressed_and_is_not_is_taken_as_it_is(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    waiting = asyncio.create_task(producer.request(Message("orders", b"x")))
    await answer(cluster, b"as it is", sys_flag=SysFlag.COMPRESSED)
    assert (await waiting).body == b"as it is"


@in_loop(with_producer)
async def test_a_request_without_a_reply_times_out_and_a_late_reply_is_counted(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(
        RequestTimeoutError,
        match="Check that a consumer of the topic is running and replies in that time",
    ) as caught:
        await producer.request(Message("orders", b"x"), timeout=2)
    assert loop.time() - began == pytest.approx(2, abs=0.001)
    error = caught.value
    assert (error.topic, error.broker) == ("orders", "broker-a")
    assert error.spent_ms == pytest.approx(2000, abs=1)
    assert "'orders'" in str(error)
    assert "2000 ms" in str(error)
    assert producer.late_replies == 0
    await answer(cluster)
    await answer(cluster)
    assert producer.late_replies == 2
    waiting = asyncio.create_task(producer.request(Message("orders", b"y")))
    await answer(cluster, b"now", number=1)
    assert (await waiting).body == b"now"


@in_loop(with_producer)
async def test_a_second_reply_to_the_same_request_is_dropped(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    waiting = asyncio.create_task(producer.request(Message("orders", b"x")))
    await answer(cluster, b"first")
    await answer(cluster, b"second")
    assert (await waiting).body == b"first"
    assert producer.late_replies == 1


@in_loop(with_producer)
async def test_a_request_that_cannot_be_sent_fails_at_once_with_the_error_of_the_send(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    loop = asyncio.get_running_loop()
    cluster.broker.script[RequestCode.SEND_MESSAGE_V2].append(
        refusal(ResponseCode.MESSAGE_ILLEGAL, "too odd")
    )
    began = loop.time()
    with pytest.raises(SendError, match="too odd"):
        await producer.request(Message("orders", b"x"), timeout=60)
    with pytest.raises(MessageError, match="the body is empty"):
        await producer.request(Message("orders", b""), timeout=60)
    assert loop.time() - began < 1
    assert len(producer._started().instance.requests) == 0


@in_loop(with_producer)
async def test_a_reply_that_comes_before_the_send_is_answered_counts(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    cluster.broker.script[RequestCode.SEND_MESSAGE_V2].append(None)
    waiting = asyncio.create_task(producer.request(Message("orders", b"x"), timeout=60))
    await answer(cluster)
    reply = await asyncio.wait_for(waiting, 1)
    assert reply.body == b"re"
    assert len(asked(cluster)) == 1


@in_loop(with_producer)
async def test_no_more_requests_wait_than_may(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    requests = producer._started().instance.requests
    requests.limit = 2
    waiting = [
        asyncio.create_task(producer.request(Message("orders", b"x"), timeout=5)) for _ in range(2)
    ]
    await until_asked(cluster, 2)
    with pytest.raises(RequestError, match="2 requests of this client wait for replies"):
        await producer.request(Message("orders", b"x"), timeout=5)
    waiting[0].cancel()
    await until_count(requests, 1)
    another = asyncio.create_task(producer.request(Message("orders", b"y"), timeout=5))
    await answer(cluster, b"re", number=1)
    await answer(cluster, b"re", number=2)
    await asyncio.gather(waiting[1], another)
    assert len(requests) == 0


@in_loop(with_producer)
async def test_closing_the_producer_fails_what_waits(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    waiting = asyncio.create_task(producer.request(Message("orders", b"x"), timeout=60))
    await until_asked(cluster, 1)
    await producer.close()
    with pytest.raises(RequestError, match="closed while a request of it waited"):
        await waiting
    with pytest.raises(NotStartedError):
        await producer.request(Message("orders", b"x"))


@in_loop(with_producer)
async def test_a_request_that_begins_while_the_producer_closes_does_not_wait(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    cluster.broker.script[RequestCode.SEND_MESSAGE_V2].append(None)
    sending = asyncio.create_task(producer.send("orders", b"x"))  # which the close waits for
    await until_asked(cluster, 1)
    waiting = asyncio.create_task(producer.request(Message("orders", b"x"), timeout=60))
    await until_asked(cluster, 2)
    closing = asyncio.create_task(producer.close())
    await asyncio.sleep(0.1)
    with pytest.raises(RequestError):
        await producer.request(Message("orders", b"x"), timeout=60)
    await asyncio.wait({sending, waiting, closing})
    assert isinstance(waiting.exception(), RequestError)
    assert len(producer._started().instance.requests) == 0
    sending.exception()


@in_loop(with_producer)
async def test_closing_one_producer_leaves_the_requests_of_another_alone(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    async with producer_of(cluster, group="other") as other:
        assert other.client_id == producer.client_id
        kept = asyncio.create_task(producer.request(Message("orders", b"x"), timeout=60))
        await until_asked(cluster, 1)
        lost = asyncio.create_task(other.request(Message("orders", b"x"), timeout=60))
        await until_asked(cluster, 2)
    with pytest.raises(RequestError):
        await lost
    await answer(cluster, b"still here")
    assert (await kept).body == b"still here"


@in_loop(with_producer)
async def test_a_lost_connection_is_made_again_at_once_while_somebody_waits(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    waiting = asyncio.create_task(producer.request(Message("orders", b"x"), timeout=60))
    await until_asked(cluster, 1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await cluster.broker.stop()
    await asyncio.sleep(2)
    await cluster.broker.start()
    await until_has(cluster.broker.producing, producer.client_id)
    assert loop.time() - began < 5, "not only with the next heartbeat, after half a minute"
    await answer(cluster)
    assert (await waiting).body == b"re"


@in_loop(with_producer, brokers=2)
async def test_every_broker_of_the_cluster_may_bring_the_reply(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    here, there = cluster.brokers
    cluster.name_server.route("only-here", here)
    waiting = asyncio.create_task(producer.request(Message("only-here", b"x"), timeout=60))
    await until_has(there.producing, producer.client_id)
    await until_asked(cluster, 1)
    properties = asked(cluster)[0][1]
    pushed = await there.push_reply(
        producer.client_id, f"CORRELATION_ID\x01{properties['CORRELATION_ID']}\x02", b"by there"
    )
    assert pushed is not None
    assert (await waiting).body == b"by there"


@in_loop(with_producer, brokers=2)
async def test_a_broker_that_answers_no_heartbeat_is_not_asked_but_another_one(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    deaf, good = cluster.brokers
    deaf.script[RequestCode.HEART_BEAT].extend([None] * 50)
    for number in range(4):
        waiting = asyncio.create_task(producer.request(Message("orders", b"x"), timeout=10))
        await until(lambda wanted=number + 1: len(good.requests(SendMessageV2)) == wanted)  # type: ignore[misc]
        await answer(cluster, number=number)
        await waiting
    assert deaf.requests(SendMessageV2) == []


async def ask(
    ends: list[type | None],
    loop: asyncio.AbstractEventLoop,
    source: Any,
    producer: Producer,
    number: int,
) -> None:
    await asyncio.sleep(source.uniform(0, 20))
    began = loop.time()
    try:
        reply = await producer.request(Message("orders", f"{number}"), timeout=5)
        assert reply.body == b"re:%d" % number
        ends.append(None)
    except (RequestTimeoutError, SendError) as error:
        ends.append(type(error))
    assert loop.time() - began < 5.1


async def reply_to_most(source: Any, broker: ScriptedBroker) -> None:
    seen = 0
    while True:
        await asyncio.sleep(0.01)
        for request, body in broker.received[seen:]:
            if type(request) is SendMessageV2 and source.random() < 0.8:
                properties = decode_properties(request.properties or "")
                text = f"CORRELATION_ID\x01{properties['CORRELATION_ID']}\x02"
                with contextlib.suppress(RemotingError):
                    await broker.push_reply(properties["REPLY_TO_CLIENT"], text, b"re:" + body)
        seen = len(broker.received)


async def trouble(source: Any, broker: ScriptedBroker) -> None:
    while True:
        await asyncio.sleep(source.uniform(1, 6))
        if source.random() < 0.5:
            broker.go_deaf()
        else:
            await broker.stop()
            await asyncio.sleep(source.uniform(0, 3))
            await broker.start()


@pytest.mark.parametrize("seed", range(5))
@in_loop(simulated)
async def test_whatever_brokers_do_requests_end_by_their_deadlines_with_their_reply_or_an_error(
    simulation: Simulation, /, seed: int
) -> None:
    source, loop = simulation.random, asyncio.get_running_loop()
    ends: list[type | None] = []

    async with scripted_cluster(simulation, brokers=2) as cluster:
        cluster.name_server.route("c_REPLY_TOPIC", *cluster.brokers, queues=1)
        beside = [
            asyncio.create_task(work(broker))
            for broker in cluster.brokers
            for work in (partial(reply_to_most, source), partial(trouble, source))
        ]
        async with producer_of(cluster) as producer:
            await asyncio.gather(
                *(ask(ends, loop, source, producer, number) for number in range(200))
            )
            assert len(producer._started().instance.requests) == 0
        for task in beside:
            task.cancel()
        await asyncio.wait(beside)
    assert len(ends) == 200
    assert ends.count(None) > 50


@in_loop(with_producer)
async def test_a_request_goes_where_it_is_told(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    queue = (await producer.publish_queues("orders"))[2]
    for number, where in enumerate(
        [{"queue": queue}, {"selector": lambda queues, _: queues[2]}, {"sharding_key": 17}]
    ):
        waiting = asyncio.create_task(producer.request(Message("orders", b"x"), **where))  # type: ignore[arg-type]
        await answer(cluster, number=number)
        await waiting
    sent = cluster.broker.requests(SendMessageV2)
    assert [request.queue_id for request in sent] == [2, 2, 17 % 4]
    with pytest.raises(ConfigError):
        await producer.request(
            Message("orders", b"x"),
            selector=lambda queues, _: MessageQueue("orders", "broker-a", 9),
        )


@in_loop(with_producer, namespace="ns")
async def test_a_namespace_is_put_on_the_request_topic(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    cluster.name_server.route("ns%orders", cluster.broker)
    waiting = asyncio.create_task(producer.request(Message("orders", b"x")))
    await answer(cluster)
    await waiting
    assert [request.topic for request in cluster.broker.requests(SendMessageV2)] == ["ns%orders"]


# --- replying
# -----------------------------------------------------------------------------------------------


@in_loop(with_producer)
async def test_a_reply_carries_what_the_request_said_and_is_not_a_plain_send(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    cluster.broker.script[RequestCode.SEND_REPLY_MESSAGE_V2].append(None)
    waiting = asyncio.create_task(producer.reply(a_request(), "that", properties={"n": "1"}))
    await until(cluster.broker.requests, SendReplyMessageV2)
    waiting.cancel()
    (sent,) = cluster.broker.requests(SendReplyMessageV2)
    assert (sent.topic, sent.queue_id, sent.producer_group, sent.broker_name) == (
        "c_REPLY_TOPIC",
        0,
        DEFAULT_GROUP,
        "broker-a",
    )
    properties = decode_properties(sent.properties or "")
    assert properties.pop("UNIQ_KEY")
    assert properties == {
        "n": "1",
        "CORRELATION_ID": "c-1",
        "REPLY_TO_CLIENT": "somebody",
        "TTL": "3000",
        "MSG_TYPE": "reply",
    }
    assert cluster.broker.requests(SendMessageV2) == []


@in_loop(with_producer)
async def test_a_consumer_replies_to_what_it_is_given(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    async def handler(request: ReceivedMessage) -> None:
        await consumer.reply(request, b"re:" + request.body)

    consumer = PushConsumer(
        cluster.name_server.address,
        group="g",
        topic="orders",
        consume_from=ConsumeFrom.FIRST,
        handler=handler,
        **cluster.settings,
    )
    cluster.broker.entries.clear()
    async with consumer:
        # a scripted broker adds no CLUSTER, as real ones do
        request = Message.as_it_is("orders", b"what?", {"CLUSTER": "c"})
        assert (await producer.request(request, timeout=5)).body == b"re:what?"
    (sent,) = cluster.broker.requests(SendReplyMessageV2)
    assert sent.producer_group == "CLIENT_INNER_PRODUCER"


@in_loop(with_producer, brokers=2)
async def test_a_reply_is_brought_to_the_broker_of_its_request_and_else_to_another(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    one, two = cluster.brokers
    waiting = asyncio.create_task(producer.request(Message("orders", b"x"), timeout=10))
    await until(
        lambda: (
            len(asked(cluster)) == 1
            and all(producer.client_id in b.producing for b in cluster.brokers)
        )
    )
    sent = asked(cluster)[0][1]
    request = a_request(
        "broker-b",
        "".join(f"{name}\x01{value}\x02" for name, value in {**sent, "CLUSTER": "c"}.items()),
    )
    async with producer_of(cluster, instance_name="replier") as replier:
        two.script[RequestCode.SEND_REPLY_MESSAGE_V2].append(
            refusal(ResponseCode.SYSTEM_ERROR, "not found")
        )
        result = await replier.reply(request, b"by one", timeout=5)
        assert result.queue.broker_name == "broker-a"
        assert (await waiting).body == b"by one"
        assert [len(broker.requests(SendReplyMessageV2)) for broker in (one, two)] == [1, 1]
        result = await replier.reply(request, b"again")
        assert result.queue.broker_name == "broker-b"
        assert producer.late_replies == 1


@in_loop(with_producer)
async def test_a_reply_that_reaches_nobody_is_an_error_with_the_cause(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    with pytest.raises(ReplyError, match="channel of <somebody> not found") as caught:
        await producer.reply(a_request(), b"that")
    assert (caught.value.client_id, caught.value.code) == ("somebody", ResponseCode.SYSTEM_ERROR)
    text = str(caught.value)
    assert "REQUEST-1" in text
    assert "that producer has ended, gave up, or is just connecting again" in text
    await cluster.broker.stop()
    with pytest.raises(ReplyError) as caught:
        await producer.reply(a_request(), b"that")
    assert caught.value.code == ClientErrorCode.CONNECT_BROKER


@in_loop(with_producer)
async def test_a_refused_reply_is_tried_again_for_who_is_just_connecting(
    cluster: ScriptedCluster, producer: Producer, /
) -> None:
    waiting = asyncio.create_task(producer.request(Message("orders", b"x"), timeout=10))
    await until_asked(cluster, 1)
    sent = asked(cluster)[0][1]
    request = a_request(
        properties="".join(
            f"{name}\x01{value}\x02" for name, value in {**sent, "CLUSTER": "c"}.items()
        )
    )
    cluster.broker.script[RequestCode.SEND_REPLY_MESSAGE_V2].append(
        refusal(ResponseCode.SYSTEM_ERROR, "not found")
    )
    await producer.reply(request, b"that")
    assert (await waiting).body == b"that"


def test_only_a_request_can_be_replied_to() -> None:
    for missing in ("REPLY_TO_CLIENT", "CORRELATION_ID", "CLUSTER"):
        pairs = {
            name: value for name, value in decode_properties(REQUEST).items() if name != missing
        }
        request = a_request(
            properties="".join(f"{name}\x01{value}\x02" for name, value in pairs.items())
        )
        with pytest.raises(
            MessageError, match=f"expects no reply, because property {missing} is missing"
        ):
            reply_to(request, b"x")
    assert reply_to(a_request(), "text").body == b"text"


@in_loop(with_producer)
async def test_a_long_reply_is_compressed(cluster: ScriptedCluster, producer: Producer, /) -> None:
    waiting = asyncio.create_task(producer.request(Message("orders", b"x"), timeout=10))
    await until_asked(cluster, 1)
    sent = asked(cluster)[0][1]
    request = a_request(
        properties="".join(
            f"{name}\x01{value}\x02" for name, value in {**sent, "CLUSTER": "c"}.items()
        )
    )
    await producer.reply(request, b"long " * 1000)
    (reply,) = cluster.broker.requests(SendReplyMessageV2)
    assert reply.sys_flag & SysFlag.COMPRESSED
    assert (await waiting).body == b"long " * 1000
