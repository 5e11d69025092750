"""A disk that fills up and is freed: sends are refused, nothing dies, nothing acknowledged is lost,
and writing goes on by itself.

A 64 MiB ext4 on a loop device (see `power.py`), small files, forced cleaning off; a filler takes
what is left and gives it back.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash import power
from tests.crash.broker_process import NAME, BrokerProcess
from tests.crash.reading import pulled

from turbopump.client.producer import Producer
from turbopump.client.sending.send_result import SendStatus
from turbopump.errors import SendError
from turbopump.message.message import MessageQueue
from turbopump.store.queues.consume_queue import UNIT_SIZE
from turbopump.store.sparse_files import PAGE

TOPIC = "orders"
QUEUES = 2
SIZE = 64 * 1024 * 1024
WRITABLE_SECONDS_MAX = 10.0
"""In full; a sample runs beside other tests, and may take three times as long."""
BODY_SIZE = 8_000
SETTINGS: dict[str, object] = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": 256 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 100,
    "maxMessageSize": 64 * 1024,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "cleanFileForciblyEnable": "false",
    "diskFreeSpaceMin": 0,
}

pytestmark = pytest.mark.skipif(
    power.why_not() is not None and not os.environ.get("CI"),
    reason=f"disk full not run: {power.why_not()}",
)


class Rounds:
    """Fill, be refused, free, be served again, so many times."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.sent: set[bytes] = set()
        self.refused: dict[bytes, str] = {}
        self.writable_after: list[float] = []
        self.found: dict[tuple[int, int], bytes] = {}
        self._number = 0

    async def run(self, home: Path, count: int) -> None:
        with power.Ext4(home, SIZE) as file_system:
            filler = file_system.mount_point / "filler"
            store = file_system.mount_point / "store"
            async with BrokerProcess(home / "home", store, SETTINGS) as broker:
                await broker.start()
                await broker.create_topic(TOPIC, QUEUES)
                async with Producer(
                    broker.namesrv, retries=0, send_timeout=8.0, compress_from=None
                ) as producer:
                    for _ in range(count):
                        await self._round(producer, filler)
                assert await pulled(broker.namesrv, TOPIC), "the broker does not answer"
                await broker.kill()
                await broker.start()
                self.found = await pulled(broker.namesrv, TOPIC)

    async def killed(self, home: Path, kills: int) -> None:
        """Kills on a disk without a free byte, each followed by a start; then it is freed."""
        with power.Ext4(home, SIZE) as file_system:
            filler = file_system.mount_point / "filler"
            async with BrokerProcess(
                home / "home", file_system.mount_point / "store", SETTINGS
            ) as broker:
                await broker.start()
                await broker.create_topic(TOPIC, QUEUES)
                async with Producer(broker.namesrv, retries=0, send_timeout=8.0) as producer:
                    for _ in range(20):
                        await self._send_next(producer)
                for number in range(kills):
                    power.fill(filler.with_name(f"filler{number}"))
                    await broker.kill()
                    power.fill(filler)  # what the kill has freed
                    await broker.start()
                    self.found = await pulled(broker.namesrv, TOPIC)
                    async with Producer(broker.namesrv, retries=0, send_timeout=8.0) as producer:
                        assert not await self._send_next(producer), "there is no room for it"
                        filler.unlink()
                        if number + 1 == kills:
                            for each in file_system.mount_point.glob("filler*"):
                                power.free(each)
                            freed = time.monotonic()
                            while not await self._send_next(producer):
                                assert time.monotonic() - freed < 3 * WRITABLE_SECONDS_MAX
                                await asyncio.sleep(0.05)

    async def new_queues(self, home: Path, count: int) -> None:
        """The log has room left on a disk without a free byte, and queues have not: first one that
        soon needs its next blocks, then some without any. The process lives on. Once the disk is
        freed each is written, and after a kill all that was acknowledged is there."""
        settings = SETTINGS | {
            "mappedFileSizeCommitLog": 4 * 1024 * 1024,
            "mappedFileSizeConsumeQueue": 6_000_000,
            "messageIndexEnable": "false",
        }
        with power.Ext4(home, SIZE) as file_system:
            filler = file_system.mount_point / "filler"
            async with BrokerProcess(
                home / "home", file_system.mount_point / "store", settings
            ) as broker:
                await broker.start()
                await broker.create_topic(TOPIC, count)
                async with Producer(broker.namesrv, retries=0, send_timeout=8.0) as producer:
                    assert await self._send(producer, 0, b"the log has room")
                    power.fill(filler)
                    units = 1
                    while await self._send(producer, 0, b"unit %d" % units):
                        units += 1
                    assert units <= PAGE // UNIT_SIZE, "there is no block for more"
                    for queue_id in range(1, count):
                        assert not await self._send(producer, queue_id, b"first"), "no block"
                    power.free(filler)
                    for queue_id in range(count):
                        await self._send_when_free(producer, queue_id, b"after")
                assert (await pulled(broker.namesrv, TOPIC)).items() >= self.acknowledged.items()
                await broker.kill()
                await broker.start()
                self.found = await pulled(broker.namesrv, TOPIC)

    async def _round(self, producer: Producer, filler: Path) -> None:
        await self._send_next(producer)
        power.fill(filler)
        for _ in range(400):
            if not await self._send_next(producer):
                break
        else:
            raise AssertionError("3 MB were taken on a full disk")
        await self._send_next(producer)
        power.free(filler)
        await self._send_when_free(producer, self._number % QUEUES, b"")

    async def _send_when_free(self, producer: Producer, queue_id: int, body: bytes) -> None:
        freed = time.monotonic()
        while not await self._send(producer, queue_id, body or self._next_body()):
            waited = time.monotonic() - freed
            assert waited < 3 * WRITABLE_SECONDS_MAX, (
                f"not writable {waited:.0f} s after: {list(self.refused.values())[-1]}"
            )
            await asyncio.sleep(0.05)  # the broker's own watcher decides when
        self.writable_after.append(time.monotonic() - freed)

    async def _send_next(self, producer: Producer) -> bool:
        return await self._send(producer, self._number % QUEUES, self._next_body())

    def _next_body(self) -> bytes:
        self._number += 1
        return b"%d " % self._number + self.rng.randbytes(self.rng.randrange(BODY_SIZE))

    async def _send(self, producer: Producer, queue_id: int, body: bytes) -> bool:
        queue = MessageQueue(TOPIC, NAME, queue_id)
        self.sent.add(body)
        try:
            result = await producer.send(TOPIC, body, queue=queue)
        except SendError as error:
            self.refused[body] = str(error)
            return False
        if result.status is SendStatus.OK:
            self.acknowledged[queue.queue_id, result.queue_offset] = body
        return True


