"""Queues of which files are lost or damaged, also where recovery does not read their messages: they are noticed, and written again."""

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest
from tests.crash.in_memory import ROOT, Image, Opened, StillClock, config, make_disk

from turbopump.store.consume_queue import UNIT_SIZE
from turbopump.store.consume_queue_table import ConsumeQueueTable
from turbopump.store.json_table import JsonTable
from turbopump.store.message_store import MessageStore
from turbopump.store.queue_ends import KnownEnds, Place, decode_known
from turbopump.store.retention import Next, RetentionRules

RECORD = ROOT / "turbopump.queues.json"
BACKUP = ROOT / "turbopump.queues.json.bak"
PER_FILE = 10
BATCHES = ("packed", "boxed")
"""Topics with queues of the other kind."""
CONFIG = config(
    segment_size=4096,
    queue_file_size=PER_FILE * UNIT_SIZE,
    batch_queue_file_size=PER_FILE * 46,
    index_slots=20,
    index_entries=200,
    retention=RetentionRules(hours=frozenset(range(24)), reserved_ms=0, batch_max=6),
)
State = dict[str, tuple[int, int, list[Any]]]
Damage = Callable[[Image, str], Image]


def open_store(image: Image, *, at_ms: int = 0) -> Opened:
    clock = StillClock()
    clock.ms += at_ms
    disk, loop = make_disk(image, clock)
    reports: list[str] = []
    store = MessageStore.open(CONFIG, disk.mount(), clock, reports.append, is_batch=BATCHES.__contains__)
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
        following = [Next.AT_ONCE]
        while following[-1] is not Next.NOTHING:
            step(following.append)
            found.loop.run()


def fill(*, trimmed: bool) -> Opened:
    """Queues that got messages early, late and all the time; what they have is on the disk for long. With ``trimmed`` the log has lost its
    first segments, and "gone" and "boxed" all their messages."""
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


@pytest.fixture(scope="module", params=["whole log", "trimmed log"])
def filled(request: pytest.FixtureRequest) -> Opened:
    return fill(trimmed=request.param == "trimmed log")


@pytest.fixture(params=["kill", "clean stop"])
def stopped(request: pytest.FixtureRequest, filled: Opened) -> tuple[Image, State]:
    image = filled.image()
    if request.param == "clean stop":
        before = open_store(image, at_ms=1_000_000)
        before.store.close()
        image = before.image()
        before.disk.kill()
    return image, state(filled)


