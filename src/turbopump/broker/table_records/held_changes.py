"""Answers to requests that change tables. They wait until the change survives a switch.

An answer promises that its change was made. The answer is therefore sent when the record of the
change is confirmed, like the answer to a send. After the same deadline as that of sends, the client
gets an error that says that the change may have been made. Refusals are sent at once, and one-way
requests have no answer. Handlers know nothing of this: their context holds their answers. Slaves
refuse all these requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec

from turbopump.broker.background import wait_for
from turbopump.broker.table_records.record import ACCOUNTS, GROUPS, LOCKS, MODES, OFFSETS, TOPICS
from turbopump.broker.table_records.writer import RecordWriter
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import HELD, Outcome, RequestContext, RequestHandler, Router
from turbopump.remoting.served_requests import size_of
from turbopump.store.confirmed import Confirmed

CHANGING: Final[Mapping[int, tuple[str, ...]]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: (TOPICS,),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: (TOPICS,),
    RequestCode.DELETE_TOPIC_IN_BROKER: (TOPICS, OFFSETS),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (GROUPS,),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (GROUPS,),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: (GROUPS, OFFSETS),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: (GROUPS,),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: (OFFSETS,),
    RequestCode.CLONE_GROUP_OFFSET: (OFFSETS,),
    RequestCode.SET_MESSAGE_REQUEST_MODE: (GROUPS, MODES),
    RequestCode.LOCK_BATCH_MQ: (LOCKS,),
    RequestCode.UNLOCK_BATCH_MQ: (LOCKS,),
    RequestCode.AUTH_CREATE_USER: (ACCOUNTS,),
    RequestCode.AUTH_UPDATE_USER: (ACCOUNTS,),
    RequestCode.AUTH_DELETE_USER: (ACCOUNTS,),
    RequestCode.AUTH_CREATE_ACL: (ACCOUNTS,),
    RequestCode.AUTH_UPDATE_ACL: (ACCOUNTS,),
    RequestCode.AUTH_DELETE_ACL: (ACCOUNTS,),
    RequestCode.UPDATE_CONSUMER_OFFSET: (OFFSETS,),
}
"""Tables that a request changes. Its answer waits for all changes of these tables so far, so that
equal requests of several clients need no numbers of their own."""
COMMITTING: Final = frozenset({RequestCode.UPDATE_CONSUMER_OFFSET})
"""Requests whose changes wait for the next record of offsets. Others are recorded at once."""


SLAVE_REFUSAL: Final = (
    "this replica is not the master of its group, and only the master changes topics, groups, "
    "offsets, locks and accounts; send the request to the master"
)


def refuse_changes(router: Router) -> None:
    """Let the router of a slave refuse all requests that change tables.

    The master, and so the next one, would not have the change.
    """
    for code in CHANGING:
        if code in router.routes:
            router.redirect(code, _refuse)


def _refuse(_request: Any, _context: RequestContext) -> Outcome[Any]:
    return refusal(ResponseCode.SERVICE_NOT_AVAILABLE, SLAVE_REFUSAL)


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
        waiting = changes.confirmed(self.code, ready)
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
        for code in CHANGING:
            if code in router.routes:
                _, handler = router.routes[code]
                router.redirect(code, partial(self._handle, handler))

    def _handle(
        self, handler: RequestHandler, request: Any, context: RequestContext
    ) -> Outcome[Any]:
        held = HeldContext(*msgspec.structs.astuple(context))
        held.changes = self
        held.settle_call(partial(handler, request), held)
        return HELD

    def are_confirmed(self, code: int) -> bool:
        """Return True if all changes by requests with this code survive a switch.

        They are recorded first, except the offset of a commit.
        """
        writer = self._writer
        if code not in COMMITTING:
            writer.write()
        return not writer.is_behind and self._covers(writer.end_of(*CHANGING[code]))

    def _covers(self, log_end: int) -> bool:
        confirmed = self._confirmed
        return confirmed.error is None and log_end <= min(confirmed.value, confirmed.copied)

    async def confirmed(self, code: int, ready: Response[Any] | bytes) -> Response[Any] | bytes:
        """Wait until all changes by requests with this code survive a switch. Return the answer, or
        an error."""
        confirmed = self._confirmed
        end = None
        try:
            async with asyncio.timeout(self._seconds):
                await self._writer.written()
                end = self._writer.end_of(*CHANGING[code])
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
