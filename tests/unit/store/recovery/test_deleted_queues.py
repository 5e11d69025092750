"""Topics that are deleted, and made anew or not, in stores that are killed, cut off and stopped: no
message of the new one goes with the old."""

from __future__ import annotations

import dataclasses
import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from tests.crash.in_memory import ROOT, IdleLoop, Image, Opened, StillClock, Stored, make_disk
from tests.fuzzing import some
from tests.simulation.world.disk import SimulatedDisk, SimulatedLoop
from tests.stand_ins import does_nothing
from tests.unit.store.ended_queues import (
    BACKUP,
    CONFIG,
    RECORD,
    clean,
    files_of,
    fill,
    open_store,
    put,
    with_zeros,
    without,
)

from turbopump.store.message_store import MessageStore
from turbopump.store.queues.queue_ends import decode_known

Stop = Callable[[Opened], Image]


def kill(found: Opened) -> Image:
    image = found.image()
    found.disk.kill()
    return image


def stop_cleanly(found: Opened) -> Image:
    found.store.close()
    return kill(found)


def delete(found: Opened, topic: str) -> list[int | OSError]:
    told: list[int | OSError] = []
    found.store.delete_queues(topic, told.append)
    return told


def let_it_be_noted(found: Opened) -> None:
    """The thread has saved the deletion, the owner has not heard of it."""
    found.store.queue_ends.file.on_settled = does_nothing
    found.loop.run()


@pytest.mark.parametrize("stop", [kill, stop_cleanly])
@pytest.mark.parametrize("topic", ["quiet"])
@pytest.mark.parametrize("wrong", ["unit", "file"])
def test_a_topic_made_anew_keeps_its_messages_although_its_first_unit_is_damaged(
    stop: Stop, topic: str, wrong: str
) -> None:
    found = fill(trimmed=False)
    delete(found, topic)
    found.loop.run()
    assert [put(found, topic) for _ in range(12)] == list(range(12))
    for _ in range(30):
        put(found, "busy")
    found.flush()
    image = stop(found)
    first = files_of(image, topic)[0]
    image = with_zeros(image, first, 0, 20 if wrong == "unit" else len(image[first]))
    for start in (1, 2, 3):
        found = open_store(image, at_ms=start * 1_000_000)
        assert (found.store.max_offset(topic, 0), len(found.bodies(topic, 0))) == (12, 12)
        image = stop(found)


@pytest.mark.parametrize("stop", [kill, stop_cleanly])
def test_a_topic_that_was_not_yet_deleted_when_it_was_killed_goes_on(stop: Stop) -> None:
    found = fill(trimmed=False)
    told = delete(found, "quiet")
    assert found.put("quiet", 1, b"the first of its queue", "k").queue_offset == 0
    let_it_be_noted(found)
    assert told == []
    image = kill(found)
    found = open_store(image, at_ms=1_000_000)
    assert [found.put("quiet", 1, b"acknowledged", "k").queue_offset for _ in range(5)] == [
        1,
        2,
        3,
        4,
        5,
    ]
    found.flush()
    for start in (2, 3):
        image = stop(found)
        found = open_store(image, at_ms=start * 1_000_000)
        assert len(found.bodies("quiet", 1)) == found.store.max_offset("quiet", 1) == 6
    found.disk.kill()


def test_messages_that_came_while_their_queue_was_deleted_are_kept_if_a_kill_is_first() -> None:
    found = fill(trimmed=False)
    delete(found, "quiet")
    assert [put(found, "quiet") for _ in range(3)] == [25, 26, 27]
    let_it_be_noted(found)
    image = kill(found)
    for start in (1, 2, 3):
        found = open_store(image, at_ms=start * 1_000_000)
        assert found.store.recovery is not None
        assert not found.store.recovery.rebuilt
        assert len(found.bodies("quiet", 0)) == found.store.max_offset("quiet", 0) == 27 + start
        assert put(found, "quiet") == 27 + start
        found.flush()
        image = kill(found)