def files_of(image: Image, topic: str) -> list[Path]:
    return sorted(path for path in image if path.parts[2:4] in (("consumequeue", topic), ("batchconsumequeue", topic)))


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
    unit_size = 46 if topic in BATCHES else UNIT_SIZE
    path = max(path for path in files_of(image, topic) if any(image[path]))
    used = -(-len(image[path].rstrip(b"\0")) // unit_size)
    if topic not in BATCHES:
        used = max(number + 1 for number in range(PER_FILE) if any(image[path][number * UNIT_SIZE : (number + 1) * UNIT_SIZE]))
    return with_zeros(image, path, (used - 1) * unit_size, used * unit_size)


def zero_last_file(image: Image, topic: str) -> Image:
    path = max(path for path in files_of(image, topic) if any(image[path]))
    return with_zeros(image, path, 0, len(image[path]))


DAMAGES = [remove_directory, remove_last_file, remove_first_file, zero_last_unit, zero_last_file]
TOPICS = ["gone", "boxed", "busy", "quiet", "packed", "single", "even"]


def check(image: Image, expected: State, *, next_too: bool = True) -> Opened:
    """A store opened on the image has every unit, gives no offset twice, and the start after the next kill finds nothing to do again."""
    found = open_store(image, at_ms=2_000_000)
    try:
        assert state(found) == expected
        again = open_store(found.image(), at_ms=3_000_000)
        assert again.store.recovery is not None
        assert (again.store.recovery.rebuilt, again.store.recovery.misfit) == (False, None)
        assert state(again) == expected
        for topic, (_, end, _) in expected.items() if next_too else ():
            assert put(again, topic) == end
        again.disk.kill()
    finally:
        found.disk.kill()
    return found


def test_a_kill_reads_from_the_checkpoint_on_and_a_clean_stop_nothing(stopped: tuple[Image, State]) -> None:
    image, expected = stopped
    found = check(image, expected)
    assert found.store.recovery is not None
    assert found.store.recovery.begun_at > 9 * 4096
    assert not found.store.recovery.rebuilt
    assert found.reports == []


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_queue_that_lost_files_or_units_is_noticed_and_written_again(
    stopped: tuple[Image, State], damage: Damage, topic: str
) -> None:
    image, expected = stopped
    damaged = damage(image, topic)
    assert damaged != image
    found = check(damaged, expected)
    assert found.store.recovery is not None
    assert len(found.reports) <= 1
    if found.store.recovery.rebuilt and found.reports:
        assert "queue" in found.reports[0]


@pytest.mark.parametrize(
    ("damage", "done", "end"),
    [
        (remove_directory, "all queues and indexes are written again", 0),
        (remove_last_file, "queues are written again from", 20),
    ],
)
def test_the_log_says_which_queue_ended_too_early_and_where_it_ended(damage: Damage, done: str, end: int) -> None:
    filled = fill(trimmed=False)
    found = open_store(damage(filled.image(), "quiet"), at_ms=1_000_000)
    (report,) = found.reports
    assert report.startswith(f"a consume queue was not as it should be, {done}")
    assert f"topic=quiet queue=0: its units end at {end}, and ended at 25 when the log was at " in report
    found.disk.kill()
    filled.disk.kill()


@pytest.mark.parametrize("lost", [[RECORD], [BACKUP], [RECORD, BACKUP]], ids=["file", "backup", "both"])
def test_the_record_itself_may_be_deleted(stopped: tuple[Image, State], lost: list[Path]) -> None:
    image, expected = stopped
    check(without(image, *lost), expected)
    if lost != [RECORD, BACKUP]:
        check(remove_directory(without(image, *lost), "quiet"), expected)


def test_the_record_may_be_damaged_at_every_byte(stopped: tuple[Image, State]) -> None:
    image, expected = stopped
    data = image[RECORD]
    source = random.Random(1)
    for at in range(len(data)):
        for wrong in (
            data[:at],
            data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :],
            data[:at] + bytes(len(data) - at),
        ):
            with pytest.raises(ValueError, match=r"."):
                decode_known(wrong)
            if source.random() < 0.01:  # a start takes some 30 ms
                found = open_store({**source.choice([image, remove_directory(image, "quiet")]), RECORD: wrong}, at_ms=2_000_000)
                assert state(found) == expected, f"at {at}"
                found.disk.kill()


def test_a_record_and_its_backup_that_cannot_be_read_are_told_of_and_cost_nothing_else(filled: Opened) -> None:
    found = open_store({**filled.image(), RECORD: b"{", BACKUP: b"{"}, at_ms=1_000_000)
    assert state(found) == state(filled)
    assert found.reports[0].startswith(f"{RECORD} cannot be read (")
    found.disk.kill()


def test_a_record_that_another_broker_has_outlived_counts_for_nothing(filled: Opened) -> None:
    """Apache's broker begins the lock file with "lock"; what it deleted is no damage."""
    image = {**filled.image(), ROOT / "lock": b"lock"}
    found = open_store(remove_directory(image, "quiet"), at_ms=1_000_000)
    assert found.store.recovery is not None
    assert not found.store.recovery.rebuilt
    assert found.store.max_offset("quiet", 0) == 0
    known = decode_known(found.image()[RECORD])
    assert [place.at for place in known.places] == [found.store.log.end], "and is replaced"
    found.disk.kill()


@pytest.mark.parametrize("wrong", [-3, 5])
def test_a_record_that_says_something_else_of_a_queue_costs_a_rebuild_and_nothing_else(filled: Opened, wrong: int) -> None:
    image = filled.image()
    known = decode_known(image[RECORD])
    for place in known.places:
        place.ends["quiet"][0] += wrong
    found = check({**image, RECORD: encode(known)}, state(filled))
    assert found.store.recovery is not None
    assert found.store.recovery.rebuilt


