"""Stores in memory whose queues got messages early, late and all the time; their files lost or
damaged; and what is there afterwards."""

import random
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
from tests.crash.in_memory import HOST, ROOT, Image, Opened, StillClock, config, make_disk
from tests.stand_ins import does_nothing

from turbopump.store.message_store import MessageStore, NewMessage
from turbopump.store.queues.consume_queue import UNIT_SIZE
from turbopump.store.queues.queue_ends import NotedQueueEnds
from turbopump.store.retention import NextStep, RetentionRules

RECORD = ROOT / "turbopump.queues.json"
BACKUP = ROOT / "turbopump.queues.json.bak"
PER_FILE = 10
CONFIG = config(
    segment_size=4096,
    queue_file_size=PER_FILE * UNIT_SIZE,
    index_slots=20,
    index_entries=200,
    retention=RetentionRules(hours=frozenset(range(24)), reserved_ms=0, batch_max=6),
)
State = dict[str, tuple[int, int, list[Any]]]
OnProgress = Callable[[int, int], None]
Damage = Callable[[Image, str], Image]


def is_batch(unknown: Collection[str], topic: str) -> bool | None:
    return None if topic in unknown else False


def open_store(
    image: Image,
    *,
    at_ms: int = 0,
    unknown: Collection[str] = (),
    on_progress: OnProgress = does_nothing,
) -> Opened:
    """``unknown`` are topics that there are no more."""
    clock = StillClock()
    clock.ms += at_ms
    disk, loop = make_disk(image, clock)
    reports: list[str] = []

    store = MessageStore.open(
        CONFIG, disk.mount(), clock, reports.append, on_progress, partial(is_batch, unknown)
    )
    return Opened(store, loop, disk, clock, reports)


def put(found: Opened, topic: str, size: int = 150) -> int:
    found.clock.ms += 500
    return found.put(topic, 0, b"x" * size, f"key-{found.clock.ms}").queue_offset


def state(found: Opened) -> State:
    """Of each queue where it begins and goes on, and its units."""
    return {
        queue.topic: (
            queue.min_index,
            queue.max_index,
            [queue.unit(index) for index in range(queue.min_index, queue.max_index)],
        )
        for queue in found.store.queues
        if queue.max_index
    }


def clean(found: Opened) -> None:
    """A round of retention."""
    retention = found.store.retention
    retention.begin_round()
    for step in (retention.delete_next, retention.trim_next):
        following = [NextStep.AT_ONCE]
        while following[-1] is not NextStep.NOTHING:
            step(following.append)
            found.loop.run()


def fill(*, trimmed: bool) -> Opened:
    """Queues that got messages early, late and all the time; what they have is on the disk for
    long. With ``trimmed`` the log has lost its first segments, and "gone" and "boxed" all their
    messages."""
    found = open_store({})
    for _ in range(14):
        put(found, "gone")
        put(found, "boxed", 20)
    for number in range(60):
        put(found, "busy")
        if 20 <= number < 45:
            put(found, "quiet")
            put(found, "packed")
    put(found, "single")
    for _ in range(PER_FILE * 2):
        put(found, "even")
    for _ in range(40):
        put(found, "busy")
        found.flush()
    if trimmed:
        clean(found)
        assert found.store.log.start == 6 * 4096
        assert found.store.min_offset("gone", 0) == found.store.min_offset("boxed", 0) == 14
        assert 0 < found.store.min_offset("quiet", 0) < 25
    return found


def files_of(image: Image, topic: str) -> list[Path]:
    return sorted(path for path in image if path.parts[2:4] == ("consumequeue", topic))


def without(image: Image, *paths: Path) -> Image:
    return {path: data for path, data in image.items() if path not in paths}


def with_zeros(image: Image, path: Path, start: int, end: int) -> Image:
    data = image[path]
    return {**image, path: data[:start] + bytes(end - start) + data[end:]}


def remove_directory(image: Image, topic: str) -> Image:
    return without(image, *files_of(image, topic))


def remove_last_file(image: Image, topic: str) -> Image:
    return without(image, files_of(image, topic)[-1])


def remove_first_file(image: Image, topic: str) -> Image:
    return without(image, files_of(image, topic)[0])


def zero_last_unit(image: Image, topic: str) -> Image:
    path = max(path for path in files_of(image, topic) if any(image[path]))
    used = max(
        number + 1
        for number in range(PER_FILE)
        if any(image[path][number * UNIT_SIZE : (number + 1) * UNIT_SIZE])
    )
    return with_zeros(image, path, (used - 1) * UNIT_SIZE, used * UNIT_SIZE)


def zero_last_file(image: Image, topic: str) -> Image:
    path = max(path for path in files_of(image, topic) if any(image[path]))
    return with_zeros(image, path, 0, len(image[path]))


def check(image: Image, expected: State, *, next_too: bool = True) -> Opened:
    """A store opened on the image has every unit, gives no offset twice, and the start after the
    next kill finds nothing to do again."""
    found = open_store(image, at_ms=2_000_000)
    try:
        assert state(found) == expected
        again = open_store(found.image(), at_ms=3_000_000)
        assert again.store.recovery is not None
        assert (again.store.recovery.rebuilt, again.store.recovery.mismatch) == (False, None)
        assert state(again) == expected
        for topic, (_, end, _) in expected.items() if next_too else ():
            assert put(again, topic) == end
        again.disk.kill()
    finally:
        found.disk.kill()
    return found


def encode(known: NotedQueueEnds) -> bytes:
    data = msgspec.json.encode(known)
    return b'{"crc":%d,"ends":%s}' % (crc32(data), data)


TOPICS = ("a", "b", "c", "packed", "boxed")
PREPARED = 4


def live(found: Opened, source: random.Random, *, deleting: bool = True) -> None:
    for _ in range(source.randrange(5, 120)):
        chance = source.random()
        if chance < 0.8:
            put(
                found,
                source.choice(TOPICS if source.random() < 0.6 else TOPICS[:1]),
                source.randrange(400),
            )
        elif chance < 0.84:
            message = NewMessage(b"prepared", b"", 0)
            found.store.put(
                "a",
                0,
                message,
                sys_flag=PREPARED,
                born_timestamp=1,
                born_host=HOST,
                store_host=HOST,
            )
        elif chance < 0.92:
            found.flush()
        elif chance < 0.95 and found.loop.due:
            found.loop.due.pop(0).run()
        elif chance < 0.965 and deleting:
            found.store.delete_queues(source.choice(TOPICS), does_nothing)
            found.loop.run()
        elif chance < 0.985:
            clean(found)
        else:
            found.clock.ms += 5000


def stopped(filled: Opened, ending: str) -> Image:
    if ending == "kill":
        return filled.image()
    before = open_store(filled.image(), at_ms=1_000_000)
    before.store.close()
    image = before.image()
    before.disk.kill()
    return image
