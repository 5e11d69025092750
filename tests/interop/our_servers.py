"""Our servers in processes of their own, as a user starts them, for clients that are not ours.

The one rule: it is the program on the command line, not classes of ours in the test's process; so what it is told goes by
arguments and what it says comes by its ready line, its log file and its exit status.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DEADLINE_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class OurServers:
    """Addresses (HOST:PORT) of running servers of ours, and the log file of the broker's process."""

    namesrv: str
    broker: str
    log: Path


@contextmanager
def turbopump_dev(directory: Path) -> Iterator[OurServers]:
    """`turbopump dev` on free ports, with its data in `directory`; ended by SIGTERM, which must exit 0."""
    log = directory / "dev.log"
    arguments = ["dev", "--data", str(directory / "data"), "--log-file", str(log)]
    arguments += ["--namesrv-port", "0", "--broker-port", "0"]
    with turbopump(arguments, r"ready namesrv=(\S+) broker=(\S+)", directory) as (namesrv, broker):
        yield OurServers(namesrv, broker, log)


@contextmanager
def turbopump_broker(directory: Path, conf: Path) -> Iterator[OurServers]:
    """`turbopump namesrv` and `turbopump broker -c CONF` with the configuration (in Apache's keys) of another broker."""
    log = directory / "broker.log"
    with turbopump(["namesrv", "--port", "0"], r"ready namesrv=(\S+)", directory) as (namesrv,):
        arguments = ["broker", "-c", str(conf), "-n", namesrv, "--log-file", str(log)]
        with turbopump(arguments, r"ready broker=(\S+)", directory) as (broker,):
            yield OurServers(namesrv, broker, log)


@contextmanager
def turbopump(arguments: Sequence[str], ready: str, directory: Path) -> Iterator[tuple[str, ...]]:
    """One `turbopump …` process: waits for its ready line, yields the groups of that pattern."""
    directory.mkdir(parents=True, exist_ok=True)
    errors = directory / f"{arguments[0]}.stderr"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "turbopump", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout is not None
    watchdog = threading.Timer(DEADLINE_SECONDS, process.kill)
    watchdog.start()
    try:
        said = ""
        while (match := re.search(f"^{ready}$", said, re.MULTILINE)) is None:
            line = process.stdout.readline()
            assert line, f"{arguments} ended before it was ready: {said}{errors.read_text()}"
            said += line
        watchdog.cancel()
        drain = threading.Thread(target=process.stdout.read, daemon=True)
        drain.start()
        yield match.groups()
        assert process.poll() is None, f"{arguments} ended by itself: {errors.read_text()[-3000:]}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 0, f"{arguments} stopped uncleanly: {errors.read_text()[-3000:]}"
        drain.join()
    finally:
        watchdog.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()
