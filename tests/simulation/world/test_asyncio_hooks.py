"""The private parts of asyncio that the simulated loop stands on, as this Python has them.

When one of these fails on a new Python, loop.py must be looked at before any simulation
is believed.
"""

import asyncio
import contextvars
import inspect
from collections import deque

from tests.simulation.world.loop import SimulatedLoop


def test_the_base_loop_keeps_ready_handles_and_timers_where_the_simulated_one_looks() -> None:
    loop = asyncio.BaseEventLoop()
    try:
        assert isinstance(loop._ready, deque)  # type: ignore[attr-defined]
        assert loop._scheduled == []  # type: ignore[attr-defined]
        assert loop._stopping is False  # type: ignore[attr-defined]
        timer = loop.call_at(5.0, print)
        assert loop._scheduled == [timer]  # type: ignore[attr-defined]
        assert timer._scheduled is True  # type: ignore[attr-defined]
        assert timer._when == 5.0  # type: ignore[attr-defined]
    finally:
        loop.close()


def test_run_forever_calls_run_once_until_stopping() -> None:
    class Counting(asyncio.BaseEventLoop):
        calls = 0

        def _run_once(self) -> None:
            self.calls += 1
            if self.calls == 3:
                self.stop()

    loop = Counting()
    try:
        loop.run_forever()
        assert loop.calls == 3
    finally:
        loop.close()


def test_a_cancelled_timer_is_reported_to_the_loop() -> None:
    class Listening(asyncio.BaseEventLoop):
        cancelled: asyncio.TimerHandle | None = None

        def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
            self.cancelled = handle

    loop = Listening()
    try:
        timer = loop.call_at(5.0, print)
        timer.cancel()
        assert loop.cancelled is timer
    finally:
        loop.close()


def test_a_handle_is_made_of_callback_arguments_loop_and_context() -> None:
    loop = SimulatedLoop()
    try:
        variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")
        context = contextvars.Context()
        context.run(variable.set, 7)
        seen: list[int] = []
        handle = asyncio.Handle(lambda: seen.append(variable.get()), (), loop, context)
        assert handle._context is context  # type: ignore[attr-defined]
        assert handle._cancelled is False
        handle._run()
        assert seen == [7]
    finally:
        loop.close()


def test_a_task_schedules_its_steps_through_call_soon_in_its_own_context() -> None:
    steps: list[tuple[object, bool]] = []

    class Watching(SimulatedLoop):
        def call_soon(self, callback, *args, context=None):  # type: ignore[no-untyped-def,override]
            steps.append((getattr(callback, "__self__", None), context is not None))
            return super().call_soon(callback, *args, context=context)

    async def main() -> "asyncio.Task[None]":
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return task

    loop = Watching()
    try:
        task = loop.run_until_complete(main())
        assert steps[:2] == [(task, True), (task, True)]
    finally:
        loop.close()


def test_asyncio_makes_tasks_and_futures_through_the_loop() -> None:
    async def main() -> tuple[str, str]:
        task = asyncio.create_task(asyncio.sleep(0))
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        await asyncio.gather(task, future)
        return type(task).__name__, type(future).__name__

    loop = SimulatedLoop()
    try:
        assert loop.run_until_complete(main()) == ("NumberedTask", "NumberedFuture")
    finally:
        loop.close()


def test_all_tasks_iterates_by_serial_number() -> None:
    async def main() -> list[int]:
        sleepers = [asyncio.create_task(asyncio.sleep(1)) for _ in range(50)]
        serials = [hash(task) for task in asyncio.all_tasks()]
        await asyncio.gather(*sleepers)
        return serials

    loop = SimulatedLoop()
    try:
        serials = loop.run_until_complete(main())
        assert len(set(serials)) == 51
        assert max(serials) < 1000
        assert serials == sorted(serials)
    finally:
        loop.close()


def test_the_signatures_that_are_overridden_are_still_called_that_way() -> None:
    parameters = inspect.signature(asyncio.BaseEventLoop.call_soon).parameters
    assert list(parameters) == ["self", "callback", "args", "context"]
    parameters = inspect.signature(asyncio.BaseEventLoop.call_at).parameters
    assert list(parameters) == ["self", "when", "callback", "args", "context"]
    assert list(inspect.signature(asyncio.Handle.__init__).parameters)[1:5] == [
        "callback",
        "args",
        "loop",
        "context",
    ]
