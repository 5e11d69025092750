"""Popped messages, and how they come out of a pop's answer: each with the handle by which its
broker knows this delivery of it.

One rule: a handle names one delivery of one message; when its invisible time changes, it gets
another. Pure. It must not know who popped. Source: apache/rocketmq
``MQClientAPIImpl.processPopResponse``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from turbopump.client.consuming.delivery import Delivery
from turbopump.client.consuming.pulled_messages import DamagedMessage
from turbopump.client.popping.popped_batch import Popped, PoppedBatch
from turbopump.errors import MessageError, StoredMessageError
from turbopump.message.checked import DamagedEntry, good_entries
from turbopump.message.codec import decode_entry
from turbopump.message.inner_batch import is_wrapped, unwrapped
from turbopump.message.message import ReceivedMessage
from turbopump.message.message_queue import MessageQueue
from turbopump.message.pop_handle import (
    PopHandle,
    QueueKey,
    decode_numbers,
    decode_offsets,
    kind_of,
    message_key,
    queue_key,
)
from turbopump.message.properties import POP_CK, property_value
from turbopump.protocol.requests.pop import PopMessageReply


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
        """Which delivery to this group it is, from 1."""
        return self.reconsume_times + 1

    @property
    def visible_at_ms(self) -> int:
        """When it comes again unless it is acknowledged: ms since 1970 by the broker's clock."""
        return PopHandle.decode(self.handle).visible_at_ms


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
        """Whether others may have it by now."""
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

    def add(entry: bytes, *, check_crc: bool) -> bool:
        message = decode_entry(entry, check_crc=check_crc, message_type=message_type)
        assert isinstance(message, message_type)
        if check_crc and property_value(message.properties_text, POP_CK) is None:
            return False
        if is_wrapped(message.sys_flag):
            batches[len(messages)] = unwrapped(entry)
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

    for entry in good_entries(body, on_damage):
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


def _give_handles(messages: Sequence[MessageT], reply: PopMessageReply, broker_name: str) -> None:
    starts = decode_numbers(reply.start_offset_info)
    offsets = decode_offsets(reply.msg_offset_info)
    counts = decode_numbers(reply.order_count_info)
    seen: dict[QueueKey, int] = {}
    for message in messages:
        message.broker_name = broker_name
        said = property_value(message.properties_text, POP_CK)
        if said is not None:  # it comes again: the broker has put its handle in
            message.handle = said
            continue
        kind = kind_of(message.topic)
        key = queue_key(kind, message.queue_id)
        if counts:  # in order it comes again out of its own queue, where nothing is written on it
            came_before = counts.get(
                message_key(kind, message.queue_id, message.queue_offset), counts.get(key, 0)
            )
            message.reconsume_times = came_before or message.reconsume_times
        # RocketMQ: a broker that tells none begins with the first
        starts_at = starts.setdefault(key, message.queue_offset)
        index = seen[key] = seen.get(key, -1) + 1
        message.handle = PopHandle(
            start_offset=starts_at,
            pop_time_ms=reply.pop_time,
            invisible_ms=reply.invisible_time,
            revive_queue_id=reply.revive_qid,
            kind=key.kind,
            broker_name=broker_name,
            queue_id=message.queue_id,
            queue_offset=_place(message, offsets.get(key, ()), index),
        ).encode()


def _place(message: ReceivedMessage, offsets: Sequence[int], index: int) -> int:
    """Its place in the queue that was popped, which need not be what it was stored with."""
    if message.queue_offset in offsets or index >= len(offsets):
        return message.queue_offset
    return offsets[index]


def single_handle(message: Popped) -> PopHandle:
    """The handle of one message. Raises MessageError if it is none."""
    handle = PopHandle.decode(message.handle)
    if handle.queue_offset is None:
        raise MessageError(f"the handle {message.handle!r} names no single message")
    return handle
