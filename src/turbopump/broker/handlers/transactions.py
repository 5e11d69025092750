"""Handler of requests to end a transaction (37), or to check it again after giving up (323).

The codes and the beginnings of remarks are those of apache/rocketmq ``EndTransactionProcessor``,
``AdminBrokerProcessor.resumeCheckHalfMessage``. A repeated end of a transaction succeeds and
changes nothing.
"""

from __future__ import annotations

from typing import Final

from turbopump.broker.transactions.half_messages import HalfMessage, read_half
from turbopump.broker.transactions.transactions import Transactions
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.errors import MessageError, ProtocolError, StoreError
from turbopump.message.ids import decode_offset_msg_id
from turbopump.message.rules import HALF_TOPIC
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import (
    EndTransaction,
    ResumeCheckHalfMessage,
    TransactionOutcome,
)
from turbopump.remoting.response import Refusal, Response, refusal
from turbopump.remoting.router import HELD, RequestContext, Router
from turbopump.remoting.router import Outcome as Answer

UNDER_WAY_MAX: Final = 100_000
"""Maximum number of requests to end a transaction that wait for the disk. Further ones are refused.
RocketMQ: ``endTransactionPoolQueueCapacity``."""

ENDS_AT_THE_MASTER: Final = (
    "this broker is a slave (brokerRole=SLAVE), and its master ends transactions; ask that one"
)


class TransactionsHandler:
    """Handler of requests to end a transaction, or to check it again after giving up."""

    def __init__(self, config: BrokerConfig, transactions: Transactions, clock: Clock) -> None:
        self._config = config
        self._transactions = transactions
        self._clock = clock
        self._under_way = 0

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(EndTransaction, self.end)
        router.add(ResumeCheckHalfMessage, self.resume)

    def end(self, request: EndTransaction, context: RequestContext) -> Answer[None]:
        """Commit or roll back a transaction.

        A producer that reports an unknown outcome gets no answer.
        """
        if self._config.is_slave:
            return refusal(ResponseCode.SLAVE_NOT_AVAILABLE, ENDS_AT_THE_MASTER)
        try:
            outcome = TransactionOutcome(request.commit_or_rollback)
        except ValueError:
            return _failed(
                f"commitOrRollback field wrong: {request.commit_or_rollback}; 8 commits, 12 "
                "rolls back, 0 is unknown"
            )
        if outcome is TransactionOutcome.UNKNOWN:
            return HELD  # it is asked again
        if self._under_way >= UNDER_WAY_MAX:
            return refusal(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]system busy, {self._under_way} ends of transactions wait",
            )
        return self._end(request, outcome, context)

    async def _end(
        self, request: EndTransaction, outcome: TransactionOutcome, context: RequestContext
    ) -> Response[None]:
        self._under_way += 1
        try:
            half = await self._find(request, context)
            if isinstance(half, Response):
                return half
            await self._transactions.end_transaction(half, outcome, lasting=not context.is_oneway)
            return Response()
        except MessageError as error:
            return refusal(ResponseCode.MESSAGE_ILLEGAL, f"The message is illegal: {error}")
        except StoreError as error:
            return refusal(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"Service not available now: {error}"
            )
        except OSError as error:
            return _failed(
                f"Create mapped file failed: {error.strerror or error} "
                f"({error.filename or 'no path'})"
            )
        finally:
            self._under_way -= 1

    async def _find(
        self, request: EndTransaction, context: RequestContext
    ) -> HalfMessage | Response[None]:
        message = await self._transactions.message_at(request.commit_log_offset, context)
        half = read_half(message) if message is not None and message.topic == HALF_TOPIC else None
        if half is None:
            return _failed(
                "Find prepared transaction message failed: no half message at "
                f"{request.commit_log_offset} of the log of this broker; "
                "it may be too old, or of another broker"
            )
        refused = context.refused(half.topic)  # before anything is told of it
        if refused is not None:
            return refused
        if not request.from_transaction_check and half.immunity_ms is not None:
            immunity = max(half.immunity_ms, self._config.transaction_time_out)
            age = self._clock.now_ms() - half.message.store_timestamp
            if age > immunity:
                return refusal(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"the message is {age} ms old, its CHECK_IMMUNITY_TIME_IN_SECONDS ended after "
                    f"{immunity} ms: wait until the broker asks",
                )
        if half.group != request.producer_group:
            return _failed(
                f"The producer group wrong: {request.producer_group}, the message is "
                f"of {half.group}"
            )
        if half.offset != request.tran_state_table_offset:
            return _failed(
                "The transaction state table offset wrong: "
                f"{request.tran_state_table_offset}; the half message has {half.offset}"
            )
        return half

    async def resume(
        self, request: ResumeCheckHalfMessage, context: RequestContext
    ) -> Response[None]:
        """Resume the checks of a given-up transaction. Its half message is stored again."""
        if self._config.is_slave:
            return refusal(ResponseCode.SLAVE_NOT_AVAILABLE, ENDS_AT_THE_MASTER)
        try:
            _, _, offset = decode_offset_msg_id(request.msg_id or "")
        except ProtocolError as error:
            return _failed(f"Put message back to {HALF_TOPIC} failed: {error}")
        message = await self._transactions.message_at(offset, context)
        half = read_half(message) if message is not None else None
        if message is None or half is None:
            return _failed(
                f"Put message back to {HALF_TOPIC} failed: no message of a transaction at "
                f"{offset} of the log of this broker"
            )
        refused = context.refused(half.topic)
        if refused is not None:
            return refused
        try:
            resumed = await self._transactions.resume_half(message, half.resumed_properties())
        except (OSError, StoreError, MessageError) as error:
            return _failed(f"Put message back to {HALF_TOPIC} failed: {error}")
        if resumed:
            return Response()
        return _failed(
            f"Put message back to {HALF_TOPIC} failed: its transaction has ended already"
        )


def _failed(remark: str) -> Refusal:
    return refusal(ResponseCode.SYSTEM_ERROR, remark)
