"""Dead letters: messages in ``%DLQ%group``. A dead letter names its origin, and can be sent again.

The id of a resent message depends only on the dead letter, so everyone who resends it uses the same
id. Source: apache/rocketmq ``AbstractSendMessageProcessor.consumerSendMsgBack`` (the properties of
a dead letter).
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from turbopump.client.consumer.offsets import OffsetStore
from turbopump.client.instance import ClientInstance
from turbopump.client.message_finder import (
    EVER,
    TOOLS_GROUP,
    FoundMessages,
    MessageFinder,
    pull_now,
)
from turbopump.client.routes import refuse_other_than_name_server
from turbopump.client.trace import TRACE_TOPIC, ContextCode
from turbopump.client.trace_reading import TracedAction, TraceKind, read_actions
from turbopump.errors import BodyError, MessageNotFoundError, RemotingError, RouteNotFoundError
from turbopump.message import properties as names
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.message.rules import DLQ_PREFIX, RETRY_PREFIX
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import reply_in
from turbopump.protocol.requests.namesrv import GetAllTopicList
from turbopump.protocol.requests.send import SendMessageV2

RESENT_FROM: Final = "RESENT_FROM"
"""Property of a resent message with the position of the dead letter, as
``%DLQ%group@broker:queue:offset``."""
RESENT_ID: Final = "RESENT_ID"
"""Property of a resent message with the unique id of the dead letter."""
PRODUCER_GROUP: Final = "TURBOPUMP_DLQ_RESEND"
_FIRST_POP_TIME: Final = "1ST_POP_TIME"
_DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
_KEPT_FLAGS: Final = names.SysFlag.COMPRESSED | names.SysFlag.MULTI_TAGS | names.COMPRESSION_MASK
_NOT_RESENT: Final = frozenset(
    {
        names.DELAY_TIME_LEVEL,
        names.WAIT_STORE_MSG_OK,
        names.RETRY_TOPIC,
        names.ORIGIN_MESSAGE_ID,
        names.REAL_TOPIC,
        names.REAL_QUEUE_ID,
        names.PRODUCER_GROUP,
        names.TRANSACTION_PREPARED,
        names.TRANSACTION_ID,
        names.TRANSACTION_CHECK_TIMES,
        names.TRANSACTION_PREPARED_QUEUE_OFFSET,
        names.CHECK_IMMUNITY_TIME_IN_SECONDS,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        names.MSG_REGION,
        names.TRACE_SWITCH,
        names.CLUSTER,
        names.POP_CK,
        names.INNER_NUM,
        names.TIMER_DELIVER_MS,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELAY_MS,
        names.TIMER_OUT_MS,
        names.TIMER_ENQUEUE_MS,
        names.TIMER_DEQUEUE_MS,
        names.TIMER_ROLL_TIMES,
        "TIMER_DELAY_LEVEL",
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "POP_CK_OFFSET",
        _FIRST_POP_TIME,
        names.CONSUME_FAILURE,
        _DLQ_ORIGIN_TOPIC,
        "DLQ_ORIGIN_MESSAGE_ID",
    }
)
"""Properties that are removed before a resend, because they describe the earlier delivery. DELAY
would delay the message; TRAN_MSG would make it half of a transaction."""


class ResendTo(Enum):
    """Target topic of resent dead letters.

    - ``ORIGIN``: the original topic, where every group receives them.
    - ``PULL_RETRY``, ``POP_RETRY``: the group's retry topic for pulling or popping consumers.
    - ``RETRY``: the retry topic that the dead letter or the group is known to read.
    """

    ORIGIN = "origin"
    RETRY = "retry"
    PULL_RETRY = "pull-retry"
    POP_RETRY = "pop-retry"


class InDoubt(Enum):
    """Treatment of dead letters in doubt: an earlier run may have sent them to a queue that is
    unreadable now.

    The queue is gone, or its broker does not answer.

    - ``LEAVE``: leave them until the queue can be read.
    - ``SEND``: send them again. Those that had arrived are then in the target twice.
    - ``SENT``: treat them as sent.
    """

    LEAVE = "leave"
    SEND = "send"
    SENT = "sent"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter of a consumer group.

    - ``message``: message as stored in ``%DLQ%group``.
    """

    group: str
    message: ReceivedMessage

    @property
    def position(self) -> str:
        """Position of the dead letter as ``broker:queue:offset``."""
        message = self.message
        return f"{message.broker_name}:{message.queue_id}:{message.queue_offset}"

    @property
    def attempts(self) -> int:
        """Number of deliveries to the group. After the last of them the message became a dead
        letter."""
        return self.message.reconsume_times

    @property
    def origin_topic(self) -> str | None:
        """Topic of the original message, or None if the dead letter does not name it."""
        properties = self.message.properties
        return properties.get(names.RETRY_TOPIC) or properties.get(_DLQ_ORIGIN_TOPIC)

    @property
    def origin_msg_id(self) -> str | None:
        """Offset message id of the original message, or None if the dead letter does not name
        it."""
        return self.message.properties.get(names.ORIGIN_MESSAGE_ID)

    @property
    def failure(self) -> str | None:
        """Reason of the last failure. None if no client of this project has recorded a reason."""
        return names.consume_failure(self.message.properties, self.attempts)

    @property
    def resend_id(self) -> str:
        """Unique id of the message that is sent again.

        The id depends on the store time of the dead letter too, because a broker that was set up
        anew counts offsets from 0 again.
        """
        text = f"{DLQ_PREFIX}{self.group}\n{self.position}\n{self.message.store_timestamp}"
        return hashlib.sha256(text.encode()).hexdigest()[:32].upper()

    def is_one_of(self, ids: Collection[str]) -> bool:
        """Return True if ``ids`` contains an id of this dead letter.

        This is the unique id, the offset message id or the position.
        """
        return any(mine in ids for mine in self.ids)

    @property
    def ids(self) -> tuple[str, str, str]:
        """Ids by which the dead letter can be selected."""
        return self.message.msg_id, self.message.offset_msg_id, self.position

    @property
    def was_popped(self) -> bool:
        """True if an earlier delivery of the message used POP.

        The value is False, although POP may be used, if the message became a dead letter at the
        first attempt.
        """
        return _FIRST_POP_TIME in self.message.properties

    def request(self, queue: MessageQueue) -> SendMessageV2:
        """Return the request that sends the body of the dead letter to ``queue``.

        The body is sent as stored. Attempts are counted from 0 again.
        """
        message = self.message
        was = message.properties
        properties = {name: was[name] for name in was if name not in _NOT_RESENT}
        # consumers of a retry topic show the topic in RETRY_TOPIC
        if queue.topic.startswith(RETRY_PREFIX):
            kept = (names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID)
            properties |= {name: was[name] for name in kept if name in was}
        properties[RESENT_FROM] = f"{DLQ_PREFIX}{self.group}@{self.position}"
        properties[RESENT_ID] = message.msg_id
        properties[names.UNIQ_KEY] = self.resend_id
        return SendMessageV2(
            producer_group=PRODUCER_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            sys_flag=message.sys_flag & _KEPT_FLAGS,
            born_timestamp=message.born_timestamp,
            flag=message.flag,
            properties=names.encode_properties(properties),
            reconsume_times=0,
            unit_mode=False,
            batch=False,
            broker_name=queue.broker_name,
        )


