"""The demo as a user runs it, on few flights; and interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 900
"""Maximum seconds of the demo, which takes a minute on an idle machine."""


@contextmanager
def demo(tmp_path: Path, flights: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The running demo, and a mark that it and all its offspring carry in their environment."""
    mark = uuid.uuid4().hex
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "TMPDIR": str(tmp_path),
        "DEMO_TEST_MARK": mark,
    }
    command = [
        sys.executable,
        "-u",
        str(ROOT / "examples" / "flights_demo.py"),
        "--flights",
        str(flights),
        "--out",
        str(tmp_path),
    ]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process, mark
    finally:
        for pid in marked(mark):  # or its servers would keep the pipe open, and this would wait
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def marked(mark: str) -> dict[int, str]:
    """Command lines of the processes that still carry the mark, by process."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (directory / "environ").read_bytes():
                line = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(directory.name)] = line
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for leftovers in /proc")
def test_what_went_in_comes_out_and_nothing_is_left_running(tmp_path: Path) -> None:
    with demo(tmp_path, 3000) as (process, mark):
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
        assert marked(mark) == {}
    last = {line[:28].strip(): line[28:40].strip() for line in said.splitlines()[-10:] if line}
    assert last.pop("seconds")
    assert last == {
        "messages sent": "3,000",
        "kills of the broker": "1",
        "rows in the lake": "3,000",
        "rows by DuckDB": "3,000",
        "distinct keys": "1,435",
        "distinct (queue, offset)": "3,000",
        "average delays": "equal",
        "all agree": "yes",
    }
    assert (tmp_path / "flights.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob("turbopump-*"))


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for leftovers in /proc")
def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    with demo(tmp_path, 3000) as (process, mark):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Starting Spark"):
                break
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode not in (0, None)
        assert "interrupted" in said
        assert marked(mark) == {}
    assert not list(tmp_path.glob("turbopump-*"))
