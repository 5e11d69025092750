"""States of a consumer (not started, started, closed), and the object that exists from start to
close.

One rule: the running object is reached only through this module. A call that comes too early, too
late, in a forked child or on another event loop raises the same error in each client. This module
must not know what the object does.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Generic, NoReturn, Protocol, Self, TypeVar

from turbopump.client.heartbeat import InstanceMember
from turbopump.client.instance import ClientInstance
from turbopump.errors import NotStartedError


class Running(Protocol):
    """Object that exists from start to close. ``closing``: True once the close has begun."""

    instance: ClientInstance
    member: InstanceMember
    closing: bool

    async def close(self) -> None: ...


RunningT = TypeVar("RunningT", bound=Running)


def not_started(what: str, name: str) -> NotStartedError:
    """Return the error of a ``what`` that is used before its start. ``name``: a variable's name for
    the advice."""
    return NotStartedError(
        f"this {what} is not started; use `async with {what}(...)` or `await {name}.start()`"
    )


class Lifecycle(Generic[RunningT]):
    """State of one consumer. ``what``: name of its class, for errors."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.running: RunningT | None = None
        """Object set by the start. It stays after the close, but is removed after a failed
        start."""
        self._close: asyncio.Task[None] | None = None

    def may_start(self) -> bool:
        """Return True if the consumer is not started yet, False if it is. Raises NotStartedError if
        it was started and is not ``ready``."""
        if self.running is None:
            return True
        self.ready()
        return False

    def started(self) -> RunningT:
        """Return the running object, also after the close. Raises NotStartedError before the
        start."""
        if self.running is None:
            raise not_started(self._what, "consumer")
        return self.running

    def ready(self) -> RunningT:
        """Return the running object. Raises NotStartedError before the start, after the close, in a
        forked child and on another event loop."""
        running = self.started()
        running.instance.check_usable(self._what, running.member)
        return running

    async def undo_start(self) -> None:
        """Close the object of a failed start. The consumer may be started again, unless it was
        closed meanwhile."""
        closed = self._close is not None
        await self.close_once()
        if not closed:
            self.running = None
            self._close = None

    async def close_once(self, *, wait: bool = True) -> None:
        """Close the running object, if any, exactly once. A second call waits for the same close.
        If a caller is cancelled (a time-out), the close continues. ``wait`` False: return once the
        close has begun."""
        if self.running is None:
            return
        if self._close is None:
            self.running.closing = True
            self._close = asyncio.get_running_loop().create_task(
                self.running.close(), name=f"close of a {self._what}"
            )
        if wait:
            await asyncio.shield(self._close)
        else:
            await asyncio.sleep(0)  # let the close begin


def no_copy(client: object) -> TypeError:
    """Return the error for pickling or copying a client."""
    return TypeError(
        f"a {type(client).__name__} cannot be pickled or copied, because its connections "
        "belong to one process: create it where it is used, as in a function that each "
        "worker calls once"
    )


class InContext(ABC):
    """Client that is started at the beginning of its ``async with`` block and closed at the end."""

    @abstractmethod
    async def start(self) -> None:
        """Start the client."""

    @abstractmethod
    async def close(self) -> None:
        """Close the client. May be called twice."""

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
