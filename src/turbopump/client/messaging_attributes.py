"""Attributes of spans and metrics by OpenTelemetry's semantic conventions for messaging.

The conventions renamed RocketMQ's own attributes in version 1.45, for example
``messaging.rocketmq.message.tag`` to ``rocketmq.message.tag``. The variable
OTEL_SEMCONV_STABILITY_OPT_IN selects the names. This module must not know spans.

Source: https://opentelemetry.io/docs/specs/semconv/messaging/rocketmq/
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from typing import Final

from turbopump.client.hooks import MessageKind
from turbopump.client.namespace import INSTANCE_ID
from turbopump.config.addresses import parse_address
from turbopump.errors import ConfigError, ResponseError
from turbopump.message import properties as names
from turbopump.message.message import ReceivedMessage

Value = str | bool | int | float | Sequence[str]
Attributes = dict[str, Value]
"""Attributes with the names of version 1.45. ``NameStyle.named`` gives them other names."""

SYSTEM: Final = "rocketmq"
OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
_OWN: Final = "rocketmq."
"""Prefix of the attributes that version 1.45 renamed."""
_CLIENT_GROUP: Final = "rocketmq.client_group"
"""Attribute of the old conventions alone: the group of a producer."""


class NameStyle(enum.Enum):
    """Names of RocketMQ's own attributes: before version 1.45, from then on, or both."""

    OLD = ""
    NEW = "messaging"
    BOTH = "messaging/dup"

    @classmethod
    def selected(cls) -> NameStyle:
        """Return the style that the environment selects. ``messaging/dup`` wins."""
        given = {part.strip() for part in os.environ.get(OPT_IN, "").split(",")}
        return next((style for style in (cls.BOTH, cls.NEW) if style.value in given), cls.OLD)

    def named(self, attributes: Attributes) -> Attributes:
        """Return attributes under their names in this style."""
        named: Attributes = {}
        for name, value in attributes.items():
            if not name.startswith(_OWN):
                named[name] = value
                continue
            if self is not NameStyle.OLD and name != _CLIENT_GROUP:
                named[name] = value
            if self is not NameStyle.NEW:
                named[f"messaging.{name}"] = value
        return named


_TYPES: Final = {
    MessageKind.DELAY: "delay",
    MessageKind.TRANSACTION_HALF: "transaction",
    MessageKind.TRANSACTION_COMMIT: "transaction",
}
_TEXTS: Final = {
    INSTANCE_ID: "rocketmq.namespace",
    names.TAGS: "rocketmq.message.tag",
    names.SHARDING_KEY: "rocketmq.message.group",
    names.CORRELATION_ID: "messaging.message.conversation_id",
}
_NUMBERS: Final = {
    names.DELAY_TIME_LEVEL: "rocketmq.message.delay_time_level",
    names.TIMER_DELIVER_MS: "rocketmq.message.delivery_timestamp",
}


def operation_attributes(name: str, kind: str, topic: str | None = None) -> Attributes:
    """Return the attributes of an operation, such as ``ack`` of the kind ``settle``."""
    attributes: Attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    if topic is not None:
        attributes["messaging.destination.name"] = topic
    return attributes


def message_attributes(msg_id: str, properties: Mapping[str, str], kind: MessageKind) -> Attributes:
    """Return the attributes of a message, or of a batch whose ids are joined with commas."""
    ids = msg_id.split(",")
    usual = "fifo" if names.SHARDING_KEY in properties else "normal"
    attributes: Attributes = {"rocketmq.message.type": _TYPES.get(kind) or usual}
    if len(ids) > 1:
        attributes["messaging.batch.message_count"] = len(ids)
    else:
        attributes["messaging.message.id"] = msg_id
    for name, attribute in _TEXTS.items():
        if name in properties:
            attributes[attribute] = properties[name]
    for name, attribute in _NUMBERS.items():
        if properties.get(name, "").isdecimal():
            attributes[attribute] = int(properties[name])
    if names.KEYS in properties:
        attributes["rocketmq.message.keys"] = properties[names.KEYS].split()
    return attributes


def received_attributes(message: ReceivedMessage) -> Attributes:
    """Return the attributes of one received message."""
    properties = dict(message.properties)
    if message.reconsume_times:
        properties.pop(names.DELAY_TIME_LEVEL, None)  # set by the broker
    return {
        "messaging.message.body.size": len(message.stored_body),
        **message_attributes(message.msg_id, properties, kind_of(message)),
    }


def queue_attributes(message: ReceivedMessage) -> Attributes:
    """Return the attributes of a message's queue and broker."""
    host, port = message.store_host
    return {
        "messaging.destination.partition.id": str(message.queue_id),
        "server.address": host,
        "server.port": port,
    }


def kind_of(message: ReceivedMessage) -> MessageKind:
    """Derive the kind of a received message from the properties that brokers keep.

    In a retried message, ``DELAY`` was set by the broker, not by the sender.
    """
    properties = message.properties
    if message.sys_flag & names.TRANSACTION_MASK == names.SysFlag.TRANSACTION_COMMIT:
        return MessageKind.TRANSACTION_COMMIT
    timed = names.TIMER_OUT_MS in properties or names.TIMER_DELIVER_MS in properties
    waited = names.DELAY_TIME_LEVEL in properties or names.REAL_TOPIC in properties
    delayed = timed or (waited and message.reconsume_times == 0)
    return MessageKind.DELAY if delayed else MessageKind.NORMAL


def server_attributes(address: str) -> Attributes:
    """Return the attributes of a broker's address. The result is empty without an address."""
    try:
        host, port = parse_address(address)
    except ConfigError:  # no address is known
        return {}
    return {"server.address": host, "server.port": port}


def error_type(error: BaseException) -> str:
    """Return the value of ``error.type``: the code of a broker's refusal, else the class."""
    return str(int(error.code)) if isinstance(error, ResponseError) else type(error).__qualname__
