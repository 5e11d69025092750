"""Recall of a delayed message. The broker that stores the message cancels its delivery. Source:
apache/rocketmq ``DefaultMQProducerImpl.recallMessage``.

One rule: only the broker named in the handle is asked, because no other has the message. The
request is repeated if the connection ends, because a second recall does no harm. If the broker
cannot be reached, its address is fetched from the name servers again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from turbopump import errors
from turbopump.client.sending.sender import Sender
from turbopump.client.topic_route import TopicRoute
from turbopump.client.tracing import Tracing
from turbopump.message.handles import RecallHandle
from turbopump.message.rules import DLQ_PREFIX, RETRY_PREFIX, topic_fault
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import RecallMessage

AGAIN_S: Final = 0.1
"""Pause in seconds before the request is repeated after a lost connection."""
_NOT_KNOWN: Final = "whether the message was recalled is not known: ask again"


async def recall_message(
    sender: Sender, topic: str, handle: str | None, timeout: float, tracing: Tracing | None
) -> str:
    """Recall a delayed message, and return the unique id of the message.

    ``topic`` includes the namespace.

    Raises MessageError for an invalid topic or handle, RouteNotFoundError, ResponseError if the
    broker refused (most likely too late), and RemotingError if the broker did not answer. In the
    last case the message may be recalled nevertheless.
    """
    if timeout <= 0:
        raise errors.CallTimeoutError(
            f"{timeout=} leaves no time for it: nobody was asked, and nothing recalled; give it "
            "more seconds"
        )
    fault = topic_fault(topic)
    if fault is not None:
        raise errors.MessageError(fault)
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        shown = sender.shown_topic(topic)
        raise errors.MessageError(
            f"messages of {shown}, a retry or dead-letter topic, cannot be recalled"
        )
    if handle is None:  # ``SendResult.recall_handle`` is None without a handle
        raise errors.MessageError(
            "recall_handle is None: only a message with a future delivery time has a "
            "handle (delay= or deliver_at=, not delay_level=), from a broker with "
            "recallMessageEnable=true"
        )
    if not isinstance(handle, str):
        raise errors.MessageError(
            f"recall_handle={handle!r:.80} must be the recall_handle of a SendResult"
        )
    decoded = RecallHandle.decode(handle)
    request = RecallMessage(producer_group=sender.group, topic=topic, recall_handle=handle)
    deadline = asyncio.get_running_loop().time() + timeout
    with sender.under_way:
        route, address = await _broker_address(sender, topic, decoded.broker_name, deadline)
        began_ms = sender.instance.environment.clock.now_ms()
        good = False
        try:
            msg_id = await _ask_broker(
                sender, request, decoded.broker_name, route, address, deadline
            )
            good = True
        finally:
            if tracing is not None:
                tracing.dispatcher.recalled(
                    topic, decoded.unique_id, group=sender.group, time_ms=began_ms, success=good
                )
    return msg_id


async def _broker_address(
    sender: Sender, topic: str, broker_name: str, deadline: float
) -> tuple[TopicRoute, str]:
    """Return the route of the topic, and the address of the broker named ``broker_name`` in this
    route.

    Raises RouteNotFoundError if the broker has no address, even in a newer route.
    """
    loop = asyncio.get_running_loop()
    # a message can be recalled from a topic that accepts no sends
    route = await sender.route(topic, deadline - loop.time(), writable=False)
    address = _address(sender, route, broker_name)
    if address is None:
        route = await sender.instance.routes.renewed(route, deadline - loop.time())
        address = _address(sender, route, broker_name)
    if address is None:
        raise errors.RouteNotFoundError(
            f"the broker {broker_name[:100]} that the recall handle names is not among those of "
            f"topic {sender.shown_topic(topic)}; is it up, and registered with these name servers?"
        )
    return route, address


async def _ask_broker(
    sender: Sender,
    request: RecallMessage,
    broker_name: str,
    route: TopicRoute,
    address: str,
    deadline: float,
) -> str:
    # A recall can be repeated: the broker answers a second one as the first. After a lost
    # connection the outcome is unknown, so the request is repeated until an answer comes or the
    # time is over, and every error after that says so. If the connection is refused or the broker
    # does not know the topic, nothing was recalled: the broker's new address is tried once, if the
    # name servers know one. Any other answer is final.
    loop = asyncio.get_running_loop()
    moved = False
    lost: errors.ConnectionLostError | None = None
    try:
        while True:
            known = "nothing was recalled" if lost is None else _NOT_KNOWN
            sender.under_way.refuse_if_closed(f"the producer was closed meanwhile; {known}")
            left = max(deadline - loop.time(), 0.001)
            try:
                return (await sender.instance.remoting.call(address, request, timeout=left)).msg_id
            except (errors.ConnectionLostError, errors.ConnectError, errors.ResponseError) as error:
                if (
                    isinstance(error, errors.ResponseError)
                    and error.code != ResponseCode.TOPIC_NOT_EXIST
                ):
                    raise
                route = await sender.instance.routes.renewed(route, deadline - loop.time())
                before = address
                address = _address(sender, route, broker_name) or address
                if isinstance(error, errors.ConnectionLostError):
                    lost = error
                elif address != before and not moved:
                    moved = True
                    continue
                if lost is None or isinstance(error, errors.ResponseError):
                    raise
                if loop.time() + AGAIN_S >= deadline:
                    raise errors.ConnectionLostError(f"{lost}; {_NOT_KNOWN}") from error
                await asyncio.sleep(AGAIN_S)
    except errors.CallTimeoutError as error:
        sender.instance.routes.renew_soon(route)
        raise errors.CallTimeoutError(f"{error}; {_NOT_KNOWN}") from None


def _address(sender: Sender, route: TopicRoute, broker_name: str) -> str | None:
    return route.master(broker_name) or sender.instance.routes.address_of(
        broker_name, topic=route.topic
    )
