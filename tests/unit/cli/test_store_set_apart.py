"""`turbopump store set-apart`: what it prints, and its exit codes."""

import json
import os
from pathlib import Path

import pytest
from tests.unit.store.bad_sectors import EIO, bad_sectors, filled, segment
from tests.unit.store.directory import Directory, put

from turbopump.cli import main


def test_what_is_lost_is_told_and_the_command_ends_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = filled(tmp_path / "store", stopped=False)
    root, path = directory.paths.root, segment(directory, 0)
    with bad_sectors((path, 2)):
        assert main(["store", "set-apart", "--dry-run", str(root)]) == 1
        dry = capsys.readouterr().out.splitlines()
        assert main(["store", "set-apart", str(root)]) == 1
        told = capsys.readouterr().out.splitlines()
        assert main(["store", "set-apart", str(root)]) == 0
        again = capsys.readouterr().out.splitlines()
    lost = [line for line in told if line.startswith("lost ")]
    assert told[0] == f"unreadable {path} offset 8192–12288: {EIO}"
    assert lost == ["lost T/0  4–7", "lost T/1  4–6"]
    original = root / "commitlog.unreadable" / path.name
    assert told[-2] == f"kept {original}: {path} is a copy now, with zeros where it cannot be read"
    assert told[-1] == "unreadable 4.0 KiB of 192.0 KiB; messages lost 5; segments replaced 1"
    assert dry == [
        *told[:-2],
        "unreadable 4.0 KiB of 192.0 KiB; messages lost 5; nothing was changed",
    ]
    assert again == ["all of the log can be read (192.0 KiB); nothing was changed"]


def test_the_same_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = filled(tmp_path / "store", stopped=False)
    root, path = directory.paths.root, segment(directory, 0)
    with bad_sectors((path, 2)):
        assert main(["store", "set-apart", "--output", "json", str(root)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["unreadable"] == [{"file": str(path), "offset": 8192, "end": 12288, "cause": EIO}]
    assert report["lost"] == [
        {"topic": "T", "queue": 0, "queue_offset": 4, "end": 7},
        {"topic": "T", "queue": 1, "queue_offset": 4, "end": 6},
    ]
    assert report["kept"] == [
        {"file": str(path), "original": str(root / "commitlog.unreadable" / path.name)}
    ]
    assert report["at_the_end"] is False


def test_at_the_end_of_the_log_it_is_told_that_offsets_are_given_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = filled(tmp_path / "store", stopped=True)
    store = directory.open()
    end = store.log.end
    store.close()
    last = segment(directory, 2)
    with bad_sectors((last, (end - int(last.name)) // 4096)):
        assert main(["store", "set-apart", "--dry-run", str(directory.paths.root)]) == 1
    told = capsys.readouterr().out
    assert "notice no message can be read behind offset" in told
    assert "reuses the offsets of messages behind it" in told


def test_a_queue_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = filled(tmp_path / "store", stopped=True)
    queue = min((directory.paths.consume_queues / "T" / "1").iterdir())
    with bad_sectors((segment(directory, 0), 2), (queue, 0)):
        assert main(["store", "set-apart", "--dry-run", str(directory.paths.root)]) == 1
    assert (
        f"notice {queue} cannot be read whole: more messages may be lost"
        in capsys.readouterr().out.splitlines()
    )


def test_beside_a_broker_and_where_there_is_no_store_it_ends_with_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = Directory(tmp_path / "store")
    store = directory.open()
    put(store, b"new")
    assert main(["store", "set-apart", str(directory.paths.root)]) == 2
    assert "in use by another broker" in capsys.readouterr().err
    store.close()
    (tmp_path / "empty").mkdir()
    assert main(["store", "set-apart", str(tmp_path / "empty")]) == 2
    assert "has no segments" in capsys.readouterr().err
    assert not list((tmp_path / "empty").iterdir())


def test_a_cut_segment_is_no_log_that_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = filled(tmp_path / "store", stopped=True)
    path = segment(directory, 1)
    os.truncate(path, 32768)
    assert main(["store", "set-apart", "--dry-run", str(directory.paths.root)]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith(
        f"missing {path} has 32768 bytes, and the next segment begins 65536 bytes behind its "
        "beginning: brokers refuse to start"
    )
    assert told[1] == "the rest of the log can be read (160.0 KiB); nothing was changed"
