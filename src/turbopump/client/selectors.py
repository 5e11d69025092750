"""Selectors, which choose the queue for a message. They choose by hash, at random, by machine room,
or by hash ring.

A selector is any function of (queues, message) that returns one of the queues. The functions here
return selectors. One rule: a selector by key chooses the same queue as Apache's selector of that
name in any other language. This module must not know how sending works. Source: apache/rocketmq
``SelectMessageQueueByHash``, ``SelectMessageQueueByRandom``, ``ConsistentHashRouter``.
"""

from __future__ import annotations

import random as random_module
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from hashlib import md5
from typing import Final, Generic, TypeVar

from turbopump.client.setting_rules import SettingRule, is_text, is_whole_above_0
from turbopump.message.java import java_hash, java_hash_code
from turbopump.message.message import Message, MessageQueue

__all__ = ["HashRing", "Selector", "at_random", "by_hash", "in_rooms", "java_hash"]

T = TypeVar("T")
Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]

VIRTUAL_NODES: Final = 10
"""Default number of points of each queue on a ring."""
ROOM_END: Final = "@"
"""Separator between the machine room and the rest of a broker's name, as in ``room-1@broker-a``."""


def by_hash(key: object) -> Selector:
    """Return a selector that chooses queue ``abs(key.hashCode() % n)``, as in Java.

    ``key`` is a str, int, bool or float. An int is hashed as ``Integer``, or as ``Long`` if it is
    too large.
    """
    hash_code = abs(java_hash_code(key))

    def select(queues: Sequence[MessageQueue], _message: Message) -> MessageQueue:
        return queues[hash_code % len(queues)]

    return select


def at_random(random: random_module.Random | None = None) -> Selector:
    """Return a selector that chooses a queue at random, each with the same probability."""
    source = random or random_module.SystemRandom()

    def select(queues: Sequence[MessageQueue], _message: Message) -> MessageQueue:
        return queues[source.randrange(len(queues))]

    return select


def in_rooms(*rooms: str) -> Selector:
    """Return a selector that takes turns among the queues of brokers in these machine rooms.

    The broker's name is ``room@…``. If no broker is in these rooms, all queues are used.

    RocketMQ: ``SelectMessageQueueByMachineRoom`` is a stub that selects nothing; the naming is that
    of its machine room allocation.
    """
    turn = -1

    def select(queues: Sequence[MessageQueue], _message: Message) -> MessageQueue:
        nonlocal turn
        turn += 1
        near = [queue for queue in queues if _room(queue) in rooms] or queues
        return near[turn % len(near)]

    return select


def _room(queue: MessageQueue) -> str | None:
    room, at, _ = queue.broker_name.partition(ROOM_END)
    return room if at else None


_VIRTUAL_NODES: Final = SettingRule(
    is_whole_above_0, "must be a whole number of points of each queue, 1 or more"
)
_RING_KEY: Final = SettingRule(is_text, "must be text, as in str(order_id)")


class HashRing:
    """Consistent-hash ring of queues. A message's key determines its queue.

    When queues are added or removed, only the keys of those queues move. Keep one ring and call
    ``by(key)`` for each send. Raises ConfigError if there is less than one virtual node.
    """

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        _VIRTUAL_NODES.check("virtual_nodes", virtual_nodes)
        self._virtual_nodes = virtual_nodes
        self._queues: tuple[MessageQueue, ...] = ()
        self._ring = Ring[MessageQueue]({}, virtual_nodes)

    def by(self, key: str) -> Selector:
        """Return a selector that always chooses this key's queue on the ring.

        This is the queue with the first point at or after the key's hash.

        Raises ConfigError if the key is no text.
        """
        _RING_KEY.check("key", key)

        def select(queues: Sequence[MessageQueue], _message: Message) -> MessageQueue:
            if self._queues != tuple(queues):
                self._queues = tuple(queues)
                owners = {node_key(queue): queue for queue in queues}
                self._ring = Ring(owners, self._virtual_nodes)
            owner = self._ring.owner_of(key)
            assert owner is not None
            return owner

        return select


class Ring(Generic[T]):
    """Hash ring of points, each with its owner.

    - ``owners``: owners by name.
    """

    def __init__(self, owners: Mapping[str, T], virtual_nodes: int) -> None:
        numbers = range(virtual_nodes)
        ring = {ring_hash(f"{name}-{i}"): owner for name, owner in owners.items() for i in numbers}
        self._points = sorted(ring)
        self._owners = [ring[point] for point in self._points]

    def owner_of(self, key: str) -> T | None:
        """Return the owner of the first point at or after the key's hash. Return None if the ring
        is empty."""
        if not self._points:
            return None
        return self._owners[bisect_left(self._points, ring_hash(key)) % len(self._points)]


def node_key(queue: MessageQueue) -> str:
    """Return the name by which a queue is hashed onto a ring (Java's ``MessageQueue.toString``)."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def ring_hash(text: str) -> int:
    """Return the position of a text on a hash ring (``ConsistentHashRouter.MD5Hash``).

    The position is the first four bytes of the text's MD5, as an unsigned number.
    """
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4])