@pytest.mark.parametrize("trimmed", [True, False])
def test_a_segment_that_begins_while_a_topic_is_being_deleted_notes_nothing_of_it(
    trimmed: bool,
) -> None:
    found = fill(trimmed=trimmed)
    delete(found, "quiet")
    before = found.store.log.files.files[-1].start
    while found.store.log.files.files[-1].start == before:
        put(found, "busy", 300)
    for _ in range(5):
        put(found, "busy")
    let_it_be_noted(found)
    found.flush()
    known = decode_known(found.image()[RECORD])
    assert known.snapshots[-1].at > known.deleted["quiet"]
    assert "quiet" not in known.snapshots[-1].ends
    image = kill(found)
    given = 0
    for start in (1, 2, 3):
        found = open_store(image, at_ms=start * 1_000_000)
        assert found.store.recovery is not None
        assert not found.store.recovery.rebuilt
        assert len(found.bodies("quiet", 0)) == given
        for _ in range(3):
            assert put(found, "quiet") == given
            given += 1
        found.flush()
        image = kill(found)


def test_a_deletion_that_cannot_be_noted_is_refused_and_nothing_is_deleted() -> None:
    found = fill(trimmed=False)
    found.disk.fail("write", errno.ENOSPC, times=10**6)
    told = delete(found, "quiet")
    found.loop.run()
    assert isinstance(told[0], OSError)
    found.disk.clear_faults()
    assert [put(found, "quiet") for _ in range(3)] == [25, 26, 27]
    found.flush()
    for start in (1, 2):
        image = kill(found)
        found = open_store(image, at_ms=start * 1_000_000)
        assert found.store.recovery is not None
        assert not found.store.recovery.rebuilt
        assert len(found.bodies("quiet", 0)) == found.store.max_offset("quiet", 0) == 28
    found.disk.kill()


@pytest.mark.parametrize("topic", ["quiet"])
@pytest.mark.parametrize("stop", [kill, stop_cleanly])
@pytest.mark.parametrize("index", [0, 7])
def test_a_rotten_message_of_a_new_topic_is_not_replaced_by_one_of_the_deleted_topic(
    topic: str, stop: Stop, index: int
) -> None:
    found = open_store({})
    for number in range(20):
        found.put(topic, 0, b"old %d" % number, "k")
    delete(found, topic)
    found.loop.run()
    stored = [found.put(topic, 0, b"new %d" % number, "k") for number in range(20)]
    for _ in range(60):
        put(found, "busy")
    found.flush()
    image = stop(found)
    offset = stored[index].offset
    segment = ROOT / "commitlog" / f"{offset - offset % CONFIG.segment_size:020}"
    image = with_zeros(
        image, segment, offset % CONFIG.segment_size + 4, offset % CONFIG.segment_size + 90
    )
    expected = {number: b"new %d" % number for number in range(20) if number != index}
    for start in (1, 2):
        found = open_store(image, at_ms=start * 1_000_000)
        assert found.bodies(topic, 0) == expected
        assert found.store.max_offset(topic, 0) == 20
        image = stop(found)


@pytest.mark.parametrize("lost", [RECORD, BACKUP])
@pytest.mark.parametrize("sent_meanwhile", [0, 3])
def test_each_copy_of_the_note_knows_of_a_deletion_that_was_told(
    lost: Path, sent_meanwhile: int
) -> None:
    """Before, the backup was one save older: with the file lost, the deleted messages came back."""
    found = fill(trimmed=False)
    told = delete(found, "quiet")
    for _ in range(sent_meanwhile):
        found.put("quiet", 1, b"goes with its topic", "k")
    found.loop.run()
    assert told == [1 + (sent_meanwhile > 0)]
    image = kill(found)
    known = [decode_known(image[path]) for path in (RECORD, BACKUP)]
    assert known[0].deleted == known[1].deleted == {"quiet": found.store.log.end}
    for left in (without(image, lost), without(image, lost, *files_of(image, "even"))):
        again = open_store(left, at_ms=1_000_000)
        assert [again.store.max_offset("quiet", queue) for queue in (0, 1)] == [0, 0]
        assert again.store.max_offset("even", 0) == 20
        again.disk.kill()


