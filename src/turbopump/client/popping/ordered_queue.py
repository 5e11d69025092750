"""A queue that is popped in order: of each queue behind it one message at a time is in somebody's hands, the next when it is done.

One rule: what failed is handled again in place, and what comes after it waits. The broker gives nobody more of a queue while something
that was taken of it is neither acknowledged nor visible again. So a line is kept invisible while it moves: whenever a message is handed
out, at least half of the invisible time is left, or more is asked for first. A line whose handler does not come back comes again, from
that message on, to whoever pops next. It must not know who handles messages.
RocketMQ: Java's push consumer only plans this (its ``ConsumeMessagePopOrderlyService`` handles nothing); its brokers do their part.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from turbopump.client.consuming.ordered_line import InOrder
from turbopump.client.popping.pop import PopResult
from turbopump.client.popping.popped import PoppedDelivery
from turbopump.client.popping.queue import PopQueue
from turbopump.errors import MessageError, RemotingError

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Line:
    """Messages of one queue that are not done, the next one first. ``out`` is the one that was handed out, or soon will be."""

    left: deque[PoppedDelivery] = field(default_factory=deque)
    unwanted: set[PoppedDelivery] = field(default_factory=set)
    out: PoppedDelivery | None = None


class OrderedPopQueue(PopQueue):
    """Pops in order once started. ``order`` says when, and how often, a message that failed is handled again; the rest is as there."""

    def __init__(self, *parts: Any, order: InOrder, namespace: str | None) -> None:
        super().__init__(*parts, namespace=namespace)
        self._order = order
        self._lines: dict[int, _Line] = {}
        self._answered()

    def drop(self) -> None:
        for line in self._lines.values():
            line.left.clear()
        super().drop()

    # --- what comes ----------------------------------------------------------------------------------------------------------

    def _answered(self) -> None:
        self._attempt_id = f"{self._instance.surroundings.random.getrandbits(128):032x}"

    def _take(self, found: PopResult[PoppedDelivery]) -> None:
        deadline = self._loop.time() + self._settings.invisible_s
        came: dict[int, list[PoppedDelivery]] = {}
        for message in sorted((*found.wanted, *found.unwanted), key=lambda message: message.queue_offset):
            message.deliver(self, message.reconsume_times + 1)
            message.invisible_until(deadline, self._loop.time)
            self._held[message] = None
            came.setdefault(message.queue_id, []).append(message)
        if self._stopped:
            for message in [message for messages in came.values() for message in messages]:
                self._give_back(message)
            return
        unwanted = set(found.unwanted)
        for queue_id, messages in came.items():
            line = self._lines.setdefault(queue_id, _Line())
            self._forget(list(line.left))  # the broker has given the queue out anew: what we had of it is not ours any more
            line.left.extend(messages)
            line.unwanted = unwanted.intersection(messages)
            self._advance(line)

    def _forget(self, late: Sequence[PoppedDelivery]) -> None:
        """Of a line, what nobody has in hand: if one message is late, they all are."""
        for line in {id(line): line for message in late if (line := self._lines[message.queue_id]).left}.values():
            for message in line.left:
                if not (message is line.out and message.taken):
                    self._held.pop(message, None)
            line.left.clear()
            if line.out is not None and not line.out.taken:
                line.out = None
        self._look_for_room()

    # --- the next one --------------------------------------------------------------------------------------------------------

    def _advance(self, line: _Line) -> None:
        """Hand out the next message, unless one is out."""
        while line.out is None and line.left and line.left[0] in line.unwanted:
            message = line.left.popleft()
            line.unwanted.discard(message)
            self._release(message)
            self._acks.begin(message, message.broker_name, message.deadline)
        if line.out is None and line.left and not self._dropped:
            line.out = line.left[0]
            self._hand_out(line, line.out, 0.0, again=False)

    def _hand_out(self, line: _Line, message: PoppedDelivery, delay: float, *, again: bool) -> None:
        """After ``delay`` seconds; with half of the invisible time left then, or more is asked for before."""
        if message.overdue:
            self._forget([message])
        elif message.deadline - self._loop.time() - delay < self._settings.invisible_s / 2:
            self._acks.spawn(
                self._keep(line, message, line.left[-1], delay, again=again), name=f"keep invisible {message.msg_id}"
            )
        elif delay > 0:
            self._loop.call_later(delay, self._offer, line, message, again)
        else:
            self._offer(line, message, again)

    async def _keep(self, line: _Line, message: PoppedDelivery, last: PoppedDelivery, delay: float, *, again: bool) -> None:
        """Have more time for the whole line: it is blocked for others as long as its last message is invisible."""
        asked, seconds = self._loop.time(), delay + self._settings.invisible_s
        try:
            await self._receipts.change_invisible_time(last, seconds)
        except (RemotingError, MessageError) as error:
            log.warning("queue in order not kept, comes again queue=%s cause=%s", self.queue, error)
            if line.out is message:
                self._forget([message])
            return
        if line.out is message and not self._dropped:
            for other in line.left:
                other.invisible_until(asked + seconds, self._loop.time)
            self._hand_out(line, message, delay, again=again)

    def _offer(self, line: _Line, message: PoppedDelivery, again: bool) -> None:
        if line.out is not message or self._dropped or not line.left or line.left[0] is not message:
            return
        if again:
            message.deliver_again()
        self._ready.put([message])

    # --- what becomes of it --------------------------------------------------------------------------------------------------

    def _after(self, message: PoppedDelivery) -> None:
        line = self._lines[message.queue_id]
        if line.out is not message:
            return
        line.out = None
        if line.left and line.left[0] is message:
            line.left.popleft()
            if message.overdue:
                self._forget(list(line.left))
        self._advance(line)

    def _retry(self, message: PoppedDelivery, delay: float | None, level: int) -> None:
        line, retries_max = self._lines[message.queue_id], self._order.retries_max
        if line.out is not message or not line.left or line.left[0] is not message or message.overdue or self._dropped:
            self._put_down(message)
        elif level < 0 or (retries_max is not None and message.reconsume_times >= retries_max):
            self._backs.begin_plain(message, level, lambda taken: self._given_up(line, message, taken=taken))
        else:
            message.reconsume_times += 1
            self._again(line, message, self._order.suspend_s if delay is None else max(delay, 0.0))

    def _given_up(self, line: _Line, message: PoppedDelivery, *, taken: bool) -> None:
        if taken:
            self._release(message)
            if not self._closed:
                self._acks.begin(message, message.broker_name, message.deadline)
            self._after(message)
        elif line.left and line.left[0] is message:
            self._again(line, message, self._order.suspend_s)
        else:
            self._put_down(message)

    def _again(self, line: _Line, message: PoppedDelivery, delay: float) -> None:
        message.taken = False
        self._hand_out(line, message, delay, again=True)

    def _put_down(self, message: PoppedDelivery) -> None:
        """Nobody handles it: the line comes again from there, soon if it is still ours, and what others have not got of it."""
        line = self._lines[message.queue_id]
        message.taken = False
        given_back = [message]
        if line.left and line.left[0] is message:
            given_back = list(line.left)
            line.left.clear()
        if line.out is message:
            line.out = None
        for other in given_back:
            if other in self._held:
                self._give_back(other)
        self._advance(line)
