"""Handlers of a controller for requests by replicas: heartbeats, ids, registration, the sync state
set and elections.

The answer to a change is sent when the change is durable. Files are unknown here. Codes follow
apache/rocketmq `ControllerRequestProcessor`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from turbopump.clock import Clock
from turbopump.controller import groups
from turbopump.controller.decided_groups import BusyError, DecidedGroups, Make
from turbopump.controller.decisions import NotLeaderError
from turbopump.controller.election import NO_PRIORITY, Candidate
from turbopump.controller.groups import Answer, Decision, Group, View
from turbopump.controller.liveness import Beat, Liveness, ReplicaKey
from turbopump.protocol import fastjson
from turbopump.protocol.codes import LanguageCode, ResponseCode
from turbopump.protocol.requests import controller as requests
from turbopump.protocol.requests.namesrv import BrokerHeartbeat
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import RequestContext, Router
from turbopump.remoting.wire import Wire

DEFAULT_TIMEOUT_MS: Final = 10_000
"""Time of silence after which a replica is dead, if its heartbeats name none. Apache's default."""
TIMEOUT_MIN_MS, TIMEOUT_MAX_MS = 100, 3_600_000
DESIGNATED_S: Final = 2.0
"""Seconds that an operator's or a leaving master's election waits until the designated replica has
reported every confirmed message."""


class Connections:
    """Numbers of the connections over which replicas were heard, in the order of their first
    request."""

    def __init__(self) -> None:
        self._numbers: dict[Wire, int] = {}
        self._wires: dict[int, Wire] = {}
        self._next = 1

    def number(self, wire: Wire) -> int:
        """Return the number of a connection."""
        if wire not in self._numbers:
            self._numbers[wire] = self._next
            self._wires[self._next] = wire
            self._next += 1
        return self._numbers[wire]

    def end(self, wire: Wire) -> int | None:
        """Forget a connection that has ended, and return its number, or None if it had none."""
        number = self._numbers.pop(wire, None)
        if number is not None:
            del self._wires[number]
        return number

    def close(self, number: int) -> None:
        """Close a connection."""
        wire = self._wires.get(number)
        if wire is not None:
            wire.close()