def encode(known: KnownEnds) -> bytes:
    data = msgspec.json.encode(known)
    return b'{"crc":%d,"ends":%s}' % (crc32(data), data)


def test_an_older_place_is_begun_at_where_the_units_before_it_are_good(filled: Opened) -> None:
    """The checkpoint says that a queue was on the disk which was not."""
    image = filled.image()
    place = decode_known(image[RECORD]).places[-4]
    units = (place.ends["busy"][0] + 1) * UNIT_SIZE
    for path in files_of(image, "busy"):
        start = int(path.name)
        if start + len(image[path]) > units:
            image = with_zeros(image, path, max(units - start, 0), len(image[path]))
    found = check(image, state(filled))
    assert found.store.recovery is not None
    assert not found.store.recovery.rebuilt
    assert found.store.recovery.begun_at <= place.at
    assert found.store.recovery.misfit is not None


@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.parametrize("ending", ["kill", "clean stop"])
def test_a_deleted_topic_stays_deleted_and_is_no_reason_to_read_the_log_again(ending: str, made_again: bool) -> None:
    found = fill(trimmed=False)
    counts: list[int | OSError] = []
    found.store.delete_queues("quiet", counts.append)
    found.store.delete_queues("busy", counts.append)
    found.store.delete_queues("never was", counts.append)
    found.loop.run()
    assert sorted(map(str, counts)) == ["0", "1", "1"]
    if made_again:
        for number in range(12):
            assert put(found, "busy") == number
    found.flush()
    expected = state(found)
    assert "quiet" not in expected
    if ending == "clean stop":
        found.store.close()
    opened = check(found.image(), expected)
    assert opened.store.recovery is not None
    assert not opened.store.recovery.rebuilt
    check(remove_directory(found.image(), "even"), expected)
    found.disk.kill()


def test_a_kill_between_the_note_and_the_deletion_of_a_topic_finishes_it() -> None:
    found = fill(trimmed=False)
    before = found.image()
    found.store.delete_queues("quiet", lambda _count: None)
    found.loop.run()
    after = found.image()
    expected = state(found)
    found.disk.kill()
    kept = {path: before[path] for path in files_of(before, "quiet")}
    check({**after, **kept}, expected)
    check({**after, **dict(list(kept.items())[:1])}, expected)


def test_queue_files_go_only_once_it_is_noted_that_they_may() -> None:
    """A kill at any moment of a round: nothing is built again, whatever of the files is gone."""
    found = fill(trimmed=False)
    retention, images = found.store.retention, [found.image()]
    retention.begin_round()
    for step in (retention.delete_next, retention.trim_next):
        following = [Next.AT_ONCE]
        while following[-1] is not Next.NOTHING:
            step(following.append)
            while found.loop._due:
                found.loop._due.pop(0).run()
                images.append(found.image())
    files = [len(files_of(image, "quiet")) for image in images]
    assert files[0] > files[-1]
    expected = state(found)
    found.disk.kill()
    for image in images:
        opened = open_store(image, at_ms=1_000_000)
        assert opened.store.recovery is not None
        assert (opened.store.recovery.rebuilt, opened.reports) == (False, [])
        assert {topic: end for topic, (_, end, _) in state(opened).items()} == {
            topic: end for topic, (_, end, _) in expected.items()
        }
        opened.disk.kill()


def test_queue_files_stay_while_it_cannot_be_noted_and_go_with_the_next_round() -> None:
    found = fill(trimmed=False)
    files = len(files_of(found.image(), "busy"))
    found.disk.fail("rename", times=100)
    clean(found)
    assert len(files_of(found.image(), "busy")) == files
    assert any("turbopump.queues.json could not be saved" in report for report in found.reports)
    found.disk.clear_faults()
    found.store.queue_ends.file.repeat()
    found.loop.run()
    clean(found)
    assert len(files_of(found.image(), "busy")) < files
    expected = state(found)
    check(found.image(), expected)
    found.disk.kill()


