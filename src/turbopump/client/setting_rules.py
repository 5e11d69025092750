"""What settings must be, as tables: a name, what fits, and the words for what does not.

One rule: a setting that cannot work is refused where the object is made that has it, with what to give instead; no check waits for a first
use. It must not know what a setting does.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from turbopump.client.namespace import wrap
from turbopump.errors import ConfigError
from turbopump.message.rules import NOT_SENDABLE_TOPICS, group_fault, topic_fault


@dataclass(frozen=True, slots=True)
class Rule:
    """``fits``: whether a value can be used; ``wants``: what is said of one that cannot, behind its name and itself."""

    fits: Callable[[Any], bool]
    wants: str

    def or_none(self) -> Rule:
        """The same, and None fits too."""
        fits = self.fits
        return Rule(lambda value: value is None or fits(value), self.wants)


def check(rules: Mapping[str, Rule], values: Mapping[str, object]) -> None:
    """Raises ConfigError for the first value that does not fit the rule of its name."""
    for name, rule in rules.items():
        if not rule.fits(values[name]):
            raise ConfigError(f"{name}={values[name]!r:.80} {rule.wants}")


def is_whole(value: object) -> bool:
    """A whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_seconds(value: object) -> bool:
    """A finite number above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_address(value: object) -> bool:
    try:
        ipaddress.ip_address(value if isinstance(value, str) else "")
    except ValueError:
        return False
    return True


def _is_trace(value: object) -> bool:
    if value is None or isinstance(value, bool):
        return True
    return isinstance(value, str) and topic_fault(value) is None and value not in NOT_SENDABLE_TOPICS


_NAME: Final = Rule(_is_name, "must be text that is not empty; leave it out, or give it a value").or_none()

INSTANCE_RULES: Final[Mapping[str, Rule]] = {"instance_name": _NAME, "unit_name": _NAME, "namespace_v2": _NAME}
NAMESPACE_RULES: Final[Mapping[str, Rule]] = {"namespace": _NAME}
SURROUNDINGS_RULES: Final[Mapping[str, Rule]] = {
    "local_ip": Rule(_is_address, "is no address: an IP as in '10.0.0.7' is expected, or None to have it found").or_none(),
}
TRACE_RULES: Final[Mapping[str, Rule]] = {
    "trace": Rule(
        _is_trace, "must be True for RMQ_SYS_TRACE_TOPIC, False for no traces, or the name of a topic that may be sent to"
    ),
}


def group_in(namespace: str | None, group: str) -> str:
    """The group as brokers know it. Raises ConfigError if namespace or group cannot be."""
    check(NAMESPACE_RULES, {"namespace": namespace})
    wrapped = wrap(namespace, group)
    fault = group_fault(wrapped)
    if fault is not None:
        raise ConfigError(fault)
    return wrapped
