"""Handlers of a controller for requests by operators: who leads, replicas, and cleaning.

Codes follow apache/rocketmq `ControllerRequestProcessor`.
"""

from __future__ import annotations

from collections.abc import Callable

from turbopump.controller import groups
from turbopump.controller.broker_handlers import answered, not_leader
from turbopump.controller.decided_groups import DecidedGroups
from turbopump.controller.decisions import NotLeaderError
from turbopump.controller.groups import Decision, Group, View
from turbopump.controller.liveness import Liveness, ReplicaKey
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests import controller as requests
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import RequestContext, Router


class OperatorHandlers:
    """Handlers of one controller for requests by operators.

    - ``metadata``: returns the answer to 1005.
    """

    def __init__(
        self,
        decided: DecidedGroups,
        liveness: Liveness,
        metadata: Callable[[], requests.ControllerMetadata],
    ) -> None:
        self._decided = decided
        self._liveness = liveness
        self._metadata = metadata

    def add_to(self, router: Router) -> None:
        """Register these handlers with a router."""
        router.add(requests.GetControllerMetadata, self.metadata)
        router.add(requests.GetSyncStateData, self.sync_state_data)
        router.add(requests.CleanBrokerData, self.clean)

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
