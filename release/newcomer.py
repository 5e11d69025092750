"""What a new user does first, with an installed wheel and nothing else: a first message, a test, an
upgrade of a store.

Each function returns what was seen, for the table of `make release-check`. Raises BuildError.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from release.building import BuildError, run
from release.pythons import ROOT

OLDER: Final = "c2927473"
"""Commit whose broker writes the store that is upgraded: two days before the first release."""
READY_S: Final = 60
PROGRAM: Final = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAME_SERVER: Final = "127.0.0.1:9876"
SEND: Final = """
import sys
from turbopump.blocking import Producer
with Producer(sys.argv[1]) as producer:
    for number in range(100):
        producer.send("orders", f"order {number}".encode())
"""
READ: Final = """
import sys
from turbopump.blocking import PullConsumer
bodies = set()
with PullConsumer(sys.argv[1], group="audit") as consumer:
    for queue in consumer.queues("orders"):
        offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
        while offset < end:
            result = consumer.pull(queue, offset)
            bodies |= {message.body for message in result.messages}
            offset = result.next_offset
print(len(bodies))
"""


class Installed:
    """An empty environment in which a wheel or a source tree is installed."""

    def __init__(self, place: Path, python: Path, what: Path, *more: str) -> None:
        self.place = place
        run([python, "-m", "venv", place / "venv"])
        self.bin = place / "venv" / "bin"
        # Without compilers: a source tree is installed with its plain functions.
        self.variables = os.environ | {"PATH": f"{self.bin}:/usr/bin:/bin", "TURBOPUMP_PURE": "1"}
        if what.suffix == ".whl":
            self.variables.pop("TURBOPUMP_PURE")
        pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check"]
        run([self.bin / "python", *pip, "-c", ROOT / "constraints.txt", what, *more])

    def run(self, *command: str | Path) -> str:
        program, *arguments = command
        return run([self.bin / program, *arguments], cwd=self.place, env=self.variables)

    @contextmanager
    def broker(self, data: Path) -> Iterator[str]:
        """Run ``turbopump dev`` on free ports, and yield the address of its name server."""
        options = ["--namesrv-port", "0", "--broker-port", "0", "--data", str(data)]
        server = subprocess.Popen(
            [self.bin / "turbopump", "dev", *options],
            stdout=subprocess.PIPE,
            text=True,
            env=self.variables,
        )
        assert server.stdout is not None
        try:
            for line in server.stdout:
                found = re.match(r"ready namesrv=(\S+)", line)
                if found:
                    yield found[1]
                    break
            else:
                raise BuildError("turbopump dev ended before it was ready")
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=READY_S)


def first_message(wheel: Path, python: Path) -> str:
    """Run the first program of the README against ``turbopump dev``."""
    program = PROGRAM.findall((ROOT / "README.md").read_text("utf-8"))[0]
    with TemporaryDirectory() as temporary:
        installed = Installed(Path(temporary), python, wheel)
        with installed.broker(installed.place / "mq") as name_server:
            file = installed.place / "send_and_consume.py"
            file.write_text(program.replace(NAME_SERVER, name_server), "utf-8")
            printed = installed.run("python", file).strip()
    if "b'a book'" not in printed:
        raise BuildError(f"the README's program printed {printed!r}")
    return f"printed {printed}"


def first_test(wheel: Path, python: Path) -> str:
    """Run the README's test, which uses the pytest fixture."""
    program = PROGRAM.findall((ROOT / "README.md").read_text("utf-8"))[1]
    with TemporaryDirectory() as temporary:
        installed = Installed(Path(temporary), python, wheel, "pytest")
        file = installed.place / "test_orders.py"
        file.write_text(program, "utf-8")
        return installed.run("python", "-m", "pytest", "-q", file).strip().splitlines()[-1]


def upgrade(wheel: Path, python: Path) -> str:
    """Read an older version's store with the wheel, write to it, and read it with the older one."""
    with TemporaryDirectory() as temporary:
        place = Path(temporary)
        for name in ("source", "older", "newer"):
            (place / name).mkdir()
        archive = place / "older.tar"
        run(["git", "archive", "--output", archive, OLDER], cwd=ROOT)
        run(["tar", "-xf", archive, "-C", place / "source"])
        older = Installed(place / "older", python, place / "source")
        newer = Installed(place / "newer", python, wheel)
        data = place / "mq"
        _write_and_count(older, data, writes=True, expected="100")
        _write_and_count(newer, data, writes=False, expected="100")
        with newer.broker(data) as name_server:
            newer.run("python", "-c", SEND.replace("order ", "later "), name_server)
        _write_and_count(older, data, writes=False, expected="200")
    return f"100 messages of {OLDER} and 100 newer ones read by both versions"


def _write_and_count(installed: Installed, data: Path, *, writes: bool, expected: str) -> None:
    with installed.broker(data) as name_server:
        if writes:
            installed.run("python", "-c", SEND, name_server)
        count = installed.run("python", "-c", READ, name_server).strip()
    if count != expected:
        raise BuildError(f"{count} of {expected} messages were read in {data}")
