"""System calls that fail: no message is called stored that is not, whoever sends is told at once,
and the next start finds nothing broken.

Two ways. A store on the simulated disk meets an error and then a power cut, so that what a failed
sync left behind is really gone. A broker on real files meets an error in a real call of
its disk; it must answer every send within a second, and after a failed fdatasync of the
log never again with SEND_OK.
"""

import asyncio
import contextlib
import errno
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.crash.broker_process import NAME, BrokerProcess
from tests.crash.faulty_os import KINDS, Fault, failing
from tests.crash.in_memory import Opened, StillClock, config, make_disk, open_disk, open_image
from tests.crash.reading import pulled
from tests.simulation.world.mount import PowerCut

from turbopump.client.producer import Producer
from turbopump.client.pull_consumer import PullConsumer
from turbopump.client.sending.send_result import SendStatus
from turbopump.compiled import IS_COMPILED
from turbopump.config.broker_config import FlushDiskType
from turbopump.errors import RemotingError, SendError, StoreError
from turbopump.message.message import MessageQueue
from turbopump.testing.broker_in_loop import RunningBroker, running_broker

ERRORS = (errno.EIO, errno.ENOSPC, errno.EINTR)
NTH_MAX = 200
ANSWER_SECONDS_MAX = 1.0
"""In full; a sample runs beside other tests, and sees only that nobody waits for a time-out."""
TIME_OUT_S = 30
TOPIC = "orders"
QUEUES = 2


# --- a store, an error, and a power cut
# --------------------------------------------------------------------------------------

OPERATIONS = (
    *("create", "allocate", "sync", "rename", "directory_sync", "write", "read", "open"),
    "remove",
)
SMALL = config(segment_size=4096, queue_file_size=20 * 5, index_slots=10, index_entries=20)


class Meeting:
    """A store that was killed before, opens on a disk that will fail once, works on if it can, and
    loses its power."""

    def __init__(self, operation: str, nth: int, error: int) -> None:
        self.clock = StillClock()
        self.rng = random.Random(f"{operation} {nth} {error}")
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.sent: set[bytes] = set()
        self._waiting: list[tuple[int, int, int, bytes]] = []
        self._number = 0
        before = open_image({}, SMALL, self.clock)
        for _ in range(20):
            self._work(before)
        self.disk, self._loop = make_disk(before.image(), self.clock)
        self.disk.fail(operation, error, nth=nth)
        self._fault = self.disk.faults[0]

    @property
    def struck(self) -> bool:
        return self._fault.times == 0

    def run(self) -> None:
        """Until some time after the fault; then the power goes."""
        try:
            found = open_disk(self.disk, self._loop, SMALL, self.clock)
        except (OSError, StoreError):
            pass
        else:
            left = 12
            for _ in range(6 * NTH_MAX):
                self._work(found)
                left -= self.struck
                if left == 0:
                    break
        self.disk.power_cut()

    def verdict(self) -> str | None:
        """What the next start finds wrong, or None."""
        image = {path: file.content for path, file in self.disk.files.items()}
        again = open_image(image, SMALL, self.clock)
        there = {
            (queue_id, offset): body
            for queue_id in range(QUEUES)
            for offset, body in again.bodies(TOPIC, queue_id).items()
        }
        lost = [place for place, body in self.acknowledged.items() if there.get(place) != body]
        phantoms = [place for place, body in there.items() if body not in self.sent]
        return f"lost {lost[:3]}, phantoms {phantoms[:3]}" if lost or phantoms else None

    def _work(self, found: Opened) -> None:
        """One message, now and then a flush; what the flush has passed is acknowledged."""
        number, queue_id = self._number, self._number % QUEUES
        self._number += 1
        self.clock.ms += 100
        body = b"%d " % number + self.rng.randbytes(self.rng.randrange(900))
        self.sent.add(body)
        with contextlib.suppress(OSError, StoreError):  # refused: it may be there or not
            stored = found.put(TOPIC, queue_id, body, f"key-{number}")
            self._waiting.append((stored.end, queue_id, stored.queue_offset, body))
        if number % 3 == 0:
            found.store.flusher.flush_log()
        if number % 5 == 0:
            found.store.flusher.flush_queues()
        found.loop.run()
        while self._waiting and self._waiting[0][0] <= found.store.durable.value:
            _, queue, offset, flushed = self._waiting.pop(0)
            self.acknowledged[queue, offset] = flushed


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_store_that_meets_an_error_and_then_a_power_cut_keeps_what_it_called_flushed(
    operation: str, full: bool, measured: Callable[[str], None]
) -> None:
    struck = 0
    wrong: list[str] = []
    for nth in range(1, NTH_MAX + 1) if full else (1, 5, 60):
        for error in ERRORS if full or nth == 1 else ERRORS[nth % 2 : nth % 2 + 1]:
            meeting = Meeting(operation, nth, error)
            try:
                meeting.run()
                fault = meeting.verdict()
            except (Exception, PowerCut) as unexpected:
                fault = f"{type(unexpected).__name__} {unexpected}"
            struck += meeting.struck
            if fault is not None:
                wrong.append(f"{errno.errorcode[error]} at {operation} {nth}: {fault}")
        if not meeting.struck:
            break  # there are no more operations of this kind
    measured(f"{struck} errors met, {len(wrong)} wrong")
    assert not wrong, f"{len(wrong)}; first: {wrong[:3]}"
    assert struck > 0


