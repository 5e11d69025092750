"""The foreign clients: how each is installed and built into `.cache/interop`, how its program is
run, and what it reports.

The one rule: a client runs in a process of its own with a deadline, and nothing is believed but the
JSON line that it prints per scenario. The programs are in clients/; each takes NAMESRV PREFIX
COUNT. This module does not know whose servers it talks to.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.interop.apache import QUICK_START, ToolMissingError, fetch_jars, java

from turbopump import Credentials

CLIENTS = Path(__file__).resolve().parent / "clients"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "interop"
MESSAGES = 120  # per scenario; even, for some scenarios halve it
REQUEST_SCENARIOS = ("asks", "answers")  # with a client of ours as the other side
DEADLINE_SECONDS = 600.0  # of a whole program, whose own waits end earlier and say what was missing

JAVA_SCENARIOS = (
    "send_sync",
    "send_async",
    "send_oneway",
    "send_batch",
    "send_by_selector",
    "send_to_queue",
    "send_large",
    "send_vip",
    "send_signed",
    "push_from_first",
    "push_from_last",
    "push_tag_filter",
    "push_sql_filter",
    "pull_sql_filter",
    "push_two_balance",
    "push_resume",
    "pull",
    "lite_pull_subscribe",
    "lite_pull_assign",
    "admin_topic",
    "query_by_key",
    "query_by_unique_id",
    "view_by_offset_id",
    "earliest_time",
    "request_reply",
)
GO_SCENARIOS = (
    "send_sync",
    "send_async",
    "send_oneway",
    "send_batch",
    "send_to_queue",
    "send_large",
    "send_signed",
    "push_from_first",
    "push_tag_filter",
    "push_sql_filter",
    "push_two_balance",
    "push_resume",
    "pull_poll",
    "admin_topic",
    "request_reply",
)
CPP_SCENARIOS = (
    "send_sync",
    "send_async",
    "send_oneway",
    "send_by_selector",
    "send_large",
    "push_tag_filter",
    "push_signed",
    "push_while_sending",
    "push_two_balance",
    "push_resume",
)
NODE_SCENARIOS = (
    "send_sync",
    "send_signed",
    "send_large",
    "push_from_first",
    "push_tag_filter",
    "push_two_balance",
    "push_resume",
)


class BuildError(Exception):
    """A client could not be installed or compiled; the message holds what its tool said."""


@dataclass(frozen=True, slots=True)
class ForeignClient:
    """One client library: its scenarios and the command that starts its program (built on the first
    call)."""

    name: str
    scenarios: tuple[str, ...]
    command: Callable[[], list[str]]
    environment: Callable[[], dict[str, str]] = dict


@dataclass(slots=True)
class ClientRun:
    """What one run of a client's program left: a report per scenario that ended, and how the
    process ended."""

    reports: dict[str, dict[str, object]] = field(default_factory=dict)
    exit_code: int | None = None  # None: killed at the deadline
    stderr: str = ""
    seconds: float = 0.0

    def ending(self) -> str:
        """How the process ended, in words."""
        if self.exit_code is None:
            return f"was killed after {DEADLINE_SECONDS} s"
        return (
            f"ended by signal {-self.exit_code}"
            if self.exit_code < 0
            else f"exited with {self.exit_code}"
        )


def run(
    client: ForeignClient,
    namesrv: str,
    prefix: str,
    directory: Path,
    *,
    stdin: int = subprocess.DEVNULL,
) -> ClientRun:
    """Run a client's scenarios against the name server at `namesrv`. `stdin`: a descriptor for its
    standard input; programs with somebody else's client on the other side stay until that ends.
    Raises ToolMissingError, BuildError.
    """
    command = [*client.command(), namesrv, prefix, str(MESSAGES)]
    directory.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **client.environment(), "HOME": str(directory)}
    environment["INTEROP_SCENARIOS"] = ",".join(client.scenarios)
    environment.pop("NAMESRV_ADDR", None)
    started = time.monotonic()
    out, err = directory / "stdout", directory / "stderr"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=stderr, env=environment, cwd=directory
        )
        result = ClientRun()
        try:
            result.exit_code = process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    result.seconds = time.monotonic() - started
    result.stderr = err.read_text(errors="replace")[-6000:]
    for line in out.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            report = json.loads(line)
            result.reports[report["scenario"]] = report
    return result


def pair(user: Credentials) -> str:
    """As the programs take it by INTEROP_PRODUCER and its like."""
    return f"{user.access_key}:{user.secret_key}"


def java_client(version: str, *options: str, program: str = "Main") -> list[str]:
    """The ``program`` compiled against one version of Apache's client (4.9.8: no servers of that
    version exist)."""
    only = ("client", "tools") if version == "4.9.8" else ("namesrv", "broker", "tools")
    library = fetch_jars(version, artifacts=only)
    compiler = found("javac")
    sources = sorted((CLIENTS / "java").glob("*.java"))
    if not version.startswith("4"):
        sources += sorted((CLIENTS / "java" / "five").glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    classes = CACHE / f"java-{version}-{digest}"
    with building(classes) as missing:
        if missing:
            tool(
                compiler,
                "-nowarn",
                "-encoding",
                "UTF-8",
                "-cp",
                f"{library}/*",
                "-d",
                str(classes),
                *map(str, sources),
            )
            # without these, 5.x would read the broker's own log settings and 4.9 print to standard
            # output
            for file in ("rmq.logback.xml", "logback.xml"):
                (classes / file).write_text('<configuration><root level="OFF"/></configuration>')
    # a request that is not answered in its time, be it a heartbeat, would close the connection that
    # all others wait on
    patient = "-Dcom.rocketmq.remoting.client.closeSocketIfTimeout=false"
    quick = [*QUICK_START, "-Xmx512m", "-Dfile.encoding=UTF-8", patient, *options]
    return [java(), *quick, "-cp", f"{classes}:{library}/*", program]


def go_client(*mode: str, folder: str = "go") -> list[str]:
    """The program in a folder of clients/: each pins a version of Go's client."""
    compiler = found("go")
    program = CACHE / "go" / folder
    with building(CACHE / "go" / "always"):  # go knows itself what is up to date
        tool(
            compiler,
            "build",
            "-o",
            str(program),
            ".",
            cwd=CLIENTS / folder,
            GOTOOLCHAIN="local",
            GOFLAGS="",
        )
    return [str(program), *mode]


