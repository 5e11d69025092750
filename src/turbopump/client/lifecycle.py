"""Lifecycle of a consumer: not started, started, closed. It also guards the object that exists from
start to close.

One rule: the running object is reached only through this module. A call that comes too early, too
late, in a forked child or on another event loop raises the same error in each client. This module
must not know what the object does.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Generic, NoReturn, Protocol, Self, TypeVar

from turbopump.errors import NotStartedError

if TYPE_CHECKING:  # an Admin needs no instance
    from turbopump.client.heartbeat import InstanceMember
    from turbopump.client.instance import ClientInstance


class Running(Protocol):
    """Internal object of a consumer that exists from start to close.

    - ``closing``: True once the close has begun.
    """

    instance: ClientInstance
    member: InstanceMember
    closing: bool

    async def close(self) -> None: ...


RunningT = TypeVar("RunningT", bound=Running)


def not_started(what: str, name: str) -> NotStartedError:
    """Return the error for using a client before its start.

    - ``what``: name of the client's class.
    - ``name``: name of a variable for the code in the advice.
    """
    return NotStartedError(
        f"this {what} is not started; use `async with {what}(...)` or `await {name}.start()`"
    )


class Lifecycle(Generic[RunningT]):
    """State of one consumer: not started, started or closed.

    - ``what``: name of the consumer's class, for errors.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.running: RunningT | None = None
        """Object that the start has created, or None. A failed start removes the object, a close
        does not."""
        self._close: asyncio.Task[None] | None = None

    def may_start(self) -> bool:
        """Return True if the consumer is not started yet, and False if it is running.

        Raises NotStartedError if the consumer is closed, or was started in another process or event
        loop.
        """
        if self.running is None:
            return True
        self.ready()
        return False

    def started(self) -> RunningT:
        """Return the running object, even after the close.

        Raises NotStartedError before the start.
        """
        if self.running is None:
            raise not_started(self._what, "consumer")
        return self.running

    def ready(self) -> RunningT:
        """Return the running object, if the consumer can be used now.

        Raises NotStartedError before the start, after the close, in a forked child and on another
        event loop.
        """
        running = self.started()
        running.instance.check_usable(self._what, running.member)
        return running

    async def undo_start(self) -> None:
        """Close the running object after a failed start.

        The consumer may be started again, unless it was closed in the meantime.
        """
        closed = self._close is not None
        await self.close_once()
        if not closed:
            self.running = None
            self._close = None

    async def close_once(self, *, wait: bool = True) -> None:
        """Close the running object exactly once, if there is one.

        A second call waits for the same close. If a caller is cancelled, for example by a time-out,
        the close continues. With ``wait=False`` the call returns once the close has begun.
        """
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
    """Return the error for an attempt to pickle or copy a client."""
    return TypeError(
        f"a {type(client).__name__} cannot be pickled or copied, because its connections "
        "belong to one process: create it where it is used, as in a function that each "
        "worker calls once"
    )


class InContext(ABC):
    """Client for ``async with``. The block starts the client on entry, and closes the client on
    exit."""

    @abstractmethod
    async def start(self) -> None:
        """Start the client."""

    @abstractmethod
    async def close(self) -> None:
        """Close the client. A second call is harmless."""

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
