"""Signals that ask a program to stop: SIGTERM and Ctrl-C, on Windows also Ctrl-Break.

One rule: the first signal asks, and the program ends its work. A second signal, more than a second
later, has the effect that it has without this module. Handlers are set by ``signal.signal``, which
works with every event loop and on every system.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Final

TERMINATION: Final = tuple(
    number for number in signal.Signals if number.name in ("SIGTERM", "SIGBREAK")
)
"""Signals of other programs. SIGBREAK exists on Windows only."""
STOP_SIGNALS: Final = (signal.SIGINT, *TERMINATION)
IMPATIENCE_S: Final = 1.0
"""Time in seconds within which a second signal counts as the same one. A terminal and `make` or
`timeout` both pass the signal on."""


class StopEvent(asyncio.Event):
    """Event that is set when the process is asked to stop.

    ``signal`` is the signal that arrived, None before that.
    """

    signal: signal.Signals | None = None


@asynccontextmanager
async def stop_on_signals(*then: Callable[[], object]) -> AsyncIterator[StopEvent]:
    """Set an event when the process receives SIGTERM or Ctrl-C, within an ``async with`` block.

    ::

        async with stop_on_signals() as stop, PushConsumer(…, handler=bill):
            await stop.wait()

    The signal does not end the program, so that the other ``async with`` blocks close in order. A
    second signal, more than a second later, has its usual effect: SIGTERM ends the process at once,
    Ctrl-C cancels the main task.

    - ``then``: functions that are called on the event loop once the event is set, such as
      ``consumer.stop``.

    On Windows, Ctrl-Break has the same effect, and no other process can send SIGTERM. Raises
    ValueError if the caller is not in the main thread. ``turbopump.blocking`` has the same function
    for programs without an event loop.
    """
    loop = asyncio.get_running_loop()
    stop = StopEvent()

    def asked(number: signal.Signals) -> None:
        stop.signal = number
        stop.set()
        for call in then:
            call()

    with handled(lambda number: loop.call_soon_threadsafe(asked, number)):
        yield stop


@contextmanager
def handled(
    asked: Callable[[signal.Signals], object], signals: tuple[signal.Signals, ...] = STOP_SIGNALS
) -> Iterator[None]:
    """Call ``asked`` in the main thread at the first of these signals.

    ``asked`` interrupts the main thread anywhere, so it must not take a lock. A second signal, more
    than ``IMPATIENCE_S`` later, has the effect that it has outside of the block.
    """
    asked_at: float | None = None

    def arrived(number: int, _frame: FrameType | None) -> None:
        nonlocal asked_at
        if asked_at is None:
            asked_at = time.monotonic()
            asked(signal.Signals(number))
        elif time.monotonic() - asked_at > IMPATIENCE_S:
            restore()
            signal.raise_signal(number)

    def restore() -> None:
        for number, handler in before.items():
            # None is a handler that was not set from Python
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    before = {number: signal.signal(number, arrived) for number in signals}
    try:
        yield
    finally:
        restore()
