"""Functions that stand in for others in a test: they do nothing, return one value or raise one
error, whatever they are called with.

They are plain functions, so that they become methods when a class is patched with them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


def does_nothing(*_arguments: object, **_named: object) -> None: ...


async def async_does_nothing(*_arguments: object, **_named: object) -> None: ...


def returns(value: T) -> Callable[..., T]:
    """Make a function that returns ``value``."""

    def returning(*_arguments: object, **_named: object) -> T:
        return value

    return returning


def async_returns(value: T) -> Callable[..., Coroutine[Any, Any, T]]:
    """Make a coroutine function that returns ``value``."""

    async def returning(*_arguments: object, **_named: object) -> T:
        return value

    return returning


def raises(error: BaseException) -> Callable[..., NoReturn]:
    """Make a function that raises ``error``."""

    def raising(*_arguments: object, **_named: object) -> NoReturn:
        raise error

    return raising


def async_raises(error: BaseException) -> Callable[..., Coroutine[Any, Any, NoReturn]]:
    """Make a coroutine function that raises ``error``."""

    async def raising(*_arguments: object, **_named: object) -> NoReturn:
        raise error

    return raising
