"""Answers to 2001, 2002 and 2003: thresholds for groups that read a backlog. Source: apache/rocketmq ``AdminBrokerProcessor``, which
passes over thresholds that it cannot read, and says so in its log alone."""

from __future__ import annotations

import logging

from turbopump.broker.cold_flow import ColdFlow
from turbopump.config import properties
from turbopump.config.setting import LONG_MAX
from turbopump.errors import BodyError, ConfigError
from turbopump.message.rules import group_fault
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.cold_flow import GetColdFlow, RemoveColdFlow, UpdateColdFlow
from turbopump.remoting.router import RequestContext, Response

log = logging.getLogger(__name__)


class ColdFlowHandler:
    """Sets, removes and shows thresholds."""

    def __init__(self, cold: ColdFlow) -> None:
        self._cold = cold

    def update(self, _request: UpdateColdFlow, context: RequestContext) -> Response:
        try:
            wanted = {group: int(value) for group, value in properties.decode(context.body).items()}
        except (ConfigError, ValueError) as error:
            raise BodyError(f"the thresholds cannot be read: {error}; expected lines such as group=3145728") from None
        faults = [f"{group[:128]}={size}" for group, size in wanted.items() if group_fault(group) or not 0 <= size <= LONG_MAX]
        if faults:
            return Response(code=ResponseCode.SYSTEM_ERROR, remark=f"no threshold of a group: {', '.join(faults[:10])}")
        for group, size in wanted.items():
            if not self._cold.set_threshold(group, size):
                return Response(code=ResponseCode.SYSTEM_ERROR, remark=f"too many groups have thresholds; {group} has none")
        log.info("cold read thresholds set by=%s groups=%s", context.peer.peer, " ".join(f"{g}:{s}" for g, s in wanted.items()))
        return Response()

    def remove(self, _request: RemoveColdFlow, context: RequestContext) -> Response:
        self._cold.remove_threshold(context.body.decode(errors="replace"))
        return Response()

    def info(self, _request: GetColdFlow, _context: RequestContext) -> Response:
        return Response(body=fastjson.encode(self._cold.info()))
