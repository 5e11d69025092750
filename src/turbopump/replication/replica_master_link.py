"""HA port of the master of a group of replicas, and its sync state set.

``replica_master.py`` decides about sending, ``sync_state_set.py`` about confirming and about the
wanted set. The store decides what readers see, and ``ha_port.py`` moves the bytes. The controller
is unknown here: its answers come in, and wishes go out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from turbopump.config.tls import ServerTls
from turbopump.disk.disk import Disk
from turbopump.errors import ProtocolError
from turbopump.replication.epochs import EpochFile
from turbopump.replication.ha_port import HaPeer, HaPort
from turbopump.replication.handshake import PeerRules
from turbopump.replication.master import MasterSettings
from turbopump.replication.replica_master import ReplicaConnection
from turbopump.replication.sync_state_set import SyncStateSet
from turbopump.store.message_store import MessageStore

log = logging.getLogger(__name__)

CONFIRM_S: Final = 0.005
"""Seconds after which slaves learn of a higher confirmed offset.

Apache's 5.3.3 slave does not learn of it in time if its master dies before: its dispatcher spins.
"""


@dataclass(frozen=True, slots=True)
class Mastership:
    """Identity of a replica as the master, and the rules by which it confirms messages.

    - ``own_id``: its id at the controller.
    - ``master_epoch``: the epoch of its election.
    - ``size_min``: the number of members without which sends are refused (`minInSyncReplicas`).
    - ``acks``: the number of members that must have a message before its send is answered, the
      master among them. None for all (`allAckInSyncStateSet`).
    """

    own_id: int
    master_epoch: int
    size_min: int = 1
    acks: int | None = None


class ReplicaMasterLink(HaPort["ReplicaPeer"]):
    """HA port of the master of a group. It confirms messages by its sync state set.

    Until the first ``set_sync_state`` nothing is confirmed and sends are to be refused.

    - ``durable_only``, ``rules``, ``tls``: see ``HaPort``.

    Raises ConfigError if the files of ``tls`` cannot be used, and OSError if the epoch cannot be
    saved. Raises ValueError if the log has this epoch or a later one already.
    """

    def __init__(
        self,
        store: MessageStore,
        disk: Disk,
        settings: MasterSettings,
        epochs: EpochFile,
        mastership: Mastership,
        *,
        durable_only: bool,
        rules: PeerRules,
        tls: ServerTls | None,
    ) -> None:
        # The epoch is on the disk before its first message is stored. Without epochs, all of the
        # log is of this one: slaves without a log then copy it whole.
        end = store.log.end
        epochs.save_now(
            epochs.epochs.append(
                mastership.master_epoch, end if epochs.epochs.epochs else store.log.start
            )
        )
        if mastership.acks is not None:
            store.confirmed.acknowledge_early()
        super().__init__(store, disk, durable_only=durable_only, gather_s=0.0, rules=rules, tls=tls)
        self.settings = settings
        self.epochs = epochs
        self.members = SyncStateSet(
            mastership.own_id,
            end,
            store.confirmed.value,
            catch_up=settings.catch_up,
            size_min=mastership.size_min,
        )
        self.on_wanted_set: Callable[[frozenset[int], int], None] = _ignore
        """Called with the set to ask the controller for (1001), and the number of the present set.

        Answer with ``set_sync_state``, ``request_refused`` or ``request_unanswered``. No other
        request comes before.
        """
        self.on_writable: Callable[[], None] = lambda: None
        """Called when ``is_writable`` may have changed."""
        self._acks = mastership.acks
        self._by_id: dict[int, ReplicaPeer] = {}
        self._confirming = False

    def make_peer(self) -> ReplicaPeer:
        return ReplicaPeer(self)

    def check_in_sync(self, now: float) -> None:
        self._ask_for_wanted(now)

    @property
    def is_writable(self) -> bool:
        """True if the sync state set has enough members to accept sends."""
        return self.members.is_writable

    @property
    def sync_state(self) -> frozenset[int]:
        """Ids in the sync state set, by the last answer of the controller."""
        return self.members.ids

    @property
    def set_epoch(self) -> int:
        """Number of the sync state set, or -1 before the first one."""
        return self.members.set_epoch

    def set_sync_state(self, ids: frozenset[int], set_epoch: int) -> None:
        """Set the sync state set, as the controller says. An older one is ignored."""
        before = self.members.ids
        now = asyncio.get_running_loop().time()
        self._note_own_end(now)
        self.members.set_members(ids, set_epoch, now)
        if self.members.ids != before:
            log.info(
                "sync state set changes old=%s new=%s number=%d",
                sorted(before),
                sorted(self.members.ids),
                self.members.set_epoch,
            )
        self._publish()
        self.on_writable()

    def request_refused(self, *, unknown: bool) -> None:
        """Record that the controller has refused the wanted set, so that it never takes effect.

        Only a refusal of one member proves that (codes 2003 and 2006). All others may be the answer
        to a repeated request whose first copy took effect, or come after a change of the master:
        call ``request_unanswered`` for them.

        - ``unknown``: True if the controller does not know an id in the set (2003).
        """
        self.members.request_refused(unknown=unknown)
        self._publish()

    def request_unanswered(self) -> None:
        """Record that the answer to the wanted set is unknown. The set is asked for again."""
        self.members.repeat_request(asyncio.get_running_loop().time())

    def record_begin(self, slave: ReplicaPeer) -> None:
        """Record the handshake of a slave. An older connection of the same slave is closed."""
        handshake = slave.connection.handshake
        assert handshake is not None
        replica_id = handshake.replica_id
        older = self._by_id.get(replica_id)
        self._by_id[replica_id] = slave
        if older is not None:
            older.close()
            self.members.disconnect(replica_id)
        now = asyncio.get_running_loop().time()
        self.members.connect(replica_id, now, learner=handshake.async_learner)

    def record_end(self, slave: ReplicaPeer) -> None:
        """Record the end of a slave's connection."""
        replica_id = slave.replica_id
        if replica_id is not None and self._by_id.get(replica_id) is slave:
            del self._by_id[replica_id]
            self.members.disconnect(replica_id)
            if self.is_open:
                self._ask_for_wanted(asyncio.get_running_loop().time())

    def record_acknowledgement(self, slave: ReplicaPeer, now: float) -> None:
        """Record the acknowledgement of a slave. Answer the sends that waited for this slave."""
        replica_id = slave.replica_id
        if replica_id is None or self._by_id.get(replica_id) is not slave:
            return
        own_end = self._note_own_end(now)
        self.members.acknowledge(replica_id, slave.connection.acked, own_end, now)
        if replica_id not in self.members.ids:
            self._ask_for_wanted(now)
        self._publish()

    def _note_own_end(self, now: float) -> int:
        end = self.store.durable.value if self._durable_only else self.store.log.end
        self.members.note_own_end(end, now)
        return end

    def _ask_for_wanted(self, now: float) -> None:
        """Ask the controller for the wanted set, if it is another one and no request is open."""
        self._note_own_end(now)
        wanted = self.members.next_request(now)
        self._publish()  # other members may count from now on
        if wanted is not None:
            log.info(
                "another sync state set is wanted present=%s wanted=%s",
                sorted(self.members.ids),
                sorted(wanted),
            )
            self.on_wanted_set(wanted, self.members.set_epoch)

    def _publish(self) -> None:
        """Tell the store what is confirmed, and soon the slaves."""
        members = self.members
        confirmed = self.store.confirmed
        before = confirmed.value
        acknowledged = None if self._acks is None else members.acked_by(self._acks - 1)
        sole = members.is_writable and members.counted == {members.own_id}
        confirmed.note_replicas(members.confirmed, sole=sole, acknowledged=acknowledged)
        if confirmed.value > before and not self._confirming and self.slaves:
            self._confirming = True
            asyncio.get_running_loop().call_later(CONFIRM_S, self._report_confirmed)

    def _report_confirmed(self) -> None:
        self._confirming = False
        for slave in list(self.slaves):
            slave.report_confirmed()


