"""Programs of the clients under comparison. Each is a process of its own, which receives lines and
answers each with a line of JSON.

The one rule: a ratio is taken within a pair of windows, and the median of the pairs is judged. The
measured values are unknown here.
"""

import hashlib
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import msgspec
from tests.interop.apache import NEWEST, fetch_jars, java
from tests.interop.foreign import building, found, tool

from bench.generator import CACHE

HERE = Path(__file__).resolve().parent


class Window(msgspec.Struct, frozen=True):
    """Result of one window: the client's CPU time, and for a producer also the time from each send
    to its result."""

    messages: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    p50_us: float = 0.0
    p99_us: float = 0.0
    error: str | None = None

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.messages * 1e6


class ClientError(Exception):
    """A client's program failed; the message holds what it said."""


class Client:
    """Running program of a client, controlled by lines."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def measure(self, *order: object) -> Window:
        """Give one order and wait for its window. Raises ClientError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        text = " ".join(map(str, order))
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise ClientError(f"{text}: the program ended with {self._process.wait()}")
        window = msgspec.json.decode(line, type=Window)
        if window.error is not None or not window.messages:
            raise ClientError(f"{text}: {window.error or 'there was no message'}")
        return window


@contextmanager
def running_client(*command: str) -> Iterator[Client]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Client(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def java_command(program: str) -> list[str]:
    """Return the command of a Java program in this folder. The program is compiled once for each of
    its versions."""
    library = fetch_jars(NEWEST)
    source = HERE / f"{program}.java"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    classes = CACHE / f"java-{digest}"
    with building(classes) as missing:
        if missing:
            tool(
                found("javac"),
                "-nowarn",
                "-encoding",
                "UTF-8",
                "-cp",
                f"{library}/*",
                "-d",
                str(classes),
                str(source),
            )
            for file in ("rmq.logback.xml", "logback.xml"):
                (classes / file).write_text('<configuration><root level="OFF"/></configuration>')
    return [java(), "-server", "-Xmx1g", "-cp", f"{classes}:{library}/*", program]


def judged(
    title: str, wanted: Sequence[tuple[str, str, float]], windows: Sequence[tuple[object, object]]
) -> list[tuple[str, ...]]:
    """A row a figure of pairs (ours, theirs): medians, the median of the ratios with its spread,
    and whether it is what was wanted."""
    rows: list[tuple[str, ...]] = []
    for figure, sign, bound in wanted:
        pairs = [(getattr(ours, figure), getattr(theirs, figure)) for ours, theirs in windows]
        ratios = sorted(one / other for one, other in pairs)
        middle = median(ratios)
        reached = middle >= bound if sign == ">=" else middle <= bound
        rows.append(
            (
                title,
                figure,
                f"{median(one for one, _ in pairs):,.1f}",
                f"{median(other for _, other in pairs):,.1f}",
                f"{middle:.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})",
                f"{sign} {bound}",
                "reached" if reached else "MISSED",
            )
        )
    return rows


HEADINGS = ("ours : theirs", "", "ours", "theirs", "ratio (spread)", "wanted", "")
