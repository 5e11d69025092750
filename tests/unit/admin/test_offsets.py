"""``admin.offsets`` and ``admin.groups.lag``, against a broker of ours."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.loops import in_loop
from tests.unit.admin.admins import with_admin

from turbopump import (
    ClientError,
    ConfigError,
    Producer,
    PullConsumer,
    ResponseError,
    RouteNotFoundError,
)
from turbopump.admin import offsets
from turbopump.admin.admin import Admin
from turbopump.admin.group_lag import GroupLag, QueueLag
from turbopump.message.message import MessageQueue
from turbopump.testing import RunningBroker

QUEUE = MessageQueue("orders", "broker-test", 0)


async def fill(broker: RunningBroker, admin: Admin, group: str = "billing") -> None:
    """Store four messages in the only queue of ``orders``. The group has consumed one."""
    await admin.topics.create("orders", read_queues=1, write_queues=1)
    async with Producer(broker.namesrv) as producer:
        for number in range(4):
            await producer.send("orders", b"%d" % number)
    async with PullConsumer(broker.namesrv, group=group) as consumer:
        await consumer.commit(QUEUE, 1)
    await admin.groups.create(group)


@in_loop(with_admin)
async def test_the_lag_is_in_messages_and_seconds(broker: RunningBroker, admin: Admin, /) -> None:
    await fill(broker, admin)
    lag = await admin.groups.lag("billing")
    (queue,) = lag.queues
    assert (queue.topic, queue.broker, queue.queue_id) == ("orders", "broker-test", 0)
    assert (queue.offset, queue.end, queue.behind, lag.messages) == (1, 4, 3, 3)
    assert queue.last_consumed_ms > 1_700_000_000_000
    assert lag.seconds is not None
    assert 0 <= lag.seconds < 60
    await admin.offsets.reset("billing", "orders", "end")
    lag = await admin.groups.lag("billing", "orders", broker="broker-test")
    assert (lag.messages, lag.seconds) == (0, 0.0)
    assert await admin.groups.lag("nobody") == GroupLag("nobody", [])


def test_a_group_is_as_late_as_its_latest_queue() -> None:
    def queue(behind: int, delay_ms: int | None) -> QueueLag:
        return QueueLag("t", "b", 0, 0, behind, 0, delay_ms)

    assert GroupLag("g", [queue(0, 0), queue(2, 1500), queue(1, 400)]).seconds == 1.5
    assert GroupLag("g", [queue(2, None), queue(1, 400)]).seconds == 0.4
    assert GroupLag("g", [queue(2, None)]).seconds is None
    assert GroupLag("g", []).seconds == 0.0


@in_loop(with_admin)
async def test_offsets_go_to_the_begin_the_end_and_a_time(
    broker: RunningBroker, admin: Admin, /
) -> None:
    await fill(broker, admin)
    before = datetime.fromtimestamp(1_600_000_000, UTC)
    for to, expected in (("end", 4), ("begin", 0), (before, 0), (4_000_000_000_000, 4)):
        assert await admin.offsets.reset("billing", "orders", to) == {QUEUE: expected}  # type: ignore[arg-type]
        (shown,) = (await admin.offsets.show("billing", "orders")).queues
        assert shown.offset == expected
    with pytest.raises(ClientError, match="no broker has both the group nobody and the topic"):
        await admin.offsets.reset("nobody", "orders", "end")
    with pytest.raises(ConfigError, match="must be 'begin', 'end', ms since 1970"):
        await admin.offsets.reset("billing", "orders", "middle")  # type: ignore[arg-type]


@in_loop(with_admin)
async def test_only_back_means_that_no_message_is_skipped(
    broker: RunningBroker, admin: Admin, /
) -> None:
    await fill(broker, admin)
    assert await admin.offsets.reset("billing", "orders", "end", only_back=True) == {QUEUE: 1}
    assert (await admin.offsets.show("billing")).queues[0].offset == 1
    assert await admin.offsets.reset("billing", "orders", 1, only_back=True) == {QUEUE: 0}
    assert (await admin.offsets.show("billing")).queues[0].offset == 0
    with pytest.raises(ClientError, match="no broker has both"):
        await admin.offsets.reset("nobody", "orders", "end", only_back=True)


@in_loop(with_admin)
async def test_one_queue_is_reset_to_an_offset_that_it_has(
    broker: RunningBroker, admin: Admin, /
) -> None:
    await fill(broker, admin)
    assert await admin.offsets.reset_queue("billing", QUEUE, 3) == {QUEUE: 3}
    with pytest.raises(ResponseError, match="offset 9 not in consume queue range"):
        await admin.offsets.reset_queue("billing", QUEUE, 9)


@in_loop(with_admin)
async def test_an_offset_is_stored_without_a_check(broker: RunningBroker, admin: Admin, /) -> None:
    await fill(broker, admin)
    await admin.offsets.set("billing", QUEUE, 2)
    assert (await admin.offsets.show("billing")).queues[0].offset == 2
    await admin.offsets.reset_queue("billing", QUEUE, 3)
    await admin.offsets.set("billing", QUEUE, 1)
    assert (await admin.offsets.show("billing")).queues[0].offset == 3  # RocketMQ: the reset counts


@in_loop(with_admin)
async def test_a_broker_that_knows_only_whole_topics_is_found_out(
    broker: RunningBroker, admin: Admin, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers of 4.x answer with all queues, and the offsets that the group had."""
    await fill(broker, admin)

    async def ask_each(*_: object) -> dict[str, offsets.ResetOffsetBody]:
        other = MessageQueue("orders", "broker-test", 1)
        return {"a": offsets.ResetOffsetBody(offset_table={QUEUE: 1, other: 7})}

    monkeypatch.setattr(offsets, "ask_each", ask_each)
    with pytest.raises(ClientError, match=r"brokers before 5\.0 reset whole topics only"):
        await admin.offsets.reset_queue("billing", QUEUE, 3)


