"""A slave's log: the very bytes of its master's, and what is derived from them."""

from pathlib import Path

import pytest
from tests.stand_ins import does_nothing
from tests.unit.store.directory import OVERHEAD, SEGMENT, Directory, bodies, put, put_batch
from tests.unit.store.indexed import ENTRIES, SLOTS, answers, fill, indexed

from turbopump.errors import CopyError, StoreClosedError
from turbopump.message.properties import SysFlag
from turbopump.store.message_store import MessageStore


def log_bytes(store: MessageStore, start: int = 0) -> bytes:
    """All bytes of a log from ``start`` on."""
    pieces = []
    while start < store.log.end:
        size = min(store.log.segment_end(start), store.log.end) - start
        piece = store.log.read(start, size)
        assert piece is not None
        pieces.append(piece)
        start += size
    return b"".join(pieces)


def opened_slave(root: Path, **config: object) -> tuple[Directory, MessageStore]:
    directory = Directory(root, is_copy=True, **config)
    return directory, directory.open()


def copy(slave: MessageStore, data: bytes, start: int = 0, piece: int = 1 << 20) -> int:
    """Hand over ``data`` in pieces, keeping what is not taken yet; where the slave's log ends."""
    assert slave.copied is not None
    waiting, at = b"", start
    for begin in range(0, len(data), piece):
        waiting += data[begin : begin + piece]
        end = slave.copied.append(at, waiting).end
        waiting, at = waiting[end - at :], end
    return at


def test_a_copy_has_the_same_bytes_and_queues_over_many_segments(tmp_path: Path) -> None:
    master = Directory(tmp_path / "master", with_crc=True).open()
    for number in range(60):
        put(master, b"%d " % number * 40, topic=f"T{number % 3}", queue_id=number % 2)
    put_batch(master, [b"one", b"two", b"three"])
    directory, slave = opened_slave(tmp_path / "slave")
    data = log_bytes(master)
    assert len(data) > 3 * SEGMENT
    assert copy(slave, data, piece=333) == master.log.end
    assert log_bytes(slave) == data
    for queue in master.queues:
        assert bodies(slave, queue.topic, queue.queue_id) == bodies(
            master, queue.topic, queue.queue_id
        )
    slave.close()
    again = directory.open()
    assert again.log.end == master.log.end
    assert bodies(again, "T1", 1) == bodies(master, "T1", 1)
    assert directory.failures == []


