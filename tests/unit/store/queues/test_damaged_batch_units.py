"""Units of a batch queue, damaged one by one and in pairs while the store was closed: what is read
is what the undamaged queue gives."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples, some
from tests.unit.store.batches import BatchDirectory, put_inner, queue_of
from tests.unit.store.directory import SEGMENT, put
from tests.unit.store.looked_up import message_in_queue, offset_at_time

from turbopump.store.message_store import MessageStore
from turbopump.store.queues.batch_consume_queue import BATCH_UNIT_SIZE
from turbopump.store.queues.checked_entries import GetStatus
from turbopump.store.retention import NextStep

STATES = ["stopped", "killed", "trimmed and stopped", "trimmed and killed"]
COUNTS = [1, 3, 2, 1, 4, 2, 1, 1, 3, 2, 2, 1, 5, 1, 2, 3, 1, 1, 2, 4, 1, 2]
FILE_UNITS = 50


def zeros(_random: random.Random, unit: bytes) -> bytes:
    return bytes(len(unit))


def noise(chance: random.Random, unit: bytes) -> bytes:
    return chance.randbytes(len(unit))


def bit_flip(chance: random.Random, unit: bytes) -> bytes:
    bit = chance.randrange(len(unit) * 8)
    return (int.from_bytes(unit) ^ 1 << bit).to_bytes(len(unit))


Damage = Callable[[random.Random, bytes], bytes]
DAMAGES: dict[str, Damage] = {"zeros": zeros, "noise": noise, "a bit flip": bit_flip}


def open_directory(root: Path) -> BatchDirectory:
    return BatchDirectory(root, batch_queue_file_size=BATCH_UNIT_SIZE * FILE_UNITS, with_crc=True)


@dataclass(frozen=True, repr=False)
class Answers:
    """What a queue says to all questions about its messages."""

    offsets: tuple[int, int]
    reads: list[tuple[GetStatus, int, bytes]]
    singles: list[bytes | None]
    times: list[tuple[int, int]]


@dataclass(frozen=True, repr=False)
class Template:
    """A directory as it was left, what its queue answers, and the first and last unit of it."""

    root: Path
    answers: Answers
    begun_at: int
    first: int
    last: int


def write(store: MessageStore, directory: BatchDirectory, counts: list[int]) -> None:
    for number, count in enumerate(counts):
        directory.clock.now += 10
        put_inner(store, [b"%d.%d" % (number, part) * 20 for part in range(count)])
        put(store, b"elsewhere" * 10)


def trim(store: MessageStore, segments: int) -> None:
    """Let retention take the first segments of the log."""
    store.flusher.flush_log()
    store.flusher.flush_queues()
    for file in store.log.files.files[:segments]:
        os.utime(file.segment.path, (0, 0))
    store.retention.ask()
    assert store.retention.begin_round()
    for step in (store.retention.delete_next, store.retention.trim_next):
        following = [NextStep.AT_ONCE]
        while following[-1] is not NextStep.NOTHING:
            step(following.append)
    assert store.log.start == segments * SEGMENT


def make(root: Path, state: str) -> Template:
    directory = open_directory(root / "made")
    store = directory.open()
    write(store, directory, COUNTS)
    if "trimmed" in state:
        trim(store, segments=2)
    left = root / "left"
    if "killed" in state:
        directory.clock.now += 60_000
        for _ in range(60):
            put(store, b"afterwards" * 10)
        directory.clock.now += 60_000
        put(store, b"much later")
        store.flusher.flush_all_now()
        shutil.copytree(directory.paths.root, left)
        store.close()
    else:
        store.close()
        shutil.copytree(directory.paths.root, left)
    shutil.copytree(left, root / "looked at")
    again = open_directory(root / "looked at").open()
    queue, recovery = queue_of(again), again.recovery
    assert recovery is not None
    template = Template(
        left, answers_of(again), recovery.begun_at, queue.first_number, queue.next_number - 1
    )
    last = queue.unit_at(template.last)
    assert last is not None
    assert template.first > 0 or "trimmed" not in state
    if "killed" in state:
        assert last.offset < recovery.begun_at, "the queue is not written again anyway"
    again.close()
    return template


def answers_of(store: MessageStore, order: int = 0) -> Answers:
    """``order``: what is asked first."""
    queue = queue_of(store)
    offsets = (store.min_offset("B", 0), store.max_offset("B", 0))
    reads: dict[int, tuple[GetStatus, int, bytes]] = {}
    singles: dict[int, bytes | None] = {}
    times: list[tuple[int, int]] = []

    def read() -> None:
        for index in range(sum(COUNTS) + 1):
            result = store.get("B", 0, index, 1)
            reads[index] = result.status, result.next_offset, result.data

    def look() -> None:
        for index in range(sum(COUNTS)):
            message = message_in_queue(store.lookup, "B", 0, index)
            singles[index] = message.body if message is not None else None

    def ask_times() -> None:
        first = 1_700_000_000_000
        # in turns when one was stored, and between
        for at in range(first, first + 10 * (len(COUNTS) + 2), 15):
            lower, upper = (
                offset_at_time(store.lookup, "B", 0, at, upper=upper) for upper in (False, True)
            )
            times.append((lower, upper))

    questions = [read, look, ask_times]
    for number in range(3):
        questions[(number + order) % 3]()
    assert not queue.suspect
    return Answers(
        offsets,
        [reads[index] for index in sorted(reads)],
        [singles[index] for index in sorted(singles)],
        times,
    )


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Template]:
    return {state: make(tmp_path_factory.mktemp("batch"), state) for state in STATES}


@contextmanager
def damaged(
    template: Template, spoil: Callable[[bytearray], None], without: str | None = None
) -> Iterator[MessageStore]:
    """The store, opened after its queue was damaged, and a file lost."""
    root = template.root.parent / "damaged"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(template.root, root)
    (file,) = (root / "batchconsumequeue" / "B" / "0").iterdir()
    data = bytearray(file.read_bytes())
    spoil(data)
    file.write_bytes(data)
    if without is not None:
        (root / without).unlink()
    store = open_directory(root).open()
    try:
        yield store
    finally:
        store.close()


def spoil_unit(data: bytearray, number: int, damage: Damage, chance: random.Random) -> None:
    at = slice(number * BATCH_UNIT_SIZE, (number + 1) * BATCH_UNIT_SIZE)
    data[at] = damage(chance, bytes(data[at]))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("state", STATES)
def test_any_one_damaged_unit_changes_no_answer(
    templates: dict[str, Template], state: str, damage: str
) -> None:
    template = templates[state]
    for number in some(range(template.last + 1)):
        for turn in some(range(4 if damage == "a bit flip" else 1)):
            chance = random.Random(f"{number} {turn}")
            spoil = partial(spoil_unit, number=number, damage=DAMAGES[damage], chance=chance)
            with damaged(template, spoil) as store:
                assert answers_of(store, number + turn) == template.answers, (number, turn)
                assert put_inner(store, [b"next"]).queue_offset == template.answers.offsets[1]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("state", STATES)
def test_a_queue_of_nothing_but_damaged_units_changes_no_answer(
    templates: dict[str, Template], state: str, damage: str
) -> None:
    template, chance = templates[state], random.Random(7)

    def spoil(data: bytearray) -> None:
        for number in range(template.last + 1):
            spoil_unit(data, number, DAMAGES[damage], chance)

    with damaged(template, spoil) as store:
        assert answers_of(store) == template.answers


@pytest.mark.parametrize("state", STATES)
@settings(examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=st.integers(0, len(COUNTS) - 1),
    distance=st.integers(1, 4) | st.integers(1, len(COUNTS) - 1),
    damages=st.tuples(st.sampled_from(list(DAMAGES)), st.sampled_from(list(DAMAGES))),
    seed=st.integers(0, 1 << 32),
)
def test_any_two_damaged_units_change_no_answer(
    templates: dict[str, Template],
    state: str,
    first: int,
    distance: int,
    damages: tuple[str, str],
    seed: int,
) -> None:
    template, chance = templates[state], random.Random(seed)

    def spoil(data: bytearray) -> None:
        for number, damage in zip(
            (first, (first + distance) % (template.last + 1)), damages, strict=True
        ):
            spoil_unit(data, number, DAMAGES[damage], chance)

    with damaged(template, spoil) as store:
        assert answers_of(store, seed) == template.answers


@pytest.mark.parametrize("state", ["killed", "trimmed and killed"])
@pytest.mark.parametrize("seed", range(5))
def test_where_it_is_not_known_where_queues_ended_noise_at_the_end_of_one_changes_no_answer(
    templates: dict[str, Template], state: str, seed: int
) -> None:
    template, chance = templates[state], random.Random(seed)

    def spoil(data: bytearray) -> None:
        spoil_unit(data, template.last, noise, chance)

    with damaged(template, spoil, without="turbopump.queues.json") as store:
        assert answers_of(store) == template.answers
