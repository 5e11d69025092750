"""A file whose end was lost, at every byte of its last 4 KiB: short, or filled with zeros, random
bytes, or what the file held before.

Cut in the log, exactly the messages that are complete come back. Cut in a derived file
(ConsumeQueue, Index, checkpoint) or in our note of what we wrote (turbopump.json), everything comes
back. Never an exception, and the store works on.
"""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.in_memory import (
    ROOT,
    Image,
    Opened,
    StillClock,
    Stored,
    config,
    open_image,
    opened,
)

DEPTH = 4096
FILLS = ("short", "zeros", "random", "recycled")
TOPIC = "orders"
QUEUES = 2
SEGMENT = 16 * 1024
CONFIG = config(segment_size=SEGMENT, queue_file_size=20 * 500, index_slots=40, index_entries=400)
SAMPLE_STEP = 509
"""In a sample, every so many bytes; a prime, so that it meets every place of an entry."""


class Crashed:
    """A store as a kill left it: the messages, and every file. The last segment has more than 4 KiB
    of messages, and so have its derived files. Queue 1 has none of them behind the place from which
    on a start reads the log."""

    def __init__(self) -> None:
        source = random.Random(1)
        clock = StillClock()
        store = open_image({}, CONFIG, clock)
        self.messages: list[Stored] = []
        for number in range(250):
            clock.ms += 100
            body = b"%d " % number + source.randbytes(source.randrange(60))
            self.messages.append(
                store.put(TOPIC, int(number % 9 == 0 and number < 140), body, f"key-{number}")
            )
            if number % 50 == 49:
                store.flush()
            if number == 200:
                self.earlier = store.image()
        store.flush()
        self.end = self.messages[-1].end
        self.image = store.image()
        self.now = clock.ms
        self.log = sorted(path for path in self.image if path.parent.name == "commitlog")
        assert len(self.log) > 1
        assert self.end - int(self.log[-1].name) > DEPTH

    def derived(self, directory: str) -> Path:
        """The file with the most in it (the first queue's, not the second's)."""
        found = [path for path in self.image if directory in path.parts]
        return max(found, key=lambda path: len(self.image[path].rstrip(b"\0")))

    def old(self, path: Path, directory: str) -> bytes:
        """What was in a derived file before: some time ago, or in another of its kind."""
        if directory == "turbopump.json":
            return b'{"version": 1, "written": [[0, 100]], "indexes": []}'
        if directory == "turbopump.queues.json":
            return self.image[path.with_name(path.name + ".bak")]
        others = [
            other for other in sorted(self.image) if directory in other.parts and other != path
        ]
        return self.earlier.get(path) or self.image[others[0]]

    def with_file(self, path: Path, data: bytes) -> Image:
        return {**self.image, path: data}

    def clock(self) -> StillClock:
        clock = StillClock()
        clock.ms = self.now + 60_000
        return clock


@pytest.fixture(scope="module")
def crashed() -> Crashed:
    return Crashed()


