"""Finder of single messages by id, key, queue offset or time.

One rule: a finder joins no group and changes nothing on a broker; it sends no heartbeat and no
offset. A broker's index may also return messages with another key of the same hash, so the finder
checks each message and its CRC. This module must not know its callers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from turbopump import errors
from turbopump.client.consumer.offsets import OffsetStore
from turbopump.client.consumer.pull import pull, pull_request, wanted_messages
from turbopump.client.consumer.subscription import ALL, tag_subscription
from turbopump.client.instance import ClientInstance
from turbopump.client.lifecycle import InContext, not_started
from turbopump.client.setting_rules import (
    OFFSET,
    TOPIC,
    SettingRule,
    is_a,
    is_name,
    is_whole,
    whole_from,
)
from turbopump.client.settings import ClientSettings, keywords_of
from turbopump.client.times import Time, as_ms
from turbopump.client.topic_route import TopicRoute
from turbopump.config.addresses import join_address
from turbopump.message.codec import decode_entry
from turbopump.message.ids import decode_offset_msg_id
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.message.properties import KEY_SEPARATOR, KEYS, UNIQ_KEY
from turbopump.message.pulled import pulled_entries
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.pull import PullMessageReply, QueryMessage, ViewMessageById
from turbopump.remoting.client import refused_by
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_damaged_answer = RepeatedLine(
    log, logging.ERROR, "damaged message left out broker=%s address=%s cause=%s"
)

FOUND_MAX: Final = 64
"""Maximum number of messages that a broker returns by key, unless its ``maxMsgsNumBatch``
differs."""
QUERY_TIMEOUT_S: Final = 10.0
EVER: Final = 2**63 - 1
SECOND_MS: Final = 1000
_TIME: Final = SettingRule(
    lambda value: value is None or is_whole(value) or isinstance(value, datetime),
    "must be ms since 1970, or a datetime",
)
_QUEUE: Final = SettingRule(
    is_a(MessageQueue), "must be a MessageQueue: one of `await finder.queues(topic)`"
)
_MESSAGE_ID: Final = SettingRule(is_name, "must be a message id: text, such as SendResult.msg_id")
_KEY: Final = SettingRule(
    lambda value: is_name(value) and KEY_SEPARATOR not in value,
    "must be a key: text of at least one character, without the space that separates keys",
)
_COUNT: Final = whole_from(1)
PORT_MAX: Final = 65535
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""Consumer group for tools, which exists on every broker. Apache's mqadmin reads under this
name."""
TIMEOUT_S: Final = 10.0
"""Timeout of a pull, in seconds."""


class FoundMessages(msgspec.Struct, frozen=True):
    """Result of a search: the found messages, and the brokers that could not be asked.

    - ``messages``: found messages, oldest first.
    - ``missing``: brokers or queues that could not be asked, with the reason. They may have
      more messages.
    - ``remarks``: remarks of brokers that found nothing by key, for example that the broker
      keeps no index.
    """

    messages: Sequence[ReceivedMessage]
    missing: Mapping[str, str]
    remarks: Mapping[str, str] = {}