def test_a_full_disk_refuses_and_comes_back_by_itself(
    tmp_path: Path, rng: random.Random, full: bool, measured: Callable[[str], None]
) -> None:
    assert power.why_not() is None, power.why_not()
    rounds = Rounds(rng)
    count = 20 if full else 2
    asyncio.run(rounds.run(tmp_path, count))
    lost = [place for place, body in rounds.acknowledged.items() if rounds.found.get(place) != body]
    phantoms = [place for place, body in rounds.found.items() if body not in rounds.sent]
    bodies = set(rounds.found.values())
    seen = [text for body, text in rounds.refused.items() if body in bodies]
    measured(
        f"{count} rounds, {len(rounds.acknowledged):,} acknowledged, {len(lost)} lost, "
        f"{len(phantoms)} phantoms, "
        f"{len(rounds.refused)} refused ({len(seen)} of them stored all the same), "
        f"writable {max(rounds.writable_after):.2f} s after space at most; "
        f"a refusal says: {next(iter(rounds.refused.values()))[:300]}"
    )
    assert lost == []
    assert phantoms == []
    assert seen == []
    assert not full or max(rounds.writable_after) <= WRITABLE_SECONDS_MAX


def test_a_broker_killed_on_a_full_disk_starts_serves_what_it_has_and_takes_more_when_it_can(
    tmp_path: Path, rng: random.Random, full: bool, measured: Callable[[str], None]
) -> None:
    assert power.why_not() is None, power.why_not()
    rounds = Rounds(rng)
    kills = 5 if full else 2
    asyncio.run(rounds.killed(tmp_path, kills))
    stored = {place: body for place, body in rounds.acknowledged.items() if place in rounds.found}
    measured(f"{kills} kills on a full disk, {len(stored)} messages served after each")
    assert len(stored) == 20
    assert all(rounds.found[place] == body for place, body in stored.items())


def test_a_queue_without_a_block_on_a_full_disk_refuses_and_the_broker_lives(
    tmp_path: Path, rng: random.Random, full: bool, measured: Callable[[str], None]
) -> None:
    assert power.why_not() is None, power.why_not()
    rounds = Rounds(rng)
    asyncio.run(rounds.new_queues(tmp_path, 12))
    measured(
        f"{len(rounds.acknowledged)} acknowledged, {len(rounds.refused)} bodies refused, writable "
        f"{max(rounds.writable_after):.2f} s after space at most; "
        f"a refusal says: {next(iter(rounds.refused.values()))[:300]}"
    )
    assert rounds.found == rounds.acknowledged
    assert not full or max(rounds.writable_after) <= WRITABLE_SECONDS_MAX
