"""Rules for settings. A rule tests a value, and has the text of the error about an unusable value.

A settings class declares each setting as one field: ``retries: int = setting(2, whole_from(0))``.
The text below a field is its row in docs/reference/client-settings.md. One rule: an unusable
setting is refused when its object is created, with advice. This module must not know which settings
exist.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

from turbopump.errors import ConfigError
from turbopump.message.rules import is_unicode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SettingRule:
    """Rule for the values of a setting.

    - ``fits``: returns True for a usable value.
    - ``wants``: text for the error about other values.
    - ``unit``: unit of numbers.
    """

    fits: Callable[[Any], bool]
    wants: str
    unit: str = ""

    def or_none(self) -> SettingRule:
        """Return a rule that also accepts None."""

        def fits(value: object) -> bool:
            return value is None or self.fits(value)

        return SettingRule(fits, f"{self.wants}, or None", self.unit)

    def check(self, name: str, value: object) -> None:
        """Raise ConfigError if ``value`` is unusable for the setting ``name``."""
        if not self.fits(value):
            raise ConfigError(f"{name}={value!r:.80} {self.wants}")


def setting(default: T, rule: SettingRule) -> T:
    """Declare a field of a settings class, with its default and its rule."""
    return field(default=default, metadata={"rule": rule})


def check_settings(settings: DataclassInstance) -> None:
    """Raise ConfigError for the first field with an unusable value."""
    for known in fields(settings):
        rule: SettingRule | None = known.metadata.get("rule")
        if rule is not None:
            rule.check(known.name, getattr(settings, known.name))


def is_whole(value: object) -> bool:
    """Return True for a whole number. Booleans are not accepted."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_whole_above_0(value: object) -> bool:
    """Return True for a whole number above 0."""
    return is_whole(value) and value > 0  # type: ignore[operator]


def is_seconds(value: object) -> bool:
    """Return True for a finite number above 0."""
    return is_number(value) and 0 < value < float("inf")  # type: ignore[operator]


def is_number(value: object) -> bool:
    """Return True for a number that fits in a float, including inf and nan. Booleans are not
    accepted."""
    return isinstance(value, float) or (is_whole(value) and abs(value) < 2**1023)  # type: ignore[arg-type]


def is_name(value: object) -> bool:
    """Return True for text that UTF-8 can encode. Blank text is not accepted."""
    return isinstance(value, str) and bool(value.strip()) and is_unicode(value)


def is_text(value: object) -> bool:
    """Return True for text that can be encoded as UTF-8."""
    return isinstance(value, str) and is_unicode(value)


def is_path(value: object) -> bool:
    """Return True for a path that is not empty."""
    return isinstance(value, str | os.PathLike) and bool(str(value))


def is_a(*kinds: type) -> Callable[[object], bool]:
    """Return a function that returns True for an object of one of these classes."""

    def fits(value: object) -> bool:
        return isinstance(value, kinds)

    return fits


def has_methods(*names: str) -> Callable[[object], bool]:
    """Return a function that returns True for an object with all of these methods. Classes are not
    accepted."""

    def fits(value: object) -> bool:
        if isinstance(value, type):
            return False
        return all(callable(getattr(value, name, None)) for name in names)

    return fits


def whole_between(least: int, most: int) -> Callable[[object], bool]:
    """Return a function that returns True for a whole number from ``least`` to ``most``."""

    def fits(value: object) -> bool:
        return is_whole(value) and least <= value <= most  # type: ignore[operator]

    return fits


def number_between(least: float, most: float) -> Callable[[object], bool]:
    """Return a function that returns True for a number from ``least`` to ``most``."""

    def fits(value: object) -> bool:
        return is_number(value) and least <= value <= most  # type: ignore[operator]

    return fits


def _is_function(value: object) -> bool:
    return callable(value) and not _is_generator_function(value)


def _is_generator_function(value: object) -> bool:
    functions = (value, getattr(value, "__call__", None))  # noqa: B004
    return any(
        inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        for function in functions
    )


def whole_from(least: int, of: str = "") -> SettingRule:
    """Return a rule: the value is a whole number, at least ``least``.

    The number must fit in 32 signed bits, as in requests.
    """
    return SettingRule(
        whole_between(least, 2**31 - 1), f"must be a whole number{of}, {least} or more"
    )


SECONDS: Final = SettingRule(is_seconds, "must be a number of seconds above 0", "s")
SECONDS_OR_0: Final = SettingRule(
    number_between(0, sys.float_info.max), "must be a number of seconds, 0 or more", "s"
)
BYTES: Final = SettingRule(is_whole_above_0, "must be a number of bytes above 0", "bytes")
SWITCH: Final = SettingRule(is_a(bool), "must be True or False")
FUNCTION: Final = SettingRule(
    _is_function, "must be a function without yield: a call of a generator function runs nothing"
)
TOPIC: Final = SettingRule(is_a(str), "must be the name of a topic, as in 'orders'")
OFFSET: Final = SettingRule(
    whole_between(0, 2**63 - 1), "must be a whole number, an offset in the queue"
)
TIMEOUT: Final = SettingRule(
    lambda value: is_number(value) and value < float("inf"),
    "must be a number of seconds, and finite",
)


def check_timeout(timeout: float | None) -> None:
    """Raise ConfigError if a call's ``timeout`` is neither a number of seconds nor None.

    None is the default. A number of 0 or below is accepted: the call then times out.
    """
    if timeout is not None and not TIMEOUT.fits(timeout):
        raise ConfigError(
            f"timeout={timeout!r:.80} {TIMEOUT.wants}, as in 3.0; omit it for the default"
        )


def is_collection(value: object) -> TypeGuard[Collection[object]]:
    """Return True for a collection of values. A text is a single value, so it is not accepted."""
    return isinstance(value, Collection) and not isinstance(value, str | bytes)
