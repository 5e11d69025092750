"""Two of Apache's strategies for sharing a topic's queues among the members of a group.

Clients use them, and a broker that assigns queues. Every member computes the same division from the
same lists, so each function must be exactly Apache's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turbopump.message.message import MessageQueue

Queues = Sequence[MessageQueue]
Clients = Sequence[str]
Strategy = Callable[[Queues, Clients, str], list[MessageQueue]]
"""Function of all queues (sorted), all client ids (sorted) and one client id. It returns the queues
of that client; none for an unknown client."""


def allocate_average(queues: Queues, clients: Clients, client_id: str) -> list[MessageQueue]:
    """Assign neighbouring queues to each client, in equal shares.

    If the queues cannot be divided equally, the first clients get one more. RocketMQ:
    ``AllocateMessageQueueAveragely``.
    """
    if client_id not in clients:
        return []
    index = clients.index(client_id)
    size, rest = divmod(len(queues), len(clients))
    start = index * size + min(index, rest)
    return list(queues[start : start + size + (index < rest)])


def allocate_by_circle(queues: Queues, clients: Clients, client_id: str) -> list[MessageQueue]:
    """Assign queues one at a time, to each client in turn.

    RocketMQ: ``AllocateMessageQueueAveragelyByCircle``.
    """
    if client_id not in clients:
        return []
    return list(queues[clients.index(client_id) :: len(clients)])
