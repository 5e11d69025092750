"""Handler of acknowledgements of popped messages (200051 and 200151), and of changes of their
invisible time (200053).

The order of checks and the codes are those of apache/rocketmq ``AckMessageProcessor``,
``ChangeInvisibleTimeProcessor``. Unlike Apache's broker, this one does not change the time of a
message that is visible again, which would deliver the message twice. It never reports success for a
change that was not stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from turbopump.broker.forwarding import Forwarding
from turbopump.broker.pop.group_queue import GroupQueue
from turbopump.broker.pop.pop import Pop
from turbopump.broker.pop.records import Checkpoint, PopKey
from turbopump.broker.read_checks import no_queue_remark, no_topic_remark
from turbopump.broker.stored import Stored
from turbopump.broker.topics import unserved_refusal
from turbopump.errors import MessageError, StoreError
from turbopump.message.handles import ORDER_REVIVE_QUEUE, PopHandle, QueueKind, real_topic
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.pop import (
    AckMessage,
    BatchAck,
    BatchAckBody,
    BatchAckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeReply,
    unpack_bits,
)
from turbopump.remoting.response import Refusal, Response, refusal
from turbopump.remoting.router import RequestContext, Router

OFFSETS_MAX = 1024
BITS_SIZE_MAX = 8 * 1024
"""Maximum bytes of the bit set in an acknowledgement, which names at most OFFSETS_MAX messages. A
pop returns 32 messages at most."""


@dataclass(eq=False)
class PopAcksHandler:
    """Handler of requests to acknowledge popped messages, or to change their invisible time."""

    stored: Stored
    pop: Pop
    forwarding: Forwarding

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(AckMessage, self.acknowledge)
        router.add_with_body(BatchAckMessage, self.acknowledge_batch)
        router.add(ChangeInvisibleTime, self.change)

    async def acknowledge(self, request: AckMessage, _context: RequestContext) -> Response[None]:
        """Acknowledge a popped message. A repeated acknowledgement gets the same answer."""
        refused = self._refusal(request, past_end=True)
        if refused is not None:
            return refused
        try:
            handle = PopHandle.decode(request.extra_info)
        except MessageError as error:
            return refusal(ResponseCode.MESSAGE_ILLEGAL, str(error))
        group_queue = GroupQueue(request.consumer_group, request.topic, request.queue_id)
        if handle.ordered:
            return self._acknowledge_in_order(group_queue, request.offset, handle.pop_time_ms)
        return await self._end(group_queue, handle, [request.offset])

    async def acknowledge_batch(
        self, _request: BatchAckMessage, body: BatchAckBody, context: RequestContext
    ) -> Response[None]:
        """Acknowledge several popped messages.

        RocketMQ: entries for unknown queues or messages are ignored.
        """
        if not body.acks:
            return Response(code=ResponseCode.NO_MESSAGE)
        answer = Response()
        for ack in body.acks:
            await context.served.turns.pause()
            response = await self._acknowledge_some(
                ack, body.broker_name or self.stored.config.broker_name
            )
            if response.code != ResponseCode.SUCCESS:
                answer = response
        return answer

    async def change(
        self, request: ChangeInvisibleTime, _context: RequestContext
    ) -> Response[ChangeInvisibleTimeReply]:
        """Change the time at which a popped message becomes visible again."""
        refused = self._refusal(request, past_end=False)
        if refused is not None:
            return _changed(refused.code, refused.remark)
        try:
            handle = PopHandle.decode(request.extra_info)
        except MessageError as error:
            return _changed(ResponseCode.MESSAGE_ILLEGAL, str(error))
        group_queue = GroupQueue(request.consumer_group, request.topic, request.queue_id)
        now = self.stored.clock.now_ms()
        if request.invisible_time < 0:
            return _changed(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime {request.invisible_time} ms is below 0",
            )
        if handle.ordered:
            return self._change_in_order(group_queue, request, handle, now)
        if now >= handle.visible_at_ms:
            remark = (
                f"the message became visible again at {handle.visible_at_ms}; the clock "
                f"of the broker shows {now}"
            )
            return _changed(ResponseCode.NO_MESSAGE, remark)
        if not self._is_queue(handle.revive_queue_id):
            return _changed(
                ResponseCode.MESSAGE_ILLEGAL, f"no revive queue {handle.revive_queue_id}"
            )
        return await self._change_checkpoint(group_queue, request, handle, now)

    async def _change_checkpoint(
        self, group_queue: GroupQueue, request: ChangeInvisibleTime, handle: PopHandle, now: int
    ) -> Response[ChangeInvisibleTimeReply]:
        """Set the time at which one message of a pop becomes visible again.

        A new checkpoint is stored for the message, then the message is acknowledged in the old
        checkpoint.
        """
        # so that it is another checkpoint than the one before
        pop_time = max(now, handle.pop_time_ms + 1)
        checkpoint = Checkpoint(
            start_offset=request.offset,
            pop_time=pop_time,
            invisible_time=request.invisible_time,
            count=1,
            queue_id=group_queue.queue_id,
            topic=group_queue.topic,
            group=group_queue.group,
            distances=[0],
            broker_name=handle.broker_name,
        )
        try:
            stored = await self.pop.revive_log.store_checkpoint(handle.revive_queue_id, checkpoint)
            # else a power cut may take it and leave the acknowledgement behind it
            await self.forwarding.confirmed(stored)
        except (StoreError, OSError) as error:
            return _changed(
                ResponseCode.SYSTEM_ERROR, f"the message comes back at its time: {error}"
            )
        except MessageError as error:
            return _changed(ResponseCode.INVALID_PARAMETER, str(error))
        answer = await self._acknowledge(group_queue, handle, [request.offset])
        if answer.code != ResponseCode.SUCCESS:
            return _changed(answer.code, answer.remark)
        reply = ChangeInvisibleTimeReply(
            pop_time=pop_time,
            invisible_time=request.invisible_time,
            revive_qid=handle.revive_queue_id,
        )
        return Response(reply)

    async def _end(
        self, group_queue: GroupQueue, handle: PopHandle, offsets: list[int]
    ) -> Response[None]:
        answer = await self._acknowledge(group_queue, handle, offsets)
        if answer.code == ResponseCode.SUCCESS and self.pop.in_flight.remove_ended(
            group_queue, offsets
        ):
            self.pop.held.wake_line(group_queue.line)
        return answer

    async def _acknowledge(
        self, group_queue: GroupQueue, handle: PopHandle, offsets: list[int]
    ) -> Response[None]:
        if not self._is_queue(handle.revive_queue_id):
            return refusal(
                ResponseCode.MESSAGE_ILLEGAL, f"no revive queue {handle.revive_queue_id}"
            )
        key = PopKey(
            group_queue.topic,
            group_queue.group,
            group_queue.queue_id,
            handle.start_offset,
            handle.pop_time_ms,
            handle.broker_name,
        )
        try:
            stored = await self.pop.store_acknowledgement(
                handle.revive_queue_id, key, offsets, handle.visible_at_ms
            )
            await self.forwarding.confirmed(stored)
        except (StoreError, OSError) as error:
            return refusal(
                ResponseCode.SYSTEM_ERROR, f"the acknowledgement was not written down: {error}"
            )
        except MessageError as error:
            return refusal(ResponseCode.MESSAGE_ILLEGAL, str(error))
        return Response()

    async def _acknowledge_some(self, ack: BatchAck, broker_name: str) -> Response[None]:
        group = ack.consumer_group or ""
        kind = QueueKind(ack.retry) if ack.retry in ("1", "2") else QueueKind.NORMAL
        group_queue = GroupQueue(group, real_topic(kind, ack.topic or "", group), ack.queue_id)
        queue = self.stored.store.queue(group_queue.topic, group_queue.queue_id)
        if queue is None:
            return Response()
        bits = ack.bits or b""
        if len(bits) > BITS_SIZE_MAX or int.from_bytes(bits).bit_count() > OFFSETS_MAX:
            remark = (
                f"an acknowledgement of one pop names at most {OFFSETS_MAX} messages within "
                f"{BITS_SIZE_MAX * 8}"
            )
            return refusal(ResponseCode.MESSAGE_ILLEGAL, remark)
        wanted = [ack.start_offset + bit for bit in unpack_bits(bits)]
        offsets = [offset for offset in wanted if queue.min_index <= offset <= queue.end.value]
        if ack.revive_queue_id == ORDER_REVIVE_QUEUE:
            for offset in offsets:
                self._acknowledge_in_order(group_queue, offset, ack.pop_time)
            return Response()
        if not offsets:
            return Response()
        handle = PopHandle(
            start_offset=ack.start_offset,
            pop_time_ms=ack.pop_time,
            invisible_ms=ack.invisible_time,
            revive_queue_id=ack.revive_queue_id,
            kind=kind,
            broker_name=broker_name,
            queue_id=ack.queue_id,
        )
        return await self._end(group_queue, handle, offsets)

    # --- in order

    def _acknowledge_in_order(
        self, group_queue: GroupQueue, offset: int, pop_time_ms: int
    ) -> Response[None]:
        before = self.stored.tables.offsets.find(*group_queue)
        if before is not None and offset < before:
            return Response()
        try:
            following = self.pop.order.acknowledge(group_queue, offset, pop_time_ms, before)
        except LookupError as error:
            group, topic, queue_id = group_queue
            remark = f"offset is illegal, key:{topic}@{group}@{queue_id}, commit:{offset}: {error}"
            return refusal(ResponseCode.MESSAGE_ILLEGAL, remark)
        if following is not None:
            self.stored.tables.offsets.commit(*group_queue, following)
            self.pop.held.wake_line(group_queue.line)
        return Response()

    def _change_in_order(
        self, group_queue: GroupQueue, request: ChangeInvisibleTime, handle: PopHandle, now: int
    ) -> Response[ChangeInvisibleTimeReply]:
        before = self.stored.tables.offsets.find(*group_queue)
        if before is not None and request.offset < before:
            return Response(ChangeInvisibleTimeReply())
        self.pop.order.change_visibility(
            group_queue, request.offset, handle.pop_time_ms, now + request.invisible_time
        )
        self.pop.held.wake_line(group_queue.line)
        reply = ChangeInvisibleTimeReply(
            pop_time=handle.pop_time_ms,
            invisible_time=now + request.invisible_time - handle.pop_time_ms,
            revive_qid=handle.revive_queue_id,
        )
        return Response(reply)

    # --- what is asked for

    def _refusal(
        self, request: AckMessage | ChangeInvisibleTime, *, past_end: bool
    ) -> Refusal | None:
        topic = self.stored.tables.topics.find(request.topic)
        if topic is None:
            return refusal(ResponseCode.TOPIC_NOT_EXIST, no_topic_remark(request.topic))
        unserved = unserved_refusal(topic)
        if unserved is not None:
            return unserved
        if not 0 <= request.queue_id < topic.read_queue_nums:
            remark = no_queue_remark(request.queue_id, topic, request.consumer_group)
            return refusal(ResponseCode.MESSAGE_ILLEGAL, remark)
        low = self.stored.store.min_offset(request.topic, request.queue_id)
        high = self.stored.store.max_offset(request.topic, request.queue_id)
        if not low <= request.offset < high + past_end:
            remark = (
                f"offset is illegal, key:{request.topic}@{request.queue_id}, "
                f"commit:{request.offset}, store:{low}~{high}"
            )
            return refusal(ResponseCode.NO_MESSAGE, remark)
        return None

    def _is_queue(self, revive_queue_id: int) -> bool:
        topic = self.stored.tables.topics.find(self.pop.revive_log.topic)
        return topic is not None and 0 <= revive_queue_id < topic.read_queue_nums


def _changed(code: int, remark: str | None) -> Response[ChangeInvisibleTimeReply]:
    return Response(ChangeInvisibleTimeReply(), code=code, remark=remark)
