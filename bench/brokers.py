"""The two brokers under comparison, each started as its users start it, on the same cores and the
same disk.

The one rule: what one is given, the other is given: production defaults (CommitLog segments of 1
GiB), ASYNC_FLUSH unless the case says otherwise, a directory on the same file system. Apache's runs
with its own script's JVM options, except that the heap is 2 GiB and is not touched in advance
(which favours it in memory and start time). Must not know about cases or figures.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.interop.apache import NEWEST, ApacheCluster, end, properties_text
from tests.ports import free_ports

from bench.cases import BROKER_NAME
from bench.cores import Cores, running_on
from bench.remote import wait_for_first_send

APACHE, OURS = "apache", "turbopump"
SEGMENT_SIZE = 1024 * 1024 * 1024
START_TIMEOUT = 120.0
SOURCES = Path(__file__).resolve().parents[1] / "src"

# distribution/bin/runbroker.sh of 5.3.3, without -XX:+AlwaysPreTouch and the log of the collector.
APACHE_JVM = (
    *("-server", "-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m", "-XX:G1ReservePercent=25"),
    *(
        "-XX:InitiatingHeapOccupancyPercent=30",
        "-XX:SoftRefLRUPolicyMSPerMB=0",
        "-XX:-OmitStackTraceInFastThrow",
    ),
    *("-XX:MaxDirectMemorySize=15g", "-XX:-UseLargePages", "-XX:+IgnoreUnrecognizedVMOptions"),
)
HEAP = "2g"

Settings = Mapping[str, str | int | bool]
Complaint = Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker that takes messages on loopback; `complaint` says why it has ended, None while it
    runs."""

    name: str
    port: int
    pid: int
    namesrv: str
    complaint: Complaint = lambda: None


@contextmanager
def running_broker(
    name: str,
    directory: Path,
    cores: Cores,
    *,
    sync_flush: bool = False,
    settings: Settings | None = None,
    sources: Path = SOURCES,
) -> Iterator[RunningBroker]:
    """Name server and broker of one kind, ended on leaving. The broker has acknowledged a send.
    ``settings``: more of broker.conf. ``sources``: where our broker's modules are, those of this
    checkout or of another."""
    start = start_apache if name == APACHE else partial(start_ours, sources=sources)
    with ExitStack() as stack:
        with running_on(cores.broker):
            flush = "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH"
            broker = start(stack, directory, {"flushDiskType": flush, **(settings or {})})
        wait_for_first_send(
            broker.port, "bench-first", time.monotonic() + START_TIMEOUT, broker.complaint
        )
        yield broker


def start_apache(stack: ExitStack, directory: Path, more: Settings) -> RunningBroker:
    settings: dict[str, str | int | bool] = {"mappedFileSizeCommitLog": SEGMENT_SIZE, **more}
    cluster = ApacheCluster(
        NEWEST, directory=directory, heap=HEAP, broker_config=settings, jvm_options=APACHE_JVM
    )
    assert cluster.broker_name == BROKER_NAME
    stack.enter_context(cluster)
    return RunningBroker(APACHE, cluster.broker_port, cluster.broker_pid, cluster.namesrv)


def start_ours(
    stack: ExitStack,
    directory: Path,
    more: Settings,
    sources: Path = SOURCES,
    prefix: Sequence[str] = (),
) -> RunningBroker:
    directory.mkdir(parents=True, exist_ok=True)
    namesrv_port, broker_port = free_ports(0), free_ports(-2, 0, 1)
    namesrv_settings: dict[str, str | int | bool] = {
        "listenPort": namesrv_port,
        "kvConfigPath": str(directory / "kv.json"),
    }
    settings: dict[str, str | int | bool] = {
        "brokerName": BROKER_NAME,
        "listenPort": broker_port,
        "storePathRootDir": str(directory / "store"),
        "storePathCommitLog": str(directory / "store" / "commitlog"),
        "mappedFileSizeCommitLog": SEGMENT_SIZE,
        **certificate(directory),
        **more,
    }
    (directory / "namesrv.conf").write_text(properties_text(namesrv_settings))
    (directory / "broker.conf").write_text(properties_text(settings))
    spawn(stack, directory, "namesrv", "-c", str(directory / "namesrv.conf"), sources=sources)
    broker = spawn(
        stack,
        directory,
        "broker",
        "-c",
        str(directory / "broker.conf"),
        "-n",
        f"127.0.0.1:{namesrv_port}",
        sources=sources,
        prefix=prefix,
    )
    return RunningBroker(
        OURS,
        broker_port,
        broker.pid,
        f"127.0.0.1:{namesrv_port}",
        complaint_of(broker, directory / "broker.out"),
    )


