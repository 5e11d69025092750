"""Handler of the requests that only a broker in controller mode serves.

A controller reports the master of the group (1008). Operators ask for the epochs of the log (1007),
or a master to hand its mastership over (1002). Source: apache/rocketmq ``AdminBrokerProcessor``,
which does not know 1002.
"""

from __future__ import annotations

from dataclasses import dataclass

from turbopump.broker.replica.group_replication import GroupReplication
from turbopump.broker.replica.role import news_of
from turbopump.broker.replica.served_role import ServedRole
from turbopump.broker.stored import Stored
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.controller import (
    ElectMaster,
    ElectMasterReply,
    EpochCache,
    GetEpochCache,
    MasterReply,
    NotifyRoleChanged,
    SyncStateSet,
)
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import RequestContext, Router


@dataclass(eq=False)
class ReplicaHandler:
    """Handler of the requests that only a broker in controller mode serves."""

    served_role: ServedRole
    stored: Stored
    replication: GroupReplication

    def add_to(self, router: Router) -> None:
        """Register the methods of this handler with a router."""
        router.add_with_body(NotifyRoleChanged, self.role_changed)
        router.add(GetEpochCache, self.epochs)
        router.add(ElectMaster, self.hand_over)

    def role_changed(
        self, request: NotifyRoleChanged, body: SyncStateSet, _context: RequestContext
    ) -> Response[None]:
        reply = MasterReply(
            master_broker_id=request.master_broker_id,
            master_address=request.master_address,
            master_epoch=request.master_epoch,
        )
        self.served_role.note_role(news_of(reply, body, request.sync_state_set_epoch))
        return Response()

    def epochs(self, _request: GetEpochCache, _context: RequestContext) -> Response[EpochCache]:
        config = self.stored.config
        return Response(
            EpochCache(
                cluster_name=config.broker_cluster_name,
                broker_name=config.broker_name,
                broker_id=self.served_role.role.id_at_name_servers,  # RocketMQ: 0 for the master
                epoch_list=self.replication.epochs(),
                max_offset=self.stored.store.log.end,
            )
        )

    async def hand_over(
        self, request: ElectMaster, _context: RequestContext
    ) -> Response[ElectMasterReply]:
        """Let this master hand its mastership over.

        An election that an operator asks of the controller finds the master in the middle of its
        writes, and other replicas then cut the last of them from their logs.
        """
        fault = await self.served_role.hand_over(request.broker_id)
        if fault is not None:
            return refusal(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, fault)
        return Response(ElectMasterReply())
