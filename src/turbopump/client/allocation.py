"""Who gets which queue: Apache's allocation strategies, as pure functions of sorted lists.

One rule: every member of a group computes the same division from the same lists, so each function must be exactly Apache's. They
must not know what a queue or a client is beyond its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from turbopump.message.message_queue import MessageQueue

Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]
"""(all queues sorted, all client ids sorted, our client id, which is among them) to our queues."""


def allocate_average(queues: Sequence[MessageQueue], clients: Sequence[str], client_id: str) -> list[MessageQueue]:
    """Neighbouring queues in equal shares; the first clients get one more (``AllocateMessageQueueAveragely``)."""
    index = clients.index(client_id)
    size, rest = divmod(len(queues), len(clients))
    start = index * size + min(index, rest)
    return list(queues[start : start + size + (index < rest)])


STRATEGIES: Final[Mapping[str, Strategy]] = {"AVG": allocate_average}
"""By the name under which a broker knows them."""
