"""The options of ``format("rocketmq")``: one table of names, and their typed values.

The one rule: every name that is accepted stands in the table with what it means (docs/spark.md
lists them; a test compares); anything else is refused with the nearest known name, because an
option that is silently ignored reads the wrong data. It must not know about brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from turbopump.config.addresses import parse_addresses
from turbopump.errors import ConfigError
from turbopump.spark.columns import COLUMN_NAMES, column_names
from turbopump.spark.offsets import Offsets, decode_offsets
from turbopump.spark.suggestion import did_you_mean

Place = str | Offsets
"""``"earliest"``, ``"latest"``, or offsets that may be EARLIEST or LATEST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read and how. Times are ms since 1970 UTC; None means not asked for."""

    name_servers: tuple[str, ...]
    topics: tuple[str, ...]
    starting: Place | None = None
    ending: Place | None = None
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    offsets_per_trigger_max: int | None = None
    columns: tuple[str, ...] = COLUMN_NAMES
    partitions_max: int | None = None
    pull_batch_size: int = 1024
    pull_timeout_ms: int = 10_000
    fail_on_data_loss: bool = True


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options as Spark hands them over (any case). Raises ConfigError in one sentence for what
    cannot be used."""
    given: dict[str, tuple[str, Any]] = {}
    for spelling, text in options.items():
        name, value = _read_option(spelling, text)
        field = _FIELDS[name][0]
        if field in given and given[field][1] != value:
            raise ConfigError(
                f"the options {given[field][0]!r} and {spelling!r} mean the same thing but "
                "differ: give one of them"
            )
        given[field] = (spelling, value)
    for field, example in (
        ("name_servers", "nameServer, such as 127.0.0.1:9876"),
        ("topics", "topic (or subscribe)"),
    ):
        if field not in given:
            raise ConfigError(f"it is not said what to read: give the option {example}")
    return ReadOptions(**{field: value for field, (_, value) in given.items()})


def _read_option(spelling: str, text: str) -> tuple[str, Any]:
    name = _SPELLED.get(spelling.lower())
    if name is None:
        raise ConfigError(
            f"unknown option {spelling!r}{did_you_mean(spelling, _FIELDS)}; "
            f"options: {', '.join(_FIELDS)}"
        )
    try:
        return name, _FIELDS[name][1](str(text).strip())
    except ConfigError as error:
        raise ConfigError(f"option {name}: {error}") from None


def _addresses(text: str) -> tuple[str, ...]:
    addresses = tuple(parse_addresses(text.replace(",", ";")))
    if not addresses:
        raise ConfigError("an address such as 127.0.0.1:9876 is expected, several separated by ;")
    return addresses


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(sorted({topic.strip() for topic in text.split(",") if topic.strip()}))
    if not topics:
        raise ConfigError("a topic is expected, several separated by commas")
    return topics


def _place(text: str) -> Place:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    if not text.startswith("{"):
        raise ConfigError(
            'earliest, latest or JSON such as {"T":{"broker-a":{"0":123}}} '
            f"is expected, not {text!r}"
        )
    return decode_offsets(text, what="its value", symbolic=True)


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
            raise ConfigError(f"a whole number from {low} to {high} is expected, not {text!r}")
        return int(text)

    return read


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"true or false is expected, not {text!r}")
    return text.lower() == "true"


_INSTANT_MS: Final = _whole(0, 2**53)
_FIELDS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "nameServer": ("name_servers", _addresses),
    "namesrvAddr": ("name_servers", _addresses),
    "topic": ("topics", _topics),
    "subscribe": ("topics", _topics),
    "startingOffsets": ("starting", _place),
    "endingOffsets": ("ending", _place),
    "startingTimestamp": ("starting_timestamp_ms", _INSTANT_MS),
    "endingTimestamp": ("ending_timestamp_ms", _INSTANT_MS),
    "maxOffsetsPerTrigger": ("offsets_per_trigger_max", _whole(1, 2**53)),
    "columns": ("columns", column_names),
    "maxPartitions": ("partitions_max", _whole(1, 100_000)),
    "pullBatchSize": ("pull_batch_size", _whole(1, 65_536)),
    "pullTimeoutMs": ("pull_timeout_ms", _whole(1, 600_000)),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
}
OPTION_NAMES: Final = tuple(_FIELDS)
_SPELLED: Final = {name.lower(): name for name in _FIELDS}