class MessageFinder(InContext):
    """Client that searches for stored messages by id, key, queue offset or time.

    Use it as ``async with MessageFinder("127.0.0.1:9876") as finder:``. The keywords are the fields
    of ``ClientSettings``.

    Every method asks the name server for the topic's route first, and raises RouteNotFoundError if
    there is none. Methods for one message raise MessageNotFoundError, whose text names the searched
    brokers or offsets. All raise ConfigError for unusable arguments.
    """

    @keywords_of(ClientSettings)
    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._environment = settings.environment()
        self._instance: ClientInstance | None = None

    # --- start and close

    async def start(self) -> None:
        """Start the finder. The first request opens connections, and a second ``start`` does
        nothing."""
        if self._instance is not None:
            self._instance.check_usable("MessageFinder")
            return
        settings = self._settings
        instance = ClientInstance(settings, settings.instance_name, self._environment)
        instance.start()
        self._instance = instance

    async def close(self) -> None:
        """Close the connections of the finder. A second call does nothing."""
        if self._instance is not None:
            await self._instance.close()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read, sorted."""
        return list((await self._route(topic)).subscribe_queues)

    # --- one message

    async def view(self, topic: str, msg_id: str) -> ReceivedMessage:
        """Return the message of a topic with this id.

        ``msg_id`` is either the unique id from the producer (``SendResult.msg_id``), or the offset
        message id (``SendResult.offset_msg_id``). The latter contains the broker's address and the
        offset in its log.

        Raises MessageNotFoundError. Raises a RemotingError if a broker that may have the message
        cannot be asked.
        """
        _MESSAGE_ID.check("msg_id", msg_id)
        route = await self._route(topic)
        tried = []
        missing: dict[str, str] = {}
        found_at = log_offset_of(msg_id)
        if found_at is not None:
            address, offset = found_at
            try:
                message, why = await self._view_at(route, address, offset)
            except errors.RemotingError as error:
                message = None
                why = "it cannot be asked"
                missing[address] = str(error)
            if message is not None and message.topic == topic:
                return message
            tried.append(
                f"as an offset message id it means offset {offset} at {address}: "
                f"{why or 'a message of another topic'}"
            )
        found = await self._query(route, msg_id, FOUND_MAX, 0, EVER, unique=True)
        if found.messages:
            return found.messages[0]
        said = f": {_reasons(found.remarks)}" if found.remarks else ""
        tried.append(
            "as a unique id it is unknown to the brokers of the topic "
            f"({', '.join(sorted(route.addresses))}){said}"
        )
        missing.update(found.missing)
        if missing:
            raise errors.ConnectError(
                f"message {msg_id!r} of topic {topic!r} is not found, but not every broker could "
                f"be asked: {_reasons(missing)}"
            )
        raise errors.MessageNotFoundError(
            f"no message {msg_id!r} in topic {topic!r}: {'; '.join(tried)}. Check the topic; the "
            "message may be older than the broker "
            "keeps (fileReservedTime), or the broker keeps no index (messageIndexEnable)"
        )

    async def at(self, queue: MessageQueue, offset: int) -> ReceivedMessage:
        """Return the message at this offset of a queue.

        Raises MessageNotFoundError, whose text names the queue's offsets, or a RemotingError.
        """
        _QUEUE.check("queue", queue)
        OFFSET.check("offset", offset)
        await self._route(queue.topic)
        messages, reply = await pull_now(self._ready(), queue, offset, 1)
        if not messages or messages[0].queue_offset != offset:
            text = f"no message at offset {offset} of queue {queue}, which has {_range(reply)}"
            if reply.min_offset <= offset < reply.max_offset:
                text += ": the message is damaged, or the offset is a filler between messages"
            raise errors.MessageNotFoundError(text)
        return messages[0]

    # --- several messages

    async def by_key(
        self,
        topic: str,
        key: str,
        max_messages: int = 32,
        *,
        begin: Time | None = None,
        end: Time | None = None,
    ) -> FoundMessages:
        """Ask all brokers of a topic for messages with this key, and return the newest ones.

        ``begin`` and ``end`` limit the store time; both are included. A broker returns at most 64
        messages, unless its ``maxMsgsNumBatch`` differs. Raises ConfigError for an unusable key.
        """
        _KEY.check("key", key)
        _COUNT.check("max_messages", max_messages)
        _TIME.check("begin", begin)
        _TIME.check("end", end)
        route = await self._route(topic)
        return await self._query(
            route, key, max_messages, as_ms(begin, 0), as_ms(end, EVER), unique=False
        )

    async def by_unique_id(
        self, topic: str, unique_id: str, max_messages: int = 32
    ) -> FoundMessages:
        """Return every message of a topic with this unique id.

        There may be several: a repeated send may be stored twice, and all messages of a batch may
        share one id.
        """
        _MESSAGE_ID.check("unique_id", unique_id)
        _COUNT.check("max_messages", max_messages)
        return await self._query(
            await self._route(topic), unique_id, max_messages, 0, EVER, unique=True
        )

    async def by_time(
        self, topic: str, begin: Time, end: Time | None = None, max_messages: int = 32
    ) -> FoundMessages:
        """Search all queues of a topic for messages stored between ``begin`` and ``end``, and
        return the oldest ones.

        Both times are included.
        """
        _TIME.check("begin", begin)
        _TIME.check("end", end)
        _COUNT.check("max_messages", max_messages)
        route = await self._route(topic)
        first, last = as_ms(begin, 0), as_ms(end, EVER)

        async def one_queue(queue: MessageQueue) -> list[ReceivedMessage]:
            return await self._from_time(queue, first, last, max_messages)

        found = await each_answer(
            {str(queue): one_queue(queue) for queue in route.subscribe_queues}
        )
        return FoundMessages(in_order(found.messages)[:max_messages], found.missing)

    # --- asking brokers

    def _ready(self) -> ClientInstance:
        if self._instance is None:
            raise not_started("MessageFinder", "finder")
        self._instance.check_usable("MessageFinder")
        return self._instance

    async def _route(self, topic: str) -> TopicRoute:
        TOPIC.check("topic", topic)
        return await self._ready().routes.refresh(topic)

    async def _view_at(
        self, route: TopicRoute, address: str, offset: int
    ) -> tuple[ReceivedMessage | None, str]:
        """Read the message at a log offset of the broker at ``address``. Return the message, or
        None with the reason."""
        request = ViewMessageById(topic=route.topic, offset=offset)
        answer = await self._ready().remoting.exchange(address, request, timeout=QUERY_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            return None, answer.remark or f"the broker answers with code {answer.code}"
        names = [name for name, members in route.addresses.items() if address in members.values()]
        messages = good_messages(answer.body, names[0] if names else "", address)
        if len(messages) != 1 or messages[0].commit_log_offset != offset:
            return None, "the broker returned damaged bytes"
        return messages[0], ""

    async def _query(
        self,
        route: TopicRoute,
        key: str,
        max_messages: int,
        begin_ms: int,
        end_ms: int,
        *,
        unique: bool,
    ) -> FoundMessages:
        request = QueryMessage(
            topic=route.topic,
            key=key,
            max_num=max_messages,
            # RocketMQ's index rounds times to seconds
            begin_timestamp=max(begin_ms - SECOND_MS, 0),
            end_timestamp=end_ms,
            unique_key=unique,
        )

        remarks: dict[str, str] = {}

        async def one_broker(broker_name: str) -> list[ReceivedMessage]:
            return await self._query_broker(route, broker_name, request, remarks)

        found = await each_answer({name: one_broker(name) for name in sorted(route.addresses)})
        meant = [message for message in found.messages if is_meant(message, request, begin_ms)]
        return FoundMessages(in_order(meant)[-max_messages:], found.missing, remarks)

    async def _query_broker(
        self, route: TopicRoute, broker_name: str, request: QueryMessage, remarks: dict[str, str]
    ) -> list[ReceivedMessage]:
        """Ask one broker for messages by key, and return the found ones.

        The request goes to a slave if the master cannot be reached. If the broker finds nothing,
        the remark of its answer is added to ``remarks``.
        """
        failure: errors.RemotingError = errors.ConnectError(
            f"no address is known for broker {broker_name}"
        )
        for address in route.addresses[broker_name].values():
            try:
                answer = await self._ready().remoting.exchange(
                    address, request, timeout=QUERY_TIMEOUT_S
                )
            except errors.RemotingError as error:
                failure = error
                continue
            if answer.code == ResponseCode.QUERY_NOT_FOUND:
                remarks[broker_name] = answer.remark or "nothing"
                return []
            if answer.code == ResponseCode.SUCCESS:
                return good_messages(answer.body, broker_name, address)
            failure = refused_by(address, request, answer)
        raise failure

    async def _from_time(
        self, queue: MessageQueue, begin_ms: int, end_ms: int, count: int
    ) -> list[ReceivedMessage]:
        offsets = OffsetStore(self._ready(), TOOLS_GROUP)
        found: list[ReceivedMessage] = []
        # RocketMQ 4.9 answers with the message nearest to the time, which may be the one before
        offset = max(await offsets.offset_at(queue, begin_ms) - 1, await offsets.min_offset(queue))
        while len(found) < count:
            messages, reply = await pull_now(
                self._ready(), queue, offset, min(count - len(found) + 1, 32)
            )
            for message in messages:
                if message.store_timestamp > end_ms:
                    return found
                if message.store_timestamp >= begin_ms:
                    found.append(message)
            if reply.next_begin_offset <= offset or reply.next_begin_offset >= reply.max_offset:
                break
            offset = reply.next_begin_offset
        return found[:count]


async def pull_now(
    instance: ClientInstance, queue: MessageQueue, offset: int, count: int
) -> tuple[Sequence[ReceivedMessage], PullMessageReply]:
    """Read messages of a queue from ``offset`` on, without waiting for new ones.

    Returns the undamaged messages, and the broker's reply with the next offset and the limits of
    the queue. A broker returns at most 32 messages by default. Raises a RemotingError.
    """
    address = (await instance.routes.get(queue.topic)).readable_address(queue.broker_name)
    if address is None:
        raise errors.ConnectError(
            f"topic {queue.topic!r} has no queue on a broker {queue.broker_name!r}; its queues: "
            "turbopump topic route"
        )
    everything = tag_subscription(queue.topic, ALL, 0)
    request = pull_request(TOOLS_GROUP, everything, queue, offset, count)
    answer = await pull(instance, address, request, queue, ReceivedMessage, TIMEOUT_S)
    return wanted_messages(answer, everything, queue.broker_name, None), answer.reply


async def each_answer(asked: Mapping[str, Awaitable[list[ReceivedMessage]]]) -> FoundMessages:
    """Wait for the answers of several brokers or queues, and return all found messages.

    The result also has the error of each broker or queue that could not be asked.
    """
    outcomes = await asyncio.gather(*asked.values(), return_exceptions=True)
    messages: list[ReceivedMessage] = []
    missing: dict[str, str] = {}
    for name, outcome in zip(asked, outcomes, strict=True):
        if isinstance(outcome, list):
            messages.extend(outcome)
        elif isinstance(outcome, errors.RemotingError | errors.ProtocolError):
            missing[name] = str(outcome)
        else:
            raise outcome
    return FoundMessages(messages, missing)


def good_messages(body: bytes, broker_name: str, address: str) -> list[ReceivedMessage]:
    """Return the undamaged messages in a broker's answer. Damaged messages are logged."""
    messages = []

    def report(fault: object) -> None:
        _damaged_answer(broker_name, address, fault, kind=address)

    for entry in pulled_entries(body, lambda damaged: report(damaged.fault)):
        try:
            message = decode_entry(entry, check_crc=False)
        except errors.StoredMessageError as error:
            report(error)
            continue
        message.broker_name = broker_name
        messages.append(message)
    return messages


