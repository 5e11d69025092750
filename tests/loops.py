"""Tests that are coroutines: ``@in_loop`` runs an ``async def test_…`` on an event loop.

    @in_loop
    async def test_a_call_is_answered(tmp_path: Path) -> None: ...

    @in_loop(converse, message_delay_level="1s 5s")
    async def test_a_message_is_delayed(talk: Talk, /, caplog: LogCaptureFixture) -> None: ...

Plain ``@in_loop`` is ``asyncio.run``. With a runner, the runner makes the world, a broker for
instance, and calls the test with it. What stands before the slash comes from the runner; what
follows are fixtures and parameters, as in every test of pytest.

A runner is a function whose first parameter is the story to run. Its other parameters without a
default are fixtures that it needs itself. Those with a default, and keywords, are given to
``in_loop``, or come from a parameter of the test with the same name.

A test whose runner is a simulation has the attribute ``in_virtual_time``: it runs on the
simulation's loop, whatever loop the run of pytest is for.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from tests.simulation.world.simulation import Simulation, simulate

T = TypeVar("T")
Story = Callable[..., Coroutine[Any, Any, Any]]
Runner = Callable[..., Any]


def simulated(story: Callable[[Simulation], Coroutine[Any, Any, Any]], *, seed: int = 1) -> None:
    """Run a story in a simulation: ``@in_loop(simulated, seed=3)``."""
    simulate(seed, story)


CLIENT = "10.0.0.2"


def on_a_client_s_host(
    story: Callable[[Simulation], Coroutine[Any, Any, Any]], *, seed: int = 1
) -> None:
    """Run a story in a process on the host CLIENT of a simulation; its servers have other hosts."""
    simulate(seed, lambda simulation: _on_a_client_s_host(simulation, story))


async def _on_a_client_s_host(
    simulation: Simulation, story: Callable[[Simulation], Coroutine[Any, Any, Any]]
) -> None:
    await simulation.boot(CLIENT).start(story(simulation))


def in_loop(runner: Runner, /, **config: Any) -> Callable[..., Any]:
    """Make a plain test of an ``async def``, as ``@in_loop`` or ``@in_loop(runner, **config)``."""
    if inspect.iscoroutinefunction(runner):
        return _test_of(runner, _run_once, {})
    return functools.partial(_test_of, runner=runner, config=config)


def _run_once(story: Story) -> None:
    asyncio.run(story())


def _test_of(story: Story, runner: Runner, config: dict[str, Any]) -> Callable[..., None]:
    signature = inspect.signature(story)
    parameters = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
    ]
    names = {parameter.name for parameter in parameters}
    needed = [
        parameter.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for parameter in [*inspect.signature(runner).parameters.values()][1:]
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        and parameter.name not in config
        and (parameter.default is inspect.Parameter.empty or parameter.name in names)
    ]
    own = {parameter.name for parameter in needed}

    @functools.wraps(story)
    def test(**fixtures: Any) -> None:
        told = functools.partial(story, **{name: fixtures[name] for name in names})
        runner(told, **{name: fixtures[name] for name in own}, **config)

    test.in_virtual_time = runner in (simulated, on_a_client_s_host)  # type: ignore[attr-defined]
    more = [parameter for parameter in needed if parameter.name not in names]
    test.__signature__ = signature.replace(parameters=[*more, *parameters])  # type: ignore[attr-defined]
    return test


def outcome_of(steps: Generator[None, None, T]) -> T:
    """What work in steps returns, all of it done now."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        outcome: T = end.value
        return outcome
