"""Timer wheel, timer log and checkpoint: Apache's bytes, and one state after whatever happened to
the files."""

from __future__ import annotations

import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.store.timers.pending_timers import LOG_FILE, NOW, UNITS, Timers, seconds

from turbopump.errors import StoreDamagedError
from turbopump.store.files import StorePaths
from turbopump.store.log.cold_reads import finish_now
from turbopump.store.timers.pending_timers import SlotUnits, TimerConfig
from turbopump.store.timers.timer_checkpoint import TimerCheckpoint, load_timer_checkpoint
from turbopump.store.timers.timer_log import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL


@pytest.fixture
def one(tmp_path: Path) -> Timers:
    return Timers(tmp_path / "store")


def test_unit_and_slot_are_apaches_bytes(one: Timers) -> None:
    one.add(seconds(5))
    one.add(seconds(5), recalls=True, now=NOW + 1_999)
    log = (one.config.paths.timer_log / "00000000000000000000").read_bytes()
    assert struct.unpack(">iqiqiqiiq", log[:52]) == (52, -1, 1, NOW, 5000, 1000, 200, 7, 0)
    assert struct.unpack(">iqiqiqiiq", log[52:104]) == (52, 0, 5, NOW + 1000, 4000, 2000, 200, 7, 0)
    wheel = one.config.paths.timer_wheel.read_bytes()
    assert len(wheel) == 400 * 32
    number = seconds(5) // 1000
    at = number % 400 * 32
    assert struct.unpack(">qqqii", wheel[at : at + 32]) == (number, 0, 52, 0, 0)


def test_a_full_file_of_the_log_ends_in_apaches_blank(one: Timers) -> None:
    for _ in range(UNITS + 1):
        one.add(seconds(5))
    log = (one.config.paths.timer_log / "00000000000000000000").read_bytes()
    assert struct.unpack(">iqI", log[UNITS * 52 : UNITS * 52 + 16]) == (30, 0, 0xCBD43194)
    assert (one.config.paths.timer_log / f"{LOG_FILE:020d}").exists()
    assert one.pending() == {5: list(range(21))}


def test_a_slot_gives_its_messages_in_the_order_in_which_they_came(one: Timers) -> None:
    for number in range(3 * UNITS):
        one.add(seconds(5 + number % 3))
    assert one.pending() == {5 + rest: [n for n in range(60) if n % 3 == rest] for rest in range(3)}
    assert one.timers.next_time() == seconds(5)
    due = finish_now(one.timers.due(seconds(5)))
    assert isinstance(due, SlotUnits)
    assert len(due) == 20
    assert set(due.sizes) == {200}
    assert set(due.written) == {NOW}
    one.timers.passed(seconds(5))
    assert one.timers.next_time() == seconds(6)
    assert finish_now(one.timers.due(seconds(1000))).offsets.tolist() == []


@pytest.mark.parametrize(
    ("due", "slot", "rolls"),
    [
        (59, 59, False),
        (60, 30, True),
        (79, 30, True),
        (80, 60, True),
        (100_000, 60, True),
        (-3, -3, False),
    ],
)
def test_what_is_too_far_ahead_rolls_by_apaches_rule(
    one: Timers, due: int, slot: int, rolls: bool
) -> None:
    assert one.timers.slot_for(seconds(due), NOW) == (seconds(slot), rolls)


def test_no_slot_takes_the_place_of_one_that_is_not_delivered(one: Timers) -> None:
    one.add(seconds(5))
    one.add(seconds(5 + 400 + 7), now=seconds(400))  # the broker was down for a round
    assert one.pending() == {5: [0], 340: [1]}
    unit = one.timers.log.unit(52)
    assert unit is not None
    assert unit.rolls
    assert unit.magic == MAGIC_DEFAULT | MAGIC_ROLL


def test_what_is_overdue_by_months_has_a_unit_too(one: Timers) -> None:
    one.add(seconds(5), now=seconds(100 * 86_400))
    assert one.pending() == {5: [0]}


