"""Popped messages: decoding of a pop's answer. A message's handle identifies this delivery at its
broker.

One rule: a handle names one delivery of one message. A change of the invisible time replaces the
handle. This module must not know who popped. Source: apache/rocketmq
``MQClientAPIImpl.processPopResponse``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.client.consumer.pull import DamagedMessage
from turbopump.errors import MessageError, StoredMessageError
from turbopump.message import handles
from turbopump.message.batch import Unpacking, is_wrapped
from turbopump.message.codec import decode_entry
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.message.properties import POP_CK, property_value
from turbopump.message.pulled import DamagedEntry, pulled_entries
from turbopump.protocol.requests.pop import InitMode, PopMessageReply

BATCH_MAX: Final = 32
"""Maximum number of messages in one pop; brokers refuse more."""
ANSWER_S: Final = 10.0
"""Timeout of an answer in seconds, in addition to the time for which the broker may wait for
messages."""
WAIT_S: Final = 5.0
"""Seconds for which a broker may wait for messages before it answers a pop or a request for
notification. Java's client uses 15. Apache's brokers do not end that wait for messages in a retry
topic of the usual form, so a longer time would delay retries."""
GIVEN_BACK_S: Final = 1.0
"""Seconds until a received message that is not handled is delivered again. RocketMQ's proxy uses
the same value (``NACK_INVISIBLE_TIME``)."""
ATTEMPTS_MAX: Final = 16
"""Default number of retries before a message becomes a dead letter."""


class HasHandle(Protocol):
    """Popped message of any class. Its handle identifies this delivery at the broker.

    ``batch`` is the inner batch that contains the message, or None.
    """

    topic: str
    broker_name: str
    handle: str
    queue_offset: int
    batch: PoppedBatch | None


class PoppedBatch:
    """Inner batch: messages that a broker delivers as one message.

    The batch is done when all of its messages are done. If one of them is to be delivered again,
    all of them are. Apache's clients do not split popped batches. ``turn`` is the lock for changes
    of the handle.
    """

    __slots__ = ("_left", "_moved", "messages", "turn")

    def __init__(self, messages: Sequence[HasHandle]) -> None:
        self.messages = list(messages)
        self.turn = asyncio.Lock()
        self._left = {message.queue_offset for message in messages}
        self._moved = (0.0, -1.0)

    def done(self, message: HasHandle) -> bool:
        """Mark ``message`` as done. Return True if all messages of the batch are done."""
        self._left.discard(message.queue_offset)
        return not self._left

    def moved(self, handle: str, seconds: float, now: float) -> None:
        """Record that the broker has accepted a new invisible time for the batch.

        All messages get the new handle. The batch is delivered again ``seconds`` after ``now``.
        """
        self._moved = seconds, now
        for message in self.messages:
            message.handle = handle

    def has_moved(self, seconds: float, since: float) -> bool:
        """Return True if a call at ``since`` or later has set the invisible time to ``seconds``."""
        return self._moved[0] == seconds and self._moved[1] >= since


PoppedT = TypeVar("PoppedT", bound=HasHandle)


def to_acknowledge(messages: Iterable[PoppedT]) -> Iterator[PoppedT]:
    """Filter finished messages: yield the ones that need an acknowledgement at the broker.

    A batch is represented by one message, once all messages of the batch are done.
    """
    seen: set[PoppedBatch] = set()
    for message in messages:
        batch = message.batch
        if batch is None:
            yield message
        elif batch.done(message) and batch not in seen:
            seen.add(batch)
            yield message


class PoppedMessage(ReceivedMessage):
    """Received message that other members of the group cannot receive for a while.

    ``topic`` is the original topic, also for a retry. ``handle`` identifies this delivery at the
    broker. Apache calls it ``POP_CK``, and Java's API calls it the receipt handle.
    """

    __slots__ = ("batch", "handle")

    handle: str
    batch: PoppedBatch | None
    """Inner batch that contains the message, or None for a single message. Messages of a batch are
    acknowledged and delivered again together."""

    @property
    def attempt(self) -> int:
        """Number of this delivery to the group, from 1."""
        return self.reconsume_times + 1

    @property
    def visible_at_ms(self) -> int:
        """Time at which an unacknowledged message is delivered again, in ms since 1970.

        The time is that of the broker's clock.
        """
        return handles.PopHandle.decode(self.handle).visible_at_ms


class PoppedDelivery(Delivery):
    """Popped message of a push consumer.

    The message is not handled any more once it is visible to other members.
    """

    __slots__ = ("_now", "batch", "deadline", "handle")

    handle: str
    batch: PoppedBatch | None
    deadline: float
    _now: Callable[[], float]

    def invisible_until(self, deadline: float, now: Callable[[], float]) -> None:
        """Set the end of the message's invisible time. At ``deadline`` an unacknowledged message is
        delivered again.

        ``now`` returns the current time in seconds, by the same clock as ``deadline``. The owner of
        the message calls this method.
        """
        self.deadline = deadline
        self._now = now

    @property
    def overdue(self) -> bool:
        """True once other members may receive the message."""
        return self._now() >= self.deadline

    @property
    def wanted(self) -> bool:
        return not (self.settled or self._owner.dropped or self.overdue)


MessageT = TypeVar("MessageT", PoppedMessage, PoppedDelivery)


def popped_messages(
    body: bytes, reply: PopMessageReply, queue: MessageQueue, message_type: type[MessageT]
) -> tuple[list[MessageT], list[DamagedMessage]]:
    """Return the undamaged and the damaged messages in the answer to a pop of ``queue``.

    A queue id of −1 means any queue of the topic. The undamaged messages have a broker name and a
    handle. Inner batches are split into their messages.

    Raises MessageError if the answer's header fields cannot be read.
    """
    messages, batches, damaged = _decoded(body, queue, message_type)
    _give_handles(messages, reply, queue.broker_name)
    if not batches:
        return messages, damaged
    single: list[MessageT] = []
    for number, message in enumerate(messages):
        single += _taken_apart(message, batches[number]) if number in batches else [message]
    return single, damaged


def _decoded(
    body: bytes, queue: MessageQueue, message_type: type[MessageT]
) -> tuple[list[MessageT], dict[int, list[bytes]], list[DamagedMessage]]:
    """Decode the messages in the answer to a pop, without splitting inner batches.

    Return the messages as stored, the entries of each inner batch by message number, and the
    damaged messages.
    """
    messages: list[MessageT] = []
    batches: dict[int, list[bytes]] = {}
    damaged: list[DamagedMessage] = []
    unpacking = Unpacking()

    def add(entry: bytes, *, check_crc: bool) -> bool:
        message = decode_entry(entry, check_crc=check_crc, message_type=message_type)
        assert isinstance(message, message_type)
        if check_crc and property_value(message.properties_text, POP_CK) is None:
            return False
        if is_wrapped(message.sys_flag):
            batches[len(messages)] = unpacking.entries(entry)
        message.batch = None
        messages.append(message)
        return True

    def on_damage(entry: DamagedEntry) -> None:
        # the broker has rewritten a message that is delivered again: its CRC may be the old one
        try:
            if add(body[entry.begin : entry.end], check_crc=True):
                return
        except StoredMessageError:
            pass
        damaged.append(DamagedMessage(queue, entry.queue_offset, entry.fault))

    for entry in pulled_entries(body, on_damage):
        try:
            add(entry, check_crc=False)
        except StoredMessageError as error:
            damaged.append(DamagedMessage(queue, -1, str(error)))
    return messages, batches, damaged


def _taken_apart(whole: MessageT, entries: Sequence[bytes]) -> list[MessageT]:
    """Return the messages of an inner batch, each with the batch's handle and retry count."""
    messages: list[MessageT] = []
    for entry in entries:
        message = decode_entry(entry, check_crc=False, message_type=type(whole))
        assert isinstance(message, type(whole))
        message.broker_name = whole.broker_name
        message.handle = whole.handle
        message.reconsume_times = whole.reconsume_times
        messages.append(message)
    batch = PoppedBatch(messages)
    for message in messages:
        message.batch = batch
    return messages


