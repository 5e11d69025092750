"""Measurement of one scenario against one broker: the effect of its load on a bystander, and on the
broker's memory.

The one rule: each scenario gets a broker of its own, just started, with nothing in it. The
scenarios are unknown here (`bench/limits.py` has them).

To add a scenario: write its load as a function in `bench/limits_<subject>.py`, add a `Scenario` to
that module's tuple `SCENARIOS`, and the subject to `SUBJECTS` in `bench/limits.py` if it is new.
"""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench.brokers import APACHE, RunningBroker, running_broker
from bench.bystander import TOPIC, Window, running_bystander, window_of
from bench.cores import Cores
from bench.generator import CACHE
from bench.memory import anonymous_of
from bench.remote import create_topic


class Figure(msgspec.Struct, frozen=True):
    """Measured value of a load beside the bystander, and our goal for it."""

    name: str
    measured: float
    goal: float


class Answered(msgspec.Struct, frozen=True):
    """Answers of a load in a few words, with figures that are judged."""

    text: str
    figures: tuple[Figure, ...]


Load = Callable[[RunningBroker], str | Answered]

WARM_S = {APACHE: 4.0}
"""Apache's broker compiles what the bystander needs meanwhile."""
CALM_S = 2.0
AFTER_S = 0.3
"""Seconds for which the window continues after the load, to include its later effects."""
SAMPLE_S = 0.02


@dataclass(frozen=True)
class Scenario:
    """Effect of one client on a broker while another client sends.

    - ``name`` selects the scenario on the command line; ``title`` is its row in the table.
    - ``load(broker)`` speaks to ``broker.port`` with sockets of its own (frames: `bench/wire.py`;
      calls one at a time: `bench/remote.py`). It returns when all requests are answered or refused,
      with the answer in a few words: "0", "code 23", "closed"; or with figures (``Answered``) that
      have goals of their own. It may run for seconds. It must not use turbopump's code.
    - ``prepare(broker)`` runs before, unmeasured: topics, messages, groups.
    - ``settings``: lines of broker.conf in Apache's keys, for both brokers.
    - ``stall_ms``, ``grown_mib``: goals for ours: the longest wait of the bystander, and the
      growth of the broker's anonymous memory (None: no goal).
    """

    name: str
    title: str
    load: Load
    prepare: Callable[[RunningBroker], None] | None = None
    settings: Mapping[str, str | int | bool] = field(default_factory=dict)
    stall_ms: float | None = 100.0
    grown_mib: float | None = None


class Stall(msgspec.Struct, frozen=True):
    """One scenario against one broker. Memory in bytes; ``calm`` is the window before the load,
    ``loaded`` the one that has it, ``answer`` what the load says of its answers."""

    scenario: str
    broker: str
    answer: str
    seconds: float
    calm: Window
    loaded: Window
    anonymous_before: int
    anonymous_peak: int
    figures: tuple[Figure, ...] = ()


def measure(scenario: Scenario, name: str, cores: Cores) -> Stall:
    """Run a scenario against a broker of one kind.

    Raises TimeoutError or ChildProcessError when the broker or the bystander does not work; what
    the load raises."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(
            prefix="limits-", dir=CACHE, ignore_cleanup_errors=True
        ) as data,
        running_broker(name, Path(data), cores, settings=scenario.settings) as broker,
    ):
        try:
            return _measure(scenario, broker)
        finally:
            with suppress(ProcessLookupError):  # nothing of it is wanted any more
                os.kill(broker.pid, signal.SIGKILL)


def _measure(scenario: Scenario, broker: RunningBroker) -> Stall:
    create_topic(broker.port, TOPIC, 1)
    if scenario.prepare is not None:
        scenario.prepare(broker)
    with running_bystander(broker.port, broker.pid) as bystander:
        time.sleep(WARM_S.get(broker.name, 0.5))
        window_of(bystander)
        time.sleep(CALM_S)
        calm = window_of(bystander)
        before = anonymous_of(broker.pid)
        begun = time.monotonic()
        with peak_memory(broker.pid) as peak:
            answer = scenario.load(broker)
            time.sleep(AFTER_S)
            loaded = window_of(bystander)
        seconds = time.monotonic() - begun
    text, figures = (answer, ()) if isinstance(answer, str) else (answer.text, answer.figures)
    return Stall(
        scenario.name, broker.name, text, seconds, calm, loaded, before, max(peak), figures
    )


@contextmanager
def peak_memory(pid: int) -> Iterator[list[int]]:
    """Anonymous bytes of a process, sampled every 20 ms until the end."""
    samples, ended = [anonymous_of(pid)], threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_S):
            with suppress(OSError):
                samples.append(max(samples.pop(), anonymous_of(pid)))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
