"""Requests and their replies. A request is a message whose producer waits for a reply.

::

    producer ─── request ────► broker ────────────────► consumer
    producer ◄── 326, reply ── broker ◄── 325, reply ── consumer

The request has the properties CORRELATION_ID, REPLY_TO_CLIENT (the client id of the producer) and
TTL. The reply is a message for the topic ``<cluster>_REPLY_TOPIC``. The broker pushes the reply on
the connection on which the producer's heartbeats arrive.

One rule: a request is sent only to a broker that knows its producer, because that broker has to
push the reply. The reply is sent first to the broker that the request came from. A request or reply
that cannot succeed raises an error at once; a late reply is dropped.

Source: apache/rocketmq ``DefaultMQProducerImpl.request``, ``MessageUtil.createReplyMessage``. There
a producer is known only to the brokers of its topics, and the reply goes to any broker of the
cluster.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from copy import copy
from typing import Any, Final

from turbopump import errors
from turbopump.client.heartbeat import InstanceMember
from turbopump.client.hooks import SendHooks
from turbopump.client.instance import ClientInstance
from turbopump.client.sending.outgoing import Outgoing, Packer, SendFrames, refuse_changed_message
from turbopump.client.sending.queue_chooser import FaultStrategy, NearFirst, RoundRobin, Target
from turbopump.client.sending.send_attempts import deliver
from turbopump.client.sending.send_result import SendResult, no_time
from turbopump.client.sending.sender import PendingSends, Sender, SendRules
from turbopump.client.setting_rules import check_timeout
from turbopump.client.topic_route import TopicRoute
from turbopump.message.message import Message, ReceivedMessage
from turbopump.message.properties import CLUSTER, CORRELATION_ID, MESSAGE_TYPE, REPLY_TO_CLIENT, TTL
from turbopump.message.rules import REPLY_TOPIC_END
from turbopump.message.user_properties import checked_properties
from turbopump.protocol.codes import RequestCode

REPLY: Final = "reply"
"""Message type of a reply."""
RECONNECT_PAUSE_S: Final = 1.0
_CLOSED: Final = "the producer was closed while a request of it waited for the reply"


class Requester:
    """Sender of a producer's requests. It also waits for their replies."""

    def __init__(self, sender: Sender, member: InstanceMember, pack: Packer) -> None:
        self._sender = sender.introducing()
        self._instance = sender.instance
        self._pack = pack
        self._random = sender.instance.environment.random
        self._waiting: set[asyncio.Future[ReceivedMessage]] = set()
        self._prepared: set[str] = set()
        self._closed = False
        self._now = asyncio.get_running_loop().time
        self._returning: dict[str, asyncio.Task[None]] = {}
        member.on_disconnect = self._disconnected

    async def request(
        self, message: Message, target: Target, timeout: float | None
    ) -> ReceivedMessage:
        began = self._now()
        timeout = self._sender.rules.timeout if timeout is None else timeout
        correlation_id = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        outgoing = self._pack.pack(self._addressed(message, correlation_id, timeout))
        if timeout <= 0:
            raise no_time(outgoing.msg_id, self._sender.shown_topic(outgoing.topic), timeout)
        if self._closed:
            raise errors.RequestError(_CLOSED)
        requests = self._instance.requests
        # The reply may overtake the answer of the send: the consumer replies as soon as it has the
        # message, on another connection. So the reply is expected before the message is sent, and
        # the caller waits for whichever comes first. A failed send ends the wait at once.
        reply = requests.add(correlation_id)
        self._waiting.add(reply)
        sending = asyncio.get_running_loop().create_task(self._send(outgoing, target, timeout))
        sending.add_done_callback(_have_seen)
        try:
            await asyncio.wait((sending, reply), return_when=asyncio.FIRST_COMPLETED)
            if reply.done():  # also before the send was answered
                return reply.result()
            broker = sending.result().queue.broker_name
            async with asyncio.timeout_at(began + timeout):
                return await reply
        except TimeoutError:
            raise self._too_late(outgoing, broker, (self._now() - began) * 1000) from None
        finally:
            requests.remove(correlation_id)
            self._waiting.discard(reply)
            reply.cancel()
            _have_seen(reply)
            sending.cancel()

    def close(self) -> None:
        """End all waiting requests with a RequestError."""
        self._closed = True
        for reply in self._waiting:
            if not reply.done():
                reply.set_exception(errors.RequestError(_CLOSED))
        for task in self._returning.values():
            task.cancel()

    def _addressed(self, message: Message, correlation_id: str, timeout: float) -> Message:
        address = {
            CORRELATION_ID: correlation_id,
            REPLY_TO_CLIENT: self._instance.client_id,
            TTL: str(max(int(timeout * 1000), 1)),
        }
        try:
            return Message.as_it_is(
                message.topic, message.body, {**message.properties, **address}, message.flag
            )
        except (AttributeError, TypeError):
            refuse_changed_message(message)
            raise

    async def _send(self, outgoing: Outgoing, target: Target, timeout: float) -> SendResult:
        began = self._now()
        if outgoing.topic not in self._prepared:
            route = await self._sender.route(outgoing.topic, timeout)
            await self._meet_cluster(route, timeout / 4)
            self._prepared.add(outgoing.topic)
        return await deliver(
            self._sender, outgoing, target, max(timeout - (self._now() - began), 0.001)
        )

    async def _meet_cluster(self, route: TopicRoute, timeout: float) -> None:
        """Fetch the route of the reply topic in each cluster.

        Every broker of the reply topic may push a reply, so each needs this client's heartbeats.
        """
        for cluster in sorted(route.clusters):
            try:
                async with asyncio.timeout(timeout):
                    await self._instance.routes.get(cluster + REPLY_TOPIC_END)
            except (TimeoutError, errors.RouteNotFoundError):
                pass  # then the brokers of the topic push the replies

    def _too_late(
        self, outgoing: Outgoing, broker: str, spent_ms: float
    ) -> errors.RequestTimeoutError:
        topic = self._sender.shown_topic(outgoing.topic)
        return errors.RequestTimeoutError(
            f"no reply to message {outgoing.msg_id} of topic {topic!r} within "
            f"{spent_ms:.0f} ms; broker {broker} has the message. Check that a consumer "
            "of the topic is running and replies in that time (consumer.reply), and "
            "check its log; late replies at this client so far: "
            f"{self._instance.requests.late}",
            topic=topic,
            broker=broker,
            spent_ms=spent_ms,
        )

    def _disconnected(self, address: str) -> None:
        """Open a new connection to a broker at once if requests are waiting. Replies arrive on this
        connection."""
        if self._waiting and address not in self._returning:
            name = f"return to {address}"
            task = self._returning[address] = self._instance.spawn(
                self._reconnect(address), name=name
            )
            task.add_done_callback(lambda _: self._returning.pop(address, None))

    async def _reconnect(self, address: str) -> None:
        while self._waiting and address in self._instance.routes.addresses(slaves=False):
            try:
                await self._instance.introduced(address)
            except errors.RemotingError:
                await asyncio.sleep(RECONNECT_PAUSE_S)
            else:
                return


