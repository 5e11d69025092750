"""From a user's call to the sender and back: a message waits for room among what is in flight, and
its queue changes names on the way.

One rule: a message has its room from before it is sent until its own result is there. It must not
know how a message is made or sent.
"""

from __future__ import annotations

import asyncio

from turbopump.client.namespace import unwrap
from turbopump.client.sending.accumulator import Accumulator, batch_key
from turbopump.client.sending.aiming import Aiming
from turbopump.client.sending.back_pressure import BackPressure, InFlightBound, NoRoomError
from turbopump.client.sending.outgoing import Outgoing, Piece
from turbopump.client.sending.send_attempts import Target
from turbopump.client.sending.send_failure import no_room, no_time
from turbopump.client.sending.send_result import SendResult
from turbopump.client.sending.sender import Sender
from turbopump.message.message import Message
from turbopump.message.message_queue import MessageQueue


class Admission:
    """``back_pressure`` None: there is always room. ``timeout``: seconds for a call that names
    none."""

    def __init__(self, back_pressure: BackPressure | None, aiming: Aiming, timeout: float) -> None:
        self._bound = None if back_pressure is None else InFlightBound(back_pressure)
        self.bounded = back_pressure is not None
        """Whether anybody may have to wait."""
        self._aiming = aiming
        self._timeout = timeout

    async def deliver(
        self, sender: Sender, outgoing: Outgoing, target: Target, timeout: float | None
    ) -> SendResult:
        """Wait for room, then send it. Raises as ``Producer.send``."""
        if self._bound is not None:
            timeout = await self.enter(outgoing, timeout)
        return await self.deliver_entered(sender, outgoing, target, timeout)

    async def enter(self, outgoing: Outgoing, timeout: float | None) -> float | None:
        """Wait for room; the seconds that are left. Raises SendError if there is none in time."""
        if self._bound is None:
            return timeout
        return await self._enter(
            self._bound, outgoing, len(outgoing.body), self._timeout if timeout is None else timeout
        )

    async def deliver_entered(
        self, sender: Sender, outgoing: Outgoing, target: Target, timeout: float | None
    ) -> SendResult:
        """Send what has entered; its room is free then, whatever became of it."""
        try:
            return await self.deliver_unbound(sender, outgoing, target, timeout)
        finally:
            if self._bound is not None:
                self._bound.leave(len(outgoing.body))

    async def deliver_unbound(
        self, sender: Sender, outgoing: Outgoing, target: Target, timeout: float | None
    ) -> SendResult:
        """Send it without asking for room: of a batch that came together by itself, each message
        has its own."""
        if self._aiming.namespace is None:
            return await sender.deliver(outgoing, target, timeout)
        result = await sender.deliver(outgoing, self._aiming.inside(target), timeout)
        return result.moved_to(self._aiming.outside(result.queue))

    async def batch(
        self,
        accumulator: Accumulator,
        message: Message,
        piece: Piece,
        queue: MessageQueue | None,
        timeout: float | None,
    ) -> asyncio.Future[SendResult]:
        """Wait for the message's own room, which it has until its own future is done, and have it
        batched."""
        if timeout is None:
            timeout = self._timeout
        bound = self._bound
        if bound is None:
            return accumulator.add(message, piece, queue, timeout)
        # now: it may be changed while it waits
        size, key = len(message.body), batch_key(message, piece, queue)
        timeout = await self._enter(bound, piece, size, timeout)
        try:
            future = accumulator.put(key, piece, timeout)
        except BaseException:
            bound.leave(size)
            raise
        future.add_done_callback(lambda _: bound.leave(size))
        return future

    async def wait_idle(self) -> None:
        """Wait until nobody has room, or waits for it."""
        if self._bound is not None:
            await self._bound.wait_idle()

    def close(self) -> None:
        """Whoever waits for room, or finds none from now on, gets a SendError."""
        if self._bound is not None:
            self._bound.close()

    async def _enter(
        self, bound: InFlightBound, of: Outgoing | Piece, size: int, timeout: float
    ) -> float:
        """Wait for room for ``size`` bytes; the seconds that are left."""
        if timeout <= 0:
            raise no_time(of.msg_id, unwrap(self._aiming.namespace, of.topic), timeout)
        now = asyncio.get_running_loop().time
        began = now()
        try:
            return await bound.enter_within(size, timeout)
        except NoRoomError as error:
            topic = unwrap(self._aiming.namespace, of.topic)
            raise no_room(of.msg_id, topic, str(error), (now() - began) * 1000) from None
