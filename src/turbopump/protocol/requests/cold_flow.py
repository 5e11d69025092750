"""Slowing down readers of a backlog: 2001 UPDATE_COLD_DATA_FLOW_CTR_CONFIG, 2002
REMOVE_COLD_DATA_FLOW_CTR_CONFIG, 2003 GET_COLD_DATA_FLOW_CTR_INFO; and how far the system reads
ahead for them: 2004 SET_COMMITLOG_READ_MODE. Source: apache/rocketmq ``AdminBrokerProcessor``."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Request


class UpdateColdFlow(Request[None], kw_only=True):
    """Thresholds of groups; the body is properties text: ``group=bytes in five seconds``."""

    code: ClassVar[int] = RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG


class RemoveColdFlow(Request[None], kw_only=True):
    """A group has the usual threshold again; the body is its name."""

    code: ClassVar[int] = RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG


class GetColdFlow(Request[None], kw_only=True):
    """Who reads how much; the body of the answer is ``bodies.cold_flow.ColdFlowInfo``."""

    code: ClassVar[int] = RequestCode.GET_COLD_DATA_FLOW_CTR_INFO


class SetCommitLogReadMode(Request[None], kw_only=True):
    """ "0": the system may read more of the log's files than what is asked for; "1": it should not.
    (``MADV_NORMAL``, ``MADV_RANDOM``.)"""

    code: ClassVar[int] = RequestCode.SET_COMMITLOG_READ_MODE

    mode: str | None = msgspec.field(default=None, name="READ_AHEAD_MODE")
