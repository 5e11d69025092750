"""Another mappedFileSizeCommitLog than the one the store was written with."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.store.directory import SEGMENT, Directory, bodies, put

from turbopump.errors import StoreDamagedError

BODIES = [b"%03d " % number + b"x" * 900 for number in range(10)]
"""Four to a segment: the third has two."""
HIGHER = 4 * SEGMENT


def written(root: Path, numbers: int = 10, *, kept: int = 0) -> Directory:
    """A store that retention has left with its segments from number `kept` on."""
    directory = Directory(root)
    store = directory.open()
    for body in BODIES[:numbers]:
        put(store, body)
    store.close()
    for path in sorted(directory.paths.commit_log.iterdir())[:kept]:
        path.unlink()
    return directory


def test_a_higher_size_is_refused_untouched_where_the_log_could_not_go_on_with_it(
    tmp_path: Path,
) -> None:
    directory = written(tmp_path / "store", kept=2)
    log = directory.paths.commit_log
    before = {path: path.read_bytes() for path in log.iterdir()}
    directory.config = replace(directory.config, segment_size=HIGHER)
    with pytest.raises(
        StoreDamagedError,
        match=f"has {SEGMENT} bytes and begins at {2 * SEGMENT}, .*set it to the size that the log",
    ):
        directory.open()
    assert {path: path.read_bytes() for path in log.iterdir()} == before
    assert not directory.paths.abort.exists()
    directory.config = replace(directory.config, segment_size=SEGMENT)
    store = directory.open()
    assert bodies(store) == BODIES[8:]
    store.close()


@pytest.mark.parametrize(("numbers", "kept"), [(3, 0), (18, 4)])
def test_a_higher_size_is_taken_where_the_one_file_begins_where_such_a_file_would(
    tmp_path: Path, numbers: int, kept: int
) -> None:
    sent = [b"%03d " % number + b"x" * 900 for number in range(60)]
    directory = Directory(tmp_path / "store")
    store = directory.open()
    for body in sent[:numbers]:
        put(store, body)
    store.close()
    for path in sorted(directory.paths.commit_log.iterdir())[:kept]:
        path.unlink()
    directory.config = replace(directory.config, segment_size=HIGHER)
    for end in (numbers + 20, 60):
        store = directory.open()
        for body in sent[len(bodies(store)) + 4 * kept : end]:
            put(store, body)
        assert bodies(store) == sent[4 * kept : end]
        store.close()
    assert directory.failures == []


@pytest.mark.parametrize("how", ["clean stop", "kill"])
def test_a_log_that_an_earlier_release_made_longer_where_it_should_not_goes_on(
    tmp_path: Path, how: str
) -> None:
    directory = written(tmp_path / "store", kept=2)
    os.truncate(directory.paths.commit_log / f"{2 * SEGMENT:020d}", HIGHER)
    directory.config = replace(directory.config, segment_size=HIGHER)
    expected = BODIES[8:]
    for number in range(3):
        store = directory.open()
        assert bodies(store) == expected
        for each in range(20):
            expected.append(b"%d %d " % (number, each) + b"y" * 900)
            put(store, expected[-1])
        assert bodies(store) == expected
        twin = directory.copy(tmp_path / f"killed {number}")
        store.close()
        if how == "kill":
            directory = twin
    starts = sorted(int(path.name) for path in directory.paths.commit_log.iterdir())
    assert starts == [2 * SEGMENT + number * HIGHER for number in range(len(starts))]
    assert len(starts) > 2
    assert directory.failures == []
