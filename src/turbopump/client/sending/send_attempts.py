"""Sending of one message. After a failed attempt, another broker is tried.

One rule: the deadline covers everything: routes, topic creation, connections and retries. The error
of a failed send lists all attempts. After a failure that shows an old route, the route is fetched
again. While a broker has no master, or the master cannot be reached, the send waits: it has stored
nothing, so its attempts do not count as retries.

The fast path (``deliver``) only leaves out steps that are not needed. Source: apache/rocketmq
``DefaultMQProducerImpl.sendDefaultImpl``. Asynchronous retries correct the queue id, which
``onExceptionImpl`` does not.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from turbopump import errors
from turbopump.client.hooks import MessageKind, SendContext
from turbopump.client.routes import AWAITED_S, DOUBT_S
from turbopump.client.sending.outgoing import DELAYING, LARGE_BODY_SIZE, Outgoing
from turbopump.client.sending.queue_chooser import Target
from turbopump.client.sending.send_result import (
    BOUND_SEND_ANSWER,
    ONE_BROKER_SEND_ANSWER,
    SEND_ANSWER,
    AnswerUnreadError,
    Attempt,
    BrokerHangsError,
    MasterMovedError,
    NotWrittenError,
    ProducerClosedError,
    SendResult,
    SendStatus,
    is_queue_gone,
    no_queue,
    no_room,
    no_time,
    result_of,
    send_failure,
)
from turbopump.client.sending.sender import Sender, is_usual
from turbopump.client.topic_route import TopicRoute
from turbopump.message import properties as names
from turbopump.message.message import MessageQueue
from turbopump.message.user_properties import text_pairs
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import NOT_IN_SYNC
from turbopump.remoting.permits import Permits
from turbopump.remoting.wire import Wire
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_tried_again = RepeatedLine(
    log, logging.INFO, "send attempt failed, tried again topic=%s broker=%s address=%s cause=%s"
)

RETRY_PAUSE_S: Final = 0.1
"""Pause in seconds before the same broker is tried again. It doubles each time."""
NOT_WRITTEN: Final = "nothing was written to it any more"
CORRECTION_S: Final = 0.5
"""Maximum seconds for which a send waits for the answer of a name server after an attempt."""


async def deliver(
    sender: Sender, outgoing: Outgoing, target: Target = None, timeout: float | None = None
) -> SendResult:
    """Send a message, and return when a broker has stored it.

    Raises the errors of ``Producer.send``.
    """
    if timeout is None:
        timeout = sender.rules.timeout
    elif timeout <= 0:
        raise no_time(outgoing.msg_id, sender.shown_topic(outgoing.topic), timeout)
    began = sender.time()
    first: Attempt | None = None
    under_way = sender.under_way
    under_way.count += 1
    try:
        if under_way.count > under_way.limit:
            timeout = await _wait_for_permit(sender, under_way, outgoing, timeout)
            began = sender.time()
        if len(outgoing.body) >= LARGE_BODY_SIZE:
            outgoing = await sender.packer.compressed(outgoing)
            began = sender.time()  # the time-out is for brokers, not for this
        route = sender.known.get(outgoing.topic)
        if (
            target is None
            and route is not None
            and sender.short
            and sender.faults.empty
            and is_usual(route)
        ):
            queue = sender.selection.choose(route)
            address = route.master(queue.broker_name) or ""
            connection = sender.connection(address)
            if connection is not None:
                kind = BOUND_SEND_ANSWER
                if sender.may_retry:
                    kind = SEND_ANSWER if route.spread else ONE_BROKER_SEND_ANSWER
                    if not sender.hangs.on:
                        sender.hangs.start()
                try:
                    answer = await sender.ask(connection, outgoing, queue, timeout, kind)
                    now = sender.time()
                    if sender.faults.settings is not None:
                        sender.faults.succeeded(queue.broker_name, (now - began) * 1000, now)
                    result = result_of(answer, outgoing, queue, address)
                    sender.statistics.count_stored(queue.broker_name, now - began)
                    if result.status is SendStatus.OK or not sender.rules.retry_unless_ok:
                        return result
                    first = Attempt(queue, address, result.status.value, None, result)
                except errors.RemotingError as error:
                    first = Attempt(queue, address, str(error), error)
        return await SendAttempts(sender, outgoing, target, began, timeout).until_stored(first)
    except (errors.SendError, errors.RouteNotFoundError):
        sender.statistics.given_up += 1
        raise
    finally:
        under_way.count -= 1  # 50 ns less than ``with``
        if under_way.watched:
            under_way.wake_waiting()


async def _wait_for_permit(
    sender: Sender, permits: Permits, outgoing: Outgoing, timeout: float
) -> float:
    """Wait for a permit to send, and return the seconds that are left of ``timeout``.

    Raises SendError if there is no permit in time.
    """
    began = sender.time()
    try:
        await permits.wait_turn(began + timeout)
    except TimeoutError:
        spent_ms = (sender.time() - began) * 1000
        sends = "sends"
        setting = "async_permits"
        if permits is sender.oneways:
            sends = "oneway sends"
            setting = "oneway_permits"
        raise no_room(
            outgoing.msg_id,
            sender.shown_topic(outgoing.topic),
            f"no permit for {spent_ms:.0f} ms: {permits.limit} {sends} of this producer are in "
            f"flight, the limit ({setting}). Nothing was stored: send less at once, or check the "
            "broker's load",
            spent_ms,
            errors.ClientErrorCode.ACCESS_BROKER_TIMEOUT,
        ) from None
    return max(timeout - (sender.time() - began), 0.001)


async def send_oneway(sender: Sender, outgoing: Outgoing, target: Target) -> None:
    """Write a message to a connection without asking the broker for an answer."""
    began = sender.time()
    timeout = sender.rules.timeout
    oneways = sender.oneways
    oneways.count += 1
    try:
        if oneways.count > oneways.limit:
            await _wait_for_permit(sender, oneways, outgoing, timeout)
        if len(outgoing.body) >= LARGE_BODY_SIZE:
            outgoing = await sender.packer.compressed(outgoing)
            began = sender.time()
        await SendAttempts(sender, outgoing, target, began, timeout).oneway()
    finally:
        oneways.count -= 1
        if oneways.watched:
            oneways.wake_waiting()


class SendAttempts:
    """Attempts to send one message until a broker has stored it.

    - ``began``: event loop time, in seconds, at which the send began.
    - ``timeout``: seconds after ``began`` at which the send fails.
    """

    def __init__(
        self, sender: Sender, outgoing: Outgoing, target: Target, began: float, timeout: float
    ) -> None:
        self._sender = sender
        self._outgoing = outgoing
        self._target = target
        self._began = began
        self._deadline = began + timeout
        self._loop = asyncio.get_running_loop()
        # a chosen queue is not exchanged for another
        self._retries = sender.rules.retries if target is None else 0
        self._tried: list[Attempt] = []
        self._counted = 0  # attempts that reached a master
        self._corrected = False
        self._without_master = ""  # name of the broker that was waited for in vain

    async def until_stored(self, first: Attempt | None) -> SendResult:
        outcome: SendResult | Attempt
        if first is None:
            route = await self._route()
            outcome = await self._try_once(route, None, may_retry=self._retries > 0)
        else:
            route = self._sender.known[self._outgoing.topic]
            outcome = first
            await self._record_failure(first, self._began)
        while isinstance(outcome, Attempt):
            following = await self._next_attempt(route, outcome)
            if following is None:
                return self._give_up()
            route, queue = following
            may_retry = self._counted < self._retries
            outcome = await self._try_once(route, queue, may_retry=may_retry)
        return outcome

    async def oneway(self) -> None:
        route = await self._route()
        queue = self._choose_queue(route)
        sender = self._sender
        while True:
            address = route.master(queue.broker_name) or "no address"
            try:
                master = master_of(route, queue)
                left = self._time_left()
                connection = await sender.connect(master, timeout=left)
                await self._wait_for_room(connection)
                sender.under_way.refuse_if_closed(NOT_WRITTEN)
                break
            except (errors.ConnectError, NotWrittenError, ProducerClosedError) as error:
                sender.faults.failed(
                    queue.broker_name,
                    self._loop.time(),
                    connection=isinstance(error, errors.ConnectError),
                )
                if isinstance(error, NotWrittenError):
                    await sender.instance.abandon_if_silent(address, self._began)
                attempt = Attempt(queue, address, str(error), error)
                self._tried.append(attempt)
                following = await self._next_attempt(route, attempt)
                if following is None:
                    raise self._send_error() from error
                route, chosen = following
                queue = chosen or self._choose_queue(route)
        context = self._call_hooks_before(queue, address, oneway=True)
        connection.send_frame(
            sender.encode(
                self._outgoing, queue, connection.calls.next_opaque, sender.now_ms(), True
            )
        )
        if sender.creation.unsaid:
            sender.creation.log_first_broker(queue)
        self._call_hooks_after(context, self._loop.time(), None)
        # let the loop write: a caller that only sends oneway would never yield
        await asyncio.sleep(0)

    async def _wait_for_room(self, connection: Wire) -> None:
        """Wait until the broker has read earlier data from the connection.

        Raises NotWrittenError if that takes too long, and ConnectError if the connection has ended.
        """
        try:
            await connection.drain(self._deadline)
        except TimeoutError:
            waited = self._loop.time() - self._began
            raise NotWrittenError(f"has not read the earlier data for {waited:.1f} s") from None
        if connection.closed:
            what = f"connection to {connection.peer}"
            raise errors.ConnectError(f"{what} ended before the message was written")

    # --- one attempt

    async def _try_once(
        self, route: TopicRoute, queue: MessageQueue | None, *, may_retry: bool
    ) -> SendResult | Attempt:
        sender = self._sender
        loop = self._loop
        if queue is None:
            queue = self._choose_queue(route)
        began = loop.time()
        address = route.master(queue.broker_name) or ""
        context = self._call_hooks_before(queue, address or "no address")
        try:
            address = master_of(route, queue)
            if not sender.hangs.on and (may_retry or sender.connection(address) is None):
                sender.hangs.start()
            if sender.introduces:
                patience = self._patience(route, connected=False, may_retry=may_retry)
                await self._introduce(address, patience)
            connection = sender.connection(address)
            connected = connection is not None
            patience = self._patience(route, connected=connected, may_retry=may_retry)
            if connection is None:
                connection = await sender.connect(address, timeout=patience)
            sender.under_way.refuse_if_closed(NOT_WRITTEN)
            time_left = max(min(patience, self._time_left()), 0.001)
            kind = BOUND_SEND_ANSWER
            if may_retry:
                kind = SEND_ANSWER if route.spread else ONE_BROKER_SEND_ANSWER
            answer = await sender.ask(connection, self._outgoing, queue, time_left, kind)
            result = result_of(answer, self._outgoing, queue, address)
        except asyncio.CancelledError:
            error = errors.SendError("the sender was cancelled before the broker answered")
            self._call_hooks_after(context, began, error)
            raise
        except errors.RemotingError as error:
            self._call_hooks_after(context, began, error)
            attempt = Attempt(queue, address or "no address", str(error), error)
            await self._record_failure(attempt, began)
            return attempt
        self._call_hooks_after(context, began, result)
        sender.statistics.count_stored(queue.broker_name, loop.time() - began)
        if sender.faults.settings is not None or not sender.faults.empty:
            sender.faults.succeeded(queue.broker_name, (loop.time() - began) * 1000, loop.time())
        if sender.creation.unsaid:
            sender.creation.log_first_broker(result.queue)
        if result.status is SendStatus.OK or not sender.rules.retry_unless_ok:
            return result
        attempt = Attempt(queue, address, result.status.value, None, result)
        self._tried.append(attempt)
        return attempt

    async def _introduce(self, address: str, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                await self._sender.instance.introduced(address)
        except TimeoutError:
            raise errors.ConnectError(
                f"{address} answered no heartbeat within {patience:.1f} s"
            ) from None

    def _choose_queue(self, route: TopicRoute) -> MessageQueue:
        target = self._target
        if target is None:
            failed = dict.fromkeys(attempt.broker_name for attempt in reversed(self._tried))
            return self._sender.selection.choose(route, tuple(reversed(failed)), self._loop.time())
        return target if isinstance(target, MessageQueue) else target(route.publish_queues)

    def _patience(self, route: TopicRoute, *, connected: bool, may_retry: bool) -> float:
        left = self._time_left()
        limit = self._sender.rules.attempt_timeout
        if may_retry and limit is not None:
            return min(left, limit)
        if may_retry and not connected and route.spread:
            return left / 2  # a host that is silent must leave time for another one
        return left

    def _call_hooks_before(
        self, queue: MessageQueue, address: str, *, oneway: bool = False
    ) -> SendContext | None:
        sender = self._sender
        outgoing = self._outgoing
        if not sender.hooks:
            return None
        properties = names.decode_properties(outgoing.properties)
        context = SendContext(
            sender.group,
            outgoing.topic,
            dict(properties),
            len(outgoing.body),
            queue,
            address,
            outgoing.msg_id,
            message_kind_of(properties),
            sender.now_ms(),
            oneway,
            outgoing.body if outgoing.batch_ids else None,
        )
        sender.hooks.before(context)
        if context.properties != properties and not outgoing.batch_ids:
            self._outgoing = with_properties(outgoing, context.properties)
        return context

    def _call_hooks_after(
        self, context: SendContext | None, began: float, outcome: SendResult | Exception | None
    ) -> None:
        if context is None:
            return
        context.cost_ms = (self._loop.time() - began) * 1000
        if isinstance(outcome, Exception):
            context.error = outcome
        else:
            context.result = outcome
        self._sender.hooks.after(context)

    # --- between attempts

    async def _record_failure(self, attempt: Attempt, began: float) -> None:
        self._tried.append(attempt)
        if attempt.error is not None:
            self._sender.statistics.count_failed(attempt.broker_name)
            lost = isinstance(
                attempt.error, (errors.ConnectError, errors.ConnectionLostError, BrokerHangsError)
            )
            self._sender.faults.failed(attempt.broker_name, self._loop.time(), connection=lost)
        timed_out = isinstance(attempt.error, errors.CallTimeoutError)
        if timed_out and not isinstance(attempt.error, BrokerHangsError):
            await self._sender.instance.abandon_if_silent(attempt.address, began)

    async def _next_attempt(
        self, route: TopicRoute, attempt: Attempt
    ) -> tuple[TopicRoute, MessageQueue | None] | None:
        """Return the route and the queue of the next attempt, once it may begin.

        A queue of None means any queue. Return None if there is no further attempt.
        """
        unreached = is_unreached(route, attempt)
        if not unreached:
            self._counted += 1
        if not await self._may_try_again(route, attempt, unreached=unreached):
            return await self._correction(route, attempt)
        if unreached or is_in_doubt(route, attempt):
            newer = await self._with_master(route, attempt)
            if newer is None:
                return None
            route = newer
        _tried_again(
            self._sender.shown_topic(self._outgoing.topic),
            attempt.broker_name,
            attempt.address,
            attempt.outcome,
            kind=attempt.broker_name,
        )
        return route, None if self._target is None else attempt.queue

    async def _may_try_again(self, route: TopicRoute, attempt: Attempt, *, unreached: bool) -> bool:
        """Pause if needed, and return True if another attempt follows now."""
        sender = self._sender
        over = self._counted > self._retries and not unreached
        if over or self._is_final(attempt) or sender.under_way.closed:
            return False
        paused = await self._pause_before_retry(route, attempt, unreached=unreached)
        return paused and not sender.under_way.closed

    async def _with_master(self, route: TopicRoute, attempt: Attempt) -> TopicRoute | None:
        """Return a newer route after a failed attempt, or the old route if there is none yet.

        While the newer route names a broker without a master, the next one is waited for. Return
        None if there is no master until the deadline, or the broker of a chosen queue is gone.
        """
        name = None if self._target is None else attempt.broker_name
        sender = self._sender
        newer = await self._renewed(route, RETRY_PAUSE_S)
        try:
            async with asyncio.timeout_at(self._deadline):
                while newer.lacks_master(name) and not sender.under_way.closed:
                    newer = await sender.instance.routes.next_route(newer)
        except TimeoutError:
            self._without_master = attempt.broker_name
            return None
        if sender.under_way.closed:
            return None
        if name is not None:
            return newer if newer.master(name) is not None else None
        if newer.publish_queues:
            return newer
        return route if route.publish_queues else None

    def _is_final(self, attempt: Attempt) -> bool:
        error = attempt.error
        if isinstance(error, errors.ResponseError):
            return error.code not in self._sender.rules.retry_codes and not is_queue_gone(error)
        return isinstance(error, AnswerUnreadError)

    def _give_up(self) -> SendResult:
        for attempt in reversed(self._tried):
            if attempt.result is not None:
                return attempt.result  # stored, if not as safely as was wished
        raise self._send_error() from self._tried[-1].error

    def _send_error(self) -> errors.SendError:
        sender = self._sender
        outgoing = self._outgoing
        tried = self._tried
        spent_ms = (self._loop.time() - self._began) * 1000
        topic = sender.shown_topic(outgoing.topic)
        closed = sender.under_way.closed
        route = sender.instance.routes.known.get(outgoing.topic)
        queues = None
        if route is not None:
            last = tried[-1].broker_name
            queues = sum(queue.broker_name == last for queue in route.publish_queues)
        stalled = ""
        if isinstance(tried[-1].error, errors.CallTimeoutError | errors.ConnectError):
            stalled = sender.instance.stalls.explanation(self._began)
        return send_failure(
            outgoing.msg_id,
            topic,
            tried,
            spent_ms,
            closed=closed,
            queues=queues,
            stalled=stalled,
            without_master=self._without_master,
        )

    async def _pause_before_retry(
        self, route: TopicRoute, attempt: Attempt, *, unreached: bool
    ) -> bool:
        """Pause before a retry if the next attempt would use the same broker.

        Return False if there is no time for another attempt.
        """
        pause = 0.0
        if unreached and any(one.broker_name == attempt.broker_name for one in self._tried[:-1]):
            pause = AWAITED_S
        elif self._target is not None or only_broker(route, attempt.broker_name):
            pause = RETRY_PAUSE_S * 2 ** max(self._counted - 1, 0)
        if self._loop.time() + pause >= self._deadline:
            return False
        await asyncio.sleep(pause)
        return True

    def _time_left(self) -> float:
        return max(self._deadline - self._loop.time(), 0.001)

    async def _route(self) -> TopicRoute:
        queue = self._target
        if isinstance(queue, MessageQueue) and queue.topic != self._outgoing.topic:
            shown = self._sender.shown_topic
            raise errors.MessageError(
                f"the message is for topic {shown(self._outgoing.topic)!r}, the chosen queue is "
                f"of topic {shown(queue.topic)!r}"
            )
        if queue is not None and not callable(queue) and not isinstance(queue, MessageQueue):
            raise no_queue(queue)
        return await self._sender.route(self._outgoing.topic, self._time_left())

    async def _correction(
        self, route: TopicRoute, attempt: Attempt
    ) -> tuple[TopicRoute, MessageQueue | None] | None:
        """Return a newer route if the old route caused the failure. One more attempt uses the newer
        route.

        The attempt comes after the last retry, and only if nothing was stored. The second value is
        the queue to use, or None for any queue. Return None if there is no such attempt.
        """
        sender = self._sender
        error = attempt.error
        if sender.under_way.closed:
            return None
        if not is_routes_fault(attempt):
            if isinstance(error, (errors.CallTimeoutError, errors.ConnectionLostError)):
                # it may be stored, so only the next send uses a newer route
                sender.instance.routes.renew_soon(route)
            return None
        newer = await self._renewed(route, DOUBT_S)
        if self._corrected or sender.under_way.closed or self._loop.time() >= self._deadline:
            return None
        self._corrected = True
        if is_queue_gone(error):
            if isinstance(self._target, MessageQueue) or attempt.queue in newer.publish_queues:
                return None
            return (newer, None) if newer.publish_queues else None
        if newer.master(attempt.broker_name) in (None, attempt.address):
            return None
        return newer, attempt.queue

    async def _renewed(self, route: TopicRoute, pause: float) -> TopicRoute:
        """Return a newer route, or the old route if none arrives within ``CORRECTION_S``."""
        timeout = min(self._time_left(), CORRECTION_S)
        return await self._sender.instance.routes.renewed(route, timeout, pause=pause)


_ELSEWHERE: Final = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SERVICE_NOT_AVAILABLE)
"""Answers of a broker that does not have the topic, or is no longer the master."""


def is_routes_fault(attempt: Attempt) -> bool:
    """Return True if an old route may have caused the failure. Nothing was stored in that case."""
    error = attempt.error
    elsewhere = isinstance(error, errors.ResponseError) and error.code in _ELSEWHERE
    return elsewhere or isinstance(error, errors.ConnectError) or is_queue_gone(error)


def is_unreached(route: TopicRoute, attempt: Attempt) -> bool:
    """Return True if the attempt reached no master that takes sends now. Nothing was stored.

    Another master may take the message soon. A broker without replicas that answers code 14 has
    another fault, such as a full disk.
    """
    error = attempt.error
    if isinstance(error, errors.ResponseError):
        if error.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            return len(route.addresses.get(attempt.broker_name, {})) > 1
        return error.code == ResponseCode.SYSTEM_ERROR and error.remark.startswith(NOT_IN_SYNC)
    return isinstance(error, errors.ConnectError)


def is_in_doubt(route: TopicRoute, attempt: Attempt) -> bool:
    """Return True if the route may be old after this failure, and the next attempt needs it.

    A lost connection may be the end of the only broker. After a MasterMovedError this route may
    still name the old address, because the move was seen in another topic's route.
    """
    error = attempt.error
    if isinstance(error, MasterMovedError):
        return route.master(attempt.broker_name) == attempt.address
    if isinstance(error, errors.ConnectionLostError):
        return only_broker(route, attempt.broker_name)
    return is_routes_fault(attempt)


def with_properties(outgoing: Outgoing, properties: dict[str, str]) -> Outgoing:
    """Return the message with a hook's properties. Properties that cannot be encoded are logged and
    ignored.

    The id of the message is kept.
    """
    try:
        properties = text_pairs(properties)
        if properties.get(names.UNIQ_KEY) != outgoing.msg_id:
            log.warning(
                "send hook's message id left out msg_id=%s instead=%.80r",
                outgoing.msg_id,
                properties.get(names.UNIQ_KEY),
            )
            properties[names.UNIQ_KEY] = outgoing.msg_id
        text = names.encode_properties(properties)
        if (size := len(text.encode())) > names.PROPERTIES_SIZE_MAX:
            raise errors.MessageError(
                f"{size} bytes, at most {names.PROPERTIES_SIZE_MAX} are allowed"
            )
    except (errors.MessageError, UnicodeEncodeError) as error:
        log.warning("send hook's properties left out msg_id=%s cause=%s", outgoing.msg_id, error)
        return outgoing
    return msgspec.structs.replace(outgoing, properties=text)


def master_of(route: TopicRoute, queue: MessageQueue) -> str:
    """Return the address of the queue's master.

    Raises ConnectError if the broker has no master now.
    """
    address = route.master(queue.broker_name)
    if address is None:
        raise errors.ConnectError(
            f"broker {queue.broker_name} has no master at the moment",
            code=errors.ClientErrorCode.BROKER_NOT_EXIST,
        )
    return address


def only_broker(route: TopicRoute, broker_name: str) -> bool:
    return all(other.broker_name == broker_name for other in route.publish_queues)


def message_kind_of(properties: dict[str, str]) -> MessageKind:
    """Derive the kind of a message from its properties.

    Source: apache/rocketmq ``sendKernelImpl``.
    """
    if any(name in properties for name in DELAYING):
        return MessageKind.DELAY
    half = properties.get("TRAN_MSG") == "true"
    return MessageKind.TRANSACTION_HALF if half else MessageKind.NORMAL
