"""What settings must be, as tables: a name, what fits, and the words for what does not.

One rule: a setting that cannot work is refused where the object is made that has it, with what to
give instead; no check waits for a first use. It must not know what a setting does.
"""

from __future__ import annotations

import inspect
import ipaddress
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from turbopump.client.namespace import wrap
from turbopump.config.tls import ClientTls
from turbopump.errors import ConfigError
from turbopump.message.rules import NOT_SENDABLE_TOPICS, group_fault, is_unicode, topic_fault


@dataclass(frozen=True, slots=True)
class SettingRule:
    """``fits``: whether a value can be used; ``wants``: what is said of one that cannot."""

    fits: Callable[[Any], bool]
    wants: str

    def or_none(self) -> SettingRule:
        """The same, and None fits too."""
        fits = self.fits
        return SettingRule(lambda value: value is None or fits(value), f"{self.wants}, or None")


def check(rules: Mapping[str, SettingRule], values: Mapping[str, object]) -> None:
    """Raises ConfigError for the first of ``values`` that does not fit the rule of its name."""
    for name, rule in rules.items():
        if not rule.fits(values[name]):
            raise ConfigError(f"{name}={values[name]!r:.80} {rule.wants}")


def check_fields(rules: Mapping[str, SettingRule], settings: object) -> None:
    """``check`` of the attributes of an object, which the rules are named after."""
    check(rules, {name: getattr(settings, name) for name in rules})


def is_whole(value: object) -> bool:
    """A whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_seconds(value: object) -> bool:
    """A finite number above 0."""
    return is_number(value) and 0 < value < float("inf")  # type: ignore[operator]


def is_number(value: object) -> bool:
    """A number that a float can be, also inf and nan; True and False are none."""
    return isinstance(value, float) or (is_whole(value) and abs(value) < 2**1023)  # type: ignore[arg-type]


def is_name(value: object) -> bool:
    """Text that is not blank, and can be written as UTF-8."""
    return isinstance(value, str) and bool(value.strip()) and is_unicode(value)


def _is_generator_function(value: object) -> bool:
    functions = (value, getattr(value, "__call__", None))  # noqa: B004
    return any(
        inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        for function in functions
    )


def whole_from(least: int, of: str = "") -> SettingRule:
    """A whole number of at least ``least``, that fits in 32 bits with a sign, as it travels."""
    return SettingRule(
        lambda value: is_whole(value) and least <= value < 2**31,
        f"must be a whole number{of}, {least} or more",
    )


SECONDS: Final = SettingRule(is_seconds, "must be a number of seconds above 0")
SECONDS_OR_0: Final = SettingRule(
    lambda value: is_number(value) and 0 <= value < float("inf"),
    "must be a number of seconds, 0 or more",
)
SWITCH: Final = SettingRule(lambda value: isinstance(value, bool), "must be True or False")
FUNCTION: Final = SettingRule(
    lambda value: callable(value) and not _is_generator_function(value),
    "must be a function, and one without yield: to call one with it runs nothing",
)
TOPIC: Final = SettingRule(
    lambda value: isinstance(value, str), "is no topic: its name is expected, as in 'orders'"
)
TIMEOUT: Final = SettingRule(
    lambda value: is_number(value) and value < float("inf"),
    "must be a number of seconds, and finite",
)


def check_timeout(timeout: float | None) -> None:
    """Of a single call: seconds, or None for the usual. Raises ConfigError. A time that is over is
    no wrong setting: the call itself fails then."""
    if timeout is not None and not TIMEOUT.fits(timeout):
        raise ConfigError(
            f"timeout={timeout!r:.80} {TIMEOUT.wants}, as in 3.0; leave it out for what is usual"
        )


def _is_address(value: object) -> bool:
    try:
        ipaddress.ip_address(value if isinstance(value, str) else "")
    except ValueError:
        return False
    return True


def _is_clock(value: object) -> bool:
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("now_ms", "monotonic")
    )


def _is_trace(value: object) -> bool:
    if value is None or isinstance(value, bool):
        return True
    return (
        isinstance(value, str) and topic_fault(value) is None and value not in NOT_SENDABLE_TOPICS
    )


def is_collection(value: object) -> TypeGuard[Collection[object]]:
    """Several values; a text is one."""
    return isinstance(value, Collection) and not isinstance(value, str | bytes)


_NAME: Final = SettingRule(
    lambda value: value is None or is_name(value),
    "must be text that is not empty; leave it out, or give it a value in valid Unicode",
)

NAME_SERVER_RULES: Final[Mapping[str, SettingRule]] = {
    "namesrv": SettingRule(
        lambda value: (
            isinstance(value, str)
            or (is_collection(value) and all(isinstance(one, str) for one in value))
        ),
        "is no name server: HOST:PORT is expected, as in '127.0.0.1:9876', or a list of them",
    )
}
INSTANCE_RULES: Final[Mapping[str, SettingRule]] = {
    "route_interval": SECONDS,
    "heartbeat_interval": SettingRule(
        lambda value: is_seconds(value) and value < 120,
        "must be a number of seconds above 0 and below 120: brokers forget a client that is "
        "silent for so long",
    ),
    "commit_interval": SECONDS,
    "call_timeout": SECONDS,
    "header_form": SettingRule(
        lambda value: value in ("JSON", "ROCKETMQ") if isinstance(value, str) else False,
        "must be 'JSON' or 'ROCKETMQ'",
    ),
    "instance_name": _NAME,
    "unit_name": _NAME,
    "unit_mode": SWITCH,
    "vip_channel_enabled": SWITCH,
    "async_permits": whole_from(1),
    "oneway_permits": whole_from(1),
    "namespace_v2": _NAME,
    "tls": SettingRule(
        lambda value: isinstance(value, bool | ClientTls),
        "must be True, False or a ClientTls, as in ClientTls(trust='ca.pem')",
    ),
}
GROUP_RULES: Final[Mapping[str, SettingRule]] = {
    "namespace": _NAME,
    "group": SettingRule(
        lambda value: isinstance(value, str), "is no group: its name is expected, as in 'billing'"
    ),
}
ENVIRONMENT_RULES: Final[Mapping[str, SettingRule]] = {
    "clock": SettingRule(
        lambda value: value is None or _is_clock(value),
        "is no clock: an object with now_ms() and monotonic() is expected, or None",
    ),
    "random": SettingRule(
        lambda value: isinstance(value, random.Random),
        "is no random.Random, as in random.Random(7)",
    ).or_none(),
    "local_ip": SettingRule(
        lambda value: value is None or _is_address(value),
        "is no address: an IP as in '10.0.0.7' is expected, or None to have it found",
    ),
}
TRACE_RULES: Final[Mapping[str, SettingRule]] = {
    "trace": SettingRule(
        _is_trace,
        "must be True for RMQ_SYS_TRACE_TOPIC, False for no traces, or the name of a "
        "topic that may be sent to",
    )
}


def group_in(namespace: str | None, group: str) -> str:
    """The group as brokers know it. Raises ConfigError if namespace or group cannot be."""
    check(GROUP_RULES, {"namespace": namespace, "group": group})
    wrapped = wrap(namespace, group)
    fault = group_fault(wrapped)
    if fault is not None:
        raise ConfigError(fault)
    return wrapped
