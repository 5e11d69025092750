"""Users with nothing but Pub on a topic, or Sub on a topic and a group, do their whole work; and
cannot reach by the place of a message what they may not by the name of its topic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop
from tests.stand_ins import async_returns, returns
from tests.unit.auth.signed import ADMINISTRATOR, ON, asking

from turbopump import (
    ConsumeFrom,
    Credentials,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
)
from turbopump.errors import ResponseError
from turbopump.message.entry import ENTRY_HEAD, FIXED_SIZE, MAGIC_V1
from turbopump.message.ids import decode_offset_msg_id
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.access import (
    AclInfo,
    CreateAcl,
    CreateUser,
    PolicyEntryInfo,
    PolicyInfo,
    UserInfo,
)
from turbopump.protocol.requests.clients import Heartbeat, HeartbeatData, ProducerData
from turbopump.protocol.requests.consumers import GetProducerConnectionList
from turbopump.protocol.requests.offsets import GetMaxOffset
from turbopump.protocol.requests.pull import ViewMessageById
from turbopump.protocol.requests.send import CheckTransactionState, ConsumerSendMsgBack
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.router import HELD, Outcome, RequestContext
from turbopump.testing.broker_in_loop import RunningBroker, running_broker

PUB, SUB, OTHER = Credentials("pub", "p"), Credentials("sub", "s"), Credentials("other", "o")
BOTH = Credentials("both", "b")
POLICIES = {
    PUB: [("Topic:T", "Pub"), ("Topic:fresh", "Pub")],
    SUB: [("Topic:T", "Sub"), ("Group:G", "Sub")],
    OTHER: [("Topic:U", "Pub")],
    BOTH: [("Topic:both", "All"), ("Group:B", "Sub")],
}


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[RunningBroker]:
    """Servers with the users, and the topics T and both, theirs, and secret, with a message."""
    async with running_broker(**ON, **settings) as running, asking() as admin:
        await running.create_topic("T", credentials=ADMINISTRATOR)
        await running.create_topic("secret", credentials=ADMINISTRATOR)
        await running.create_topic("both", credentials=ADMINISTRATOR)
        for user, may in POLICIES.items():
            name, subject = user.access_key, f"User:{user.access_key}"
            entries = [
                PolicyEntryInfo(resource=resource, actions=[action], decision="Allow")
                for resource, action in may
            ]
            acl = AclInfo(policies=[PolicyInfo(entries=entries)])
            for address in (running.namesrv, running.broker_address):
                await admin.call(
                    address, CreateUser(username=name), UserInfo(password=user.secret_key)
                )
                await admin.call(address, CreateAcl(subject=subject), acl)
        yield running


async def send(running: RunningBroker, body: bytes, topic: str = "T") -> str:
    credentials = PUB if topic == "T" else ADMINISTRATOR
    async with Producer(running.namesrv, credentials=credentials) as producer:
        return (await producer.send(topic, body)).offset_msg_id


def consumer(running: RunningBroker, **settings: object) -> PushConsumer:
    return PushConsumer(
        running.namesrv,
        group="G",
        topic="T",
        credentials=SUB,
        consume_from=ConsumeFrom.FIRST,
        **settings,  # type: ignore[arg-type]
    )


def denials(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "turbopump.audit"]


@in_loop
async def test_a_push_consumer_has_a_message_again_that_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as running:
        await send(running, b"1")
        async with consumer(running) as one:
            (first,) = await one.take(1)
            first.retry(level=1)
            (again,) = await one.take(1)
            again.done()
        assert (first.body, again.body, again.attempt) == (b"1", b"1", 2)
    assert denials(caplog) == []


@in_loop
async def test_lite_pull_and_pull_consumers_read(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as running:
        await send(running, b"1")
        async with LitePullConsumer(
            running.namesrv, group="G", topic="T", credentials=SUB, consume_from=ConsumeFrom.FIRST
        ) as lite:
            assert [one.body for one in await lite.poll(timeout=60)] == [b"1"]
        async with PullConsumer(running.namesrv, group="G", credentials=SUB) as pull:
            (queue,) = await pull.queues("T")
            result = await pull.pull(queue, await pull.min_offset(queue))
            await pull.commit(queue, result.next_offset)
            assert [one.body for one in result.messages] == [b"1"]
            assert await pull.committed(queue) == await pull.max_offset(queue) == 1
    assert denials(caplog) == []


@in_loop
async def test_a_simple_consumer_pops_and_acknowledges(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as running:
        await send(running, b"1")
        async with SimpleConsumer(
            running.namesrv, group="G", topic="T", credentials=SUB, consume_from=ConsumeFrom.FIRST
        ) as pops:
            (message,) = await pops.receive(max_messages=1, invisible_seconds=300, timeout=60)
            await pops.change_invisible_time(message, 60)
            await pops.ack(message)
            assert message.body == b"1"
    assert denials(caplog) == []


@in_loop
async def test_brokers_divide_the_queues_for_a_push_consumer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as running:
        await send(running, b"1")
        async with consumer(running, client_rebalance=False) as one:
            (taken,) = await one.take(1)
            taken.done()
        assert taken.body == b"1"
    assert denials(caplog) == []


@in_loop
async def test_a_request_is_answered_by_who_may_only_consume_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as running:

        async def answer(message: ReceivedMessage) -> None:
            await replying.reply(message, b"reply to " + message.body)

        replying = consumer(running, handler=answer)
        async with replying, Producer(running.namesrv, credentials=PUB) as producer:
            reply = await producer.request(Message("T", b"a book"), timeout=20)
        assert reply.body == b"reply to a book"
    assert denials(caplog) == []


@in_loop
async def test_a_transaction_is_committed_by_who_may_only_publish(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as running:
        async with TransactionProducer(
            running.namesrv,
            group="writers",
            executor=async_returns(TransactionState.COMMIT),
            checker=returns(TransactionState.COMMIT),
            topics=["T"],
            credentials=PUB,
        ) as producer:
            result = await producer.send_in_transaction(Message("T", b"1"))
        assert result.state is TransactionState.COMMIT
        async with consumer(running) as one:
            (taken,) = await one.take(1)
            taken.done()
        assert taken.body == b"1"
    assert denials(caplog) == []


def beat(client_id: str) -> HeartbeatData:
    """What Java's producer says, which has a producer of the client itself, too."""
    groups = ("writers", "CLIENT_INNER_PRODUCER")
    producers = tuple(ProducerData(group_name=name) for name in groups)
    return HeartbeatData(client_id=client_id, producer_data_set=producers)


