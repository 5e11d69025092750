"""Which queues a consumer works on, said by the broker: 400 QUERY_ASSIGNMENT, 401
SET_MESSAGE_REQUEST_MODE. What they say stands in the bodies, ``bodies.assignment``."""

from __future__ import annotations

from typing import ClassVar

from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Request


class QueryAssignment(Request[None], kw_only=True):
    """Body ``QueryAssignmentRequestBody``; the body of the answer is
    ``QueryAssignmentResponseBody``."""

    code: ClassVar[int] = RequestCode.QUERY_ASSIGNMENT


class SetMessageRequestMode(Request[None], kw_only=True):
    """Body ``SetMessageRequestModeRequestBody``."""

    code: ClassVar[int] = RequestCode.SET_MESSAGE_REQUEST_MODE
