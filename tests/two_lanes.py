"""`make crash`, `make interop` and `make sim`: two runs of pytest side by side, on the two cores
that a machine has at least.

The first is shown as it goes and has what looks at the wall clock; the other, in its shadow (it
gives way a little), is shown when both have ended. What is named for neither is in the first, so
nothing is left out. Further arguments go to both. Any failure fails the run.

Only where foreign programs take part, what failed is run once more, alone: their own races are not
ours to mend (a one-way commit that a client sends while it closes, a time-out of its own on a
machine that stood still). It fails the run if it fails again, and is named as failed once if it
does not.

    python tests/two_lanes.py crash            # every row of docs/explanations/durability.md
    python tests/two_lanes.py sim --seeds 50
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEMORY = ROOT / ".cache" / "lanes"
"""Where pytest keeps what failed, for each lane its own."""
GIVES_WAY = 5
"""How much nicer the second lane is."""
FAILED = 1
NO_TEST = 5
"""pytest's exit statuses: a test failed; further arguments leave a lane without any test."""


@dataclass(frozen=True)
class Lanes:
    """``directory`` in full, with these arguments, and these variables unless they are set;
    ``second`` run beside the rest."""

    directory: str
    second: tuple[str, ...]
    arguments: tuple[str, ...]
    variables: dict[str, str]
    foreign: bool = False
    """Whether programs that are not ours take part: what fails gets a second try."""


EVERY_WAY = {"TURBOPUMP_FUZZ": "1"}
"""Of what ``tests.fuzzing.crossed`` crosses, every case in every way."""
RUNS = {
    "crash": Lanes(
        "tests/crash", ("test_io_errors.py", "test_campaign.py"), ("--full",), EVERY_WAY
    ),
    # directories change hands: mostly it is waited, for brokers to start and stop, and for messages
    # to be due; the rest takes a few minutes longer
    "interop": Lanes(
        "tests/interop",
        (
            "test_clients_through_a_switch.py",
            "test_delay_and_send_back.py",
            "test_exporter.py",
            "test_group_directories.py",
            "test_inner_batches.py",
            "test_metrics.py",
            "test_mixed_groups.py",
            "test_mqadmin.py",
            "test_one_group.py",
            "test_store_directories.py",
            "test_store_roots.py",
            "test_timer_directories.py",
            "test_unconfirmed_readers.py",
            "test_unnoticed_masters.py",
        ),
        (),
        {},
        foreign=True,
    ),
    "sim": Lanes(
        "tests/simulation",
        (
            "test_delays.py",
            "test_failover.py",
            "test_pop.py",
            "test_rebalances.py",
            "test_store.py",
            "test_timers.py",
            "test_transactions.py",
        ),
        ("--seeds", "64"),
        EVERY_WAY | {"TURBOPUMP_SIM_MINUTES": "10"},
    ),
}


def main() -> int:
    """Run both lanes; 0 if both passed, else the exit status of one that did not."""
    name, further = sys.argv[1], sys.argv[2:]
    lanes = RUNS[name]
    files = [f"{lanes.directory}/{file}" for file in lanes.second]
    rest = [lanes.directory, *(f"--ignore={file}" for file in files)]
    first = [*rest, *further, "-o", f"cache_dir={MEMORY / name / 'first'}"]
    second = [*files, *further, "-o", f"cache_dir={MEMORY / name / 'second'}"]
    with ThreadPoolExecutor(1) as beside:
        other = beside.submit(run, lanes, second, shown=False)
        statuses = [run(lanes, first, shown=True), other.result()]
    if lanes.foreign:
        runs = zip((first, second), statuses, strict=True)
        statuses = [
            again(lanes, arguments) if status == FAILED else status for arguments, status in runs
        ]
    return next((status for status in statuses if status not in (0, NO_TEST)), min(statuses))


def again(lanes: Lanes, arguments: list[str]) -> int:
    """Run once more what failed with these arguments; the exit status of that. What is then well is
    named all the same."""
    kept = arguments[-1].removeprefix("cache_dir=")
    failed = sorted(json.loads(Path(kept, "v/cache/lastfailed").read_text()))
    status = run(lanes, ["--last-failed", *arguments], shown=True)
    if status == 0:
        print(f"== failed once, and passed when run again: {', '.join(failed)}", flush=True)
    return status


def run(lanes: Lanes, arguments: list[str], *, shown: bool) -> int:
    """Run pytest; its exit status. What it prints is passed on as it comes, or, unless ``shown``,
    when it has ended."""
    title = f"== {' '.join(arguments[:-2])}"
    if shown:
        print(f"\n{title}", flush=True)
    begun = time.monotonic()
    pytest = [sys.executable, "-m", "pytest", "-ra", *lanes.arguments, *arguments]
    done = subprocess.run(
        pytest if shown else ["nice", "-n", str(GIVES_WAY), *pytest],
        cwd=ROOT,
        env={**lanes.variables, **keeping_bytecode()},
        check=False,
        stdout=None if shown else subprocess.PIPE,
        stderr=None if shown else subprocess.STDOUT,
    )
    if not shown:
        print(f"\n{title}\n{done.stdout.decode(errors='replace')}", flush=True)
    print(f"{title}: {time.monotonic() - begun:.0f} s, status {done.returncode}", flush=True)
    return done.returncode


def keeping_bytecode() -> dict[str, str]:
    """The environment, in which modules are compiled once and not by each of the hundreds of
    processes that tests start."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


if __name__ == "__main__":
    sys.exit(main())
