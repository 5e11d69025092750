"""Answers to 12 (messages by key or unique id), 33 (a message by its offset in the log) and 32 (the
age of a queue).

Source: apache/rocketmq ``QueryMessageProcessor``, ``AdminBrokerProcessor.getEarliestMsgStoretime``.
Where RocketMQ gives whatever the index points to, collisions of hashes included, we give messages
that have the key and whose CRC is right.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from turbopump.broker.reading import answer
from turbopump.config.broker_config import BrokerConfig
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.pull import (
    EarliestStoreTimeReply,
    GetEarliestMsgStoreTime,
    QueryMessage,
    QueryMessageReply,
    ViewMessageById,
)
from turbopump.remoting.router import Outcome, RequestContext, Response, Router, refusal
from turbopump.repeated_line import RepeatedLine
from turbopump.store.log.cold_reads import ColdReads
from turbopump.store.queues.lookup import ByKey, Lookup, StoredEntry

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
    """Finds single messages."""

    config: BrokerConfig
    lookup: Lookup
    reads: ColdReads

    def add_to(self, router: Router) -> None:
        """Answer these requests."""
        router.add(QueryMessage, self.by_key)
        router.add(ViewMessageById, self.by_offset)
        router.add(GetEarliestMsgStoreTime, self.earliest)

    def by_key(self, request: QueryMessage, context: RequestContext) -> Outcome[QueryMessageReply]:
        """The newest messages with a key, oldest of them first; 22 if there are none."""
        unique = request.unique_key is True
        wanted = self.config.default_query_max_num if unique else request.max_num
        question = self.lookup.by_key(
            request.topic,
            request.key,
            request.begin_timestamp,
            request.end_timestamp,
            min(wanted, self.config.max_msgs_num_batch),
            unique=unique,
        )

        def respond(answer: ByKey) -> Response[QueryMessageReply]:
            for entry in answer.damaged:
                _damaged(entry.offset, entry.fault, kind=entry.offset)
            for error in answer.errors:
                _index_unreadable(error)
            offset, timestamp = self.lookup.index_end
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
            elif self.lookup.no_index_because is not None:
                remark += f"; {self.lookup.no_index_because}"
            return Response(header, code=ResponseCode.QUERY_NOT_FOUND, remark=remark)

        return answer(self.reads, question, respond, context)

    def by_offset(self, request: ViewMessageById, context: RequestContext) -> Outcome[None]:
        """The message at an offset of the log."""

        def respond(entry: StoredEntry | None) -> Response[None]:
            if entry is not None and entry.fault is None:
                return Response(body=entry.data)
            remark = f"can not find message by the offset, {request.offset}"
            if entry is not None:
                _damaged(request.offset, entry.fault, kind=request.offset)
                remark += f": it is damaged ({entry.fault})"
            return refusal(ResponseCode.SYSTEM_ERROR, remark)

        return answer(self.reads, self.lookup.entry_at(request.offset), respond, context)

    def earliest(
        self, request: GetEarliestMsgStoreTime, context: RequestContext
    ) -> Outcome[EarliestStoreTimeReply]:
        question = self.lookup.earliest_time(request.topic, request.queue_id)
        return answer(
            self.reads,
            question,
            lambda time: Response(EarliestStoreTimeReply(timestamp=time)),
            context,
        )