def is_meant(message: ReceivedMessage, request: QueryMessage, begin_ms: int) -> bool:
    """Return True if a message matches the request: topic, key or unique id, and store time.

    The store time lies between ``begin_ms`` and the end in the request.
    """
    if (
        message.topic != request.topic
        or not begin_ms <= message.store_timestamp <= request.end_timestamp
    ):
        return False
    if request.unique_key:
        return message.properties.get(UNIQ_KEY) == request.key
    return request.key in message.properties.get(KEYS, "").split(KEY_SEPARATOR)


def in_order(messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
    """Sort messages by store time, oldest first."""
    return sorted(
        messages, key=lambda one: (one.store_timestamp, one.broker_name, one.commit_log_offset)
    )


def log_offset_of(msg_id: str) -> tuple[str, int] | None:
    """Split an offset message id into the broker's address and the log offset.

    The result is None for any other id. Both kinds of id look alike. Offset message ids have a 0
    where a unique id has the low half of a process id, namely in the high half of the port.
    """
    try:
        ip, port, offset = decode_offset_msg_id(msg_id)
    except errors.ProtocolError:
        return None
    return (join_address(ip, port), offset) if 0 < port <= PORT_MAX and offset < EVER else None


def _range(reply: PullMessageReply) -> str:
    if reply.max_offset <= reply.min_offset:
        return "no messages"
    return f"offsets {reply.min_offset} to {reply.max_offset - 1}"


def _reasons(missing: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in missing.items())
