"""Answers to requests that change tables. They wait until the change survives a switch.

An answer promises that its change was made. So it is sent when the record of the change is
confirmed, as the answer to a send. After the same deadline as that of sends, the client gets an
error that says that the change may have been made. Refusals are sent at once, and one-way requests
have no answer. Handlers know nothing of this: their context holds their answers.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

import msgspec

from turbopump.broker.background import wait_for
from turbopump.broker.table_records.writer import RecordWriter
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import HELD, Outcome, RequestContext, RequestHandler, Router
from turbopump.remoting.served_requests import size_of
from turbopump.store.confirmed import Confirmed

CHANGING: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
    }
)
"""Requests whose changes are recorded at once, before their answer."""
COMMITTING: Final = frozenset({RequestCode.UPDATE_CONSUMER_OFFSET})
"""Requests whose changes wait for the next record of offsets."""


class HeldContext(RequestContext, gc=False):
    """Context of a request that changes tables. It holds the answer until the change is
    confirmed."""

    changes: HeldChanges | None = None
    has_waited: bool = False

    def settle(self, outcome: Outcome[Any]) -> None:
        """Process the outcome of the handler, as every context does."""
        if not (isinstance(outcome, bytes) and self._hold(outcome)):
            RequestContext.settle(self, outcome)

    def answer(self, response: Response[Any]) -> None:
        """Send the answer, once the change is confirmed."""
        if response.code != ResponseCode.SUCCESS or not self._hold(response):
            RequestContext.answer(self, response)

    def _hold(self, ready: Response[Any] | bytes) -> bool:
        """Hold an answer. Return False if it must be sent now."""
        changes = self.changes
        assert changes is not None
        if self.has_waited or self.is_oneway or changes.are_confirmed(self.code):
            return False
        self.has_waited = True
        self._leave_turn()
        waiting = changes.confirmed(ready)
        self.served.start_task(waiting, size_of(self.frame), self.settle_awaited)
        return True


class HeldChanges:
    """Answers to requests that change tables.

    - ``seconds``: the maximum waiting time of an answer.
    """

    def __init__(self, writer: RecordWriter, confirmed: Confirmed, seconds: float) -> None:
        self._writer = writer
        self._confirmed = confirmed
        self._seconds = seconds

    def add_to(self, router: Router) -> None:
        """Let the router hold the answers to all requests that change tables."""
        for code in (*CHANGING, *COMMITTING):
            if code in router.routes:
                request_type, handler = router.routes[code]
                router.routes[code] = (request_type, partial(self._handle, handler))

    def _handle(
        self, handler: RequestHandler, request: Any, context: RequestContext
    ) -> Outcome[Any]:
        held = HeldContext(*msgspec.structs.astuple(context))
        held.changes = self
        held.settle_call(partial(handler, request), held)
        return HELD

    def are_confirmed(self, code: int) -> bool:
        """Return True if all changes so far survive a switch.

        Changes by a request with this code are recorded first, except the offset of a commit.
        """
        writer = self._writer
        if code not in COMMITTING:
            writer.write()
        return not writer.is_behind and self._covers(writer.end)

    def _covers(self, log_end: int) -> bool:
        confirmed = self._confirmed
        return confirmed.error is None and log_end <= min(confirmed.value, confirmed.copied)

    async def confirmed(self, ready: Response[Any] | bytes) -> Response[Any] | bytes:
        """Wait until all changes so far survive a switch. Return the answer, or an error."""
        confirmed = self._confirmed
        end = None
        try:
            async with asyncio.timeout(self._seconds):
                await self._writer.written()
                end = self._writer.end
                if confirmed.error is None and confirmed.value < end:
                    await wait_for((confirmed, end))
        except TimeoutError:
            pass
        if end is not None and self._covers(end):
            return ready
        return refusal(
            ResponseCode.SYSTEM_ERROR,
            f"the change is made here, but {self._cause(end)}: it may be lost if another replica "
            "becomes the master. Look whether it is there, and repeat it if not",
        )

    def _cause(self, end: int | None) -> str:
        if self._confirmed.error is not None:
            return f"the disk has failed ({self._confirmed.error})"
        if end is None:
            return "the log has no room for its record"
        return f"too few replicas have confirmed it within {self._seconds:g} s"
