"""Options and columns of a write, with their meanings.

The driver checks all of this before anything is sent. An unknown option or column is refused with
the most similar known one, because data that is silently ignored is lost. docs/reference/spark.md
lists both tables; a test compares. Brokers are unknown here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from turbopump.auth.signatures import Credentials
from turbopump.config.tls import ClientTls
from turbopump.errors import ConfigError
from turbopump.message.rules import NOT_SENDABLE_TOPICS, topic_fault
from turbopump.spark.options import (
    COLUMN_NAMES,
    CONNECTION_OPTIONS,
    Option,
    connection_of,
    did_you_mean,
    given_values,
    group_name,
    hint_of_kafka,
    true_or_false,
    whole_number,
)

DEFAULT_GROUP: Final = "TURBOPUMP_SPARK"
AUTO: Final = "auto"
ORIGIN_COLUMNS: Final = ("brokerName", "topic", "queueId", "queueOffset")
"""Columns that together identify a message that was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Typed options of a write to RocketMQ topics.

    ``idempotency_key`` is None, ``AUTO``, or the name of a column. Times are in ms.
    """

    name_servers: tuple[str, ...]
    topic: str | None = None
    idempotency_key: str | None = None
    skips_present: bool = False
    ordering_key: str | None = None
    keeps_queue_id: bool | None = None
    in_flight_max: int = 16
    batch_rows_max: int = 1000
    send_timeout_ms: int = 60_000
    retries: int = 1_000_000
    producer_group: str = DEFAULT_GROUP
    write_id: str | None = None
    read_back_ms: int | None = None
    credentials: Credentials | None = None
    tls: ClientTls | None = None


def write_options(
    options: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> WriteOptions:
    """Parse the options of a write to RocketMQ topics. Spark passes them as text.

    The case of names is ignored. Credentials come from the options, else from the file that they
    name, else from ``environment``. Raises ConfigError with one sentence for an invalid option.
    """
    given = given_values(
        {name: text for name, text in options.items() if name.lower() not in _SPARKS_OWN},
        WRITE_OPTIONS,
        what="options of a write",
        hint=lambda name: hint_of_kafka(name, {}),
    )
    values = {field: value for field, (_, value) in given.items()}
    values |= connection_of(values, environment)
    if values.get("idempotency_key") is None and values.get("skips_present"):
        if "idempotency_key" in values:
            raise ConfigError("onConflict=skip needs a key: idempotencyKey must not be none")
        values["idempotency_key"] = AUTO
    return WriteOptions(**values)


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of the rows in a write: the index of the column for each purpose.

    ``origin`` has the indexes of ``ORIGIN_COLUMNS``. ``received`` is True if the rows were read
    from a topic. The properties of such rows may contain those that brokers add.
    """

    columns: Mapping[str, int]
    topic: str | None
    key: int | None
    origin: tuple[int, ...]
    ordering: int | None
    received: bool


def layout(schema: pa.Schema, options: WriteOptions) -> Layout:
    """Find the column for each purpose in the rows of a write.

    Raises ConfigError for a column that is missing, unknown or of the wrong type.
    """
    columns: dict[str, int] = {}
    spelled = {name.lower(): name for name in (*WRITE_COLUMNS, *_PASSED_OVER)}
    own = {name.lower() for name in (options.idempotency_key, options.ordering_key) if name}
    for at, field in enumerate(schema):
        name = spelled.get(field.name.lower())
        if name is None:
            if field.name.lower() in own:
                continue
            of_kafka = _OF_KAFKAS_SINK.get(field.name.lower())
            if of_kafka is not None:
                raise ConfigError(
                    f"the column {field.name!r} of Spark's Kafka sink is {of_kafka} here: rename it"
                )
            hint = did_you_mean(field.name, WRITE_COLUMNS) or ":"
            raise ConfigError(
                f"unknown column {field.name!r}{hint} drop it, or put it into body or properties; "
                f" columns: {', '.join(WRITE_COLUMNS)}"
            )
        if name in columns:
            raise ConfigError(f"there are two columns {name!r}: drop one of them")
        columns[name] = at
        if name in WRITE_COLUMNS:
            said, fits = WRITE_COLUMNS[name]
            if not fits(field.type):
                is_now = _spark_name(field.type)
                raise ConfigError(f"the column {field.name} must be {said}, not {is_now}: cast it")
    if "body" not in columns:
        raise ConfigError(
            "the rows have no column body, binary or string: add one (such as "
            "to_json(struct('*')) as body)"
        )
    if options.topic is None and "topic" not in columns:
        raise ConfigError("no topic is given: set the option topic, or add a column topic")
    received = "queueOffset" in columns
    keeps = options.keeps_queue_id
    if "queueId" in columns and not (not received if keeps is None else keeps):
        placed = {name: at for name, at in columns.items() if name != "queueId"}
    else:
        placed = columns
        if keeps and "queueId" not in columns:
            raise ConfigError("keepQueueId=true needs a column queueId")
    key, origin = _key_columns(schema, columns, options)
    ordering = None
    if options.ordering_key is not None:
        ordering = _column(schema, options.ordering_key, "orderingKey")
    return Layout(placed, options.topic, key, origin, ordering, received)


