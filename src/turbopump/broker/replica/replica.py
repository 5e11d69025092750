"""Replica: a broker whose role a controller decides.

A ``Broker`` keeps its role for its life. So this supervisor runs one after the other: first a slave
without a master, then one for each role that the controller gives, on the same ports and store.
Decisions are in ``role.py``, connections to controllers in ``controllers.py``. At any time at most
one broker is open, and none is master before the controller has elected this process.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from turbopump.auth.server_access import inner_signer
from turbopump.broker.background import stop_task
from turbopump.broker.broker import Broker
from turbopump.broker.replica.controllers import ANSWER_S, Controllers
from turbopump.broker.replica.identity import Claim, Identity
from turbopump.broker.replica.role import News, Part, Role, news_of
from turbopump.broker.replica.send_gate import SendGate
from turbopump.broker.replica.served_role import ServedRole
from turbopump.broker.store_opening import log_error
from turbopump.broker.store_settings import store_config
from turbopump.clock import Clock, SystemClock
from turbopump.config.addresses import join_address
from turbopump.config.broker_config import BrokerConfig, BrokerRole
from turbopump.disk.disk import Disk
from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import (
    NotStartedError,
    ProtocolError,
    RemotingError,
    ResponseError,
    StoreError,
)
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.controller import (
    FIRST_REPLICA_ID,
    AlterSyncStateSet,
    ApplyBrokerId,
    ElectMaster,
    ElectMasterBody,
    ElectMasterReply,
    GetNextBrokerId,
    GetReplicaInfo,
    MasterReply,
    NextBrokerIdReply,
    RegisterReplica,
    SyncStateSet,
)
from turbopump.protocol.requests.namesrv import BrokerHeartbeat
from turbopump.protocol.requests.replication import ExchangeHAInfo
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.listening_port import KeptSockets
from turbopump.repeated_line import RepeatedLine
from turbopump.store.truncation import cut_store

log = logging.getLogger(__name__)
_faulty = RepeatedLine(log, logging.WARNING, "%s")
_refused = RepeatedLine(log, logging.ERROR, "%s")
_set_refused = RepeatedLine(
    log, logging.WARNING, "sync state set refused wanted=%s code=%d cause=%s"
)

AGAIN_S: Final = 0.3
"""Mean seconds between two attempts to reach a controller, or to open a broker again."""
REFUSED_FOR_GOOD: Final = frozenset(
    {ResponseCode.CONTROLLER_INVALID_REPLICAS, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE}
)
"""Answers after which a wanted sync state set never takes effect."""
UNKNOWN_REPLICA: Final = frozenset(
    {
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
    }
)
"""Answers of a controller that does not know this broker name, or this id of it."""
ASK_S: Final = 1.0
MASTER_AGAIN_S: Final = 0.03
"""Seconds between two questions to a new master that does not serve yet."""
SUCCESSOR_S: Final = 3.0
"""Maximum seconds to wait for the election of a successor. The controller first waits for its next
heartbeat, which must report everything that is confirmed."""
PASSING_S: Final = 5.0
"""Maximum seconds for which a replaced master passes requests on before it stops."""
QUIET_S: Final = 1.0
"""Seconds without such a request after which it stops sooner."""
START_S: Final = 3.0
"""Maximum seconds that ``start`` waits for the controller. After that the replica continues in
the background."""


class Replica:
    """Broker in controller mode.

    The arguments are those of ``Broker``, except for ``open_disk``: a function that returns a disk.
    Each broker gets a disk of its own, and closes it.

    - ``broker``: the open broker, or None while none is open.
    - ``role``: the role that the controller has decided, or None before this replica has an id.
    - ``on_first_open``: called with the address for clients when the first broker has started.
    - ``on_progress``: called while the recovery of the store progresses.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        open_disk: Callable[[], Disk] | None = None,
        source: random.Random | None = None,
        file: Path | None = None,
    ) -> None:
        self.config = config
        self.broker: Broker | None = None
        self.role: Role | None = None
        self.on_first_open: Callable[[str], None] = lambda _address: None
        self.on_progress: Callable[[], None] = lambda: None
        self._file = file
        self._clock = clock or SystemClock()
        self._open_disk = open_disk
        self._random = source or random.Random()
        self._controllers = Controllers(
            config.controller_addresses,
            RemotingClient(tls=config.client_tls, signer=inner_signer(config)),
        )
        self._remoting = RemotingClient(tls=config.client_tls, signer=inner_signer(config))
        self._served: ServedRole | None = None
        self._opening: Broker | None = None
        """Broker that was made last. It may still be starting."""
        self._open_role: Role | None = None
        """Role for which a broker was opened last."""
        self._opened = asyncio.Event()
        self._changed = asyncio.Event()
        self._ask_now = asyncio.Event()
        self._reported = False
        """True once the controller knows the end of this log, and the floor of the role is
        known."""
        self._silent = False
        """True while no heartbeat is sent, so that a controller of Apache's elects again."""
        self._last_report = (0, 0, 0)
        self._last_address = ""
        """Address for clients of the broker that was opened last."""
        self._cut_to: tuple[int, int] | None = None
        """Offset to which the log must be cut, and the epoch of the master who needs that."""
        self._sockets = KeptSockets()
        self._ha_port: int | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._switching: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._altering: asyncio.Task[None] | None = None
        self._handing_over = asyncio.Lock()
        self._fault = ""

    # --- life

    async def start(self) -> None:
        """Get an id, open the store as a slave, and begin to follow the controller.

        If no controller answers a new replica, the method returns after ``START_S`` seconds, and
        the replica tries again in the background. Raises the errors of ``Broker.start``, and
        ConfigError if the identity on the disk is not of this broker.
        """
        try:
            with self._identity() as identity:
                replica_id = identity.load()
            if replica_id is not None:
                await self._open_first(replica_id)
            starting = asyncio.create_task(self._run(), name="replica")
            self._tasks.append(starting)
            opened = asyncio.create_task(self._opened.wait())
            await asyncio.wait(
                (starting, opened), timeout=START_S, return_when=asyncio.FIRST_COMPLETED
            )
            opened.cancel()
            if starting.done():
                starting.result()
        except BaseException:
            await self.close()
            raise

    @contextmanager
    def _identity(self) -> Iterator[Identity]:
        config = self.config
        disk = self._open_disk() if self._open_disk else _system_disk()
        try:
            yield Identity(
                disk, self._identity_path(), config.broker_cluster_name, config.broker_name
            )
        finally:
            disk.close()

    def _identity_path(self) -> Path:
        if self.config.store_path_broker_identity:
            return Path(self.config.store_path_broker_identity)
        return Path(self.config.store_path_root_dir) / "brokerIdentity"

    async def close(self) -> None:
        """Hand the mastership over, stop following the controller, and close the broker.

        A master passes requests on to the new master for some seconds. The method may be called
        twice.
        """
        await self._hand_over_at_stop()
        await asyncio.gather(*map(stop_task, self._tasks))
        await stop_task(self._following)
        await stop_task(self._altering)
        self._sockets.end()
        if self.broker is not None:
            broker, self.broker = self.broker, None
            await broker.close()
        await self._controllers.close()
        await self._remoting.close()

    async def _run(self) -> None:
        if self.role is None:
            with self._identity() as identity:
                replica_id = await self._claim_id(identity)
            await self._open_first(replica_id)
        self._switching = asyncio.create_task(self._switch(), name="roles of the replica")
        self._tasks.append(self._switching)
        await self._report()
        await self._follow_controller()

    # --- the id

    async def _claim_id(self, identity: Identity) -> int:
        """Get an id from the controller, and write it down. Return the id."""
        while True:
            try:
                claim = identity.load_claim() or await self._new_claim(identity)
                answer = await self._controllers.ask(
                    ApplyBrokerId(
                        cluster_name=self.config.broker_cluster_name,
                        broker_name=self.config.broker_name,
                        applied_broker_id=claim.id,
                        register_check_code=claim.check_code,
                    )
                )
                if answer.code == ResponseCode.SUCCESS:
                    identity.keep(claim.id)
                    log.info("id given by the controller id=%d", claim.id)
                    return claim.id
                self._note_fault(f"id {claim.id} is refused: {answer.remark}")
                identity.drop_claim()  # another replica has it by now
            except (RemotingError, ProtocolError, OSError) as error:
                self._note_fault(f"no id yet: {error}")
            await self._pause()

    async def _new_claim(self, identity: Identity) -> Claim:
        request = GetNextBrokerId(
            cluster_name=self.config.broker_cluster_name, broker_name=self.config.broker_name
        )
        answer = await self._controllers.ask(request)
        next_id = answer.header(NextBrokerIdReply).next_broker_id if not answer.code else None
        if next_id is None or next_id < FIRST_REPLICA_ID:
            raise ProtocolError(f"the controller names no id: {answer.remark}")
        # Replicas on free ports of one host would have the same code without the last number.
        code = f"{self._address()};{self._clock.now_ms()};{self._random.getrandbits(32)}"
        claim = Claim(next_id, code)
        identity.write_claim(claim)
        return claim

    def _address(self) -> str:
        if self._last_address:
            return self._last_address
        config = self.config
        return join_address(config.advertised_host, config.advertised_port or config.listen_port)

    # --- requests to the controller

    async def _report(self) -> None:
        """Register with the controller, begin to send heartbeats, and ask for a master.

        The order makes a restart safe. The registration ends the mastership of an earlier process,
        and removes the numbers that it had reported. Without a heartbeat this process cannot be
        elected. So masterships up to the present epoch are old ones (``role.py``).
        """
        while True:
            try:
                if await self._register():
                    break
            except (RemotingError, ProtocolError) as error:
                self._note_fault(f"not registered with a controller: {error}")
            await self._pause()
        self._controllers.start_heartbeats(
            self.config.broker_heartbeat_interval / 1000, self._heartbeat
        )

    async def _register(self) -> bool:
        """Register with the controller. Return False if it must be tried again."""
        assert self.role is not None
        config = self.config
        answer = await self._controllers.ask(
            RegisterReplica(
                cluster_name=config.broker_cluster_name,
                broker_name=config.broker_name,
                broker_id=self.role.id,
                broker_address=self._address(),
                invoke_time=self._clock.now_ms(),
            )
        )
        if answer.code != ResponseCode.SUCCESS:
            fault = f"the controller refuses this replica: {answer.code} {answer.remark or ''}"
            if answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
                fault += (
                    f"; if it was cleaned, stop this broker, remove {self._identity_path()} and "
                    "start it again: it gets a new id. If the controller has lost its file, read "
                    '"When the file is lost" in the guide about the controller'
                )
            self._note_fault(fault, _refused)
            return False
        news = await self._replica_info()
        if news is None:
            return False
        self._note_fault("")
        self.role = dataclasses.replace(self.role, floor=max(self.role.floor, news.master_epoch))
        self._reported = True
        self._take_news(news)
        heartbeat = self._heartbeat()
        if heartbeat is not None:
            await self._controllers.tell(heartbeat)
            if self.role.master_id is None:
                await self._elect()
        return True

    async def _follow_controller(self) -> None:
        """Ask the controller for the master at an interval, and at once after a notice."""
        period = self.config.sync_broker_metadata_period / 1000
        loop = asyncio.get_running_loop()
        leader_due = loop.time()
        while True:
            try:
                async with asyncio.timeout(period):
                    await self._ask_now.wait()
            except TimeoutError:
                pass
            self._ask_now.clear()
            try:
                if loop.time() >= leader_due:
                    leader_due = loop.time() + self.config.sync_controller_metadata_period / 1000
                    await self._controllers.find_leader()
                await self._ask_for_master()
            except (RemotingError, ProtocolError) as error:
                self._note_fault(f"the controller cannot be asked: {error}")

    async def _ask_for_master(self) -> None:
        assert self.role is not None
        news = await self._replica_info()
        if news is None:  # the controller has lost its memory, or this replica was cleaned away
            await self._register()
            return
        self._note_fault("")
        self._take_news(news)
        if news.master_id is None and self.role.master_id is None:
            self._silent = False
            await self._elect()

    async def _replica_info(self) -> News | None:
        """Ask the controller for the master. Return None if it does not know this replica."""
        assert self.role is not None
        request = GetReplicaInfo(broker_name=self.config.broker_name, broker_id=self.role.id)
        answer = await self._controllers.ask(request)
        if answer.code in UNKNOWN_REPLICA:
            return None
        _check(answer, request)
        return news_of(answer.header(MasterReply), _set_in(answer))

    async def _elect(self, successor: int | None = None) -> str | None:
        """Ask the controller to elect a master, because there is none.

        ``successor`` is the only replica that may be elected, in place of this master. Return None,
        or the reason why the controller has elected nobody.
        """
        assert self.role is not None
        if self.config.async_learner:
            return "this replica is a learner"
        request = ElectMaster(
            cluster_name=self.config.broker_cluster_name,
            broker_name=self.config.broker_name,
            broker_id=self.role.id if successor is None else successor,
            designate_elect=successor is not None,
            invoke_time=self._clock.now_ms(),
        )
        wait = ANSWER_S if successor is None else SUCCESSOR_S
        answer = await self._controllers.ask(request, timeout=wait)
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST):
            log.info("no master is elected cause=%s", answer.remark)
            return answer.remark or f"the controller answers code {answer.code}"
        reply = answer.header(ElectMasterReply)
        ids = fastjson.decode(answer.body, ElectMasterBody) if answer.body else ElectMasterBody()
        body = SyncStateSet(sync_state_set=ids.sync_state_set or [])
        self._take_news(news_of(reply, body, reply.sync_state_set_epoch))
        return None

    def _heartbeat(self) -> BrokerHeartbeat | None:
        """Return the next heartbeat. While a broker is closed for a switch, its last numbers
        count."""
        assert self.role is not None
        if self._silent:
            return None
        config = self.config
        if self.broker is not None:
            self._last_report = _report_of(self.broker)
        epoch, log_end, confirmed = self._last_report
        return BrokerHeartbeat(
            cluster_name=config.broker_cluster_name,
            broker_addr=self._address(),
            broker_name=config.broker_name,
            broker_id=self.role.id,
            epoch=epoch,
            max_offset=log_end,
            confirm_offset=confirmed,
            heartbeat_timeout_mills=config.controller_heart_beat_timeout_mills,
            election_priority=config.broker_election_priority,
            min_in_sync_replicas=config.min_in_sync_replicas,
        )

    # --- news, and changes of the role

    def note_role(self, news: News) -> None:
        """Take a notice of a controller (1008). Before this process has reported its log, notices
        may be about an earlier one, and mean nothing."""
        if self._reported:
            self._take_news(news)

    def _take_news(self, news: News) -> None:
        assert self.role is not None
        if self.role.is_stale(news):
            if not self._silent:
                log.warning(
                    "not the master again before an election, because this process has just "
                    "started epoch=%d",
                    news.master_epoch,
                )
            self._silent = True
            return
        role = self.role.after(news)
        self._silent = self._silent and news.master_epoch <= role.floor
        if role == self.role:
            return
        before, self.role = self.role, role
        if (role.part, role.master_epoch) != (before.part, before.master_epoch):
            log.info(
                "role changes role=%s epoch=%d master=%s id=%d",
                role.part.value,
                role.master_epoch,
                role.master_address,
                role.id,
            )
            if before.is_master and self.broker is not None:
                self.broker.store.hold()
        self._changed.set()

    async def _switch(self) -> None:
        """Open and close brokers, so that the open one has the role that was decided last."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            assert self.role is not None
            assert self._open_role is not None
            role = self.role
            needs_cut = self._cut_to is not None
            if self.broker is None or needs_cut or role.begins_again(self._open_role):
                await self._open_again(role)
            elif self._served is not None:
                self._served.role = role
                self.broker.follow_role()
            self._open_role = role
            await self._follow_master(role)

    async def _open_again(self, role: Role) -> None:
        """Close the broker, and open it in another role. A failure is tried again.

        After a failure as the master, the replica waits for another election. Its epoch may be on
        the disk already, and is used once.
        """
        await stop_task(self._following)
        if self.broker is not None:
            await self._let_requests_end()
            broker, self.broker = self.broker, None
            await broker.close(stays=True)
        try:
            if self._cut_to is not None:
                offset, master_epoch = self._cut_to
                if role.master_epoch == master_epoch:  # else another master decides again
                    await self._cut(offset)
                self._cut_to = None
            await self._open(role)
        except Exception as error:
            self._note_fault(f"the broker cannot be opened as {role.part.value}: {error}")
            assert self.role is not None
            epoch = role.master_epoch
            if role.is_master and self.role.master_epoch == epoch:
                self.role = Role(id=role.id, floor=epoch, master_epoch=epoch)
            await self._pause()
            self._changed.set()

    async def _let_requests_end(self) -> None:
        """Pass the requests that wait here on to the new master, before their connections end."""
        assert self.role is not None
        if self._served is None or self.role.is_master or not self._served.role.is_master:
            return
        if self.role.master_address is None:
            return
        self._served.gate.pass_on(None)
        try:
            async with asyncio.timeout(QUIET_S):
                await self._ha_address_of(self.role.master_address)
                self._served.gate.pass_on(self.role.master_address)
                await self._served.gate.until_quiet(0.0, QUIET_S)
        except TimeoutError:
            return

    async def _open_first(self, replica_id: int) -> None:
        self.role = self._open_role = Role(id=replica_id)
        await self._open(self.role)

    async def _open(self, role: Role) -> None:
        served = ServedRole(
            role=role,
            gate=SendGate(self._remoting, inner_signer(self.config)),
            sockets=self._sockets,
            ha_port=self._ha_port,
            note_role=self.note_role,
            hand_over=self.hand_over,
            on_wanted_set=self._alter_set,
            on_cut_needed=self._note_cut,
            on_master_lost=self._controllers.send_heartbeats_now,
        )
        broker = Broker(
            self._config_for(role),
            clock=self._clock,
            disk=self._open_disk() if self._open_disk else None,
            source=self._random,
            file=self._file,
            served_role=served,
        )
        broker.readiness.recovery.on_progress = self.on_progress
        self._served = served
        self._opening = broker
        await broker.start()
        self._ha_port = broker.group_replication.ha_port or self._ha_port
        self._last_address = broker.address
        self.broker = broker
        self._last_report = _report_of(broker)
        if not self._opened.is_set():
            self._opened.set()
            self.on_first_open(broker.address)

    def _config_for(self, role: Role) -> BrokerConfig:
        if role.is_master:
            return dataclasses.replace(self.config, broker_role=BrokerRole.SYNC_MASTER, broker_id=0)
        return dataclasses.replace(self.config, broker_role=BrokerRole.SLAVE, broker_id=role.id)

    async def _follow_master(self, role: Role) -> None:
        await stop_task(self._following)
        self._following = None
        if role.part is Part.SLAVE:
            assert role.master_address is not None
            self._following = asyncio.create_task(
                self._find_ha_address(role.master_address),
                name=f"search for the HA port of {role.master_address}",
            )

    async def _find_ha_address(self, master: str) -> None:
        """Find the replication port of the master, and let the slave copy there."""
        ha_address = await self._ha_address_of(master)
        if self.broker is not None:
            self.broker.follow_master(master, ha_address)

    async def _ha_address_of(self, master: str) -> str:
        """Ask the master for the address of its replication port, until it answers.

        The master names one only once it serves as such. Before that it may still be a slave, or be
        opening its store.
        """
        fault = ""
        while True:
            try:
                reply = await self._remoting.call(master, ExchangeHAInfo(), timeout=ASK_S)
                if reply.master_ha_address:
                    return reply.master_ha_address
            except (RemotingError, ProtocolError) as error:
                if not fault:
                    log.info("master does not answer yet master=%s cause=%s", master, error)
                fault = str(error)
            await asyncio.sleep(MASTER_AGAIN_S)

    # --- a planned stop

    async def _hand_over_at_stop(self) -> None:
        """Make another replica the master before this one stops, so that no send fails.

        Requests are then passed on to it, until none has come for a while. Without another replica
        in the sync state set the stop is as sudden as a kill.
        """
        broker = self.broker
        served = self._served
        if broker is None or served is None or not self._is_master():
            return
        await stop_task(self._switching)  # this broker stays open as it is
        fault = await self.hand_over()
        if fault is not None:
            log.warning("mastership is not handed over cause=%s", fault)
            return
        gate = served.gate
        await broker.group_replication.stop()  # the others copy from the new master
        assert self.role is not None
        master = self.role.master_address
        gate.pass_on(None)
        if master is None:
            log.warning("no other master is elected yet")
            return
        try:
            async with asyncio.timeout(PASSING_S):
                await self._ha_address_of(master)
        except TimeoutError:
            log.warning("the new master does not answer yet master=%s", master)
        gate.pass_on(master)
        await gate.until_quiet(QUIET_S, PASSING_S)
        await gate.refuse(f"this broker stops, the master is {master}", ANSWER_S)
        log.info("requests passed on to the new master count=%d", gate.passed_on)

    async def hand_over(self, wanted: int | None = None) -> str | None:
        """Let another replica become the master, and store nothing any more before it is elected.

        ``wanted`` is its id, by default of the one in the sync state set that has most of the log.
        Requests wait meanwhile. Return None, or the reason why this replica is still the master.
        """
        async with self._handing_over:
            broker = self.broker
            served = self._served
            if broker is None or served is None or not self._is_master():
                return "this replica is not the master"
            successor = broker.group_replication.best_member(wanted)
            if successor is None:
                who = "no other replica" if wanted is None else f"replica {wanted}"
                return f"{who} is in sync"
            log.info("mastership is handed over successor=%d", successor)
            served.gate.hold("the mastership of this broker is being handed over")
            fault = None
            try:
                await broker.finish_writes()
                fault = await self._elect(successor)
            except (RemotingError, ProtocolError) as error:
                fault = str(error)
            finally:
                if self._is_master() and self.broker is broker:
                    broker.resume_writes()
                    broker.follow_role()  # opens the gate
                    fault = fault or "the controller has elected no other"
            return fault

    def _is_master(self) -> bool:
        return self.role is not None and self.role.is_master

    # --- the sync state set

    def _alter_set(self, ids: frozenset[int], set_epoch: int) -> None:
        """Ask the controller for the sync state set that the master's link wants."""
        self._altering = asyncio.create_task(
            self._ask_for_set(ids, set_epoch), name="change of the sync state set"
        )

    async def _ask_for_set(self, ids: frozenset[int], set_epoch: int) -> None:
        """Ask for a set until the controller has answered, and pass the answer to the link.

        Without an answer the request may take effect at any moment, so the link counts both sets.
        """
        served = self._served
        broker = self.broker or self._opening  # slaves connect during the start
        try:
            link = None if broker is None else broker.group_replication.master
        except NotStartedError:  # it has just been closed
            return
        if served is None or link is None or not self._is_master():
            return  # a replaced master has no set to change
        role = served.role
        request = AlterSyncStateSet(
            broker_name=self.config.broker_name,
            master_broker_id=role.id,
            master_epoch=role.master_epoch,
            invoke_time=self._clock.now_ms(),
        )
        body = SyncStateSet(sync_state_set=sorted(ids), sync_state_set_epoch=set_epoch)
        try:
            answer = await self._controllers.ask(request, fastjson.encode(body))
        except RemotingError as error:
            log.warning("sync state set not changed wanted=%s cause=%s", sorted(ids), error)
            self._ask_now.set()  # the set may have changed, or the master
            await self._pause()
            link.request_unanswered()
            return
        if answer.code != ResponseCode.SUCCESS:
            _set_refused(sorted(ids), answer.code, answer.remark, kind=(role.id, ids))
            self._ask_now.set()
            if answer.code in REFUSED_FOR_GOOD:
                is_unknown = answer.code == ResponseCode.CONTROLLER_INVALID_REPLICAS
                link.request_refused(unknown=is_unknown)
            else:  # perhaps an earlier copy of the request took effect
                await self._pause()
                link.request_unanswered()
            return
        reply = _set_in(answer) or SyncStateSet()
        self._take_news(
            News(
                master_id=role.id,
                master_address=role.master_address,
                master_epoch=role.master_epoch,
                sync_state_set=frozenset(reply.sync_state_set),
                set_epoch=reply.sync_state_set_epoch,
            )
        )

    # --- a log that must be cut

    def _note_cut(self, offset: int) -> None:
        assert self.role is not None
        self._cut_to = (offset, self.role.master_epoch)
        self._changed.set()

    async def _cut(self, offset: int) -> None:
        """Cut the log of the closed store to ``offset``, in a thread.

        Raises the errors of ``cut_store``.
        """
        disk = self._open_disk() if self._open_disk else _system_disk()
        finished = asyncio.Event()
        failures = list[Exception]()

        def run() -> None:
            try:
                cut_store(store_config(self.config), disk, self._clock, offset, log_error)
            except (StoreError, OSError) as error:
                failures.append(error)

        disk.start(run, lambda _error: finished.set())
        try:
            await finished.wait()
        finally:
            disk.close()
        if failures:
            raise failures[0]
        log.info("log cut end=%d", offset)

    # --- faults

    def reasons(self) -> list[str]:
        """Return the reasons why this replica is not ready, or an empty list if it is."""
        if self.broker is None:
            return [self._fault or "the replica changes its role"]
        faults = [self._fault] if self._fault else []
        return faults + self.broker.readiness.reasons()

    def _note_fault(self, fault: str, line: RepeatedLine = _faulty) -> None:
        """Log a fault, at a slow pace while it lasts. An empty text is the end of it."""
        if fault:
            line(fault, kind=(self._address(), fault))
        elif self._fault:
            log.info("the controller answers again")
        self._fault = fault

    async def _pause(self) -> None:
        await asyncio.sleep(AGAIN_S * (0.5 + self._random.random()))


def _report_of(broker: Broker) -> tuple[int, int, int]:
    damaged_from = broker.parts.delivering.log_repair.open_from
    return broker.group_replication.log_report(damaged_from)


def _system_disk() -> Disk:
    return SystemDisk(asyncio.get_running_loop().call_soon_threadsafe)


def _set_in(answer: Command) -> SyncStateSet | None:
    return fastjson.decode(answer.body, SyncStateSet) if answer.body else None


def _check(answer: Command, request: Request[Any]) -> None:
    if answer.code != ResponseCode.SUCCESS:
        raise ResponseError(
            answer.code, answer.remark, request=type(request).__name__, address="the controller"
        )
