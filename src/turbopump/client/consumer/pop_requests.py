"""Requests for popped messages: pop, acknowledge, and change the invisible time.

One rule: each request goes to the master of the broker that the handle names. Acknowledgements that
no caller awaits are sent together: those that arrive during a request go with the next one to that
broker. They are repeated until the broker answers or the message has become visible. Source:
apache/rocketmq ``MQClientAPIImpl.popMessageAsync``, ``ackMessageAsync``, ``batchAckMessageAsync``,
``changeInvisibleTimeAsync``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from turbopump import errors
from turbopump.client.consumer.pop import (
    ANSWER_S,
    GIVEN_BACK_S,
    HasHandle,
    MessageT,
    PoppedDelivery,
    PoppedMessage,
    PopResult,
    popped_messages,
    single_handle,
    to_acknowledge,
)
from turbopump.client.consumer.pull import log_damaged
from turbopump.client.consumer.send_back import SendBack
from turbopump.client.consumer.subscription import Subscription
from turbopump.client.instance import ClientInstance
from turbopump.client.namespace import unwrap, wrap
from turbopump.message.handles import PopHandle
from turbopump.message.message import MessageQueue
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests import pop as requests
from turbopump.remoting.client import refused_by
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_not_acknowledged = RepeatedLine(
    log,
    logging.WARNING,
    "messages not acknowledged, repeated until they are visible again broker=%s count=%d cause=%s",
)
_not_changed = RepeatedLine(
    log,
    logging.WARNING,
    "invisible time of a message not changed, the old one holds group=%s msg_id=%s cause=%s",
)
_becomes_dead = RepeatedLine(
    log, logging.WARNING, "message exceeded its retries, becomes a dead letter group=%s msg_id=%s"
)

AT_ONCE_MAX: Final = 512
"""Maximum number of acknowledgements in one request."""
PAUSE_S: Final = 1.0
"""Seconds before acknowledgements that a broker did not accept are sent again."""

_FINAL: Final = (
    ResponseCode.NO_MESSAGE,
    ResponseCode.MESSAGE_ILLEGAL,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.NO_PERMISSION,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
)
TIMEOUT_S: Final = 5.0
SPAN_MAX: Final = 4096
"""Maximum distance, in offsets, between a message and the start of its pop in a batched
acknowledgement. Messages beyond it are acknowledged alone, because a batch has a bit for every
offset between."""


_NOTHING: Final = (
    ResponseCode.POLLING_TIMEOUT,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.POLLING_FULL,
)


AnswerT = TypeVar("AnswerT")


class _PendingChange(NamedTuple):
    message: HasHandle
    deadline: float


class _Receipt(NamedTuple):
    topic: str
    text: str
    handle: PopHandle
    offset: int


@dataclass(eq=False)
class PopRequests:
    """Requests of one group to brokers: pops, acknowledgements, and delays of messages.

    - ``group``: name of the group, as brokers know it.
    - ``init_mode``: position at which the group starts in a queue without an offset.
    - ``namespace``: prefix that is removed from the topics that users see.
    - ``backs``: object that makes dead letters of messages.
    - ``retries_max``: number of retries after which a message becomes a dead letter. None for no
      limit.
    """

    instance: ClientInstance
    group: str
    init_mode: requests.InitMode
    namespace: str | None
    backs: SendBack
    retries_max: int | None

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._without_batches: set[str] = set()
        """Brokers that do not support request 200151 (batched acknowledgements)."""
        self._waiting: dict[str, list[_PendingChange]] = {}
        self._sending: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def pop(
        self,
        subscription: Subscription,
        queue: MessageQueue,
        message_type: type[MessageT],
        *,
        batch: int,
        invisible_s: float,
        wait_s: float,
        attempt_id: str | None,
    ) -> PopResult[MessageT]:
        """Pop messages of ``queue``, and make them invisible to others for ``invisible_s`` seconds.

        - ``queue``: a queue id of −1 means any queue of the topic.
        - ``batch``: maximum number of messages.
        - ``wait_s``: seconds for which the broker may wait for messages before it answers.
        - ``attempt_id``: makes the pop ordered. A repeated pop with the same id returns the
          messages of the first pop, whose answer was lost.

        Messages are returned without ``namespace``. Damaged messages are logged and left out, and
        the broker delivers them again. Messages that do not match the filter are acknowledged,
        because brokers compare only hashes of tags. Messages with too many retries become dead
        letters.

        Raises RemotingError if the pop fails, and BodyError for an unreadable answer.
        """
        address = await introduced_master(self.instance, queue)
        request = requests.PopMessage(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            max_msg_nums=batch,
            invisible_time=milliseconds(invisible_s),
            poll_time=int(wait_s * 1000),
            born_time=0,  # the broker's own now: our clock may be another
            init_mode=self.init_mode,
            exp_type=subscription.kind,
            exp=subscription.expression,
            order=attempt_id is not None,
            attempt_id=attempt_id,
        )
        command = await self.instance.remoting.exchange(address, request, timeout=wait_s + ANSWER_S)
        if command.code in _NOTHING:
            return PopResult([], full=command.code == ResponseCode.POLLING_FULL)
        if command.code != ResponseCode.SUCCESS:
            raise refused_by(address, request, command)
        try:
            messages, damaged = popped_messages(
                command.body, command.header(requests.PopMessageReply), queue, message_type
            )
        except errors.MessageError as error:
            raise errors.BodyError(
                f"the answer of {address} to a pop cannot be read: {error}"
            ) from None
        log_damaged(damaged)
        deadline = self._loop.time() + invisible_s
        topic = unwrap(self.namespace, queue.topic)
        wanted: list[MessageT] = []
        for message in messages:
            message.topic = topic
            if not subscription.wants(message):
                self.acknowledge_later(message, deadline)
            elif self.retries_max is not None and message.reconsume_times > self.retries_max:
                _becomes_dead(self.group, message.msg_id, kind=self.group)
                self.make_dead_letter(message, deadline)
            else:
                wanted.append(message)
        return PopResult(wanted, len(messages))

    # --- acknowledgements without a waiting caller

    def acknowledge_later(self, message: HasHandle, deadline: float) -> None:
        """Acknowledge a finished message in the background, together with others.

        ``deadline`` is the event loop time, in seconds, at which the message becomes visible to
        others.
        """
        broker_name = message.broker_name
        self._waiting.setdefault(broker_name, []).append(_PendingChange(message, deadline))
        if broker_name not in self._sending:
            self._sending.add(broker_name)
            self._spawn(self._send_waiting(broker_name), f"acknowledge to {broker_name}")

    def make_dead_letter(self, message: PoppedMessage | PoppedDelivery, deadline: float) -> None:
        """Make a dead letter of a message, and acknowledge the message."""

        def settled(taken: bool) -> None:
            if taken:
                self.acknowledge_later(message, deadline)

        self.backs.send_back_later(message, None, -1, settled)

    def give_back(self, message: PoppedMessage | PoppedDelivery) -> None:
        """Return an unhandled message to the broker, to be delivered again soon."""
        self.change_later(message, GIVEN_BACK_S)

    def change_later(self, message: PoppedMessage | PoppedDelivery, seconds: float) -> None:
        """Schedule the next delivery of a message ``seconds`` from now. The call does not wait for
        the broker's answer."""
        self._spawn(self._try_to_change(message, seconds), f"change {message.msg_id}")

    async def _try_to_change(self, message: PoppedMessage | PoppedDelivery, seconds: float) -> None:
        try:
            await self.change_invisible_time(message, seconds)
        except (errors.RemotingError, errors.MessageError) as error:
            # otherwise too late: the message is being delivered again
            if getattr(error, "code", None) != ResponseCode.NO_MESSAGE:
                _not_changed(self.group, message.msg_id, error, kind=self.group)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start a background task. ``finish`` waits for its end."""
        task = self.instance.spawn(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, patience: float) -> None:
        """Wait at most ``patience`` seconds for the end of the background requests."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=patience)

    async def _send_waiting(self, broker_name: str) -> None:
        # One task for each broker sends what has gathered while its last request was in flight, so
        # the number of requests adapts to the broker's speed. A failed request is repeated, but not
        # for ever: a message that becomes visible before the next attempt is dropped from it,
        # because another member has it then, and its acknowledgement would name a dead handle. An
        # undecodable handle (MessageError) would fail again, so its request is not repeated.
        waiting = self._waiting[broker_name]
        try:
            while waiting:
                await asyncio.sleep(0)  # what else becomes done in this turn goes along
                now = waiting[:AT_ONCE_MAX]
                later = waiting[AT_ONCE_MAX:]
                waiting[:] = later
                try:
                    await self.acknowledge(one.message for one in now)
                except (errors.RemotingError, errors.MessageError) as error:
                    code = error.code if isinstance(error, errors.ResponseError) else None
                    # too late: the message is or was delivered again
                    if code != ResponseCode.NO_MESSAGE:
                        _not_acknowledged(broker_name, len(now), error, kind=broker_name)
                    if isinstance(error, errors.RemotingError) and code not in _FINAL:
                        waiting[:0] = [
                            one for one in now if one.deadline > self._loop.time() + PAUSE_S
                        ]
                        if waiting:
                            await asyncio.sleep(PAUSE_S)
        finally:
            self._sending.discard(broker_name)

    # --- awaited acknowledgements, and changes of the invisible time

    async def acknowledge(
        self, messages: Iterable[HasHandle], *, timeout: float = TIMEOUT_S
    ) -> None:
        """Acknowledge finished messages at their brokers, and wait for the answers.

        Several messages of one broker go in one request, which has one answer for all. An inner
        batch is acknowledged once all of its messages are.

        Raises MessageError for an unusable handle before anything is sent. Raises RemotingError if
        a broker refuses (code 208: no such message) or cannot be reached, after all requests were
        sent.
        """
        by_broker: dict[str, list[_Receipt]] = {}
        for message in to_acknowledge(messages):
            receipt = self._receipt(message)
            by_broker.setdefault(receipt.handle.broker_name, []).append(receipt)
        outcomes = await asyncio.gather(
            *(
                self._ask_master(
                    name,
                    receipts[0].topic,
                    timeout,
                    partial(self._acknowledge_at, name, receipts),
                    # a second acknowledgement changes nothing
                    again_after=(errors.ConnectError, errors.ConnectionLostError),
                )
                for name, receipts in by_broker.items()
            ),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def change_invisible_time(
        self, message: HasHandle, seconds: float, *, timeout: float = TIMEOUT_S
    ) -> str:
        """Postpone the next delivery of a message to ``seconds`` from now. Return the message's new
        handle.

        The old handle becomes invalid. A message of an inner batch is delivered again together with
        the whole batch.

        Raises MessageError for an unusable handle, and RemotingError if the request fails.
        """
        batch = message.batch
        if batch is None:
            return await self._change(message, seconds, timeout)
        began = self._loop.time()
        async with batch.turn:
            # otherwise another message of the batch has set the same time
            if not batch.has_moved(seconds, began):
                batch.moved(
                    await self._change(message, seconds, timeout), seconds, self._loop.time()
                )
        return message.handle

    async def _change(self, message: HasHandle, seconds: float, timeout: float) -> str:
        receipt = self._receipt(message)
        handle = receipt.handle
        request = requests.ChangeInvisibleTime(
            consumer_group=self.group,
            topic=handle.real_topic(receipt.topic, self.group),
            queue_id=handle.queue_id,
            extra_info=receipt.text,
            offset=receipt.offset,
            invisible_time=milliseconds(seconds),
        )

        async def ask(address: str, timeout: float) -> requests.ChangeInvisibleTimeReply:
            return await self.instance.remoting.call(address, request, timeout=timeout)

        reply = await self._ask_master(handle.broker_name, receipt.topic, timeout, ask)
        changed = replace(
            handle,
            start_offset=receipt.offset,
            pop_time_ms=reply.pop_time,
            invisible_ms=reply.invisible_time,
            revive_queue_id=reply.revive_qid,
        )
        return changed.encode()

    def _receipt(self, message: HasHandle) -> _Receipt:
        handle = single_handle(message)
        assert handle.queue_offset is not None
        return _Receipt(
            wrap(self.namespace, message.topic), message.handle, handle, handle.queue_offset
        )

    async def _acknowledge_at(
        self, broker_name: str, receipts: Sequence[_Receipt], address: str, timeout: float
    ) -> None:
        if broker_name in self._without_batches:
            single = list(receipts)
            body = None
        else:
            single, body = self._batched(broker_name, receipts)
        if body is not None:
            request = requests.BatchAckMessage()
            command = await self.instance.remoting.exchange(address, request, body, timeout=timeout)
            if command.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._without_batches.add(broker_name)
                single = list(receipts)
            elif command.code != ResponseCode.SUCCESS:
                raise refused_by(address, request, command)
        await asyncio.gather(
            *(self._acknowledge_one(address, receipt, timeout) for receipt in single)
        )

    def _batched(
        self, broker_name: str, receipts: Sequence[_Receipt]
    ) -> tuple[list[_Receipt], requests.BatchAckBody | None]:
        """Split receipts into two groups. Return the receipts to send singly, and a request body
        with the rest."""
        by_pop: dict[tuple[str, PopHandle], list[_Receipt]] = {}
        alone: list[_Receipt] = []
        for receipt in receipts:
            handle = receipt.handle
            if len(receipts) == 1 or not 0 <= receipt.offset - handle.start_offset < SPAN_MAX:
                alone.append(receipt)
            else:
                pop = receipt.topic, replace(handle, queue_offset=None)
                by_pop.setdefault(pop, []).append(receipt)
        if not by_pop:
            return alone, None
        acks = tuple(
            requests.BatchAck(
                consumer_group=self.group,
                topic=topic,
                retry=pop.kind.value,
                start_offset=pop.start_offset,
                queue_id=pop.queue_id,
                revive_queue_id=pop.revive_queue_id,
                pop_time=pop.pop_time_ms,
                invisible_time=pop.invisible_ms,
                bits=requests.pack_bits(receipt.offset - pop.start_offset for receipt in its),
            )
            for (topic, pop), its in by_pop.items()
        )
        return alone, requests.BatchAckBody(broker_name=broker_name, acks=acks)

    async def _acknowledge_one(self, address: str, receipt: _Receipt, timeout: float) -> None:
        handle = receipt.handle
        request = requests.AckMessage(
            consumer_group=self.group,
            topic=handle.real_topic(receipt.topic, self.group),
            queue_id=handle.queue_id,
            extra_info=receipt.text,
            offset=receipt.offset,
        )
        await self.instance.remoting.call(address, request, timeout=timeout)

    async def _ask_master(
        self,
        broker_name: str,
        topic: str,
        timeout: float,
        ask: Callable[[str, float], Awaitable[AnswerT]],
        again_after: tuple[type[errors.RemotingError], ...] = (errors.ConnectError,),
    ) -> AnswerT:
        """Call ``ask`` with the address of a broker's master and the seconds that are left.

        If the master is not reached, ``ask`` is called once more, as soon as name servers name a
        master. Raises the first error if they name none in time.
        """
        routes = self.instance.routes
        deadline = self._loop.time() + timeout
        try:
            return await ask(routes.require_master(broker_name, topic), timeout)
        except again_after as error:
            try:
                async with asyncio.timeout_at(deadline):
                    address = await routes.next_master(broker_name, topic)
            except TimeoutError:
                raise error from None
        return await ask(address, max(deadline - self._loop.time(), 0.001))


async def introduced_master(instance: ClientInstance, queue: MessageQueue) -> str:
    """Introduce this client to the master of a queue's broker, and return the master's address.

    A heartbeat is sent if the master has got none from this client yet. Raises RemotingError.
    """
    address = instance.routes.require_master(queue.broker_name, queue.topic)
    await instance.introduced(address)
    return address


def milliseconds(seconds: float) -> int:
    """Convert seconds to whole milliseconds, at least 1."""
    return max(round(seconds * 1000), 1)
