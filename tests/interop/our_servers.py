"""Our servers in processes of their own, as a user starts them, for clients that are not ours.

The one rule: it is the program on the command line, not classes of ours in the test's process; so
what it is told goes by arguments and what it says comes by its ready line, its log file and its
exit status.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.interop.apache import properties_text
from tests.ports import free_ports

DEADLINE_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class OurServers:
    """Addresses (HOST:PORT) of running servers of ours, and the directory of their log files."""

    namesrv: str
    broker: str
    logs: Path

    def log(self) -> str:
        """What they logged, warnings and worse."""
        return "".join(path.read_text() for path in sorted(self.logs.glob("*.log")))


# As `turbopump dev` (small files, free bytes and not the host's percentage), but no send is refused
# because it waited: on a busy machine most foreign clients would give up what they are refused, and
# a one-way message would be gone.
PATIENT_BROKER: dict[str, str | int | bool] = {
    "brokerName": "broker-a",
    "bindAddress": "127.0.0.1",
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 30_000 * 20,
    "maxHashSlotNum": 100_000,
    "maxIndexNum": 400_000,
    "diskFreeSpaceMin": 64 << 20,
    "brokerFastFailureEnable": False,
    "osPageCacheBusyTimeOutMills": 60_000,
}


@contextmanager
def patient_turbopump(
    directory: Path,
    settings: Mapping[str, str | int | bool] | None = None,
    broker_only: Mapping[str, str | int | bool] | None = None,
) -> Iterator[OurServers]:
    """`turbopump namesrv` and `turbopump broker` on free ports, with their data in `directory`.
    `settings` are further lines of both files, `broker_only` of the broker's."""
    directory.mkdir(parents=True, exist_ok=True)
    conf = directory / "broker.conf"
    port = free_ports(-2, 0)  # VIP, listen
    conf.write_text(
        properties_text(
            {
                **PATIENT_BROKER,
                "listenPort": port,
                "storePathRootDir": str(directory / "store"),
                **(settings or {}),
                **(broker_only or {}),
            }
        )
    )
    with turbopump_broker(directory, conf, namesrv=settings) as servers:
        yield servers


@contextmanager
def turbopump_broker(
    directory: Path,
    conf: Path,
    end: signal.Signals = signal.SIGTERM,
    namesrv: Mapping[str, str | int | bool] | None = None,
) -> Iterator[OurServers]:
    """`turbopump namesrv` and `turbopump broker -c CONF` with the configuration (in Apache's keys)
    of another broker, which is ended by `end`. `namesrv`: settings of the name server.
    """
    directory.mkdir(parents=True, exist_ok=True)
    namesrv_conf = directory / "namesrv.conf"
    namesrv_conf.write_text(
        properties_text({"kvConfigPath": str(directory / "kvConfig.json"), **(namesrv or {})})
    )
    logs = ["--log-file", str(directory / "namesrv.log")]
    with turbopump(
        ["namesrv", "-c", str(namesrv_conf), "--port", "0", *logs],
        r"ready namesrv=(\S+)",
        directory,
    ) as (address,):
        arguments = [
            "broker",
            "-c",
            str(conf),
            "-n",
            address,
            "--log-file",
            str(directory / "broker.log"),
        ]
        with turbopump(arguments, r"ready broker=(\S+)", directory, end) as (broker,):
            yield OurServers(address, broker, directory)


@contextmanager
def turbopump(
    arguments: Sequence[str], ready: str, directory: Path, end: signal.Signals = signal.SIGTERM
) -> Iterator[tuple[str, ...]]:
    """One `turbopump …` process: waits for its ready line, yields the groups of that pattern. A
    SIGTERM must exit with 0."""
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
        process.send_signal(end)
        wanted = 0 if end is signal.SIGTERM else -end
        assert process.wait(DEADLINE_SECONDS) == wanted, (
            f"{arguments} stopped uncleanly: {errors.read_text()[-3000:]}"
        )
        drain.join()
    finally:
        watchdog.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()