PULL_COUNT: Final = 32
TRACES_MAX: Final = 64
COPIES_MAX: Final = 8
TIMEOUT_S: Final = 5.0

LetterFilter = Callable[[DeadLetter], bool]


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Consumer group that has dead letters.

    - ``count``: number of dead letters.
    - ``oldest_ms``, ``newest_ms``: store times of the oldest and newest, in ms since 1970 UTC.
    - ``missing``: queues that could not be read, with the reason. They may have more.
    """

    group: str
    count: int
    oldest_ms: int | None
    newest_ms: int | None
    missing: dict[str, str]


class DeadLetters(MessageFinder):
    """Client that reads dead letters and lists their groups.

    Use it as ``async with DeadLetters("127.0.0.1:9876") as dead_letters:``. It is a
    ``MessageFinder`` with the same settings, and changes nothing on a broker, not even an offset.

    Every method that asks a broker may raise a RemotingError. Methods with a group raise
    MessageNotFoundError if it has no readable dead letters; the text says what to do.
    """

    @property
    def instance(self) -> ClientInstance:
        """Connections and routes of this client.

        Raises NotStartedError before the start.
        """
        return self._ready()

    # --- groups

    async def groups(self) -> list[DeadGroup]:
        """Return every group that has dead letters, sorted by name.

        Raises RouteNotFoundError if there is no broker.
        """
        topics = sorted(topic for topic in await self._topics() if topic.startswith(DLQ_PREFIX))
        groups = [await self._group(topic) for topic in topics]
        return [group for group in groups if group.count or group.missing]

    async def count(self, group: str) -> int:
        """Return the number of dead letters that the group has now."""
        ranges = [await self._range(queue) for queue in await self._dead_queues(group)]
        return sum(end - first for first, end in ranges)

    async def _topics(self) -> tuple[str, ...]:
        failures: list[str] = []
        request = GetAllTopicList()
        for address in self.instance.routes.name_servers:
            try:
                remoting = self.instance.remoting
                answer = await remoting.exchange(address, request, timeout=TIMEOUT_S)
                if answer.code == ResponseCode.SUCCESS:
                    if topics := reply_in(answer, request).topic_list:
                        return topics
                    raise RouteNotFoundError(  # every broker has its system topics
                        f"no broker is registered at the name server {address}, so nobody knows "
                        "of dead letters. Start a broker, or check that its namesrvAddr names this "
                        "name server"
                    )
                refuse_other_than_name_server(address, answer)
                failures.append(f"{address}: code {answer.code}: {answer.remark}")
            except (RemotingError, BodyError) as error:
                failures.append(str(error))
        raise RemotingError(
            f"no name server can be asked for the topics: {'; '.join(failures)}. Check the name "
            "server address, and that it runs"
        )

    async def _group(self, topic: str) -> DeadGroup:
        group = topic.removeprefix(DLQ_PREFIX)
        count = 0
        times = []
        missing: dict[str, str] = {}
        try:
            queues = await self.queues(topic)
        except RouteNotFoundError as error:
            return DeadGroup(group, 0, None, None, {"the name server": str(error)})
        for queue in queues:
            try:
                first, end = await self._range(queue)
                if first < end:
                    count += end - first
                    for offset in {first, end - 1}:
                        messages, _ = await pull_now(self.instance, queue, offset, 1)
                        times += [message.store_timestamp for message in messages]
            except RemotingError as error:
                missing[str(queue)] = str(error)
        return DeadGroup(group, count, min(times, default=None), max(times, default=None), missing)

    async def _range(self, queue: MessageQueue) -> tuple[int, int]:
        offsets = OffsetStore(self.instance, TOOLS_GROUP)
        return await offsets.min_offset(queue), await offsets.max_offset(queue)

    # --- letters

    async def letters(
        self, group: str, wanted: LetterFilter | None = None
    ) -> AsyncIterator[DeadLetter]:
        """Iterate over the dead letters that the group has at the time of the call.

        With ``wanted``, only letters for which it returns True are included.
        """
        ranges = {queue: await self._range(queue) for queue in await self._dead_queues(group)}
        for queue, (offset, end) in ranges.items():
            while offset < end:
                messages, reply = await pull_now(self.instance, queue, offset, PULL_COUNT)
                for message in messages:
                    if offset <= message.queue_offset < end:
                        letter = DeadLetter(group, message)
                        if wanted is None or wanted(letter):
                            yield letter
                if reply.next_begin_offset <= offset:
                    break
                offset = reply.next_begin_offset

    async def _dead_queues(self, group: str) -> list[MessageQueue]:
        topic = DLQ_PREFIX + group
        try:
            queues = await self.queues(topic)
        except RouteNotFoundError as error:
            if not self.instance.routes.name_server_answers:
                raise
            raise MessageNotFoundError(
                f"group {group!r} has no dead letters: topic {topic} does not exist "
                f"({error}); turbopump dlq list shows the groups"
            ) from None
        if not queues:
            raise MessageNotFoundError(
                f"the dead letters of group {group!r} cannot be read: topic {topic} forbids it "
                "(older brokers make it so); allow it with "
                f"turbopump topic alter '{topic}' --perm 6"
            )
        return queues

    async def copies_in(self, topic: str, unique_id: str) -> FoundMessages:
        """Search a topic for messages with this unique id. Return the newest ones, and the brokers
        that could not be asked.

        The known route of the topic is used.
        """
        route = await self.instance.routes.get(topic)
        return await self._query(route, unique_id, COPIES_MAX, 0, EVER, unique=True)

    async def reason(self, letter: DeadLetter, *, trace_topic: str = TRACE_TOPIC) -> str | None:
        """Return the reason of the last failure of a dead letter.

        The reason comes from the message, or from the trace of the consumer. The result is None if
        neither has one.
        """
        if letter.failure is not None:
            return letter.failure
        msg_id = letter.message.msg_id
        try:
            found = await self.by_key(trace_topic, msg_id, TRACES_MAX)
        except (RouteNotFoundError, RemotingError):
            return None
        return latest_reason([message.body for message in found.messages], letter.group, msg_id)


REASONS: Final = {
    ContextCode.TIME_OUT: "the handler took too long (TIME_OUT)",
    ContextCode.EXCEPTION: "the handler raised an exception (EXCEPTION)",
    ContextCode.RETURNNULL: "the handler returned nothing (RETURNNULL)",
    ContextCode.FAILED: "the handler asked to have it again (FAILED)",
}
"""Reasons why a consumer could not handle a message, by the code in its trace."""


def latest_reason(bodies: Iterable[bytes], group: str, msg_id: str) -> str | None:
    """Search trace messages for the latest reason why ``group`` failed with a message.

    ``bodies`` are the bodies of the trace messages, oldest first. The result is None if they have
    no reason.
    """
    latest: TracedAction | None = None
    for action in (action for body in bodies for action in read_actions(body)):
        if (
            action.kind is TraceKind.HANDLED
            and action.msg_id == msg_id
            and action.group in (group, "")
            and action.outcome in REASONS
            and not action.success
            and (latest is None or action.time_ms >= latest.time_ms)
        ):
            latest = action
    if latest is None or latest.outcome is None:
        return None
    reason = REASONS[latest.outcome]
    return reason if latest.error is None else f"{reason}: {latest.error}"
