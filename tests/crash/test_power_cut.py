"""The power goes while a broker works: what each way to flush has promised is there when it comes
back.

The file system is a real ext4 that is shut down under the broker (see `power.py`). What was
acknowledged is fixed just before the cut: an answer that arrives after it may be of a message that
the disk never had. The control runs the same under a library that makes every fsync do nothing, and
must lose: were it to pass, the others had no teeth.
"""

import asyncio
import errno
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash import power, threaded_syncs, timed_syncs
from tests.crash.broker_process import NAME, BrokerProcess
from tests.crash.load import TOPIC, Load

from turbopump.client.pull_consumer import PullConsumer, PullStatus
from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import TurbopumpError
from turbopump.message.message import MessageQueue
from turbopump.protocol import fastjson
from turbopump.protocol.requests.offsets import ConsumerOffsetTable

ASYNC_PROMISE_S = 0.5
"""ASYNC_FLUSH flushes this often, whatever there is."""
LATE_S = 0.5
"""By so much other tests beside a sample may delay a flush."""
QUEUES = 4
GROUP = "accounting"
SIZE = 512 * 1024 * 1024
SETTINGS: dict[str, object] = {
    "mappedFileSizeCommitLog": 8 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 3_000 * 20,
    "maxMessageSize": 1024 * 1024,
    "flushConsumerOffsetInterval": 50,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}

pytestmark = pytest.mark.skipif(
    power.why_not() is not None and not os.environ.get("CI"),
    reason=f"power cut not run: {power.why_not()}",
)


async def cut_power(file_system: power.Ext4, broker: BrokerProcess, load: Load) -> float:
    """Fix what is acknowledged, cut, take the dead process away, bring the disk back; the moment of
    the cut."""
    load.fix()
    at = time.monotonic()
    file_system.cut()
    await broker.kill()
    file_system.unmount()
    file_system.mount()
    return at


def store_of(file_system: power.Ext4) -> Path:
    return file_system.mount_point / "store"


# --- SYNC_FLUSH
# -----------------------------------------------------------------------------------------------


async def cut_under_sync_flush(home: Path, rng: random.Random, cuts: int, per_life: int) -> Load:
    with power.Ext4(home, SIZE) as file_system:
        settings = {**SETTINGS, "flushDiskType": "SYNC_FLUSH"}
        async with BrokerProcess(home / "home", store_of(file_system), settings) as broker:
            await broker.start()
            await broker.create_topic(TOPIC, QUEUES)
            load = Load(broker.namesrv, rng, queues=QUEUES)
            await load.start()
            load.resume()
            try:
                for _ in range(cuts):
                    await load.until(load.acknowledged + rng.randrange(10, per_life))
                    await cut_power(file_system, broker, load)
                    await broker.start()
                    load.resume()
                    await load.until_answered()
                await load.drain()
            finally:
                await load.stop()
            return load


def test_sync_flush_loses_nothing_that_was_acknowledged(
    tmp_path: Path, rng: random.Random, full: bool, measured: Callable[[str], None]
) -> None:
    assert power.why_not() is None, power.why_not()
    cuts, per_life = (100, 600) if full else (3, 100)
    load = asyncio.run(cut_under_sync_flush(tmp_path, rng, cuts, per_life))
    violations = load.ledger.violations(ordered=load.groups)
    found = Counter(violation.rule.name for violation in violations)
    measured(
        f"SYNC_FLUSH: {cuts} power cuts, {load.acknowledged:,} acknowledged, violations "
        f"{dict(found) or 0}"
    )
    assert violations == []


# --- ASYNC_FLUSH
# -----------------------------------------------------------------------------------------------