def test_a_window_that_cannot_be_is_nearly_a_round() -> None:
    assert TimerConfig(StorePaths(Path()), slots=200, roll_window_slots=1).window_ms == 140_000
    assert TimerConfig(StorePaths(Path()), slots=200, roll_window_slots=141).window_ms == 140_000
    assert TimerConfig(StorePaths(Path())).window_ms == 172_800_000


def test_a_checkpoint_reads_back_and_apaches_is_told_from_ours() -> None:
    checkpoint = TimerCheckpoint(NOW, 104, 2, 1, 0, NOW + 5, 3)
    data = checkpoint.encode()
    assert len(data) == 4096
    assert struct.unpack(">7q", data[:56]) == (NOW, 104, 2, 2, 0, NOW + 5, 3)
    assert TimerCheckpoint.decode(data) == checkpoint
    theirs = struct.pack(">7q", NOW + 1000, 156, 5, 4, 0, NOW, 9) + data[56:]
    assert TimerCheckpoint.decode(theirs) == TimerCheckpoint(
        NOW + 1000, 156, 4, 0, 0, NOW, 9, ours=False
    )
    assert TimerCheckpoint.decode(data[:-1]) is None
    for noted in (
        replace(checkpoint, precision_ms=100, log_begin=104),
        replace(checkpoint, wheel_sum=7, precision_ms=0),
    ):
        assert TimerCheckpoint.decode(noted.encode()) == noted
        beside_apaches = replace(noted, ours=False, delivered=0, wheel_sum=None)
        assert TimerCheckpoint.decode(beside_apaches.encode()) == beside_apaches
        written_by_apache = bytearray(noted.encode())
        written_by_apache[7] ^= 1
        written = TimerCheckpoint.decode(bytes(written_by_apache))
        assert written is not None
        assert (written.ours, written.precision_ms, written.log_begin) == (False, None, 0)
    summed = replace(checkpoint, wheel_sum=1 << 50)
    assert TimerCheckpoint.decode(summed.encode()) == summed
    assert summed.encode()[:92] == data[:92], "what earlier releases read"
    assert TimerCheckpoint.decode(b"\xff" * 4096) is None


def test_a_damaged_checkpoint_falls_back_to_the_one_before_it(one: Timers) -> None:
    one.add(seconds(5))
    first = one.save()
    one.add(seconds(6))
    one.save()
    path = one.config.paths.timer_checkpoint
    path.write_bytes(b"short")
    assert load_timer_checkpoint(one.disk, path) == first
    path.with_name("timercheck.bak").unlink()
    assert load_timer_checkpoint(one.disk, path) is None


def test_after_a_kill_the_log_is_cut_at_the_checkpoint_and_chains_lead_back(
    one: Timers, tmp_path: Path
) -> None:
    for number in range(30):
        one.add(seconds(5 + number % 2))
    one.save()
    for number in range(30, 50):
        one.add(seconds(5 + number % 4))
    twin = one.kill(tmp_path / "twin")
    twin.open()
    assert twin.timers.queue_offset == 30
    assert twin.pending() == {5: list(range(0, 30, 2)), 6: list(range(1, 30, 2))}
    assert twin.reports == []
    twin.put(30, seconds(5))
    assert twin.pending()[5][-1] == 30


@pytest.mark.parametrize("damage", ["wheel gone", "wheel short", "chain torn"])
def test_a_lost_wheel_is_made_again_from_the_log(one: Timers, tmp_path: Path, damage: str) -> None:
    for number in range(30):
        one.add(seconds(5 + number % 2))
    one.timers.passed(seconds(5))
    one.save()
    one.add(seconds(6))
    twin = one.kill(tmp_path / "twin")
    wheel, log = twin.config.paths.timer_wheel, twin.config.paths.timer_log / f"{LOG_FILE:020d}"
    if damage == "wheel gone":
        wheel.unlink()
    elif damage == "wheel short":
        wheel.write_bytes(bytes(100))
    else:
        data = bytearray(log.read_bytes())
        data[10 * 52] = 9
        log.write_bytes(data)
    twin.open()
    assert twin.timers.queue_offset == 30
    assert twin.pending() == {6: list(range(1, 30, 2))}
    assert "rebuilt from the timer log" in twin.reports[0]


