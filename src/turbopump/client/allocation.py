"""Division of queues among a group's members: Apache's allocation strategies, as pure functions of
sorted lists.

One rule: every member of a group computes the same division from the same lists, so each function
must be exactly Apache's. A strategy uses only the order and the names of queues and clients.
Source: apache/rocketmq ``client/…/consumer/rebalance/*``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from turbopump.client.selectors import ROOM_END, VIRTUAL_NODES, Ring, node_key
from turbopump.errors import ConfigError
from turbopump.message.message import MessageQueue
from turbopump.message.queue_shares import (
    Clients,
    Queues,
    Strategy,
    allocate_average,
    allocate_by_circle,
)
from turbopump.message.rules import RETRY_PREFIX


def allocate_consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Strategy:
    """Assign queues by a hash ring of clients: a client that joins or leaves moves only its own
    share (``AllocateMessageQueueConsistentHash``)."""

    def allocate(queues: Queues, clients: Clients, client_id: str) -> list[MessageQueue]:
        ring = Ring({client: client for client in clients}, virtual_nodes)
        return [queue for queue in queues if ring.owner_of(node_key(queue)) == client_id]

    return allocate


def allocate_by_configuration(ours: Collection[MessageQueue]) -> Strategy:
    """Assign exactly these queues to this client, independently of the other members
    (``AllocateMessageQueueByConfig``).

    The group's retry topic is divided by ``allocate_average``, unless ``ours`` contains queues of
    it. Without that, no member would have its queues, and failed messages would not be delivered
    again, as in Java.
    """
    fixed = list(ours)
    named = {queue.topic for queue in fixed}

    def allocate(queues: Queues, clients: Clients, client_id: str) -> list[MessageQueue]:
        topics = {queue.topic for queue in queues}
        if topics - named and all(topic.startswith(RETRY_PREFIX) for topic in topics):
            return allocate_average(queues, clients, client_id)
        return list(fixed)

    return allocate


def allocate_by_machine_room(rooms: Collection[str]) -> Strategy:
    """Assign only queues of brokers named ``room@…`` with one of ``rooms``, in equal shares; the
    remainder goes to the first clients (``AllocateMessageQueueByMachineRoom``)."""
    wanted = frozenset(rooms)

    def allocate(queues: Queues, clients: Clients, client_id: str) -> list[MessageQueue]:
        near = [queue for queue in queues if _room_of(queue) in wanted]
        index = clients.index(client_id)
        size, rest = divmod(len(near), len(clients))
        share = near[index * size : (index + 1) * size]
        if index < rest:
            share.append(near[index + size * len(clients)])
        return share

    return allocate


def allocate_nearby(
    inner: Strategy,
    room_of_queue: Callable[[MessageQueue], str],
    room_of_client: Callable[[str], str],
) -> Strategy:
    """Apply ``inner`` separately to each room's queues and clients. A room without clients is
    divided among all clients (``AllocateMachineRoomNearby``).

    The returned strategy raises ValueError if the name of a room is empty.
    """

    def allocate(queues: Queues, clients: Clients, client_id: str) -> list[MessageQueue]:
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_of.setdefault(_named(room_of_queue(queue), queue), []).append(queue)
        clients_of: dict[str, list[str]] = {}
        for client in clients:
            clients_of.setdefault(_named(room_of_client(client), client), []).append(client)
        here = room_of_client(client_id)
        ours: list[MessageQueue] = []
        if here in queues_of:
            ours += inner(queues_of[here], clients_of[here], client_id)
        for room in sorted(queues_of):
            if room not in clients_of:
                ours += inner(queues_of[room], clients, client_id)
        return ours

    return allocate


def _named(room: str, of: object) -> str:
    if not room:
        raise ValueError(
            f"no machine room is known for {of}; the function that names rooms must "
            "know every broker and client"
        )
    return room


def _room_of(queue: MessageQueue) -> str | None:
    parts = queue.broker_name.split(ROOM_END)
    return parts[0] if len(parts) == 2 and parts[1] else None


STRATEGIES: Final[Mapping[str, Strategy]] = {
    "AVG": allocate_average,
    "AVG_BY_CIRCLE": allocate_by_circle,
    "CONSISTENT_HASH": allocate_consistent_hash(),
}
"""Strategies by the names that brokers use."""


def strategy_of(allocation: str | Strategy) -> Strategy:
    """Return the strategy with this name, or ``allocation`` itself if it is a function. Raises
    ConfigError for an unknown name."""
    if not isinstance(allocation, str):
        return allocation
    if allocation not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise ConfigError(
            f"allocation={allocation!r} is unknown; there are {known}, and "
            "turbopump.client.allocation makes others"
        )
    return STRATEGIES[allocation]
