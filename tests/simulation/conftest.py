"""How many seeds a simulation runs, and how one of them is replayed.

`make test` runs a few; `make sim` many. A failing seed is part of the test's name, so the line that pytest
prints replays it: `python -m pytest tests/simulation/test_store.py --seed 4711`.
"""

import os

import pytest

SAMPLE = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--seed", type=int, help="run this seed only (or TURBOPUMP_SEED)")
    group.addoption("--seeds", type=int, help=f"how many seeds to run (or TURBOPUMP_SEEDS); {SAMPLE} unless told")
    group.addoption("--first-seed", type=int, default=1, help="where to begin")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" not in metafunc.fixturenames:
        return
    config = metafunc.config
    one = config.getoption("--seed", None)
    if one is None and os.environ.get("TURBOPUMP_SEED"):
        one = int(os.environ["TURBOPUMP_SEED"])
    if one is not None:
        seeds = [one]
    else:
        count = config.getoption("--seeds", None) or int(os.environ.get("TURBOPUMP_SEEDS", SAMPLE))
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
