"""Runs of `every_client.py`: the servers that it talks to, and the lines that it must print."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.our_servers import patient_turbopump
from tests.unit.remoting.certificates import Pair

PROGRAM = Path(__file__).with_name("every_client.py")
KINDS = {
    *("push", "push-tls", "ordered", "broadcast", "lite pull", "pull", "pop", "transaction"),
    *("request and reply", "finder", "stop_on_signals", "stop_on_signals without messages"),
    *("lock", "blocking-plain", "blocking-tls", "blocking broadcast", "blocking pop"),
    *("blocking stop_on_signals", "Ctrl-C while nothing comes", "commands"),
}


@contextmanager
def servers_with_tls(directory: Path) -> Iterator[tuple[str, Path]]:
    """The address of a name server, with a broker, and the certificate that both have."""
    pair = Pair(directory)
    settings: dict[str, str | int | bool] = {
        "tls.server.certPath": pair.certificate,
        "tls.server.keyPath": pair.key,
    }
    with patient_turbopump(directory / "servers", settings) as servers:
        yield servers.namesrv, Path(pair.certificate)


def check(done: subprocess.CompletedProcess[str]) -> None:
    """Check that every kind of client has done its work."""
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert set(re.findall("^done (.*)$", done.stdout, re.MULTILINE)) == KINDS
