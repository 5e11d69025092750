"""Store directories as plain bytes: make one, damage it, open it, see what is there. On the
simulated disk, without a loop.

Its one rule: an image is a dict of path to bytes and opening it changes nothing of it. It must not
know what the damage was.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tests.simulation.world.disk import SimulatedDisk
from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.mount import SimulatedFile
from tests.unit.store.looked_up import find_by_key

from turbopump.message.codec import decode_entries
from turbopump.message.java import tags_code
from turbopump.store.files import StorePaths
from turbopump.store.message_store import MessageStore, NewMessage
from turbopump.store.queues.checked_entries import REBUILDING
from turbopump.store.queues.read_result import GetResult
from turbopump.store.store_config import StoreConfig

Image = dict[Path, bytes]
ROOT = Path("/store")
HOST = bytes([10, 0, 0, 1]) + (10911).to_bytes(4, "big")
START_MS = 1_700_000_000_000


class StillClock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.ms = START_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class IdleLoop:
    """As much of a loop as a simulated disk needs: what is started beside the store happens when
    `run` is called."""

    def __init__(self) -> None:
        self.due: list[_Timer] = []

    def trace(self, line: str) -> None:
        """Nobody looks."""

    def call_later(self, _delay: float, call: Callable[..., object], *args: object) -> "_Timer":
        timer = _Timer(call, args)
        self.due.append(timer)
        return timer

    def run(self) -> None:
        while self.due:
            self.due.pop(0).run()


class _Timer:
    def __init__(self, call: Callable[..., object], args: tuple[object, ...]) -> None:
        self._call = call
        self._args = args
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def run(self) -> None:
        if not self._cancelled:
            self._call(*self._args)


@dataclass(frozen=True)
class Stored:
    """A message and where it is."""

    topic: str
    queue_id: int
    queue_offset: int
    offset: int
    end: int
    key: str
    body: bytes


@dataclass
class Opened:
    """An open store, its disk, and what it reported."""

    store: MessageStore
    loop: IdleLoop
    disk: SimulatedDisk
    clock: StillClock
    reports: list[str] = field(default_factory=list)

    def put(self, topic: str, queue_id: int, body: bytes, key: str) -> Stored:
        placed = self.store.put(
            topic,
            queue_id,
            NewMessage(body, f"KEYS\x01{key}\x02TAGS\x01a\x02".encode(), tags_code("a"), keys=key),
            sys_flag=0,
            born_timestamp=self.clock.ms,
            born_host=HOST,
            store_host=HOST,
        )
        return Stored(
            topic, queue_id, placed.queue_offset, placed.offset, placed.log_end, key, body
        )

    def read(self, topic: str, queue_id: int, offset: int, count: int) -> GetResult:
        """One read. While units are being rebuilt it is asked again."""
        result = self.store.get(topic, queue_id, offset, count)
        if result.unreadable is REBUILDING:
            self.loop.run()
            result = self.store.get(topic, queue_id, offset, count)
        return result

    def bodies(self, topic: str, queue_id: int) -> dict[int, bytes]:
        """Queue offset to body of everything the queue gives, gaps left out. Raises what reading
        raises."""
        found: dict[int, bytes] = {}
        offset = self.store.min_offset(topic, queue_id)
        end = self.store.max_offset(topic, queue_id)
        while offset < end:
            result = self.read(topic, queue_id, offset, 32)
            for message in decode_entries(result.data):
                found[message.queue_offset] = message.body
            assert result.next_offset > offset, (
                f"{topic} {queue_id} is stuck at {offset}: {result.status}"
            )
            offset = result.next_offset
        return found

    def has_by_key(self, message: Stored) -> bool:
        """Whether the index leads from the message's key to the message."""
        hits = find_by_key(self.store.lookup, message.topic, message.key, 0, 1 << 60)
        return any(hit.offset == message.offset for hit in hits)

    def image(self) -> Image:
        """Every file as a program would read it now."""
        return {path: file.content for path, file in self.disk.files.items()}

    def flush(self) -> None:
        """Everything to the disk, as the timers of a broker would."""
        self.store.flusher.flush_log()
        self.loop.run()
        self.store.flusher.flush_queues()
        self.loop.run()


def config(**sizes: Any) -> StoreConfig:
    """A small store; `sizes` are fields of StoreConfig."""
    return StoreConfig(paths=StorePaths(ROOT), flushed_only=True, with_crc=True, **sizes)


def make_disk(image: Image, clock: StillClock) -> tuple[SimulatedDisk, IdleLoop]:
    """A disk that holds a copy of the image, every byte of it durable."""
    loop = IdleLoop()
    disk = SimulatedDisk(cast(SimulatedLoop, loop), random.Random(1), clock)
    disk.files = {path: SimulatedFile(data, synced=True) for path, data in image.items()}
    disk.durable_files = dict(disk.files)
    for path in image:
        disk.directories.update(path.parents)
    return disk, loop


def open_disk(
    disk: SimulatedDisk, loop: IdleLoop, store_config: StoreConfig, clock: StillClock
) -> Opened:
    """Open the store on a disk."""
    reports: list[str] = []
    store = MessageStore.open(store_config, disk.mount(), clock, reports.append)
    return Opened(store, loop, disk, clock, reports)


def open_image(image: Image, store_config: StoreConfig, clock: StillClock | None = None) -> Opened:
    """Open a store on a copy of the image."""
    clock = clock or StillClock()
    disk, loop = make_disk(image, clock)
    return open_disk(disk, loop, store_config, clock)


@contextmanager
def opened(
    image: Image, store_config: StoreConfig, clock: StillClock | None = None
) -> Iterator[Opened]:
    """The same; the process is killed at the end of the block."""
    found = open_image(image, store_config, clock)
    try:
        yield found
    finally:
        found.disk.kill()
