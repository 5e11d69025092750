"""Handler of requests to recall a timer message before its delivery (370).

A recall is stored as a message of its own (TIMER_DEL_UNIQKEY) in the time slot of its target. If
the recall is stored before the time of that slot, the target is not delivered. A later recall is
refused.

Source: apache/rocketmq ``RecallMessageProcessor``. This broker accepts a recall up to the moment of
delivery, while RocketMQ refuses in the last second. This broker also refuses a recall if the target
is known not to exist.
"""

from __future__ import annotations

import asyncio
from typing import Final

from turbopump.broker.forwarding import Forwarding
from turbopump.broker.reading import ask
from turbopump.broker.schedule.timer_messages import TimerMessage, slot_ms, slots_of, timer_message
from turbopump.broker.schedule.timers import Timers
from turbopump.broker.stored import Stored
from turbopump.errors import MessageError, RoomInMakingError, StoreError
from turbopump.message import properties as names
from turbopump.message.handles import RecallHandle, delete_key
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import ReplyT
from turbopump.protocol.requests.send import RecallMessage, RecallMessageReply
from turbopump.remoting.response import Refusal, Response, refusal
from turbopump.remoting.router import Outcome, RequestContext, Router
from turbopump.store.message_store import PutResult
from turbopump.store.timers.pending_timers import TIMER_TOPIC

RECALL_TAG: Final = "_RECALL_TAG_"
ROOM_PAUSE_S: Final = 0.01
"""Seconds between two attempts to store a recall while a new file of the log is made."""
_TIME_MAX: Final = 1 << 60


