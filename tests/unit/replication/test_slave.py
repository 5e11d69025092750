"""Transcripts of a slave: what its master sends, what goes to its log, what it reports."""

import pytest
from tests.unit.replication.conversation import frame, report

from turbopump.errors import CopyError, ProtocolError
from turbopump.replication.slave import MasterConnection, SlaveSettings, first_wanted


def connected(log_end: int, now: float = 0.0) -> MasterConnection:
    return MasterConnection(SlaveSettings(), log_end, now)


def test_it_says_first_where_its_log_ends() -> None:
    assert connected(1234).begin() == report(1234)


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_frames_become_one_run_of_bytes_however_they_are_cut(piece: int) -> None:
    master = connected(100)
    data = frame(100, b"abc") + frame(103) + frame(103, b"defgh") + frame(108, b"ij")
    for at in range(0, len(data), piece):
        master.received(data[at : at + piece], 0.0)
    assert master.to_store() == (100, b"abcdefghij")


def test_what_is_no_whole_entry_yet_waits() -> None:
    master = connected(100)
    master.received(frame(100, b"entryen"), 0.0)
    master.record_stored(105, 5)
    assert master.to_store() is None
    master.received(frame(107, b"try"), 0.0)
    assert master.to_store() == (105, b"entry")


def test_an_empty_slave_takes_the_first_offset_that_comes() -> None:
    master = connected(0)
    master.received(frame(2000, b"abc"), 0.0)
    assert master.to_store() == (2000, b"abc")


@pytest.mark.parametrize(
    ("start", "end", "wanted"), [(0, 0, 0), (0, 900, 0), (0, 2500, 1), (2000, 2500, 2000)]
)
def test_an_empty_slave_asks_for_all_of_the_log(start: int, end: int, wanted: int) -> None:
    assert first_wanted(start, end, segment_size=1000) == wanted


def test_the_byte_at_0_which_cannot_be_asked_for_is_0() -> None:
    master = connected(1)
    assert master.begin() == report(1)
    master.received(frame(1, b"\0\1\2entry"), 0.0)
    assert master.to_store() == (0, b"\0\0\1\2entry")
    master.record_stored(9, 8)
    assert master.next_report(9, 0.0) == report(9)


def test_a_frame_that_does_not_go_on_where_the_log_ends_is_refused() -> None:
    master = connected(100)
    master.received(frame(100, b"abc"), 0.0)
    with pytest.raises(
        ProtocolError, match="sent offset 104, but the slave's log continues at 103"
    ):
        master.received(frame(104, b"d"), 0.0)


@pytest.mark.parametrize("head", [frame(100)[:8] + b"\xff" * 4, b"HTTP/1.1 200"])
def test_what_speaks_no_ha_is_refused(head: bytes) -> None:
    with pytest.raises(ProtocolError):
        connected(100).received(head, 0.0)


def test_it_reports_growth_at_once_and_the_same_again_after_the_heartbeat_interval() -> None:
    master = connected(100)
    assert master.next_report(100, 1.0) is None
    assert master.next_report(150, 2.0) == report(150)
    assert master.next_report(150, 6.9) is None
    assert master.next_report(150, 7.0) == report(150)


def test_it_knows_how_many_bytes_a_second_come() -> None:
    master = connected(100)
    master.received(frame(100, b"x" * 300) + frame(400, b"y" * 200), 0.5)
    master.received(frame(600, b"z" * 50), 1.2)
    assert [master.came.per_second(now) for now in (1.5, 2.5, 4.0)] == [500, 50, 0]


def test_a_silent_master_is_left_after_the_housekeeping_interval() -> None:
    master = connected(100)
    master.received(frame(100), 5.0)
    assert not master.is_silent(25.0)
    assert master.is_silent(25.1)


def test_an_entry_that_would_be_larger_than_any_is_refused() -> None:
    master = connected(100)
    master.received(frame(100, b"abc"), 0.0)
    with pytest.raises(CopyError, match="would have 4294967295 bytes"):
        master.record_stored(100, 0xFFFFFFFF)


def test_a_slave_that_has_proved_its_log_says_first_what_it_acknowledges() -> None:
    slave = MasterConnection(SlaveSettings(), 500, 0.0, proved=True)
    assert slave.next_report(300, 0.0) == report(300), "the rest is not on its disk yet"
    slave.received(frame(500, b"abc"), 0.0)
    assert slave.to_store() == (500, b"abc")
    slave.record_stored(503, 1)
    assert slave.next_report(503, 0.1) == report(503)


def test_an_empty_slave_that_has_proved_it_takes_the_log_from_where_it_begins() -> None:
    for begin in (0, 2000):
        slave = MasterConnection(SlaveSettings(), begin, 0.0, proved=True)
        slave.received(frame(begin, b"abc"), 0.0)
        assert slave.to_store() == (begin, b"abc")
