"""Transcripts of the comparison on the HA port: what both sides say, and what the master finds."""

import hashlib
import random
import re
from collections.abc import Sequence

import pytest
from tests.unit.replication.conversation import SEGMENT, frame, span

from turbopump.errors import ProtocolError
from turbopump.replication.comparison import (
    BEFORE_SIZE,
    DIGEST_SIZE,
    PROVE,
    RANGE_SIZE,
    MasterComparison,
    Outcome,
    Range,
    SlaveComparison,
    Verdict,
    masters_refusal,
    slaves_refusal,
)
from turbopump.replication.history import KNOWN_MAX, NO_END, KnownLog
from turbopump.replication.master import LogSpan

ONE, OTHER = b"1" * 16, b"2" * 16
OWN = KnownLog(ONE, NO_END)


def compared(
    master: bytes,
    slave: bytes,
    *,
    start: int = 0,
    masters_start: int = 0,
    segment_size: int = SEGMENT,
    known: Sequence[KnownLog] = (),
    masters_known: Sequence[KnownLog] = (OWN,),
    piece: int = 1 << 20,
    master_first: bool = False,
    stream: bytes = b"",
) -> tuple[Outcome, list[Range]]:
    """What comes out, for logs that are whole bytes from offset 0 on, of which the first ones may
    be deleted; and what was asked. Bytes come in pieces; each side may read first."""
    log = LogSpan(masters_start, len(master), len(master), segment_size)
    there, here = MasterComparison(masters_known), SlaveComparison(start, len(slave), known)
    to_master, to_slave = here.begin(), b""
    asked: list[Range] = []

    def digest(of: bytes, wanted: Range) -> bytes:
        return hashlib.sha256(of[wanted.offset : wanted.offset + wanted.size]).digest()

    while to_master or to_slave:
        said, to_master = to_master[:piece], to_master[piece:]
        before = there.asked
        to_slave += there.received(said, log) if said else b""
        if there.asked is not before and there.asked is not None:
            asked.append(there.asked)
            if master_first:
                to_slave += there.set_digest(digest(master, there.asked))
        if there.found is not None:
            to_slave, stream = to_slave + stream, b""
        said, to_slave = to_slave[:piece], to_slave[piece:]
        found = here.received(said) if said else None
        if isinstance(found, Range):
            to_master += digest(slave, found)
            if not master_first:
                last = there.asked
                to_slave += there.set_digest(digest(master, found))
                assert there.asked is last, "it waits for the slave's"
    assert there.found is not None
    assert here.found == there.found
    return there.found, asked


