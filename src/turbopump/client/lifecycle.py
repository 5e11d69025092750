"""Life of a consumer: not started, started, closed; and the object that runs in between.

One rule: the running object is reached only through here. A call that comes too early, too late, in
a fork or on another event loop fails with the same words in each client. This module must not know
what runs.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar

from turbopump.client.heartbeat import InstanceMember
from turbopump.client.instance import ClientInstance
from turbopump.errors import NotStartedError


class Running(Protocol):
    """Object that exists from start to close. ``closing``: the close has begun."""

    instance: ClientInstance
    member: InstanceMember
    closing: bool


RunningT = TypeVar("RunningT", bound=Running)


class Lifecycle(Generic[RunningT]):
    """Life of one consumer; ``what`` is its class, as errors name it."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.running: RunningT | None = None
        """Set by the start; stays after the close, but for that of a start that failed."""
        self._close: asyncio.Task[None] | None = None

    def may_start(self) -> bool:
        """Return True if a start has something to do, False once it is started. Raises
        NotStartedError if it is started, but not ``ready``."""
        if self.running is None:
            return True
        self.ready()
        return False

    def started(self) -> RunningT:
        """Return the object that runs, or has run. Raises NotStartedError before the start."""
        if self.running is None:
            raise NotStartedError(
                f"this {self._what} is not started; use `async with {self._what}(...)` or `await "
                "consumer.start()`"
            )
        return self.running

    def ready(self) -> RunningT:
        """Return the object that runs. Raises NotStartedError before the start and after the close,
        in a fork and on another event loop."""
        running = self.started()
        running.instance.check_usable(self._what, running.member)
        return running

    async def undo_start(self, close: Callable[[RunningT], Coroutine[Any, Any, None]]) -> None:
        """Close what a failed start has made. The consumer may be started once more, unless
        somebody has closed it meanwhile."""
        closed = self._close is not None
        await self.close_once(close)
        if not closed:
            self.running = self._close = None

    async def close_once(
        self, close: Callable[[RunningT], Coroutine[Any, Any, None]], *, wait: bool = True
    ) -> None:
        """Close the running object, if there is one, once and to its end. A second call waits for
        the same close. A caller that is cancelled (a time-out) only stops waiting. ``wait`` False:
        return when the close has begun."""
        if self.running is None:
            return
        if self._close is None:
            self.running.closing = True
            loop, name = asyncio.get_running_loop(), f"close of a {self._what}"
            self._close = loop.create_task(close(self.running), name=name)
        await (asyncio.shield(self._close) if wait else asyncio.sleep(0))


# --- ``async with`` for all that is started and closed: each client, and what is made of one.


def no_copy(client: object) -> TypeError:
    """Return the error of pickling or copying a client."""
    return TypeError(
        f"a {type(client).__name__} cannot be pickled or copied, for its connections are of one "
        "process: make it where it is used, as in a function that each worker calls once"
    )


class InContext(ABC):
    """Client that is started when its ``async with`` block begins and closed when it ends."""

    @abstractmethod
    async def start(self) -> None:
        """Make ready."""

    @abstractmethod
    async def close(self) -> None:
        """Close. May be called twice."""

    def __reduce__(self) -> NoReturn:
        raise no_copy(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
