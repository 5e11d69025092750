"""The loop in virtual time: time jumps, order follows the seed, what a seed cannot decide is
refused."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from tests.loops import in_loop
from tests.simulation.world.loop import (
    DeadlockError,
    ForbiddenInSimulationError,
    LivelockError,
    SimulatedLoop,
    run_in,
)
from tests.simulation.world.process import ProcessKilled
from tests.stand_ins import async_raises

T = TypeVar("T")


def run(story: Callable[[], Coroutine[Any, Any, T]], seed: int = 1) -> T:
    return run_in(SimulatedLoop(seed), story())


@in_loop(run)
async def test_a_virtual_day_passes_at_once() -> None:
    await asyncio.sleep(24 * 3600)
    assert asyncio.get_running_loop().time() == 24 * 3600


@in_loop(run)
async def test_timers_fire_in_order_of_their_time_and_a_cancelled_one_does_not() -> None:
    loop = asyncio.get_running_loop()
    fired: list[str] = []
    loop.call_later(3, fired.append, "three")
    loop.call_later(1, fired.append, "one")
    loop.call_later(2, fired.append, "two").cancel()
    await asyncio.sleep(5)
    assert fired == ["one", "three"]


@in_loop(run)
async def test_hundreds_of_cancelled_timers_are_forgotten_and_the_living_ones_fire() -> None:
    loop = asyncio.get_running_loop()
    fired: list[int] = []
    for number in range(300):
        timer = loop.call_later(number, fired.append, number)
        if number % 3:
            timer.cancel()
    await asyncio.sleep(1000)
    assert len(fired) == 100


async def interleaved() -> str:
    order: list[str] = []

    async def speaker(name: str) -> None:
        for _ in range(4):
            order.append(name)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for name in "abcd":
            group.create_task(speaker(name))
    return "".join(order)


def test_the_same_seed_gives_the_same_order_and_other_seeds_other_orders() -> None:
    orders = [run(interleaved, seed) for seed in range(20)]
    assert orders == [run(interleaved, seed) for seed in range(20)]
    assert len(set(orders)) > 10


def test_what_one_callback_schedules_runs_in_the_order_it_was_scheduled() -> None:
    async def main() -> tuple[list[int], list[int]]:
        loop = asyncio.get_running_loop()
        mine: list[int] = []
        others: list[int] = []

        def schedule(numbers: list[int]) -> None:
            for number in range(10):
                loop.call_soon(numbers.append, number)

        loop.call_soon(schedule, mine)
        loop.call_soon(schedule, others)
        await asyncio.sleep(1)
        return mine, others

    for seed in range(20):
        assert run(main, seed) == (list(range(10)), list(range(10)))


async def waits_for_godot() -> None:
    await asyncio.get_running_loop().create_future()


def test_waiting_for_what_nobody_will_do_is_a_deadlock_that_names_who_waits() -> None:
    with pytest.raises(DeadlockError, match=r"waits_for_godot at .*test_loop\.py:\d+"):
        run(waits_for_godot)


async def spins() -> None:
    loop = asyncio.get_running_loop()
    loop.call_soon(again := lambda: loop.call_soon(again))
    await asyncio.sleep(1)


def test_callbacks_that_never_let_time_pass_are_a_livelock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulation.world.loop.TURNS_PER_INSTANT_MAX", 100)
    with pytest.raises(LivelockError, match="100 turns at virtual second 0"):
        run(spins)


def test_an_exception_of_the_program_comes_out_and_leaves_nothing_behind() -> None:
    async def main() -> None:
        child = asyncio.create_task(asyncio.sleep(100))
        await asyncio.sleep(1)
        assert not child.done()
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run(main)


def test_tasks_left_over_are_cancelled_and_run_their_finally() -> None:
    ended: list[str] = []

    async def main() -> None:
        async def stays() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                ended.append("stays")

        ended.append("main")
        task = asyncio.create_task(stays())
        await asyncio.sleep(1)
        assert not task.done()

    run(main)
    assert ended == ["main", "stays"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda loop: asyncio.to_thread(print),
        lambda loop: loop.run_in_executor(None, print),
        lambda loop: loop.set_default_executor(None),
        lambda loop: loop.add_signal_handler(2, print),
        lambda loop: loop.add_reader(0, print),
        lambda loop: loop.add_writer(0, print),
        lambda loop: loop.create_connection(asyncio.Protocol, "127.0.0.1", 9),
        lambda loop: loop.create_server(asyncio.Protocol, "127.0.0.1", 9),
        lambda loop: loop.create_datagram_endpoint(asyncio.DatagramProtocol),
        lambda loop: loop.getaddrinfo("localhost", 9),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true"),
        lambda loop: loop.subprocess_shell(asyncio.SubprocessProtocol, "true"),
    ],
)
def test_what_a_seed_cannot_decide_is_refused(ask: Any) -> None:
    async def main() -> None:
        answer = ask(asyncio.get_running_loop())
        if asyncio.iscoroutine(answer):
            await answer

    with pytest.raises(ForbiddenInSimulationError, match="a simulation has no"):
        run(main)


def test_a_call_from_another_thread_is_refused() -> None:
    refused: list[BaseException] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def call() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except ForbiddenInSimulationError as failure:
                refused.append(failure)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    run(main)
    assert len(refused) == 1


def test_a_thread_left_running_is_reported() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="stray")

    async def main() -> None:
        thread.start()

    try:
        with pytest.raises(ForbiddenInSimulationError, match="stray"):
            run(main)
    finally:
        release.set()
        thread.join()


def test_no_line_of_a_killed_process_runs_again_not_even_a_finally() -> None:
    lines: list[str] = []

    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        process = loop.create_process("10.0.0.1")

        async def works() -> None:
            try:
                child = asyncio.create_task(asyncio.sleep(5))
                child.add_done_callback(lambda _: lines.append("child done"))
                await asyncio.sleep(10)
                lines.append("after the kill")
            finally:
                if process.alive:
                    lines.append("finally")

        outcome = process.start(works())
        loop.call_later(3, process.kill)
        with pytest.raises(ProcessKilled):
            await outcome
        await asyncio.sleep(60)
        return loop.time()

    assert run(main) == 63
    assert lines == []


@in_loop(run)
async def test_a_paused_process_goes_on_where_it_was_and_in_order() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    process = loop.create_process("10.0.0.1")
    seen: list[tuple[float, int]] = []

    async def counts() -> None:
        for number in range(4):
            await asyncio.sleep(1)
            seen.append((loop.time(), number))

    outcome = process.start(counts())
    loop.call_at(1.5, process.pause)
    loop.call_at(10, process.resume)
    await outcome
    assert seen == [(1.0, 0), (10.0, 1), (11.0, 2), (12.0, 3)]


@in_loop(run)
async def test_cancelling_what_a_process_was_asked_to_do_cancels_its_task() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    seen: list[str] = []

    async def works() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    outcome = loop.create_process("10.0.0.1").start(works())
    await asyncio.sleep(1)
    outcome.cancel()
    await asyncio.sleep(1)
    assert seen == ["cancelled"]


async def answers() -> int:
    await asyncio.sleep(1)
    return 42


@in_loop(run)
async def test_a_started_thing_hands_back_its_result_or_its_failure() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    process = loop.create_process("10.0.0.1")

    with pytest.raises(LookupError, match="mine"):
        await process.start(async_raises(LookupError("mine"))())
    assert await process.start(answers()) == 42


async def reference_run() -> None:
    """A bit of everything whose number of turns is the same on every Python (so no
    `asyncio.wait_for`)."""
    await interleaved()
    queue: asyncio.Queue[int] = asyncio.Queue(maxsize=3)
    lock = asyncio.Lock()

    async def produces(count: int) -> None:
        for number in range(count):
            async with lock:
                await asyncio.sleep(0.01 * (number % 3))
            await queue.put(number)

    async def consumes() -> None:
        while True:
            await queue.get()
            queue.task_done()

    consumers = [asyncio.create_task(consumes()) for _ in range(3)]
    await asyncio.gather(*(produces(count) for count in range(5, 10)))
    await queue.join()
    try:
        async with asyncio.timeout(7), asyncio.TaskGroup() as group:
            for seconds in (1, 2, 30):
                group.create_task(asyncio.sleep(seconds))
    except TimeoutError:
        pass
    for consumer in consumers:
        consumer.cancel()


REFERENCE_TRACES = {1: "f14bc56ec04bba14a43be71a5a0c52c7", 2: "2add1bfe50f6480b5bd0451b3fea3867"}


@pytest.mark.parametrize("seed", REFERENCE_TRACES)
def test_the_trace_of_a_seed_is_the_same_on_every_python(seed: int) -> None:
    loop = SimulatedLoop(seed)
    run_in(loop, reference_run())
    assert loop.trace_hash == REFERENCE_TRACES[seed]


def test_the_trace_does_not_depend_on_the_hash_seed_of_the_interpreter() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from tests.simulation.world.test_loop import *;"
        "loop = SimulatedLoop(1); run_in(loop, reference_run()); print(loop.trace_hash)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program, os.getcwd()],
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for hash_seed in ("0", "1234")
    }
    assert hashes == {REFERENCE_TRACES[1]}
