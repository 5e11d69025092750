"""``admin.messages``, against a broker and clients of ours."""

from __future__ import annotations

import asyncio

import pytest
from tests.loops import in_loop
from tests.unit.admin.admins import with_admin

from turbopump import (
    ConsumeFrom,
    Delivery,
    LitePullConsumer,
    MessageNotFoundError,
    Producer,
    PullConsumer,
    PushConsumer,
    RouteNotFoundError,
)
from turbopump.admin.admin import Admin
from turbopump.admin.messages import MessageTrack, TrackState
from turbopump.client.trace import ContextCode
from turbopump.client.trace_reading import TraceKind
from turbopump.message.message import MessageQueue
from turbopump.testing import RunningBroker

QUEUE = MessageQueue("orders", "broker-test", 0)


@in_loop(with_admin)
async def test_messages_are_found_again(broker: RunningBroker, admin: Admin, /) -> None:
    await admin.topics.create("orders", read_queues=1, write_queues=1)
    async with Producer(broker.namesrv) as producer:
        sent = await producer.send("orders", b"a book", keys="42")
    assert await admin.messages.queues("orders") == [QUEUE]
    found = await admin.messages.by_id("orders", sent.msg_id)
    assert found.body == b"a book"
    for (same,) in (
        (await admin.messages.by_key("orders", "42")).messages,
        (await admin.messages.by_time("orders", found.store_timestamp)).messages,
        [await admin.messages.at(QUEUE, 0)],
    ):
        assert same.msg_id == sent.msg_id
    units = await admin.messages.queue_units(QUEUE, 0)
    assert units.queue_data is not None
    assert [one.physic_offset for one in units.queue_data] == [found.commit_log_offset]
    assert (units.min_queue_index, units.max_queue_index) == (0, 1)
    with pytest.raises(RouteNotFoundError):  # no transaction was ever given up
        await admin.messages.resume_check(sent.msg_id)


@in_loop(with_admin)
async def test_what_each_group_has_done_with_a_message(
    broker: RunningBroker, admin: Admin, /
) -> None:
    await admin.topics.create("orders", read_queues=1, write_queues=1)
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(message: Delivery) -> None:
        seen.put_nowait(message.body)

    async with Producer(broker.namesrv) as producer:
        sent = await producer.send("orders", b"a book", tags="new")
        async with PullConsumer(broker.namesrv, group="gone") as puller:
            await puller.commit(QUEUE, 1)
        settings = {"topic": "orders", "consume_from": ConsumeFrom.FIRST, "handler": handle}
        async with (
            PushConsumer(broker.namesrv, group="done", **settings) as done,  # type: ignore[arg-type]
            PushConsumer(broker.namesrv, group="filtered", tags="old", **settings),  # type: ignore[arg-type]
            LitePullConsumer(broker.namesrv, group="pulls") as pulls,
        ):
            assert await seen.get() == b"a book"
            await done.commit(acknowledged=True)
            await pulls.subscribe("orders")
            await admin.offsets.reset("filtered", "orders", "end")
            tracks = await admin.messages.tracks("orders", sent.msg_id)
            assert tracks == [
                MessageTrack("done", TrackState.CONSUMED),
                MessageTrack("filtered", TrackState.CONSUMED_BUT_FILTERED),
                MessageTrack("gone", TrackState.NOT_ONLINE),
                MessageTrack("pulls", TrackState.PULL),
            ]
            later = await producer.send("orders", b"another", tags="old")
            with pytest.raises(MessageNotFoundError):
                await admin.messages.tracks("orders", "nope")
    assert later.queue_offset == 1


@in_loop(with_admin)
async def test_a_trace_tells_who_sent_and_handled_a_message(
    broker: RunningBroker, admin: Admin, /
) -> None:
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    async def fail_once(message: Delivery) -> None:
        seen.put_nowait(message.body)
        raise ValueError("no stock")

    async with Producer(broker.namesrv, group="sellers", trace=True) as producer:
        sent = await producer.send("orders", b"a book")
    async with PushConsumer(
        broker.namesrv,
        group="billing",
        topic="orders",
        consume_from=ConsumeFrom.FIRST,
        handler=fail_once,
        trace=True,
    ):
        await seen.get()
    actions = await admin.messages.trace(sent.msg_id)
    assert [action.kind for action in actions] == [
        TraceKind.SENT,
        TraceKind.HANDLING,
        TraceKind.HANDLED,
    ]
    send, begin, end = actions
    assert (send.group, send.topic, send.success) == ("sellers", "orders", True)
    assert (begin.group, begin.attempt, begin.request_id) == ("billing", 0, end.request_id)
    assert (end.group, end.success, end.outcome) == ("billing", False, ContextCode.EXCEPTION)
    assert end.error is not None
    assert "no stock" in end.error
    assert end.client.startswith("127.0.0.1:")
