"""Dead letters are read, explained and resent once: against a broker, through lost answers,
refusals, killed runs and second operators."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.stand_ins import async_raises
from tests.unit.client.dead_letters.dead_lettering import (
    DLQ,
    GROUP,
    SETTLE_S,
    dead,
    has_route,
    once,
    stored,
    with_broker,
)

from turbopump.client.consumer.delivery import Retry
from turbopump.client.dead_letters import (
    DeadLetter,
    DeadLetters,
    ResendReport,
    ResendTo,
    resend,
    resending,
)
from turbopump.client.dead_letters.dead_letter import latest_reason
from turbopump.client.dead_letters.journal import Journal, journal_path, read_journal
from turbopump.client.dead_letters.resending import ResendOutcome, send_once
from turbopump.client.producer import Producer
from turbopump.client.push_consumer import ConsumeFrom, PushConsumer
from turbopump.errors import CallTimeoutError, MessageNotFoundError, ResendError, ResponseError
from turbopump.message.message import Message, MessageQueue
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.remoting.client import RemotingClient
from turbopump.testing import RunningBroker, running_broker

# --- what goes out
# -----------------------------------------------------------------------------------------------


async def handle(message: object) -> object:
    return Retry(level=-1)


@in_loop(with_broker)
async def test_a_resent_message_is_the_dead_one_with_a_new_life(
    broker: RunningBroker, dead_letters: DeadLetters, /, tmp_path: Path
) -> None:
    big = b"x" * 10_000  # compressed on its way: its stored bytes go on as they are
    await broker.create_topic(DLQ)
    async with Producer(broker.namesrv) as producer:
        first = await producer.send(
            Message("orders", big, tags="t", keys=["k"], properties={"mine": "1"}, flag=7)
        )

    async with PushConsumer(
        broker.namesrv, group=GROUP, topic="orders", consume_from=ConsumeFrom.FIRST, handler=handle
    ) as consumer:
        async with asyncio.timeout(20):
            while not await stored(broker, DLQ):
                await asyncio.sleep(0.02)
        await consumer.close()
    (letter,) = [letter async for letter in dead_letters.letters(GROUP)]
    assert letter.position == f"broker-test:{letter.message.queue_id}:0"
    assert (letter.attempts, letter.origin_topic, letter.origin_msg_id) == (
        1,
        "orders",
        first.offset_msg_id,
    )
    report = await resend(dead_letters, GROUP, tmp_path, settle=SETTLE_S)
    assert (report.sent, report.complete, report.targets) == (1, True, {"orders": 1})
    old, new = sorted(await stored(broker), key=lambda message: message.store_timestamp)
    assert (new.body, new.tags, new.keys, new.flag, new.reconsume_times) == (big, "t", ["k"], 7, 0)
    assert new.born_timestamp == old.born_timestamp
    assert new.msg_id == letter.resend_id != old.msg_id
    assert new.properties["RESENT_FROM"] == f"{DLQ}@broker-test:0:0"
    assert new.properties["RESENT_ID"] == first.msg_id
    assert {"mine"} == new.properties.keys() & {
        "mine",
        "DELAY",
        "RETRY_TOPIC",
        "ORIGIN_MESSAGE_ID",
        "REAL_TOPIC",
        "REAL_QID",
    }


@in_loop(with_broker)
async def test_a_letter_resent_to_the_retry_topic_reaches_the_group_under_its_origin_s_name(
    broker: RunningBroker, dead_letters: DeadLetters, /, tmp_path: Path
) -> None:
    await dead(broker, 3)
    got: list[tuple[str, bytes]] = []
    consumer = PushConsumer(
        broker.namesrv,
        group=GROUP,
        topic="orders",
        handler=lambda message: got.append((message.topic, message.body)),
    )
    async with consumer:
        async with asyncio.timeout(20):
            while not await has_route(dead_letters, f"%RETRY%{GROUP}"):
                await asyncio.sleep(0.02)
            report = await resend(dead_letters, GROUP, tmp_path, ResendTo.RETRY, settle=SETTLE_S)
            assert (report.sent, report.targets) == (3, {f"%RETRY%{GROUP}": 3})
            while len(got) < 3:
                await asyncio.sleep(0.02)
    assert sorted(got) == [("orders", b"0"), ("orders", b"1"), ("orders", b"2")]
    assert await stored(broker) == []


@in_loop(with_broker)
async def test_what_does_not_say_where_it_came_from_is_not_sent(
    broker: RunningBroker, dead_letters: DeadLetters, /, tmp_path: Path
) -> None:
    await dead(broker, 1, origin=None)
    await dead(broker, 1, origin="gone")
    report = await resend(dead_letters, GROUP, tmp_path, settle=SETTLE_S)
    assert (report.sent, report.failures, report.complete) == (0, 2, False)
    assert "does not say from which topic" in report.failed["broker-test:0:0"]
    assert "gone" in report.failed["broker-test:0:1"]
    with pytest.raises(MessageNotFoundError, match="has no dead letters"):
        await resend(dead_letters, "nobody", tmp_path)


# --- each once
# -----------------------------------------------------------------------------------------------


@in_loop(with_broker)
async def test_a_letter_whose_answer_is_lost_is_looked_for_before_it_is_sent_again(
    broker: RunningBroker,
    dead_letters: DeadLetters,
    /,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: Counter[str] = Counter()

    async def losing(instance: Any, letter: DeadLetter, queue: MessageQueue) -> ResendOutcome:
        attempts[letter.position] += 1
        if letter.message.queue_offset % 3 == 0 and attempts[letter.position] == 1:
            return ResendOutcome(in_doubt=True, why="it never left")
        outcome = await send_once(instance, letter, queue)
        return (
            ResendOutcome(in_doubt=True, why="lost")
            if letter.message.queue_offset % 3 == 1
            else outcome
        )

    monkeypatch.setattr(resending, "send_once", losing)

    await dead(broker, 30)
    report = await resend(dead_letters, GROUP, tmp_path, settle=SETTLE_S)
    assert (report.sent, report.complete) == (30, True)
    assert once(await stored(broker), 30)
    assert set(attempts.values()) == {1, 2}


@in_loop(with_broker)
async def test_refused_letters_are_tried_again_and_then_told_of(
    broker: RunningBroker,
    dead_letters: DeadLetters,
    /,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals = {0: [2], 1: [2] * 9, 2: [13]}

    async def refusing(
        self: Any, address: str, request: Any, body: bytes = b"", *, timeout: float = 3.0
    ) -> Any:
        number = int(body) if isinstance(request, SendMessageV2) else -1
        if refusals.get(number):
            raise ResponseError(refusals[number].pop(), "no")
        return await call(self, address, request, body, timeout=timeout)

    call = RemotingClient.call
    await dead(broker, 4)
    monkeypatch.setattr(RemotingClient, "call", refusing)
    report = await resend(dead_letters, GROUP, tmp_path, settle=0.01)
    assert (report.sent, report.failures, set(report.failed)) == (
        2,
        2,
        {"broker-test:0:1", "broker-test:0:2"},
    )
    refusals.clear()
    assert (await resend(dead_letters, GROUP, tmp_path, settle=0.01)).sent == 2
    assert once(await stored(broker), 4)


@pytest.mark.parametrize("known", [True, False])
@in_loop
async def test_a_run_that_was_killed_leaves_doubts_that_the_next_one_settles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """``known``: whether the broker has an index to be asked for ids."""

    class KilledError(BaseException):
        pass

    async def killing(instance: Any, letter: DeadLetter, queue: MessageQueue) -> ResendOutcome:
        if letter.message.queue_offset == 20:
            raise KilledError
        return await send_once(instance, letter, queue)

    async with (
        running_broker(message_index_enable=known) as broker,
        DeadLetters(broker.namesrv) as dead_letters,
    ):
        await broker.create_topic("orders", 2)
        await dead(broker, 40)
        monkeypatch.setattr(resending, "send_once", killing)
        with pytest.raises(KilledError):
            await resend(dead_letters, GROUP, tmp_path, settle=SETTLE_S)
        await asyncio.sleep(SETTLE_S)  # what was being sent arrives
        monkeypatch.setattr(resending, "send_once", send_once)
        before = len(await stored(broker))
        report = await resend(dead_letters, GROUP, tmp_path, settle=SETTLE_S)
        assert before > 9, "some were on their way when the run ended"
        assert report.recovered == before - 9, "all but the first 1 + 8, which were answered"
        assert (report.sent, report.already, report.elsewhere) == (40 - before, before, 0)
        assert once(await stored(broker), 40)
        state, _ = read_journal((tmp_path / f"{GROUP}.journal").read_bytes(), "it")
        assert (len(state.done), state.in_doubt) == (40, {})


@in_loop(with_broker)
async def test_what_a_killed_run_sent_and_what_comes_very_late_is_not_sent_again(
    broker: RunningBroker,
    dead_letters: DeadLetters,
    /,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late: list[tuple[DeadLetter, MessageQueue]] = []

    class KilledError(BaseException):
        pass

    async def killed(instance: Any, letter: DeadLetter, queue: MessageQueue) -> ResendOutcome:
        late.append((letter, queue))
        raise KilledError

    async def begin(self: Any, topic: str) -> Any:
        fault = await begin_topic(self, topic)
        while late:
            assert (await send_once(self._instance, *late.pop())).stored
        return fault

    begin_topic = resending.ResendRun.begin_topic
    await dead(broker, 3)
    with monkeypatch.context() as patch:
        patch.setattr(resending, "send_once", killed)
        with pytest.raises(KilledError):
            await resend(dead_letters, GROUP, tmp_path, settle=0.01)
    # it arrives after it was looked for
    monkeypatch.setattr(resending.ResendRun, "begin_topic", begin)
    report = await resend(dead_letters, GROUP, tmp_path, settle=0.01)
    assert (report.recovered, report.already, report.sent, report.elsewhere) == (1, 1, 2, 0)
    assert once(await stored(broker), 3)


@in_loop(with_broker)
async def test_a_second_operator_on_the_same_machine_is_refused(
    broker: RunningBroker, dead_letters: DeadLetters, /, tmp_path: Path
) -> None:
    await dead(broker, 1)
    first = Journal(tmp_path, GROUP, run="1", now_ms=1)
    with pytest.raises(
        ResendError,
        match="somebody else on this machine is resending the dead letters of "
        "group 'billing', process",
    ):
        await resend(dead_letters, GROUP, tmp_path)
    first.close()
    assert (await resend(dead_letters, GROUP, tmp_path)).sent == 1


@in_loop(with_broker)
async def test_an_earlier_operator_with_another_journal_is_noticed_by_the_ids_in_the_target(
    broker: RunningBroker, dead_letters: DeadLetters, /, tmp_path: Path
) -> None:
    await dead(broker, 20)
    await resend(
        dead_letters,
        GROUP,
        tmp_path / "one",
        wanted=lambda letter: letter.message.queue_offset < 15,
    )
    report = await resend(dead_letters, GROUP, tmp_path / "other")
    assert (report.sent, report.elsewhere, report.complete) == (5, 15, True)
    assert once(await stored(broker), 20)


async def operate(broker: RunningBroker, tmp_path: Path, name: str) -> ResendReport | ResendError:
    async with DeadLetters(broker.namesrv) as mine:
        try:
            return await resend(mine, GROUP, tmp_path / name)
        except ResendError as error:
            return error


@in_loop(with_broker)
async def test_an_operator_with_another_journal_at_the_same_time_is_noticed(
    broker: RunningBroker, dead_letters: DeadLetters, /, tmp_path: Path
) -> None:
    await dead(broker, 300)

    ends = await asyncio.gather(
        operate(broker, tmp_path, "one"), operate(broker, tmp_path, "other")
    )
    errors = [str(end) for end in ends if isinstance(end, ResendError)]
    assert errors, "at least one of the two is told"
    assert all("another operator is resending" in error for error in errors)
    twice = Counter(message.body for message in await stored(broker)).most_common()
    assert sum(count - 1 for _, count in twice) <= 9, "and soon"


@in_loop(with_broker)
async def test_a_broker_that_stops_answering_ends_the_run_and_leaves_doubts_in_the_journal(
    broker: RunningBroker,
    dead_letters: DeadLetters,
    /,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await dead(broker, 5)

    async def lost(instance: Any, letter: DeadLetter, queue: MessageQueue) -> ResendOutcome:
        monkeypatch.setattr(
            resending.target, "read_on", async_raises(CallTimeoutError("no answer in 10 s"))
        )
        return ResendOutcome(in_doubt=True, why="no answer")

    with monkeypatch.context() as patch:
        patch.setattr(resending, "send_once", lost)
        report = await resend(dead_letters, GROUP, tmp_path, settle=0.01)
    assert (report.sent, report.in_doubt, report.stopped) == (0, 1, "no answer in 10 s")
    assert not report.complete
    monkeypatch.undo()
    assert (await resend(dead_letters, GROUP, tmp_path, settle=0.01)).sent == 5
    assert once(await stored(broker), 5)


@in_loop(with_broker)
async def test_a_rate_is_kept(
    broker: RunningBroker, dead_letters: DeadLetters, /, tmp_path: Path
) -> None:
    await dead(broker, 12)
    began = asyncio.get_running_loop().time()
    await resend(dead_letters, GROUP, tmp_path, rate=20)
    assert asyncio.get_running_loop().time() - began >= 11 / 20, "each but the first waits its time"


# --- the journal
# -----------------------------------------------------------------------------------------------


def test_a_torn_last_line_is_cut_off_and_a_torn_line_in_the_middle_is_not_guessed_at(
    tmp_path: Path,
) -> None:
    queue = MessageQueue("orders", "b", 1)
    journal = Journal(tmp_path, GROUP, run="1", now_ms=1)
    journal.start({queue: 7})
    journal.record_aims({"A": queue, "B": queue}, 5)
    journal.record_sent(["A"])
    journal.close()
    path = journal_path(tmp_path, GROUP)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        state, size = read_journal(whole[:cut], "it")
        assert whole[:cut].startswith(whole[:size])
        assert size <= cut
        assert ("A" in state.done) == (cut == len(whole)) or cut == len(whole)
    path.write_bytes(whole[:-4])
    journal = Journal(tmp_path, GROUP, run="2", now_ms=9)
    state = journal.state
    journal.close()
    assert (sorted(state.in_doubt), state.in_doubt["A"].start, state.in_doubt["A"].queue) == (
        ["A", "B"],
        7,
        queue,
    )
    assert read_journal(path.read_bytes(), "it")[0].in_doubt.keys() == {"A", "B"}
    path.write_bytes(whole[:10] + b"\n" + whole[11:])
    with pytest.raises(ResendError, match=r"billing\.journal is damaged in line 1"):
        Journal(tmp_path, GROUP, run="3", now_ms=9)


# --- reasons
# -----------------------------------------------------------------------------------------------


@in_loop(with_broker)
async def test_the_reason_is_the_latest_failure_that_the_group_s_trace_tells_of(
    broker: RunningBroker, dead_letters: DeadLetters, /
) -> None:
    def after(msg_id: str, success: str, code: str, time: str, group: str = GROUP) -> str:
        return "\x01".join(["SubAfter", "r", msg_id, "3", success, "k", code, time, group]) + "\x02"

    bodies = [
        (after("M", "false", "2", "100") + after("other", "false", "4", "900")).encode(),
        (
            "Pub\x01x\x02" + after("M", "false", "1", "300") + after("M", "false", "4", "200")
        ).encode(),
        (after("M", "true", "0", "800") + after("M", "false", "2", "700", "another")).encode(),
        b"\xff\x02SubAfter\x01short\x02",
    ]
    assert latest_reason(bodies, GROUP, "M") == "the handler took too long (TIME_OUT)"
    assert latest_reason(bodies[:1], GROUP, "M") == "the handler raised an exception (EXCEPTION)"
    assert latest_reason(bodies, GROUP, "N") is None
    four = (
        "\x01".join(["SubAfter", "r", "M", "3", "false", "k", "4"]) + "\x02"
    )  # 4.x, and the cloud's form, without time and group
    assert latest_reason([four.encode()], GROUP, "M") == (
        "the handler asked to have it again (FAILED)"
    )
    ours = after("M", "false", "2", "5").replace("\x02", "\x01error=ValueError: no stock\x02")
    assert latest_reason([ours.encode()], GROUP, "M") == (
        "the handler raised an exception (EXCEPTION): ValueError: no stock"
    )

    await dead(broker, 1)
    (letter,) = [letter async for letter in dead_letters.letters(GROUP)]
    assert await dead_letters.reason(letter) is None
    await broker.create_topic("traces")
    async with Producer(broker.namesrv) as producer:
        text = after(letter.message.msg_id, "false", "2", "5")
        await producer.send(Message("traces", text, keys=[letter.message.msg_id]))
    assert await dead_letters.reason(letter, trace_topic="traces") == (
        "the handler raised an exception (EXCEPTION)"
    )
