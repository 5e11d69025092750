"""Popped messages: how they come out of a pop's answer, each with the handle by which its broker
knows this delivery of it.

One rule: a handle names one delivery of one message; when its invisible time changes, it gets
another. This module must not know who popped. Source: apache/rocketmq
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
"""Messages in one pop; brokers refuse more."""
ANSWER_S: Final = 10.0
"""For the answer, beyond what the broker may hold the pop."""
WAIT_S: Final = 5.0
"""Time for which a broker may hold a pop, or a question whether there is something to pop. Java's
client says 15; but no arrival in a retry topic of the usual form wakes what Apache's brokers hold,
so that a message that comes again would come so much later."""
GIVEN_BACK_S: Final = 1.0
"""A message that came and is not handled is made to come again after so long, instead of when its
time is over. RocketMQ's proxy does so (``NACK_INVISIBLE_TIME``)."""
ATTEMPTS_MAX: Final = 16
"""Retries before a message is a dead letter, if nothing else is said."""

# --- Inner batches that were popped. For its broker a batch is one message: it is done when all of
# its messages are, and when one is to come again they all do. Apache's clients take nothing apart
# here.


class HasHandle(Protocol):
    """Any message with a handle. ``batch``: the inner batch that it came in."""

    topic: str
    broker_name: str
    handle: str
    queue_offset: int
    batch: PoppedBatch | None


class PoppedBatch:
    """One delivery of a batch, with the ``messages`` in it. ``turn``: its handle changes once at a
    time."""

    __slots__ = ("_left", "_moved", "messages", "turn")

    def __init__(self, messages: Sequence[HasHandle]) -> None:
        self.messages = list(messages)
        self.turn = asyncio.Lock()
        self._left = {message.queue_offset for message in messages}
        self._moved = (0.0, -1.0)

    def done(self, message: HasHandle) -> bool:
        """``message`` is done; whether all are now."""
        self._left.discard(message.queue_offset)
        return not self._left

    def moved(self, handle: str, seconds: float, now: float) -> None:
        """Note that it comes again ``seconds`` after ``now``, and has another handle."""
        self._moved = seconds, now
        for message in self.messages:
            message.handle = handle

    def has_moved(self, seconds: float, since: float) -> bool:
        """Return True if its time was changed to ``seconds``, at ``since`` or later."""
        return self._moved[0] == seconds and self._moved[1] >= since


PoppedT = TypeVar("PoppedT", bound=HasHandle)


def to_acknowledge(messages: Iterable[PoppedT]) -> Iterator[PoppedT]:
    """Return the messages to acknowledge, of those that are done: of a batch one message, when all
    of its messages are done."""
    seen: set[PoppedBatch] = set()
    for message in messages:
        batch = message.batch
        if batch is None:
            yield message
        elif batch.done(message) and batch not in seen:
            seen.add(batch)
            yield message


class PoppedMessage(ReceivedMessage):
    """A message that is invisible to the rest of its group for a while. ``topic`` is the one it was
    sent to, also when it comes again.

    ``handle`` is what its broker knows this delivery by (Apache's ``POP_CK``, in Java's API the
    receipt handle).
    """

    __slots__ = ("batch", "handle")

    handle: str
    batch: PoppedBatch | None
    """The inner batch that it came in, with which it is acknowledged and comes again; None: it came
    by itself."""

    @property
    def attempt(self) -> int:
        """Number of this delivery to the group, from 1."""
        return self.reconsume_times + 1

    @property
    def visible_at_ms(self) -> int:
        """When it comes again unless it is acknowledged: ms since 1970 by the broker's clock."""
        return handles.PopHandle.decode(self.handle).visible_at_ms


class PoppedDelivery(Delivery):
    """A popped message in a push consumer's hands. It is not wanted any more when it has become
    visible to others."""

    __slots__ = ("_now", "batch", "deadline", "handle")

    handle: str
    batch: PoppedBatch | None
    deadline: float
    _now: Callable[[], float]

    def invisible_until(self, deadline: float, now: Callable[[], float]) -> None:
        """For the owner: when it comes again unless it is acknowledged; ``now`` tells the time by
        the same clock, in seconds."""
        self.deadline = deadline
        self._now = now

    @property
    def overdue(self) -> bool:
        """True once others may have it."""
        return self._now() >= self.deadline

    @property
    def wanted(self) -> bool:
        return not (self.settled or self._owner.dropped or self.overdue)


MessageT = TypeVar("MessageT", PoppedMessage, PoppedDelivery)


def popped_messages(
    body: bytes, reply: PopMessageReply, queue: MessageQueue, message_type: type[MessageT]
) -> tuple[list[MessageT], list[DamagedMessage]]:
    """The good messages in the answer to a pop of ``queue`` (queue id −1: of any queue), with
    broker name and handle; and the damaged ones. Inner batches are taken apart.

    Raises MessageError if the answer's texts are none.
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
    """The messages as the broker knows them, and by their number the entries in those that are
    inner batches."""
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
        # a message that comes again was written anew by the broker: it may carry the CRC of what it
        # was before
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
    """The messages of a batch, each with what the batch has of its pop."""
    messages: list[MessageT] = []
    for entry in entries:
        message = decode_entry(entry, check_crc=False, message_type=type(whole))
        assert isinstance(message, type(whole))
        message.broker_name, message.handle, message.reconsume_times = (
            whole.broker_name,
            whole.handle,
            whole.reconsume_times,
        )
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
        # RocketMQ: a broker that tells none begins with the first
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
    """Its offset in the queue that was popped, which need not be the one it was stored with."""
    if message.queue_offset in known or index >= len(offsets):
        return message.queue_offset
    return offsets[index]


def single_handle(message: HasHandle) -> handles.PopHandle:
    """The handle of one message. Raises MessageError if it is none."""
    handle = handles.PopHandle.decode(message.handle)
    if handle.queue_offset is None:
        raise MessageError(f"the handle {message.handle!r} names no single message")
    return handle


class PopResult(NamedTuple, Generic[MessageT]):
    """``messages`` to hand out, of those that ``came``. ``full``: too many pops wait there."""

    messages: list[MessageT]
    came: int = 0
    full: bool = False


def init_mode_of(consume_from: ConsumeFrom | datetime) -> InitMode:
    """Return the mode for a group without an offset. Brokers know no time here: ``NOW`` and a
    datetime mean the last, as in Java."""
    return InitMode.MIN if consume_from is ConsumeFrom.FIRST else InitMode.MAX
