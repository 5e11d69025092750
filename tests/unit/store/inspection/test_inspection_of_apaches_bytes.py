"""Inspecting what Apache's broker wrote: recorded entries, blanks and tables, laid out as it lays
them out."""

import shutil
import struct
from pathlib import Path

import pytest
from tests.golden.recorded import DATA, FIVE, FOUR, Recorded, of_kind
from tests.unit.store.inspected import changed, flip, verified

from turbopump.message.codec import decode_entries, decode_entry
from turbopump.message.java import tags_code
from turbopump.protocol import fastjson
from turbopump.store.files import StorePaths
from turbopump.store.inspection import inspect_store

UNIT = struct.Struct(">qiq")
BLANK = of_kind("blank")[0].values[0].bytes


def lay_out(root: Path, data: bytes, *, with_queues: bool = True) -> Path:
    """A store whose only segment is ``data`` and a recorded blank, with the queues that belong to
    it; returns the segment."""
    messages = list(decode_entries(data))
    segment = root / "commitlog" / f"{messages[0].commit_log_offset:020}"
    segment.parent.mkdir(parents=True)
    segment.write_bytes(data + BLANK)
    queue = bytearray()
    for message in messages:
        queue += UNIT.pack(
            message.commit_log_offset, message.store_size, tags_code(message.tags or "")
        )
    if with_queues:
        file = (
            root
            / "consumequeue"
            / messages[0].topic
            / str(messages[0].queue_id)
            / f"{messages[0].queue_offset * 20:020}"
        )
        file.parent.mkdir(parents=True)
        file.write_bytes(queue + bytes(200 - len(queue)))
    return segment


def is_queued(recorded: Recorded) -> bool:
    """RocketMQ: a prepared or rolled-back message of a transaction has no unit."""
    return not recorded["sysFlag"] & 4


@pytest.mark.parametrize("recorded", [p for p in of_kind("stored") if "extremes" not in p.id])
def test_a_recorded_entry_with_its_unit_and_a_recorded_blank_is_clean(
    recorded: Recorded, tmp_path: Path
) -> None:
    lay_out(tmp_path, recorded.bytes, with_queues=is_queued(recorded))
    result = verified(tmp_path)
    assert result.findings.counts == {"no_index": 1}
    assert (result.messages, result.units) == (1, int(is_queued(recorded)))
    assert result.log_end == recorded["physicalOffset"] + len(recorded.bytes) + len(BLANK)


def test_the_largest_numbers_an_entry_can_hold_are_read(tmp_path: Path) -> None:
    (recorded,) = [p.values[0] for p in of_kind("stored") if "extremes" in p.id]
    lay_out(tmp_path, recorded.bytes, with_queues=False)
    (missing, _) = verified(tmp_path).findings.kept
    assert (missing.kind, missing.queue_id, missing.index) == ("unit_missing", 2**31 - 1, 2**63 - 1)


@pytest.mark.parametrize("recorded", of_kind("stored-batch"))
def test_the_messages_of_a_recorded_batch_are_checked_one_by_one(
    recorded: Recorded, tmp_path: Path
) -> None:
    segment = lay_out(tmp_path, recorded.bytes)
    count = len(recorded["messages"])
    assert verified(tmp_path).units == count > 1
    (queue,) = inspect_store(StorePaths(tmp_path), read_table=fastjson.parse).queues
    assert (queue.min_index, queue.max_index) == (
        recorded["queueOffset"],
        recorded["queueOffset"] + count,
    )
    first = decode_entry(recorded.bytes)
    with changed(segment, flip(first.store_size + 90)):
        assert verified(tmp_path).messages == count - 1


@pytest.mark.parametrize("apache", [FIVE, FOUR])
def test_recorded_tables_are_counted(apache: str, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "config").mkdir()
    for path in (DATA / apache).glob("*.json.bin"):
        shutil.copy(path, tmp_path / "config" / path.name.removesuffix(".bin"))
    summary = inspect_store(StorePaths(tmp_path), read_table=fastjson.parse)
    assert summary.findings.kept == []
    counted = {table.path.name: table.entries for table in summary.tables}
    assert {"topics.json", "consumerOffset.json", "subscriptionGroup.json"} <= set(counted)
    assert all(counted.values())
