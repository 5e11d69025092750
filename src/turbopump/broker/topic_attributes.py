"""Attributes of topics, and the syntax for changing them (``+name=value,-name``).

A fault is a sentence that begins as Apache's does. Source: apache/rocketmq ``TopicAttributes``,
``AttributeParser``, ``AttributeUtil``, ``TopicMessageType``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from turbopump.protocol.requests.topics import TopicConfig

MESSAGE_TYPE: Final = "message.type"
QUEUE_TYPE: Final = "queue.type"
CLEANUP_POLICY: Final = "cleanup.policy"
RESERVE_TIME: Final = "reserve.time"

BATCH_CQ: Final = "BatchCQ"
COMPACTION: Final = "COMPACTION"
MIXED: Final = "MIXED"

TRANSFER_FLAG: Final = "TRANSFER_FLAG"
"""Property of a message that is moved between clusters. The type of such a message is not
checked."""


@dataclass(frozen=True, slots=True)
class TopicAttribute:
    """Attribute that a topic may have, with its allowed ``values``.

    ``changeable`` is True if the attribute may be changed after the creation of the topic.
    """

    values: tuple[str, ...]
    changeable: bool


ATTRIBUTES: Final[Mapping[str, TopicAttribute]] = {
    QUEUE_TYPE: TopicAttribute((BATCH_CQ, "SimpleCQ"), changeable=False),
    CLEANUP_POLICY: TopicAttribute(("DELETE", COMPACTION), changeable=False),
    MESSAGE_TYPE: TopicAttribute(
        ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", MIXED), changeable=True
    ),
}


def parse_changes(text: str | None) -> dict[str, str] | str:
    """Parse changes of attributes such as ``+name=value,-name``.

    Return the values by signed name, for example ``+name``. The value of a removal is empty. If the
    text is invalid, return a sentence that describes the fault.
    """
    changes: dict[str, str] = {}
    given = (text or "").rstrip(",")
    for change in given.split(",") if given else ():
        name, equals, value = change.partition("=")
        if equals and not name.startswith("+"):
            return f"add/alter attribute format is wrong: {name[:64]}; write +name=value"
        if not equals and not name.startswith("-"):
            return f"delete attribute format is wrong: {name[:64]}; write -name, or +name=value"
        if equals and not value:
            return f"kv string format wrong. {change[:64]} has no value; write +name=value"
        if name in changes:
            return f"key duplication: {name[:64]}; name it once"
        changes[name] = value
    return changes


def change_attributes(
    current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str] | str:
    """Apply changes to the attributes of a topic, and return the result.

    - ``current``: the present attributes, or None for a new topic.
    - ``changes``: the result of ``parse_changes``.

    If a change is not allowed, return a sentence that describes the fault.
    """
    changed = dict(current or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        name = signed[1:]
        if not name or "+" in name or "-" in name or signed[0] not in "+-":
            return f"kv string format wrong. {signed[:64]!r} is neither +name nor -name"
        if name in seen:
            return f"alter duplication key. key: {name[:64]}; name it once"
        seen.add(name)
        fault = _fault(current, name, value, added=signed[0] == "+")
        if fault is not None:
            return fault
        if signed[0] == "+":
            changed[name] = value
        else:
            del changed[name]
    return changed


def _fault(current: Mapping[str, str] | None, name: str, value: str, *, added: bool) -> str | None:
    if current is None and not added:
        return (
            f"only add attribute is supported while creating topic. key: {name[:64]}; leave "
            f"-{name[:64]} out"
        )
    if current is not None and not added and name not in current:
        return f"attempt to delete a nonexistent key: {name[:64]}; the topic does not have it"
    # RocketMQ 5.3 without tiered storage means to say this, takes it, and does nothing with it
    if name == RESERVE_TIME:
        return (
            "Update topic reserveTime not supported; a topic is kept as long as the log "
            "(fileReservedTime)"
        )
    attribute = ATTRIBUTES.get(name)
    if attribute is None:
        return f"unsupported key: {name[:64]}; there are {', '.join(ATTRIBUTES)}"
    if current is not None and not attribute.changeable:
        if added and current.get(name) == value:
            return None  # Apache refuses this too; the same request twice should not fail
        return (
            f"attempt to update an unchangeable attribute. key: {name}; it can only be "
            "set when the topic is created"
        )
    if added and (name, value) == (QUEUE_TYPE, BATCH_CQ):
        return (
            "this broker does not serve BatchCQ topics (queue.type=BatchCQ); leave the attribute "
            "out, or make the topic on Apache's broker"
        )
    if added and value not in attribute.values:
        return (
            f"value is not in set: [{', '.join(attribute.values)}]; {name}={value[:64]} cannot be"
        )
    return None


def is_batch_cq(topic: TopicConfig) -> bool:
    """Return True for a BatchCQ topic. In its queues each entry is a batch.

    This broker does not serve such topics.
    """
    return topic.attributes.get(QUEUE_TYPE) == BATCH_CQ


def topic_message_type(topic: TopicConfig) -> str:
    """Return the message type of a topic, which is NORMAL by default."""
    return topic.attributes.get(MESSAGE_TYPE, "NORMAL")


def message_type_of(properties: Mapping[str, str]) -> str:
    """Return the type of a message with these properties: TRANSACTION, DELAY, FIFO or NORMAL."""
    if properties.get("TRAN_MSG") == "true":
        return "TRANSACTION"
    if any(
        name in properties
        for name in ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
    ):
        return "DELAY"
    if "__SHARDINGKEY" in properties:
        return "FIFO"
    return "NORMAL"


def needs_send_checks(topic: TopicConfig) -> bool:
    """Return True if each send to a topic needs a check, because of the topic's attributes."""
    return topic.attributes.get(CLEANUP_POLICY) == COMPACTION or is_batch_cq(topic)