# --- a broker and a system call that fails
# -----------------------------------------------------------------------------------

BROKER: dict[str, Any] = {
    "mapped_file_size_commit_log": 8 * 1024,
    "max_message_size": 4 * 1024,
    "mapped_file_size_consume_queue": 20 * 5,
    "flush_disk_type": FlushDiskType.SYNC_FLUSH,
    "message_index_enable": True,
    "enabled_append_prop_crc": True,
    "flush_consumer_offset_interval": 1,
    "flush_interval_consume_queue": 10,
    "sync_flush_timeout": TIME_OUT_S * 1000,
}
BEFORE = 24
"""Messages of each queue that were there before: what cold reads read."""


@dataclass
class Story:
    """One life of a broker with one fault."""

    fault: Fault
    sends_max: int
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    sent: set[bytes] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    slowest_answer: float = 0.0
    struck: bool = False
    stopped_by: str = ""


def body_of(number: int) -> bytes:
    source = random.Random(number)
    return b"%d " % number + source.randbytes(source.randrange(2000, 3600))


async def make_template(directory: Path) -> dict[tuple[int, int], bytes]:
    """A broker's directory with some messages, stopped cleanly."""
    there: dict[tuple[int, int], bytes] = {}
    async with running_broker(directory=directory, **BROKER) as broker:
        await broker.create_topic(TOPIC, QUEUES)
        async with (
            Producer(broker.namesrv) as producer,
            PullConsumer(broker.namesrv, group="accounting") as consumer,
        ):
            for number in range(BEFORE * QUEUES):
                queue = MessageQueue(TOPIC, "broker-test", number % QUEUES)
                result = await producer.send(TOPIC, body_of(number), queue=queue)
                there[queue.queue_id, result.queue_offset] = body_of(number)
                await consumer.commit(queue, result.queue_offset + 1)
    return there


async def live_with(story: Story, directory: Path, there: dict[tuple[int, int], bytes]) -> None:
    """Start a broker that meets the fault, use it until some time after, stop it."""
    with failing(story.fault) as system:
        try:
            async with running_broker(directory=directory, **BROKER) as broker:
                await use(story, broker, system, there)
        except (OSError, StoreError) as error:
            story.stopped_by = f"{type(error).__name__} {error}"
        story.struck = system.struck_at is not None


