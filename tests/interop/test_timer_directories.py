"""A store directory with pending timer messages changes hands: what one broker was asked to deliver
later, the other one delivers.

Apache's 5.3.3 (4.9 has no timers) and ours take turns; each is sent messages for soon and for the
other's turn, some of which are recalled, and is ended by SIGTERM or SIGKILL. After a clean stop
nothing comes twice; it never comes early, nor if it was recalled.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.interop.apache import NEWEST
from tests.interop.our_clients import CALL_SECONDS, PATIENCE_SECONDS
from tests.interop.patient_apache import PATIENT
from tests.interop.shared_directory import SharedDirectory
from tests.interop.tools import skipping_without_tools

from turbopump import Message, MessageQueue, Producer, PullConsumer, ReceivedMessage
from turbopump.errors import RemotingError, RouteNotFoundError

TOPIC = "TurbopumpTimers"
LATE_MS = 1000
"""How late a message may be that was due while a broker ran: the precision."""
START_MS = 5000
"""What it may take Apache's broker to roll what is overdue."""
SETTINGS = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 30_000 * 20,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 20_000,
    "mappedFileSizeTimerLog": 1 << 20,
    "recallMessageEnable": True,
    "diskFreeSpaceMin": 64 << 20,
    "timerRollWindowSlot": 20,
    **PATIENT,
}


class TimerHands:
    """One directory and two brokers that take turns with it. ``due`` is number → time of delivery
    in ms."""

    def __init__(self, directory: Path) -> None:
        self._rng = random.Random(5)
        self.due: dict[int, int] = {}
        self.recalled: set[int] = set()
        self.excused: set[int] = set()
        """What was recalled and was due when Apache's broker began, or just after: if it had to
        roll, that delivers it all the same."""
        self.shared = SharedDirectory(NEWEST, directory, SETTINGS)

    def ours(self, end: signal.Signals, *, ahead_s: float) -> None:
        self.shared.turn("ours", lambda namesrv: self._turn(namesrv, ahead_s), end)

    def apache(self, end: signal.Signals, *, ahead_s: float) -> None:
        async def work(namesrv: str) -> None:
            rolled_ms = time.time() * 1000 + START_MS
            self.excused |= {number for number in self.recalled if self.due[number] <= rolled_ms}
            await self._turn(namesrv, ahead_s)

        self.shared.turn("apache", work, end)

    async def _turn(self, namesrv: str, ahead_s: float) -> None:
        """Take what the turns before have left, then leave something for the next."""
        if self.due:
            await self._take(namesrv)
        if not ahead_s:
            return
        async with patient(namesrv) as producer:
            for _ in range(40):
                await self._send(producer, self._rng.uniform(1.5, ahead_s))
            handles = [(await self._send(producer, ahead_s), len(self.due) - 1) for _ in range(4)]
            for handle, number in handles[::2]:
                assert handle is not None
                await producer.recall(TOPIC, handle)
                self.recalled.add(number)
        await asyncio.sleep(2.5)  # some are delivered, and the checkpoint knows of all the others

    async def _send(self, producer: Producer, ahead_s: float) -> str | None:
        number, deliver = len(self.due), int((time.time() + ahead_s) * 1000)
        sent = await producer.send(
            Message(TOPIC, b"%d" % number, deliver_at=deliver, properties={"n": str(number)}),
            queue=MessageQueue(TOPIC, "broker-a", 0),
        )
        self.due[number] = deliver
        return sent.recall_handle

    async def _take(self, namesrv: str) -> None:
        wait = max(self.due.values()) / 1000 - time.time()
        await asyncio.sleep(max(wait, 0) + LATE_MS / 1000)
        deadline = time.monotonic() + PATIENCE_SECONDS
        expected = set(self.due) - self.recalled
        while True:
            came = await everything(namesrv)
            if {int(message.body) for message in came} >= expected or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.1)
        counts = Counter(int(message.body) for message in came)
        assert expected <= set(counts)
        assert set(counts) <= expected | self.excused
        for message in came:
            assert message.store_timestamp >= self.due[int(message.body)], message.properties
            assert {"TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "REAL_TOPIC"} <= set(
                message.properties
            )
        if not self.shared.ever_killed:
            assert max(counts.values()) == 1


@asynccontextmanager
async def patient(namesrv: str) -> AsyncIterator[Producer]:
    """A producer, once the topic is there."""
    async with Producer(namesrv, send_timeout=CALL_SECONDS) as producer:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    await producer.send(TOPIC, b"-1")
                    break
                except (RemotingError, RouteNotFoundError):
                    await asyncio.sleep(0.05)
        yield producer


async def everything(namesrv: str) -> list[ReceivedMessage]:
    """Every message of the topic's queues but those that made it."""
    found: list[ReceivedMessage] = []
    async with PullConsumer(namesrv, group="timers") as consumer:
        for queue in await consumer.queues(TOPIC):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                found += result.messages
                offset = max(result.next_offset, offset + 1)
    return [message for message in found if message.body != b"-1"]


@pytest.fixture
def timer_hands(tmp_path: Path, summary: list[str]) -> Iterator[TimerHands]:
    started = time.monotonic()
    made = TimerHands(tmp_path)
    with skipping_without_tools(), made.shared:
        yield made
    summary.append(
        f"timers  {time.monotonic() - started:6.2f} s  {len(made.due)} messages, "
        f"{len(made.recalled)} recalled"
    )


def test_what_ours_was_asked_to_deliver_later_apache_delivers_and_the_other_way(
    timer_hands: TimerHands,
) -> None:
    timer_hands.ours(signal.SIGTERM, ahead_s=30)
    timer_hands.apache(signal.SIGTERM, ahead_s=30)
    timer_hands.ours(signal.SIGTERM, ahead_s=0)


def test_the_same_after_kills(timer_hands: TimerHands) -> None:
    timer_hands.apache(signal.SIGKILL, ahead_s=25)
    timer_hands.ours(signal.SIGKILL, ahead_s=25)
    timer_hands.apache(signal.SIGTERM, ahead_s=0)
