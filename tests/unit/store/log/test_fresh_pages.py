"""Pages are asked for ahead of the log's end; where every send waits for a sync, so that a sync
writes little."""

import sys
from pathlib import Path

import pytest

from turbopump.disk.mapped_segments import MappedSegment
from turbopump.disk.system_disk import SystemDisk
from turbopump.store.log.commit_log import POPULATE_STEP, SMALL_STEP, CommitLog

SEGMENT = 64 << 20
PAGE = 4096


def dirtied() -> int:
    """Bytes of pages that this process has made dirty so far, as the kernel counts them: in whole
    pieces of its cache."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux what it wrote")
def test_a_byte_written_into_small_pages_makes_one_page_dirty(tmp_path: Path) -> None:
    segment = SystemDisk().create_segment(tmp_path / "log", SEGMENT)
    for at in range(0, SEGMENT // 2, SMALL_STEP):
        segment.populate(at, SMALL_STEP, small=True)
    segment.sync()
    before = dirtied()
    for at in range(0, SEGMENT // 2, 1 << 20):
        segment.buffer[at] = 1
        segment.sync()
    assert dirtied() - before <= SEGMENT // 2 // (1 << 20) * PAGE
    segment.close()


@pytest.mark.parametrize(("synced_often", "step"), [(False, POPULATE_STEP), (True, SMALL_STEP)])
def test_pages_come_in_small_numbers_where_every_send_waits_for_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced_often: bool, step: int
) -> None:
    asked: list[tuple[int, int, bool]] = []

    def populate(_: MappedSegment, at: int, size: int, *, small: bool = False) -> None:
        asked.append((at, size, small))

    monkeypatch.setattr(MappedSegment, "populate", populate)
    log = CommitLog(SystemDisk(), [tmp_path], SEGMENT, synced_often=synced_often)
    log.open_at(0)
    while log.end < 3 * POPULATE_STEP:
        log.reserve(PAGE)
        log.written(PAGE)
    log.close()
    assert asked == [(at, step, synced_often) for at in range(0, asked[-1][0] + 1, step)], (
        "without gaps, each page once"
    )
    assert asked[-1][0] + step > 3 * POPULATE_STEP, "ahead of the end"