async def use(
    story: Story, broker: RunningBroker, system: object, there: dict[tuple[int, int], bytes]
) -> None:
    after = 0
    async with (
        Producer(broker.namesrv, retries=0, send_timeout=2.0 * TIME_OUT_S) as producer,
        PullConsumer(broker.namesrv, group="accounting") as consumer,
    ):
        for number in range(1000, 1000 + story.sends_max):
            queue = MessageQueue(TOPIC, "broker-test", number % QUEUES)
            await send(story, producer, queue, body_of(number), system)
            # an answer that says no is as good as a yes: what counts is the store
            with contextlib.suppress(RemotingError):
                await consumer.commit(queue, BEFORE + number - 1000)
                if number % 2:
                    await read_one(story, consumer, queue, number % BEFORE, there)
            after += system.struck_at is not None  # type: ignore[attr-defined]
            if after > 6:
                return


async def send(
    story: Story, producer: Producer, queue: MessageQueue, body: bytes, system: object
) -> None:
    failed_before = "commitlog" in system.victim and story.fault.kind == "fdatasync"  # type: ignore[attr-defined]
    story.sent.add(body)
    begun = time.monotonic()
    try:
        result = await producer.send(TOPIC, body, queue=queue)
    except SendError:
        result = None
    story.slowest_answer = max(story.slowest_answer, time.monotonic() - begun)
    failed = "commitlog" in system.victim and story.fault.kind == "fdatasync"  # type: ignore[attr-defined]
    if result is not None and result.status is SendStatus.OK:
        story.acknowledged[queue.queue_id, result.queue_offset] = body
        if failed:
            when = "begun after" if failed_before else "under way at"
            story.faults.append(f"SEND_OK of a send {when} the failed fdatasync of the log")


async def read_one(
    story: Story,
    consumer: PullConsumer,
    queue: MessageQueue,
    offset: int,
    there: dict[tuple[int, int], bytes],
) -> None:
    result = await consumer.pull(queue, offset, 1)
    for message in result.messages:
        if message.body != there[queue.queue_id, message.queue_offset]:
            story.faults.append(
                f"wrong bytes delivered at queue {queue.queue_id} offset {message.queue_offset}"
            )