async def writers(admin: RemotingClient, address: str) -> list[str | None]:
    found = await admin.call(address, GetProducerConnectionList(producer_group="writers"))
    return [one.client_id for one in found.connection_set]


@in_loop
async def test_who_may_publish_nothing_is_asked_about_no_half_message() -> None:
    async with serving() as running, asking() as admin, asking(PUB) as pub, asking(SUB) as sub:
        at = running.broker_address
        await sub.call(at, Heartbeat(), beat("sub's"))
        await pub.call(at, Heartbeat(), beat("pub's"))
        assert await writers(admin, at) == ["pub's"]


def note(
    asked: list[CheckTransactionState], request: CheckTransactionState, _context: RequestContext
) -> Outcome[None]:
    asked.append(request)
    return HELD


@in_loop
async def test_half_messages_go_to_nobody_who_may_not_publish_to_their_topic() -> None:
    asked: list[CheckTransactionState] = []

    async with (
        serving(transaction_time_out=1, transaction_check_interval=50) as running,
        asking(OTHER) as other,
    ):
        other.router.add(CheckTransactionState, partial(note, asked))
        await other.call(running.broker_address, Heartbeat(), beat("other's"))
        async with (
            TransactionProducer(
                running.namesrv,
                group="writers",
                executor=async_returns(TransactionState.UNKNOWN),
                checker=returns(TransactionState.COMMIT),
                topics=["T"],
                credentials=PUB,
            ) as producer,
            consumer(running) as one,
        ):
            for number in range(4):  # members of a group are asked in turn
                await producer.send_in_transaction(Message("T", b"%d" % number))
                (taken,) = await one.take(1)
                taken.done()
    assert asked == []


