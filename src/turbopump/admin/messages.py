"""Stored messages of a cluster: finding them, and learning who has consumed one.

Source of the requests: apache/rocketmq ``DefaultMQAdminExtImpl``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from turbopump.admin.cluster import Servers
from turbopump.admin.group_lag import group_lag
from turbopump.admin.groups import GroupMembers, members_of
from turbopump.admin.topics import Topics
from turbopump.client.message_finder import FoundMessages, MessageFinder
from turbopump.client.times import Time
from turbopump.client.trace import TRACE_TOPIC
from turbopump.client.trace_reading import TracedAction, read_actions
from turbopump.config.addresses import join_address
from turbopump.errors import RemotingError
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.message.rules import GIVEN_UP_TOPIC
from turbopump.protocol.requests.clients import ConsumeType, MessageModel
from turbopump.protocol.requests.send import ResumeCheckHalfMessage
from turbopump.protocol.requests.statistics import QueryConsumeQueue, QueryConsumeQueueResponseBody

TRACES_MAX: Final = 64
"""Maximum number of trace messages of one message that are read."""


class TrackState(StrEnum):
    """Outcome of a message in a group (apache/rocketmq ``TrackType``).

    - ``CONSUMED``: the group's offset is after the message.
    - ``CONSUMED_BUT_FILTERED``: the same, but the group's subscription does not want the tag.
    - ``NOT_CONSUME_YET``: the group's offset is at the message or before.
    - ``PULL``: the group pulls, and commits offsets when its program wants.
    - ``NOT_ONLINE``: the group has no consumers now.
    - ``CONSUME_BROADCASTING``: the group's consumers keep their offsets themselves.
    - ``UNKNOWN``: the group pops, or could not be asked.
    """

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    PULL = "PULL"
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """State of one message in one group.

    - ``fault``: the reason if the group could not be asked, or None.
    """

    group: str
    state: TrackState
    fault: str | None = None


class Messages:
    """Stored messages: find by id, key, time or offset; learn which groups have consumed one.

    The searches are those of ``MessageFinder``. ``msg_id`` is a unique id (``SendResult.msg_id``)
    or an offset message id.
    """

    def __init__(self, servers: Servers, finder: Callable[[], Awaitable[MessageFinder]]) -> None:
        self._servers = servers
        self._finder = finder

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read, sorted.

        Sends GET_ROUTEINFO_BY_TOPIC (105) to a name server. Raises RouteNotFoundError.
        """
        return await (await self._finder()).queues(topic)

    async def by_id(self, topic: str, msg_id: str) -> ReceivedMessage:
        """Return the message of a topic with this id.

        Sends VIEW_MESSAGE_BY_ID (33) for an offset message id, and QUERY_MESSAGE (12) to each
        broker of the topic for any other id. Raises MessageNotFoundError, RouteNotFoundError and
        RemotingError. Java: ``viewMessage``, ``queryMessage``.
        """
        return await (await self._finder()).view(topic, msg_id)

    async def at(self, queue: MessageQueue, offset: int) -> ReceivedMessage:
        """Return the message at this offset of a queue.

        Sends PULL_MESSAGE (11). Raises MessageNotFoundError, RouteNotFoundError and RemotingError.
        """
        return await (await self._finder()).at(queue, offset)

    async def by_key(
        self,
        topic: str,
        key: str,
        max_messages: int = 32,
        *,
        begin: Time | None = None,
        end: Time | None = None,
    ) -> FoundMessages:
        """Return the newest messages of a topic with this key.

        Sends QUERY_MESSAGE (12) to each broker of the topic.

        - ``begin``, ``end``: limits of the store time, in ms or as datetimes; both included.

        Raises RouteNotFoundError. Java: ``queryMessage``.
        """
        return await (await self._finder()).by_key(topic, key, max_messages, begin=begin, end=end)

    async def by_time(
        self, topic: str, begin: Time, end: Time | None = None, max_messages: int = 32
    ) -> FoundMessages:
        """Return the oldest messages of a topic stored between two times; both are included.

        Sends SEARCH_OFFSET_BY_TIMESTAMP (29) and PULL_MESSAGE (11) for each queue. Raises
        RouteNotFoundError.
        """
        return await (await self._finder()).by_time(topic, begin, end, max_messages)

    async def tracks(self, topic: str, msg_id: str) -> list[MessageTrack]:
        """Return what each group of a topic has done with a message, sorted by group.

        Finds the message. Sends QUERY_TOPIC_CONSUME_BY_WHO (300), and two requests for each group:
        GET_CONSUMER_CONNECTION_LIST (203) and GET_CONSUME_STATS (208).

        Raises MessageNotFoundError, RouteNotFoundError and RemotingError. Java:
        ``messageTrackDetail``.
        """
        message = await (await self._finder()).view(topic, msg_id)
        addresses = await self._servers.masters()
        tracks = []
        for group in await Topics(self._servers).groups(topic):
            try:
                members = await members_of(self._servers, addresses, group)
                state = await self._state(message, members, addresses)
            except RemotingError as error:
                tracks.append(MessageTrack(group, TrackState.UNKNOWN, str(error)))
            else:
                tracks.append(MessageTrack(group, state))
        return tracks

    async def _state(
        self, message: ReceivedMessage, members: GroupMembers, addresses: list[str]
    ) -> TrackState:
        if not members.members:
            return TrackState.NOT_ONLINE
        if members.consume_type is ConsumeType.CONSUME_ACTIVELY:
            return TrackState.PULL
        if members.consume_type is not ConsumeType.CONSUME_PASSIVELY:
            return TrackState.UNKNOWN
        if members.message_model is MessageModel.BROADCASTING:
            return TrackState.CONSUME_BROADCASTING
        lag = await group_lag(self._servers, addresses, members.group, message.topic)
        if not any(
            (queue.broker, queue.queue_id) == (message.broker_name, message.queue_id)
            and queue.offset > message.queue_offset
            for queue in lag.queues
        ):
            return TrackState.NOT_CONSUME_YET
        subscription = members.subscriptions.get(message.topic)
        wanted = () if subscription is None else subscription.tags_set
        if not wanted or "*" in wanted or message.tags in wanted:
            return TrackState.CONSUMED
        return TrackState.CONSUMED_BUT_FILTERED

    async def trace(self, msg_id: str, *, trace_topic: str = TRACE_TOPIC) -> list[TracedAction]:
        """Return what clients have recorded about a message, oldest first: sends, and each handling
        by a consumer with its outcome.

        Only clients with ``trace=True`` record anything. Sends QUERY_MESSAGE (12) to each broker of
        the trace topic.

        - ``msg_id``: the unique id of the message.

        Raises RouteNotFoundError if nobody has traced anything, and RemotingError if a broker could
        not be asked. Source: apache/rocketmq ``QueryMsgTraceByIdSubCommand``.
        """
        found = await (await self._finder()).by_key(trace_topic, msg_id, TRACES_MAX)
        for name, why in found.missing.items():
            raise RemotingError(f"broker {name} has not been asked for traces: {why}")
        actions = [
            action
            for message in found.messages
            for action in read_actions(message.body, join_address(*message.born_host))
            if action.msg_id == msg_id
        ]
        return sorted(actions, key=lambda action: action.time_ms)

    async def resume_check(self, msg_id: str) -> None:
        """Have a broker ask again for the outcome of a transaction that it has given up.

        Finds the half message in ``TRANS_CHECK_MAX_TIME_TOPIC``, and sends
        RESUME_CHECK_HALF_MESSAGE (323) to its broker. No other topic is searched, because Apache's
        broker would make a half message of any message.

        Raises MessageNotFoundError, RouteNotFoundError if no transaction was given up,
        ResponseError if the broker refuses, and RemotingError. Java: ``resumeCheckHalfMessage``.
        """
        message = await (await self._finder()).view(GIVEN_UP_TOPIC, msg_id)
        (address,) = await self._servers.brokers_at(message.broker_name)
        request = ResumeCheckHalfMessage(topic=GIVEN_UP_TOPIC, msg_id=message.offset_msg_id)
        await self._servers.ask(address, request)

    async def queue_units(
        self, queue: MessageQueue, offset: int, count: int = 32, *, group: str | None = None
    ) -> QueryConsumeQueueResponseBody:
        """Return units of a queue's file: position, size and tag code of each message.

        Sends QUERY_CONSUME_QUEUE (321).

        - ``group``: also show which units its subscription wants.

        Raises ResponseError if the broker does not have the queue, and RemotingError. Java:
        ``queryConsumeQueue``.
        """
        (address,) = await self._servers.brokers_at(queue.broker_name)
        request = QueryConsumeQueue(
            topic=queue.topic,
            queue_id=queue.queue_id,
            index=offset,
            count=count,
            consumer_group=group,
        )
        return await self._servers.ask(address, request)
