"""How many seeds a simulation runs, how one of them is replayed, and what the rows of the goals
came to.

`make test` runs one, continuous integration three (TURBOPUMP_SEEDS in `.ci/run`), `make sim` many.
A failing seed is part of the test's name, so the line that pytest prints replays it: `python -m
pytest tests/simulation/test_store.py --seed 4711`. With `--seeds` each test's figures and seconds
of a processor are printed at the end.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Generator

import pytest
from tests.simulation.figures import Figures

SAMPLE = 1
TOLD = pytest.StashKey[dict[str, Figures]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--seed", type=int, help="run this seed only (or TURBOPUMP_SEED)")
    group.addoption(
        "--seeds",
        type=int,
        help=f"how many seeds to run (or TURBOPUMP_SEEDS); {SAMPLE} unless told",
    )
    group.addoption("--first-seed", type=int, default=1, help="where to begin")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "seeds_of_sim(count): `make sim` runs so many, at least")
    config.stash[TOLD] = defaultdict(Figures)


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """What this test has to tell, over all its seeds."""
    return figures_of(request.node)


def figures_of(item: pytest.Item) -> Figures:
    return item.config.stash[TOLD][item.nodeid.partition("[")[0]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    told, began = figures_of(item), time.process_time()
    try:
        yield
        told.runs += 1
    finally:
        told.cpu_s += time.process_time() - began


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if not config.getoption("--seeds", None):
        return
    terminalreporter.section("figures")
    short = 0.0
    for test, told in config.stash[TOLD].items():
        if not str(told) and told.cpu_s < 1:
            short += told.cpu_s
            continue
        terminalreporter.write_line(
            f"{test}: {told.runs} run(s), {told.cpu_s:.0f} s of a processor"
        )
        if str(told):
            terminalreporter.write_line(f"    {told}")
    spent = sum(told.cpu_s for told in config.stash[TOLD].values())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    terminalreporter.write_line(
        f"in all {spent:.0f} s of a processor, {short:.0f} of them in short tests; {memory:,} "
        "MiB of memory at most"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" not in metafunc.fixturenames or any(
        mark.args[0] == "seed" for mark in metafunc.definition.iter_markers("parametrize")
    ):
        return
    config = metafunc.config
    one = config.getoption("--seed", None)
    if one is None and os.environ.get("TURBOPUMP_SEED"):
        one = int(os.environ["TURBOPUMP_SEED"])
    if one is not None:
        seeds = [one]
    else:
        count = config.getoption("--seeds", None) or int(os.environ.get("TURBOPUMP_SEEDS", SAMPLE))
        of_sim = metafunc.definition.get_closest_marker("seeds_of_sim")
        if of_sim is not None and "TURBOPUMP_SIM_MINUTES" in os.environ:
            count = max(count, of_sim.args[0])
        first = config.getoption("--first-seed", 1)
        seeds = list(range(first, first + count))
    metafunc.parametrize("seed", seeds, ids=[f"seed={seed}" for seed in seeds])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    report = yield
    seed = getattr(getattr(item, "callspec", None), "params", {}).get("seed")
    if report.failed and seed is not None:
        path, _, name = item.nodeid.partition("::")
        test = name.partition("[")[0]
        report.sections.append(("replay", f"python -m pytest {path} -k {test} --seed {seed}"))
    return report