def certificate(directory: Path) -> Settings:
    """Settings of a certificate for our broker, made at its first start in a directory; Apache's
    has a built-in one."""
    made = directory / "certificate"
    if not made.exists():
        command = [sys.executable, "-m", "turbopump", "tls", "self-signed", str(made)]
        subprocess.run(command, check=True, capture_output=True)
    pairs = {"certPath": "tls-certificate.pem", "keyPath": "tls-key.pem"}
    return {f"tls.server.{key}": str(made / name) for key, name in pairs.items()}


def spawn(
    stack: ExitStack,
    directory: Path,
    *arguments: str,
    sources: Path = SOURCES,
    prefix: Sequence[str] = (),
) -> "subprocess.Popen[bytes]":
    """One `turbopump` command of a checkout in the background, its output in a file named after
    it; SIGTERM when the stack is left. ``prefix`` goes before it, such as a shell that sets a limit
    and replaces itself."""
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    with (directory / f"{arguments[0]}.out").open("ab") as out:
        command = [*prefix, sys.executable, "-m", "turbopump", *arguments]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=directory,
            env=environment,
        )
    stack.callback(end, process, signal.SIGTERM)
    return process


def complaint_of(process: "subprocess.Popen[bytes]", output: Path) -> Complaint:
    """Asks whether the process still runs; the tail of its output if not."""

    def complaint() -> str | None:
        status = process.poll()
        return (
            None
            if status is None
            else (f"ended with {status}: {output.read_text(errors='replace')[-2000:]}")
        )

    return complaint


def seconds_to_first_send(name: str, directory: Path, cores: Cores) -> float:
    """Seconds from starting the first process until a send is acknowledged: `turbopump dev`, or
    Apache's name server and broker started together. Both are asked every 5 ms by the same client.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        with running_on(cores.broker):
            start = time.monotonic()
            port, complaint = (
                launch_apache(stack, directory) if name == APACHE else launch_dev(stack, directory)
            )
        wait_for_first_send(port, "bench-first", start + START_TIMEOUT, complaint)
        return time.monotonic() - start


def launch_dev(stack: ExitStack, directory: Path) -> tuple[int, Complaint]:
    port = free_ports(-2, 0, 1)
    process = spawn(
        stack,
        directory,
        "dev",
        "--data",
        str(directory / "data"),
        "--namesrv-port",
        "0",
        "--broker-port",
        str(port),
    )
    return port, complaint_of(process, directory / "dev.out")


def launch_apache(
    stack: ExitStack, directory: Path, settings: Mapping[str, str | int | bool] | None = None
) -> tuple[int, Complaint]:
    """Apache's two processes, without waiting until they are ready."""
    broker = launched_apache(stack, directory, settings)
    return broker.port, broker.complaint


def launched_apache(
    stack: ExitStack, directory: Path, settings: Settings | None = None
) -> RunningBroker:
    """The same, and which process the broker is."""
    cluster = ApacheCluster(
        NEWEST, directory=directory, heap=HEAP, jvm_options=APACHE_JVM, broker_config=settings
    )
    cluster.wait_ready = lambda: None  # type: ignore[method-assign]
    stack.enter_context(cluster)
    return RunningBroker(APACHE, cluster.broker_port, cluster.broker_pid, cluster.namesrv)
