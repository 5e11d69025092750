"""Namespaces of the first kind. Such a namespace is a prefix ``ns%`` of topic and group names.

The prefix comes after ``%RETRY%`` and ``%DLQ%``. The second kind is two header fields, see
``auth/signatures.py``.

One rule: a name that already has the prefix, is empty, or belongs to the system is not changed. The
functions of this module only compute values. Source: apache/rocketmq ``NamespaceUtil``.
"""

from __future__ import annotations

from typing import Final

from turbopump.message.message import MessageQueue
from turbopump.message.rules import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_GROUP_PREFIX, is_system_topic

SEPARATOR: Final = "%"
INSTANCE_ID: Final = "INSTANCE_ID"
"""Name of the message property that contains the message's namespace."""


def wrap(namespace: str | None, resource: str) -> str:
    """Add the namespace to the name of a topic or group: ``ns%topic``, ``%RETRY%ns%group``."""
    if not namespace or not resource or is_system_topic(resource):
        return resource
    if resource.startswith(SYSTEM_GROUP_PREFIX):
        return resource
    prefix, name = _split(resource)
    if name.startswith(namespace + SEPARATOR):
        return resource
    return f"{prefix}{namespace}{SEPARATOR}{name}"


def unwrap(namespace: str | None, resource: str) -> str:
    """Remove this namespace from the name of a topic or group. The result is the name in the user's
    code.

    A name in another namespace is not changed.
    """
    if not namespace or not resource:
        return resource
    prefix, name = _split(resource)
    return prefix + name.removeprefix(namespace + SEPARATOR)


def unwrapped(namespace: str | None, queue: MessageQueue) -> MessageQueue:
    """Return the queue with its topic name as the user writes it, without the namespace."""
    if not namespace:
        return queue
    return MessageQueue(unwrap(namespace, queue.topic), queue.broker_name, queue.queue_id)


def wrapped(namespace: str | None, queue: MessageQueue) -> MessageQueue:
    """Return the queue with its topic name as brokers write it, with the namespace."""
    if not namespace:
        return queue
    return MessageQueue(wrap(namespace, queue.topic), queue.broker_name, queue.queue_id)


def _split(resource: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if resource.startswith(prefix):
            return prefix, resource[len(prefix) :]
    return "", resource
