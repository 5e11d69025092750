"""`make test`: every suite on the Python that runs this. With ``CI=true`` or ``EVERY_PYTHON=1`` in
the environment the other Pythons that are present run what they may do differently: the newest, in
plain Python, all but the command line, the broker and the clients; those between, what has to do
with the interpreter and its loop. The clients' tests run a second time on uvloop, a quarter of them
unless ``CI=true``, where users have it: its timers and its clock are others than asyncio's.

Four runs of pytest at a time, on the two cores that a machine has at least: they also wait, for
messages that are due, for processes, for disks. The first is shown as it goes, the others when they
have ended; the few tests that look at the clock come last and alone. Other Pythons are looked for
on the PATH and among pyenv's versions; each gets a small environment of its own (`.venv-3.12`, …),
made once. Any failure fails the run; a Python that is not there is named.

Temporary files lie in memory where a file system in memory has room (unless ``TMPDIR`` is set): a
broker syncs and removes dozens of files, at milliseconds each on a disk that four runs share. The
crashes, and the store's tests, which the newest Python runs too, have a real one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ((3, 11), (3, 12), (3, 13), (3, 14))
LANES = 4
MEMORY = Path("/dev/shm")
MEMORY_MIN = 4 << 30
"""Bytes that must be free there; the tests use less than a quarter of it at a time."""
WITHOUT = "--ignore={}".format
APART = ("tests/unit/store", "tests/unit/broker", "tests/unit/client", "tests/unit/cli")
ALONE = [
    "tests/crash/test_io_errors.py::"
    "test_a_log_that_is_taken_from_a_broker_ends_acknowledgements_and_costs_nothing_before",
    "tests/crash/test_json_files.py::test_saving_tables_never_stalls_the_loop",
]
"""What is judged by seconds that a machine with other work may not keep."""
IN_A_SESSION = [
    f"tests/spark/test_{name}.py"
    for name in (
        *("archive", "commitlog", "examples", "guide", "poison", "replay", "session"),
        *("sink", "spark", "spark_read", "sql"),
    )
]
"""What shares a session of Spark, one test after the other."""
HERE = (
    ["tests/unit", "tests/golden", *map(WITHOUT, APART)],
    IN_A_SESSION,
    ["tests/unit/store"],
    ["tests/crash", *map("--deselect={}".format, ALONE)],
    ["tests/unit/broker"],
    ["tests/spark", "bench/tests/test_against_our_broker.py", *map(WITHOUT, IN_A_SESSION)],
    *([suite] for suite in ("tests/simulation", *APART[2:])),
)
"""Every other test, the longest run first."""
ON_DISK = ("tests/unit/store", "tests/crash")
"""Whose files lie on a disk: a file system in memory has no cold pages, and syncs nothing."""
ON_UVLOOP = ["tests/unit/client", "tests/unit/test_blocking.py"]
SAME_EVERYWHERE = (
    "tests/unit/test_examples.py",
    "tests/unit/test_guide.py",
    "tests/unit/test_house.py",
    "tests/unit/test_how_tests_are_written.py",
    "tests/unit/test_links.py",
    "tests/unit/test_recipes.py",
    "tests/unit/broker",
    "tests/unit/cli",
)
"""What other Pythons leave out: it looks at texts, or runs what the rest tests in pieces."""
NEWEST = ["tests/unit", "tests/golden", *map(WITHOUT, (*SAME_EVERYWHERE, "tests/unit/client"))]
BETWEEN = ["tests/unit", "tests/golden", *map(WITHOUT, (*SAME_EVERYWHERE, "tests/unit/store"))]
"""For Pythons between the oldest and the newest: two thirds of the tests, a quarter of their
seconds."""
OTHERS = {"TURBOPUMP_FUZZ": "0.25"}
"""Other Pythons draw as much arbitrary input as ``make test``."""


def main() -> int:
    """Run the suites; 0 if all passed, else the exit status of one that did not."""
    here = sys.version_info[:2]
    others = []
    for version in VERSIONS if every_python_is_asked_for() else ():
        if version == here:
            continue
        python = find(version)
        if python is None:
            print(
                f"-- Python {version[0]}.{version[1]} is not present: not tested with it",
                flush=True,
            )
        else:
            others.append((version, environment(version, python)))
    newest = max((version for version, _ in others), default=here)
    with files_in_memory() as in_memory, ThreadPoolExecutor(LANES) as lanes:
        runs = [
            lanes.submit(
                run,
                here,
                Path(sys.executable),
                suites,
                shown=suites is HERE[0],
                **({} if suites[0] in ON_DISK else in_memory),
            )
            for suites in HERE
        ]
        if find_spec("uvloop") is None:
            print("-- uvloop is not present: the clients are not tested on its loop", flush=True)
        else:
            runs.append(
                lanes.submit(
                    run,
                    here,
                    Path(sys.executable),
                    ON_UVLOOP,
                    shown=False,
                    TURBOPUMP_TEST_LOOP="uvloop",
                    **in_memory,
                )
            )
        for version, python in reversed(others):
            suites, pure = (NEWEST, {"TURBOPUMP_PURE": "1"}) if version == newest else (BETWEEN, {})
            settings = OTHERS | pure | ({} if version == newest else in_memory)
            runs.append(lanes.submit(run, version, python, suites, shown=False, **settings))
        statuses = [each.result() for each in runs]
    statuses.append(run(here, Path(sys.executable), ALONE))
    return next((status for status in statuses if status), 0)


def every_python_is_asked_for() -> bool:
    """Whether to test on the other Pythons too: continuous integration does, people may."""
    return any(os.environ.get(name, "") in ("1", "true") for name in ("CI", "EVERY_PYTHON"))


@contextmanager
def files_in_memory() -> Iterator[dict[str, str]]:
    """Where temporary files lie until this ends: what to set in the environment, if anything."""
    if "TMPDIR" in os.environ or not _has_room(MEMORY):
        yield {}
        return
    with tempfile.TemporaryDirectory(
        prefix="turbopump-tests-", dir=MEMORY, ignore_cleanup_errors=True
    ) as directory:
        yield {"TMPDIR": directory}


def _has_room(directory: Path) -> bool:
    if not os.access(directory, os.W_OK):
        return False
    runs_programs = not os.statvfs(directory).f_flag & os.ST_NOEXEC  # a container's may not
    return runs_programs and shutil.disk_usage(directory).free >= MEMORY_MIN


def run(
    version: tuple[int, int],
    python: Path,
    suites: list[str],
    *,
    shown: bool = True,
    **set_in_environment: str,
) -> int:
    """Run pytest; its exit status. What it prints is passed on as it comes, or, unless ``shown``,
    when it has ended. What is set in its environment is left as it is if whoever calls has set
    it."""
    settings = "".join(f", {name}={value}" for name, value in set_in_environment.items())
    title = f"== Python {version[0]}.{version[1]}{settings}: "
    if shown:
        print(f"\n{title}{' '.join(suites)}", flush=True)
    begun = time.monotonic()
    command = [python, "-m", "pytest", *suites, "-q", *sys.argv[1:]]
    variables = dict(os.environ)
    # Or each process that a test starts would compile every module again: half of its seconds.
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    variables = set_in_environment | variables
    output = None if shown else subprocess.PIPE
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=variables,
        check=False,
        stdout=output,
        stderr=output and subprocess.STDOUT,
    )
    if not shown:
        print(f"\n{title}{' '.join(suites)}\n{done.stdout.decode(errors='replace')}", flush=True)
    print(
        f"{title}{suites[0]}, {time.monotonic() - begun:.0f} s, status {done.returncode}",
        flush=True,
    )
    return done.returncode


def find(version: tuple[int, int]) -> str | None:
    """An interpreter of this version that really runs (a pyenv shim may not)."""
    name = f"python{version[0]}.{version[1]}"
    places = [shutil.which(name)]
    pyenv = os.environ.get("PYENV_ROOT")
    if pyenv:
        places += sorted(
            map(str, Path(pyenv, "versions").glob(f"{version[0]}.{version[1]}.*/bin/{name}"))
        )
    for place in places:
        if place and _runs(place, version):
            return place
    return None


def _runs(python: str, version: tuple[int, int]) -> bool:
    wanted = f"import sys, venv; sys.exit(sys.version_info[:2] != {version!r})"
    return subprocess.run([python, "-c", wanted], capture_output=True, check=False).returncode == 0


def environment(version: tuple[int, int], python: str) -> Path:
    """The environment for a further Python: Turbopump with no extra but ``tls``, whose tests make
    certificates; pytest and hypothesis."""
    home = ROOT / f".venv-{version[0]}.{version[1]}"
    inside = home / "bin" / "python"
    ready = home / ".ready"
    pins = ROOT / "constraints.txt"
    made_from = (
        pins,
        ROOT / "pyproject.toml",
        ROOT / "setup.py",
        *(ROOT / "src/turbopump/hot").glob("*.p*"),
    )
    if not ready.exists() or ready.stat().st_mtime < max(
        path.stat().st_mtime for path in made_from
    ):
        print(f"-- making {home.name} with {python}", flush=True)
        subprocess.run([python, "-m", "venv", "--clear", home], check=True)
        pip = [inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", pins]
        subprocess.run([*pip, "-e", f"{ROOT}[tls]", "pytest", "hypothesis"], check=True)
        ready.touch()
    return inside


if __name__ == "__main__":
    sys.exit(main())
