"""Cold reads of many messages at once, and of units whose repair must wait for the disk."""

from pathlib import Path

import pytest
from tests.unit.store.directory import Directory, put
from tests.unit.store.queues.checked_entries import Bad, Reopened, offsets
from tests.unit.store.segments import forget_all

from turbopump.store.queues.read_result import ReadLimits


def test_a_long_cold_read_is_checked_in_turns_and_given_whole(tmp_path: Path) -> None:
    limits = ReadLimits(count_hot=300, count_cold=300)
    directory = Directory(
        tmp_path, segment_size=1 << 20, queue_file_size=20 * 500, with_crc=True, limits=limits
    )
    store = directory.open()
    for number in range(200):
        put(store, b"%03d" % number)
    store.close()
    store = directory.open()
    result = store.get("T", 0, 0, 300)
    assert (result.count, offsets(result), result.damages) == (200, list(range(200)), ())
    store.close()


def test_a_unit_that_cannot_be_rebuilt_now_is_where_the_read_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reopened = Reopened(tmp_path)
    placed = reopened.placed[5]
    reopened.unit(5, (1).to_bytes(4), 8)
    bad = Bad(monkeypatch, (placed.offset, placed.offset + 1))
    forget_all(monkeypatch)
    first = reopened.get(5)
    assert (first.next_offset, first.count, first.gaps, first.damages) == (5, 0, 0, ())
    assert first.unreadable == (
        "the log cannot be read to rebuild the consume queue (Input/output error): check the disk"
    )
    bad.ranges = ()
    assert offsets(reopened.get(5)) == list(range(5, 20))
    reopened.store.close()