async def judge(story: Story, directory: Path, there: dict[tuple[int, int], bytes]) -> None:
    """Start again without a fault."""
    async with running_broker(directory=directory, **BROKER) as broker:
        found = await pulled(broker.namesrv, TOPIC)
        wanted = {**there, **story.acknowledged}
        lost = [place for place, body in wanted.items() if found.get(place) != body]
        known = {*wanted.values(), *story.sent}
        phantoms = [place for place, body in found.items() if body not in known]
        if lost or phantoms:
            story.faults.append(
                f"after the restart lost {lost[:3]} ({len(lost)}), phantoms {phantoms[:3]}"
            )
        async with PullConsumer(broker.namesrv, group="accounting") as consumer:
            for queue_id in range(QUEUES):
                committed = await consumer.committed(MessageQueue(TOPIC, "broker-test", queue_id))
                if not committed:
                    story.faults.append(
                        f"the offset of queue {queue_id} is {committed} after the restart"
                    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_that_meets_an_error_says_so_and_breaks_nothing(
    fast_directory: Path, kind: str, full: bool, measured: Callable[[str], None]
) -> None:
    template = fast_directory / "template"
    there = asyncio.run(make_template(template))
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    slowest = 0.0
    for nth in range(1, NTH_MAX + 1) if full else (1, 4):
        for error in ERRORS if full else ERRORS[nth % 2 : nth % 2 + 1]:
            story = Story(Fault(kind, nth, error), sends_max=4 * NTH_MAX if full else 30)
            directory = fast_directory / f"store-{kind}-{nth}-{errno.errorcode[error]}"
            shutil.copytree(template, directory)
            try:
                asyncio.run(live_with(story, directory, there))
                asyncio.run(judge(story, directory, there))
            except (Exception, BaseExceptionGroup) as unexpected:
                story.faults.append(f"{type(unexpected).__name__} {unexpected}")
            shutil.rmtree(directory)
            counts["struck" if story.struck else "not reached"] += 1
            slowest = max(slowest, story.slowest_answer)
            if story.slowest_answer > (ANSWER_SECONDS_MAX if full else TIME_OUT_S / 2):
                story.faults.append(f"an answer took {story.slowest_answer:.1f} s")
            wrong += [f"{story.fault}: {text}" for text in story.faults]
        if not story.struck and full:
            break  # there are no more calls of this kind
    measured(f"{dict(counts)}, {len(wrong)} wrong, slowest answer {slowest * 1000:.0f} ms")
    assert not wrong, f"{len(wrong)}; first: {wrong[:4]}"


# --- files that are cut or deleted under the running broker
# -----------------------------------------------------------------------------------------------


async def send_for_long(producer: Producer, queue: MessageQueue) -> None:
    body, end = random.Random(1).randbytes(4096), time.monotonic() + 10
    while time.monotonic() < end:
        await producer.send(TOPIC, body, queue=queue)


@dataclass
class Lost:
    """What became of a broker whose log was taken: the status with which it ended, None while it
    ran on; the seconds in which it went on acknowledging; its log."""

    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    found: dict[tuple[int, int], bytes] = field(default_factory=dict)
    status: int | None = None
    seconds: float = 0.0
    log: str = ""


async def lose_the_log(home: Path, flush: str, lose: Callable[[Path, int], None]) -> Lost:
    """Take the log, or the end of it, from a broker; then put back what was taken, and see what the
    next start finds. ``lose`` gets the segment and the offset behind its last message."""
    settings: dict[str, object] = {
        "flushDiskType": flush,
        "mappedFileSizeCommitLog": 1024 * 1024,
        "mappedFileSizeConsumeQueue": 20 * 1000,
        "maxMessageSize": 64 * 1024,
    }
    story = Lost()
    async with BrokerProcess(home / "home", home / "store", settings) as broker:
        await broker.start()
        await broker.create_topic(TOPIC, QUEUES)
        segment = home / "store" / "commitlog" / f"{0:020d}"
        async with Producer(broker.namesrv, retries=0, send_timeout=5.0) as producer:
            for number in range(40):
                queue = MessageQueue(TOPIC, NAME, number % QUEUES)
                result = await producer.send(TOPIC, body_of(number), queue=queue)
                story.acknowledged[queue.queue_id, result.queue_offset] = body_of(number)
            end = int(result.offset_msg_id[-16:], 16) + 4 * 4096
            kept = shutil.copyfile(segment, segment.with_name("kept"))
            lose(segment, end - end % 4096)
            begun = time.monotonic()
            with pytest.raises(SendError):
                await send_for_long(producer, queue)
            story.seconds = time.monotonic() - begun
            if IS_COMPILED:
                await broker.stop()
            else:
                story.status = await broker.wait(60.0)
        kept.replace(segment)
        story.log = broker.log_tail()
        await broker.start()
        story.found = await pulled(broker.namesrv, TOPIC)
    return story


def cut(segment: Path, end: int) -> None:
    os.truncate(segment, end)


def delete(segment: Path, _end: int) -> None:
    segment.unlink()


@pytest.mark.parametrize(("flush", "lose"), [("SYNC_FLUSH", cut), ("ASYNC_FLUSH", delete)])
def test_a_log_that_is_taken_from_a_broker_ends_acknowledgements_and_costs_nothing_before(
    tmp_path: Path, flush: str, lose: Callable[[Path, int], None], measured: Callable[[str], None]
) -> None:
    seconds = []
    while not seconds or (seconds[-1] > 1.5 and len(seconds) < 5):  # or the machine stood still
        story = asyncio.run(lose_the_log(tmp_path / str(len(seconds)), flush, lose))
        seconds.append(story.seconds)
        assert {place: story.found.get(place) for place in story.acknowledged} == story.acknowledged
        if IS_COMPILED:
            assert f"commitlog/{0:020d} was " in story.log
            assert "the store is read-only until a restart" in story.log
        else:  # without the compiled handler a page that is gone ends the process
            assert story.status == -signal.SIGBUS
    measured(f"acknowledged for {seconds[-1]:.2f} s more")
    assert seconds[-1] <= 1.5, seconds
