"""A store whose log lies in two directories changes hands between Apache's broker and ours: both
find every segment, and put the next one where the other would have."""

import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.interop.directories_handed_over import KINDS, Hands, Kind
from tests.interop.store_ledger import SEGMENT
from tests.interop.tools import skipping_without_tools

from turbopump.store.files import segment_offset

TERM, KILL = signal.SIGTERM, signal.SIGKILL


class SpreadHands(Hands):
    """Both brokers are told of the directories ``roots``."""

    def __init__(self, kind: Kind, directory: Path) -> None:
        self.roots = [directory / "first log", directory / "second log"]
        super().__init__(kind, directory, storePathCommitLog=",".join(map(str, self.roots)))

    def segments(self) -> list[list[int]]:
        """The numbers of the segments in each root."""
        found = []
        for root in self.roots:
            offsets = [segment_offset(path.name) for path in root.iterdir()]
            assert None not in offsets, "nothing else lies there"
            found.append(sorted(offset // SEGMENT for offset in offsets if offset is not None))
        return found


@pytest.fixture(params=[kind for kind in KINDS if not kind.with_crc], ids=str)
def hands(
    request: pytest.FixtureRequest, tmp_path: Path, summary: list[str]
) -> Iterator[SpreadHands]:
    started = time.monotonic()
    made = SpreadHands(request.param, tmp_path)
    with skipping_without_tools(), made.shared:
        yield made
    summary.append(
        f"apache-{request.param!s:14} {time.monotonic() - started:6.2f} s  two log "
        f"directories: {made.ledger}"
    )


def test_a_log_in_two_directories_is_read_and_continued_by_both(hands: SpreadHands) -> None:
    for take_turn in (
        partial(hands.apache, TERM),
        partial(hands.ours, TERM, rolled=True),
        partial(hands.apache, KILL, rolled=True),
        partial(hands.ours, KILL),
        partial(hands.apache, TERM),
        partial(hands.ours, TERM),
    ):
        take_turn()
        first, second = hands.segments()
        assert all(number % 2 == 0 for number in first)
        assert all(number % 2 == 1 for number in second)
    assert len(first) > 1
    assert len(second) > 1
