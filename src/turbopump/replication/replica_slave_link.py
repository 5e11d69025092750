"""Connection of a replica to the master of its group.

``replica_slave.py`` decides about cutting, accepting and acknowledging; ``copying_link.py`` moves
the bytes. The controller is unknown here: the supervisor says who the master is, and cuts the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from turbopump.config.tls import ClientTls
from turbopump.disk.disk import Disk
from turbopump.errors import ProtocolError
from turbopump.replication import auto_switch
from turbopump.replication.copying_link import CopyingLink, CopyingPeer
from turbopump.replication.epochs import EpochFile
from turbopump.replication.handshake import PeerRules, SlaveHandshake
from turbopump.replication.replica_slave import OwnLog, ReplicaMaster
from turbopump.replication.slave import SlaveSettings
from turbopump.store.message_store import MessageStore

log = logging.getLogger(__name__)


class ReplicaSlaveLink(CopyingLink):
    """Task that copies the log of the group's master to this replica.

    The other arguments are those of ``CopyingLink``.

    - ``epochs``: the epochs of this log. They become those of the master.
    - ``handshake``: the first frame, with the id of this replica.
    """

    def __init__(
        self,
        store: MessageStore,
        disk: Disk,
        settings: SlaveSettings,
        epochs: EpochFile,
        handshake: auto_switch.SlaveHandshake,
        *,
        ack_flushed: bool,
        flushes: bool,
        rules: PeerRules,
        tls: ClientTls | None,
    ) -> None:
        super().__init__(
            store, disk, settings, ack_flushed=ack_flushed, flushes=flushes, rules=rules, tls=tls
        )
        self.epochs = epochs
        self.handshake = handshake
        self.master_epoch = -1
        self.on_cut_needed: Callable[[int], None] = _ignore
        """Called once with the offset to which the log must be cut before it can be copied.

        This link copies nothing any more then. Close the store, call ``cut_store``, and open it
        again.
        """
        self.on_master_lost: Callable[[], None] = lambda: None
        """Called when a connection over which this replica copied has ended. The end of the log is
        then news for the controller, which may have to elect a master."""
        self.before_copying: Callable[[], Awaitable[None]] = _nothing
        """Awaited before each connection. Raises RemotingError, ProtocolError or StoreError if the
        master cannot be copied yet."""
        self.cut_to: int | None = None
        """Offset to which the log must be cut, or None."""

    def follow(self, address: str | None, master_epoch: int) -> None:
        """Set the address of the master's HA port, and the epoch of its election.

        A higher epoch at the same address is a new mastership, so the connection is renewed.
        """
        renews = master_epoch > self.master_epoch and address == self.address
        self.master_epoch = max(self.master_epoch, master_epoch)
        self.set_master(address)
        if renews:
            self.begin_again()

    async def prepare(self, handshake: SlaveHandshake | None, *, by_tls: bool) -> ReplicaMasterPeer:
        while self.cut_to is not None:
            await asyncio.get_running_loop().create_future()  # the supervisor stops this task
        await self.before_copying()
        return ReplicaMasterPeer(self, handshake)

    def need_cut(self, offset: int) -> None:
        """Stop copying, because the log must be cut to ``offset`` first."""
        log.warning(
            "this log has messages that the master's does not have, and is cut end=%d cut_to=%d",
            self.store.log.end,
            offset,
        )
        self.cut_to = offset
        self.on_cut_needed(offset)


class ReplicaMasterPeer(CopyingPeer):
    """Connection to the master, on the slave's side.

    - ``handshake``: the handshake with which the connection begins, or None.
    """

    link: ReplicaSlaveLink
    connection: ReplicaMaster

    def __init__(self, link: ReplicaSlaveLink, handshake: SlaveHandshake | None) -> None:
        super().__init__(link, handshake)
        self._saving = False
        store_log = link.store.log
        own = OwnLog(store_log.start, store_log.end, link.epochs.epochs, link.master_epoch)
        now = asyncio.get_running_loop().time()
        self.connection = ReplicaMaster(link.settings, link.handshake, own, now)

    def first_bytes(self) -> bytes:
        return self.connection.begin()

    def receive(self, data: bytes, now: float) -> None:
        master = self.connection
        master.received(data, now)
        if master.cut_to is not None:
            if self.link.cut_to is None:
                self.link.need_cut(master.cut_to)
            raise ProtocolError(f"the log here must be cut to {master.cut_to} first")
        if master.compared:
            self._save_epochs()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self.copies:
            self.link.on_master_lost()

    def store_received(self) -> None:
        super().store_received()
        if self.copies:
            store = self.link.store
            store.confirmed.note_replicas(self.connection.confirmed, sole=False)

    def _save_epochs(self) -> None:
        """Save the epochs of the master if they are new. Nothing is stored meanwhile."""
        epochs = self.connection.epochs
        if epochs == self.link.epochs.epochs:
            if not self.copies and not self._saving:
                self._begin_when_durable()
            return
        self.copies = False
        if self._saving:
            return
        self._saving = True

        def saved(error: OSError | None) -> None:
            self._saving = False
            if error is not None:
                where = error.filename or "epochFileCheckpoint"
                self.refuse(f"{where} cannot be written: {error.strerror or error}")
            elif self.is_open:
                self._save_epochs()

        self.link.epochs.save(epochs, saved)

    def _begin_when_durable(self) -> None:
        """Request the log from its end on, once the acknowledgement in this request is true."""
        link = self.link
        store = link.store
        end = store.log.end
        if self.copies or self._saving or not self.is_open:
            return
        if link.ack_flushed and store.durable.value < end:
            self._saving = True
            store.durable.when(end, self._is_durable)
            store.flusher.flush_log()
            return
        self.note_begin(end)
        self.copies = True
        self.store_received()

    def _is_durable(self) -> None:
        self._saving = False
        if (error := self.link.store.durable.error) is not None:
            self.refuse(str(error))
        else:
            self._begin_when_durable()


def _ignore(_offset: int) -> None:
    """Ignore the need for a cut before the supervisor is there."""


async def _nothing() -> None:
    """Do nothing before a connection. Only a broker has tables to copy first."""