def test_a_deletion_that_fails_only_in_the_backup_is_done_and_the_backup_told_later() -> None:
    found = fill(trimmed=False)
    told = delete(found, "quiet")
    found.loop.due.pop(0).run()
    assert (decode_known(found.image()[RECORD]).deleted, told) == (
        {"quiet": found.store.log.end},
        [],
    )
    found.disk.fail("write", errno.ENOSPC, times=10**6)
    found.loop.run()
    assert told == [1]
    found.disk.clear_faults()
    found.store.queue_ends.file.repeat_save()
    found.loop.run()
    assert decode_known(found.image()[BACKUP]).deleted == {"quiet": found.store.log.end}
    again = open_store(without(kill(found), RECORD), at_ms=1_000_000)
    assert again.store.max_offset("quiet", 0) == 0
    again.disk.kill()


def test_two_who_delete_a_topic_at_the_same_time_hear_the_same() -> None:
    found = fill(trimmed=False)
    one, other = delete(found, "quiet"), delete(found, "quiet")
    found.loop.run()
    assert one == other == [1]
    assert delete(found, "quiet") == [0], "there is nothing left"
    found.disk.kill()


def test_a_damaged_first_message_of_a_new_topic_does_not_cause_a_read_of_the_whole_log() -> None:
    found = fill(trimmed=False)
    for _ in range(3):
        put(found, "busy")
    offset = found.put("fresh", 0, b"z" * 150, "k").offset
    for _ in range(5):
        put(found, "fresh")
    found.flush()
    image = kill(found)
    segment = max(path for path in image if "commitlog" in path.parts)
    image = with_zeros(
        image, segment, offset - int(segment.name) + 60, offset - int(segment.name) + 100
    )
    for start in (1, 2, 3):
        found = open_store(image, at_ms=start * 1_000_000)
        assert found.store.recovery is not None
        assert not found.store.recovery.rebuilt
        assert found.store.recovery.begun_at >= int(segment.name) - CONFIG.segment_size
        assert (len(found.bodies("fresh", 0)), found.store.max_offset("fresh", 0)) == (5, 6)
        put(found, "busy")
        found.flush()
        image = kill(found)


def test_a_first_start_behind_apaches_broker_that_fails_leaves_the_next_one_as_careful() -> None:
    """What we had noted before Apache's broker had the store is not true until a recovery of ours
    has ended."""
    lock, ours = (
        ROOT / "lock",
        (RECORD, BACKUP, ROOT / "turbopump.json", ROOT / "turbopump.json.bak"),
    )
    image = kill(fill(trimmed=False))
    kept = {path: image[path] for path in ours if path in image}
    assert kept

    def opened(image: Image, at_ms: int, *, fails: bool = False, with_crc: bool = True) -> Opened:
        clock = StillClock()
        clock.ms += at_ms
        disk, loop = make_disk(image, clock)

        def progress(_reached: int, _end: int) -> None:
            if fails:
                raise OSError(errno.EIO, "the disk fails here")

        config = dataclasses.replace(CONFIG, with_crc=with_crc)
        try:
            store = MessageStore.open(config, disk.mount(), clock, [].append, progress)
        except OSError:
            image.clear()
            image.update({path: file.content for path, file in disk.files.items()})
            disk.kill()
            raise
        return Opened(store, loop, disk, clock)

    apache = opened({**without(image, *ours), lock: b"lock"}, 500_000, with_crc=False)
    for _ in range(6):
        put(apache, "quiet")
        put(apache, "busy")
    end = apache.store.log.end
    apache.store.close()
    image = {**without(kill(apache), *ours), **kept, lock: b"lockopump"}
    with pytest.raises(OSError, match="fails here"):
        opened(image, 1_000_000, fails=True)
    for start in (2, 3):
        found = opened(image, start * 1_000_000)
        assert (found.store.log.end, found.store.max_offset("quiet", 0)) == (end, 31)
        image = kill(found)


