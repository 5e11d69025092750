"""`make crash`, `make interop` and `make sim`: two runs of pytest side by side, on the two cores that a machine has at least.

The first is shown as it goes and has what looks at the wall clock; the other, in its shadow (it gives way a little), is shown when both
have ended. What is named for neither is in the first, so nothing is left out. Further arguments go to both. Any failure fails the run.

    python tests/two_lanes.py crash            # every row of docs/durability.md
    python tests/two_lanes.py sim --seeds 50
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GIVES_WAY = 5
"""How much nicer the second lane is."""
NO_TEST = 5
"""pytest's exit status where further arguments leave a lane without any test."""


@dataclass(frozen=True)
class Lanes:
    """``directory`` in full, with these arguments, and these variables unless they are set; ``second`` run beside the rest."""

    directory: str
    second: tuple[str, ...]
    arguments: tuple[str, ...]
    variables: dict[str, str]


RUNS = {
    "crash": Lanes(
        "tests/crash",
        ("test_io_errors.py",),
        ("--full",),
        {},
    ),
    "interop": Lanes(  # directories change hands: mostly it is waited, for brokers to start and stop, and for messages to be due
        "tests/interop",
        (
            "test_delay_and_send_back.py",
            "test_inner_batches.py",
            "test_store_directories.py",
            "test_store_roots.py",
            "test_timer_directories.py",
            "test_transactions.py",
        ),
        (),
        {},
    ),
    "sim": Lanes(
        "tests/simulation",
        ("test_delays.py", "test_timers.py", "test_transactions.py"),
        ("--seeds", "80"),
        {"TURBOPUMP_SIM_MINUTES": "10"},
    ),
}


def main() -> int:
    """Run both lanes; 0 if both passed, else the exit status of one that did not."""
    lanes, further = RUNS[sys.argv[1]], sys.argv[2:]
    files = [f"{lanes.directory}/{name}" for name in lanes.second]
    first = [lanes.directory, *(f"--ignore={file}" for file in files)]
    with ThreadPoolExecutor(1) as beside:
        other = beside.submit(run, lanes, [*files, *further], shown=False)
        statuses = [run(lanes, [*first, *further], shown=True), other.result()]
    return next((status for status in statuses if status not in (0, NO_TEST)), min(statuses))


def run(lanes: Lanes, arguments: list[str], *, shown: bool) -> int:
    """Run pytest; its exit status. What it prints is passed on as it comes, or, unless ``shown``, when it has ended."""
    title = f"== {' '.join(arguments)}"
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
    """The environment, in which modules are compiled once and not by each of the hundreds of processes that tests start."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


if __name__ == "__main__":
    sys.exit(main())