def cpp_client() -> list[str]:
    environment = CACHE / "cpp-0.4.4"
    python = environment / "bin" / "python"
    with building(environment) as missing:
        if missing:
            tool(sys.executable, "-m", "venv", str(environment))
            tool(
                str(python),
                "-m",
                "pip",
                "install",
                "-q",
                "--disable-pip-version-check",
                "rocketmq==0.4.4",
            )
    return [str(python), str(CLIENTS / "cpp" / "main.py")]


def node_client() -> list[str]:
    node, npm = found("node"), found("npm")
    folder = CACHE / "node-2.0.1"
    with building(folder) as missing:
        if missing:
            quiet = (
                "--no-audit",
                "--no-fund",
                "--no-save",
                "--no-package-lock",
                "--ignore-scripts",
            )
            tool(npm, "install", *quiet, "--prefix", str(folder), "rocketmq@2.0.1")
    return [node, "--no-deprecation", str(CLIENTS / "node" / "main.js")]


CLIENT_TABLE = (
    ForeignClient("java-5.3.3", JAVA_SCENARIOS, partial(java_client, "5.3.3")),
    ForeignClient(
        "java-5.3.3-binary-headers",
        JAVA_SCENARIOS,
        partial(java_client, "5.3.3", "-Drocketmq.serialize.type=ROCKETMQ"),
    ),
    ForeignClient("java-4.9.8", JAVA_SCENARIOS, partial(java_client, "4.9.8")),
    ForeignClient("go-2.1.2", GO_SCENARIOS, go_client),
    ForeignClient("cpp-0.4.4", CPP_SCENARIOS, cpp_client),
    ForeignClient(
        "node-2.0.1",
        NODE_SCENARIOS,
        node_client,
        lambda: {"NODE_PATH": str(CACHE / "node-2.0.1" / "node_modules")},
    ),
)

REQUEST_TABLE = (
    ForeignClient(
        "java-5.3.3", REQUEST_SCENARIOS, partial(java_client, "5.3.3", program="RequestReply")
    ),
    ForeignClient(
        "java-4.9.8", REQUEST_SCENARIOS, partial(java_client, "4.9.8", program="RequestReply")
    ),
    ForeignClient("go-2.1.2", REQUEST_SCENARIOS, partial(go_client, "requests")),
)


def found(name: str) -> str:
    """The path of a toolchain's program; raises ToolMissingError."""
    path = shutil.which(name)
    if path is None:
        raise ToolMissingError(f"{name} is not installed")
    return path


def tool(*command: str, cwd: Path | None = None, **environment: str) -> None:
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        cwd=cwd,
        env={**os.environ, **environment},
    )
    if result.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed:\n{(result.stdout + result.stderr)[-3000:]}")


@contextmanager
def building(folder: Path) -> Iterator[bool]:
    """Holds the lock of a build folder; true when it is to be built. A failed build leaves nothing
    behind."""
    CACHE.mkdir(parents=True, exist_ok=True)
    done = folder / ".built"
    with (CACHE / f"{folder.parent.name}-{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = not done.exists()
        if missing:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        try:
            yield missing
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        done.touch()