def test_a_killed_copy_recovers_to_an_entry_and_goes_on_there(tmp_path: Path) -> None:
    master = Directory(tmp_path / "master").open()
    for number in range(30):
        put(master, b"m%d" % number * 50)
    data = log_bytes(master)
    directory, slave = opened_slave(tmp_path / "slave")
    reached = copy(slave, data[: len(data) * 2 // 3])
    killed = directory.copy(tmp_path / "killed")
    restarted = killed.open()
    assert restarted.log.end == reached
    assert copy(restarted, data[reached:], reached) == master.log.end
    assert bodies(restarted) == bodies(master)


def test_a_copy_may_begin_at_a_later_segment(tmp_path: Path) -> None:
    master = Directory(tmp_path / "master").open()
    for number in range(40):
        put(master, b"m%d" % number * 50)
    start = 2 * SEGMENT
    directory, slave = opened_slave(tmp_path / "slave")
    assert copy(slave, log_bytes(master, start), start) == master.log.end
    first = slave.min_offset("T", 0)
    assert first > 0
    assert bodies(slave) == bodies(master)[first:]
    slave.close()
    again = directory.open()
    assert (again.log.start, again.log.end) == (start, master.log.end)
    assert bodies(again) == bodies(master)[first:]


@pytest.mark.parametrize("piece", [500, 1 << 20])
def test_a_copy_finds_by_key_what_its_master_finds(tmp_path: Path, piece: int) -> None:
    of_master = indexed(tmp_path / "master")
    master = of_master.open()
    fill(of_master, master)
    _, slave = opened_slave(tmp_path / "slave", index_slots=SLOTS, index_entries=ENTRIES)
    copy(slave, log_bytes(master), piece=piece)
    found = answers(master)
    assert found["every"]
    assert answers(slave) == found


def test_prepared_and_damaged_entries_between_others_are_taken_one_by_one(tmp_path: Path) -> None:
    master = Directory(tmp_path / "master").open()
    for number in range(9):
        put(master, b"m%d" % number)
        put(master, b"half", topic="H", sys_flag=SysFlag.TRANSACTION_PREPARED)
    bad = put(master, b"bad").offset
    data = bytearray(log_bytes(master))
    data[bad + OVERHEAD - 4] ^= 0xFF  # a byte of its body
    _, slave = opened_slave(tmp_path / "slave")
    with pytest.raises(CopyError, match=f"no good entry at offset {bad} of the log"):
        copy(slave, bytes(data))
    assert bodies(slave) == bodies(master)[:-1]
    assert slave.max_offset("H", 0) == 0


def test_a_log_does_not_begin_within_a_segment(tmp_path: Path) -> None:
    _, slave = opened_slave(tmp_path)
    with pytest.raises(Exception, match=r"cannot begin at 100.*mappedFileSizeCommitLog"):
        copy(slave, bytes(200), 100)


@pytest.mark.parametrize("at", [0, 4, 30, 60, 95])
def test_a_changed_byte_is_refused_and_what_came_before_is_kept(tmp_path: Path, at: int) -> None:
    master = Directory(tmp_path / "master", with_crc=True).open()
    first = put(master, b"first").log_end
    put(master, b"second")
    data = bytearray(log_bytes(master))
    data[first + at] ^= 0xFF
    _, slave = opened_slave(tmp_path / "slave")
    with pytest.raises(CopyError, match=f"no good entry at offset {first} of the log"):
        copy(slave, bytes(data))
    assert (slave.log.end, bodies(slave)) == (first, [b"first"])


def test_a_topic_that_was_made_anew_begins_with_0_again(tmp_path: Path) -> None:
    master = Directory(tmp_path / "master").open()
    put(master, b"old 0")
    put(master, b"old 1")
    master.delete_queues("T", does_nothing)
    put(master, b"new 0")
    _, slave = opened_slave(tmp_path / "slave")
    copy(slave, log_bytes(master))
    assert bodies(slave) == [b"new 0"]


def test_a_slave_takes_no_messages_of_its_own(tmp_path: Path) -> None:
    _, slave = opened_slave(tmp_path)
    with pytest.raises(StoreClosedError, match=r"is a slave .* send to its master"):
        put(slave, b"no")


def test_under_sync_flush_a_slave_shows_what_is_on_its_disk(tmp_path: Path) -> None:
    master = Directory(tmp_path / "master").open()
    for number in range(5):
        put(master, b"m%d" % number, queue_id=number % 2)
    _, slave = opened_slave(tmp_path / "slave", flushed_only=True)
    copy(slave, log_bytes(master))
    assert (slave.max_offset("T", 0), slave.max_offset("T", 1)) == (0, 0)
    slave.flusher.flush_log()
    assert (slave.max_offset("T", 0), slave.max_offset("T", 1)) == (3, 2)


def test_growth_is_told_once_for_each_time_it_is_waited_for(tmp_path: Path) -> None:
    store = Directory(tmp_path).open()
    told: list[int] = []
    store.log.when_longer(lambda: told.append(store.log.end))
    first = put(store, b"one").log_end
    put(store, b"two")
    assert told == [first]
    store.log.when_longer(lambda: told.append(store.log.end))
    assert told == [first]
    third = put(store, b"three").log_end
    assert told == [first, third]


@pytest.mark.parametrize("flushed_only", [False, True])
@pytest.mark.parametrize("with_crc", [False, True])
@pytest.mark.parametrize("zeros", [1, 2, 10, 30])
def test_a_copied_entry_that_a_power_cut_has_left_zero_at_its_end_is_cut(
    tmp_path: Path, zeros: int, with_crc: bool, flushed_only: bool
) -> None:
    master = Directory(tmp_path / "master", with_crc=with_crc).open()
    for number in range(5):
        last = put(master, b"m%d" % number, tag="a tag that takes some thirty bytes")
    data = log_bytes(master)
    directory, slave = opened_slave(tmp_path / "slave", flushed_only=flushed_only)
    assert copy(slave, data) == master.log.end
    killed = directory.copy(tmp_path / "killed")
    with (killed.paths.commit_log / f"{0:020}").open("r+b") as file:
        file.seek(len(data) - zeros)
        file.write(bytes(zeros))
    again = killed.open()
    assert again.log.end == last.offset
    assert again.unchanged <= last.offset
    assert bodies(again) == bodies(master)[:-1]
    assert copy(again, data[last.offset :], last.offset) == master.log.end
    assert log_bytes(again) == data