class RecallHandler:
    """Handler of requests to recall a timer message before its delivery."""

    def __init__(self, stored: Stored, forwarding: Forwarding, timers: Timers) -> None:
        self._config = stored.config
        self._store = stored.store
        self._turns = stored.turns
        self._topics = stored.tables.topics
        self._timers = timers
        self._clock = stored.clock
        self._forwarding = forwarding

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(RecallMessage, self.recall)

    def recall(
        self, request: RecallMessage, context: RequestContext
    ) -> Outcome[RecallMessageReply]:
        """Recall the timer message that a handle names."""
        if not self._config.recall_message_enable or not self._config.timer_wheel_enable:
            return self._refuse(
                ResponseCode.NO_PERMISSION,
                "operation is forbidden: set recallMessageEnable=true and timerWheelEnable=true "
                "on the broker",
            )
        if self._topics.find(request.topic) is None:
            return self._refuse(
                ResponseCode.TOPIC_NOT_EXIST, f"the topic[{request.topic}] not exist"
            )
        try:
            handle = RecallHandle.decode(request.recall_handle or "")
        except MessageError as error:
            return self._refuse(ResponseCode.ILLEGAL_OPERATION, str(error))
        if handle.topic != request.topic:
            return self._refuse(
                ResponseCode.ILLEGAL_OPERATION,
                f"topic not match: the handle is of a message of topic {handle.topic[:130]}",
            )
        if handle.broker_name != self._config.broker_name:
            return self._refuse(
                ResponseCode.ILLEGAL_OPERATION,
                "broker service not available: the message waits on broker "
                f"{handle.broker_name[:100]}, and this is {self._config.broker_name}",
            )
        return self._recall_timer(request, handle, context.peer.host_pair)

    async def _recall_timer(
        self, request: RecallMessage, handle: RecallHandle, born_host: tuple[str, int]
    ) -> Response[RecallMessageReply]:
        if (
            handle.time_ms <= 0
            or handle.time_ms - self._clock.now_ms() >= self._config.timer_max_delay_sec * 1000
        ):
            return self._refuse(
                ResponseCode.ILLEGAL_OPERATION,
                f"timestamp invalid: {handle.time_text[:40]} is not within "
                "timerMaxDelaySec of the clock of the broker",
            )
        out = handle.time_ms - 1
        if out % 100:  # a time within the slot
            out = slot_ms(handle.time_ms, self._config.timer_precision_ms)
        due, until = slots_of(out, None, self._config.timer_precision_ms)
        if not self._timers.may_recall(until):
            return self._too_late(until)
        try:
            found = await self._find_timer(handle, out)
            if isinstance(found, Response):
                return found
            if found is not None:
                out = found.out
                due = found.due
            refused = await self._store_recall(request, handle, out, due, born_host)
        except (OSError, StoreError) as error:
            return self._refuse(ResponseCode.SYSTEM_ERROR, f"execute error: {error}")
        return refused or self._answer(Response(RecallMessageReply(msg_id=handle.unique_id)))

    async def _find_timer(self, handle: RecallHandle, out: int) -> TimerMessage | Refusal | None:
        """Find a timer message through the index, by the unique id in its handle.

        ``out`` is the time slot of the message. Return a refusal if there is no such message, or
        None if the index cannot tell.
        """
        lookup = self._store.lookup
        if lookup.no_index_because is not None:
            return None
        steps = lookup.by_key(TIMER_TOPIC, handle.unique_id, 0, _TIME_MAX, unique=True)
        found = await ask(self._store.cold_reads, steps, self._turns)
        if found.errors or found.damaged:
            return None
        for entry in found.found:
            timer = timer_message(entry.message, self._config.timer_precision_ms)
            if isinstance(timer, TimerMessage) and (timer.topic, timer.out, timer.recalled) == (
                handle.topic,
                out,
                None,
            ):
                return timer
        return self._refuse(
            ResponseCode.ILLEGAL_OPERATION,
            f"no message {handle.unique_id[:100]} of topic {handle.topic[:130]} waits here for "
            f"{handle.time_text}: is the handle that of the send, unchanged?",
        )

    async def _store_recall(
        self,
        request: RecallMessage,
        handle: RecallHandle,
        out: int,
        due: int,
        born_host: tuple[str, int],
    ) -> Response[RecallMessageReply] | None:
        """Store a recall. Return None, or a refusal for a late recall."""
        while True:
            if not self._timers.may_recall(due):
                return self._too_late(due)
            try:
                # in the turn in which it was not too late
                stored = self._put_recall(request, handle, out, born_host)
                break
            except RoomInMakingError:
                await asyncio.sleep(ROOM_PAUSE_S)
        await self._forwarding.confirmed(stored)
        return None

    def _put_recall(
        self, request: RecallMessage, handle: RecallHandle, out: int, born_host: tuple[str, int]
    ) -> PutResult:
        now = self._clock.now_ms()
        properties = {
            names.TIMER_DELETE_UNIQ_KEY: delete_key(handle.topic, handle.unique_id),
            names.UNIQ_KEY: handle.unique_id,
            names.TIMER_DELIVER_MS: handle.time_text,
            "BORN_TIMESTAMP": str(now),
            names.TAGS: RECALL_TAG,
            names.PRODUCER_GROUP: request.producer_group or "",
            names.TIMER_OUT_MS: str(out),
            names.REAL_TOPIC: handle.topic,
            names.REAL_QUEUE_ID: "0",
        }
        text = names.encode_properties({name: value for name, value in properties.items() if value})
        return self._forwarding.put_now(TIMER_TOPIC, 0, b"0", text, 0, now, born_host, own=False)

    def _too_late(self, due: int) -> Refusal:
        at = due + self._config.timer_precision_ms
        return self._refuse(
            ResponseCode.ILLEGAL_OPERATION,
            f"timestamp invalid: the message was due at {at} ms since 1970, and the clock "
            f"of the broker shows {self._clock.now_ms()}",
        )

    def _refuse(self, code: ResponseCode, why: str) -> Refusal:
        return self._answer(refusal(code, f"recall failed, {why}"))

    def _answer(self, response: Response[ReplyT]) -> Response[ReplyT]:
        response.ext = {"MSG_REGION": self._config.region_id}
        return response
