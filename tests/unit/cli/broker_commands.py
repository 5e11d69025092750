"""Commands against a broker of a test, in the test's own process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from turbopump.cli import main
from turbopump.testing.broker_in_loop import BrokerThread

Run = Callable[[str], tuple[int, str, str]]


def commands_at(broker: BrokerThread, capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs `turbopump COMMAND`, by default with the name server of this broker. It
    returns the exit code, standard output and standard error."""
    return partial(_run, broker.namesrv, capsys)


def _run(namesrv: str, capsys: pytest.CaptureFixture[str], command: str) -> tuple[int, str, str]:
    words = command.split()
    code = main(words if "-n" in words else [*words, "-n", namesrv])
    told = capsys.readouterr()
    return code, told.out, told.err
