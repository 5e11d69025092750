"""Handler of queries by key (12) or log offset (33), and about the age (32) or units (321) of a
queue.

Source: apache/rocketmq ``QueryMessageProcessor``, ``AdminBrokerProcessor.getEarliestMsgStoretime``.
RocketMQ returns everything that the index points to, hash collisions included. This broker returns
only messages that have the key and a correct CRC.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from turbopump.broker.log_repair import LogRepair, damaged_ranges
from turbopump.broker.reading import answer, entry_for
from turbopump.broker.stored import Stored
from turbopump.broker.topics import if_served
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.pull import (
    EarliestStoreTimeReply,
    GetEarliestMsgStoreTime,
    QueryMessage,
    QueryMessageReply,
    ViewMessageById,
)
from turbopump.protocol.requests.statistics import (
    ConsumeQueueData,
    QueryConsumeQueue,
    QueryConsumeQueueResponseBody,
)
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import Outcome, RequestContext, Router
from turbopump.repeated_line import RepeatedLine
from turbopump.store.queues.consume_queue import EXTENDED_TAGS_MAX
from turbopump.store.queues.lookup import ByKey, StoredEntry, StoredUnits

UNITS_MAX: Final = 4096
"""Maximum number of units in one answer."""

log = logging.getLogger(__name__)
_damaged = RepeatedLine(
    log, logging.ERROR, "damaged message left out of an answer offset=%d cause=%s"
)
_index_unreadable = RepeatedLine(
    log,
    logging.ERROR,
    "an index file cannot be read, messages may be missing from answers by key cause=%s",
)


@dataclass(eq=False)
class QueriesHandler:
    """Handler of queries for single messages and for units of a queue."""

    stored: Stored
    repair: LogRepair

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(QueryMessage, self.by_key)
        router.add(ViewMessageById, self.by_offset)
        router.add(GetEarliestMsgStoreTime, if_served(self.stored.tables.topics, self.earliest))
        router.add(QueryConsumeQueue, if_served(self.stored.tables.topics, self.units))

    def by_key(self, request: QueryMessage, context: RequestContext) -> Outcome[QueryMessageReply]:
        """Return the newest messages that have a key. The oldest of them comes first.

        Without such a message the answer has code 22.
        """
        unique = request.unique_key is True
        wanted = self.stored.config.default_query_max_num if unique else request.max_num
        question = self.stored.store.lookup.by_key(
            request.topic,
            request.key,
            request.begin_timestamp,
            request.end_timestamp,
            min(wanted, self.stored.config.max_msgs_num_batch),
            unique=unique,
        )

        def respond(answer: ByKey) -> Response[QueryMessageReply]:
            self.repair.fetch(damaged_ranges(answer.damaged))
            for entry in answer.damaged:
                _damaged(entry.offset, entry.fault, kind=entry.offset)
            for error in answer.errors:
                _index_unreadable(error)
            offset, timestamp = self.stored.store.lookup.index_end
            header = QueryMessageReply(
                index_last_update_timestamp=timestamp, index_last_update_phyoffset=offset
            )
            if answer.found:
                return Response(
                    header, body=b"".join(entry.data for entry in reversed(answer.found))
                )
            if answer.errors:
                why = answer.errors[0].strerror or answer.errors[0]
                return refusal(
                    ResponseCode.SYSTEM_ERROR,
                    f"the index cannot be read now ({why}); check the broker's disk",
                )
            remark = "can not find message, maybe time range not correct"
            if answer.damaged:
                remark += (
                    f"; {len(answer.damaged)} messages that may be meant are damaged in "
                    "the commit log"
                )
            elif self.stored.store.lookup.no_index_because is not None:
                remark += f"; {self.stored.store.lookup.no_index_because}"
            return Response(header, code=ResponseCode.QUERY_NOT_FOUND, remark=remark)

        return answer(self.stored.store.cold_reads, question, respond, context)

    def by_offset(self, request: ViewMessageById, context: RequestContext) -> Outcome[None]:
        """Return the message at an offset of the commit log."""

        def respond(entry: StoredEntry | None) -> Response[None]:
            if entry is not None and entry.fault is None:
                return context.refused(entry.message.topic) or Response(body=entry.data)
            remark = f"can not find message by the offset, {request.offset}"
            if entry is not None:
                self.repair.fetch(damaged_ranges([entry]))
                _damaged(request.offset, entry.fault, kind=request.offset)
                remark += f": it is damaged ({entry.fault})"
            return refusal(ResponseCode.SYSTEM_ERROR, remark)

        return answer(
            self.stored.store.cold_reads,
            entry_for(context, self.stored.store.lookup, request.offset),
            respond,
            context,
        )

    def earliest(
        self, request: GetEarliestMsgStoreTime, context: RequestContext
    ) -> Outcome[EarliestStoreTimeReply]:
        question = self.stored.store.lookup.earliest_time(request.topic, request.queue_id)
        return answer(
            self.stored.store.cold_reads,
            question,
            lambda time: Response(EarliestStoreTimeReply(timestamp=time)),
            context,
        )

    def units(
        self, request: QueryConsumeQueue, context: RequestContext
    ) -> Outcome[QueryConsumeQueueResponseBody]:
        """Return the stored units of a queue. Add the subscription of a group to the topic."""
        question = self.stored.store.lookup.units(
            request.topic, request.queue_id, request.index, min(request.count, UNITS_MAX)
        )

        def respond(found: StoredUnits | None) -> Response[QueryConsumeQueueResponseBody]:
            if found is None:
                remark = f"{request.queue_id}@{request.topic} is not exist!"
                return refusal(ResponseCode.SYSTEM_ERROR, remark)
            body = QueryConsumeQueueResponseBody(
                min_queue_index=found.min_index, max_queue_index=found.max_index
            )
            self._add_subscription(body, request)
            if found.units is None:  # RocketMQ: without a body, at which mqadmin fails
                what = f"Index {request.index} of {request.queue_id}@{request.topic}"
                return Response(body, remark=f"{what} is not exist!")
            body.queue_data = [_unit_data(*unit) for unit in found.units]
            return Response(body)

        return answer(self.stored.store.cold_reads, question, respond, context)

    def _add_subscription(
        self, body: QueryConsumeQueueResponseBody, request: QueryConsumeQueue
    ) -> None:
        name = request.consumer_group
        if name is None:
            return
        group = self.stored.clients.groups.get(name)
        found = group.subscriptions.get(request.topic) if group is not None else None
        if found is None:
            body.filter_data = f"{name}@{request.topic} is not online!"
        else:
            body.subscription_data = found.data
            body.filter_data = "null"


def _unit_data(offset: int, size: int, tags_code: int) -> ConsumeQueueData:
    unit = ConsumeQueueData(physic_offset=offset, physic_size=size, tags_code=tags_code)
    if tags_code <= EXTENDED_TAGS_MAX:
        unit.msg = f"Cq extend not exist!addr: {tags_code}"
    return unit
