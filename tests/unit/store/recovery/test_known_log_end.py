"""A log that has lost its end: segments that are missing refuse the start, an end that is torn is
told, and what never was on the disk is no reason to refuse anything."""

import os
import re
from pathlib import Path

import pytest
from tests.unit.store.directory import SEGMENT, Directory, bodies, put

from turbopump.errors import StoreDamagedError
from turbopump.store.message_store import MessageStore

BODIES = [b"%03d " % number + b"x" * 900 for number in range(18)]
"""Four to a segment: four full ones, and two messages in the fifth."""


def filled(directory: Directory, *, flushed: bool = True) -> MessageStore:
    store = directory.open()
    for body in BODIES:
        put(store, body)
    if flushed:
        store.flusher.flush_log()
        store.flusher.flush_queues()
    return store


def stopped(top: Path, how: str) -> Directory:
    """A directory as a clean stop or a kill left it."""
    directory = Directory(top / "store", with_crc=True)
    store = filled(directory)
    if how == "clean stop":
        store.close()
        return directory
    twin = directory.copy(top / "killed")
    store.close()
    return twin


def segments(directory: Directory) -> list[Path]:
    return sorted(directory.paths.commit_log.iterdir())


def everything(directory: Directory) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in sorted(directory.paths.root.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("how", ["clean stop", "kill"])
def test_a_start_is_refused_and_changes_nothing_if_the_last_segments_are_missing(
    tmp_path: Path, how: str, number: int
) -> None:
    directory = stopped(tmp_path, how)
    missing = segments(directory)[-number:]
    for path in missing:
        path.rename(tmp_path / path.name)
    before = everything(directory)
    with pytest.raises(
        StoreDamagedError,
        match=rf"{missing[0].name}.* of the log.*cannot be "
        r"found.*restore",
    ):
        directory.open()
    assert everything(directory) == before
    for path in missing:
        (tmp_path / path.name).rename(path)
    store = directory.open()
    assert bodies(store) == BODIES, "once they are back, all is well"
    assert directory.failures == []
    store.close()


@pytest.mark.parametrize("how", ["clean stop", "kill"])
def test_who_makes_files_of_zeros_as_the_refusal_says_goes_on_without_the_missing_segments(
    tmp_path: Path, how: str
) -> None:
    directory = stopped(tmp_path, how)
    for path in segments(directory)[-2:]:
        path.unlink()
    with pytest.raises(StoreDamagedError) as refusal:
        directory.open()
    command = re.search(r"truncate -s (\d+) (\S+)", str(refusal.value))
    assert command is not None
    first = Path(command[2])
    for path in (first, first.with_name(f"{int(first.name) + SEGMENT:020d}")):
        path.touch()
        os.truncate(path, int(command[1]))
    store = directory.open()
    assert bodies(store) == BODIES[:12]
    assert "the end of the log is lost" in directory.failures[0]
    assert put(store, b"next").queue_offset == 12
    store.close()
    directory.failures.clear()
    store = directory.open()
    assert bodies(store) == [*BODIES[:12], b"next"]
    assert directory.failures == [], "it is told once"
    store.close()


@pytest.mark.parametrize(
    "lost", ["the last message", "the last segment", "two segments", "the file is short"]
)
@pytest.mark.parametrize("how", ["clean stop", "kill"])
def test_an_end_of_the_log_that_was_on_the_disk_and_is_torn_is_told(
    tmp_path: Path, how: str, lost: str
) -> None:
    directory = stopped(tmp_path, how)
    paths = segments(directory)
    if lost == "the last message":
        data = bytearray(paths[-1].read_bytes())
        data[1500:] = bytes(len(data) - 1500)
        paths[-1].write_bytes(data)
    elif lost == "the file is short":
        os.truncate(paths[-1], 1500)
    else:
        for path in paths[-1:] if lost == "the last segment" else paths[-2:]:
            path.write_bytes(bytes(SEGMENT))
    there = {"the last segment": 16, "two segments": 12}.get(lost, 17)
    store = directory.open()
    assert bodies(store) == BODIES[:there]
    assert len(directory.failures) == 1
    assert "the end of the log is lost: it was on the disk up to" in directory.failures[0]
    assert str(directory.paths.commit_log) in directory.failures[0]
    assert put(store, b"next").queue_offset == there
    twin = directory.copy(tmp_path / "killed again")
    store.close()
    twin.failures.clear()
    store = twin.open()
    assert bodies(store) == [*BODIES[:there], b"next"]
    assert twin.failures == [], "it is told once"
    store.close()


def test_an_end_that_was_never_synced_is_told_as_such_and_refuses_nothing(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "store", with_crc=True)
    store = filled(directory, flushed=False)
    twin = directory.copy(tmp_path / "killed")
    store.close()
    for path in segments(twin)[-3:]:
        path.unlink()
    found = twin.open()
    assert bodies(found) == BODIES[:8]
    assert len(twin.failures) == 1
    assert "not on the disk when the power failed" in twin.failures[0]
    found.close()


@pytest.mark.parametrize("how", ["clean stop", "kill"])
def test_nothing_is_said_of_the_end_of_a_log_that_is_as_it_was(tmp_path: Path, how: str) -> None:
    directory = stopped(tmp_path, how)
    store = directory.open()
    assert bodies(store) == BODIES
    assert directory.failures == []
    store.close()


def test_what_we_knew_of_the_end_counts_for_nothing_once_apaches_broker_has_had_the_store(
    tmp_path: Path,
) -> None:
    directory = stopped(tmp_path, "clean stop")
    segments(directory)[-1].unlink()
    directory.paths.lock.write_bytes(b"lock")
    store = directory.open()
    assert bodies(store) == BODIES[:16]
    store.close()