def damaged(data: bytes, cut: int, fill: str, old: bytes, source: random.Random) -> bytes:
    """The file with everything from `cut` on lost; `old` is what was in the file before it was
    recycled."""
    if fill == "short":
        return data[:cut]
    if fill == "zeros":
        rest = bytes(len(data) - cut)
    elif fill == "random":
        rest = source.randbytes(len(data) - cut)
    elif cut % 2 and len(old) == len(data):  # what was at this very place
        rest = old[cut:]
    else:  # as if a whole old message began right here
        rest = (old * (len(data) // max(len(old), 1) + 1))[: len(data) - cut]
    return data[:cut] + rest


def check(found: Opened, there: list[Stored], cut: int, *, thorough: bool) -> None:
    """Exactly these messages are served, by offset and by key, and one more can be put and read. Of
    the keys the last are looked for, and of the others every eighth, with each cut the next ones:
    looking for all would take most of the time."""
    wanted: dict[int, dict[int, bytes]] = {queue_id: {} for queue_id in range(QUEUES)}
    for message in there:
        wanted[message.queue_id][message.queue_offset] = message.body
    for queue_id in range(QUEUES):
        assert found.store.max_offset(TOPIC, queue_id) == len(wanted[queue_id])
        assert found.bodies(TOPIC, queue_id) == wanted[queue_id]
    for message in there if thorough else [*there[cut % 8 : -25 : 8], *there[-25:]]:
        assert found.has_by_key(message), f"{message.key} is not found by its key"
    if thorough:
        added = found.put(TOPIC, 0, b"after", "after")
        found.flush()
        assert found.bodies(TOPIC, 0)[added.queue_offset] == b"after"
        assert found.has_by_key(added)


class Tries:
    """Runs many damaged images and remembers what went wrong, by kind, with one example each."""

    def __init__(self) -> None:
        self.count = 0
        self.failures: Counter[str] = Counter()
        self.examples: dict[str, str] = {}

    def attempt(self, what: str, kind: str, act: Callable[[], None]) -> None:
        self.count += 1
        try:
            act()
        except Exception as error:
            text = f"{kind}: {type(error).__name__}"
            self.failures[text] += 1
            self.examples.setdefault(text, f"{what}: {str(error)[:300]}")

    def verdict(self) -> str:
        return "; ".join(
            f"{count} × {text} (first: {self.examples[text]})"
            for text, count in self.failures.items()
        )


def positions(end: int, full: bool) -> range:
    start = max(end - DEPTH, 0)
    return range(start, end, 1 if full else min(SAMPLE_STEP, (end - start) // 8 | 1))


@pytest.mark.parametrize("fill", FILLS)
def test_a_cut_log_keeps_exactly_the_complete_messages(
    crashed: Crashed, fill: str, full: bool, rng: random.Random, measured: Callable[[str], None]
) -> None:
    path = crashed.log[-1]
    start, data = int(path.name), crashed.image[path]
    old = crashed.image[crashed.log[-2]]
    tries = Tries()
    for cut in positions(crashed.end - start, full):
        content = damaged(data, cut, fill, old, rng)
        complete = [
            message
            for message in crashed.messages
            if message.offset < start
            or content[message.offset - start : message.end - start]
            == data[message.offset - start : message.end - start]
        ]

        def act(
            content: bytes = content, complete: list[Stored] = complete, cut: int = cut
        ) -> None:
            with opened(crashed.with_file(path, content), CONFIG, crashed.clock()) as found:
                check(found, complete, cut, thorough=cut % (16 if full else 4) == 0)

        tries.attempt(f"cut at {cut}", fill, act)
    measured(f"{tries.count:,} cuts, {sum(tries.failures.values())} failed")
    assert not tries.failures, tries.verdict()


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize(
    "directory", ["consumequeue", "index", "checkpoint", "turbopump.json", "turbopump.queues.json"]
)
def test_a_cut_derived_file_costs_nothing(
    crashed: Crashed,
    directory: str,
    fill: str,
    full: bool,
    rng: random.Random,
    measured: Callable[[str], None],
) -> None:
    path = ROOT / directory if ROOT / directory in crashed.image else crashed.derived(directory)
    data = crashed.image[path]
    end = len(data) if directory == "checkpoint" else len(data.rstrip(b"\0"))
    old = crashed.old(path, directory)
    assert old != data
    tries = Tries()
    for cut in positions(end, full):
        content = damaged(data, cut, fill, old, rng)

        def act(content: bytes = content, cut: int = cut) -> None:
            with opened(crashed.with_file(path, content), CONFIG, crashed.clock()) as found:
                check(found, crashed.messages, cut, thorough=cut % (16 if full else 4) == 0)

        tries.attempt(f"cut at {cut}", f"{directory} {fill}", act)
    measured(f"{tries.count:,} cuts, {sum(tries.failures.values())} failed")
    assert not tries.failures, tries.verdict()


@pytest.mark.parametrize(
    "directory",
    [
        "consumequeue",
        "index",
        "checkpoint",
        "turbopump.json",
        "turbopump.queues.json",
        "abort",
        "lock",
    ],
)
@pytest.mark.parametrize("ending", ["kill", "clean stop"])
def test_derived_files_may_be_deleted(crashed: Crashed, directory: str, ending: str) -> None:
    image = stopped(crashed, ending)
    with opened(
        {path: data for path, data in image.items() if directory not in path.parts},
        CONFIG,
        crashed.clock(),
    ) as found:
        check(found, crashed.messages, 0, thorough=True)


@pytest.mark.parametrize("ending", ["kill", "clean stop"])
@pytest.mark.parametrize("loss", ["deleted", "zeros", "last unit"])
def test_any_single_derived_file_may_be_deleted_or_lose_what_it_has(
    crashed: Crashed, loss: str, ending: str
) -> None:
    image = stopped(crashed, ending)
    queue_files = [path for path in image if "consumequeue" in path.parts]
    assert len(queue_files) > 1
    others = [path for path in image if "commitlog" not in path.parts and path not in queue_files]
    for path in [*queue_files, *others] if loss == "deleted" else queue_files:
        changed = dict(image)
        data = changed.pop(path)
        used = sum(any(data[at : at + 20]) for at in range(0, len(data), 20)) * 20
        if loss == "zeros":
            changed[path] = bytes(len(data))
        elif loss == "last unit":
            changed[path] = data[: used - 20] + bytes(len(data) - used + 20)
        with opened(changed, CONFIG, crashed.clock()) as found:
            check(found, crashed.messages, 0, thorough=True)


def stopped(crashed: Crashed, ending: str) -> Image:
    """The files as the kill left them, or as a clean stop of the next run did."""
    if ending == "kill":
        return crashed.image
    before = open_image(crashed.image, CONFIG, crashed.clock())
    before.store.close()
    return before.image()