def test_a_save_that_fails_hurts_no_send_and_is_repeated() -> None:
    found = open_store({})
    found.disk.fail("write", times=3)
    for number in range(60):
        assert put(found, "busy") == number
    found.loop.run()
    put(found, "busy", 3000)
    put(found, "busy", 3000)
    found.loop.run()
    found.disk.clear_faults()
    found.store.queue_ends.file.repeat()
    found.loop.run()
    assert decode_known(found.image()[RECORD]).places[-1].at == found.store.log.files.files[-1].start
    found.disk.kill()


def test_damaged_last_messages_of_a_queue_keep_their_offsets(filled: Opened) -> None:
    """They were given; whoever read them must not get others there."""
    image, expected = filled.image(), state(filled)
    offset, size, _ = expected["single"][2][0] if expected["single"][2] else expected["even"][2][-1]
    path = ROOT / "commitlog" / f"{offset // 4096 * 4096:020d}"
    image = with_zeros(image, path, offset % 4096 + 60, offset % 4096 + size)
    for without_its_units in (False, True):
        found = open_store(remove_directory(image, "single") if without_its_units else image, at_ms=1_000_000)
        assert {topic: end for topic, (_, end, _) in state(found).items()} == {
            topic: end for topic, (_, end, _) in expected.items()
        }
        again = open_store(found.image(), at_ms=2_000_000)
        assert again.store.recovery is not None
        assert not again.store.recovery.rebuilt
        assert again.store.max_offset("single", 0) == 1
        again.disk.kill()
        found.disk.kill()


def test_a_rebuild_keeps_where_emptied_queues_ended_also_by_their_own_files() -> None:
    found = fill(trimmed=True)
    image, expected = without(found.image(), RECORD, BACKUP), state(found)
    found.disk.kill()
    check(without(image, *(path for path in image if "index" in path.parts)), expected)


def test_what_the_log_says_wins_against_the_end_of_an_emptied_queue() -> None:
    found = fill(trimmed=True)
    image = found.image()
    for _ in range(3):
        put(found, "gone")
    found.flush()
    expected = state(found)
    later = found.image()
    found.disk.kill()
    check(remove_directory({**later, RECORD: image[RECORD]}, "gone"), expected)


def test_eight_places_are_kept_and_the_record_stays_small(filled: Opened) -> None:
    known = decode_known(filled.image()[RECORD])
    assert len(known.places) == 8
    assert [place.at % 4096 for place in known.places] == [0] * 8
    assert all(isinstance(place, Place) for place in known.places)


def test_a_store_without_a_record_gets_one_at_its_first_start(filled: Opened) -> None:
    found = open_store(without(filled.image(), RECORD, BACKUP), at_ms=1_000_000)
    assert [place.at for place in decode_known(found.image()[RECORD]).places] == [found.store.log.end]
    damaged = remove_last_file(found.image(), "quiet")
    expected = state(found)
    found.disk.kill()
    check(damaged, expected)


def refuse(*_arguments: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_record_that_the_disk_cannot_read_or_write_stops_no_start(filled: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(JsonTable, "load", lambda table, *_rest: setattr(table, "_loaded", True) or refuse())
        patched.setattr(JsonTable, "save_now", refuse)
        found = open_store(filled.image(), at_ms=1_000_000)
    assert state(found) == state(filled)
    assert found.reports == ["where the queues ended cannot be read (Input/output error): the next start will know"]
    found.loop.run()
    assert [place.at for place in decode_known(found.image()[RECORD]).places] == [found.store.log.end], "saved beside the start"
    found.disk.kill()


def test_queues_that_cannot_be_deleted_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fill(trimmed=False)
    monkeypatch.setattr(ConsumeQueueTable, "delete", refuse)
    told: list[int | OSError] = []
    found.store.delete_queues("quiet", told.append)
    found.loop.run()
    assert [str(one) for one in told] == ["[Errno 5] Input/output error"]
    found.disk.kill()
