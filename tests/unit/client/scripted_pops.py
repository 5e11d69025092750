"""POP for a scripted broker: messages are taken for a while and come again by way of the group's
retry topic, as Apache's brokers do it.

It must not know what the client under test is.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.world.network import SimulatedNetwork
from tests.stand_ins import does_nothing
from tests.unit.client.scripted_cluster import HOST, ScriptedBroker, refusal

from turbopump.filtering.sql92 import compile_sql
from turbopump.message.codec import decode_entry, encode_entry, encode_host
from turbopump.message.handles import (
    ORDER_REVIVE_QUEUE,
    PopHandle,
    encode_numbers,
    encode_offsets,
    message_key,
    pop_retry_topic,
    queue_key,
    queue_kind_of,
    real_topic,
)
from turbopump.message.java import tags_code
from turbopump.message.message import MessageQueue, ReceivedMessage
from turbopump.message.properties import POP_CK
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.assignment import (
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from turbopump.protocol.requests.pop import (
    AckMessage,
    BatchAckBody,
    BatchAckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeReply,
    Notification,
    NotificationReply,
    PopMessage,
    PopMessageReply,
    unpack_bits,
)
from turbopump.remoting.response import Response
from turbopump.remoting.router import RequestContext

Place = tuple[str, int, int]
"""Topic as stored, queue id, queue offset."""


@dataclass
class ScriptedPops:
    """Answers pops of ``broker``; groups begin at the first message. ``acked`` and ``changed`` tell
    what clients said."""

    broker: ScriptedBroker
    batches: bool = True
    """Whether it knows 200151."""
    modes: dict[str, MessageRequestMode | None] = field(default_factory=dict)
    """What 400 says of a topic: pull is the default; None: it cannot say."""
    acked: list[Place] = field(default_factory=list)
    changed: list[tuple[Place, int]] = field(default_factory=list)
    on_pop: Callable[[], object] = does_nothing
    """Called when messages are about to go out."""
    _next: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    _out: dict[tuple[str, Place], tuple[int, asyncio.TimerHandle]] = field(default_factory=dict)
    _held: list[tuple[PopMessage | Notification, RequestContext]] = field(default_factory=list)
    _taken: dict[tuple[str, str, int], tuple[str | None, list[int]]] = field(default_factory=dict)
    """In order: by whom, and what of it is not acknowledged."""
    _came: Counter[tuple[str, Place]] = field(default_factory=Counter)
    _clock_ms: int = 1_700_000_000_000

    def __post_init__(self) -> None:
        self.broker.further += [
            (PopMessage, self._pop),
            (Notification, self._notify),
            (AckMessage, self._ack),
            (BatchAckMessage, self._ack_batch),
            (ChangeInvisibleTime, self._change),
            (QueryAssignment, self._assign),
        ]

    @property
    def invisible(self) -> list[Place]:
        """What is in somebody's hands."""
        return [place for _, place in self._out]

    def store(
        self, topic: str, queue_id: int, body: bytes, properties: str = "", *, sys_flag: int = 0
    ) -> None:
        """A message comes from somewhere; whoever waits hears of it."""
        self.broker.store(topic, queue_id, body, properties, sys_flag=sys_flag)
        self._arrived()

    def lose_next_answer(self, network: SimulatedNetwork) -> None:
        """Every connection (all are of one host) ends when the next messages are about to go
        out."""

        def lose() -> None:
            self.on_pop = does_nothing
            network.reset(HOST, HOST)

        self.on_pop = lose

    def _arrived(self) -> None:
        self._held = [held for held in self._held if not held[1].peer.closed]
        for held in list(self._held):
            answer = self._look(held[0])
            if answer is not None:
                self._held.remove(held)
                held[1].answer(answer)

    # --- popping
    # ----------------------------------------------------------------------------------------------

    def _pop(self, request: PopMessage, context: RequestContext) -> Response | None:
        if request.max_msg_nums > 32:
            return refusal(ResponseCode.INVALID_PARAMETER, "more than 32")
        return self._look(request) or self._hold(
            request, context, Response(PopMessageReply(), code=ResponseCode.POLLING_TIMEOUT)
        )

    def _notify(self, request: Notification, context: RequestContext) -> Response | None:
        return self._look(request) or self._hold(
            request, context, Response(NotificationReply(has_msg=False))
        )

    def _look(self, request: PopMessage | Notification) -> Response | None:
        """The answer, if there is something."""
        if isinstance(request, Notification):
            keys = [(request.consumer_group, *queue) for queue in self._queues(request)]
            if request.order:
                keys = [
                    key
                    for key in keys
                    if not any(
                        (key[0], (*key[1:], n)) in self._out
                        for n in self._taken.get(key, (None, []))[1]
                    )
                ]
            has = any(
                self._next[key] < len(self.broker.entries[key[1:]])
                or self._taken.get(key, (None, []))[1]
                for key in keys
            )
            return Response(NotificationReply(has_msg=True)) if has else None
        taken: list[tuple[str, ReceivedMessage]] = []
        for topic, queue_id in self._queues(request):
            entries = self.broker.entries[topic, queue_id]
            key = request.consumer_group, topic, queue_id
            if request.order and self._is_blocked(key, request.attempt_id):
                continue
            while self._next[key] < len(entries) and len(taken) < request.max_msg_nums:
                message = decode_entry(entries[self._next[key]])
                self._next[key] += 1
                if _matches(request, message):
                    taken.append((topic, message))
        return self._handed_out(request, taken) if taken else None

    def _queues(self, request: PopMessage | Notification) -> list[tuple[str, int]]:
        retries = (
            [] if request.order else [(pop_retry_topic(request.topic, request.consumer_group), 0)]
        )
        ids = sorted(
            {queue_id for topic, queue_id in self.broker.entries if topic == request.topic}
        )
        wanted = [queue_id for queue_id in ids if request.queue_id in (-1, queue_id)]
        return [*retries, *((request.topic, queue_id) for queue_id in wanted)]

    def _is_blocked(self, key: tuple[str, str, int], attempt_id: str | None) -> bool:
        """In order: while something that was taken is invisible, unless its taker has not got the
        answer. Else it comes from there on."""
        group, topic, queue_id = key
        last_attempt, left = self._taken.get(key, (None, []))
        places = [(topic, queue_id, offset) for offset in left]
        same = attempt_id is not None and attempt_id == last_attempt
        if not same and any((group, place) in self._out for place in places):
            return True
        for place in places:
            if (group, place) in self._out:
                self._out.pop((group, place))[1].cancel()
            self._came[group, place] += not same
        if left:
            self._next[key] = left[0]
        return False

    def _handed_out(
        self, request: PopMessage, taken: list[tuple[str, ReceivedMessage]]
    ) -> Response:
        self.on_pop()
        now = self._now_ms()
        starts: dict[tuple[str, int], int] = {}
        offsets: dict[tuple[str, int], list[int]] = {}
        body = b""
        for topic, message in taken:
            starts.setdefault((topic, message.queue_id), message.queue_offset)
            offsets.setdefault((topic, message.queue_id), []).append(message.queue_offset)
            place = topic, message.queue_id, message.queue_offset
            self._take(request.consumer_group, place, now, request.invisible_time)
            entry = self.broker.entries[topic, message.queue_id][message.queue_offset]
            if topic.startswith(RETRY_PREFIX):
                handle = PopHandle(
                    start_offset=starts[topic, 0],
                    pop_time_ms=now,
                    invisible_ms=request.invisible_time,
                    revive_queue_id=3,
                    kind=queue_kind_of(topic),
                    broker_name=self.broker.name,
                    queue_id=0,
                    queue_offset=message.queue_offset,
                )
                entry = _entry(
                    message,
                    request.topic,
                    message.queue_offset,
                    f"{POP_CK}\x01{handle.encode()}\x02",
                )
            body += entry
        if request.order:
            for (topic, queue_id), list_ in offsets.items():
                self._taken[request.consumer_group, topic, queue_id] = (
                    request.attempt_id,
                    list(list_),
                )
        counts = [
            (
                message_key(queue_kind_of(t), q, offset),
                self._came[request.consumer_group, (t, q, offset)],
            )
            for (t, q), list_ in offsets.items()
            for offset in list_
        ]
        reply = PopMessageReply(
            pop_time=now,
            invisible_time=request.invisible_time,
            revive_qid=ORDER_REVIVE_QUEUE if request.order else 3,
            order_count_info=encode_numbers(counts) if request.order else None,
            rest_num=0,
            start_offset_info=encode_numbers(
                (queue_key(queue_kind_of(t), q), start) for (t, q), start in starts.items()
            ),
            msg_offset_info=encode_offsets(
                (queue_key(queue_kind_of(t), q), list_) for (t, q), list_ in offsets.items()
            ),
        )
        return Response(reply, body=body)

    def _hold(
        self, request: PopMessage | Notification, context: RequestContext, nothing: Response
    ) -> Response | None:
        if request.poll_time <= 0:
            return nothing

        def release() -> None:
            held = [one for one in self._held if one[1] is context]
            if held:
                self._held.remove(held[0])
                context.answer(nothing)

        self._held.append((request, context))
        asyncio.get_running_loop().call_later(request.poll_time / 1000, release)
        return None

    # --- what becomes of them
    # ----------------------------------------------------------------------------------------------

    def _take(self, group: str, place: Place, pop_time: int, invisible_ms: int) -> None:
        timer = asyncio.get_running_loop().call_later(
            invisible_ms / 1000, self._revive, group, place
        )
        self._out[group, place] = pop_time, timer

    def _revive(self, group: str, place: Place) -> None:
        del self._out[group, place]
        topic, queue_id, offset = place
        if (group, topic, queue_id) in self._taken:
            self._arrived()
            return
        message = decode_entry(self.broker.entries[topic, queue_id][offset])
        retries = topic if topic.startswith(RETRY_PREFIX) else pop_retry_topic(topic, group)
        entries = self.broker.entries[retries, 0]
        entries.append(_entry(message, retries, len(entries), "", again=1))
        self._arrived()

    def _settle(self, group: str, place: Place, pop_time: int) -> bool:
        known = self._out.get((group, place))
        if known is None or known[0] != pop_time:
            return False
        known[1].cancel()
        del self._out[group, place]
        return True

    def _acknowledge(self, group: str, place: Place, pop_time: int) -> bool:
        topic, queue_id, offset = place
        self.acked.append(place)
        _, left = self._taken.get((group, topic, queue_id), (None, []))
        settled = self._settle(group, place, pop_time)
        if offset in left:
            left.remove(offset)
            self._arrived()
            return True
        return settled

    def _ack(self, request: AckMessage, _context: RequestContext) -> Response:
        handle = PopHandle.decode(request.extra_info)
        place = request.topic, request.queue_id, request.offset
        assert handle.queue_offset == request.offset
        known = self._acknowledge(request.consumer_group, place, handle.pop_time_ms)
        return Response() if known else refusal(ResponseCode.NO_MESSAGE)

    def _ack_batch(self, _request: BatchAckMessage, context: RequestContext) -> Response:
        if not self.batches:
            return refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        body = fastjson.decode(context.body, BatchAckBody)
        assert body.broker_name == self.broker.name
        for ack in body.acks or ():
            group = ack.consumer_group or ""
            topic = real_topic(
                queue_kind_of(RETRY_PREFIX if ack.retry == "1" else ""), ack.topic or "", group
            )
            for bit in unpack_bits(ack.bits or b""):
                place = topic, ack.queue_id, ack.start_offset + bit
                self._acknowledge(group, place, ack.pop_time)
        return Response()

    def _change(self, request: ChangeInvisibleTime, _context: RequestContext) -> Response:
        handle = PopHandle.decode(request.extra_info)
        place = request.topic, request.queue_id, request.offset
        self.changed.append((place, request.invisible_time))
        if not self._settle(request.consumer_group, place, handle.pop_time_ms):
            return refusal(ResponseCode.NO_MESSAGE)
        now = handle.pop_time_ms if handle.ordered else self._now_ms()
        self._take(request.consumer_group, place, now, request.invisible_time)
        reply = ChangeInvisibleTimeReply(
            pop_time=now, invisible_time=request.invisible_time, revive_qid=handle.revive_queue_id
        )
        return Response(reply)

    def _now_ms(self) -> int:
        self._clock_ms += 1
        return self._clock_ms

    # --- who pops
    # ----------------------------------------------------------------------------------------------

    def _assign(self, _request: QueryAssignment, context: RequestContext) -> Response:
        asked = fastjson.decode(context.body, QueryAssignmentRequestBody)
        topic = asked.topic or ""
        mode = self.modes.get(
            topic, None if topic.startswith(RETRY_PREFIX) else MessageRequestMode.PULL
        )
        if mode is None:
            return Response(body=fastjson.encode(QueryAssignmentResponseBody()))
        ids = [-1] if mode is MessageRequestMode.POP else [0]
        queues = [MessageQueue(topic, self.broker.name, queue_id) for queue_id in ids]
        assignments = tuple(
            MessageQueueAssignment(message_queue=queue, mode=mode) for queue in queues
        )
        return Response(
            body=fastjson.encode(QueryAssignmentResponseBody(message_queue_assignments=assignments))
        )


def _matches(request: PopMessage, message: ReceivedMessage) -> bool:
    """As a broker sees it: hashes of tags."""
    expression = request.exp or "*"
    if request.exp_type == "SQL92":
        return compile_sql(expression)(message.properties)
    return expression == "*" or tags_code(message.tags or "") in {
        tags_code(tag.strip()) for tag in expression.split("||")
    }


def _entry(
    message: ReceivedMessage, topic: str, offset: int, added: str, *, again: int = 0
) -> bytes:
    return encode_entry(
        queue_id=0,
        flag=message.flag,
        queue_offset=offset,
        physical_offset=message.commit_log_offset,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=encode_host(*message.born_host),
        store_timestamp=message.store_timestamp,
        store_host=encode_host(HOST, 1),
        reconsume_times=message.reconsume_times + again,
        prepared_transaction_offset=0,
        body=message.stored_body,
        topic=topic.encode(),
        properties=(message.properties_text + added).encode(),
        with_crc=False,
    )
