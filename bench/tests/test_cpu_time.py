"""Distribution of CPU time: the metered brokers, the bench itself, and everything else."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.cpu_time import CpuMeter, own_seconds

WORK_S = 0.3
WORK = (
    f"import time\nwhile time.process_time() < {WORK_S}: pass\nprint('done', flush=True)\ninput()"
)


@contextmanager
def worker() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that waits for a line, works for a while, says so and waits again."""
    command = [sys.executable, "-c", "input()\n" + WORK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.communicate(b"\n", timeout=30)


def let_it_work(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"done\n"


def test_the_work_of_a_metered_process_is_counted_as_its_own() -> None:
    with worker() as process:
        meter = CpuMeter((process.pid,))
        let_it_work(process)
        assert WORK_S - 0.1 <= meter.seconds_of(process.pid) < WORK_S + 0.2


def test_the_work_of_any_other_process_is_foreign() -> None:
    with worker() as process:
        begun = time.monotonic()
        meter = CpuMeter(())
        let_it_work(process)
        assert meter.foreign_cores() * (time.monotonic() - begun) >= WORK_S - 0.1


def test_a_child_that_has_ended_counts_as_our_own() -> None:
    before = own_seconds()
    with worker() as process:
        let_it_work(process)
    assert own_seconds() - before >= WORK_S - 0.1