class ReplicaPeer(HaPeer):
    """Connection of a slave, on the master's side."""

    port: ReplicaMasterLink
    connection: ReplicaConnection

    def __init__(self, port: ReplicaMasterLink) -> None:
        super().__init__(port)
        self.accepted(0.0)

    @property
    def replica_id(self) -> int | None:
        """Id of the slave, or None before its handshake."""
        handshake = self.connection.handshake
        return None if handshake is None else handshake.replica_id

    def accepted(self, now: float) -> None:
        port = self.port
        self.connection = ReplicaConnection(port.settings, port.epochs.epochs, now)

    def receive(self, data: bytes) -> None:
        connection = self.connection
        port = self.port
        now = asyncio.get_running_loop().time()
        shaken = connection.handshake is not None
        begins = connection.next is None
        connection.confirmed = port.store.confirmed.value
        try:
            said, reported = connection.receive(data, port.span, now)
        except ProtocolError as error:
            self.fail(error)
            return
        if not shaken and connection.handshake is not None:
            port.record_begin(self)
        if said:
            self.write(said)
        if reported:
            port.record_acknowledgement(self, now)
        if begins and connection.next is not None:
            log.info(
                "slave begins slave=%s id=%s sent_from=%d",
                self.address,
                self.replica_id,
                connection.next,
            )
            self.send_new()
        port.watch_log()

    def send_new(self) -> None:
        self.connection.confirmed = self.port.store.confirmed.value
        super().send_new()

    def report_confirmed(self) -> None:
        """Send the confirmed offset to the slave, if it does not know it."""
        connection = self.connection
        if connection.confirmed_sent >= self.port.store.confirmed.value or not self.is_idle:
            return
        connection.confirmed = self.port.store.confirmed.value
        now = asyncio.get_running_loop().time()
        if (heartbeat := connection.next_heartbeat(now)) is not None:
            self.write(connection.head_of(heartbeat))

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.port.record_end(self)


def _ignore(_ids: frozenset[int], _set_epoch: int) -> None:
    """Ignore a wanted set before the supervisor is there to ask for it."""
