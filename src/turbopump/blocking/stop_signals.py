"""Signals that ask a program without an event loop to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Final

from turbopump.client.loop_thread import WAIT_S
from turbopump.stop_signals import handled

SLICE_S: Final = WAIT_S if WAIT_S > 0 else threading.TIMEOUT_MAX


class StopRequest:
    """Event that is set when the process is asked to stop. It has the methods of
    ``threading.Event`` for waiting.

    ``signal`` is the signal that arrived, None before that.
    """

    # A handler must not set a threading.Event: it takes a lock that the interrupted thread may
    # hold. Nobody holds this one when the handler releases it.
    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    def is_set(self) -> bool:
        return self.signal is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set, for at most ``timeout`` seconds. Return True if it is."""
        deadline = inf if timeout is None else time.monotonic() + timeout
        while self.signal is None and (left := deadline - time.monotonic()) > 0:
            if self._lock.acquire(timeout=min(left, SLICE_S)):
                self._lock.release()
        return self.is_set()

    def _set(self, number: signal.Signals) -> None:
        self.signal = number
        self._lock.release()


@contextmanager
def stop_on_signals(*then: Callable[[], object]) -> Iterator[StopRequest]:
    """Set an event when the process receives SIGTERM or Ctrl-C, within a ``with`` block.

    ::

        with stop_on_signals() as stop, PushConsumer(…, handler=bill):
            stop.wait()

    The signal does not end the program, so that the other ``with`` blocks close in order. A second
    signal, more than a second later, has its usual effect: SIGTERM ends the process at once, Ctrl-C
    raises KeyboardInterrupt.

    - ``then``: functions that are called once the event is set, such as ``consumer.stop``. They
      interrupt the main thread anywhere, so they must not take a lock or wait.

    On Windows, Ctrl-Break has the same effect, and no other process can send SIGTERM. Raises
    ValueError if the caller is not in the main thread.
    """
    stop = StopRequest()

    def asked(number: signal.Signals) -> None:
        stop._set(number)
        for call in then:
            call()

    with handled(asked):
        yield stop