@pytest.mark.parametrize("damage", ["gone", "short", "hole", "a unit", "ends early"])
def test_a_damaged_log_makes_everything_anew_from_the_queue(
    one: Timers, tmp_path: Path, damage: str
) -> None:
    for _ in range(3 * UNITS):
        one.add(seconds(5))
    one.save()
    twin = one.kill(tmp_path / "twin")
    directory = twin.config.paths.timer_log
    names = sorted(path.name for path in directory.iterdir())
    if damage == "gone":
        shutil.rmtree(directory)
    elif damage == "short":
        (directory / names[0]).write_bytes(b"x")
    elif damage == "hole":
        (directory / names[1]).unlink()
    elif damage == "ends early":
        (directory / names[2]).unlink()
    else:
        twin.config.paths.timer_wheel.unlink()
        (directory / names[1]).write_bytes(bytes(LOG_FILE))
    twin.open()
    assert (twin.timers.queue_offset, twin.timers.redo_before) == (0, 60)
    assert twin.timers.read_time == one.timers.read_time
    assert twin.pending() == {}
    assert "from the queue" in twin.reports[0]
    twin.put(0, seconds(9))
    assert twin.pending() == {9: [0]}


def test_a_chain_that_is_damaged_while_running_is_told(one: Timers) -> None:
    for _ in range(3):
        one.add(seconds(5))
    log = one.timers.log.piece(52)
    assert log is not None
    log[0].segment.buffer[52 + 15] = 0x33
    with pytest.raises(StoreDamagedError, match="position 52"):
        finish_now(one.timers.due(seconds(5)))
    one.timers.begin_anew(0, "it is damaged")
    assert (one.timers.queue_offset, one.timers.redo_before, one.timers.next_time()) == (0, 3, None)


def test_without_a_checkpoint_everything_is_read_again(one: Timers, tmp_path: Path) -> None:
    one.add(seconds(5))
    twin = one.kill(tmp_path / "twin")
    twin.open(NOW + 3_500)
    assert (twin.timers.queue_offset, twin.timers.read_time, twin.timers.redo_before) == (
        0,
        NOW + 3000,
        0,
    )
    assert "will be so again" in twin.reports[0]
    twin.put(0, seconds(5))
    assert twin.pending() == {5: [0]}


def test_a_queue_that_lost_its_end_or_its_beginning_is_followed(
    one: Timers, tmp_path: Path
) -> None:
    for _ in range(5):
        one.add(seconds(5))
    one.save()
    one.timers.queue_offset = 9
    one.save()
    twin = one.kill(tmp_path / "twin")
    twin.open()
    assert (twin.timers.queue_offset, twin.timers.redo_before, twin.pending()) == (0, 5, {})
    assert "before the 9" in twin.reports[0]
    for index in range(5):
        twin.put(index, seconds(5))
    twin.timers.redo_before = 0
    twin.queue.min_index = 3
    twin.timers.queue_offset = 1
    twin.save()
    assert twin.open().queue_offset == 3


def apaches(one: Timers, log_end: int, queue_offset: int) -> None:
    """What Apache's broker would have written into the checkpoint."""
    path = one.config.paths.timer_checkpoint
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(
        struct.pack(
            ">7q", one.timers.read_time, log_end, queue_offset, queue_offset, 0, NOW, 1
        ).ljust(4096, b"\0")
    )


