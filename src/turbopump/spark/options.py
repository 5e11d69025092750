"""Options of ``format("rocketmq")``: a table of all names, and the typed values.

Every accepted name is in the table with its meaning (docs/reference/spark.md lists them; a test
compares). Any other name is refused with the nearest known one, because an option that is silently
ignored reads the wrong data. Brokers are unknown here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

import pyarrow as pa

from turbopump.auth.credentials import SECRET_FIELDS, credentials_of
from turbopump.auth.signatures import Credentials
from turbopump.config.addresses import parse_addresses
from turbopump.config.tls import VARIABLES, ClientTls, tls_of
from turbopump.errors import ConfigError
from turbopump.filtering.sql92 import SqlError, compile_sql
from turbopump.filtering.tag import list_fault
from turbopump.message.message import MessageQueue
from turbopump.message.rules import group_fault
from turbopump.spark.offsets import Offsets, decode_offsets


# Suggestion of a known name for a misspelt one, for errors.
def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the most similar known name, for example ``"; did you mean 'topic'?"``.

    Return ``""`` if no known name is similar. The case of names is ignored.
    """
    spelled = {candidate.lower(): candidate for candidate in known}
    near = get_close_matches(name.lower(), spelled, n=1, cutoff=0.6)
    return f"; did you mean {spelled[near[0]]!r}?" if near else ""


# The columns of a read: names, order and Arrow types. The rule: this table is a promise to users
# (docs/reference/spark.md). Columns may be added at its end, but never renamed, reordered or given
# another type.
_INSTANT: Final = pa.timestamp("us", tz="UTC")
BODY_FAULT: Final = "bodyFault"
"""Column with the reason why ``body`` has the stored bytes. Either the body cannot be decompressed,
or its batch cannot be split."""

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
        (BODY_FAULT, pa.string()),
    ]
)
COLUMN_NAMES: Final[tuple[str, ...]] = tuple(READ_SCHEMA.names)
_COLUMNS_OF_KAFKA: Final = {
    "key": "keys (or properties['__SHARDINGKEY'])",
    "value": "body",
    "partition": "queueId",
    "offset": "queueOffset",
    "timestamp": "storeTimestamp",
    "headers": "properties",
}


def column_names(text: str, known: Iterable[str] = COLUMN_NAMES) -> tuple[str, ...]:
    """Parse a comma-separated list of columns. Return their exact names in the same order.

    The case of names in ``text`` is ignored. Raises ConfigError for an unknown name (with the most
    similar known one), a repeated one, or an empty list.
    """
    spelled = {name.lower(): name for name in known}
    names: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name = spelled.get(part.lower())
        if name is None and part.lower() in _COLUMNS_OF_KAFKA:
            raise ConfigError(
                f"the column {part!r} of Spark's Kafka source is {_COLUMNS_OF_KAFKA[part.lower()]} "
                "here"
            )
        if name is None:
            raise ConfigError(
                f"unknown column {part!r}{did_you_mean(part, spelled.values())}; columns: "
                f"{', '.join(spelled.values())}"
            )
        if name in names:
            raise ConfigError(f"column {name!r} is listed twice")
        names.append(name)
    if not names:
        raise ConfigError("the option columns names no column; leave it out to read them all")
    return tuple(names)


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    """Return the exact Arrow schema of these columns of a read."""
    return pa.schema([READ_SCHEMA.field(name) for name in names])


WantedOffsets = str | Offsets
"""Offsets that a user gives: ``"earliest"``, ``"latest"``, or an offset for each queue, which may
be EARLIEST or LATEST."""

Assigned = Mapping[str, Mapping[str, frozenset[int]]]
"""Queue ids by topic and broker. The broker ``EVERY_BROKER`` means all brokers of the topic."""
EVERY_BROKER: Final = "*"


