"""Searches in the topics to which dead letters are resent.

The searches find the ends of the queues, new messages in them, and messages by id. This module
reads; ``resending.py`` decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from turbopump.client.consumer.offsets import OffsetStore
from turbopump.client.dead_letters.dead_letter import RESENT_FROM, DeadLetter, DeadLetters, ResendTo
from turbopump.client.instance import ClientInstance
from turbopump.client.message_finder import TOOLS_GROUP, pull_now
from turbopump.client.sent_already import SenderMark
from turbopump.errors import BodyError, RemotingError, RouteNotFoundError
from turbopump.message.handles import pop_retry_topic
from turbopump.message.message import MessageQueue
from turbopump.message.properties import UNIQ_KEY
from turbopump.message.rules import DLQ_PREFIX, RETRY_PREFIX
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import reply_in
from turbopump.protocol.requests.clients import ConsumeType
from turbopump.protocol.requests.consumers import GetConsumerConnectionList

log = logging.getLogger(__name__)

PULL_COUNT: Final = 32


class ResentLetter(NamedTuple):
    """A resent dead letter in a target queue."""

    id: str
    queue: MessageQueue
    offset: int


class UnreadableQueue(NamedTuple):
    """A target queue that cannot be read."""

    queue: MessageQueue
    why: str


async def queue_ends(
    instance: ClientInstance, queues: Iterable[MessageQueue]
) -> dict[MessageQueue, int]:
    """Return the offset after the newest message of each queue.

    Raises RemotingError if a broker cannot be asked.
    """
    offsets = OffsetStore(instance, TOOLS_GROUP)
    queues = list(queues)
    ends = await asyncio.gather(*(offsets.max_offset(queue) for queue in queues))
    return dict(zip(queues, ends, strict=True))


def mark_of(group: str) -> SenderMark:
    """Return the rule that recognises the resent dead letters of a group.

    The rule is the same for all who resend them.
    """
    return SenderMark(RESENT_FROM, f"{DLQ_PREFIX}{group}@", UNIQ_KEY)


async def read_on(
    instance: ClientInstance, mark: SenderMark, read_to: dict[MessageQueue, int]
) -> list[ResentLetter]:
    """Read the new messages of each queue, and return the resent letters among them.

    Each queue is read from its offset in ``read_to`` to its end, and the offset is set to the end.
    Raises RemotingError if a broker cannot be asked.
    """
    found = await asyncio.gather(
        *(_read_queue_on(instance, mark, read_to, queue) for queue in read_to)
    )
    return [letter for letters in found for letter in letters]


async def _read_queue_on(
    instance: ClientInstance,
    mark: SenderMark,
    read_to: dict[MessageQueue, int],
    queue: MessageQueue,
) -> list[ResentLetter]:
    found: list[ResentLetter] = []
    end: int | None = None
    while True:
        offset = read_to[queue]
        messages, reply = await pull_now(instance, queue, offset, PULL_COUNT)
        for message in messages:
            id_ = mark.id_of(message.properties)
            # a letter that failed again in a retry topic has the mark too, but attempts above 0
            if id_ is not None and message.queue_offset >= offset and message.reconsume_times == 0:
                found.append(ResentLetter(id_, queue, message.queue_offset))
        end = reply.max_offset if end is None else end
        read_to[queue] = reply.next_begin_offset
        if reply.next_begin_offset >= end or reply.next_begin_offset <= offset:
            return found


async def find_by_id(
    dead_letters: DeadLetters, topic: str, id_: str
) -> ResentLetter | UnreadableQueue | None:
    """Search the brokers' indexes for the resent dead letter with this unique id.

    The result is an UnreadableQueue if the queue that may have the letter cannot be read, and None
    if nothing is found. A broker that cannot be asked is logged.

    An index also has the messages of a topic that was deleted. They are ignored if the topic was
    created again.
    """
    found = await dead_letters.copies_in(topic, id_)
    for broker_name, cause in found.missing.items():
        text = "not asked whether a dead letter was resent broker=%s id=%s cause=%s"
        log.warning(text, broker_name, id_, cause)
    hidden: UnreadableQueue | None = None
    for message in found.messages:
        queue = MessageQueue(topic, message.broker_name, message.queue_id)
        letter = ResentLetter(id_, queue, message.queue_offset)
        try:
            if not await _is_left_over(dead_letters.instance, letter):
                return letter
        except RemotingError as error:
            hidden = UnreadableQueue(queue, str(error))
    return hidden


async def _is_left_over(instance: ClientInstance, arrival: ResentLetter) -> bool:
    """Return True if the letter belongs to an earlier topic of the same name.

    The queue is shorter now, or has another message at the offset. After retention or compaction
    the offset is empty, which proves nothing.
    """
    messages, reply = await pull_now(instance, arrival.queue, arrival.offset, 1)
    return arrival.offset >= reply.max_offset or any(
        other.queue_offset == arrival.offset and other.properties.get(UNIQ_KEY) != arrival.id
        for other in messages
    )


TIMEOUT_S: Final = 5.0


@dataclass(eq=False)
class TargetTopics:
    """Choice of the target topic of each dead letter, for one run.

    The brokers are asked once for each topic how the group consumes it.

    A group has two kinds of retry topics. Its pulling consumers read ``%RETRY%group``. Its popping
    consumers read ``%RETRY%group_topic``, one for each topic; a push consumer over POP reads both.
    Source: apache/rocketmq ``PopMessageProcessor``, ``KeyBuilder.buildPopRetryTopic``. A newer
    kind, ``%RETRY%group+topic`` (``enableRetryTopicV2``), cannot be sent to, because a + is not
    allowed. Brokers with that kind read the older one, too.
    """

    instance: ClientInstance
    group: str
    to: ResendTo

    def __post_init__(self) -> None:
        self._pops_of: dict[str, bool] = {}

    async def learn_topic(self, letter: DeadLetter) -> str | None:
        """Return the target topic of a letter, and ask the brokers if necessary.

        The result is None if the letter does not name its original topic.
        """
        origin = letter.origin_topic
        unsure = self.to is ResendTo.RETRY and not letter.was_popped
        if unsure and origin is not None and origin not in self._pops_of:
            self._pops_of[origin] = await self._group_pops(origin)
        return self.topic_of(letter)

    def topic_of(self, letter: DeadLetter) -> str | None:
        """Return the target topic that ``learn_topic`` has found for a letter."""
        origin = letter.origin_topic
        match self.to:
            case ResendTo.ORIGIN:
                return origin
            case ResendTo.RETRY:
                pops = origin is not None and (letter.was_popped or self._pops_of[origin])
            case _:
                pops = self.to is ResendTo.POP_RETRY
        if not pops:
            return RETRY_PREFIX + self.group
        return pop_retry_topic(origin, self.group) if origin is not None else None

    async def _group_pops(self, topic: str) -> bool:
        """Return True if a broker reports that the group's consumers pop the topic."""
        try:
            route = await self.instance.routes.get(topic)
        except (RouteNotFoundError, RemotingError):
            return False
        request = GetConsumerConnectionList(consumer_group=self.group)
        for broker_name in sorted(route.addresses):
            address = route.master(broker_name)
            if address is None:
                continue
            try:
                answer = await self.instance.remoting.exchange(address, request, timeout=TIMEOUT_S)
                if answer.code == ResponseCode.SUCCESS:
                    connections = reply_in(answer, request)
                    return connections.consume_type is ConsumeType.CONSUME_POP
            except (RemotingError, BodyError) as error:
                text = "not asked how a group consumes broker=%s group=%s cause=%s"
                log.warning(text, broker_name, self.group, error)
        return False


def missing_topic_hint(topic: str, group: str) -> str:
    """Return advice for the error about a target topic without a route."""
    if topic == RETRY_PREFIX + group:
        return "; no consumer of the group has made it: resend to the origin"
    if topic.startswith(RETRY_PREFIX):
        return (
            "; the group pops, and has not had anything to retry yet: make the topic with "
            f"turbopump topic create '{topic}' --queues 1, or resend to the origin"
        )
    return ""