def _key_columns(
    schema: pa.Schema, columns: Mapping[str, int], options: WriteOptions
) -> tuple[int | None, tuple[int, ...]]:
    if options.idempotency_key is None:
        return None, ()
    late = [name for name in ("delayLevel", "deliverAt") if name in columns]
    if late:
        raise ConfigError(
            f"idempotencyKey and the column {late[0]} exclude each other: a delayed "
            "message cannot be found in its topic before its time"
        )
    if options.idempotency_key != AUTO:
        return _column(schema, options.idempotency_key, "idempotencyKey"), ()
    absent = [name for name in ORIGIN_COLUMNS if name not in columns]
    if absent:
        raise ConfigError(
            f"the default key of a row needs the columns {', '.join(ORIGIN_COLUMNS)} of "
            f"the source ({', '.join(absent)} missing): keep them, or set idempotencyKey "
            "to a column that is different in every row"
        )
    return None, tuple(columns[name] for name in ORIGIN_COLUMNS)


def _column(schema: pa.Schema, wanted: str, option: str) -> int:
    names = {field.name.lower(): at for at, field in enumerate(schema)}
    at = names.get(wanted.lower())
    if at is None:
        raise ConfigError(
            f"{option} names the column {wanted!r}, which the rows do not have"
            f"{did_you_mean(wanted, schema.names)}"
        )
    kind = schema.field(at).type
    if not (_is_text(kind) or pa.types.is_integer(kind) or _is_bytes(kind)):
        raise ConfigError(
            f"{option}: the column {wanted} must be string, binary or a whole number, not "
            f"{_spark_name(kind)}: cast it"
        )
    return at


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_keys(kind: pa.DataType) -> bool:
    return _is_text(kind) or bool(pa.types.is_list(kind) and _is_text(kind.value_type))


def _is_properties(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type))


def _is_int(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) and kind.bit_width <= 32)


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


def _spark_name(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz is not None else "timestamp_ntz"
    return {"int64": "bigint", "int32": "int"}.get(str(kind), str(kind))


WRITE_COLUMNS: Final[Mapping[str, tuple[str, Callable[[pa.DataType], bool]]]] = {
    "topic": ("string", _is_text),
    "body": ("binary or string", lambda kind: _is_text(kind) or _is_bytes(kind)),
    "keys": ("string or array<string>", _is_keys),
    "tags": ("string", _is_text),
    "properties": ("map<string,string>", _is_properties),
    "shardingKey": ("string", _is_text),
    "delayLevel": ("int", _is_int),
    "deliverAt": ("timestamp", _is_instant),
    "queueId": ("int", _is_int),
    "flag": ("int", _is_int),
    "msgId": ("string", _is_text),
}
"""Columns with a meaning for a write, and their types."""
_OF_KAFKAS_SINK: Final = {
    "value": "body",
    "key": "shardingKey (rows of a key go to one queue), and keys (by which a message is found),",
    "headers": "properties, a map of texts,",
    "partition": "queueId",
}
_PASSED_OVER: Final = tuple(name for name in COLUMN_NAMES if name not in WRITE_COLUMNS)
"""Columns of a read that a write ignores. They tell where and when a message was stored."""


def _topic(text: str) -> str:
    fault = topic_fault(text)
    if fault is None and text in NOT_SENDABLE_TOPICS:
        fault = f"the topic {text} belongs to the broker itself; choose another one"
    if fault is not None:
        raise ConfigError(fault)
    return text


def _key(text: str) -> str | None:
    if not text:
        raise ConfigError("expected auto, none or the name of a column")
    if text.lower() == "none":
        return None
    if text.lower() == AUTO:
        return AUTO
    return text


def _conflict(text: str) -> bool:
    if text.lower() not in ("append", "skip"):
        raise ConfigError(f"expected append or skip, not {text!r}")
    return text.lower() == "skip"


def _name(text: str) -> str:
    if not (0 < len(text) <= 100 and text.isascii() and text.isprintable() and "/" not in text):
        raise ConfigError("expected 1 to 100 printable ASCII characters without /")
    return text


WRITE_OPTIONS: Final[Mapping[str, Option]] = {
    **CONNECTION_OPTIONS,
    "topic": Option("topic", _topic),
    "idempotencyKey": Option("idempotency_key", _key),
    "onConflict": Option("skips_present", _conflict),
    "orderingKey": Option("ordering_key", str),
    "keepQueueId": Option("keeps_queue_id", true_or_false),
    "maxInFlight": Option("in_flight_max", whole_number(1, 1000)),
    "sendBatchSize": Option("batch_rows_max", whole_number(1, 100_000)),
    "sendTimeoutMs": Option("send_timeout_ms", whole_number(1, 86_400_000)),
    "retries": Option("retries", whole_number(0, 1_000_000)),
    "producerGroup": Option("producer_group", group_name),
    "group": Option("producer_group", group_name, alias_of="producerGroup"),
    "writeId": Option("write_id", _name),
    "readBackMs": Option("read_back_ms", whole_number(1, 2**53)),
}
"""Every option of a write. docs/reference/spark.md has their meanings."""
_SPARKS_OWN: Final[Iterable[str]] = frozenset(("checkpointlocation", "queryname"))
"""Options of a streaming query, which Spark also passes to its sink."""
