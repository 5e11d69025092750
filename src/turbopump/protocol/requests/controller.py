"""Requests to a controller, and those that a controller or an operator sends to its brokers.

- Brokers: 1001 CONTROLLER_ALTER_SYNC_STATE_SET, 1002 CONTROLLER_ELECT_MASTER, 1003
  CONTROLLER_REGISTER_BROKER, 1004 CONTROLLER_GET_REPLICA_INFO, 1012
  CONTROLLER_GET_NEXT_BROKER_ID, 1013 CONTROLLER_APPLY_BROKER_ID; the heartbeat is 904
  BROKER_HEARTBEAT in ``namesrv.py``
- Operators: 1005 CONTROLLER_GET_METADATA_INFO, 1006 CONTROLLER_GET_SYNC_STATE_DATA, 1009
  UPDATE_CONTROLLER_CONFIG, 1010 GET_CONTROLLER_CONFIG, 1011 CLEAN_BROKER_DATA
- To a broker: 1007 GET_BROKER_EPOCH_CACHE, 1008 NOTIFY_BROKER_ROLE_CHANGED

Replicas of one broker name have ids that begin with 1, and keep them when the master changes. The
*sync state set* has the ids of the replicas that have every acknowledged message. Each new master
has a higher *master epoch*; each change of the set raises the *sync state set epoch*. Times are in
ms since 1970. Source: apache/rocketmq ``remoting/protocol/header/controller``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from turbopump.message.java import Int32, Int64
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request
from turbopump.protocol.requests.namesrv import BrokerMemberGroup

FIRST_REPLICA_ID: Final = 1
"""Id that a controller gives to the first replica of a broker name."""


class SyncStateSet(msgspec.Struct, kw_only=True, rename="camel"):
    """Body of several requests and replies: the ids in the sync state set, and its epoch."""

    sync_state_set: list[Int64] = []
    sync_state_set_epoch: Int32 = 0


class AlterSyncStateSetReply(Reply, kw_only=True):
    """Reply to CONTROLLER_ALTER_SYNC_STATE_SET (1001). The body is the new ``SyncStateSet``."""

    new_sync_state_set_epoch: Int32 = 0


class AlterSyncStateSet(Request[AlterSyncStateSetReply], kw_only=True):
    """Ask a controller to replace the sync state set of the master that asks.

    The body has the new set, and the epoch of the set that it replaces.
    """

    code = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
    body = SyncStateSet
    broker_name: str
    master_broker_id: Int64
    master_epoch: Int32
    invoke_time: Int64 | None = None


class ElectMasterBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Body of the reply to CONTROLLER_ELECT_MASTER (1002)."""

    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: list[Int64] | None = None


class MasterReply(Reply, kw_only=True):
    """Fields of a reply that names the master of a broker name. None if there is no master."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None


class ElectMasterReply(MasterReply, kw_only=True):
    """Reply to CONTROLLER_ELECT_MASTER (1002). The body is an ``ElectMasterBody``."""

    sync_state_set_epoch: Int32 | None = None


class ElectMaster(Request[ElectMasterReply], kw_only=True):
    """Ask a controller to elect a master for a broker name.

    - ``broker_id``: the replica that asks, or that must become the master; -1 lets the controller
      choose.
    - ``designate_elect``: True if only ``broker_id`` may become the master, also in place of a
      master that is alive.
    """

    code = RequestCode.CONTROLLER_ELECT_MASTER
    cluster_name: str
    broker_name: str
    broker_id: Int64
    designate_elect: bool
    invoke_time: Int64 | None = None


class RegisterReplicaReply(MasterReply, kw_only=True):
    """Reply to CONTROLLER_REGISTER_BROKER (1003). The body is a ``SyncStateSet``.

    The fields of the master are absent if no master is alive.
    """

    cluster_name: str | None = None
    broker_name: str | None = None
    sync_state_set_epoch: Int32 | None = None


class RegisterReplica(Request[RegisterReplicaReply], kw_only=True):
    """Tell a controller the address of a replica that has an id, and ask for the master."""

    code = RequestCode.CONTROLLER_REGISTER_BROKER
    cluster_name: str
    broker_name: str
    broker_id: Int64
    broker_address: str
    invoke_time: Int64 | None = None


class GetReplicaInfo(Request[MasterReply], kw_only=True):
    """Ask a controller for the master of a broker name. The reply's body is a ``SyncStateSet``.

    ``broker_id`` is the id of the replica that asks, and RocketMQ has no such field. An id that was
    cleaned is refused.
    """

    code = RequestCode.CONTROLLER_GET_REPLICA_INFO
    broker_name: str
    broker_id: Int64 | None = None


class ControllerMetadata(Reply, kw_only=True):
    """Reply to CONTROLLER_GET_METADATA_INFO (1005).

    - ``controller_leader_address``: the controller that answers all other requests, ``host:port``.
    - ``is_leader``: True if that is the one that answered.
    - ``peers``: ``id:host:port;`` of each controller.
    """

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


class GetControllerMetadata(Request[ControllerMetadata], kw_only=True):
    """Ask any controller which one leads. No field is needed."""

    code = RequestCode.CONTROLLER_GET_METADATA_INFO


class ReplicaIdentity(msgspec.Struct, kw_only=True, rename="camel"):
    """Replica in the reply to CONTROLLER_GET_SYNC_STATE_DATA (1006)."""

    broker_name: str | None = None
    broker_id: Int64 | None = None
    broker_address: str | None = None
    alive: bool = False


class ReplicasInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Master and replicas of a broker name, in the reply to 1006."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 = 0
    sync_state_set_epoch: Int32 = 0
    in_sync_replicas: list[ReplicaIdentity] = []
    not_in_sync_replicas: list[ReplicaIdentity] = []


class BrokerReplicasInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to CONTROLLER_GET_SYNC_STATE_DATA (1006), by broker name."""

    replicas_info_table: dict[str, ReplicasInfo] = {}


