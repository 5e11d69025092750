"""One pop: the request, and what its answer means.

One rule: it says how the pop went, and decides nothing. It must not know why it pops, or what
becomes of the messages. Source: apache/rocketmq ``PullAPIWrapper.popAsync``,
``MQClientAPIImpl.popMessageAsync``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Generic, NamedTuple

from turbopump.client.consuming.offset_store import ConsumeFrom
from turbopump.client.consuming.pulled_messages import tell_of
from turbopump.client.consuming.subscription import Subscription
from turbopump.client.instance import ClientInstance
from turbopump.client.namespace import unwrap
from turbopump.client.popping.popped import MessageT, popped_messages
from turbopump.client.routes import Routes
from turbopump.errors import BodyError, ConnectError, MessageError, ResponseError
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.pop import InitMode, PopMessage, PopMessageReply

BATCH_MAX: Final = 32
"""Messages in one pop; brokers refuse more."""
ANSWER_S: Final = 10.0
"""For the answer, beyond what the broker may hold the pop."""
WAIT_S: Final = 5.0
"""How long a broker may hold a pop, or a question whether there is something to pop. Java's client
says 15; but no arrival in a retry topic of the usual form wakes what Apache's brokers hold, so that
a message that comes again would come so much later."""
GIVEN_BACK_S: Final = 1.0
"""A message that came and is not handled is made to come again after so long, instead of when its
time is over. RocketMQ's proxy does so (``NACK_INVISIBLE_TIME``)."""
ATTEMPTS_MAX: Final = 16
"""Retries before a message is a dead letter, if nothing else is said."""

_NOTHING: Final = (
    ResponseCode.POLLING_TIMEOUT,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.POLLING_FULL,
)


class PopResult(NamedTuple, Generic[MessageT]):
    """``wanted`` by the filter; the ``unwanted`` came because brokers compare hashes of tags.
    ``full``: too many pops wait there."""

    wanted: Sequence[MessageT]
    unwanted: Sequence[MessageT] = ()
    full: bool = False


async def pop(
    instance: ClientInstance,
    group: str,
    subscription: Subscription,
    queue: MessageQueue,
    message_type: type[MessageT],
    *,
    batch: int,
    invisible_s: float,
    wait_s: float,
    init_mode: InitMode,
    namespace: str | None,
    attempt_id: str | None = None,
) -> PopResult[MessageT]:
    """Take messages of ``queue`` (as brokers know it; queue id −1: of any) for ``invisible_s``
    seconds.

    ``wait_s``: how long the broker may hold it. ``attempt_id``: it is an ordered pop, and one that
    is made again because no answer came gets what the first one took. Messages come without
    ``namespace``; damaged ones are logged and left out, and come again. Raises RemotingError, and
    BodyError for an answer that cannot be read.
    """
    address = await introduced_master(instance, queue)
    request = PopMessage(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        max_msg_nums=batch,
        invisible_time=milliseconds(invisible_s),
        poll_time=int(wait_s * 1000),
        born_time=0,  # the broker's own now: our clock may be another
        init_mode=init_mode,
        exp_type=subscription.kind,
        exp=subscription.expression,
        order=attempt_id is not None,
        attempt_id=attempt_id,
    )
    command = await instance.remoting.exchange(address, request, timeout=wait_s + ANSWER_S)
    if command.code in _NOTHING:
        return PopResult((), full=command.code == ResponseCode.POLLING_FULL)
    if command.code != ResponseCode.SUCCESS:
        raise ResponseError(command.code, command.remark, request="PopMessage", address=address)
    try:
        messages, damaged = popped_messages(
            command.body, command.header(PopMessageReply), queue, message_type
        )
    except MessageError as error:
        raise BodyError(f"the answer of {address} to a pop cannot be read: {error}") from None
    tell_of(damaged)
    wanted = [message for message in messages if subscription.wants(message)]
    unwanted = (
        [message for message in messages if not subscription.wants(message)]
        if len(wanted) < len(messages)
        else []
    )
    for message in messages:
        message.topic = unwrap(namespace, queue.topic)
    return PopResult(wanted, unwanted)


async def introduced_master(instance: ClientInstance, queue: MessageQueue) -> str:
    """The address of the master of the queue's broker, which knows us now. Raises RemotingError."""
    address = master_address(instance.routes, queue.broker_name, queue.topic)
    await instance.introduced(address)
    return address


def master_address(routes: Routes, broker_name: str, topic: str) -> str:
    """By the route of ``topic``, or any other. Raises ConnectError if it has no master at the
    moment: only a master pops."""
    first = [routes.known[topic]] if topic in routes.known else []
    for route in [*first, *routes.known.values()]:
        address = route.master(broker_name)
        if address is not None:
            return address
    raise ConnectError(f"no master of broker {broker_name} is known")


def init_mode_of(consume_from: ConsumeFrom | datetime) -> InitMode:
    """Where a group without a place begins. Brokers know no time here: a datetime means the last,
    as in Java."""
    return InitMode.MIN if consume_from is ConsumeFrom.FIRST else InitMode.MAX


def milliseconds(seconds: float) -> int:
    """At least one."""
    return max(round(seconds * 1000), 1)