@in_loop(with_admin)
async def test_a_new_group_begins_where_it_was_put(broker: RunningBroker, admin: Admin, /) -> None:
    await fill(broker, admin)
    with pytest.raises(ResponseError, match="Group new not exist"):
        await admin.offsets.reset_silently("new", "orders", "end")
    await admin.groups.create("new")
    assert await admin.offsets.reset_silently("new", "orders", "end") == {QUEUE: 4}
    assert await admin.offsets.reset_silently("new", "orders", 1, only_back=True) == {QUEUE: 0}
    async with PullConsumer(broker.namesrv, group="new") as consumer:
        assert await consumer.committed(QUEUE) == 0
    with pytest.raises(RouteNotFoundError):
        await admin.offsets.reset_silently("new", "missing", "end")


@in_loop(with_admin)
async def test_offsets_are_copied_to_another_group(broker: RunningBroker, admin: Admin, /) -> None:
    await fill(broker, admin)
    await admin.groups.create("copy")
    assert await admin.offsets.clone("billing", "copy", "orders") == [broker.broker_address]
    assert (await admin.offsets.show("copy")).queues == (await admin.offsets.show("billing")).queues


@in_loop(with_admin)
async def test_the_bounds_and_times_of_a_queue(broker: RunningBroker, admin: Admin, /) -> None:
    await fill(broker, admin)
    assert await admin.offsets.bounds(QUEUE) == (0, 4)
    first = await admin.offsets.first_stored_ms(QUEUE)
    (times,) = await admin.offsets.times("billing", "orders")
    assert (times.queue, times.first_ms) == (QUEUE, first)
    assert times.first_ms <= times.consumed_ms <= times.last_ms
    assert await admin.offsets.at_time(QUEUE, first) == 0
    assert await admin.offsets.at_time(QUEUE, times.last_ms + 1) == 4
    with pytest.raises(RouteNotFoundError, match="unknown topic missing"):
        await admin.offsets.times("billing", "missing")
    with pytest.raises(ConfigError, match="time='now' must be ms since 1970"):
        await admin.offsets.at_time(QUEUE, "now")  # type: ignore[arg-type]