class GetSyncStateData(Request[BrokerReplicasInfo], kw_only=True):
    """Ask a controller for the replicas of some broker names. The body is a JSON list of names."""

    code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA


class EpochEntry(msgspec.Struct, kw_only=True, rename="camel"):
    """Epoch of a master, and the log offsets at which its messages begin and end."""

    epoch: Int32
    start_offset: Int64
    end_offset: Int64


class EpochCache(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to GET_BROKER_EPOCH_CACHE (1007): the epochs in the log of a replica."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Int64 = 0
    epoch_list: list[EpochEntry] = []
    max_offset: Int64 = 0


class GetEpochCache(Request[EpochCache], kw_only=True):
    """Ask a broker in controller mode which masters have written its log."""

    code = RequestCode.GET_BROKER_EPOCH_CACHE


class NotifyRoleChanged(Request[None], kw_only=True):
    """Tell a replica that the master of its broker name has changed. The body is a
    ``SyncStateSet``."""

    code = RequestCode.NOTIFY_BROKER_ROLE_CHANGED
    body = SyncStateSet
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
    master_broker_id: Int64 | None = None


class UpdateControllerConfig(Request[None], kw_only=True):
    """Change settings of a controller. The body is text, a line ``key=value`` for each setting."""

    code = RequestCode.UPDATE_CONTROLLER_CONFIG


class GetControllerConfig(Request[None], kw_only=True):
    """Ask for all settings of a controller. The reply's body is text."""

    code = RequestCode.GET_CONTROLLER_CONFIG


class CleanBrokerData(Request[None], kw_only=True):
    """Tell a controller to forget replicas of a broker name.

    - ``broker_controller_ids_to_clean``: ids separated by semicolons; absent for all.
    - ``is_clean_living_broker``: True to forget also replicas that are alive.
    """

    code = RequestCode.CLEAN_BROKER_DATA
    cluster_name: str | None = None
    broker_name: str
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: Int64 | None = None


class NextBrokerIdReply(Reply, kw_only=True):
    """Reply to CONTROLLER_GET_NEXT_BROKER_ID (1012)."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Int64 | None = None


class GetNextBrokerId(Request[NextBrokerIdReply], kw_only=True):
    """Ask a controller for the id that the next new replica of a broker name would get."""

    code = RequestCode.CONTROLLER_GET_NEXT_BROKER_ID
    cluster_name: str
    broker_name: str


class ApplyBrokerIdReply(Reply, kw_only=True):
    """Reply to CONTROLLER_APPLY_BROKER_ID (1013)."""

    cluster_name: str | None = None
    broker_name: str | None = None


class ApplyBrokerId(Request[ApplyBrokerIdReply], kw_only=True):
    """Claim an id for a new replica.

    ``register_check_code`` is ``address;ms``. The same code claims the same id again, so that a
    replica may repeat a request whose answer was lost.
    """

    code = RequestCode.CONTROLLER_APPLY_BROKER_ID
    cluster_name: str
    broker_name: str
    applied_broker_id: Int64
    register_check_code: str
