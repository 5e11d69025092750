"""Handlers of lists of messages, and what they were given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.stand_ins import does_nothing

from turbopump.client.consumer.delivery import Delivery


class Lists:
    """A handler that notes the lists it gets; ``fate`` says what it does with one, ``seconds`` how
    long it takes."""

    def __init__(
        self, fate: Callable[[list[Delivery]], object] = does_nothing, *, seconds: float = 0.0
    ) -> None:
        self.got: list[list[bytes]] = []
        self.queues: list[set[int]] = []
        self._fate = fate
        self._seconds = seconds

    async def __call__(self, messages: list[Delivery]) -> object:
        self.got.append([message.body for message in messages])
        self.queues.append({message.queue_id for message in messages})
        if self._seconds:
            await asyncio.sleep(self._seconds)
        return self._fate(messages)

    @property
    def bodies(self) -> list[bytes]:
        return [body for bodies in self.got for body in bodies]


def bodies(first: int, end: int) -> list[bytes]:
    return [b"m%d" % i for i in range(first, end)]


def fails(messages: list[Delivery]) -> object:
    raise ZeroDivisionError
