"""Bytes of a record, and how changes share records."""

import asyncio
from pathlib import Path

import pytest
from tests.loops import in_loop

from turbopump.broker.offsets import ConsumerOffsets, OffsetChange
from turbopump.broker.table_records.record import (
    GROUPS,
    OFFSETS,
    RECORD_SIZE_MAX,
    TOPICS,
    change_of,
    decode_record,
    encode_record,
)
from turbopump.broker.table_records.writer import OFFSETS_EVERY_S, RecordWriter
from turbopump.clock import SystemClock
from turbopump.disk.json_table import JsonTable
from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import ProtocolError, RoomInMakingError, StoreClosedError
from turbopump.protocol import fastjson


class Log:
    """A log that takes records, or refuses them with an error."""

    def __init__(self) -> None:
        file = JsonTable(SystemDisk(), Path("unused"), list[str]().append)
        self.offsets = ConsumerOffsets(file, SystemClock())
        self.records: list[bytes] = []
        self.error: Exception | None = None
        self.writer = RecordWriter(self.append, self.offsets, lambda: None)
        self.offsets.on_change = self.writer.note_offsets

    def append(self, body: bytes) -> int:
        if self.error is not None:
            raise self.error
        self.records.append(body)
        return len(self.records)

    def keys(self) -> list[list[str]]:
        """The keys in each record."""
        return [[change.key for change in decode_record(body)] for body in self.records]


def test_a_record_is_a_line_of_json() -> None:
    change = OffsetChange(offsets={0: 7, 11: 8}, resets=[0])
    body, count = encode_record([change_of(TOPICS, "T", None), change_of(OFFSETS, "T@g", change)])
    assert count == 2
    assert body == (
        b'[["topics","T",null],["offsets","T@g",{"offsets":{"0":7,"11":8},"resets":[0]}]]'
    )
    assert fastjson.decode(decode_record(body)[1].value, OffsetChange) == change


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'[["topics","T"]]', b"\xff"])
def test_other_bytes_are_no_record(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_record(body)


def test_many_changes_take_several_records_and_a_large_one_has_its_own() -> None:
    small = change_of(GROUPS, "g", "x" * 1000)
    large = change_of(GROUPS, "large", "x" * (RECORD_SIZE_MAX + 1))
    changes = [small] * 100
    assert 50 < encode_record(changes).changes < 66
    assert len(encode_record(changes).body) <= RECORD_SIZE_MAX
    assert encode_record([large, small]).changes == 1
    assert encode_record([small, large]).changes == 1


@in_loop
async def test_changes_of_one_turn_share_a_record() -> None:
    log = Log()
    for name in "abc":
        log.writer.note(TOPICS, name, None)
    assert log.keys() == []
    await asyncio.sleep(0)
    assert log.keys() == [["a", "b", "c"]]
    log.writer.note(TOPICS, "d", None, at_once=True)
    assert log.keys() == [["a", "b", "c"], ["d"]]


@in_loop
async def test_offsets_share_a_record_for_a_while() -> None:
    log = Log()
    for offset in (1, 2):
        for queue_id in (0, 1):
            log.offsets.commit("g", "T", queue_id, offset)
    await log.writer.written()
    for offset in (3, 4):
        log.offsets.commit("g", "T", 0, offset)
    log.offsets.commit("g", "T", 0, 4)
    began = asyncio.get_running_loop().time()
    await log.writer.written()
    assert asyncio.get_running_loop().time() - began > OFFSETS_EVERY_S / 2
    changes = [decode_record(body) for body in log.records]
    assert [fastjson.decode(one[0].value, OffsetChange).offsets for one in changes] == [
        {0: 2, 1: 2},
        {0: 4},
    ]


@in_loop
async def test_a_group_that_was_forgotten_and_commits_again_has_only_the_new_offset() -> None:
    log = Log()
    log.offsets.commit("g", "T", 0, 5)
    log.offsets.commit("g", "T", 1, 5)
    log.writer.write()
    log.offsets.forget_topic("T")
    log.offsets.commit("g", "T", 1, 6)
    log.writer.write()
    change = fastjson.decode(decode_record(log.records[1])[0].value, OffsetChange)
    assert change == OffsetChange(offsets={1: 6}, is_whole=True)
    other = Log().offsets
    for body in log.records:
        for one in decode_record(body):
            other.apply_change(one.key, fastjson.decode(one.value, OffsetChange))
    assert dict(other.of_group("g", "T")) == {1: 6}


@pytest.mark.parametrize("error", [RoomInMakingError("room"), StoreClosedError("full")])
@in_loop
async def test_changes_wait_in_order_while_the_log_takes_none(error: Exception) -> None:
    log = Log()
    log.error = error
    log.writer.note(TOPICS, "a", None, at_once=True)
    in_log = log.writer.note(TOPICS, "b", None, at_once=True)
    assert in_log is not isinstance(error, RoomInMakingError)
    waiting = asyncio.ensure_future(log.writer.written())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    log.error = None
    log.writer.note(TOPICS, "c", None)
    log.writer.write()
    await waiting
    assert log.keys() == [["a", "b", "c"]]
