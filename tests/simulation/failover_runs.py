"""Run the simulation of failover for many seeds, or for one seed with all that happened.

    python -m tests.simulation.failover_runs --seeds 100
    python -m tests.simulation.failover_runs --first-seed 17 --seeds 1 --log

Several processes share the seeds (``--jobs``). A seed that fails is printed with what is wrong; the
exit status is then 1.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from tests.simulation.failover import Group, scrubbing_often
from tests.simulation.failover_faults import Faults
from tests.simulation.world.process import current_process
from tests.simulation.world.simulation import Simulation, run_simulation

SECONDS = 30.0
"""How long things go wrong in each seed, in virtual time."""
LINES_MAX = 12
PROGRESS = 50
"""After so many seeds a line says how many have failed."""


@dataclass
class Outcome:
    """What came of one seed. ``wrong`` is empty if all is as promised."""

    seed: int
    wrong: list[str] = field(default_factory=list)
    story: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0
    virtual_s: float = 0.0

    def __str__(self) -> str:
        lines = self.wrong[:LINES_MAX]
        if len(self.wrong) > LINES_MAX:
            lines.append(f"... and {len(self.wrong) - LINES_MAX} more")
        return "\n".join([f"seed {self.seed}: {len(self.wrong)} wrong", *lines])


async def trouble(group: Group, seconds: float) -> list[str]:
    """Start a group, break things for so long, and judge what is left."""
    await group.start()
    await Faults(group).make(seconds)
    await group.settle()
    return await group.verdict()


async def _run_group(
    outcome: Outcome, groups: list[Group], seconds: float, simulation: Simulation
) -> list[str]:
    group = Group(simulation)
    groups.append(group)
    try:
        with scrubbing_often() if group.shape.is_damaged else nullcontext():
            return await trouble(group, seconds)
    finally:
        outcome.virtual_s = simulation.loop.time()
        outcome.story = group.story()


def run_seed(seed: int, *, seconds: float = SECONDS, is_logged: bool = False) -> Outcome:
    """Run one seed. What the run raises counts as wrong."""
    outcome = Outcome(seed)
    simulation = Simulation(seed)
    simulation.loop.end_trace()  # the story tells two runs apart, and this costs a tenth
    groups: list[Group] = []
    begun = time.process_time()
    with _logged(simulation) if is_logged else _silent():
        try:
            run = partial(_run_group, outcome, groups, seconds)
            outcome.wrong = run_simulation(simulation, run)
        except Exception as error:
            trace = traceback.format_exception(error)
            outcome.wrong = [f"the run raised {error!r}"[:2000], "".join(trace[-3:])]
    outcome.cpu_s = time.process_time() - begun
    for group in groups:
        ledger = group.ledger
        outcome.counts = group.counts + Counter(
            sends=len(ledger.messages.sends),
            acknowledged=len(ledger.messages.acknowledged),
            deliveries=len(ledger.messages.deliveries),
            changes=sum(map(len, ledger.facts.writes.values())),
        )
    return outcome


@contextmanager
def _logged(simulation: Simulation) -> Iterator[None]:
    """Print log lines with the virtual time and the host."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            process = current_process.get()
            host = process.host if process is not None else "-"
            name = record.name.removeprefix("turbopump.")
            text = f"{simulation.loop.time():9.3f} {host:9} {record.levelname[0]} {name}"
            print(f"{text} {record.getMessage()}"[:260])

    logger = logging.getLogger("turbopump")
    logging.getLogger("turbopump.audit").disabled = True
    logging.getLogger("turbopump.auth.audit").disabled = True
    handler = Lines()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def _silent() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def main() -> int:
    """Run the seeds that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many (20)")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of faults in each seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--log", action="store_true", help="print the story, and log lines")
    parser.add_argument("--first-failure", action="store_true", help="stop at the first failure")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    run = partial(run_seed, seconds=options.seconds, is_logged=options.log)
    total: Counter[str] = Counter()
    failed: list[int] = []
    cpu_s = 0.0
    with ProcessPoolExecutor(options.jobs) as pool:
        outcomes = pool.map(run, seeds) if options.jobs > 1 else map(run, seeds)
        for number, outcome in enumerate(outcomes, 1):
            total += outcome.counts
            cpu_s += outcome.cpu_s
            if number % PROGRESS == 0:
                print(f"{number} seeds, {len(failed)} failed", file=sys.stderr, flush=True)
            if options.log:
                print(outcome.story)
            if outcome.wrong:
                failed.append(outcome.seed)
                print(outcome, flush=True)
                if options.first_failure:
                    break
    figures = "; ".join(f"{count:,} {name}" for name, count in sorted(total.items()))
    print(f"{len(seeds)} seeds, {cpu_s:.0f} s of a processor: {figures}")
    print(f"{len(failed)} failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
