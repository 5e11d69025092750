"""Controllers: who leads, the replicas of each broker name, elections, and settings.

Each operation finds the leading controller first. Source of the requests: apache/rocketmq
``DefaultMQAdminExtImpl``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from turbopump.admin.cluster import Servers, broker_named
from turbopump.admin.settings import (
    SettingChange,
    change_settings_of_each,
    exchange_checked,
    read_settings,
)
from turbopump.config import properties
from turbopump.config.addresses import parse_addresses
from turbopump.errors import ClientError, ConfigError, NotFoundError, ProtocolError, RemotingError
from turbopump.protocol import fastjson
from turbopump.protocol.command import Body, Command, reply_in
from turbopump.protocol.request import Request
from turbopump.protocol.requests.configuration import GetBrokerConfig
from turbopump.protocol.requests.controller import (
    BrokerReplicasInfo,
    CleanBrokerData,
    ControllerMetadata,
    ElectMaster,
    ElectMasterBody,
    EpochCache,
    GetControllerConfig,
    GetControllerMetadata,
    GetEpochCache,
    GetSyncStateData,
    ReplicasInfo,
    UpdateControllerConfig,
)

ANY_REPLICA: Final = -1
"""Replica id in an election that lets the controller choose."""
HAND_OVER_S: Final = 8.0
"""Maximum seconds to wait for a master that hands its mastership over."""


@dataclass(frozen=True, slots=True)
class ControllerState:
    """State of one controller, as it reports it.

    - ``metadata``: the answer, or None if the controller did not answer.
    - ``fault``: the reason why it did not answer, or None.
    """

    address: str
    metadata: ControllerMetadata | None
    fault: str | None = None

    @property
    def leader(self) -> str | None:
        """Address of the leading controller. None if this one knows none."""
        return (self.metadata and self.metadata.controller_leader_address) or None


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """State of one replica of a broker name.

    - ``id``: the id that the controller gave it, which does not change with the role.
    - ``in_sync``: True if the replica is in the sync state set: it has every acknowledged message.
    """

    broker: str
    id: int
    address: str
    alive: bool
    in_sync: bool
    is_master: bool


@dataclass(frozen=True, slots=True)
class GroupState:
    """Master and replicas of one broker name.

    - ``master_id``: None while there is no master.
    - ``replicas``: sorted by id.
    """

    broker: str
    master_id: int | None
    master_address: str | None
    master_epoch: int
    sync_state_set_epoch: int
    replicas: tuple[ReplicaState, ...]

    def replica(self, id_: int | None) -> ReplicaState | None:
        """Return the replica with an id, or None."""
        return next((one for one in self.replicas if one.id == id_), None)

    @property
    def in_sync(self) -> list[int]:
        """Ids in the sync state set."""
        return [one.id for one in self.replicas if one.in_sync]


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """Epochs in the log of one replica, as the replica itself reports them.

    - ``epochs``: None if the replica did not answer. ``fault`` is then the reason.
    - ``behind_bytes``: bytes of the master's log that the replica does not have. None if one of the
      two did not answer.
    """

    replica: ReplicaState
    epochs: EpochCache | None
    behind_bytes: int | None
    fault: str | None = None

    @property
    def last_epoch(self) -> int | None:
        """Epoch of the master that wrote the last messages of the log."""
        entries = () if self.epochs is None else self.epochs.epoch_list
        return entries[-1].epoch if entries else None


@dataclass(frozen=True, slots=True)
class Elected:
    """Outcome of an election.

    - ``sync_state_set``: ids of the replicas that have every acknowledged message.
    - ``addresses``: the address of each replica, by brokerId as name servers know it.
    """

    broker: str
    master_id: int
    master_address: str
    master_epoch: int
    sync_state_set: tuple[int, ...]
    addresses: Mapping[int, str]


class Controllers:
    """Operations on the controllers of a cluster, ours or Apache's.

    The parameter ``controller`` of an operation is ``HOST:PORT`` of any controller, or of several,
    separated by ``;``. By default it is ``controllerAddr`` of the brokers, which are asked first.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def addresses(self) -> list[str]:
        """Return the addresses of all controllers that the brokers use.

        Sends GET_BROKER_CONFIG (26) to brokers until one answers, for each broker name. Raises
        ClientError if no broker has a controller, and RemotingError if no name server answers.
        """
        found: dict[str, None] = {}
        for broker in (await self._servers.brokers()).broker_addr_table.values():
            for _, address in sorted(broker.broker_addrs.items()):
                try:
                    answer = await exchange_checked(self._servers, address, GetBrokerConfig())
                    settings = properties.decode(answer.body)
                    if settings.get("enableControllerMode") == "true":
                        text = settings.get("controllerAddr", "")
                        found |= dict.fromkeys(parse_addresses(text, what="controllerAddr"))
                except (RemotingError, ProtocolError, ConfigError):
                    continue  # another replica may answer
                break
        if not found:
            raise ClientError(
                "no broker that answers has a controller (enableControllerMode, controllerAddr): "
                "give the address of a controller"
            )
        return list(found)

    async def states(self, controller: str | None = None) -> list[ControllerState]:
        """Return the state of each controller: its group, who leads, all members.

        Sends CONTROLLER_GET_METADATA_INFO (1005) to each. A controller that does not answer has a
        ``fault`` in the result. Raises the errors of ``addresses``. Java:
        ``getControllerMetaData``.
        """
        found = []
        for address in await self._those(controller):
            try:
                metadata = await self._servers.ask(address, GetControllerMetadata())
            except (RemotingError, ProtocolError) as error:
                found.append(ControllerState(address, None, str(error)))
            else:
                found.append(ControllerState(address, metadata))
        return found

    async def leader(self, controller: str | None = None) -> str:
        """Return the address of the leading controller.

        Sends CONTROLLER_GET_METADATA_INFO (1005) to each. Raises ClientError if none leads, and the
        errors of ``addresses``.
        """
        states = await self.states(controller)
        for one in states:
            if one.metadata is not None and one.metadata.is_leader:
                return one.address
        for one in states:
            if one.leader is not None:
                return one.leader
        reasons = "; ".join(f"{one.address}: {one.fault or 'knows no leader'}" for one in states)
        raise ClientError(f"no controller leads: {reasons}")

    async def replicas(
        self, brokers: Sequence[str] | None = None, controller: str | None = None
    ) -> dict[str, GroupState]:
        """Return the master and the replicas of broker names. A name that the controller does not
        know is left out.

        - ``brokers``: the brokerNames, by default all that a name server knows.

        Sends CONTROLLER_GET_SYNC_STATE_DATA (1006) to the leading controller. Raises RemotingError,
        and the errors of ``leader``. Java: ``getInSyncStateData``.
        """
        leader = await self.leader(controller)
        if brokers is None:
            brokers = sorted((await self._servers.brokers()).broker_addr_table)
        body = fastjson.encode(list(brokers))
        answer = await self._servers.ask(leader, GetSyncStateData(), body)
        return {name: _group(name, one) for name, one in _sorted_table(answer)}

    async def logs(self, group: GroupState) -> list[ReplicaLog]:
        """Return the epochs in the log of each replica, in the order of the replicas.

        - ``group``: from ``replicas``.

        Sends GET_BROKER_EPOCH_CACHE (1007) to each replica that is alive. A replica that does not
        answer has a ``fault`` in the result.
        """
        caches: dict[int, EpochCache] = {}
        faults: dict[int, str] = {}
        for one in group.replicas:
            if not one.alive:
                faults[one.id] = "the controller has no heartbeat of it"
                continue
            try:
                caches[one.id] = await self._servers.ask(one.address, GetEpochCache())
            except (RemotingError, ProtocolError) as error:
                faults[one.id] = str(error)
        master = None if group.master_id is None else caches.get(group.master_id)
        return [
            ReplicaLog(
                one, caches.get(one.id), _behind(master, caches.get(one.id)), faults.get(one.id)
            )
            for one in group.replicas
        ]

    async def elect(
        self,
        broker: str,
        replica: int = ANY_REPLICA,
        *,
        controller: str | None = None,
        cluster: str | None = None,
    ) -> Elected:
        """Elect a master, also in place of one that is alive.

        - ``broker``: the brokerName.
        - ``replica``: id of the replica that becomes the master. By default the controller chooses.
        - ``cluster``: by default that of the broker at a name server.

        Sends CONTROLLER_ELECT_MASTER (1002) to the leading controller. A living master of ours gets
        it first, and then hands its mastership over: no replica has to cut its log. Raises
        ResponseError if no replica may become the master, RemotingError, and the errors of
        ``leader``. Java: ``electMaster``.
        """
        request = ElectMaster(
            cluster_name=await self._cluster_of(broker, cluster),
            broker_name=broker,
            broker_id=replica,
            designate_elect=replica != ANY_REPLICA,
        )
        if request.designate_elect:
            elected = await self._ask_master(request, controller)
            if elected is not None:
                return elected
        answer = await self._ask_leader(controller, request)
        reply = reply_in(answer, request)
        body = fastjson.decode(answer.body, ElectMasterBody) if answer.body else ElectMasterBody()
        members = body.broker_member_group
        return Elected(
            broker,
            reply.master_broker_id or 0,
            reply.master_address or "",
            reply.master_epoch or 0,
            tuple(sorted(body.sync_state_set or ())),
            {} if members is None else dict(sorted(members.broker_addrs.items())),
        )

    async def _ask_master(self, request: ElectMaster, controller: str | None) -> Elected | None:
        """Ask a living master to hand its mastership over. Return None if it has not done so."""
        name, wanted = request.broker_name, request.broker_id
        before = (await self.replicas([name], controller)).get(name)
        master = None if before is None else before.replica(before.master_id)
        if master is None or not master.alive or master.id == wanted:
            return None
        with suppress(RemotingError, ProtocolError):  # it is Apache's, or frozen
            await self._servers.call(master.address, request, timeout=HAND_OVER_S)
        after = (await self.replicas([name], controller)).get(name)
        if after is None or after.master_id != wanted or after.replica(wanted) is None:
            return None
        addresses = {one.id: one.address for one in after.replicas}
        in_sync = tuple(after.in_sync)
        return Elected(name, wanted, addresses[wanted], after.master_epoch, in_sync, addresses)

    async def clean(
        self,
        broker: str,
        replicas: Sequence[int] | None = None,
        *,
        also_living: bool = False,
        controller: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Make the controllers forget replicas of a broker name. Ids are not given away again.

        - ``replicas``: their ids, by default all replicas, and with them the broker name.
        - ``also_living``: forget also replicas that are alive.

        Sends CLEAN_BROKER_DATA (1011) to the leading controller. Raises ResponseError if a replica
        is alive or does not exist, RemotingError, and the errors of ``leader``. Java:
        ``cleanControllerBrokerData``.
        """
        request = CleanBrokerData(
            cluster_name=await self._cluster_of(broker, cluster, optional=True),
            broker_name=broker,
            broker_controller_ids_to_clean=(
                None if replicas is None else ";".join(map(str, replicas))
            ),
            is_clean_living_broker=also_living,
        )
        await self._ask_leader(controller, request)

    async def settings(self, controller: str | None = None) -> dict[str, dict[str, str]]:
        """Return the settings of each controller, by its address and by Apache's keys.

        Sends GET_CONTROLLER_CONFIG (1010) to each. Raises RemotingError, and the errors of
        ``addresses``. Java: ``getControllerConfig``.
        """
        return {
            address: await read_settings(self._servers, address, GetControllerConfig())
            for address in await self._those(controller)
        }

    async def change_settings(
        self, wanted: Mapping[str, str], controller: str | None = None
    ) -> list[SettingChange]:
        """Change settings of each controller. Return one change for each controller and key.

        Sends UPDATE_CONTROLLER_CONFIG (1009) to each, and GET_CONTROLLER_CONFIG (1010) before and
        after. Raises ConfigError if ``wanted`` is empty, and ClientError if a controller failed;
        the error lists all. Java: ``updateControllerConfig``.
        """
        return await change_settings_of_each(
            self._servers,
            await self._those(controller),
            wanted,
            read=GetControllerConfig(),
            update=UpdateControllerConfig(),
        )

    async def _those(self, controller: str | None) -> list[str]:
        if controller is None:
            return await self.addresses()
        return parse_addresses(controller, what="controller address")

    async def _cluster_of(self, broker: str, cluster: str | None, *, optional: bool = False) -> str:
        """Return the cluster of a broker name. If it is optional, that of an unknown one is
        empty."""
        if cluster is not None:
            return cluster
        try:
            return broker_named(await self._servers.brokers(), broker).cluster or ""
        except NotFoundError:
            if optional:
                return ""
            raise

    async def _ask_leader(
        self, controller: str | None, request: Request[Any], body: Body = b""
    ) -> Command:
        leader = await self.leader(controller)
        return await exchange_checked(self._servers, leader, request, body)


def _sorted_table(answer: BrokerReplicasInfo) -> list[tuple[str, ReplicasInfo]]:
    return sorted(answer.replicas_info_table.items())


def _behind(master: EpochCache | None, replica: EpochCache | None) -> int | None:
    if master is None or replica is None:
        return None
    return max(0, master.max_offset - replica.max_offset)


def _group(name: str, info: ReplicasInfo) -> GroupState:
    found = [
        ReplicaState(
            name,
            one.broker_id or 0,
            one.broker_address or "",
            one.alive,
            in_sync,
            one.broker_id == info.master_broker_id,
        )
        for in_sync, those in ((True, info.in_sync_replicas), (False, info.not_in_sync_replicas))
        for one in those
    ]
    found.sort(key=lambda one: one.id)
    return GroupState(
        name,
        info.master_broker_id,
        info.master_address,
        info.master_epoch,
        info.sync_state_set_epoch,
        tuple(found),
    )
