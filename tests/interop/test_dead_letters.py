"""`turbopump dlq` against Apache's brokers: what their dead letters are, and that each is resent
once, whoever comes again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.apache import NEWEST, NEWEST_4, ApacheCluster
from tests.interop.our_clients import PATIENCE_SECONDS, make_topics, patient_producer, read_once
from tests.interop.patient_apache import patient_apache
from tests.loops import in_loop

from turbopump import ConsumeFrom, Message, PullConsumer, PushConsumer
from turbopump.client.consumer.delivery import Delivery, Retry
from turbopump.client.dead_letters import DeadLetters, ResendTo, resend, resending
from turbopump.client.dead_letters.dead_letter import DeadLetter
from turbopump.client.dead_letters.resending import ResendOutcome, send_once
from turbopump.client.dead_letters.target import find_by_id
from turbopump.message.message import MessageQueue

GROUP = "dead-billing"
COUNT = 120


@pytest.fixture(scope="module", params=[NEWEST, NEWEST_4])
def apache(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheCluster]:
    with patient_apache(request.param, tmp_path_factory.mktemp(request.param)) as cluster:
        yield cluster


@in_loop
async def test_dead_letters_of_apache_s_broker_are_listed_and_resent_once(
    apache: ApacheCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    async def killing(instance: object, letter: DeadLetter, queue: MessageQueue) -> ResendOutcome:
        if letter.message.queue_offset == 90:
            raise KilledError
        return await send_once(instance, letter, queue)  # type: ignore[arg-type]

    await make_topics(apache.namesrv, apache.broker, "dying")
    again: Counter[bytes] = Counter()
    resent = False

    async def handle(message: Delivery) -> object:
        if resent:
            again[message.body] += 1
            return None
        return Retry(level=-1, reason="a field that Apache's brokers pass over")

    async with (
        patient_producer(apache.namesrv) as producer,
        DeadLetters(apache.namesrv) as dead_letters,
        PullConsumer(apache.namesrv, group="looker") as looker,
        PushConsumer(
            apache.namesrv,
            group=GROUP,
            topic="dying",
            consume_from=ConsumeFrom.FIRST,
            handler=handle,
        ) as consumer,
        asyncio.timeout(2 * PATIENCE_SECONDS),
    ):
        for number in range(COUNT):
            await producer.send(
                Message("dying", b"letter %d" % number, properties={"n": str(number)})
            )
        while [group.count for group in await dead_letters.groups() if group.group == GROUP] != [
            COUNT
        ]:
            await asyncio.sleep(0.1)
        letters = [letter async for letter in dead_letters.letters(GROUP)]
        assert {(letter.attempts, letter.origin_topic) for letter in letters} == {(1, "dying")}
        assert all(letter.origin_msg_id for letter in letters)
        assert await dead_letters.reason(letters[0]) is None

        await consumer.close()
        monkeypatch.setattr(resending, "send_once", killing)
        with pytest.raises(KilledError):
            await resend(dead_letters, GROUP, tmp_path / "one")
        monkeypatch.setattr(resending, "send_once", send_once)
        report = await resend(dead_letters, GROUP, tmp_path / "one")
        assert report.complete
        assert report.sent + report.already == COUNT
        for letter in letters:  # Apache's broker indexes behind its answers
            while await find_by_id(dead_letters, "dying", letter.resend_id) is None:
                await asyncio.sleep(0.02)
        assert (await resend(dead_letters, GROUP, tmp_path / "one")).already == COUNT
        other = await resend(dead_letters, GROUP, tmp_path / "other")
        assert (other.elsewhere, other.sent) == (COUNT, 0), "its index knows the ids"
        found = Counter(message.body for message in await read_once(looker, "dying"))
        assert found == {b"letter %d" % number: 2 for number in range(COUNT)}, (
            "as sent, and resent once"
        )

        resent = True
        async with PushConsumer(apache.namesrv, group=GROUP, topic="dying", handler=handle):
            chosen = await resend(
                dead_letters,
                GROUP,
                tmp_path / "retry",
                ResendTo.RETRY,
                lambda letter: letter.message.queue_offset < 5,
            )
            assert chosen.targets == {f"%RETRY%{GROUP}": 5}
            while sum(again.values()) < COUNT + 5:
                await asyncio.sleep(0.05)
        assert Counter(again.values()) == {1: COUNT - 5, 2: 5}, (
            "the resent ones, and five by way of the retry topic"
        )