_NONE_LISTED: Final = (list[int](), frozenset[int]())


def _give_handles(messages: Sequence[MessageT], reply: PopMessageReply, broker_name: str) -> None:
    starts = handles.decode_numbers(reply.start_offset_info)
    offsets = {
        key: (listed, frozenset(listed))
        for key, listed in handles.decode_offsets(reply.msg_offset_info).items()
    }
    counts = handles.decode_numbers(reply.order_count_info)
    seen: dict[handles.QueueKey, int] = {}
    for message in messages:
        message.broker_name = broker_name
        said = property_value(message.properties_text, POP_CK)
        if said is not None:  # it comes again: the broker has put its handle in
            message.handle = said
            continue
        kind = handles.queue_kind_of(message.topic)
        key = handles.queue_key(kind, message.queue_id)
        if counts:  # in order it comes again out of its own queue, where nothing is written on it
            came_before = counts.get(
                handles.message_key(kind, message.queue_id, message.queue_offset),
                counts.get(key, 0),
            )
            message.reconsume_times = came_before or message.reconsume_times
        # RocketMQ: if the broker sends no offset, it starts with the first
        starts_at = starts.setdefault(key, message.queue_offset)
        listed, known = offsets.get(key, _NONE_LISTED)
        index = seen[key] = seen.get(key, -1) + 1
        message.handle = handles.PopHandle(
            start_offset=starts_at,
            pop_time_ms=reply.pop_time,
            invisible_ms=reply.invisible_time,
            revive_queue_id=reply.revive_qid,
            kind=key.kind,
            broker_name=broker_name,
            queue_id=message.queue_id,
            queue_offset=_popped_offset(message, listed, known, index),
        ).encode()


def _popped_offset(
    message: ReceivedMessage, offsets: Sequence[int], known: Collection[int], index: int
) -> int:
    """Return the offset of a message in the popped queue. The message itself may store a different
    offset."""
    if message.queue_offset in known or index >= len(offsets):
        return message.queue_offset
    return offsets[index]


def single_handle(message: HasHandle) -> handles.PopHandle:
    """Return the decoded handle of one message.

    Raises MessageError if the handle cannot be decoded or names no single message.
    """
    handle = handles.PopHandle.decode(message.handle)
    if handle.queue_offset is None:
        raise MessageError(f"the handle {message.handle!r} names no single message")
    return handle


class PopResult(NamedTuple, Generic[MessageT]):
    """Messages that a pop has returned.

    - ``messages``: messages to deliver.
    - ``came``: number of received messages, including those that are not delivered.
    - ``full``: True if the broker has too many waiting pops.
    """

    messages: list[MessageT]
    came: int = 0
    full: bool = False


def init_mode_of(consume_from: ConsumeFrom | datetime) -> InitMode:
    """Return the starting position of pops for a group without an offset.

    Brokers accept no time here: ``NOW`` and a datetime mean ``LAST``, as in Java.
    """
    return InitMode.MIN if consume_from is ConsumeFrom.FIRST else InitMode.MAX
