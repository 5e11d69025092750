"""What the settings of idempotent consumers and their stores must be."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from turbopump.client.setting_rules import (
    FUNCTION,
    SECONDS,
    SECONDS_OR_0,
    SURROUNDINGS_RULES,
    SWITCH,
    Rule,
    is_name,
    is_number,
    whole_from,
)
from turbopump.message.rules import is_unicode

LEAST_S: Final = 0.001
"""Stores count milliseconds."""
MOST_S: Final = 1e9
"""31 years: more than a store could count was meant as for ever."""
_STORE_METHODS: Final = ("claim", "renew", "finish", "release", "close")


def _is_store(value: object) -> bool:
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in _STORE_METHODS
    )


_SECONDS: Final = Rule(
    lambda value: is_number(value) and LEAST_S <= value <= MOST_S,
    f"must be a number of seconds from {LEAST_S} to {MOST_S:.0f}",
)

IDEMPOTENCE_RULES: Final[Mapping[str, Rule]] = {
    "key": Rule(
        lambda value: is_name(value) or callable(value),
        "must be the name of a property, as in 'order_id', or a function of a message that "
        "returns its key",
    ),
    "store": Rule(
        _is_store,
        "is no store: SqliteStore('done.db'), RedisStore(url), MemoryStore() or one "
        "of your own is expected",
    ),
    "name": Rule(
        lambda value: isinstance(value, str) and is_unicode(value), "must be text, in valid Unicode"
    ),
    "keep": _SECONDS,
    "lease": _SECONDS,
    "wait": SECONDS_OR_0,
    "threads": whole_from(1, " of handlers at once"),
    "random": SURROUNDINGS_RULES["random"],
}
HANDLER_RULES: Final[Mapping[str, Rule]] = {"handler": FUNCTION}
MEMORY_RULES: Final[Mapping[str, Rule]] = {
    "max_keys": whole_from(1, " of keys"),
    "clock": SURROUNDINGS_RULES["clock"],
}
SQLITE_RULES: Final[Mapping[str, Rule]] = {
    **MEMORY_RULES,
    "path": Rule(
        lambda value: isinstance(value, str | os.PathLike) and bool(str(value)),
        "must be the path of a file",
    ),
    "durable": SWITCH,
}
REDIS_RULES: Final[Mapping[str, Rule]] = {
    "url": Rule(is_name, "must be text, as in 'redis://host:6379/0'"),
    "prefix": Rule(is_name, "must be text that is not empty, as in 'turbopump'"),
    "max_keys": whole_from(1, " of keys"),
    "timeout": SECONDS,
}
