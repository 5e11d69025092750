"""Dead letters that may have been sent, to topics and queues that are gone: who decides, and what
is known not to be there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.client.dead_letters.dead_lettering import (
    GROUP,
    SETTLE_S,
    dead,
    has_route,
    stored,
    with_broker,
)

from turbopump.client.dead_letters import (
    DeadLetter,
    DeadLetters,
    InDoubt,
    ResendReport,
    ResendTo,
    resend,
    resending,
)
from turbopump.client.dead_letters.resending import ResendOutcome, send_once
from turbopump.message.message import MessageQueue
from turbopump.protocol.requests.namesrv import DeleteTopicInNamesrv
from turbopump.protocol.requests.topics import DeleteTopic
from turbopump.testing import RunningBroker

ANSWERED = 9
"""Those of a killed run's letters that the journal knows to have arrived: the first 1 + 8."""


class KilledError(BaseException):
    pass


async def killing(instance: Any, letter: DeadLetter, queue: MessageQueue) -> ResendOutcome:
    if letter.message.queue_offset == 30:
        raise KilledError
    return await send_once(instance, letter, queue)


async def killed(dead_letters: DeadLetters, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run over 40 letters that ends in the middle of its third step."""

    with monkeypatch.context() as patch:
        patch.setattr(resending, "send_once", killing)
        with pytest.raises(KilledError):
            await resend(dead_letters, GROUP, journal, settle=SETTLE_S)
    await asyncio.sleep(SETTLE_S)  # what was being sent arrives


async def deleted(broker: RunningBroker, dead_letters: DeadLetters, topic: str) -> None:
    remoting = dead_letters.instance.remoting
    await remoting.call(broker.broker_address, DeleteTopic(topic=topic), timeout=60)
    await remoting.call(broker.namesrv, DeleteTopicInNamesrv(topic=topic), timeout=60)
    async with asyncio.timeout(30):
        while await has_route(dead_letters, topic):
            await asyncio.sleep(0.02)


@in_loop(with_broker)
async def test_a_deleted_target_is_named_and_one_made_again_is_known_to_be_empty(
    broker: RunningBroker,
    dead_letters: DeadLetters,
    /,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await dead(broker, 40)
    await killed(dead_letters, tmp_path, monkeypatch)
    await deleted(broker, dead_letters, "orders")
    report = await resend(dead_letters, GROUP, tmp_path, settle=SETTLE_S)
    assert (report.sent, report.already, report.in_doubt, report.complete) == (
        0,
        ANSWERED,
        40 - ANSWERED,
        False,
    )
    assert set(report.out_of_sight) == {"orders@broker-test:0", "orders@broker-test:1"}
    assert all("orders" in why for why in report.out_of_sight.values())
    await broker.create_topic("orders", 2)
    assert await has_route(dead_letters, "orders")
    report = await resend(dead_letters, GROUP, tmp_path, settle=SETTLE_S)
    assert (report.sent, report.elsewhere, report.complete) == (40 - ANSWERED, 0, True), (
        "the index knows the old topic's"
    )
    assert sorted(int(message.body) for message in await stored(broker)) == list(
        range(ANSWERED, 40)
    )


async def decide(
    dead_letters: DeadLetters, decision: InDoubt, tmp_path: Path, **chosen: Any
) -> ResendReport:
    return await resend(dead_letters, GROUP, tmp_path, in_doubt=decision, settle=SETTLE_S, **chosen)


@pytest.mark.parametrize("decision", [InDoubt.SEND, InDoubt.SENT])
@in_loop(with_broker)
async def test_letters_that_may_be_in_a_queue_that_is_gone_wait_until_somebody_decides(
    broker: RunningBroker,
    dead_letters: DeadLetters,
    /,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    decision: InDoubt,
) -> None:
    await dead(broker, 40)
    await killed(dead_letters, tmp_path, monkeypatch)
    await deleted(broker, dead_letters, "orders")
    await broker.create_topic("orders", 1)
    assert await has_route(dead_letters, "orders")
    report = await resend(dead_letters, GROUP, tmp_path, settle=SETTLE_S)
    assert (report.elsewhere, report.complete, set(report.out_of_sight)) == (
        0,
        False,
        {"orders@broker-test:1"},
    )
    waiting = report.in_doubt
    assert 0 < waiting < 40 - ANSWERED
    assert report.sent == 40 - ANSWERED - waiting
    one = [
        letter
        async for letter in dead_letters.letters(GROUP)
        if letter.resend_id not in await ids_there(broker)
    ][-1]

    report = await decide(
        dead_letters, decision, tmp_path, wanted=lambda letter: letter.position == one.position
    )
    assert report.handled == 1, "it is decided of what is chosen"
    report = await decide(dead_letters, decision, tmp_path)
    assert report.complete
    assert report.sent == (waiting - 1 if decision is InDoubt.SEND else 0)
    there = [message.body for message in await stored(broker)]
    assert (
        len(there)
        == len(set(there))
        == (40 - ANSWERED if decision is InDoubt.SEND else 40 - ANSWERED - waiting)
    )
    assert (
        await resend(dead_letters, GROUP, tmp_path, ResendTo.ORIGIN, settle=SETTLE_S)
    ).already == 40


async def ids_there(broker: RunningBroker) -> set[str]:
    return {message.msg_id for message in await stored(broker)}
