"""Single messages: by place, by key, by time; always the right ones, whatever index and queues
claim."""

import errno
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import examples
from tests.unit.store.directory import HOST, Directory
from tests.unit.store.looked_up import find_by_key, message_at, message_in_queue, offset_at_time
from tests.unit.store.segments import Plain, RealSegment, replace

from turbopump.errors import StoreError
from turbopump.message.codec import encode_host
from turbopump.message.java import java_hash
from turbopump.message.properties import SysFlag
from turbopump.store.index.index_file import index_hash
from turbopump.store.log.cold_reads import ReadSteps, finish_now
from turbopump.store.message_store import MessageStore, NewMessage
from turbopump.store.queues.lookup import ByKey, StoredEntry

ALWAYS = (-(2**63), 2**63 - 1)
V6_HOST = encode_host("2001:db8::1", 10911)


def indexed(root: Path, **config: Any) -> Directory:
    return Directory(root, **{"index_slots": 7, "index_entries": 64, **config})


def put(
    store: MessageStore,
    body: bytes,
    keys: str = "",
    unique: str = "",
    topic: str = "T",
    queue_id: int = 0,
    *,
    v6: bool = False,
) -> int:
    properties = (f"KEYS\x01{keys}\x02" if keys else "") + (
        f"UNIQ_KEY\x01{unique}\x02" if unique else ""
    )
    message = NewMessage(body, properties.encode(), 0, 0, unique or None, keys or None)
    host, flag = (V6_HOST, SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6) if v6 else (HOST, 0)
    return store.put(
        topic, queue_id, message, sys_flag=flag, born_timestamp=0, born_host=host, store_host=host
    ).offset


def found(store: MessageStore, key: str, *times: int, topic: str = "T", **more: Any) -> list[bytes]:
    return [
        entry.message.body
        for entry in find_by_key(store.lookup, topic, key, *(times or ALWAYS), **more)
    ]


def damage(store: MessageStore, offset: int, at: int) -> None:
    """Change one bit of the entry at ``offset``."""
    file = store.log.files.at(offset)
    assert file is not None
    file.buffer[offset - file.start + at] ^= 0x10


# --- by place
# -----------------------------------------------------------------------------------------------


def test_an_entry_is_found_where_it_begins_and_nowhere_else(tmp_path: Path) -> None:
    store = indexed(tmp_path).open()
    offsets = {put(store, b"a"): b"a", put(store, b"bb", v6=True): b"bb", put(store, b""): b""}
    for offset in range(-2, store.log.end + 200):
        message = message_at(store.lookup, offset)
        assert (message.body if message is not None else None) == offsets.get(offset)
    store.close()


def test_every_bit_of_an_entry_that_changes_is_noticed_and_said(tmp_path: Path) -> None:
    store = indexed(tmp_path, with_crc=True).open()
    first = put(store, b"first")
    offset, behind = put(store, b"body", "k", "ID1"), store.log.end
    put(store, b"last")
    good = finish_now(store.lookup.entry_at(offset))
    assert good is not None
    assert (good.fault, len(good.data)) == (None, behind - offset)
    for at in range(behind - offset):
        damage(store, offset, at)
        entry = finish_now(store.lookup.entry_at(offset))
        assert entry is None or entry.fault
        assert (entry is None) == (4 <= at < 8 or 28 <= at < 36), (
            "without its magic or its place it is no entry"
        )
        assert message_at(store.lookup, offset) is message_in_queue(store.lookup, "T", 0, 1) is None
        assert found(store, "k") == found(store, "ID1") == []
        damage(store, offset, at)
    assert found(store, "k") == [b"body"]
    assert message_at(store.lookup, first) is not None
    store.close()


def test_a_message_is_found_by_its_queue_offset(tmp_path: Path) -> None:
    store = indexed(tmp_path).open()
    offsets = [put(store, b"%d" % number) for number in range(3)]
    lookup = store.lookup
    assert [
        message.body for n in range(-1, 5) if (message := message_in_queue(lookup, "T", 0, n))
    ] == [b"0", b"1", b"2"]
    assert message_in_queue(lookup, "T", 1, 0) is message_in_queue(lookup, "U", 0, 0) is None
    queue = store.queue("T", 0)
    assert queue is not None
    queue.raise_min(offsets[1])
    assert message_in_queue(lookup, "T", 0, 0) is None
    queue.append(1, offsets[1], 0x7FFFFFFF, 0)  # a gap
    assert message_in_queue(lookup, "T", 0, 1) is None
    store.close()