@dataclass(frozen=True, slots=True)
class ReadBound:
    """Begin or end of a read, according to the options.

    For each queue, the first of these fields with a value is used. Times are in ms since 1970 UTC.
    """

    option: str
    """First part of the names of the options, ``starting`` or ``ending``."""
    timestamp_ms: int | None
    timestamps: Offsets
    group: str | None
    offsets: WantedOffsets
    time_beyond: str
    """Handling of a time after the last stored message, ``latest`` or ``error``."""

    def time_of(self, queue: MessageQueue) -> int | None:
        """Return the time given for a queue, or None if the options give no time."""
        if self.timestamp_ms is not None:
            return self.timestamp_ms
        return self.timestamps.get(queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Typed options of a read of RocketMQ topics.

    Times are in ms since 1970 UTC. A field is None if its option is not set. Exactly one of
    ``topics``, ``topic_pattern`` and ``assigned`` is set.
    """

    name_servers: tuple[str, ...]
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    assigned: Assigned | None = None
    starting: WantedOffsets | None = None
    ending: WantedOffsets | None = None
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    starting_timestamps: Offsets = field(default_factory=dict)
    ending_timestamps: Offsets = field(default_factory=dict)
    starting_time_beyond: str = "latest"
    ending_time_beyond: str = "latest"
    starting_group: str | None = None
    tags: tuple[str, ...] = ()
    sql_filter: str | None = None
    offsets_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_max_ms: int = 15 * 60_000
    bytes_per_trigger_max: int | None = None
    commit_group: str | None = None
    columns: tuple[str, ...] = COLUMN_NAMES
    partitions_max: int | None = None
    partitions_min: int | None = None
    partition_rows_max: int | None = None
    pull_batch_size: int = 1024
    pull_timeout_ms: int = 10_000
    fail_on_data_loss: bool = True
    broker_offline: str | None = None
    filter_pushdown: bool = False
    credentials: Credentials | None = None
    tls: ClientTls | None = None

    def begin(self, default: WantedOffsets) -> ReadBound:
        """Return the begin of the read. If the options set no begin, use ``default``.

        If they set only a group, a queue without a committed offset begins at its first message.
        """
        left = default if self.starting_group is None else "earliest"
        return ReadBound(
            "starting",
            self.starting_timestamp_ms,
            self.starting_timestamps,
            self.starting_group,
            self.starting or left,
            self.starting_time_beyond,
        )

    def end(self) -> ReadBound:
        return ReadBound(
            "ending",
            self.ending_timestamp_ms,
            self.ending_timestamps,
            None,
            self.ending or "latest",
            self.ending_time_beyond,
        )


def read_options(
    options: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> ReadOptions:
    """Parse the options of a read of RocketMQ topics. Spark passes them as text.

    The case of names is ignored. Credentials and TLS settings come from the options, else from the
    file that they name, else from ``environment``. Raises ConfigError for an invalid option, with
    one sentence that contains no secret.
    """
    given = given_values(options, OPTIONS, hint=_hint)
    values = {name: value for name, (_, value) in given.items()}
    values |= connection_of(values, environment, hint="" if options else f". {_OF_TABLES}")
    _check_one(given, ("topics", "topic_pattern", "assigned"), needed=True)
    _check_one(given, ("tags", "sql_filter"), needed=False)
    check_order(values, "partitions_min", "partitions_max", "minPartitions", "maxPartitions")
    check_order(
        values,
        "offsets_per_trigger_min",
        "offsets_per_trigger_max",
        "minOffsetsPerTrigger",
        "maxOffsetsPerTrigger",
    )
    if not values.pop("include_headers", True):
        if "columns" in values:
            raise ConfigError("includeHeaders and columns both choose columns: use only columns")
        values["columns"] = tuple(name for name in COLUMN_NAMES if name != "properties")
    return ReadOptions(**values)


def connection_of(
    values: dict[str, Any], environment: Mapping[str, str], hint: str = ""
) -> dict[str, Any]:
    """Take the options of the connection out of ``values``. Return them as typed fields.

    The result has ``name_servers``, ``credentials`` and ``tls``. A field without an option is read
    from ``environment``. Raises ConfigError for an invalid value or a missing name server; ``hint``
    then ends its sentence.
    """
    secrets = {name: values.pop(name, None) for name in SECRET_FIELDS}
    tls = {name: values.pop(name, None) for name in VARIABLES}
    name_servers = values.pop("name_servers", None)
    if name_servers is None:
        text = environment.get("NAMESRV_ADDR", "").strip()
        if not text:
            raise ConfigError(
                "no name server is given: set the option nameServer, such as 127.0.0.1:9876, "
                f"or NAMESRV_ADDR{hint}"
            )
        try:
            name_servers = read_addresses(text)
        except ConfigError as error:
            raise ConfigError(f"the variable NAMESRV_ADDR: {error}") from None
    return {
        "name_servers": name_servers,
        "credentials": credentials_of(secrets, environment),
        "tls": tls_of(tls, environment),
    }


def options_of_mode(options: ReadOptions, mode: str) -> list[str]:
    """Return the names of given options that are valid in only one mode of reading.

    ``mode`` is this mode, ``batch`` or ``stream``.
    """
    unset = ReadOptions(name_servers=())
    return [
        name
        for name, option in OPTIONS.items()
        if option.mode == mode
        and option.alias_of is None
        and getattr(options, option.field) != getattr(unset, option.field)
    ]


def given_values(
    options: Mapping[str, str],
    table: Mapping[str, Option],
    *,
    what: str = "options",
    hint: Callable[[str], str | None] | None = None,
) -> dict[str, tuple[str, Any]]:
    """Parse the given options, according to a table of known options.

    For each field, the result has the name of the option and its value. ``hint`` returns a sentence
    about an unknown name, which replaces the suggestion of a similar name.

    Raises ConfigError for an unknown name, an invalid value, and two spellings of one option with
    different values.
    """
    if any(name.lower().startswith("option.") for name in options):
        raise ConfigError(_OF_TABLES)
    spelled = {name.lower(): name for name in table}
    given: dict[str, tuple[str, Any]] = {}
    for spelling, text in options.items():
        name = spelled.get(spelling.lower())
        if name is None:
            sentence = None if hint is None else hint(spelling)
            raise ConfigError(
                sentence
                or f"unknown option {spelling!r}{did_you_mean(spelling, table)}; {what}: "
                f"{', '.join(table)}"
            )
        field_name = table[name].field
        try:
            value = table[name].read(str(text).strip())
        except ConfigError as error:
            raise ConfigError(f"option {name}: {error}") from None
        if field_name in given and given[field_name][1] != value:
            raise ConfigError(
                f"the options {given[field_name][0]!r} and {name!r} mean the same thing but "
                "differ: give one of them"
            )
        given[field_name] = (name, value)
    return given


def _hint(name: str) -> str | None:
    if name.lower() == "checkpointlocation":
        return "checkpointLocation is an option of writeStream: give it there"
    if name.lower() in ("path", "paths"):
        return "load() has no path argument here: give the topic as the option topic"
    if re.sub(r"[._]", "", name.lower()) in ("group", "groupid", "groupname", "consumergroup"):
        return f"a read has no consumer group, so the option {name!r} does not exist: {_GROUPS}"
    return hint_of_kafka(name, _OF_KAFKA)


def hint_of_kafka(name: str, known: Mapping[str, str]) -> str | None:
    """Explain an option that belongs to Kafka. Return a sentence, or None for another option.

    ``known`` has sentences by the first letters of names, in lower case.
    """
    for prefix, sentence in known.items():
        if name.lower().startswith(prefix):
            return f"{name!r} is an option of Spark's Kafka source: {sentence}"
    if name.lower().startswith(("kafka.", "bootstrap")):
        return (
            f"{name!r} is an option of Kafka's own clients, which RocketMQ does not have; "
            "brokers are found by the option nameServer, such as 127.0.0.1:9876"
        )
    return None


def _check_one(
    given: Mapping[str, tuple[str, Any]], fields: Iterable[str], *, needed: bool
) -> None:
    said = [given[name][0] for name in fields if name in given]
    if len(said) > 1:
        raise ConfigError(f"the options {' and '.join(map(repr, said))} exclude each other")
    if needed and not said:
        raise ConfigError(
            "no topic is given: set the option topic (or subscribe), subscribePattern or assign"
        )


def check_order(values: Mapping[str, Any], low: str, high: str, *names: str) -> None:
    """Raise ConfigError if both fields are set and ``low`` is greater than ``high``.

    ``names`` are the names of their options, for the error.
    """
    if low in values and high in values and values[low] > values[high]:
        raise ConfigError(
            f"{names[0]} {values[low]} is more than {names[1]} {values[high]}: lower one of them"
        )


# Parsers of option values.
def read_addresses(text: str) -> tuple[str, ...]:
    addresses = tuple(parse_addresses(text.replace(",", ";")))
    if not addresses:
        raise ConfigError("expected an address such as 127.0.0.1:9876; separate several with ;")
    return addresses


def read_topics(text: str) -> tuple[str, ...]:
    topics = tuple(sorted({topic.strip() for topic in text.split(",") if topic.strip()}))
    if not topics:
        raise ConfigError("expected a topic; separate several with commas")
    return topics


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"{text!r} is not a regular expression: {error}") from None
    if not text:
        raise ConfigError("expected a regular expression, such as orders-.*")
    return text


def _assigned(text: str) -> Assigned:
    example = '{"T":{"broker-a":[0,1]}}, or {"T":[0,1]} for these queues on every broker'
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not value:
        raise ConfigError(f"expected JSON such as {example}, not {text!r}")
    found: dict[str, dict[str, frozenset[int]]] = {}
    for topic, brokers in value.items():
        if isinstance(brokers, list):
            brokers = {EVERY_BROKER: brokers}
        if not isinstance(brokers, dict) or not brokers:
            raise ConfigError(f"{topic}: expected queues as in {example}")
        for broker, queues in brokers.items():
            if not isinstance(queues, list) or not queues or not all(map(_is_queue_id, queues)):
                raise ConfigError(f"{topic}, {broker}: expected a list of queue numbers")
            found.setdefault(topic, {})[broker] = frozenset(queues)
    return found


def _is_queue_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _wanted_offsets(text: str) -> WantedOffsets:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    if not text.startswith("{"):
        raise ConfigError(
            'expected earliest, latest or JSON such as {"T":{"broker-a":{"0":123}}}, '
            f"not {text!r}"
        )
    return _of_some_queue(decode_offsets(text, what="its value", symbolic=True))


def _timestamps(text: str) -> Offsets:
    if not text.startswith("{"):
        raise ConfigError(
            "expected JSON with ms since 1970 UTC for each queue, such as "
            f'{{"T":{{"broker-a":{{"0":1700000000000}}}}}}, not {text!r}'
        )
    return _of_some_queue(decode_offsets(text, what="its value"))


def _of_some_queue(offsets: Offsets) -> Offsets:
    if not offsets:
        raise ConfigError("it names no queue: name some, or leave the option out")
    return offsets


def whole_number(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
            raise ConfigError(f"expected a whole number from {low} to {high}, not {text!r}")
        return int(text)

    return read


def _with_unit(units: Mapping[str, int], example: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        found = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", text.lower())
        if found is None or found[2] not in units or int(found[1]) == 0:
            raise ConfigError(
                f"expected a whole number with a unit, such as {example}, not {text!r}; "
                f"units: {', '.join(filter(None, units))}"
            )
        return int(found[1]) * units[found[2]]

    return read


def true_or_false(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"expected true or false, not {text!r}")
    return text.lower() == "true"


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in words:
            raise ConfigError(f"expected {' or '.join(words)}, not {text!r}")
        return text.lower()

    return read


def group_name(text: str) -> str:
    fault = group_fault(text)
    if fault is not None:
        raise ConfigError(fault)
    return text


def _tags(text: str) -> tuple[str, ...]:
    """Parse the tags in ``A || B``. Return no tags for ``*``, because ``*`` matches every
    message."""
    tags = tuple(sorted({tag.strip() for tag in text.split("||") if tag.strip()}))
    if not tags:
        raise ConfigError("expected a tag, several separated by ||, or * for every message")
    if "*" in tags and len(tags) > 1:
        raise ConfigError("* matches every message: use it without other tags, or leave it out")
    if (fault := list_fault(text)) is not None:
        raise ConfigError(
            f"{fault} For SQL use the option sqlFilter; a filter over the column tags "
            "matches such a tag literally"
        )
    return () if tags == ("*",) else tags


def _sql(text: str) -> str:
    try:
        compile_sql(text)
    except SqlError as error:
        raise ConfigError(f"{text!r} is not a SQL92 filter: {error}") from None
    return text


def not_empty(text: str) -> str:
    if not text:
        raise ConfigError("it is empty")
    return text


_OF_TABLES: Final = (
    "Spark 4.3 keeps the options of CREATE TEMPORARY VIEW … USING … OPTIONS (…), but "
    "loses those of CREATE TABLE when a Python source reads the table: repeat them "
    "there, as in SELECT … FROM t WITH (nameServer='…', topic='…')"
)
_GROUPS: Final = (
    "startingGroup begins where a group has committed, and commitGroup commits the progress for one"
)
_OF_KAFKA: Final = {
    "kafka.group.id": f"here a read is in no consumer group; {_GROUPS}",
    "groupidprefix": "here a read is in no consumer group, so leave it out; commitGroup commits "
    "the progress for one",
    "fetchoffset.": "leave it out; offsets are asked for again while a broker is away",
}
INSTANT_MS: Final = whole_number(0, 2**53)
_COUNT: Final = whole_number(1, 2**53)
_TIMEOUT_MS: Final = whole_number(1, 600_000)
_BEYOND: Final = _one_of("error", "latest")
_DURATION_MS: Final = _with_unit(
    {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}, "15m"
)
_SIZE: Final = _with_unit(
    {"": 1, "b": 1}
    | {unit + b: 1 << 10 * power for power, unit in enumerate("kmgt", 1) for b in ("", "b")},
    "64m",
)


@dataclass(frozen=True, slots=True)
class Option:
    """Option that a read or a write accepts.

    The option sets ``field`` to the value that ``read`` parses from its text. ``mode`` tells which
    reads accept the option: ``both``, ``batch`` or ``stream``. ``alias_of`` is the name of the
    first spelling, if this is a second one.
    """

    field: str
    read: Callable[[str], Any]
    mode: str = "both"
    alias_of: str | None = None


CONNECTION_OPTIONS: Final[Mapping[str, Option]] = {
    "nameServer": Option("name_servers", read_addresses),
    "namesrvAddr": Option("name_servers", read_addresses, alias_of="nameServer"),
    "accessKey": Option("access_key", not_empty),
    "secretKey": Option("secret_key", not_empty),
    "securityToken": Option("security_token", not_empty),
    "credentialsFile": Option("credentials_file", not_empty),
    "tls": Option("tls", _one_of("true", "false")),
    "tlsTrust": Option("tls_trust", not_empty),
    "tlsConfigFile": Option("tls_config", not_empty),
}
OPTIONS: Final[Mapping[str, Option]] = {
    **CONNECTION_OPTIONS,
    "topic": Option("topics", read_topics),
    "subscribe": Option("topics", read_topics, alias_of="topic"),
    "subscribePattern": Option("topic_pattern", _pattern),
    "assign": Option("assigned", _assigned),
    "startingOffsets": Option("starting", _wanted_offsets),
    "startingTimestamp": Option("starting_timestamp_ms", INSTANT_MS),
    "startingOffsetsByTimestamp": Option("starting_timestamps", _timestamps),
    "startingOffsetsByTimestampStrategy": Option("starting_time_beyond", _BEYOND),
    "startingGroup": Option("starting_group", group_name),
    "endingOffsets": Option("ending", _wanted_offsets, "batch"),
    "endingTimestamp": Option("ending_timestamp_ms", INSTANT_MS, "batch"),
    "endingOffsetsByTimestamp": Option("ending_timestamps", _timestamps, "batch"),
    "endingOffsetsByTimestampStrategy": Option("ending_time_beyond", _BEYOND, "batch"),
    "tags": Option("tags", _tags),
    "subExpression": Option("tags", _tags, alias_of="tags"),
    "sqlFilter": Option("sql_filter", _sql),
    "filterPushdown": Option("filter_pushdown", true_or_false, "batch"),
    "maxOffsetsPerTrigger": Option("offsets_per_trigger_max", _COUNT, "stream"),
    "minOffsetsPerTrigger": Option("offsets_per_trigger_min", _COUNT, "stream"),
    "maxTriggerDelay": Option("trigger_delay_max_ms", _DURATION_MS, "stream"),
    "maxBytesPerTrigger": Option("bytes_per_trigger_max", _SIZE, "stream"),
    "commitGroup": Option("commit_group", group_name, "stream"),
    "columns": Option("columns", column_names),
    "includeHeaders": Option("include_headers", true_or_false),
    "maxPartitions": Option("partitions_max", whole_number(1, 100_000)),
    "minPartitions": Option("partitions_min", whole_number(1, 100_000)),
    "maxRecordsPerPartition": Option("partition_rows_max", _COUNT),
    "pullBatchSize": Option("pull_batch_size", whole_number(1, 65_536)),
    "pullTimeoutMs": Option("pull_timeout_ms", _TIMEOUT_MS),
    "pullTimeout": Option("pull_timeout_ms", _TIMEOUT_MS, alias_of="pullTimeoutMs"),
    "kafkaConsumer.pollTimeoutMs": Option("pull_timeout_ms", _TIMEOUT_MS, alias_of="pullTimeoutMs"),
    "failOnDataLoss": Option("fail_on_data_loss", true_or_false),
    "brokerOfflineStrategy": Option("broker_offline", _one_of("fail", "skip")),
}
"""Every option of a read. docs/reference/spark.md has their meanings."""
