"""A queue that is popped in order: of each queue behind it one message (or batch) at a time is in
somebody's hands, the next when it is done.

One rule: what failed is handled again in place, and what comes after it waits. The broker gives
nobody more of a queue while something that was taken of it is neither acknowledged nor visible
again. So a line is kept invisible while it moves: whenever a message is handed out, at least half
of the invisible time is left, or more is asked for first. A line whose handler does not come back
comes again, from that message on, to the next consumer that pops. It must not know who handles
messages. RocketMQ: Java's push consumer only plans this (its ``ConsumeMessagePopOrderlyService``
handles nothing); its brokers do their part.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import islice

from turbopump.client.consumer.pop import PoppedDelivery, PopResult
from turbopump.client.consumer.popped_queue import PopMembership, PopQueue
from turbopump.client.consumer.queue_loop import Membership
from turbopump.errors import MessageError, RemotingError
from turbopump.message.message import MessageQueue
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_comes_early = RepeatedLine(
    log, logging.WARNING, "queue comes again before its time queue=%s cause=%s"
)


@dataclass(slots=True, eq=False)
class _UndoneMessages:
    """Messages of one queue that are not done, the next one first. ``out`` are those that were
    handed out, or soon will be: mostly one, or a batch. ``failed``: of these, which come again, and
    after how many seconds."""

    left: deque[PoppedDelivery] = field(default_factory=deque)
    unwanted: set[PoppedDelivery] = field(default_factory=set)
    out: list[PoppedDelivery] = field(default_factory=list)
    failed: dict[PoppedDelivery, float] = field(default_factory=dict)

    def next(self, count: int) -> list[PoppedDelivery]:
        """What is to be handed out, up to so many."""
        return list(
            islice((message for message in self.left if message not in self.unwanted), count)
        )

    def forget(self) -> None:
        """Nothing is left of it but what somebody has in hand."""
        self.left.clear()
        self.out = [message for message in self.out if message.taken]
        self.failed.clear()


class OrderedPopQueue(PopQueue):
    """Pops in order once started."""

    def __init__(self, shared: Membership, queue: MessageQueue, pops: PopMembership) -> None:
        super().__init__(shared, queue, pops)
        assert shared.order is not None
        self._order = shared.order
        self._lines: dict[int, _UndoneMessages] = {}
        self._answered()

    def drop(self) -> None:
        for line in self._lines.values():
            line.left.clear()
        super().drop()

    # --- what comes

    def _answered(self) -> None:
        self._attempt_id = f"{self._instance.environment.random.getrandbits(128):032x}"

    def _take(self, found: PopResult[PoppedDelivery]) -> None:
        deadline = self._loop.time() + self._settings.invisible_s
        came: dict[int, list[PoppedDelivery]] = {}
        for message in sorted(
            (*found.wanted, *found.unwanted), key=lambda message: message.queue_offset
        ):
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
            line = self._lines.setdefault(queue_id, _UndoneMessages())
            # the broker has given the queue out anew: what we had of it is not ours any more
            self._forget(list(line.left))
            line.left.extend(messages)
            line.unwanted = unwanted.intersection(messages)
            self._advance(line)

    def _forget(self, late: Sequence[PoppedDelivery]) -> None:
        """Of a line, what nobody has in hand: if one message is late, they all are."""
        for line in {
            id(line): line for message in late if (line := self._lines[message.queue_id]).left
        }.values():
            for message in line.left:
                if not (message in line.out and message.taken):
                    self._held.pop(message, None)
            line.forget()
        self.look()

    # --- the next ones

    def _advance(self, line: _UndoneMessages) -> None:
        """Hand out what is next, unless something is out."""
        if not line.out:
            self._pass_over_unwanted(line)
            if line.left and not self.dropped:
                self._hand_out(line, 0.0, ())

    def _pass_over_unwanted(self, line: _UndoneMessages) -> None:
        while line.left and line.left[0] in line.unwanted:
            message = line.left.popleft()
            line.unwanted.discard(message)
            self._release(message)
            self._requests.acknowledge_later(message, message.deadline)

    def _hand_out(
        self, line: _UndoneMessages, delay: float, again: Collection[PoppedDelivery]
    ) -> None:
        """After ``delay`` seconds, what is next then; with half of the invisible time left then, or
        more is asked for before. ``again``: those that have failed."""
        out = line.out = line.next(self._order.batch or 1)
        if out[0].overdue:
            self._forget(out)
        elif out[0].deadline - self._loop.time() - delay < self._settings.invisible_s / 2:
            self._requests.spawn(
                self._keep(line, out, line.left[-1], delay, again),
                name=f"keep invisible {out[0].msg_id}",
            )
        elif delay > 0:
            self._loop.call_later(delay, self._offer, line, out, again)
        else:
            self._offer(line, out, again)

    async def _keep(
        self,
        line: _UndoneMessages,
        out: list[PoppedDelivery],
        last: PoppedDelivery,
        delay: float,
        again: Collection[PoppedDelivery],
    ) -> None:
        """Have more time for the whole line: it is blocked for others as long as its last message
        is invisible."""
        asked, seconds = self._loop.time(), delay + self._settings.invisible_s
        try:
            await self._requests.change_invisible_time(last, seconds)
        except (RemotingError, MessageError) as error:
            _comes_early(self.queue, error, kind=self.queue)
            if line.out is out:
                self._forget(out)
            return
        if line.out is out and not self.dropped:
            for other in line.left:
                other.invisible_until(asked + seconds, self._loop.time)
            self._hand_out(line, delay, again)

    def _offer(
        self, line: _UndoneMessages, out: list[PoppedDelivery], again: Collection[PoppedDelivery]
    ) -> None:
        if line.out is not out or self.dropped or not line.left or line.left[0] is not out[0]:
            return
        out[:] = [
            self._once_more(line, message) if message in again else message for message in out
        ]
        self._ready.put(list(out))

    def _once_more(self, line: _UndoneMessages, before: PoppedDelivery) -> PoppedDelivery:
        """A new delivery of it: a handler that has asked for it again may still say something, of
        the one before."""
        message = copy(before)
        message.deliver_again()
        line.left[line.left.index(before)] = message
        self._held.pop(before, None)
        self._held[message] = None
        if message.batch is not None:
            message.batch.replace(before, message)
        return message

    # --- what becomes of it

    def _after(self, message: PoppedDelivery) -> None:
        line = self._lines[message.queue_id]
        if message not in line.out:
            return
        line.out.remove(message)
        if message in line.left:
            line.left.remove(message)
            if message.overdue:
                self._forget(list(line.left))
        self._go_on(line)

    def _go_on(self, line: _UndoneMessages) -> None:
        """If nobody has any more of what is out: what failed is next, together, or else what
        follows."""
        if any(message not in line.failed for message in line.out):
            return
        failed, line.failed, line.out = line.failed, {}, []
        if failed and not self.dropped:
            self._pass_over_unwanted(line)
            self._hand_out(line, max(failed.values()), failed)
        else:
            self._advance(line)

    def _retry(self, message: PoppedDelivery, delay: float | None, level: int) -> None:
        line, retries_max = self._lines[message.queue_id], self._order.retries_max
        if message not in line.out or message not in line.left or message.overdue or self.dropped:
            self._put_down(message)
        elif level < 0 or (retries_max is not None and message.reconsume_times >= retries_max):
            self._backs.begin(
                message, None, level, lambda taken: self._given_up(line, message, taken=taken)
            )
        else:
            message.reconsume_times += 1
            self._again(line, message, self._order.suspend_s if delay is None else max(delay, 0.0))

    def _given_up(self, line: _UndoneMessages, message: PoppedDelivery, *, taken: bool) -> None:
        if taken:
            self._release(message)
            if not self._closed:
                self._requests.acknowledge_later(message, message.deadline)
            self._after(message)
        elif message in line.out and message in line.left:
            self._again(line, message, self._order.suspend_s)
        else:
            self._put_down(message)

    def _again(self, line: _UndoneMessages, message: PoppedDelivery, delay: float) -> None:
        message.taken = False
        line.failed[message] = delay
        self._go_on(line)

    def _put_down(self, message: PoppedDelivery) -> None:
        """Nobody handles it: the line comes again from there, soon if it is still ours, and what
        others have not got of it."""
        line = self._lines[message.queue_id]
        message.taken = False
        given_back = [message]
        if message in line.out:
            line.out.remove(message)
            if message in line.left:
                at = line.left.index(message)
                given_back = [
                    other
                    for other in islice(line.left, at, None)
                    if not (other in line.out and other.taken)
                ]
                line.left = deque(islice(line.left, at))
        for other in given_back:
            if other in line.out:
                line.out.remove(other)
            line.failed.pop(other, None)
            if other in self._held:
                self._give_back(other)
        self._go_on(line)