class Replier:
    """Sender of replies for one consumer or producer. ``group`` is the sender's group."""

    def __init__(
        self, instance: ClientInstance, *, group: str, beside: Sender | None = None
    ) -> None:
        """Create the sender of replies.

        - ``beside``: sender of a producer. The replies use its rules and hooks, and its close waits
          for the replies. None for a consumer.
        """
        environment = instance.environment
        faults = FaultStrategy(None)
        self._pack = Packer(environment.unique_ids())
        self._sender = Sender(
            instance,
            SendRules() if beside is None else beside.rules,
            self._pack,
            SendFrames(
                group, instance.signer, RequestCode.SEND_REPLY_MESSAGE_V2, form=instance.header_form
            ),
            RoundRobin(environment.random, faults),
            faults,
            SendHooks(()) if beside is None else beside.hooks,
            group,
            under_way=PendingSends() if beside is None else beside.under_way,
        )

    def close(self) -> None:
        """Refuse new replies. A reply in flight still gets its answer.

        Only consumers use this method, because a producer closes its own sender.
        """
        self._sender.close()

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes | str,
        properties: Mapping[str, str] | None,
        timeout: float | None,
    ) -> SendResult:
        check_timeout(timeout)
        outgoing = self._pack.pack(reply_to(request, body, properties))
        sender = copy(self._sender)
        sender.selection = NearFirst(request.broker_name, sender.selection)
        try:
            return await deliver(sender, outgoing, None, timeout)
        except (errors.SendError, errors.RouteNotFoundError) as error:
            raise _undelivered(request, error) from error


def reply_to(
    request: ReceivedMessage, body: bytes | str, properties: Mapping[str, str] | None = None
) -> Message:
    """Return the message that replies to ``request``.

    A broker passes the reply on only if it is sent as request 325. Raises MessageError if
    ``request`` expects no reply.
    """
    asked = request.properties
    missing = [name for name in (REPLY_TO_CLIENT, CORRELATION_ID, CLUSTER) if name not in asked]
    if missing:
        raise errors.MessageError(
            f"message {request.msg_id} of topic {request.topic!r} expects no reply, "
            f"because property {missing[0]} is missing. Reply only to messages that were "
            "sent with a producer's request"
        )
    names = (CORRELATION_ID, REPLY_TO_CLIENT, TTL)
    back = {name: asked[name] for name in names if name in asked} | {MESSAGE_TYPE: REPLY}
    mine = {} if properties is None else checked_properties(properties)
    return Message.as_it_is(asked[CLUSTER] + REPLY_TOPIC_END, body, {**mine, **back})


def _undelivered(
    request: ReceivedMessage, error: errors.SendError | errors.RouteNotFoundError
) -> errors.ReplyError:
    client_id = request.properties[REPLY_TO_CLIENT]
    return errors.ReplyError(
        f"the reply to message {request.msg_id} of topic {request.topic!r} did not reach "
        f"{client_id}, which asked: {error}. If no channel was found: that producer has ended, "
        "gave up, or is just connecting again",
        client_id=client_id,
        code=error.code if isinstance(error, errors.SendError) else None,
    )


def _have_seen(ended: asyncio.Future[Any]) -> None:
    if ended.done() and not ended.cancelled():
        ended.exception()  # asyncio would warn of an exception that nobody has read
