"""A store directory changes hands: written by Apache's broker, opened by ours, and back, after
clean stops and after kills.

Files are so small that every part of the writing crosses several: commit log, queues and indexes.
Some hands let go in the middle of a file, some when the log and a queue end with a file to the last
byte, some when both have just begun the next.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.directories_handed_over import KINDS, Hands
from tests.interop.tools import skipping_without_tools


@pytest.fixture(params=KINDS, ids=str)
def hands(request: pytest.FixtureRequest, tmp_path: Path, summary: list[str]) -> Iterator[Hands]:
    started = time.monotonic()
    made = Hands(request.param, tmp_path)
    with skipping_without_tools(), made.shared:
        yield made
    name = request.node.name.removeprefix("test_").partition("[")[0]
    summary.append(
        f"apache-{request.param!s:14} {time.monotonic() - started:6.2f} s  {name}: {made.ledger}"
    )


def test_a_directory_made_by_ours_goes_to_apache_and_back_and_forth_after_clean_stops(
    hands: Hands,
) -> None:
    hands.ours(signal.SIGTERM)
    indexes = hands.index_files()
    hands.apache(signal.SIGTERM, brim=True)
    assert len(indexes) > 1, "several index files were to be written"
    assert indexes < hands.index_files(), (
        "Apache's broker answered from our index files, and did not make them anew"
    )

    indexes = hands.index_files()
    hands.ours(signal.SIGTERM, rolled=True)
    assert indexes < hands.index_files()
    indexes = hands.index_files()
    hands.apache(signal.SIGKILL)
    assert indexes < hands.index_files()


def test_a_directory_made_by_apache_goes_to_ours_and_back_and_forth_after_kills(
    hands: Hands,
) -> None:
    hands.apache(signal.SIGKILL)
    hands.ours(signal.SIGKILL)
    hands.apache(signal.SIGKILL, brim=True)
    hands.ours(signal.SIGKILL, brim=True)
    hands.apache(signal.SIGKILL, rolled=True)
    hands.ours(signal.SIGKILL, rolled=True)
    hands.apache(signal.SIGKILL)
