"""What the interoperability tests share: the rule about missing toolchains, and the summary of each
scenario's seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.interop.our_clients", "tests.interop.store_ledger")

from tests.interop.our_clients import CALL_SECONDS  # noqa: E402

from turbopump.client.routes import Routes  # noqa: E402

LINES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LINES] = []


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash[LINES]
    if lines:
        terminalreporter.section("interoperability")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def summary(pytestconfig: pytest.Config) -> list[str]:
    """Lines appended here are printed after the tests."""
    return pytestconfig.stash[LINES]


@pytest.fixture(scope="session", autouse=True)
def patient_look_ups() -> Iterator[None]:
    """Our clients, too, have a minute to ask a name server: without a route a send fails after
    three seconds, whatever its own time is."""
    make = Routes.__init__

    def patient(self: Routes, *args: Any, **settings: Any) -> None:
        make(self, *args, **settings | {"timeout": CALL_SECONDS})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Routes, "__init__", patient)
        yield