class RandomStoreRun:
    """Random sends, flushes, retention, deletions that take their time, kills, power cuts and clean
    stops. ``kept`` is what must be there: on the disk, and sent after the last deletion of its
    topic had been told of, or a start that came after it."""

    TOPICS = ("a", "b", "packed", "quiet")

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.clock = StillClock()
        self.loop = IdleLoop()
        self.disk = SimulatedDisk(cast(SimulatedLoop, self.loop), random.Random(seed), self.clock)
        self.kept: dict[tuple[str, int], dict[int, Stored]] = {}
        self.sent: list[Stored] = []
        self.leaving: set[str] = set()
        self.open()

    def open(self) -> None:
        store = MessageStore.open(CONFIG, self.disk.mount(), self.clock, [].append)
        self.found = Opened(store, self.loop, self.disk, self.clock)

    def step(self, number: int) -> None:
        chance, source = self.source.random(), self.source
        if chance < 0.72:
            self.clock.ms += 300
            topic = source.choice(self.TOPICS)
            stored = self.found.put(
                topic,
                source.choice((0, 0, 1)),
                b"%d-" % number + b"x" * source.randrange(300),
                f"k{number}",
            )
            if topic not in self.leaving:
                self.sent.append(stored)
        elif chance < 0.82:
            self.found.store.flusher.flush_log()
            self.loop.run()
            if source.random() < 0.5:
                self.found.store.flusher.flush_queues()
                self.loop.run()
            self.keep()
        elif chance < 0.92:
            if self.loop.due:
                self.loop.due.pop(0).run()
        elif chance < 0.94:
            clean(self.found)
        else:
            self.delete(source.choice(self.TOPICS))

    def keep(self) -> None:
        for stored in self.sent:
            self.kept.setdefault((stored.topic, stored.queue_id), {})[stored.queue_offset] = stored
        self.sent = []

    def delete(self, topic: str) -> None:
        self.kept = {key: messages for key, messages in self.kept.items() if key[0] != topic}
        self.sent = [stored for stored in self.sent if stored.topic != topic]
        self.leaving.add(topic)
        self.found.store.delete_queues(topic, lambda _count: self.leaving.discard(topic))

    def end(self, *, power_cuts: bool) -> None:
        kind = self.source.choice(("kill", "kill", "close", "cut" if power_cuts else "kill"))
        if kind == "close":
            self.found.store.close()
            self.keep()
        if kind == "cut":
            self.disk.power_cut()
            for path in self.disk.files:
                self.disk.directories.update(path.parents)
        else:
            self.disk.kill()
        self.loop.due.clear()
        self.sent, self.leaving = [], set()

    def lose_a_file(self) -> None:
        derived = [
            path
            for path in self.disk.files
            if path.parts[2] in ("consumequeue", "batchconsumequeue", "index")
        ]
        if derived:
            lost: Path = self.source.choice(sorted(derived))
            del self.disk.files[lost]
            self.disk.durable_files.pop(lost, None)

    def check(self) -> None:
        start = self.found.store.log.start
        for key, messages in self.kept.items():
            there = self.found.bodies(*key)
            expected = {
                offset: stored.body for offset, stored in messages.items() if stored.offset >= start
            }
            assert {offset: there.get(offset) for offset in expected} == expected, key
            assert self.found.store.max_offset(*key) > max(messages), "no offset is given twice"


@pytest.mark.parametrize("seed", some(range(24)))
@pytest.mark.parametrize("accident", ["power cuts", "lost files"])
def test_whatever_is_deleted_when_what_was_sent_afterwards_is_there(
    seed: int, accident: str
) -> None:
    run = RandomStoreRun(seed)
    for _ in range(4):
        for number in range(run.source.randrange(10, 160)):
            run.step(number)
        run.end(power_cuts=accident == "power cuts")
        for start in range(3):
            run.clock.ms += 1000
            if start == 1 and accident == "lost files":
                run.lose_a_file()
            run.open()
            run.check()
            if start < 2:
                run.disk.kill()
                run.loop.due.clear()
    run.disk.kill()
