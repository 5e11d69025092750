"""The thread of the blocking clients: what is handed over runs there once, in its caller's context,
in the order of its coming."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
import weakref
from functools import partial

import pytest
from tests.stand_ins import async_does_nothing

from turbopump.client.loop_thread import LoopThread, the_loop_thread

PATIENCE_S = 20.0


@pytest.fixture(params=["eventfd", "pair of sockets"])
def thread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LoopThread:
    """One that is woken as on Linux, and one as elsewhere. It ends with the process, as they do."""
    if request.param == "eventfd" and not hasattr(os, "eventfd"):
        pytest.skip("no eventfd on this system")
    if request.param != "eventfd":
        monkeypatch.delattr(os, "eventfd", raising=False)
    return LoopThread()


async def look(who: contextvars.ContextVar) -> str:
    seen = who.get()
    who.set("the loop")
    await asyncio.sleep(0)
    return seen


def test_what_is_called_sees_the_context_of_its_caller_and_leaves_it_as_it_is(
    thread: LoopThread,
) -> None:
    who = contextvars.ContextVar("who", default="nobody")

    assert thread.call(partial(look, who)) == "nobody"
    who.set("the caller")
    assert thread.call(partial(look, who)) == "the caller"
    assert who.get() == "the caller"


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return number * 2


def caller(answers: list[list[int]], thread: LoopThread, first: int) -> None:
    answers.append(
        [thread.call(double, number) - 2 * number for number in range(first, first + 300)]
    )


def test_calls_of_many_threads_are_all_answered_each_with_its_own(thread: LoopThread) -> None:
    answers: list[list[int]] = []

    callers = [
        threading.Thread(target=partial(caller, answers, thread), args=(1000 * i,))
        for i in range(8)
    ]
    for each in callers:
        each.start()
    for each in callers:
        each.join(PATIENCE_S)
    assert answers == [[0] * 300] * 8


class _BrokenOff:
    """A lock that whoever makes it takes, and whose second taking a signal's handler breaks off."""

    def __init__(self) -> None:
        self._taken = False

    def acquire(self, timeout: float = -1) -> None:
        if self._taken:
            raise KeyboardInterrupt
        self._taken = True

    def release(self) -> None:
        pass


async def occupy(busy: threading.Event, go_on: threading.Event) -> None:
    busy.set()
    assert go_on.wait(PATIENCE_S)  # the loop stands still


async def late(ran: list[str], name: str) -> None:
    ran.append(name)


def test_a_caller_that_is_interrupted_before_the_loop_has_looked_has_its_call_cancelled(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    busy, go_on = threading.Event(), threading.Event()

    occupier = threading.Thread(target=thread.call, args=(partial(occupy, busy, go_on),))
    occupier.start()
    assert busy.wait(PATIENCE_S)
    with monkeypatch.context() as patched:
        patched.setattr("turbopump.client.loop_thread.threading.Lock", _BrokenOff)
        with pytest.raises(KeyboardInterrupt):
            thread.call(partial(late, ran), "interrupted")
    go_on.set()
    occupier.join(PATIENCE_S)
    thread.call(partial(late, ran), "next")
    assert ran == ["next"]


async def note(ended_on: list[threading.Thread]) -> None:
    weakref.finalize(asyncio.current_task(), lambda: ended_on.append(threading.current_thread()))


def test_results_are_let_go_on_the_loops_thread_where_a_signals_error_is_not_lost(
    thread: LoopThread,
) -> None:
    ended_on: list[threading.Thread] = []

    thread.call(partial(note, ended_on))
    thread.call(async_does_nothing)  # the loop has gone on
    assert ended_on == [thread._thread]


def test_handing_over_to_the_loop_and_back_is_cheap() -> None:
    thread = the_loop_thread()
    best = float("inf")
    for _ in range(20):
        started = time.process_time()
        for _ in range(100):
            thread.call(async_does_nothing)
        best = min(best, (time.process_time() - started) / 100)
    # of a processor, so that a busy machine changes nothing: 30 µs; this catches a blunder
    assert best < 0.0005
