"""A controller for tests of replicas: it elects the replica with the longest log, at once when a
connection ends, and tells the others. It keeps nothing on a disk."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from turbopump.errors import RemotingError
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.controller import (
    AlterSyncStateSet,
    AlterSyncStateSetReply,
    ApplyBrokerId,
    ApplyBrokerIdReply,
    BrokerReplicasInfo,
    ControllerMetadata,
    ElectMaster,
    ElectMasterBody,
    ElectMasterReply,
    GetControllerMetadata,
    GetNextBrokerId,
    GetReplicaInfo,
    GetSyncStateData,
    MasterReply,
    NextBrokerIdReply,
    NotifyRoleChanged,
    RegisterReplica,
    RegisterReplicaReply,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
)
from turbopump.protocol.requests.namesrv import BrokerHeartbeat
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import RequestContext, Router
from turbopump.remoting.server import RemotingServer
from turbopump.remoting.wire import Wire


@dataclass
class FakeController:
    """One group of replicas. `codes` are the ids by check code, `live` the last heartbeats."""

    codes: dict[str, int] = field(default_factory=dict)
    live: dict[int, BrokerHeartbeat] = field(default_factory=dict)
    master_id: int | None = None
    epoch: int = 0
    members: set[int] = field(default_factory=set)
    set_epoch: int = 0
    address: str = ""
    elects_at_death: bool = True
    """False if nobody notices that the connection of the master has ended."""
    registers_as: MasterReply | None = None
    """The master that answers to registrations name, instead of the real one."""
    heartbeats: int = 0
    elections: list[int] = field(default_factory=list)

    async def start(self, host: str, port: int) -> None:
        router = Router()
        router.add(GetControllerMetadata, self._metadata)
        router.add(GetNextBrokerId, self._next_id)
        router.add(ApplyBrokerId, self._apply)
        router.add(BrokerHeartbeat, self._heartbeat)
        router.add(GetReplicaInfo, self._info)
        router.add(RegisterReplica, self._register)
        router.add(ElectMaster, self._elect_for)
        router.add_with_body(AlterSyncStateSet, self._alter)
        router.add(GetSyncStateData, self._replicas)
        self._wires: dict[Wire, int] = {}
        self._remoting = RemotingClient()
        self._tasks = set[asyncio.Task[None]]()
        self._server = RemotingServer(router, on_close=self._closed)
        bound, number = await self._server.listen(host, port)
        self.address = f"{bound}:{number}"

    async def close(self) -> None:
        await self._server.close()
        await self._remoting.close()

    def _metadata(
        self, _request: GetControllerMetadata, _context: RequestContext
    ) -> Response[ControllerMetadata]:
        return Response(ControllerMetadata(controller_leader_address=self.address, is_leader=True))

    def _next_id(
        self, _request: GetNextBrokerId, _context: RequestContext
    ) -> Response[NextBrokerIdReply]:
        return Response(NextBrokerIdReply(next_broker_id=len(self.codes) + 1))

    def _apply(
        self, request: ApplyBrokerId, _context: RequestContext
    ) -> Response[ApplyBrokerIdReply]:
        given = self.codes.get(request.register_check_code)
        if given is None and request.applied_broker_id in self.codes.values():
            return refusal(ResponseCode.CONTROLLER_BROKER_ID_INVALID, "taken")
        self.codes[request.register_check_code] = request.applied_broker_id
        return Response(ApplyBrokerIdReply())

    def _heartbeat(self, request: BrokerHeartbeat, context: RequestContext) -> Response[None]:
        assert request.broker_id is not None
        self.heartbeats += 1
        self.live[request.broker_id] = request
        self._wires[context.peer] = request.broker_id
        return Response()

    def _closed(self, wire: Wire) -> None:
        gone = self._wires.pop(wire, None)
        if gone is None or gone in self._wires.values() or not self.elects_at_death:
            return
        self.live.pop(gone, None)
        if gone == self.master_id:
            self.elect()

    def elect(self) -> None:
        """Elect the live replica in the set that has the longest log, and tell all of them."""
        self.master_id = None
        self.epoch += 1
        able = [self.live[one] for one in sorted(self.members & self.live.keys())]
        if able:
            best = max(able, key=lambda one: (one.epoch or 0, one.max_offset or 0))
            assert best.broker_id is not None
            self.make_master(best.broker_id)

    def elect_without(self, host: str) -> None:
        """Elect another master, as if this host had been silent for too long."""
        for one, heartbeat in list(self.live.items()):
            if heartbeat.broker_addr.startswith(f"{host}:"):
                del self.live[one]
        self.elect()

    def make_master(self, replica_id: int) -> None:
        self.master_id = replica_id
        self.elections.append(replica_id)
        self.members = {replica_id}
        self.set_epoch += 1
        for one in self.live.values():
            telling = asyncio.ensure_future(self._tell(one.broker_addr))
            self._tasks.add(telling)
            telling.add_done_callback(self._tasks.discard)

    async def _tell(self, address: str) -> None:
        if self.master_id is None:
            return
        notice = NotifyRoleChanged(
            master_address=self.live[self.master_id].broker_addr,
            master_broker_id=self.master_id,
            master_epoch=self.epoch,
            sync_state_set_epoch=self.set_epoch,
        )
        with suppress(RemotingError):  # it has gone
            await self._remoting.send_oneway(address, notice, fastjson.encode(self.body))

    @property
    def body(self) -> SyncStateSet:
        return SyncStateSet(
            sync_state_set=sorted(self.members), sync_state_set_epoch=self.set_epoch
        )

    def _master(self) -> MasterReply:
        if self.master_id is None or self.master_id not in self.live:
            return MasterReply(master_epoch=self.epoch)
        return MasterReply(
            master_broker_id=self.master_id,
            master_address=self.live[self.master_id].broker_addr,
            master_epoch=self.epoch,
        )

    def _info(self, _request: GetReplicaInfo, _context: RequestContext) -> Response[MasterReply]:
        return Response(self._master(), body=fastjson.encode(self.body))

    def _register(
        self, request: RegisterReplica, _context: RequestContext
    ) -> Response[RegisterReplicaReply]:
        self.live.pop(request.broker_id, None)
        if request.broker_id == self.master_id and self.registers_as is None:
            self.elect()
        master = self.registers_as or self._master()
        reply = RegisterReplicaReply(
            master_broker_id=master.master_broker_id,
            master_address=master.master_address,
            master_epoch=master.master_epoch,
            sync_state_set_epoch=self.set_epoch,
        )
        return Response(reply, body=fastjson.encode(self.body))

    def _elect_for(
        self, request: ElectMaster, _context: RequestContext
    ) -> Response[ElectMasterReply]:
        if self.epoch == 0:
            self.epoch = 1
            self.make_master(request.broker_id)
        elif request.designate_elect and request.broker_id in self.members & self.live.keys():
            self.epoch += 1
            self.make_master(request.broker_id)
        elif self.master_id is None:
            self.elect()
        if self.master_id is None:
            return refusal(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "nobody can be elected")
        master = self._master()
        reply = ElectMasterReply(
            master_broker_id=master.master_broker_id,
            master_address=master.master_address,
            master_epoch=master.master_epoch,
            sync_state_set_epoch=self.set_epoch,
        )
        body = ElectMasterBody(sync_state_set=sorted(self.members))
        return Response(reply, body=fastjson.encode(body))

    def _replicas(
        self, _request: GetSyncStateData, _context: RequestContext
    ) -> Response[BrokerReplicasInfo]:
        info = ReplicasInfo(master_broker_id=self.master_id, master_epoch=self.epoch)
        for one, heartbeat in sorted(self.live.items()):
            replica = ReplicaIdentity(
                broker_name=heartbeat.broker_name,
                broker_id=one,
                broker_address=heartbeat.broker_addr,
                alive=True,
            )
            those = info.in_sync_replicas if one in self.members else info.not_in_sync_replicas
            those.append(replica)
        return Response(BrokerReplicasInfo(replicas_info_table={"broker-a": info}))

    def _alter(
        self, request: AlterSyncStateSet, wanted: SyncStateSet, _context: RequestContext
    ) -> Response[AlterSyncStateSetReply]:
        if request.master_epoch != self.epoch:
            return refusal(ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, "old epoch")
        if wanted.sync_state_set_epoch != self.set_epoch:
            return refusal(ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, "old set")
        self.members = set(wanted.sync_state_set)
        self.set_epoch += 1
        reply = AlterSyncStateSetReply(new_sync_state_set_epoch=self.set_epoch)
        return Response(reply, body=fastjson.encode(self.body))
