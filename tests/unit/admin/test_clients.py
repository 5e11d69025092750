"""``admin.clients``, against a broker and clients of ours."""

from __future__ import annotations

import asyncio

import pytest
from tests.loops import in_loop
from tests.unit.admin.admins import with_admin

from turbopump import (
    ClientError,
    ConsumeFrom,
    Delivery,
    MessageNotFoundError,
    Producer,
    PushConsumer,
)
from turbopump.admin.admin import Admin
from turbopump.message.message import MessageQueue
from turbopump.protocol.requests.consumers import ConsumeResult
from turbopump.testing import RunningBroker

QUEUE = MessageQueue("orders", "broker-test", 0)


@in_loop(with_admin)
async def test_producers_are_listed_by_group(broker: RunningBroker, admin: Admin, /) -> None:
    assert await admin.clients.producers("sellers") == []
    async with Producer(broker.namesrv, group="sellers") as producer:
        await producer.send("orders", b"x")
        (member,) = await admin.clients.producers("sellers")
        assert (member.client_id, member.language) == (producer.client_id, "PYTHON")
        every = await admin.clients.all_producers("broker-test")
        (listed,) = every["sellers"]
        assert (listed.client_id, listed.address) == (member.client_id, member.address)
        assert listed.last_heartbeat_ms > 1_700_000_000_000


@in_loop(with_admin)
async def test_a_consumer_reports_itself_and_handles_a_message_at_once(
    broker: RunningBroker, admin: Admin, /
) -> None:
    await admin.topics.create("orders", read_queues=1, write_queues=1)
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(message: Delivery) -> None:
        seen.put_nowait(message.body)

    async with Producer(broker.namesrv) as producer:
        sent = await producer.send("orders", b"a book")
    async with PushConsumer(
        broker.namesrv,
        group="billing",
        topic="orders",
        consume_from=ConsumeFrom.FIRST,
        handler=handle,
    ) as consumer:
        assert await seen.get() == b"a book"
        info = await admin.clients.running_info("billing", consumer.client_id)
        assert QUEUE in info.mq_table
        assert [data.topic for data in info.subscription_set][:1] == ["orders"]
        for msg_id in (sent.msg_id, sent.offset_msg_id):
            done = await admin.clients.consume_directly(
                "billing", consumer.client_id, "orders", msg_id
            )
            assert done.consume_result is ConsumeResult.CR_SUCCESS
            assert await seen.get() == b"a book"
        known = await admin.clients.offsets("billing", "orders")
        assert list(known) == [consumer.client_id]
        assert set(known[consumer.client_id]) == {QUEUE}
        with pytest.raises(MessageNotFoundError):
            await admin.clients.consume_directly("billing", consumer.client_id, "orders", "nope")
    with pytest.raises(ClientError, match="no broker knows a consumer gone of the group billing"):
        await admin.clients.running_info("billing", "gone")
    with pytest.raises(ClientError, match="no broker knows a consumer gone"):
        await admin.clients.consume_directly("billing", "gone", "orders", sent.msg_id)
    assert await admin.clients.offsets("billing", "orders") == {}
