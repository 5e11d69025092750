"""What a broker keeps in mind of transactions: what is pending, what has ended, and where the next
start goes on."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from turbopump.broker.transactions.endings import SavedOffsets
from turbopump.broker.transactions.half_messages import ended_offsets, read_half
from turbopump.broker.transactions.pending_halves import (
    COPIES_KEPT,
    ENDED_KEPT,
    STEP,
    PendingHalves,
)
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import encode_properties
from turbopump.store.watermark import Watermark


def stored(body: bytes = b"", queue_offset: int = 7, **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic="H",
        stored_body=body,
        properties_text=encode_properties(properties),
        queue_id=0,
        queue_offset=queue_offset,
        commit_log_offset=100,
        flag=0,
        sys_flag=0,
        born_timestamp=0,
        born_host=("10.0.0.9", 1),
        store_timestamp=0,
        store_host=("10.0.0.1", 10911),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body_crc=0,
        store_size=0,
    )


def test_the_place_passes_what_has_ended_in_any_order_and_stops_at_what_has_not() -> None:
    table = PendingHalves(10)
    for offset in (12, 11, 14):
        assert table.mark_ended(offset) == [offset]
    assert table.offset == 10
    table.mark_ended(10)
    assert table.offset == 13
    assert table.has_ended(14)
    assert not table.has_ended(13)


def test_a_long_row_of_ended_ones_is_passed_in_steps() -> None:
    table = PendingHalves()
    for offset in range(1, 3 * STEP):
        table.mark_ended(offset)
    table.mark_ended(0)
    assert table.offset == STEP
    assert [table.advance() for _ in range(3)] == [False, False, True]
    assert table.offset == 3 * STEP


def test_an_end_names_the_newest_copy_too_by_whatever_offset_it_is_known() -> None:
    table = PendingHalves()
    table.note_copy(0, 5)
    table.skip(0)
    table.note_copy(0, 9)
    assert table.mark_ended(5, 0) == [5, 0, 9]
    assert table.has_ended(9)
    assert table.has_ended(0), "a later end by the first offset is known to be one"


def test_the_place_in_the_op_queue_is_the_first_entry_that_names_something_pending() -> None:
    table = PendingHalves(0, 3)
    table.note_ended([0, 5])
    table.note_mark(3, [0, 5])
    table.note_ended([1])
    table.note_mark(4, [1])
    table.advance()
    assert (table.offset, table.op_offset) == (2, 3)
    for offset in (2, 3, 4):
        table.mark_ended(offset)
    assert (table.offset, table.op_offset) == (6, 5)


def test_what_is_kept_in_mind_has_a_bound() -> None:
    table = PendingHalves()
    table.note_ended(range(ENDED_KEPT + 10))
    table.advance()
    while not table.advance():
        pass
    assert not table.has_ended(9)
    assert table.has_ended(10)
    assert COPIES_KEPT >= ENDED_KEPT


def test_what_retention_has_deleted_is_not_waited_for() -> None:
    table = PendingHalves()
    table.mark_ended(2)
    table.begin_at(2)
    table.advance()
    assert table.offset == 3


@pytest.mark.parametrize(
    ("body", "tag", "offsets"),
    [
        (b"1,2,30,", "d", [1, 2, 30]),
        (b"7", "d", [7]),
        (b"1,x,-3,,4,", "d", [1, 4]),
        (b"1,", "other", []),
        (b"\xff", "d", []),
    ],
)
def test_entries_of_the_op_queue_are_read_as_apaches_brokers_write_them(
    body: bytes, tag: str, offsets: list[int]
) -> None:
    assert ended_offsets(stored(body, TAGS=tag)) == offsets


def test_a_half_message_says_whose_it_is_where_it_goes_and_where_it_was_first() -> None:
    half = read_half(
        stored(
            PGROUP="g",
            REAL_TOPIC="T",
            REAL_QID="3",
            TRANSACTION_CHECK_TIMES="2",
            TRAN_PREPARED_QUEUE_OFFSET="4",
        )
    )
    assert half is not None
    assert (half.group, half.topic, half.queue_id, half.checks, half.origin, half.offset) == (
        "g",
        "T",
        3,
        2,
        4,
        7,
    )
    fresh = read_half(
        stored(PGROUP="g", REAL_TOPIC="T", REAL_QID="3", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    )
    assert fresh is not None
    assert (fresh.checks, fresh.origin, fresh.immunity_ms) == (0, 7, 60_000)
    assert read_half(stored(PGROUP="g", REAL_TOPIC="T")) is None
    assert read_half(stored(REAL_TOPIC="T", REAL_QID="3")) is None
    assert read_half(stored(PGROUP="g", REAL_TOPIC="T", REAL_QID="x")) is None


@dataclass
class Log:
    end: int = 0


@dataclass
class Store:
    durable: Watermark = field(default_factory=Watermark)
    log: Log = field(default_factory=Log)


class Offsets:
    def __init__(self) -> None:
        self.kept: dict[str, int] = {}

    def commit(self, group: str, topic: str, _queue_id: int, offset: int) -> None:
        assert group == "CID_RMQ_SYS_TRANS"
        self.kept[topic] = offset


HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"


def test_a_place_is_kept_once_what_it_builds_on_is_on_the_disk() -> None:
    store, offsets, pending = Store(), Offsets(), PendingHalves()
    saved = SavedOffsets(store, offsets, pending)  # type: ignore[arg-type]
    store.log.end = 500
    pending.mark_ended(0)
    saved.save_soon()
    store.log.end = 900
    pending.mark_ended(1)
    saved.save_soon()
    assert offsets.kept == {}
    store.durable.advance(500)
    assert offsets.kept == {HALF: 1}
    store.durable.advance(900)
    assert offsets.kept == {HALF: 2}


def test_no_place_is_kept_after_the_disk_has_failed() -> None:
    store, offsets, pending = Store(), Offsets(), PendingHalves()
    saved = SavedOffsets(store, offsets, pending)  # type: ignore[arg-type]
    store.log.end = 500
    pending.mark_ended(0)
    saved.save_soon()
    store.durable.fail(OSError("gone"))
    pending.mark_ended(1)
    saved.save_soon()
    saved.save_now()
    assert offsets.kept == {}


def test_places_that_have_not_moved_are_not_written() -> None:
    store, offsets, pending = Store(), Offsets(), PendingHalves(4, 2)
    saved = SavedOffsets(store, offsets, pending)  # type: ignore[arg-type]
    saved.save_soon()
    saved.save_now()
    assert offsets.kept == {}
    pending.mark_ended(4)
    saved.save_soon()
    assert offsets.kept == {HALF: 5}
