"""Messages whose handlers do not come back: after a while each is given back to its broker, so that
its queue goes on.

One rule: whoever handles such a message is not disturbed, and nothing it says of it later counts.
It must not know queues or offsets. Source: apache/rocketmq ``ProcessQueue.cleanExpiredMsg``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from turbopump.client.consuming.delivery import LateHandlerError
from turbopump.client.consuming.delivery_batch import Handled, keys_of

log = logging.getLogger(__name__)

LEVEL: Final = 3
"""The delay level after which such a message comes again: 10 s by Apache's table."""


async def give_back_late(in_hand: Callable[[], Iterable[Handled]], timeout: float) -> None:
    """For ever: of what handlers have ``in_hand``, give back what has been there for ``timeout``
    seconds."""
    loop = asyncio.get_running_loop()
    while True:
        now = loop.time()
        next_due = now + timeout
        for message in in_hand():
            if message.settled or not message.taken:
                continue
            due = message.taken_at + timeout
            if due <= now:
                _give_back(message, now - message.taken_at)
            else:
                next_due = min(next_due, due)
        await asyncio.sleep(max(next_due - now, 0.001))


def _give_back(message: Handled, seconds: float) -> None:
    log.warning(
        "handler has not ended for %.0f s, its message is given back, what it says later does "
        "not count %s",
        *(seconds, keys_of(message)),
    )
    message.retry(
        level=LEVEL, reason=LateHandlerError(f"its handler had not ended after {seconds:.0f} s")
    )
