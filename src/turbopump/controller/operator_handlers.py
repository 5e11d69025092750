"""Handlers of a controller for requests by operators: who leads, replicas, cleaning, and settings.

Codes follow apache/rocketmq `ControllerRequestProcessor`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from turbopump.config import properties
from turbopump.config.running import ReadOnlyKeyError, RunningConfiguration
from turbopump.controller import groups
from turbopump.controller.broker_handlers import answered, not_leader
from turbopump.controller.decided_groups import DecidedGroups
from turbopump.controller.decisions import NotLeaderError
from turbopump.controller.groups import Decision, Group, View
from turbopump.controller.liveness import Liveness, ReplicaKey
from turbopump.disk.disk import Disk
from turbopump.errors import ConfigError
from turbopump.log_keys import LogKeys
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests import controller as requests
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import RequestContext, Router

log = logging.getLogger(__name__)


class OperatorHandlers:
    """Handlers of one controller for requests by operators.

    - ``metadata``: returns the answer to 1005.
    - ``disk``: the storage for changed settings, or None to keep them in memory only.
    """

    def __init__(
        self,
        decided: DecidedGroups,
        liveness: Liveness,
        running: RunningConfiguration,
        metadata: Callable[[], requests.ControllerMetadata],
        disk: Disk | None,
    ) -> None:
        self._decided = decided
        self._liveness = liveness
        self._running = running
        self._metadata = metadata
        self._disk = disk

    def add_to(self, router: Router) -> None:
        """Register these handlers with a router."""
        router.add(requests.GetControllerMetadata, self.metadata)
        router.add(requests.GetSyncStateData, self.sync_state_data)
        router.add(requests.CleanBrokerData, self.clean)
        router.add(requests.UpdateControllerConfig, self.update_config)
        router.add(requests.GetControllerConfig, self.get_config)

    def metadata(
        self, _request: requests.GetControllerMetadata, _context: RequestContext
    ) -> Response[requests.ControllerMetadata]:
        return Response(self._metadata())

    def sync_state_data(
        self, _request: requests.GetSyncStateData, context: RequestContext
    ) -> Response[requests.BrokerReplicasInfo]:
        try:
            names = fastjson.decode_request(context.body, list[str])
        except fastjson.FastjsonError:
            names = []
        if not names:  # RocketMQ: code 1 without a sentence
            return refusal(
                ResponseCode.SYSTEM_ERROR, "the body must be a JSON list of broker names"
            )
        found = {}
        try:
            for name in names:
                group = self._decided.get(name)
                if group is not None:
                    live = self._liveness.candidates(name)
                    found[name] = groups.replicas_info(group, live)
        except NotLeaderError:
            return not_leader()
        return Response(requests.BrokerReplicasInfo(replicas_info_table=found))

    async def clean(
        self, request: requests.CleanBrokerData, context: RequestContext
    ) -> Response[None]:
        name = request.broker_name

        def make(group: Group | None, view: View) -> Decision:
            return groups.clean(group, request, view)

        async def decided() -> Decision:
            before = self._decided.get(name)
            cause = f"cleaned by {context.peer.peer}"
            decision = await self._decided.decide(name, make, cause)
            self._forget_cleaned(before, decision.group)
            return decision

        return await answered(decided())

    def _forget_cleaned(self, before: Group | None, after: Group | None) -> None:
        if before is None:
            return
        for replica in before.replicas:
            if after is None or after.replica(replica.id) is None:
                self._liveness.forget(ReplicaKey(before.broker_name, replica.id))

    def get_config(
        self, _request: requests.GetControllerConfig, _context: RequestContext
    ) -> Response[None]:
        return Response(body=properties.encode(self._running.all_texts()).encode())

    async def update_config(
        self, _request: requests.UpdateControllerConfig, context: RequestContext
    ) -> Response[Any]:
        try:
            changed = self._running.change_keys(context.body.decode("utf-8", "replace"))
        except ReadOnlyKeyError as error:
            return refusal(ResponseCode.NO_PERMISSION, str(error))
        except ConfigError as error:
            return refusal(ResponseCode.SYSTEM_ERROR, str(error))
        log.warning("configuration changed %s peer=%s", LogKeys(changed), context.peer.peer)
        return Response(remark=await self._running.write_changes(changed, self._disk))
