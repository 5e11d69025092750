"""Dead letters are resent once, and nothing that is not one is taken for it: copies that fail once
more, other clusters, topics gone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.loops import in_loop
from tests.unit.client.dead_letters.dead_lettering import (
    GROUP,
    SETTLE_S,
    dead,
    once,
    stored,
    with_broker,
)

from turbopump.client.dead_letters import (
    DeadLetter,
    DeadLetters,
    ResendTo,
    resend,
    resending,
    would_resend,
)
from turbopump.client.dead_letters.resending import ResendOutcome, send_once
from turbopump.client.simple_consumer import SimpleConsumer
from turbopump.message.message import MessageQueue
from turbopump.testing import RunningBroker, running_broker


@in_loop(with_broker)
async def test_resent_letters_that_fail_once_more_are_nobody_else_s_resends(
    broker: RunningBroker,
    dead_letters: DeadLetters,
    /,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    retry_topic = f"%RETRY%{GROUP}"

    async def failing_once_more(
        instance: Any, letter: DeadLetter, queue: MessageQueue
    ) -> ResendOutcome:
        """What a broker does when a consumer fails: it stores a copy with all properties, as the
        next attempt."""
        outcome = await send_once(instance, letter, queue)
        copy = msgspec.structs.replace(letter.request(queue), reconsume_times=1)
        address = instance.routes.known[queue.topic].master(queue.broker_name)
        await instance.remoting.call(address, copy, letter.message.stored_body)
        return outcome

    monkeypatch.setattr(resending, "send_once", failing_once_more)

    await broker.create_topic(retry_topic)
    await dead(broker, 30)
    report = await resend(dead_letters, GROUP, tmp_path, ResendTo.RETRY, settle=SETTLE_S)
    assert (report.sent, report.complete) == (30, True)
    messages = await stored(broker, retry_topic)
    assert once([message for message in messages if message.reconsume_times == 0], 30)
    assert len(messages) == 60


@in_loop
async def test_a_run_on_another_cluster_of_the_same_names_leaves_the_doubts_of_a_killed_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    async def killing(instance: Any, letter: DeadLetter, queue: MessageQueue) -> ResendOutcome:
        if letter.message.queue_offset == 20:
            raise KilledError
        return await send_once(instance, letter, queue)

    async with (
        running_broker(message_index_enable=False) as one,
        running_broker(message_index_enable=False) as other,
        DeadLetters(one.namesrv) as here,
        DeadLetters(other.namesrv) as there,
    ):
        for broker in (one, other):
            await broker.create_topic("orders", 2)
            await dead(broker, 40)
        with monkeypatch.context() as patch:
            patch.setattr(resending, "send_once", killing)
            with pytest.raises(KilledError):
                await resend(here, GROUP, tmp_path, settle=SETTLE_S)
        await asyncio.sleep(SETTLE_S)  # what was being sent arrives
        assert (await resend(there, GROUP, tmp_path, settle=SETTLE_S)).sent == 40
        assert (await resend(here, GROUP, tmp_path, settle=SETTLE_S)).complete
        assert once(await stored(one), 40)
        assert once(await stored(other), 40)


# --- the retry topics of those who pop
# ----------------------------------------------------------------------------------------------


async def received(consumer: SimpleConsumer, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    async with asyncio.timeout(30):
        while len(bodies) < count:
            messages = await consumer.receive(16, 60, timeout=1)
            bodies += [message.body for message in messages]
            await consumer.ack(messages)
    return sorted(bodies)


@pytest.mark.parametrize("popped", [True, False])
@in_loop(with_broker)
async def test_letters_of_a_group_that_pops_go_to_the_retry_topic_that_it_reads(
    broker: RunningBroker, dead_letters: DeadLetters, /, tmp_path: Path, popped: bool
) -> None:
    """``popped``: whether the letter says that it was; else the group's running consumers do."""
    await dead(broker, 3, more={"1ST_POP_TIME": "1"} if popped else {})
    async with SimpleConsumer(broker.namesrv, group=GROUP, topic="orders") as consumer:
        assert await consumer.receive(1, 60, timeout=0.1) == []
        refused = await resend(dead_letters, GROUP, tmp_path, ResendTo.RETRY, settle=SETTLE_S)
        assert (refused.sent, refused.failures) == (0, 3), "nothing goes where nobody would get it"
        assert "turbopump topic create '%RETRY%billing_orders'" in refused.failed["broker-test:0:0"]
        await broker.create_topic("%RETRY%billing_orders")
        report = await resend(dead_letters, GROUP, tmp_path, ResendTo.RETRY, settle=SETTLE_S)
        assert report.targets == {"%RETRY%billing_orders": 3}
        assert await received(consumer, 3) == [b"0", b"1", b"2"]


@in_loop(with_broker)
async def test_which_retry_topic_it_is_can_be_said(
    broker: RunningBroker, dead_letters: DeadLetters, /, tmp_path: Path
) -> None:
    await dead(broker, 2)
    topics = {ResendTo.PULL_RETRY: "%RETRY%billing", ResendTo.POP_RETRY: "%RETRY%billing_orders"}
    for to, topic in topics.items():
        await broker.create_topic(topic)
        assert (await would_resend(dead_letters, GROUP, tmp_path / to.value, to)).targets == {
            topic: 2
        }
        report = await resend(dead_letters, GROUP, tmp_path / to.value, to, settle=SETTLE_S)
        assert report.targets == {topic: 2}
        assert once(await stored(broker, topic), 2)
