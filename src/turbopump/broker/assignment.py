"""Which queues a consumer gets when it asks a broker (400), as pure functions of sorted lists.

Source: apache/rocketmq ``QueryAssignmentProcessor.allocate4Pop``,
``AllocateMessageQueueAveragely``, ``AllocateMessageQueueAveragelyByCircle``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from turbopump.broker.pop.held_pops import ANY_QUEUE
from turbopump.message.message_queue import MessageQueue

Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]
"""(all queues sorted, all client ids sorted, one of them) to its queues; those of a client that is
not among them are none."""


def average(
    queues: Sequence[MessageQueue], clients: Sequence[str], client_id: str
) -> list[MessageQueue]:
    """Neighbouring queues in equal shares; the first clients get one more."""
    if client_id not in clients:
        return []
    index = clients.index(client_id)
    size, rest = divmod(len(queues), len(clients))
    start = index * size + min(index, rest)
    return list(queues[start : start + size + (index < rest)])


def by_circle(
    queues: Sequence[MessageQueue], clients: Sequence[str], client_id: str
) -> list[MessageQueue]:
    """One queue after the other to one client after the other."""
    return list(queues[clients.index(client_id) :: len(clients)]) if client_id in clients else []


STRATEGIES: Final[dict[str, Strategy]] = {"AVG": average, "AVG_BY_CIRCLE": by_circle}
"""By Apache's names."""


def allocate_for_pop(
    strategy: Strategy,
    queues: Sequence[MessageQueue],
    clients: Sequence[str],
    client_id: str,
    share: int,
) -> list[MessageQueue]:
    """The queues that a client pops: those that ``strategy`` gives to it and to the ``share``
    clients behind it. Where that is everybody, or ``share`` is no number of clients: all queues of
    every broker."""
    if share <= 0 or share >= len(clients) - 1:
        return list(
            dict.fromkeys(
                MessageQueue(queue.topic, queue.broker_name, ANY_QUEUE) for queue in queues
            )
        )
    if client_id not in clients:
        return []
    index = clients.index(client_id)
    if len(clients) > len(queues):  # so that each has one
        return [queues[index % len(queues)]]
    behind = [clients[(index + step) % len(clients)] for step in range(share + 1)]
    return list(
        dict.fromkeys(queue for client in behind for queue in strategy(queues, clients, client))
    )
