"""Handler of requests to pull messages from a queue (11 and 361).

The order of checks and the codes are those of apache/rocketmq ``PullMessageProcessor``. A pull that
finds no message and may be suspended waits until its queue grows (``held_pulls.py``). If the filter
of a waiting pull rejects a message, the pull continues after it without an answer to the client.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final

from turbopump.broker.cold_flow import ColdFlow
from turbopump.broker.held_pulls import HeldPulls
from turbopump.broker.log_repair import LogRepair, damaged_ranges
from turbopump.broker.read_checks import EVERYTHING, PullChecks, PullFilters
from turbopump.broker.reading import REBUILD_WAIT_S, answer, when_rebuilt
from turbopump.broker.stored import Stored
from turbopump.message.entry import physical_offset_of
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.frame import JSON, Frame, frame_head
from turbopump.protocol.requests.clients import ConsumeType
from turbopump.protocol.requests.pull import (
    LitePullMessage,
    PullMessage,
    PullMessageReply,
    PullSysFlag,
)
from turbopump.remoting.response import Response, encode_response, refusal
from turbopump.remoting.router import HELD, Outcome, RequestContext, Router
from turbopump.repeated_line import RepeatedLine
from turbopump.store.queues.checked_entries import REBUILDING
from turbopump.store.queues.read_result import GetResult, GetStatus

SUSPEND_MAX_S: Final = 120.0
"""Maximum seconds for which a pull waits for messages."""

COLD_HOLD_S: Final = 3.0
"""Seconds for which a pull of cold data is delayed (``coldHoldTimeoutMillis``). At most
COLD_HELD_MAX pulls are delayed."""
COLD_HELD_MAX: Final = 10_000

log = logging.getLogger(__name__)
_unreadable = RepeatedLine(
    log, logging.ERROR, "pull cannot be answered group=%s topic=%s queue=%d offset=%d cause=%s"
)
_damaged = RepeatedLine(
    log, logging.ERROR, "damaged message topic=%s queue=%d offset=%d log_offset=%d cause=%s"
)
_passed_over = RepeatedLine(
    log,
    logging.WARNING,
    "damaged messages passed over group=%s topic=%s queue=%d from=%d to=%d count=%d",
)

_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_ONLY_A_MASTER_KNOWS: Final = (
    GetStatus.OFFSET_OVERFLOW_BADLY,
    GetStatus.OFFSET_TOO_SMALL,
    GetStatus.NO_MATCHED_LOGIC_QUEUE,
    GetStatus.NO_MESSAGE_IN_QUEUE,
)
"""Results that a slave cannot judge, because its log may end before the master's, or start after
it."""
_NOTHING: Final = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)


_DECODED: Final = Frame(JSON, b"", b"")
"""Replacement for the frame of a waiting pull, which saves half a KiB of memory."""

_BUSY: Final = refusal(
    ResponseCode.FLOW_CONTROL, "too many reads wait for the broker's disk; ask again in a moment"
)


class _Pull:
    """Pull request in progress. Its queue is being read, or the request waits for messages.

    - ``deadline``: the end of the waiting time, as a time of the event loop in seconds. None
      until a read has found nothing.
    - ``is_cold``: True if the bytes of the next read count as cold data.
    - ``rebuilt_by``: the end of the wait for the rebuild of a damaged queue, as a time of the
      event loop in seconds. After that the client gets an error and repeats the pull. None
      until a read meets damage.
    - ``revocations``: the number of ``HeldPulls.revocations`` when the pull arrived.
    """

    __slots__ = (
        "context",
        "deadline",
        "handler",
        "is_cold",
        "offset",
        "rebuilt_by",
        "request",
        "revocations",
        "wants",
    )

    def __init__(
        self,
        handler: PullHandler,
        request: PullMessage,
        context: RequestContext,
        wants: PullFilters,
    ) -> None:
        self.handler = handler
        self.request = request
        self.context = context
        self.wants = wants
        self.offset = request.queue_offset
        self.deadline: float | None = None
        self.is_cold = False
        self.rebuilt_by: float | None = None
        self.revocations = handler.held.revocations

    def __call__(self, expired: bool) -> None:
        """Read the queue again. The queue has grown, or the waiting time is over."""
        if expired:
            self.deadline = -inf
        self.handler.read_held(self)


class PullHandler:
    """Handler of requests to pull messages from a queue."""

    def __init__(self, stored: Stored, held: HeldPulls, cold: ColdFlow, repair: LogRepair) -> None:
        self.config = stored.config
        self.store = stored.store
        self.offsets = stored.tables.offsets
        self.clients = stored.clients
        self.held = held
        self.statistics = stored.statistics
        self.cold = cold
        self.repair = repair
        self._groups = stored.tables.groups
        self._checks = PullChecks(self.config, stored.tables.topics, self._groups, self.clients)
        self._is_slave = self.config.is_slave
        self._cold_held = 0

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(PullMessage, self.pull)
        router.add(LitePullMessage, self.pull)

    def pull(self, request: PullMessage, context: RequestContext) -> Outcome[PullMessageReply]:
        """Return messages of a queue, or let the pull wait for them."""
        refused = self._checks.refusal(request)
        if refused is not None:
            return refused
        wants = self._checks.wants(request)
        if isinstance(wants, Response):
            return wants
        group = request.consumer_group
        topic = request.topic
        queue_id = request.queue_id
        if self.offsets.any_reset:
            offset = self.offsets.reset_for(
                group, topic, queue_id, request.queue_offset, context.peer
            )
            if offset is not None:
                return self._moved(request, offset)
        if request.sys_flag & PullSysFlag.COMMIT_OFFSET:
            self.offsets.commit(group, topic, queue_id, request.commit_offset)
        pull = _Pull(self, request, context, wants)
        if self.cold.enabled and not self.store.is_hot(topic, queue_id, pull.offset):
            return self._pull_cold(pull)
        return self._read(pull)

    def _pull_cold(self, pull: _Pull) -> Outcome[PullMessageReply]:
        """Read data that may not be in memory. Each group has a limit on such reads.

        Over the limit a push consumer is refused, and a pull consumer gets one message after
        COLD_HOLD_S seconds.
        """
        pull.is_cold = True
        if not self.cold.must_wait(pull.request.consumer_group):
            return self._read(pull)
        group = self.clients.groups.get(pull.request.consumer_group)
        if group is not None and group.consume_type is ConsumeType.CONSUME_PASSIVELY:
            remark = "This consumer group is reading cold data. It has been flow control"
            return refusal(ResponseCode.SYSTEM_BUSY, remark)
        pull.request.max_msg_nums = 1
        if self._cold_held >= COLD_HELD_MAX:
            return self._read(pull)
        self._cold_held += 1
        asyncio.get_running_loop().call_later(COLD_HOLD_S, self._read_held_cold, pull)
        return HELD

    def _read_held_cold(self, pull: _Pull) -> None:
        self._cold_held -= 1
        self.read_later(pull)

    def _read(self, pull: _Pull) -> Outcome[PullMessageReply]:
        request = pull.request
        wants = pull.wants
        if wants is EVERYTHING:
            result = self.store.reader.at_once(
                request.topic,
                request.queue_id,
                pull.offset,
                request.max_msg_nums,
                request.max_msg_bytes,
            )
            if result is not None:
                return self._answer_or_hold(pull, result)
        steps = self.store.reader.steps(
            request.topic,
            request.queue_id,
            pull.offset,
            request.max_msg_nums,
            wants.accept,
            wants.matches,
            request.max_msg_bytes,
        )
        return answer(
            self.store.cold_reads,
            steps,
            partial(self._answer_or_hold, pull),
            pull.context,
            busy=_BUSY,
            again=partial(self.read_later, pull),
        )

    def _answer_or_hold(self, pull: _Pull, result: GetResult) -> Outcome[PullMessageReply]:
        # Called after each read of this pull: the first one, and each one after it was woken.
        #
        # Held is only who can gain by it. An offset outside of the queue is answered at once, for
        # the client must correct it. A pull that was woken and found nothing that it wants goes on
        # behind what it has looked at (``next_offset``): to answer would cost a round trip and
        # bring nothing. A gap is answered, so that the client's offset passes it.
        #
        # The read may have taken a while (from the disk), and the queue may have grown meanwhile.
        # To hold would then wait for a message that is there: read again. That ends, because each
        # such read begins behind the last one, or is the second one of a pull.
        #
        # If permissions were reduced after this pull arrived, it is answered without messages. The
        # next pull is authorised again.
        request = pull.request
        offset = pull.offset
        deadline = pull.deadline
        if pull.revocations != self.held.revocations:
            return self._answer(pull, offset, _nothing_of(result, offset))
        if pull.is_cold:
            pull.is_cold = False
            self.cold.note_read(request.consumer_group, len(result.data))
        if result.damages and self.repair.fetch(
            damaged_ranges(result.damages), partial(self.read_later, pull)
        ):
            return HELD
        if result.unreadable is REBUILDING:
            if pull.rebuilt_by is None:
                pull.rebuilt_by = asyncio.get_running_loop().time() + REBUILD_WAIT_S
            if when_rebuilt(self.store, pull.rebuilt_by, partial(self.read_later, pull)):
                return HELD
        if result.count or result.unreadable is not None or pull.context.peer.closed:
            return self._answer(pull, offset, result)
        beyond = self._is_slave and result.status in _ONLY_A_MASTER_KNOWS
        if beyond:
            result = replace(result, next_offset=offset)
        code = self._code_of(result, offset)
        now = pull.context.peer.now()
        if deadline is None:  # its first read
            may_gain = code == ResponseCode.PULL_NOT_FOUND or beyond
            if not may_gain or not request.sys_flag & PullSysFlag.SUSPEND:
                return self._answer(pull, offset, result)
            pull.deadline = now + self._suspend_seconds(request)
        elif deadline <= now or code not in _NOTHING or result.gaps:
            return self._answer(pull, offset, result)
        else:
            pull.offset = result.next_offset
        queue = self.store.queues.find_or_make(request.topic, request.queue_id)
        if queue.end.value <= pull.offset:
            pull.context.frame = _DECODED
            pull.context.suspended = True
            assert pull.deadline is not None
            self.held.hold_pull(queue, pull.offset, pull.deadline - now, pull, pull.context.served)
            return HELD
        if deadline is None or pull.offset > offset:
            return self._read(pull)  # the queue grew since it was read, or none of it matched
        return self._answer(pull, offset, result)

    def read_held(self, pull: _Pull) -> None:
        """Read the queue again for a pull that has waited."""
        if not pull.request.sys_flag & PullSysFlag.SUBSCRIPTION:
            # The group may want others by now. RocketMQ: ``executeRequestWhenWakeup`` asks anew.
            wants = self._checks.wants(pull.request)
            if not isinstance(wants, Response):
                pull.wants = wants
        self.read_later(pull)

    def read_later(self, pull: _Pull) -> None:
        """Read the queue for a pull, after the client has received earlier answers."""
        served = pull.context.served
        if served.wire.closed:
            return
        if served.full:
            served.when_room(partial(self.read_later, pull))
            return
        pull.context.settle_call(self._read, pull)

    def _answer(self, pull: _Pull, offset: int, result: GetResult) -> Outcome[PullMessageReply]:
        """Return the answer to a pull. Log the messages that could not be read."""
        request = pull.request
        if result.unreadable is not None:
            _unreadable(
                request.consumer_group,
                request.topic,
                request.queue_id,
                offset,
                result.unreadable,
                kind=(request.topic, request.queue_id),
            )
            return refusal(ResponseCode.SYSTEM_ERROR, result.unreadable)
        if result.count:
            self.statistics.count_pull(
                request.consumer_group,
                request.topic,
                request.queue_id,
                result.next_offset,
                result.count,
                len(result.data),
            )
        else:
            self.statistics.missed += 1
        for damage in result.damages:
            _damaged(
                request.topic,
                request.queue_id,
                damage.queue_offset,
                damage.offset,
                damage.fault,
                kind=damage.offset,
            )
        if result.gaps:
            _passed_over(
                request.consumer_group,
                request.topic,
                request.queue_id,
                offset,
                result.next_offset,
                result.gaps,
                kind=(request.consumer_group, request.topic, request.queue_id, offset),
            )
        if result.status is not GetStatus.FOUND:
            return _response(result, self._code_of(result, offset))
        if self.config.slave_read_enable:
            return _response(result, ResponseCode.SUCCESS, self._suggested(request, result))
        return _found(pull.context.opaque, result)

    def _code_of(self, result: GetResult, offset: int) -> int:
        """Return the response code for the result of a read.

        A slave does not correct an offset outside of its queue, because the master may have the
        message. RocketMQ does the same, unless ``offsetCheckInSlave`` is set.
        """
        if self._is_slave and result.status in _ONLY_A_MASTER_KNOWS:
            return ResponseCode.PULL_RETRY_IMMEDIATELY
        if result.status in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE):
            if offset != 0:
                return ResponseCode.PULL_OFFSET_MOVED
            return ResponseCode.PULL_NOT_FOUND
        return _CODES[result.status]

    def _suggested(self, request: PullMessage, result: GetResult) -> int:
        """Return the id of a broker. The client should send its next pull there.

        The id is that of another broker if the next messages may not be in memory here
        (accessMessageInMemoryMaxRatio). RocketMQ: ``isSuggestPullingFromSlave``.
        """
        read_at = physical_offset_of(result.data)  # where the first message lies in the log
        group = self._groups.find_or_create(request.consumer_group)
        if group is None:
            return 0
        behind = self.store.log.end - read_at > self.store.hot_size
        if behind:
            return group.which_broker_when_consume_slowly
        return group.broker_id

    def _moved(self, request: PullMessage, offset: int) -> Response[PullMessageReply]:
        """Return the answer that redirects a pull after an operator's reset. ``offset`` is the
        reset offset.

        RocketMQ: ``GetMessageStatus.OFFSET_RESET``.
        """
        first = self.store.min_offset(request.topic, request.queue_id)
        end = self.store.max_offset(request.topic, request.queue_id)
        reply = PullMessageReply(next_begin_offset=offset, min_offset=first, max_offset=end)
        return Response(reply, code=ResponseCode.PULL_OFFSET_MOVED, remark="OFFSET_RESET")

    def _suspend_seconds(self, request: PullMessage) -> float:
        if self.config.long_polling_enable:
            ms = request.suspend_timeout_millis
        else:
            ms = self.config.short_polling_time_mills
        return min(max(ms, 0) / 1000, SUSPEND_MAX_S)


def _nothing_of(result: GetResult, offset: int) -> GetResult:
    """Return the empty result of a read at ``offset``. The result claims that the queue ends
    there."""
    return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, result.min_offset, result.max_offset)


def _response(result: GetResult, code: int, suggested: int = 0) -> Response[PullMessageReply]:
    header = PullMessageReply(
        suggest_which_broker_id=suggested,
        next_begin_offset=result.next_offset,
        min_offset=result.min_offset,
        max_offset=result.max_offset,
        topic_sys_flag=0,
        group_sys_flag=0,
    )
    return Response(header, code=code, remark=result.status.value, body=result.data)


_HEADER: Final = re.split(
    "[2-5]{10}",
    encode_response(
        5_555_555_555,
        _response(
            GetResult(GetStatus.FOUND, 2_222_222_222, 3_333_333_333, 4_444_444_444),
            ResponseCode.SUCCESS,
        ),
    )[8:].decode(),
)
"""Constant parts of the header of an answer with messages. The numbers stand between them."""


def _found(opaque: int, result: GetResult) -> bytes:
    """Return the encoded answer to a pull that has found messages."""
    begin, low, high, ident, end = _HEADER
    header = (
        f"{begin}{result.next_offset}{low}{result.min_offset}{high}{result.max_offset}"
        f"{ident}{opaque}{end}"
    ).encode()
    data = result.data
    return b"".join((frame_head(len(header), len(data)), header, data))
