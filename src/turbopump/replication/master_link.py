"""HA port of a plain master. It confirms messages by the acknowledgements of its slaves.

``master.py`` decides about sending, refusing and acknowledging; the store decides what readers see;
``ha_port.py`` moves the bytes. Topics, requests and name servers are unknown here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from turbopump.config.tls import ServerTls
from turbopump.disk.disk import Disk
from turbopump.errors import ProtocolError
from turbopump.replication.comparison import (
    PROVE,
    MasterComparison,
    Outcome,
    Range,
    Verdict,
    masters_refusal,
)
from turbopump.replication.ha_port import GATHER_S, HaPeer, HaPort
from turbopump.replication.handshake import PeerRules
from turbopump.replication.history import LogHistory
from turbopump.replication.in_sync_slaves import InSyncSlaves
from turbopump.replication.log_digest import start_digest
from turbopump.replication.master import MasterSettings, SlaveConnection
from turbopump.store.message_store import MessageStore

log = logging.getLogger(__name__)


class MasterLink(HaPort["SlavePeer"]):
    """HA port of a plain master. It confirms messages by the slaves in sync.

    - ``durable_only``, ``rules``, ``tls``: see ``HaPort``.

    Raises ConfigError if the files of ``tls`` cannot be used.
    """

    def __init__(
        self,
        store: MessageStore,
        disk: Disk,
        settings: MasterSettings,
        history: LogHistory,
        *,
        durable_only: bool,
        rules: PeerRules,
        tls: ServerTls | None,
    ) -> None:
        super().__init__(
            store,
            disk,
            durable_only=durable_only,
            gather_s=0.0 if settings.acks else GATHER_S,
            rules=rules,
            tls=tls,
        )
        self.settings = settings
        self.history = history
        self.in_sync_slaves = InSyncSlaves(settings)
        self.on_in_sync: Callable[[], None] = lambda: None
        """Called when enough slaves are in sync again."""

    def make_peer(self) -> SlavePeer:
        return SlavePeer(self)

    def check_in_sync(self, now: float) -> None:
        self.in_sync_slaves.update(now, self.store.confirmed.value)
        self._publish_copied()

    def record_acknowledgement(self, slave: SlavePeer) -> None:
        """Record the acknowledgement of a slave. Answer the sends that waited for this slave."""
        connection = slave.connection
        now = asyncio.get_running_loop().time()
        self.in_sync_slaves.record_acknowledgement(
            connection.slave,
            connection.acked,
            self.span.end,
            now,
            self.store.confirmed.value,
            proved=connection.proved,
        )
        self._publish_copied()

    def record_begin(self, slave: SlavePeer) -> None:
        """Record the start of sending the log to a slave, and log the event."""
        connection = slave.connection
        now = asyncio.get_running_loop().time()
        end = self.store.log.end
        self.in_sync_slaves.record_begin(
            connection.slave, proved=connection.proved, end=end, now=now
        )
        state = "proved"
        if not connection.proved:
            state = "not proved, so it counts only for messages stored from now on"
        log.info("slave begins slave=%s sent_from=%d log=%s", slave.address, connection.next, state)

    def _publish_copied(self) -> None:
        """Tell the store the offset up to which enough slaves have the log. Also report if too few
        are in sync."""
        if not self.settings.acks:
            return
        slaves = self.in_sync_slaves
        confirmed = self.store.confirmed
        if slaves.alone != confirmed.alone:
            wanted = self.settings.acks
            if slaves.alone:
                log.warning(
                    "too few slaves are in sync: sends are answered SLAVE_NOT_AVAILABLE wanted=%d",
                    wanted,
                )
            else:
                log.info("enough slaves are in sync wanted=%d", wanted)
        begins = confirmed.alone and not slaves.alone
        confirmed.note_copied(slaves.copied, alone=slaves.alone)
        if begins:
            self.on_in_sync()


class SlavePeer(HaPeer):
    """Connection of a slave, on the master's side."""

    port: MasterLink
    connection: SlaveConnection

    def __init__(self, port: MasterLink) -> None:
        super().__init__(port)
        self._is_first = True
        self._comparison: MasterComparison | None = None
        self._comparing: Range | None = None
        self.connection = SlaveConnection(port.settings, "", 0.0)

    def accepted(self, now: float) -> None:
        self.connection = SlaveConnection(self.port.settings, self.host, now)

    def receive(self, data: bytes) -> None:
        connection = self.connection
        now = asyncio.get_running_loop().time()
        begins = connection.next is None
        first = self._is_first
        self._is_first = False
        if first and data[0] == PROVE[0]:
            self._comparison = MasterComparison(self.port.history.known)
        try:
            if begins and self._comparison is not None:
                connection.last_read = now
                self._send_comparison(self._comparison.received(data, self.port.span))
                return
            reported = connection.receive_reports(data, self.port.span, now)
        except ProtocolError as error:
            self.fail(error)
            return
        if begins and connection.next is not None:
            self.port.record_begin(self)
            self.send_new()
        if reported:
            self.port.record_acknowledgement(self)
        self.port.watch_log()

    @property
    def compares(self) -> bool:
        """True until the comparison of the slave's log with this log is complete."""
        return self._comparison is not None and self.connection.next is None

    def _send_comparison(self, said: bytes) -> None:
        """Send bytes of a comparison to the slave. Then read the next range of the log to compare.

        After the end of the comparison, start to send the log or close the connection.
        """
        comparison = self._comparison
        assert comparison is not None
        if not self.is_open:
            return
        self.write(said)
        if (found := comparison.found) is not None:
            self._end_comparison(found, comparison.end)
        elif comparison.asked is not None and comparison.asked is not self._comparing:
            self._comparing = comparison.asked
            port = self.port
            start_digest(port.store.log, port.disk, comparison.asked, self._has_digest)

    def _has_digest(self, digest: bytes | OSError) -> None:
        if isinstance(digest, OSError):
            self.fail(digest)
        elif self._comparison is not None:
            self._send_comparison(self._comparison.set_digest(digest))

    def _end_comparison(self, found: Outcome, end: int) -> None:
        if found.verdict is Verdict.EQUAL:
            self.connection.begin_proved(found.offset)
            self.port.record_begin(self)
            self.send_new()
            self.port.watch_log()
            return
        self.dismiss(masters_refusal(found, end), kind=f"{self.host} {found.verdict}")
