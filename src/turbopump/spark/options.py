"""The options of ``format("rocketmq")``: one table of names, and their typed values.

The one rule: every name that is accepted stands in the table with what it means
(docs/reference/spark.md lists them; a test compares); anything else is refused with the nearest
known name, because an option that is silently ignored reads the wrong data. It must not know about
brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import pyarrow as pa

from turbopump.config.addresses import parse_addresses
from turbopump.errors import ConfigError
from turbopump.spark.offsets import Offsets, decode_offsets


# The nearest known name to a misspelt one, for error sentences.
def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'topic'?"`` if a known name is near (case does not matter), else ``""``."""
    spelled = {candidate.lower(): candidate for candidate in known}
    near = get_close_matches(name.lower(), spelled, n=1, cutoff=0.6)
    return f"; did you mean {spelled[near[0]]!r}?" if near else ""


# The columns of a row that is read: names, order and Arrow types. The one rule: this table is
# the promise to users (docs/reference/spark.md). Columns may be added at its end, never renamed,
# retyped or reordered.
_INSTANT: Final = pa.timestamp("us", tz="UTC")

READ_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("commitLogOffset", pa.int64()),
        ("msgId", pa.string()),
        ("offsetMsgId", pa.string()),
        ("keys", pa.string()),
        ("tags", pa.string()),
        ("body", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("flag", pa.int32()),
        ("sysFlag", pa.int32()),
        ("bodyCrc", pa.int32()),
        ("bornTimestamp", _INSTANT),
        ("storeTimestamp", _INSTANT),
        ("bornHost", pa.string()),
        ("storeHost", pa.string()),
        ("reconsumeTimes", pa.int32()),
        ("preparedTransactionOffset", pa.int64()),
        ("storeSize", pa.int32()),
    ]
)
COLUMN_NAMES: Final[tuple[str, ...]] = tuple(READ_SCHEMA.names)


def column_names(text: str) -> tuple[str, ...]:
    """The column names in a comma-separated list, in their own order and with their exact spelling
    (case does not matter in ``text``).

    Raises ConfigError for an unknown name (with the nearest known one), a repeated one, or an empty
    list.
    """
    spelled = {name.lower(): name for name in COLUMN_NAMES}
    names: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name = spelled.get(part.lower())
        if name is None:
            raise ConfigError(
                f"there is no column {part!r}{did_you_mean(part, COLUMN_NAMES)}; columns: "
                f"{', '.join(COLUMN_NAMES)}"
            )
        if name in names:
            raise ConfigError(f"column {name!r} is listed twice")
        names.append(name)
    if not names:
        raise ConfigError("the option columns names no column; leave it out to read them all")
    return tuple(names)


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    """These columns as the Arrow schema that Spark compares batches against, exactly."""
    return pa.schema([READ_SCHEMA.field(name) for name in names])


WantedOffsets = str | Offsets
"""``"earliest"``, ``"latest"``, or offsets that may be EARLIEST or LATEST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read and how. Times are ms since 1970 UTC; None means not asked for."""

    name_servers: tuple[str, ...]
    topics: tuple[str, ...]
    starting: WantedOffsets | None = None
    ending: WantedOffsets | None = None
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


def _wanted_offsets(text: str) -> WantedOffsets:
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
    "startingOffsets": ("starting", _wanted_offsets),
    "endingOffsets": ("ending", _wanted_offsets),
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