def bytes_of(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("piece", [1, 11, 1 << 20])
@pytest.mark.parametrize("master_first", [False, True])
def test_equal_logs_are_proved_in_ranges_that_keep_to_segments(
    piece: int, master_first: bool
) -> None:
    log = bytes_of(1, 2500)
    found, asked = compared(log + b"more", log, piece=piece, master_first=master_first)
    assert found == (Verdict.EQUAL, 2500, (OWN,))
    assert asked == [(0, 1000), (1000, 1000), (2000, 500)]


@pytest.mark.parametrize("seed", range(50))
def test_the_first_byte_that_differs_is_found_wherever_it_is(seed: int) -> None:
    rng = random.Random(seed)
    log = rng.randbytes(rng.randrange(2, 5000))
    slave = log[: rng.randrange(1, len(log) + 1)]
    at = rng.randrange(len(slave))
    tail = rng.randbytes(len(slave) - at - 1) if rng.random() < 0.5 else slave[at + 1 :]
    slave = slave[:at] + bytes([slave[at] ^ 1]) + tail
    found, _ = compared(log, slave, master_first=rng.random() < 0.5)
    assert (found.verdict, found.offset) == (Verdict.DIFFERS, at)


@pytest.mark.parametrize(("start", "masters_start"), [(1000, 0), (0, 1000), (2000, 1000)])
def test_compared_is_what_both_still_have(start: int, masters_start: int) -> None:
    log = bytes_of(1, 3500)
    found, asked = compared(log, log, start=start, masters_start=masters_start)
    assert found[:2] == (Verdict.EQUAL, 3500)
    assert asked[0].offset == max(start, masters_start)


def test_an_empty_slave_gets_all_there_is() -> None:
    found, asked = compared(bytes(5000), b"", masters_start=2000)
    assert (found[:2], asked) == ((Verdict.EQUAL, 2000), [])


def test_a_slave_that_is_ahead_is_told_where_the_master_ends() -> None:
    found, asked = compared(bytes(500), bytes(501))
    assert (found[:2], asked) == ((Verdict.AHEAD, 500), [])


@pytest.mark.parametrize("size", [900, 1000])
def test_a_slave_of_whose_log_the_master_has_nothing_any_more_is_told_where_it_begins(
    size: int,
) -> None:
    found, asked = compared(bytes(2000), bytes(size), masters_start=1000)
    assert (found[:2], asked) == ((Verdict.TOO_OLD, 1000), [])


MIB = BEFORE_SIZE


def test_only_what_follows_the_last_common_point_is_compared_and_a_little_before() -> None:
    log = bytes_of(1, 5 * MIB)
    found, asked = compared(
        log,
        log,
        segment_size=1 << 30,
        known=(KnownLog(ONE, 2 * MIB + 7), KnownLog(OTHER, NO_END)),
        masters_known=(KnownLog(b"0" * 16, MIB), OWN),
    )
    assert found.verdict is Verdict.EQUAL
    assert asked[0].offset == MIB + 7
    assert sum(one.size for one in asked) == 4 * MIB - 7


def test_a_slave_that_comes_back_to_the_same_run_of_its_master_compares_its_end_alone() -> None:
    log = bytes_of(1, 5 * MIB)
    found, asked = compared(log + b"more", log, segment_size=1 << 30, known=(OWN,))
    assert found.verdict is Verdict.EQUAL
    assert asked == [(4 * MIB, RANGE_SIZE)]


def test_a_log_that_went_another_way_is_found_out_where_the_histories_part() -> None:
    both = bytes_of(1, 3 * MIB)
    found, asked = compared(
        both + bytes_of(2, MIB),
        both + bytes_of(3, MIB),
        segment_size=1 << 30,
        known=(OWN,),
        masters_known=(KnownLog(ONE, 3 * MIB), KnownLog(OTHER, NO_END)),
    )
    assert (found.verdict, found.offset) == (Verdict.DIFFERS, 3 * MIB)
    assert asked[0].offset == 2 * MIB


def test_a_history_that_says_too_much_is_found_out_by_the_end_of_the_log() -> None:
    both = bytes_of(1, 2 * MIB)
    found, _ = compared(
        both + bytes_of(2, 3 * MIB), both + bytes_of(3, 3 * MIB), segment_size=1 << 30, known=(OWN,)
    )
    assert (found.verdict, found.offset) == (Verdict.DIFFERS, 2 * MIB)


def test_the_stream_that_follows_at_once_is_kept_for_later() -> None:
    log, here = bytes_of(1, 10), SlaveComparison(0, 10, ())
    there = MasterComparison((OWN,))
    there.received(here.begin(), span(10))
    digest = hashlib.sha256(log).digest()
    said = there.received(digest, span(10)) + there.set_digest(digest)
    assert here.received(said + frame(10, b"next")) == (Verdict.EQUAL, 10, (OWN,))
    assert here.received(b"!") is None
    assert here.rest == frame(10, b"next") + b"!"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (PROVE[:4] + b"?" * 60, "does not speak the HA protocol"),
        (PROVE + b"\0" * 7 + b"\5" + b"\0" * 12, "begins at 5 and ends at 0"),
        (PROVE + b"\0" * 16 + b"\x7f\0\0\0", "a history has 2130706432 entries"),
        (SlaveComparison(0, 10, [OWN] * (KNOWN_MAX + 1)).begin(), "a history has 257 entries"),
    ],
)
def test_a_slave_that_says_what_cannot_be_is_refused(said: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        MasterComparison((OWN,)).received(said, span(500))


def test_a_digest_that_was_not_asked_for_is_refused() -> None:
    there = MasterComparison((OWN,))
    there.received(SlaveComparison(0, 10, ()).begin(), span(10))
    there.received(bytes(DIGEST_SIZE), span(10))
    with pytest.raises(ProtocolError, match="digest that was not requested"):
        there.received(bytes(DIGEST_SIZE), span(10))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (frame(0, b"")[:8] + (11).to_bytes(4), "requests a digest of 11 bytes at 0"),
        (frame(5, b"")[:8] + (6).to_bytes(4), "requests a digest of 6 bytes at 5"),
        (frame(0, b"")[:8] + (-9).to_bytes(4, signed=True), "sent verdict -9"),
        (frame(0, b"") + (-1).to_bytes(4, signed=True), "a history has -1 entries"),
    ],
)
def test_a_master_that_asks_what_cannot_be_is_refused(said: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        SlaveComparison(0, 10, ()).received(said)


@pytest.mark.parametrize(
    ("verdict", "slaves", "masters"),
    [
        (
            Verdict.DIFFERS,
            "another log: its bytes from offset 7 on .*ends at 9.*dump.*then empty this store",
            "another log: its bytes from offset 7 up to 9.*store dump.*then empty its store",
        ),
        (
            Verdict.AHEAD,
            "ends at 9, .*at 7: .*make this slave the master, or empty this store",
            "ends at 9, .*at 7: .*make the slave the master, or empty the slave's store",
        ),
        (
            Verdict.TOO_OLD,
            "ends at 9, .*begins at 7.*empty this store",
            "ends at 9, .*begins at 7.*empty the slave's store",
        ),
    ],
)
def test_a_refusal_says_where_and_what_to_do(verdict: Verdict, slaves: str, masters: str) -> None:
    found = Outcome(verdict, 7, ())
    assert "the master at h:1" in slaves_refusal(found, "h:1", 9)
    assert re.search(slaves, slaves_refusal(found, "h:1", 9))
    assert re.search(masters, masters_refusal(found, 9))


def test_damage_that_is_mended_while_it_is_looked_for_is_no_other_log() -> None:
    log, there = bytes_of(1, 100), MasterComparison((OWN,))
    there.received(SlaveComparison(0, 100, ()).begin(), span(100))
    there.received(bytes(DIGEST_SIZE), span(100))
    there.set_digest(hashlib.sha256(log).digest())
    while there.found is None:
        assert there.asked is not None
        begin, size = there.asked
        digest = hashlib.sha256(log[begin : begin + size]).digest()
        there.set_digest(digest)
        there.received(digest, span(100))
    assert there.found[:2] == (Verdict.EQUAL, 100)
