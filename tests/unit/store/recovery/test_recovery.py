"""Opening a directory again: after a clean close, after a kill, and after files were cut, garbled
or taken away."""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fuzzing import some
from tests.unit.store.directory import SEGMENT, Directory, bodies, put

from turbopump.errors import StoreDamagedError, StoreLockedError
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.read_result import GetStatus

BODIES = [b"%d-" % number + b"x" * (number % 7 * 100) for number in range(60)]
"""Enough for several segments and several queue files of ten units."""


def fill(store: MessageStore, start: int = 0) -> None:
    for body in BODIES[start:]:
        put(store, body)


def last_segment(directory: Directory) -> Path:
    return max(directory.paths.commit_log.iterdir())


def queue_files(directory: Directory, topic: str = "T") -> list[Path]:
    return sorted(directory.paths.consume_queue(topic, 0).iterdir())


def test_a_clean_close_and_open_reads_nothing_again(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    store = directory.open()
    fill(store)
    end = store.log.end
    store.close()
    assert not directory.paths.abort.exists()

    again = directory.open()
    assert again.recovery is not None
    assert (again.recovery.clean, again.recovery.entries, again.recovery.log_end) == (True, 0, end)
    assert not again.recovery.rebuilt
    assert bodies(again) == BODIES
    assert put(again, b"next").queue_offset == len(BODIES)
    again.close()


def test_a_directory_copied_while_open_has_every_message(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "a")
    store = directory.open()
    fill(store)
    twin = directory.copy(tmp_path / "b")
    store.close()

    found = twin.open()
    assert found.recovery is not None
    assert not found.recovery.clean
    assert bodies(found) == BODIES
    assert put(found, b"next").queue_offset == len(BODIES)
    assert found.durable.value == found.recovery.log_end
    found.close()
    assert bodies(twin.open())[-1] == b"next"


def test_an_empty_store_opens_again_either_way(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "a")
    store = directory.open()
    twin = directory.copy(tmp_path / "b")
    store.close()
    for each in (directory, twin):
        again = each.open()
        assert put(again, b"first").queue_offset == 0
        assert bodies(again) == [b"first"]
        again.close()


def test_a_second_open_of_the_same_directory_is_refused(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    store = directory.open()
    put(store, b"one")
    with pytest.raises(StoreLockedError, match="in use by another broker"):
        directory.open()
    put(store, b"two")
    store.close()
    again = directory.open()
    assert bodies(again) == [b"one", b"two"]
    again.close()


def torn(data: bytes, at: int) -> bytes:
    """A segment whose last write stopped at byte ``at``: the rest is still zero, or old rubbish."""
    return data[:at] + (b"\0", b"\xa5")[at % 2] * (len(data) - at)


def test_a_torn_tail_ends_the_log_at_the_last_whole_message(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "a")
    store = directory.open()
    put(store, b"whole")
    start = put(store, b"torn").offset
    end = store.log.end
    twin = directory.copy(tmp_path / "b")
    store.close()
    data = last_segment(twin).read_bytes()

    for at in some(range(start + 1, end - 2)):  # the last two bytes are zero anyway: no properties
        last_segment(twin).write_bytes(torn(data, at))
        found = twin.copy(tmp_path / "c").open()
        assert bodies(found) == [b"whole"], f"cut at {at}"
        assert put(found, b"next").offset == start
        assert bodies(found) == [b"whole", b"next"]
        found.close()
        shutil.rmtree(tmp_path / "c")


def garble(directory: Directory, *texts: bytes) -> None:
    """Change one byte of each of these bodies, wherever in the log it is."""
    for path in directory.paths.commit_log.iterdir():
        data = bytearray(path.read_bytes())
        for text in texts:
            at = data.find(text)
            if at >= 0:
                data[at] ^= 0x20
        path.write_bytes(bytes(data))


def test_what_was_cut_off_does_not_come_back(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    store = directory.open()
    placed = [put(store, body) for body in (b"a" * 100, b"bad" * 50, b"c" * 100, b"d" * 100)]
    twin = directory.copy(tmp_path / "b")
    store.close()
    garble(twin, b"badbad", b"c" * 100, b"d" * 100)  # nothing good follows: a torn tail

    found = twin.open()
    assert found.recovery is not None
    assert (found.recovery.log_end, found.recovery.damages) == (placed[1].offset, ())
    assert found.recovery.torn is not None
    assert "CRC" in found.recovery.torn
    assert bodies(found) == [b"a" * 100]
    put(found, b"bad" * 50)  # as long as the broken one: what follows it must not be read again
    found_again = twin.copy(tmp_path / "c").open()
    assert bodies(found_again) == [b"a" * 100, b"bad" * 50]
    assert found_again.log.end == placed[2].offset
    found.close()
    found_again.close()


def test_damage_in_the_middle_is_set_apart_and_everything_else_is_served(tmp_path: Path) -> None:
    for with_crc in (False, True):
        directory = Directory(tmp_path / str(with_crc) / "a", with_crc=with_crc)
        store = directory.open()
        placed = [put(store, body) for body in (b"a" * 100, b"bad" * 50, b"worse" * 30, b"d" * 100)]
        other = put(store, b"other", "U")
        twin = directory.copy(tmp_path / str(with_crc) / "b")
        store.close()
        garble(twin, b"badbad", b"worseworse")

        found = twin.open()
        assert found.recovery is not None
        (damage,) = found.recovery.damages
        assert (damage.start, damage.end) == (placed[1].offset, placed[3].offset)
        assert "CRC" in damage.fault
        assert found.recovery.log_end == other.log_end
        assert bodies(found) == [b"a" * 100, b"d" * 100]
        assert bodies(found, "U") == [b"other"]
        assert found.max_offset("T", 0) == 4
        over = found.get("T", 0, 0, 32)
        assert (over.count, over.gaps, over.next_offset) == (2, 2, 4)
        inside = found.get("T", 0, 1, 1)
        assert (inside.status, inside.count, inside.gaps, inside.next_offset) == (
            GetStatus.MESSAGE_WAS_REMOVING,
            0,
            2,
            3,
        )
        assert put(found, b"next").queue_offset == 4
        found.close()
        again = twin.open()
        assert again.recovery is not None
        assert again.recovery.clean
        assert bodies(again) == [b"a" * 100, b"d" * 100, b"next"]
        assert again.get("T", 0, 0, 32).gaps == 2, "gaps stay"
        crashed = twin.copy(tmp_path / str(with_crc) / "c").open()
        assert bodies(crashed) == [b"a" * 100, b"d" * 100, b"next"]
        assert crashed.get("T", 0, 0, 32).gaps == 2, "and come back"
        again.close()
        crashed.close()


def test_a_damaged_first_message_of_a_queue_is_a_gap_too(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "a")
    store = directory.open()
    put(store, b"damaged" * 10)
    put(store, b"after")
    twin = directory.copy(tmp_path / "b")
    store.close()
    garble(twin, b"damageddamaged")
    found = twin.open()
    assert bodies(found) == [b"after"]
    assert found.get("T", 0, 0, 32).gaps == 1
    assert (found.min_offset("T", 0), found.max_offset("T", 0)) == (0, 2)
    found.close()


def test_damage_across_the_end_of_a_segment_is_one_range(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "a")
    store = directory.open()
    fill(store)
    store.flusher.flush_log()
    twin = directory.copy(tmp_path / "b")
    store.close()
    first, second = sorted(twin.paths.commit_log.iterdir())[:2]
    first.write_bytes(first.read_bytes()[:-700] + bytes(700))
    data = second.read_bytes()
    second.write_bytes(bytes(500) + data[500:])
    found = twin.open()
    assert found.recovery is not None
    (damage,) = found.recovery.damages
    assert damage.start < SEGMENT < damage.end
    kept = bodies(found)
    assert kept == [body for body in BODIES if body in kept]
    gaps = found.max_offset("T", 0) - len(kept)
    assert found.max_offset("T", 0) == len(BODIES)
    assert 1 < gaps < 20
    found.close()


def test_whichever_message_is_damaged_every_other_one_is_served(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "a")
    store = directory.open()
    sent = [b"%03d" % number + b"x" * 150 for number in range(40)]
    for body in sent:
        put(store, body)
    twin = directory.copy(tmp_path / "b")
    store.close()
    for number in some(range(len(sent) - 1)):
        copy = twin.copy(tmp_path / "c")
        garble(copy, sent[number])
        found = copy.open()
        assert bodies(found) == sent[:number] + sent[number + 1 :]
        assert found.max_offset("T", 0) == len(sent)
        found.close()
        shutil.rmtree(tmp_path / "c")


def test_many_damaged_messages_are_passed_over_in_one_read(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "a", segment_size=1 << 16)
    store = directory.open()
    sent = [b"%03d" % number + b"y" * 50 for number in range(200)]
    for body in sent:
        put(store, body)
    twin = directory.copy(tmp_path / "b")
    store.close()
    garble(twin, *sent[50:180])
    found = twin.open()
    result = found.get("T", 0, 50, 32)
    assert (result.count, result.gaps, result.next_offset) == (0, 130, 180)
    assert bodies(found) == sent[:50] + sent[180:]
    found.close()


def test_a_last_segment_that_lost_its_end_keeps_its_whole_messages(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "a")
    store = directory.open()
    fill(store)
    twin = directory.copy(tmp_path / "b")
    store.close()
    path = last_segment(twin)
    start = int(path.name)
    path.write_bytes(path.read_bytes()[:700])
    found = twin.open()
    kept = bodies(found)
    assert kept == BODIES[: len(kept)]
    assert start < found.log.end <= start + 700
    assert path.stat().st_size == SEGMENT
    assert put(found, b"next").queue_offset == len(kept)
    found.close()
    assert bodies(twin.open()) == [*kept, b"next"]


def test_an_old_message_in_a_recycled_place_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "a")
    store = directory.open()
    first = put(store, b"first")
    twin = directory.copy(tmp_path / "b")
    store.close()
    data = bytearray(last_segment(twin).read_bytes())
    # whole, with a good CRC, but says that it is elsewhere
    data[first.log_end : 2 * first.log_end] = data[: first.log_end]
    last_segment(twin).write_bytes(bytes(data))
    assert bodies(twin.open()) == [b"first"]


def killed(tmp_path: Path, *, clean: bool) -> Directory:
    directory = Directory(tmp_path / "a")
    store = directory.open()
    fill(store)
    put(store, b"other", "U")
    put(store, b"last")
    if clean:
        store.close()
        return directory
    twin = directory.copy(tmp_path / "b")
    store.close()
    return twin


def without_all_queues(directory: Directory) -> None:
    shutil.rmtree(directory.paths.consume_queues)


def without_one_queue(directory: Directory) -> None:
    shutil.rmtree(directory.paths.consume_queue("T", 0))


def without_another_queue(directory: Directory) -> None:
    shutil.rmtree(directory.paths.consume_queue("U", 0))


def without_the_first_file(directory: Directory) -> None:
    queue_files(directory)[0].unlink()


def without_a_middle_file(directory: Directory) -> None:
    queue_files(directory)[2].unlink()


def without_the_last_file(directory: Directory) -> None:
    queue_files(directory)[-1].unlink()


def with_a_short_file(directory: Directory) -> None:
    path = queue_files(directory)[1]
    path.write_bytes(path.read_bytes()[:-20])


def with_a_long_file(directory: Directory) -> None:
    path = queue_files(directory)[-1]
    path.write_bytes(path.read_bytes() + bytes(20))


def with_an_empty_last_file(directory: Directory) -> None:
    (queue_files(directory)[-1].parent / f"{len(queue_files(directory)) * 200:020d}").write_bytes(
        b""
    )


def with_a_half_made_last_file(directory: Directory) -> None:
    (queue_files(directory)[-1].parent / f"{len(queue_files(directory)) * 200:020d}").write_bytes(
        bytes(100)
    )


def with_strange_names(directory: Directory) -> None:
    (directory.paths.consume_queues / "notes.txt").write_text("hello")
    (directory.paths.consume_queue("T", 0) / "x.tmp").write_text("hello")
    (directory.paths.consume_queues / "T" / "not-a-queue").mkdir()


def with_wild_last_units(directory: Directory) -> None:
    path = queue_files(directory)[-1]
    data = bytearray(path.read_bytes())
    used = len(bytes(data).rstrip(b"\0")) // 20 + 1
    data[used * 20 : used * 20 + 20] = struct.pack(">qiq", 1 << 50, 77, 5)
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("clean", [False, True], ids=["killed", "closed"])
@pytest.mark.parametrize(
    "damage",
    [
        without_all_queues,
        without_one_queue,
        without_another_queue,
        without_the_first_file,
        without_a_middle_file,
        without_the_last_file,
        with_a_short_file,
        with_a_long_file,
        with_an_empty_last_file,
        with_a_half_made_last_file,
        with_strange_names,
        with_wild_last_units,
    ],
)
def test_queue_files_are_rebuilt_from_the_log_whatever_has_become_of_them(
    tmp_path: Path, damage: Callable[[Directory], None], clean: bool
) -> None:
    directory = killed(tmp_path, clean=clean)
    damage(directory)
    found = directory.open()
    assert bodies(found) == [*BODIES, b"last"]
    assert bodies(found, "U") == [b"other"]
    assert put(found, b"next").queue_offset == len(BODIES) + 1
    found.close()
    again = directory.open()
    assert bodies(again) == [*BODIES, b"last", b"next"]
    again.close()


def test_a_queue_that_is_gone_after_a_kill_is_rebuilt_from_the_start_of_the_log(
    tmp_path: Path,
) -> None:
    directory = Directory(tmp_path / "a")
    store = directory.open()
    fill(store)
    directory.clock.now += 60_000
    put(store, b"long after")
    store.flusher.flush_log()
    store.flusher.flush_queues()  # the checkpoint says that all of it is on the disk
    put(store, b"x" * 3900)  # a new segment: recovery begins in the last but one at the earliest
    twin = directory.copy(tmp_path / "b")
    store.close()
    without_one_queue(twin)
    found = twin.open()
    assert bodies(found) == [*BODIES, b"long after", b"x" * 3900]
    found.close()


def test_a_kill_between_the_making_of_a_segment_and_its_first_entry_is_no_damage(
    tmp_path: Path,
) -> None:
    for size in (0, 1, 100, SEGMENT):
        directory = Directory(tmp_path / str(size) / "a")
        store = directory.open()
        fill(store)
        twin = directory.copy(tmp_path / str(size) / "b")
        store.close()
        number = len(list(twin.paths.commit_log.iterdir()))
        (twin.paths.commit_log / f"{number * SEGMENT:020d}").write_bytes(bytes(size))
        found = twin.open()
        assert bodies(found) == BODIES
        fill(found)
        assert bodies(found) == BODIES * 2
        found.close()


def test_a_segment_of_another_size_or_a_missing_one_is_named_and_nothing_is_touched(
    tmp_path: Path,
) -> None:
    directory = Directory(tmp_path / "a")
    store = directory.open()
    fill(store)
    store.close()
    before = {path.name: path.read_bytes() for path in directory.paths.commit_log.iterdir()}

    other = Directory(tmp_path / "a", segment_size=2 * SEGMENT)
    with pytest.raises(StoreDamagedError, match="mappedFileSizeCommitLog"):
        other.open()
    path = directory.paths.commit_log / f"{SEGMENT:020d}"
    path.unlink()
    with pytest.raises(StoreDamagedError, match="a file between them is missing"):
        directory.open()
    path.write_bytes(before[path.name])
    assert {path.name: path.read_bytes() for path in directory.paths.commit_log.iterdir()} == before
    found = directory.open()
    assert bodies(found) == BODIES
    found.close()


def test_a_checkpoint_of_the_wrong_size_is_made_anew(tmp_path: Path) -> None:
    directory = killed(tmp_path, clean=False)
    directory.paths.checkpoint.write_bytes(b"short")
    found = directory.open()
    assert bodies(found) == [*BODIES, b"last"]
    found.close()
    assert directory.paths.checkpoint.stat().st_size == 4096


def test_a_checkpoint_from_the_future_hides_no_message(tmp_path: Path) -> None:
    directory = killed(tmp_path, clean=False)
    directory.paths.checkpoint.write_bytes(struct.pack(">qqqqq", *[2**62] * 5) + bytes(4056))
    found = directory.open()
    assert bodies(found) == [*BODIES, b"last"]
    found.close()


def test_a_log_whose_first_segments_are_gone_begins_where_it_begins(tmp_path: Path) -> None:
    directory = killed(tmp_path, clean=True)
    min(directory.paths.commit_log.iterdir()).unlink()
    found = directory.open()
    kept = bodies(found)
    assert kept == [*BODIES, b"last"][-len(kept) :]
    assert 0 < len(kept) < len(BODIES)
    assert found.min_offset("T", 0) == len(BODIES) + 1 - len(kept)
    assert found.max_offset("T", 0) == len(BODIES) + 1
    found.close()
    without_all_queues(directory)
    rebuilt = directory.open()
    assert bodies(rebuilt) == kept
    assert put(rebuilt, b"next").queue_offset == len(BODIES) + 1
    rebuilt.close()
    again = directory.open()
    assert bodies(again) == [*kept, b"next"]
    again.close()


@pytest.mark.parametrize("wrong", [1 << 40, 2, 0], ids=["far ahead", "ahead", "behind"])
def test_an_entry_whose_queue_offset_cannot_be_is_damage(tmp_path: Path, wrong: int) -> None:
    """Without a whole-entry CRC nothing covers the field."""
    directory = killed(tmp_path, clean=False)
    path = min(directory.paths.commit_log.iterdir())
    data = bytearray(path.read_bytes())
    first = int.from_bytes(data[:4])
    second = first + int.from_bytes(data[first : first + 4])
    number = 1 if wrong else 2
    at = first if wrong else second
    data[at + 20 : at + 28] = (wrong or 1).to_bytes(8)
    path.write_bytes(bytes(data))
    found = directory.open()
    assert found.recovery is not None
    (damage,) = found.recovery.damages
    assert damage.start == at
    assert f"queue offset {wrong or 1} of T queue 0" in damage.fault
    assert bodies(found) == [*BODIES[:number], *BODIES[number + 1 :], b"last"]
    found.close()


def test_a_message_whose_properties_are_no_utf8_does_not_end_the_log(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "a")
    store = directory.open()
    put(store, b"before")
    put(store, b"broken", tag="TAG")
    put(store, b"after")
    twin = directory.copy(tmp_path / "b")
    store.close()
    path = last_segment(twin)
    path.write_bytes(path.read_bytes().replace(b"TAG\x02", b"\xff\xfe\xfd\x02"))
    found = twin.open()
    assert bodies(found) == [b"before", b"broken", b"after"]
    found.close()
