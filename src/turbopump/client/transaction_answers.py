"""Answers to brokers that ask what has become of a transaction: the user's checker is asked, some
at a time, and the state is told.

One rule: a question that cannot be answered is dropped, for the broker asks again; nothing waits
without a bound, and nobody is asked after the close. Source: apache/rocketmq
``DefaultMQProducerImpl.checkTransactionState``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from turbopump.client.consuming.handling import cancelled
from turbopump.client.namespace import unwrap
from turbopump.client.sending.sender import Sender
from turbopump.client.sending.under_way import UnderWay
from turbopump.client.transaction_state import TransactionState
from turbopump.client.user_function import UserFunction
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import TRANSACTION_ID
from turbopump.protocol.requests.transactions import CheckTransactionState, EndTransaction
from turbopump.remoting.connection import Connection

log = logging.getLogger(__name__)

WAITING_MAX: Final = 2000
"""Questions that wait for the checker (``checkRequestHoldMax``); more are dropped."""
ANSWER_S: Final = 60.0
"""How long a checker may think; the broker asks again."""

_worker: Final[ContextVar[asyncio.Task[Any] | None]] = ContextVar("turbopump worker", default=None)
"""Who calls the checker: also in the thread of a plain one, and in what it has done on the loop
from there."""


class Asked(NamedTuple):
    """A question, the message it is about, and who asks."""

    request: CheckTransactionState
    message: ReceivedMessage
    peer: Connection


class TransactionAnswers:
    """Of one producer, whose close waits for the checks that are under way. ``tell(request, remark,
    asked, state)`` sends an answer on its way. ``dropped`` counts."""

    def __init__(
        self,
        checker: UserFunction,
        tell: Callable[[EndTransaction, str | None, Asked, TransactionState], None],
        *,
        group: str,
        namespace: str | None,
        concurrency: int,
    ) -> None:
        self._checker = checker
        self._tell = tell
        self._group = group
        self._namespace = namespace
        self._concurrency = concurrency
        self._waiting: deque[Asked] = deque()
        self._workers = 0
        self._working: dict[asyncio.Task[Any], UnderWay] = {}
        """Those of the workers that have begun, and where each is counted as under way."""
        self._closed = False
        self.dropped = 0

    def take(self, asked: Asked, sender: Sender) -> None:
        """Answer soon."""
        if self._closed:
            return
        if len(self._waiting) >= WAITING_MAX:
            if not self.dropped:
                log.warning(
                    "questions about transactions are dropped, the checker is too slow "
                    "waiting=%d group=%s",
                    WAITING_MAX,
                    self._group,
                )
            self.dropped += 1
            return
        self._waiting.append(asked)
        if self._workers < self._concurrency:
            self._workers += 1
            sender.instance.spawn(
                self._work(sender.under_way), name=f"checks of transactions of {self._group}"
            )

    def close(self) -> None:
        """Take no more questions, and drop those that wait: the broker asks another of the group.
        Nobody waits for the check that closes its own producer."""
        self._closed = True
        self._waiting.clear()
        this = asyncio.current_task()
        if this not in self._working and self._checker.plain:
            this = _worker.get()
        if this in self._working:
            self._working.pop(this).ended()

    async def end(self) -> None:
        """After ``close``: cancel the checks that are still under way."""
        if self._working:
            await cancelled(list(self._working), 0)

    async def _work(self, under_way: UnderWay) -> None:
        this = asyncio.current_task()
        assert this is not None
        _worker.set(this)
        under_way.count += 1
        self._working[this] = under_way
        try:
            while self._waiting:
                await self._answer(self._waiting.popleft())
        finally:
            self._workers -= 1
            if self._working.pop(this, None) is not None:
                under_way.ended()

    async def _answer(self, asked: Asked) -> None:
        request, message, _ = asked
        message.topic = unwrap(self._namespace, message.topic)
        message.broker_name = request.bname or ""
        # RocketMQ 4 does not store it
        message.properties.setdefault(TRANSACTION_ID, message.msg_id)
        remark = None
        try:
            async with asyncio.timeout(ANSWER_S):
                state = state_of(await self._checker.call(message), "checker")
        except Exception as error:
            log.warning(
                "checker failed, the broker will ask again msg_id=%s topic=%s",
                message.msg_id,
                message.topic,
                exc_info=True,
            )
            state, remark = (
                TransactionState.UNKNOWN,
                (f"checkLocalTransactionState Exception: {error!r}"),
            )
        answer = EndTransaction(
            topic=request.topic,
            producer_group=self._group,
            tran_state_table_offset=request.tran_state_table_offset,
            commit_log_offset=request.commit_log_offset,
            commit_or_rollback=state.outcome,
            from_transaction_check=True,
            msg_id=message.msg_id,
            transaction_id=request.transaction_id,
            bname=request.bname,
        )
        self._tell(answer, remark, asked, state)


def state_of(returned: object, who: str) -> TransactionState:
    """What the user's function says. Raises TypeError for what is no state."""
    if returned is None:
        return TransactionState.UNKNOWN
    if isinstance(returned, TransactionState):
        return returned
    raise TypeError(
        f"the {who} returned {returned!r}; TransactionState.COMMIT, ROLLBACK or "
        "UNKNOWN (or None) is expected"
    )
