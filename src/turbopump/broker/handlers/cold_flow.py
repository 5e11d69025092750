"""Handler of requests about cold data: limits on reads (2001, 2002 and 2003), and reading ahead
(2004).

Source: apache/rocketmq ``AdminBrokerProcessor``, which ignores thresholds that it cannot read, and
only logs them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from turbopump.broker.cold_flow import ColdFlow
from turbopump.config import properties
from turbopump.config.setting import LONG_MAX
from turbopump.errors import BodyError, ConfigError
from turbopump.message.rules import group_fault
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.statistics import (
    ColdFlowInfo,
    GetColdFlow,
    RemoveColdFlow,
    SetCommitLogReadMode,
    UpdateColdFlow,
)
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import RequestContext, Router
from turbopump.store.log.commit_log import CommitLog

READ_AHEAD = 0
AT_RANDOM = 1

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ColdFlowHandler:
    """Handler of requests to limit the reads of cold data, and to turn reading ahead on or off."""

    cold: ColdFlow
    commit_log: CommitLog

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add(UpdateColdFlow, self.update)
        router.add(RemoveColdFlow, self.remove)
        router.add(GetColdFlow, self.info)
        router.add(SetCommitLogReadMode, self.read_mode)

    def update(self, _request: UpdateColdFlow, context: RequestContext) -> Response[None]:
        try:
            wanted = {group: int(value) for group, value in properties.decode(context.body).items()}
        except (ConfigError, ValueError) as error:
            raise BodyError(
                f"the thresholds cannot be read: {error}; expected lines such as group=3145728"
            ) from None
        faults = [
            f"{group[:128]}={size}"
            for group, size in wanted.items()
            if group_fault(group) or not 0 <= size <= LONG_MAX
        ]
        if faults:
            return refusal(
                ResponseCode.SYSTEM_ERROR, f"no threshold of a group: {', '.join(faults[:10])}"
            )
        for group, size in wanted.items():
            if not self.cold.set_threshold(group, size):
                return refusal(
                    ResponseCode.SYSTEM_ERROR, f"too many groups have thresholds; {group} has none"
                )
        log.info(
            "cold read thresholds set by=%s groups=%s",
            context.peer.peer,
            " ".join(f"{g}:{s}" for g, s in wanted.items()),
        )
        return Response()

    def remove(self, _request: RemoveColdFlow, context: RequestContext) -> Response[None]:
        self.cold.remove_threshold(context.body.decode(errors="replace"))
        return Response()

    def info(self, _request: GetColdFlow, _context: RequestContext) -> Response[ColdFlowInfo]:
        return Response(self.cold.info())

    def read_mode(self, request: SetCommitLogReadMode, context: RequestContext) -> Response[None]:
        """Turn reading ahead in the commit log on or off, until the broker stops."""
        try:
            mode = int(request.mode or "")
        except ValueError:
            remark = (
                "set commitlog readahead mode failed: READ_AHEAD_MODE is "
                f"{(request.mode or '')[:64]!r}, not 0 or 1"
            )
            return refusal(ResponseCode.SYSTEM_ERROR, remark)
        if mode not in (READ_AHEAD, AT_RANDOM):
            remark = (
                "set commitlog readahead mode param value error: READ_AHEAD_MODE is 0 (read "
                "ahead) or 1 (do not)"
            )
            return refusal(ResponseCode.INVALID_PARAMETER, remark)
        self.commit_log.files.read_ahead(enabled=mode == READ_AHEAD)
        log.info("reading ahead set by=%s enabled=%s", context.peer.peer, mode == READ_AHEAD)
        return Response(remark=f"set commitlog readahead mode success, mode: {mode}")