def test_apaches_log_is_followed_beyond_its_checkpoint(one: Timers, tmp_path: Path) -> None:
    for number in range(50):
        one.add(seconds(5 + number % 2))
    apaches(one, 10 * 52, 45)
    wheel = bytearray(one.config.paths.timer_wheel.read_bytes())
    twin = one.kill(tmp_path / "twin")
    at = seconds(6) // 1000 % 400 * 32
    wheel[at : at + 32] = bytes(32)  # a wheel that was not flushed since
    at = seconds(5) // 1000 % 400 * 32
    wheel[at + 16 : at + 24] = (4 * 52).to_bytes(8)
    twin.config.paths.timer_wheel.write_bytes(wheel)
    twin.open()
    assert twin.pending() == {5: list(range(0, 50, 2)), 6: list(range(1, 50, 2))}
    assert twin.timers.queue_offset == 45
    assert twin.timers.known == {1000 * (index + 1) for index in range(45, 50)}
    assert twin.timers.log.end == one.timers.log.end
    assert twin.reports == []


def test_apaches_wheel_that_points_behind_its_log_is_made_again(
    one: Timers, tmp_path: Path
) -> None:
    for number in range(50):
        one.add(seconds(5 + number % 2))
    apaches(one, 10 * 52, 45)
    twin = one.kill(tmp_path / "twin")
    log = twin.config.paths.timer_log / f"{2 * LOG_FILE:020d}"
    data = bytearray(log.read_bytes())
    data[5 * 52 :] = bytes(len(data) - 5 * 52)
    log.write_bytes(data)
    twin.open()
    assert twin.pending() == {5: list(range(0, 45, 2)), 6: list(range(1, 45, 2))}
    apaches(one, 2 * LOG_FILE + 9 * 52, 45)
    twin = one.kill(tmp_path / "again")
    (twin.config.paths.timer_log / f"{2 * LOG_FILE:020d}").write_bytes(bytes(data))
    twin.open()
    assert twin.pending() == {}
    assert "which was on the disk" in twin.reports[0]


def test_the_oldest_message_that_waits_is_found(one: Timers) -> None:
    assert finish_now(one.timers.oldest()) is None
    for number in range(3 * UNITS):
        one.add(seconds(5 if number < 45 else 9))
    assert finish_now(one.timers.oldest()) == 1000
    one.timers.passed(seconds(5))
    assert finish_now(one.timers.oldest()) == 1000
    one.save()
    assert finish_now(one.timers.oldest()) == 46_000
    one.timers.passed(seconds(9))
    one.save()
    assert finish_now(one.timers.oldest()) is None
    one.add(seconds(15))
    assert finish_now(one.timers.oldest()) == 61_000


def test_files_of_the_log_go_with_their_messages(one: Timers) -> None:
    for _ in range(3 * UNITS):
        one.add(seconds(5))
    log = one.timers.log
    assert log.drop_before(20_000) == []
    gone = log.drop_before(20_001)
    assert [file.start for file in gone] == [0]
    one.disk.remove(gone[0].segment.path)
    log.files.forget_first(gone[0])
    assert one.pending() == {5: list(range(20, 60))}
    assert [file.start for file in log.drop_before(1 << 40)] == [LOG_FILE]


def test_a_recall_counts_against_its_slot(one: Timers) -> None:
    one.add(seconds(5))
    one.add(seconds(5))
    one.add(seconds(5), recalls=True)
    slot = one.timers.wheel.slot(seconds(5))
    assert slot is not None
    assert slot.units == 1
    assert finish_now(one.timers.due(seconds(5))).magics == bytes(
        [1, 1, MAGIC_DEFAULT | MAGIC_DELETE]
    )


def test_how_many_wait_is_known_without_a_look_at_every_slot(one: Timers, tmp_path: Path) -> None:
    assert one.timers.waiting == 0
    for number in range(60):
        one.add(seconds(5 + number % 3))
    one.add(seconds(6), recalls=True)
    one.add(seconds(1000))
    assert one.timers.waiting == 60
    one.timers.passed(seconds(5))
    one.timers.passed(seconds(5))
    assert one.timers.waiting == 40
    one.save()
    one.add(seconds(9))
    assert one.timers.waiting == 41
    killed = one.kill(tmp_path / "killed")
    assert killed.open().waiting == 40, "and the last one comes from the queue again"
    lost = one.kill(tmp_path / "lost")
    lost.config.paths.timer_wheel.unlink()
    assert lost.open().waiting == 40
    lost.timers.begin_anew(0, "the disk says so")
    assert lost.timers.waiting == 0
    for time in range(6, 61):
        killed.timers.passed(seconds(time))
    assert killed.timers.waiting == 0