class AsyncStory:
    """Rounds under ASYNC_FLUSH: what was lost, how old it was, and whether consumers passed over
    something that came later."""

    def __init__(self, promise_s: float) -> None:
        self.promise_s = promise_s
        self.cuts = 0
        self.acknowledged = 0
        self.lost = 0
        self.oldest_lost = 0.0
        self.longest_sync = 0.0
        self.broken_promises: list[str] = []
        self.skipped = 0
        self.ahead = 0

    async def run(self, home: Path, rng: random.Random, cuts: int, per_life: int) -> None:
        times = home / "sync-times"
        os.environ["TURBOPUMP_SYNC_TIMES"] = str(times)
        with power.Ext4(home, SIZE) as file_system:
            settings = {**SETTINGS, "flushDiskType": "ASYNC_FLUSH"}
            script = Path(timed_syncs.__file__)
            async with BrokerProcess(
                home / "home", store_of(file_system), settings, script=script
            ) as broker:
                await broker.start()
                await broker.create_topic(TOPIC, QUEUES)
                await asyncio.sleep(2 * ASYNC_PROMISE_S)  # the topic's table is on the disk
                while self.cuts < cuts or (not self.ahead and self.cuts < 4 * cuts):
                    await self._round(file_system, broker, rng, per_life, times)
                    if self.skipped:
                        break  # enough is known, and every further round would wait in vain

    async def _round(
        self,
        file_system: power.Ext4,
        broker: BrokerProcess,
        rng: random.Random,
        per_life: int,
        times: Path,
    ) -> None:
        """Send and consume, committing often; cut; then what is sent afterwards reaches a group
        that resumes where it stood."""
        empty(times)
        begin = await ends(broker)
        load = Load(
            broker.namesrv, rng, queues=QUEUES, groups=(GROUP,), producers=2, body_size_max=400
        )
        await load.start()
        load.resume()
        try:
            await load.until(rng.randrange(10, per_life))
            deadline = time.monotonic() + rng.uniform(0, 1.2)
            while time.monotonic() < deadline:
                await load.commit()
                await asyncio.sleep(0.05)
            at = await cut_power(file_system, broker, load)
            sync = longest_sync(times, at)
            before = dict(load.acknowledged_at)
        finally:
            await load.stop()
        self.cuts += 1
        stored = stored_offsets(file_system)
        await broker.start()
        recovered = await ends(broker)
        self.ahead += sum(
            offset > recovered.get(queue_id, 0) for queue_id, offset in stored.items()
        )
        lost = await self._judge(broker, begin, before, at, sync)
        await self._later_ones(broker, rng, lost)

    async def _judge(
        self,
        broker: BrokerProcess,
        begin: dict[int, int],
        before: dict[bytes, float],
        cut_at: float,
        sync: float,
    ) -> int:
        found = await bodies(broker, begin)
        self.acknowledged += len(before)
        self.longest_sync = max(self.longest_sync, sync)
        lost = [(body, cut_at - at) for body, at in before.items() if body not in found]
        for body, age in lost:
            self.oldest_lost = max(self.oldest_lost, age)
            if age > self.promise_s + sync:
                self.broken_promises.append(
                    f"acknowledged {age:.3f} s before the cut, longest fdatasync {sync:.3f} s: "
                    f"{body[:40]!r}"
                )
        self.lost += len(lost)
        return len(lost)

    async def _later_ones(self, broker: BrokerProcess, rng: random.Random, lost: int) -> None:
        """More than were lost are sent, so that the queues grow past where the group had been; then
        the group comes back."""
        load = Load(broker.namesrv, rng, queues=QUEUES, groups=(), producers=1, body_size_max=400)
        await load.start()
        load.resume()
        try:
            await load.until(100 + lost)
            load.groups = (GROUP,)
            await load.join(GROUP)
            await load.drain()
            sent = {send.body for send in load.ledger.acknowledged}
            self.skipped += len(sent - load.seen[GROUP])
        finally:
            await load.stop()


def empty(times: Path) -> None:
    times.write_bytes(b"")


def longest_sync(times: Path, until: float) -> float:
    """Seconds of the longest fdatasync of the broker since `empty`."""
    return timed_syncs.longest(times.read_text(), until)


def stored_offsets(file_system: power.Ext4) -> dict[int, int]:
    """Where the group stands in each queue, by what the disk has."""
    file = store_of(file_system) / "config" / "consumerOffset.json"
    if not file.exists():
        return {}  # the power went before the first save
    data = file.read_bytes()
    return dict(fastjson.decode(data, ConsumerOffsetTable).offset_table.get(f"{TOPIC}@{GROUP}", {}))


async def ends(broker: BrokerProcess) -> dict[int, int]:
    """The end of every queue."""
    async with PullConsumer(broker.namesrv, group="auditor") as consumer:
        return {
            queue_id: await consumer.max_offset(MessageQueue(TOPIC, NAME, queue_id))
            for queue_id in range(QUEUES)
        }


