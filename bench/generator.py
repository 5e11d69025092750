"""Load generator in C (`load/`): its compilation, its runs, and its JSON.

The one rule: a failure of the generator is a failure of the run, with the generator's own text. The
broker is unknown here.
"""

import hashlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

SOURCES = Path(__file__).parent / "load"
CACHE = Path(__file__).resolve().parents[1] / ".cache" / "bench"
LOAD = ("load.c", "frames.c", "replies.c", "latency.c", "unique_id.c", "transport.c")
PROGRAMS = {"load": LOAD, "load-tls": (*LOAD, "-DTLS", "-lssl", "-lcrypto"), "echo": ("echo.c",)}
COMPILER = ("gcc", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror")


class LoadError(Exception):
    """The generator ended the run: a wrong, missing or refused reply. Its sentence is the
    message."""


class LoadResult(msgspec.Struct, frozen=True):
    """One measured window. Times of the broker and the generator are CPU seconds, user and system,
    all threads."""

    messages: int
    requests: int
    seconds: float
    broker_cpu_s: float
    generator_cpu_s: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    bytes_in: int
    bytes_out: int

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        """Broker CPU microseconds per message."""
        return self.broker_cpu_s / self.messages * 1e6


def compile_program(name: str) -> Path:
    """The path of `load`, `load-tls` (needs the headers of OpenSSL) or `echo`, compiled if its
    sources are new.

    Raises FileNotFoundError without gcc, LoadError with the compiler's complaint.
    """
    sources = sorted(SOURCES.glob("*.[ch]"))
    fingerprint = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    program = CACHE / f"{name}-{fingerprint}"
    if program.exists():
        return program
    CACHE.mkdir(parents=True, exist_ok=True)
    arriving = program.with_suffix(".new")
    command = [
        *COMPILER,
        "-o",
        str(arriving),
        *(part if part.startswith("-") else str(SOURCES / part) for part in PROGRAMS[name]),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise LoadError(f"{' '.join(command)}\n{done.stderr}")
    arriving.rename(program)
    return program


def start_load(
    port: int, arguments: Sequence[str], *, core: int, watch: int = 0
) -> "subprocess.Popen[str]":
    """Start the generator against 127.0.0.1:port on one core; `watch` is the process whose CPU time
    it records, 0 for none."""
    program = compile_program("load-tls" if "--tls" in arguments else "load")
    command = [str(program), "--port", str(port), "--cpu", str(core), *arguments]
    if watch:
        command += ["--watch", str(watch)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish_load(process: "subprocess.Popen[str]", timeout: float = 180.0) -> str:
    """Return the generator's output. Raises LoadError with its error message."""
    try:
        out, complaint = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise LoadError(f"the load generator did not end within {timeout} s") from None
    if process.returncode != 0:
        raise LoadError(complaint.strip() or f"the load generator ended with {process.returncode}")
    return out


def measure_load(
    port: int,
    arguments: Sequence[str],
    *,
    core: int,
    seconds: float,
    settle: float = 0.5,
    watch: int = 0,
) -> LoadResult:
    """One window of `seconds` after `settle` seconds of the same load. Raises LoadError."""
    window = ["--seconds", str(seconds), "--settle", str(settle)]
    out = finish_load(start_load(port, [*arguments, *window], core=core, watch=watch))
    return msgspec.json.decode(out, type=LoadResult)


FILL_TIMEOUT_S = 900.0
"""A broker that makes the files of 40,000 queues, on a disk that others use too, takes minutes."""


def fill(port: int, arguments: Sequence[str], *, core: int) -> int:
    """Run a load that ends by its own `--limit`; the number of messages sent. Raises LoadError."""
    process = start_load(port, arguments, core=core)
    messages = json.loads(finish_load(process, FILL_TIMEOUT_S))["messages"]
    assert isinstance(messages, int)
    return messages


@contextmanager
def echo_server(core: int) -> Iterator[int]:
    """The port of a server that answers any send at once and keeps nothing: the generator's own
    limit."""
    command = [str(compile_program("echo")), str(core)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.stdin.close()
            server.wait(10)
