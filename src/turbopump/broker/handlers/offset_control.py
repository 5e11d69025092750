"""Handler of requests by an operator to reset (222), copy (314) and compare (308) consumer offsets.

A reset is recorded in ``broker/offsets.py`` and sent to each reader with the answer to its next
pull, which comes at once. Readers that keep their own offsets (broadcasting) are sent the new
offsets with 220. With ``useServerSideResetOffset=false`` all readers are. Source: apache/rocketmq
``AdminBrokerProcessor.resetOffset``, ``Broker2Client.resetOffset``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from turbopump.broker.held_pulls import HeldPulls
from turbopump.broker.reading import answer
from turbopump.broker.saved_table import not_saved
from turbopump.broker.stored import Stored
from turbopump.broker.topics import if_served
from turbopump.config.setting import LONG_MAX
from turbopump.message.message import MessageQueue
from turbopump.message.rules import group_fault
from turbopump.protocol import fastjson
from turbopump.protocol.codes import LanguageCode, ResponseCode
from turbopump.protocol.command import encode_command, request_command
from turbopump.protocol.requests.clients import MessageModel
from turbopump.protocol.requests.offsets import (
    CloneGroupOffset,
    QueryCorrectionOffset,
    QueueOffset,
    ResetConsumerOffset,
    ResetOffset,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from turbopump.protocol.requests.statistics import QueryCorrectionOffsetBody
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import Outcome, RequestContext, Router
from turbopump.remoting.turns import Steps
from turbopump.store.log.cold_reads import ReadSteps

log = logging.getLogger(__name__)

QUEUES_LOGGED: Final = 100


@dataclass(eq=False)
class OffsetControlHandler:
    """Handler of requests by an operator to reset, copy and compare consumer offsets."""

    stored: Stored
    held: HeldPulls

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(ResetOffset, if_served(self.stored.tables.topics, self.reset))
        router.add(CloneGroupOffset, self.clone)
        router.add(QueryCorrectionOffset, self.correction)

    def reset(self, request: ResetOffset, context: RequestContext) -> Outcome[ResetOffsetBody]:
        """Reset the offsets of a consumer group in a topic. Return the new offset of each queue."""
        topic = self.stored.tables.topics.find(request.topic)
        if topic is None:
            return refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {request.topic} does not exist")
        if self.stored.tables.groups.get(request.group) is None:
            return refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {request.group} does not exist"
            )
        if request.queue_id >= topic.read_queue_nums:
            remark = (
                f"{request.topic} has {topic.read_queue_nums} readable queues here, none "
                f"with the id {request.queue_id}"
            )
            return refusal(ResponseCode.SYSTEM_ERROR, remark)
        if request.queue_id >= 0 and request.offset is not None and request.offset != -1:
            first = self.stored.store.min_offset(request.topic, request.queue_id)
            end = self.stored.store.max_offset(request.topic, request.queue_id)
            if not first <= request.offset <= end:
                remark = (
                    f"Target offset {request.offset} not in consume queue range [{first}-{end}]"
                )
                return refusal(ResponseCode.SYSTEM_ERROR, remark)
            named = {request.queue_id: request.offset}
            return self._apply_reset(request, named, context, forced=True)
        queue_ids = [request.queue_id] if request.queue_id >= 0 else range(topic.read_queue_nums)
        return answer(
            self.stored.store.cold_reads,
            self._offsets_at_time(request, queue_ids),
            lambda found: self._apply_reset(request, found, context),
            context,
        )

    def _offsets_at_time(
        self, request: ResetOffset, queue_ids: Sequence[int]
    ) -> ReadSteps[dict[int, int]]:
        """For each queue, return its offset at the requested time.

        For a time after the last message of a queue, the offset is the end of the queue.
        """
        found: dict[int, int] = {}
        for queue_id in queue_ids:
            yield []
            if request.timestamp < 0:
                found[queue_id] = self.stored.store.max_offset(request.topic, queue_id)
            else:
                found[queue_id] = yield from self.stored.store.lookup.offset_in_time(
                    request.topic, queue_id, request.timestamp
                )
        return found

    async def _apply_reset(
        self,
        request: ResetOffset,
        wanted: dict[int, int],
        context: RequestContext,
        *,
        forced: bool = False,
    ) -> Response[ResetOffsetBody]:
        running = self.stored.clients.groups.get(request.group)
        broadcast = running is not None and running.message_model == MessageModel.BROADCASTING
        forced = forced or bool(request.force)
        steps = self._set_offsets(request, wanted, broadcast=broadcast, forced=forced)
        now = await context.in_turns(steps)
        named = list(now.items())[:QUEUES_LOGGED]
        log.info(
            "offsets reset group=%s topic=%s by=%s queues=%d offsets=%s",
            request.group,
            request.topic,
            context.peer.peer,
            len(now),
            " ".join(f"{queue.queue_id}:{offset}" for queue, offset in named)
            + (" …" if len(now) > len(named) else ""),
        )
        if broadcast or not self.stored.config.use_server_side_reset_offset:
            await context.in_turns(self._push_offsets(request, now))
        self.held.expire_topic(request.topic)
        return await not_saved(self.stored.tables.offsets) or Response(
            ResetOffsetBody(offset_table=now)
        )

    def _set_offsets(
        self, request: ResetOffset, wanted: dict[int, int], *, broadcast: bool, forced: bool
    ) -> Steps[dict[MessageQueue, int]]:
        topic = request.topic
        now: dict[MessageQueue, int] = {}
        for queue_id, offset in wanted.items():
            stands = self.stored.tables.offsets.find(request.group, topic, queue_id)
            if not forced and stands is not None and stands <= offset:
                offset = stands
            elif not broadcast:
                self.stored.tables.offsets.reset(request.group, topic, queue_id, offset)
            now[MessageQueue(topic, self.stored.config.broker_name, queue_id)] = offset
            yield
        return now

    def _push_offsets(self, request: ResetOffset, now: dict[MessageQueue, int]) -> Steps[None]:
        group = self.stored.clients.groups.get(request.group)
        notice = ResetConsumerOffset(
            group=request.group,
            topic=request.topic,
            timestamp=request.timestamp,
            force=request.force,
        )
        body = yield from fastjson.encode_steps(ResetOffsetBody(offset_table=now))
        offsets = [
            QueueOffset(
                topic=queue.topic,
                broker_name=queue.broker_name,
                queue_id=queue.queue_id,
                offset=offset,
            )
            for queue, offset in now.items()
        ]
        cpp_body = yield from fastjson.encode_steps(ResetOffsetBodyForC(offset_table=offsets))
        for peer, member in list(group.members.items()) if group is not None else ():
            told = cpp_body if member.language == LanguageCode.CPP else body
            command = request_command(notice, told, opaque=peer.calls.next_opaque, oneway=True)
            peer.send_frame(encode_command(command))
            yield

    async def clone(self, request: CloneGroupOffset, context: RequestContext) -> Response[None]:
        """Copy the offsets of one consumer group to another group. The other group need not exist.

        RocketMQ 5.3.3 copies nothing if the request names no topic.
        """
        fault = group_fault(request.dest_group)
        if fault is not None:
            return refusal(ResponseCode.INVALID_PARAMETER, fault)
        running = self.stored.clients.groups.get(request.src_group)
        for topic in (
            [request.topic]
            if request.topic
            else self.stored.tables.offsets.topics_of(request.src_group)
        ):
            if self.stored.tables.topics.find(topic) is None:
                continue
            if (
                not request.offline
                and running is not None
                and running.subscriptions
                and topic not in running.subscriptions
            ):
                continue
            if await context.in_turns(
                self.stored.tables.offsets.clone(request.src_group, request.dest_group, topic)
            ):
                log.info(
                    "offsets cloned from=%s to=%s topic=%s by=%s",
                    request.src_group,
                    request.dest_group,
                    topic,
                    context.peer.peer,
                )
                self.held.expire_topic(topic)
        return await not_saved(self.stored.tables.offsets) or Response()

    def correction(
        self, request: QueryCorrectionOffset, _context: RequestContext
    ) -> Steps[Response[QueryCorrectionOffsetBody]]:
        """For each queue of a topic, return the lowest offset among the other consumer groups.

        An operator compares these offsets with the offsets of one group. If that group is behind
        all others in a queue, the offset is the largest 64-bit number.
        """
        without = frozenset((request.filter_groups or "").split(","))
        lowest = yield from self.stored.tables.offsets.lowest(request.topic, without)
        for queue_id, offset in self.stored.tables.offsets.of_group(
            request.compare_group, request.topic
        ).items():
            if lowest.get(queue_id, offset) > offset:
                lowest[queue_id] = LONG_MAX
        return Response(QueryCorrectionOffsetBody(correction_offsets=lowest))