# --- by key
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ("#", "#"),
        ("a#b", "a#b"),
        ("T#a", "T#a"),
        ("ä€\U0001f600", "ä€\U0001f600"),
        ("tab\there", "tab\there"),  # Java splits at spaces only
        ("a  b", "b"),
        (" a", "a"),
        ("k k k", "k"),
        ("polygenelubricants", "polygenelubricants"),
    ],
)
def test_whatever_a_key_is_made_of_it_is_found_once(tmp_path: Path, keys: str, key: str) -> None:
    store = indexed(tmp_path).open()
    put(store, b"other", "other")
    put(store, b"it", keys, "ID1")
    assert found(store, key) == [b"it"]
    assert found(store, key, unique=True) == []
    assert found(store, "") == []
    store.close()


def test_a_key_whose_hash_has_no_positive_twin_is_found(tmp_path: Path) -> None:
    """abs(Integer.MIN_VALUE) is negative in Java: such keys are indexed under 0."""
    key = _key_of_hash("T", 0x80000000)
    assert java_hash(f"T#{key}") == -0x80000000
    assert index_hash(f"T#{key}") == 0
    store = indexed(tmp_path).open()
    put(store, b"it", key)
    assert found(store, key) == [b"it"]
    store.close()


def _key_of_hash(topic: str, wanted: int) -> str:
    """A key of eight characters for which ``topic#key`` has this Java hash: base 31 with digits
    from ``(`` on."""
    start = 0
    for unit in f"{topic}#".encode():
        start = (31 * start + unit) & 0xFFFFFFFF
    rest = (wanted - start * 31**8 - sum(40 * 31**n for n in range(8))) % 2**32
    digits = []
    for power in reversed(range(8)):
        digit = min(rest // 31**power, 60)
        digits.append(digit)
        rest -= digit * 31**power
    assert rest == 0
    return "".join(chr(40 + digit) for digit in digits)


def by_bytes(store: Any, limit: int) -> list[bytes]:
    return [
        e.message.body
        for e in finish_now(store.lookup.by_key("T", "k", *ALWAYS, bytes_max=limit)).found
    ]


def test_as_many_as_wanted_and_no_more_bytes_than_allowed_but_always_one(tmp_path: Path) -> None:
    store = indexed(tmp_path, index_entries=200).open()
    for number in range(80):
        put(store, b"%02d" % number, "k")
    size = len(find_by_key(store.lookup, "T", "k", *ALWAYS)[0].data)

    assert found(store, "k", count_max=2) == [b"79", b"78"]
    assert found(store, "k", count_max=0) == []
    assert len(found(store, "k", count_max=1000)) == 64
    assert by_bytes(store, 0) == by_bytes(store, 2 * size - 1) == [b"79"]
    assert by_bytes(store, 2 * size) == [b"79", b"78"]
    store.close()


def test_the_first_entry_of_an_apache_file_has_seconds_of_the_file_before(tmp_path: Path) -> None:
    """RocketMQ computes them before it sets the file's begin: after a quiet day they say 86,400."""
    directory = indexed(tmp_path)
    store = directory.open()
    begin = directory.clock.now
    put(store, b"it", "k")
    assert store.index is not None
    store.index.write_waiting()
    (file,) = store.index.files
    struct.pack_into(">i", file.segment.buffer, 40 + 7 * 4 + 20 + 12, 86_400)
    assert found(store, "k", begin, begin) == [b"it"]
    assert found(store, "k", begin + 1, begin + 1) == []
    store.close()


def test_a_clock_that_is_set_back_hides_no_message(tmp_path: Path) -> None:
    directory = indexed(tmp_path, index_entries=5)
    store = directory.open()
    times = []
    for number, step in enumerate([0, 1000, -3_600_000, 500, 7_200_000, -1, -86_400_000, 10, 20]):
        directory.clock.now += step
        times.append(directory.clock.now)
        put(store, b"%d" % number, "k")
    for number, time in enumerate(times):
        assert found(store, "k", time, time) == [b"%d" % number]
    for low in times:
        for high in times:
            wanted = [
                b"%d" % n for n, time in reversed(list(enumerate(times))) if low <= time <= high
            ]
            assert found(store, "k", low, high) == wanted
    store.close()


def test_what_an_index_points_to_in_vain_is_passed_over(tmp_path: Path) -> None:
    store = indexed(tmp_path).open()
    put(store, b"it", "k")
    assert store.index is not None
    store.index.write_waiting()
    hashed = index_hash("T#k")
    now = 1_700_000_000_000
    store.index.files[-1].append_entries(
        [(hashed, 7, now), (hashed, store.log.end, now), (hashed, 1 << 50, now)]
    )
    assert found(store, "k") == [b"it"]
    store.close()


def test_an_index_file_that_goes_away_while_it_is_walked_is_left(tmp_path: Path) -> None:
    store = indexed(tmp_path, index_entries=5).open()
    for number in range(12):
        put(store, b"%d" % number, "k")
    assert store.index is not None
    index, reads = store.index, 0

    def vanishing() -> ReadSteps[ByKey]:
        nonlocal reads
        question = store.lookup.by_key("T", "k", *ALWAYS)
        wanted = next(question)
        while True:
            given = yield wanted
            reads += 1
            if reads == 9:
                index.remove_all()  # what was read before is still given
            try:
                wanted = question.send(given)
            except StopIteration as end:
                result: ByKey = end.value
                return result

    bodies = [entry.message.body for entry in finish_now(vanishing()).found]
    assert bodies == [b"%d" % number for number in range(11, 11 - len(bodies), -1)]
    assert 1 < len(bodies) < 12
    store.close()


def test_a_store_says_why_messages_may_not_be_found_by_key(tmp_path: Path) -> None:
    without = Directory(tmp_path / "a").open()
    put(without, b"x", "k")
    assert found(without, "k") == []
    assert "messageIndexEnable=false" in (without.lookup.no_index_because or "")
    assert without.lookup.index_end == (0, 0)
    without.close()
    store = indexed(tmp_path / "b").open()
    assert store.lookup.no_index_because is None
    offset = put(store, b"x", "k")
    assert store.lookup.index_end == (offset, 1_700_000_000_000)
    assert store.index is not None
    store.index.failed = True
    assert "after the next start" in (store.lookup.no_index_because or "")
    store.close()


# --- by time
# -----------------------------------------------------------------------------------------------


def brute_place(times: list[int | None], low: int, timestamp: int, *, upper: bool) -> int:
    """The plain twin of ``offset_in_time``: None is a message without a time."""
    known = [(n, time) for n, time in enumerate(times) if time is not None and n >= low]
    if upper:
        return max((n for n, time in known if time <= timestamp), default=0)
    return min((n for n, time in known if time >= timestamp), default=len(times))


@examples(60)
@given(
    steps=st.lists(st.sampled_from([0, 0, 1, 5, 1000]), min_size=1, max_size=12),
    holes=st.sets(st.integers(0, 11)),
    spoilt=st.sets(st.integers(0, 11)),
    gone=st.integers(0, 4),
)
def test_places_in_time_and_ranges_of_time_are_those_of_a_plain_search(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[int],
    holes: set[int],
    spoilt: set[int],
    gone: int,
) -> None:
    """``holes`` are gaps of the queue, ``spoilt`` have a damaged head in the log, ``gone`` were
    deleted with their segment."""
    directory = indexed(tmp_path_factory.mktemp("t"), segment_size=16384)
    store = directory.open()
    times: list[int | None] = []
    offsets = []
    for number, step in enumerate(steps):
        directory.clock.now += step
        times.append(directory.clock.now)
        offsets.append(put(store, b"%d" % number, v6=number % 3 == 0))
    queue = store.queue("T", 0)
    assert queue is not None
    for number in range(len(steps)):
        if number in holes:
            queue.append(number, offsets[number], 0x7FFFFFFF, 0)
            times[number] = None
        elif number in spoilt:
            damage(store, offsets[number], 6)
            times[number] = None
    low = min(gone, len(steps))
    queue.raise_min(offsets[low] if low < len(steps) else store.log.end)
    low = queue.min_index
    begin = 1_700_000_000_000
    marks = sorted(
        {begin - 1, begin, directory.clock.now + 1, *(time for time in times if time is not None)}
    )
    for timestamp in (mark + delta for mark in marks for delta in (0, 1)):
        for upper in (False, True):
            place = offset_at_time(store.lookup, "T", 0, timestamp, upper=upper)
            assert place == brute_place(times, low, timestamp, upper=upper), (timestamp, upper)
    earliest = [time for n, time in enumerate(times) if n >= low and time is not None]
    assert finish_now(store.lookup.earliest_time("T", 0)) == (earliest[0] if earliest else -1)
    store.close()


def test_a_queue_that_is_not_there_has_no_earliest_time(tmp_path: Path) -> None:
    store = indexed(tmp_path).open()
    assert finish_now(store.lookup.earliest_time("U", 0)) == -1
    store.close()


# --- after a rebuild
# -----------------------------------------------------------------------------------------------


def everything(store: MessageStore, now: int) -> dict[str, Any]:
    """Every answer that keys, times and places have."""
    lookup = store.lookup
    answers: dict[str, Any] = {}
    for key in ("all", *(f"k{n}" for n in range(5)), *(f"ID{n:03d}" for n in range(60)), "never"):
        for first, last in (ALWAYS, (now, now + 5000), (now + 5001, now + 9999)):
            answers[f"{key} {first}"] = [
                entry.offset for entry in find_by_key(lookup, "T", key, first, last)
            ]
    for queue_id in range(3):
        for time in range(now - 700, now + 31_000, 350):
            answers[f"at {queue_id} {time}"] = [
                offset_at_time(lookup, "T", queue_id, time, upper=u) for u in (False, True)
            ]
        answers[f"queue {queue_id}"] = [
            m.commit_log_offset
            for n in range(30)
            if (m := message_in_queue(lookup, "T", queue_id, n))
        ]
    return answers


@pytest.mark.parametrize(
    "gone", [("index",), ("consumequeue",), ("index", "consumequeue")], ids="+".join
)
def test_every_key_and_time_has_its_answer_from_files_that_were_made_anew(
    tmp_path: Path, gone: tuple[str, ...]
) -> None:
    directory = indexed(tmp_path, index_entries=40)
    store = directory.open()
    now = directory.clock.now
    for number in range(60):
        directory.clock.now += 500
        put(store, b"%d" % number, f"all k{number % 5}", f"ID{number:03d}", queue_id=number % 3)
    wanted = everything(store, now)
    assert len(wanted["all -9223372036854775808"]) == 60
    store.close()
    for name in gone:
        shutil.rmtree(tmp_path / name)
    again = directory.open()
    assert everything(again, now) == wanted
    again.close()


# --- what the disk cannot read
# -----------------------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, when: Callable[[RealSegment, int, int], bool]) -> None:

    def read_cold(plain: Plain, segment: RealSegment, at: int, size: int) -> bytes:
        if when(segment, at, size):
            raise OSError(errno.EIO, "Input/output error")
        return plain(segment, at, size)

    replace(monkeypatch, "read_cold", read_cold)


def outcome(store: MessageStore) -> tuple[StoredEntry | None, StoredEntry | None, ByKey, int | str]:
    lookup = store.lookup
    place: int | str
    try:
        place = offset_at_time(lookup, "T", 0, 0)
    except StoreError as error:
        place = str(error)
    return (
        finish_now(lookup.entry_at(0)),
        finish_now(lookup.entry_in_queue("T", 0, 0)),
        finish_now(lookup.by_key("T", "k", *ALWAYS)),
        place,
    )


@pytest.mark.parametrize("part", ["head", "entry", "units", "slots", "index entries"])
def test_what_cannot_be_read_is_told_apart_from_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    store = indexed(tmp_path).open()
    put(store, b"it", "k")
    failing(
        monkeypatch,
        {
            "head": lambda segment, _at, size: (
                "commitlog" in str(segment.path) and size in (36, 76)
            ),
            "entry": lambda segment, _at, size: "commitlog" in str(segment.path) and size > 76,
            "units": lambda segment, _at, _size: "consumequeue" in str(segment.path),
            "slots": lambda segment, _at, size: "index" in str(segment.path) and size == 4,
            "index entries": lambda segment, _at, size: "index" in str(segment.path) and size == 20,
        }[part],
    )
    at_place, in_queue, by_key, place = outcome(store)
    store.close()
    log_fails, index_fails = part in ("head", "entry"), part in ("slots", "index entries")
    for entry, fails in ((at_place, log_fails), (in_queue, log_fails or part == "units")):
        assert entry is not None
        assert entry.fault == ("it cannot be read: Input/output error" if fails else None)
    assert len(by_key.found) == (not log_fails and not index_fails)
    assert len(by_key.damaged) == log_fails
    assert len(by_key.errors) == index_fails
    if part in ("head", "units"):
        assert place == (
            "times of topic=T queue=0 cannot be read now (Input/output error); check the disk"
        )
    else:
        assert place == 0


def pauses(question: ReadSteps[Any]) -> int:
    """How often a question lets others have their turn."""
    wanted, count = next(question), 0
    try:
        while True:
            count += not wanted
            wanted = question.send([piece.segment.read(piece.at, piece.size) for piece in wanted])
    except StopIteration:
        return count


def test_others_have_their_turn_every_few_entries_and_messages(tmp_path: Path) -> None:
    directory = indexed(tmp_path, index_entries=300)
    store = directory.open()
    directory.clock.now += 10_000
    for number in range(250):
        put(store, b"%d" % number, "k")
        directory.clock.now += 1000
    assert pauses(store.lookup.by_key("T", "k", *ALWAYS)) == 64 // 16
    assert pauses(store.lookup.by_key("T", "k", 0, 1)) == 250 // 100
    assert pauses(store.lookup.by_key("T", "unknown", *ALWAYS)) <= 1
    store.close()
