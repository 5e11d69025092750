"""Back-pressure: a limit on a producer's messages in flight. It limits their number and their
bytes.

One rule: senders that wait for room get it in the order in which they came, until their deadlines.
Source: apache/rocketmq ``enableBackpressureForAsyncMode``. There, a waiting send keeps a lock that
finished sends need. Here it does not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from turbopump.client.namespace import unwrap, unwrapped, wrapped
from turbopump.client.sending.accumulator import Accumulator, batch_key
from turbopump.client.sending.outgoing import BatchPart, Outgoing
from turbopump.client.sending.queue_chooser import Target
from turbopump.client.sending.send_attempts import deliver
from turbopump.client.sending.send_result import SendResult, no_room, no_time
from turbopump.client.sending.sender import Sender
from turbopump.client.setting_rules import SettingRule, check_settings, is_whole_above_0, setting
from turbopump.message.message import Message, MessageQueue

_BOUND: Final = SettingRule(
    is_whole_above_0, "must be a whole number above 0, or nothing could be sent"
)


@dataclass(frozen=True, slots=True)
class BackPressure:
    """Limit on the number and size of a producer's messages in flight.

    Raises ConfigError unless both values are whole numbers above 0.
    """

    messages: int = setting(10_000, _BOUND)
    """Maximum number of messages in flight."""
    size: int = setting(100 * 1024 * 1024, replace(_BOUND, unit="bytes"))
    """Maximum total size of the message bodies in flight."""

    def __post_init__(self) -> None:
        check_settings(self)


class NoRoomError(Exception):
    """Raised when there is no room for a message in time.

    The caller, which knows the message, raises a SendError instead.
    """


class InFlightBound:
    """Counter of the messages in flight. Senders wait while the counter is at its limit.

    A body that is larger than the whole limit is sent alone.
    """

    def __init__(self, bound: BackPressure) -> None:
        self._bound = bound
        self.messages = 0
        self.size = 0
        self._line: deque[tuple[int, asyncio.Future[bool]]] = deque()
        """Waiting senders, each with the size of its message and a future. The future's result is
        True if there is room, and False after the close."""
        self._closed = False
        self._idle: asyncio.Event | None = None

    async def wait_for_room(self, size: int, timeout: float) -> None:
        """Wait until a message of ``size`` bytes fits into the limit, and reserve its room.

        Raises NoRoomError if that takes more than ``timeout`` seconds, or if the producer is
        closed.
        """
        if not self._line and self._fits(size):
            self._take_room(size)
            return
        # Senders wait in a line, so that a large message is not overtaken for ever by small ones:
        # only the first in the line may enter (``_let_in``). A sender that is cancelled or times
        # out may have been let in at the same moment. Its room is then freed, or the limit would
        # shrink with each such sender. Otherwise it leaves the line, and those behind it may fit.
        #
        # The numbers are read now for the error's text: messages in flight may all time out at the
        # same moment.
        messages = self.messages
        total = self.size
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        let_in = False
        if not self._closed:
            self._line.append((size, turn))
        try:
            async with asyncio.timeout(timeout):
                let_in = not self._closed and await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled() and turn.result():
                self.free_room(size)  # let in at the very moment it gave up
            else:
                with contextlib.suppress(ValueError):  # the line may have passed over it already
                    self._line.remove((size, turn))
                self._let_in()
            if isinstance(error, TimeoutError):
                raise NoRoomError(
                    f"within {timeout:.3g} s there was no room among the {messages} messages "
                    f"({total} bytes) in flight; at most {self._bound.messages} "
                    f"({self._bound.size} bytes) are allowed. The brokers are slower than you "
                    "send: send less at once, wait longer, or raise back_pressure"
                ) from None
            raise
        if not let_in:
            raise NoRoomError(
                f"the producer was closed while it waited for room among the {messages} messages "
                f"({total} bytes) in flight. Nothing was stored"
            )

    async def wait_idle(self) -> None:
        while self.messages or self._line:
            self._idle = self._idle or asyncio.Event()
            self._idle.clear()
            await self._idle.wait()

    def close(self) -> None:
        """End all waits for room with NoRoomError. A later sender without room gets the error at
        once."""
        self._closed = True
        for _, turn in self._line:
            if not turn.done():
                turn.set_result(False)
        self._line.clear()

    def free_room(self, size: int) -> None:
        """Free the room of a message whose send has ended."""
        self.messages -= 1
        self.size -= size
        self._let_in()

    def _let_in(self) -> None:
        while self._line:
            size, turn = self._line[0]
            if not turn.done():
                if not self._fits(size):
                    return
                self._take_room(size)
                turn.set_result(True)
            self._line.popleft()
        if self._idle is not None and not self.messages:
            self._idle.set()

    def _fits(self, size: int) -> bool:
        if self.messages == 0:
            return True
        return self.messages < self._bound.messages and self.size + size <= self._bound.size

    def _take_room(self, size: int) -> None:
        self.messages += 1
        self.size += size


class InFlightLimiter:
    """Sender that limits how many messages are in flight.

    Room for a message is reserved from before the send until its result.

    - ``back_pressure``: limit on messages in flight. None for no limit.
    - ``timeout``: default timeout of a send in seconds.
    """

    def __init__(
        self, back_pressure: BackPressure | None, namespace: str | None, timeout: float
    ) -> None:
        self._bound = None if back_pressure is None else InFlightBound(back_pressure)
        self.bounded = back_pressure is not None
        """True if senders may have to wait."""
        self._namespace = namespace
        self._timeout = timeout

    async def deliver(
        self, sender: Sender, outgoing: Outgoing, target: Target, timeout: float | None
    ) -> SendResult:
        timeout = await self.wait_for_room(outgoing, timeout)
        return await self.deliver_entered(sender, outgoing, target, timeout)

    async def wait_for_room(self, outgoing: Outgoing, timeout: float | None) -> float | None:
        """Reserve room for the message, and return the rest of ``timeout`` in seconds.

        Raises SendError if there is no room in time.
        """
        if self._bound is None:
            return timeout
        return await self._wait_for_room(self._bound, outgoing, len(outgoing.body), timeout)

    async def deliver_entered(
        self, sender: Sender, outgoing: Outgoing, target: Target, timeout: float | None
    ) -> SendResult:
        """Send a message with reserved room, and free the room afterwards.

        The room is also freed after an error.
        """
        try:
            return await self.deliver_unbound(sender, outgoing, target, timeout)
        finally:
            if self._bound is not None:
                self._bound.free_room(len(outgoing.body))

    async def deliver_unbound(
        self, sender: Sender, outgoing: Outgoing, target: Target, timeout: float | None
    ) -> SendResult:
        """Send a message or batch without reserving room.

        Automatic batches are sent in this way, because their messages have reserved room already.
        """
        namespace = self._namespace
        if namespace is None:
            return await deliver(sender, outgoing, target, timeout)
        if isinstance(target, MessageQueue):
            target = wrapped(namespace, target)
        result = await deliver(sender, outgoing, target, timeout)
        return result.moved_to(unwrapped(namespace, result.queue))

    async def add_to_batch(
        self,
        accumulator: Accumulator,
        message: Message,
        piece: BatchPart,
        queue: MessageQueue | None,
        timeout: float | None,
    ) -> asyncio.Future[SendResult]:
        """Reserve room for the message, and add it to a batch.

        The room is freed when the returned future is done.
        """
        bound = self._bound
        if bound is None:
            timeout = self._timeout if timeout is None else timeout
            return accumulator.add_message(message, piece, queue, timeout)
        # computed now, because the user may change the message while it waits
        size = len(message.body)
        key = batch_key(message, piece, queue)
        timeout = await self._wait_for_room(bound, piece, size, timeout)
        try:
            future = accumulator.put_piece(key, piece, timeout)
        except BaseException:
            bound.free_room(size)
            raise
        future.add_done_callback(lambda _: bound.free_room(size))
        return future

    async def wait_idle(self) -> None:
        if self._bound is not None:
            await self._bound.wait_idle()

    def close(self) -> None:
        """End all waits for room with SendError. A later sender without room gets the error at
        once."""
        if self._bound is not None:
            self._bound.close()

    async def _wait_for_room(
        self, bound: InFlightBound, of: Outgoing | BatchPart, size: int, timeout: float | None
    ) -> float:
        timeout = self._timeout if timeout is None else timeout
        topic = unwrap(self._namespace, of.topic)
        if timeout <= 0:
            raise no_time(of.msg_id, topic, timeout)
        now = asyncio.get_running_loop().time
        began = now()
        try:
            await bound.wait_for_room(size, timeout)
        except NoRoomError as error:
            raise no_room(of.msg_id, topic, str(error), (now() - began) * 1000) from None
        return max(timeout - (now() - began), 0.001)
