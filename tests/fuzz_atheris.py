"""Each fuzz target with atheris, which is guided by coverage:
`python -m tests.fuzz_atheris TARGET RUNS`, and all of them without a name.

A target runs in a process of its own. It fails for anything raised, for an input that takes over
100 ms of processor time twice, and for growth by more than 64 MiB. `make fuzz` installs atheris,
where there is a wheel.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.fuzz_targets import Target

RUNS: Final = 2_000_000
INPUT_S_MAX: Final = 0.1
GROWTH_KIB_MAX: Final = 64 * 1024
WARM: Final = 1000
INSTRUMENTED: Final = [
    f"turbopump.{room}" for room in ("protocol", "message", "auth", "replication")
]


def fuzz(name: str, runs: int, corpus: Path) -> None:
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz_targets import TARGETS

    target = TARGETS[name]
    target.take(target.good)  # what is made once is made now
    (corpus / "good").write_bytes(target.good)
    seen, began_kib, slowest = 0, 0, 0.0

    def one(data: bytes) -> None:
        nonlocal seen, began_kib, slowest
        took = _seconds(target, data)
        if took > INPUT_S_MAX:  # on a busy machine 45 bytes took 104 ms, then 0.1
            took = min(took, _seconds(target, data))
        slowest = max(slowest, took)
        seen += 1
        if took > INPUT_S_MAX:
            raise AssertionError(f"{took:.3f} s of processor time for {len(data)} bytes")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began_kib
        if seen == WARM:
            began_kib += grown
        elif seen > WARM and grown > GROWTH_KIB_MAX:
            raise AssertionError(f"{grown // 1024} MiB more after {seen} inputs")
        if seen == runs:
            times = f"slowest {slowest * 1000:.1f} ms"
            print(f"{name}: {seen:,} inputs, {times}, {grown / 1024:.1f} MiB more", flush=True)

    atheris.Setup([sys.argv[0], str(corpus), f"-runs={runs}", "-verbosity=0"], one)
    atheris.Fuzz()


def _seconds(target: Target, data: bytes) -> float:
    begun = time.process_time()
    target.take(data)
    return time.process_time() - begun


def main() -> int:
    try:
        import atheris  # noqa: F401
    except ImportError:
        print("atheris is not installed: there are wheels for Linux and some versions of Python")
        return 0
    if len(sys.argv) > 1 and not sys.argv[1].isdigit():
        runs = int(sys.argv[2]) if len(sys.argv) > 2 else RUNS
        with tempfile.TemporaryDirectory() as corpus:
            fuzz(sys.argv[1], runs, Path(corpus))
        return 0
    from tests.fuzz_targets import TARGETS

    runs = sys.argv[1] if len(sys.argv) > 1 else str(RUNS)
    failed = []
    for name in TARGETS:
        command = [sys.executable, "-m", "tests.fuzz_atheris", name, runs]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            failed.append(name)
            print(f"{name} failed\n{done.stderr[-5000:]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
