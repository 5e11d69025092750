"""Wrappers that turn an asyncio client into a blocking client. The asyncio client runs on the loop
thread.

``waits``, ``waits_anytime`` and ``on_loop`` make a blocking method from a method of the asyncio
class. ``made_as`` does the same for the constructor. Parameters and result keep their types
(``ParamSpec``), so type checkers, editors and ``help()`` show the same as for the asyncio class.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol, Self, TypeVar

from turbopump.client.lifecycle import no_copy
from turbopump.client.loop_thread import (
    LoopThread,
    leave_behind,
    refuse_on_loop_thread,
    the_loop_thread,
)
from turbopump.errors import NotStartedError

P = ParamSpec("P")
SelfT = TypeVar("SelfT")
T = TypeVar("T")


class _Client(Protocol):
    async def start(self) -> None: ...
    async def close(self) -> None: ...


class _Member(_Client, Protocol):
    group: str


ClientT = TypeVar("ClientT", bound=_Client)
MemberT = TypeVar("MemberT", bound=_Member)
FaceT = TypeVar("FaceT", bound="OnLoopThread[Any]")


def waits(
    method: Callable[Concatenate[SelfT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return a blocking method that runs this coroutine method of an asyncio client."""
    # A second parameter would make mypy keep only the first overload of ``method``.
    return _face(method, lambda self, *args, **kwargs: self._call(*args, **kwargs))


def waits_anytime(
    method: Callable[Concatenate[SelfT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return a blocking method that runs this coroutine method, even before ``start``."""
    return _face(method, lambda _, *args, **kwargs: the_loop_thread().call(*args, **kwargs))


def on_loop(method: Callable[Concatenate[SelfT, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a blocking method for a plain ``method`` of the asyncio client. The call runs on the
    client's event loop."""
    return _face(method, lambda self, *args, **kwargs: self._call(now, *args, **kwargs))


def starts(
    method: Callable[Concatenate[SelfT, P], Coroutine[Any, Any, asyncio.Future[T]]],
) -> Callable[Concatenate[Any, P], Future[T]]:
    """Return a method like ``method``. It returns a ``concurrent.futures.Future`` instead of an
    asyncio future."""
    name = method.__name__

    @wraps(method)
    def start(self: OnLoopThread[Any], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        outcome: Future[T] = Future()
        outcome.set_running_or_notify_cancel()

        def settle(ended: asyncio.Future[T]) -> None:
            error = CancelledError() if ended.cancelled() else ended.exception()
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(ended.result())

        async def begin(client: Any) -> None:
            future: asyncio.Future[T] = await getattr(client, name)(*args, **kwargs)
            future.add_done_callback(settle)

        self._call(begin, self._ready())
        return outcome

    return start


def _face(method: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    name = method.__name__

    @wraps(method)
    def face(self: OnLoopThread[Any], /, *args: Any, **kwargs: Any) -> Any:
        return call(self, getattr(self._ready(), name), *args, **kwargs)

    return face


async def now(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a plain function from a coroutine, and return its result."""
    return function(*args, **kwargs)


def made_as(
    client: Callable[P, ClientT],
) -> Callable[[Callable[[FaceT, Mapping[str, Any]], None]], Callable[Concatenate[FaceT, P], None]]:
    """Return a decorator for a blocking class's constructor. The constructor gets the asyncio
    client's signature.

    The decorated function is called afterwards with the keywords.
    """

    def decorate(
        then: Callable[[FaceT, Mapping[str, Any]], None],
    ) -> Callable[Concatenate[FaceT, P], None]:
        @wraps(client.__init__)
        def init(self: FaceT, /, *args: P.args, **kwargs: P.kwargs) -> None:
            OnLoopThread.__init__(self, lambda: client(*args, **kwargs))
            then(self, kwargs)

        return init

    return decorate


class OnLoopThread(Generic[ClientT]):
    """Client with blocking methods. Its asyncio client runs on the loop thread.

    In a forked child a started client is created again, if its class allows that.
    """

    _survives_fork = True

    def __init__(self, make: Callable[[], ClientT]) -> None:
        self._make = make
        self._client = make()  # raises ConfigError now for unusable settings
        self._state = "new"
        self._pid = os.getpid()
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the client. Later calls do nothing.

        Raises the errors of the asyncio client's ``start``.
        """
        self._heal_after_fork()
        with self._lock:
            if self._state == "new":
                self._thread = the_loop_thread()
                self._state = "started"
        self._call(self._client.start)

    def close(self) -> None:
        """Close the client. A second call does nothing, and neither does a call in a forked
        child."""
        if self._state == "started" and self._pid == os.getpid():
            self._call(self._client.close)
        self._state = "closed"

    def __reduce__(self) -> NoReturn:
        raise no_copy(self)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(
        self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any
    ) -> T:
        if self._thread is None:
            name = type(self).__name__
            raise NotStartedError(
                f"this {name} is not started; use `with {name}(...)` or call start()"
            )
        return self._thread.call(function, *args, **kwargs)

    def _ready(self) -> ClientT:
        if self._pid != os.getpid():
            self._heal_after_fork()
        return self._client

    def _heal_after_fork(self) -> None:
        """Make this client usable in a forked child, once. Other threads of the child wait
        meanwhile."""
        if self._pid == os.getpid():
            return
        if not self._survives_fork and self._state != "new":
            raise NotStartedError(
                f"this {type(self).__name__} was started in process {self._pid} and is used in "
                f"its fork {os.getpid()}; start a new one after the fork"
            )
        refuse_on_loop_thread()  # the new client starts on the loop, which must not wait
        with _healing:
            if self._pid == os.getpid():
                return
            self._lock = threading.Lock()
            # otherwise the client has no state of the parent, and its subscriptions are kept
            if self._state != "new":
                leave_behind(self._client)
                self._client = self._make()
            self._thread = the_loop_thread() if self._state == "started" else None
            if self._thread is not None:
                self._call(self._client.start)
            self._pid = os.getpid()  # last: from now on other threads do not wait


class Facet(Generic[T]):
    """Part of a blocking client, such as ``admin.topics``. It stands for the same part of the
    asyncio client."""

    def __init__(self, client: OnLoopThread[Any], name: str) -> None:
        self._of = client
        self._name = name

    def _ready(self) -> T:
        part: T = getattr(self._of._ready(), self._name)
        return part

    def _call(
        self, function: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        return self._of._call(function, *args, **kwargs)


class ClientOfGroup(OnLoopThread[MemberT]):
    """Blocking client that belongs to a group."""

    @property
    def group(self) -> str:
        return self._client.group

    @property
    def client_id(self) -> str:
        """Name under which brokers know this client."""
        client_id: str = self._call(now, getattr, self._ready(), "client_id")
        return client_id


_healing = threading.Lock()
"""Lock of the thread that creates a client again in a forked child."""


def _after_fork() -> None:
    """Create a new lock in a forked child, because the old one may belong to a thread of the
    parent."""
    global _healing
    _healing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