@in_loop
async def test_the_client_id_of_another_user_s_client_that_is_connected_is_not_taken_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as running, asking() as admin, asking(PUB) as again:
        at = running.broker_address
        async with asking(PUB) as pub:
            await pub.call(at, Heartbeat(), beat("c"))
            await admin.call(at, Heartbeat(), beat("c"))
            assert await writers(admin, at) == ["c"]
            assert "client id clientId=c user=admin" in caplog.text
            await again.call(at, Heartbeat(), beat("c"))
            assert await writers(admin, at) == ["c", "c"]


@in_loop
async def test_the_first_message_of_a_topic_is_sent_by_who_may_only_publish_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as running:
        async with Producer(running.namesrv, credentials=PUB) as producer:
            result = await producer.send("fresh", b"1")
        assert (result.queue.topic, result.queue_offset) == ("fresh", 0)
    assert denials(caplog) == []
    assert [
        record.getMessage() for record in caplog.records if "fresh" in record.getMessage()
    ] == []


@in_loop
async def test_a_producer_may_ask_whether_a_broker_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as running, asking(PUB) as pub:
        at = running.broker_address
        assert (await pub.call(at, GetMaxOffset(topic="TBW102", queue_id=0))).offset == 0
        assert denials(caplog) == []
        with pytest.raises(ResponseError, match="no permission to access Topic:T"):
            await pub.call(at, GetMaxOffset(topic="T", queue_id=0))


@in_loop
async def test_a_message_is_not_had_by_its_place_without_sub_on_its_topic() -> None:
    async with serving() as running, asking(SUB) as sub:
        mine, other = await send(running, b"1"), await send(running, b"2", "secret")
        at = running.broker_address
        _, _, mine_at = decode_offset_msg_id(mine)
        _, _, other_at = decode_offset_msg_id(other)
        found = await sub.exchange(at, ViewMessageById(topic="T", offset=mine_at))
        assert (found.code, b"1" in found.body) == (0, True)
        with pytest.raises(ResponseError, match="no permission to access Topic:secret"):
            await sub.call(at, ViewMessageById(topic="T", offset=other_at))
        await sub.call(at, ConsumerSendMsgBack(group="G", offset=mine_at, delay_level=0))
        with pytest.raises(ResponseError, match="no permission to access Topic:secret"):
            await sub.call(at, ConsumerSendMsgBack(group="G", offset=other_at, delay_level=0))


def entry_in_a_body(topic: bytes, position: int, behind: int) -> bytes:
    """What looks like a message of a topic at a place of the log, whose properties go on for so
    many bytes behind it: into the messages of others."""
    size = FIXED_SIZE + len(topic) + behind
    host = bytes(8)
    head = ENTRY_HEAD.pack(size, MAGIC_V1, 0, 0, 0, 0, position, 0, 0, host, 0, host, 0, 0, 0)
    return head + bytes([len(topic)]) + topic + behind.to_bytes(2)


@in_loop
async def test_a_body_that_looks_like_a_message_opens_nothing_of_what_lies_behind_it() -> None:
    # a CRC of whole entries is no secret, either: one can be made that fits whatever follows
    async with serving(enabled_append_prop_crc=False) as running, asking(BOTH) as both:
        at = running.broker_address
        _, _, first_at = decode_offset_msg_id(await send(running, b"1", "both"))
        found = await both.exchange(at, ViewMessageById(topic="both", offset=first_at))
        next_at = first_at + len(found.body)
        # a send of one byte less has its body there
        false_at = next_at + ENTRY_HEAD.size
        body = entry_in_a_body(b"both", false_at, behind=600)
        _, _, sent_at = decode_offset_msg_id(await send(running, body, "both"))
        await send(running, b"what others may not see" * 20, "secret")
        assert sent_at == next_at
        answer = await both.exchange(at, ViewMessageById(topic="both", offset=false_at))
        assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b"")
        with pytest.raises(ResponseError, match="look message by offset failed"):
            await both.call(at, ConsumerSendMsgBack(group="B", offset=false_at, delay_level=0))
        # those that are one in a queue are found as before
        await both.call(at, ConsumerSendMsgBack(group="B", offset=sent_at, delay_level=0))
