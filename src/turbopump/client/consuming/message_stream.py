"""``async for message in consumer``: one message at a time, done when the next is asked for.

One rule: a message that its reader leaves behind (``break``, an exception) is not done; it goes
back to the others that wait. It must not know where messages come from.
"""

from __future__ import annotations

from turbopump.client.consuming.delivery import Delivery
from turbopump.client.consuming.ready_messages import NoMoreMessages, ReadyMessages


class MessageStream:
    """One reader; several may share a consumer, each message goes to one of them."""

    def __init__(self, ready: ReadyMessages) -> None:
        self._ready = ready
        self._current: Delivery | None = None

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> Delivery:
        current, self._current = self._current, None
        if current is not None:
            current.done()
        try:
            self._current = message = await self._ready.take()
        except NoMoreMessages:
            raise StopAsyncIteration from None
        return message

    def __del__(self) -> None:
        # The loop body was left by break or by an exception: nothing else holds the stream then.
        message, self._current = self._current, None
        if message is not None and not message.settled:
            self._ready.give_back(message)
