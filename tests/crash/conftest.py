"""How much of each row is run, and the figures that come out.

`make test` runs a sample of every row, some two minutes of all of them; `make crash` (`--full`)
runs what `docs/explanations/durability.md` promises. What a row measured is printed at the end, to
be copied into that page.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.patient import wait_for_servers

FIGURES = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("crash")
    group.addoption(
        "--full",
        action="store_true",
        help="every row of docs/explanations/durability.md in full (up to 45 minutes)",
    )
    group.addoption("--kills", type=int, default=300, help="of the campaign of test_campaign.py")
    group.addoption(
        "--kill-minutes",
        type=float,
        help="it ends then, with fewer kills; else it has 25 and fails",
    )
    group.addoption("--crash-seed", type=int, default=1, help="where random choices descend from")


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether everything is to be run, not a sample."""
    return bool(request.config.getoption("--full"))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """A random source of this test's own, the same in every run of a seed."""
    return random.Random(f"{request.config.getoption('--crash-seed')}/{request.node.name}")


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Write down a figure; it is shown when the run ends."""
    lines = request.config.stash.setdefault(FIGURES, [])
    return lambda text: lines.append(f"{request.node.name}: {text}")


@pytest.fixture
def fast_directory(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is a file system in memory: where faults are made, the disk need not be
    real."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    directory = shared / f"turbopump-crash-{os.getpid()}"
    directory.mkdir()
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = terminalreporter.config.stash.get(FIGURES, [])
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(autouse=True)
def _patience_with_servers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        wait_for_servers(patch.setitem)
        yield


@pytest.fixture(autouse=True)
def _no_environment() -> Iterator[None]:
    """Brokers of these tests are told everything; an address from outside would mislead them."""
    before = os.environ.pop("NAMESRV_ADDR", None)
    yield
    if before is not None:
        os.environ["NAMESRV_ADDR"] = before
