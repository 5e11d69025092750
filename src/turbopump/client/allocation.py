"""Strategies that divide queues among the members of a consumer group, as pure functions.

One rule: every member computes the same division from the same sorted lists, so each function must
give exactly the result of Apache's client. A strategy uses only the order and the names of queues
and clients. Source: apache/rocketmq ``client/…/consumer/rebalance/*``.
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
    """Return a strategy that assigns queues by a hash ring of the clients.

    A client that joins or leaves the group moves only its own share of the queues. Source:
    apache/rocketmq ``AllocateMessageQueueConsistentHash``.
    """

    def allocate(queues: Queues, clients: Clients, client_id: str) -> list[MessageQueue]:
        ring = Ring({client: client for client in clients}, virtual_nodes)
        return [queue for queue in queues if ring.owner_of(node_key(queue)) == client_id]

    return allocate


def allocate_by_configuration(ours: Collection[MessageQueue]) -> Strategy:
    """Return a strategy that always assigns the queues in ``ours`` to this client.

    The queues of the other members have no influence. The group's retry topic is divided by
    ``allocate_average``, unless ``ours`` contains queues of the retry topic. In Java no member
    would have the retry topic's queues, and failed messages would not be delivered again. Source:
    apache/rocketmq ``AllocateMessageQueueByConfig``.
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
    """Return a strategy that assigns only queues from these machine rooms.

    The brokers of a room are named ``room@…``. Every client gets an equal share, and the first
    clients get the remainder. Source: apache/rocketmq ``AllocateMessageQueueByMachineRoom``.
    """
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
    """Return a strategy for machine rooms. Within each room, ``inner`` divides the room's queues
    among the room's clients.

    The queues of a room without clients are divided among all clients. The returned strategy raises
    ValueError if the name of a room is empty. Source: apache/rocketmq
    ``AllocateMachineRoomNearby``.
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
"""Allocation strategies by the names that brokers use."""


def strategy_of(allocation: str | Strategy) -> Strategy:
    """Return the allocation strategy with this name, or ``allocation`` itself if it is a function.

    Raises ConfigError for an unknown name.
    """
    if not isinstance(allocation, str):
        return allocation
    if allocation not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise ConfigError(
            f"allocation={allocation!r} is unknown; there are {known}, and "
            "turbopump.client.allocation makes others"
        )
    return STRATEGIES[allocation]