class BrokerHandlers:
    """Handlers of one controller for requests by replicas."""

    def __init__(
        self, decided: DecidedGroups, liveness: Liveness, connections: Connections, clock: Clock
    ) -> None:
        self._decided = decided
        self._liveness = liveness
        self._connections = connections
        self._clock = clock

    def add_to(self, router: Router) -> None:
        """Register these handlers with a router."""
        router.add(BrokerHeartbeat, self.heartbeat)
        router.add(requests.GetNextBrokerId, self.next_id)
        router.add(requests.ApplyBrokerId, self.apply_id)
        router.add(requests.RegisterReplica, self.register)
        router.add(requests.GetReplicaInfo, self.replica_info)
        router.add_with_body(requests.AlterSyncStateSet, self.alter_set)
        router.add(requests.ElectMaster, self.elect_master)

    def heartbeat(self, request: BrokerHeartbeat, context: RequestContext) -> Response[None]:
        if request.broker_id is None:
            return refusal(
                ResponseCode.CONTROLLER_INVALID_REQUEST, "Heart beat with empty brokerId"
            )
        key = ReplicaKey(request.broker_name, request.broker_id)
        timeout_ms = request.heartbeat_timeout_mills or DEFAULT_TIMEOUT_MS
        beat = Beat(
            Candidate(
                request.broker_id,
                _given(request.epoch, -1),
                _given(request.max_offset, -1),
                _given(request.election_priority, NO_PRIORITY),
                _given(request.min_in_sync_replicas, 1) < 2,
            ),
            request.broker_addr,
            min(max(timeout_ms, TIMEOUT_MIN_MS), TIMEOUT_MAX_MS) / 1000,
        )
        number = self._connections.number(context.peer)
        now = self._clock.monotonic()
        if self._liveness.note_heartbeat(key, number, beat, now):
            self._decided.note_heartbeat(key, _confirm_offset(request, context))
        return Response(remark="Heart beat success")

    def next_id(
        self, request: requests.GetNextBrokerId, context: RequestContext
    ) -> Response[requests.NextBrokerIdReply]:
        return self._read(request.broker_name, lambda group: groups.next_id(group, request))

    def replica_info(
        self, request: requests.GetReplicaInfo, context: RequestContext
    ) -> Response[requests.MasterReply]:
        return self._read(request.broker_name, lambda group: groups.replica_info(group, request))

    async def apply_id(
        self, request: requests.ApplyBrokerId, context: RequestContext
    ) -> Response[requests.ApplyBrokerIdReply]:
        def make(group: Group | None, view: View) -> Decision:
            return groups.apply_id(group, request, view)

        return await self._answer(request.broker_name, make, "a new replica", context)

    async def register(
        self, request: requests.RegisterReplica, context: RequestContext
    ) -> Response[requests.RegisterReplicaReply]:
        key = ReplicaKey(request.broker_name, request.broker_id)

        def make(group: Group | None, view: View) -> Decision:
            return groups.register(group, request, view)

        self._liveness.note_registration(key, self._connections.number(context.peer))
        self._decided.note_start(request.broker_name)
        return await self._answer(
            request.broker_name, make, f"replica {key.id} has started", context
        )

    async def alter_set(
        self,
        request: requests.AlterSyncStateSet,
        body: requests.SyncStateSet,
        context: RequestContext,
    ) -> Response[requests.AlterSyncStateSetReply]:
        def make(group: Group | None, view: View) -> Decision:
            return groups.alter_set(group, request, body, view)

        return await self._answer(
            request.broker_name, make, f"the master {request.master_broker_id} asks", context
        )

    async def elect_master(
        self, request: requests.ElectMaster, context: RequestContext
    ) -> Response[requests.ElectMasterReply]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DESIGNATED_S
        cause = f"request by {context.peer.peer}"

        def make(group: Group | None, view: View) -> Decision:
            return groups.elect_master(group, request, view)

        async def decided() -> Decision:
            while True:
                decision = await self._decided.decide(request.broker_name, make, cause)
                left = deadline - loop.time()
                if not (decision.waits and request.designate_elect and left > 0):
                    return decision
                await self._decided.next_heartbeat(request.broker_name, left)

        return await answered(decided())

    def _read(self, name: str, make: Any) -> Response[Any]:
        try:
            decision: Decision = make(self._decided.get(name))
        except NotLeaderError:
            return not_leader()
        return response(decision.answer)

    async def _answer(
        self, name: str, make: Make, cause: str, context: RequestContext
    ) -> Response[Any]:
        cause = f"{cause} ({context.peer.peer})"
        return await answered(self._decided.decide(name, make, cause))


def _given(value: int | None, default: int) -> int:
    return default if value is None else value


def _confirm_offset(request: BrokerHeartbeat, context: RequestContext) -> int | None:
    """Return the confirm offset in a heartbeat if it was promised to clients, or None.

    RocketMQ: a master without ``allAckInSyncStateSet`` reports the end of its log, which no other
    replica may have. A group of such masters could elect nobody if this offset counted.
    """
    confirmed = request.confirm_offset
    if confirmed is None or context.command.language != LanguageCode.PYTHON:
        return None
    return confirmed if confirmed <= _given(request.max_offset, -1) else None


async def answered(deciding: Awaitable[Decision]) -> Response[Any]:
    """Return the answer of a decision, or a refusal if there is none."""
    try:
        decision = await deciding
    except NotLeaderError:
        return not_leader()
    except BusyError:
        return refusal(
            ResponseCode.SYSTEM_BUSY, "too many requests wait for a decision about this broker name"
        )
    return response(decision.answer)


def not_leader() -> Response[Any]:
    """Return the answer of a controller that does not lead."""
    return refusal(
        ResponseCode.CONTROLLER_NOT_LEADER, "this controller does not lead: ask 1005 which one does"
    )


def response(answer: Answer) -> Response[Any]:
    """Return an answer as it is sent: header fields, and a body in JSON."""
    return Response(
        code=answer.code,
        remark=answer.remark,
        ext=None if answer.reply is None else answer.reply.to_ext(),
        body=b"" if answer.body is None else fastjson.encode(answer.body),
    )