def test_the_next_pending_slot_is_found_round_the_end_of_the_wheel(one: Timers) -> None:
    to_the_end = 400 - NOW // 1000 % 400
    one.timers.idle_until(seconds(to_the_end - 5))
    one.add(seconds(to_the_end + 3), now=seconds(to_the_end - 5))
    assert one.timers.next_time() == seconds(to_the_end + 3)


def test_a_clock_that_was_set_back_lets_passed_slots_take_messages_again(one: Timers) -> None:
    one.add(seconds(5))
    one.timers.passed(seconds(5))
    assert one.timers.moved
    one.save()
    assert not one.timers.moved
    one.timers.rewind(seconds(2))
    assert (one.timers.read_time, one.pending()) == (seconds(2), {})
    one.add(seconds(5))
    assert one.pending() == {5: [1]}
    one.timers.rewind(NOW - 10_000_000)
    assert one.timers.read_time == seconds(2) - 400_000, "one round is all there is"


def test_a_slot_of_very_many_messages_is_read_in_steps(one: Timers) -> None:
    for _ in range(1100):
        one.add(seconds(5))
    question = one.timers.due(seconds(5))
    wanted, pauses = next(question), 0
    due: SlotUnits | None = None
    while due is None:
        pauses += not wanted
        try:
            wanted = question.send(
                [piece.segment.read(piece.at, piece.size) for piece in wanted or ()]
            )
        except StopIteration as end:
            due = end.value
    assert len(due) == 1100
    assert pauses >= 2
    one.timers.passed(seconds(5))
    one.save()
    assert finish_now(one.timers.oldest()) is None


def test_a_log_that_cannot_be_read_is_damaged(one: Timers) -> None:
    one.add(seconds(5))
    question = one.timers.due(seconds(5))
    next(question)
    with pytest.raises(StoreDamagedError, match="position 0"):
        question.send([OSError(5, "Input/output error")])
    for _ in range(UNITS):
        one.add(seconds(5))
    log = one.timers.log
    for position in (log.end, 1 << 40):
        assert log.piece(position) is None
        assert log.unit(position) is None
    log.files.forget_first(log.files.files[-1])
    assert log.start == 0, "that was not the first"


def test_a_wheel_that_points_into_nothing_is_made_again(one: Timers, tmp_path: Path) -> None:
    one.add(seconds(5))
    one.save()
    twin = one.kill(tmp_path / "twin")
    wheel = bytearray(twin.config.paths.timer_wheel.read_bytes())
    at = seconds(5) // 1000 % 400 * 32
    wheel[at + 16 : at + 24] = (1 << 40).to_bytes(8)
    twin.config.paths.timer_wheel.write_bytes(wheel)
    twin.open()
    assert twin.pending() == {5: [0]}


def test_making_anew_that_was_cut_short_begins_anew(one: Timers, tmp_path: Path) -> None:
    for _ in range(5):
        one.add(seconds(5))
    one.timers.begin_anew(0, "it is damaged")
    one.put(0, seconds(5))
    one.save()
    twin = one.kill(tmp_path / "twin")
    twin.open()
    assert (twin.timers.queue_offset, twin.timers.redo_before, twin.pending()) == (0, 5, {})
    assert twin.reports == [], "the checkpoint has announced it"


def test_the_next_file_of_the_log_is_made_ahead_and_close_lets_go_of_all(one: Timers) -> None:
    for _ in range(UNITS - 1):
        one.add(seconds(5))
    assert one.timers.log.files.file_size == LOG_FILE
    one.timers.log.prepare()
    assert one.config.paths.timer_log.with_name("timerlog.spare").exists()
    one.add(seconds(5))
    one.add(seconds(5))
    assert not one.config.paths.timer_log.with_name("timerlog.spare").exists()
    one.timers.close()