async def bodies(broker: BrokerProcess, begin: dict[int, int] | None = None) -> set[bytes]:
    """Every message that the broker has, from these offsets on."""
    found: set[bytes] = set()
    async with PullConsumer(broker.namesrv, group="auditor") as consumer:
        for queue_id in range(QUEUES):
            queue, offset = MessageQueue(TOPIC, NAME, queue_id), (begin or {}).get(queue_id, 0)
            while True:
                result = await consumer.pull(queue, offset)
                if result.status is PullStatus.FOUND:
                    found.update(message.body for message in result.messages)
                elif result.next_offset == offset:
                    break
                offset = result.next_offset
    return found


def test_async_flush_loses_only_what_is_younger_than_its_interval_and_consumers_skip_nothing(
    tmp_path: Path, rng: random.Random, full: bool, measured: Callable[[str], None]
) -> None:
    assert power.why_not() is None, power.why_not()
    cuts, per_life = (100, 600) if full else (5, 100)
    story = AsyncStory(ASYNC_PROMISE_S + (0 if full else LATE_S))
    asyncio.run(story.run(tmp_path, rng, cuts, per_life))
    measured(
        f"ASYNC_FLUSH: {story.cuts} power cuts, {story.acknowledged:,} acknowledged, "
        f"{story.lost} lost, the oldest of them "
        f"{story.oldest_lost * 1000:.0f} ms before its cut (longest fdatasync "
        f"{story.longest_sync * 1000:.0f} ms), "
        f"{len(story.broken_promises)} older than promised; {story.ahead} times a group's offset "
        "was beyond the end of its queue, "
        f"{story.skipped} later messages skipped"
    )
    assert story.broken_promises == []
    assert story.skipped == 0
    assert story.ahead > 0, "no offset was ahead of its queue: the test has no teeth"


# --- what the kernel syncs by itself
# -------------------------------------------------------------------------------------------


async def sync_before_and_after_a_cut(home: Path) -> list[int | None]:
    """The error numbers of a sync before the power goes, and of two after."""
    loop = asyncio.get_running_loop()
    found = []
    with power.Ext4(home, 64 * 1024 * 1024) as file_system:
        disk = SystemDisk(loop.call_soon_threadsafe, loop)
        segment = disk.create_segment(file_system.mount_point / "log", 1 << 20)
        for number in range(3):
            segment.buffer[number * 8192] = 1
            told: asyncio.Future[OSError | None] = loop.create_future()
            disk.start_sync([segment], told.set_result)
            error = await asyncio.wait_for(told, 30)
            found.append(error.errno if error is not None else None)
            if not number:
                file_system.cut()
        disk.close()
        segment.close()
        file_system.unmount()
        file_system.mount()
    return found


def test_a_sync_by_the_kernel_fails_when_the_disk_is_gone(tmp_path: Path) -> None:
    assert asyncio.run(sync_before_and_after_a_cut(tmp_path)) == [None, errno.EIO, errno.EIO]


# --- the control
# -----------------------------------------------------------------------------------------------


async def lost_without_fsync(home: Path, rng: random.Random, library: Path) -> tuple[int, int]:
    """SYNC_FLUSH where fsync does nothing: how many were acknowledged, and how many of them are
    gone after a cut."""
    with power.Ext4(home, SIZE) as file_system:
        settings = {**SETTINGS, "flushDiskType": "SYNC_FLUSH"}
        script = Path(threaded_syncs.__file__)
        process = BrokerProcess(
            home / "home", store_of(file_system), settings, script=script, preload=str(library)
        )
        async with process as broker:
            await broker.start()
            await broker.create_topic(TOPIC, QUEUES)
            load = Load(broker.namesrv, rng, queues=QUEUES, groups=())
            await load.start()
            load.resume()
            try:
                await load.until(200)
                await cut_power(file_system, broker, load)
            finally:
                await load.stop()
            sent = {send.body for send in load.ledger.acknowledged}
            try:
                await broker.start()
                found = await bodies(broker)
            except (TurbopumpError, AssertionError):
                # not even the topic is left, or the broker finds ruins
                found = set()
            return len(sent), len(sent - found)


def test_the_control_without_fsync_loses(
    tmp_path: Path, rng: random.Random, measured: Callable[[str], None]
) -> None:
    assert power.why_not() is None, power.why_not()
    library = power.eatmydata()
    if library is None and not os.environ.get("CI"):
        pytest.skip("control not run: no libeatmydata (Debian package libeatmydata1)")
    assert library is not None, "the control needs libeatmydata (Debian package libeatmydata1)"
    sent, lost = asyncio.run(lost_without_fsync(tmp_path, rng, library))
    measured(f"control under {library.name}: {lost} of {sent} acknowledged lost")
    assert lost > 0
