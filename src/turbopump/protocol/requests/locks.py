"""Locks on queues for ordered consumption: 41 asks for them or renews them, 42 gives them back.
What they name stands in the bodies, ``LockBatchRequestBody`` and, in the answer to 41,
``LockBatchResponseBody``."""

from __future__ import annotations

from typing import ClassVar

from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Request


class LockBatchMq(Request[None], kw_only=True):
    """Lock queues for a client of a group, or renew its locks; the answer's body names those that
    it holds now."""

    code: ClassVar[int] = RequestCode.LOCK_BATCH_MQ


class UnlockBatchMq(Request[None], kw_only=True):
    """Free queues that a client holds. May be sent oneway; the answer says nothing."""

    code: ClassVar[int] = RequestCode.UNLOCK_BATCH_MQ
