"""Connection of a plain slave to its master. The logs are compared before new bytes are copied.

``slave.py`` decides about accepting and acknowledging; ``copying_link.py`` moves the bytes. Topics,
requests and name servers are unknown here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from turbopump.config.tls import ClientTls
from turbopump.disk.disk import Disk
from turbopump.errors import CopyError, ProtocolError
from turbopump.remoting.turns import awaited
from turbopump.replication.comparison import (
    Outcome,
    Range,
    SlaveComparison,
    Verdict,
    slaves_refusal,
)
from turbopump.replication.copying_link import CopyingLink, CopyingPeer
from turbopump.replication.handshake import PeerRules, SlaveHandshake
from turbopump.replication.history import LogHistory
from turbopump.replication.log_digest import start_digest
from turbopump.replication.slave import MasterConnection, SlaveSettings
from turbopump.store.message_store import MessageStore


class SlaveLink(CopyingLink):
    """Task that copies the log of the master to this slave, after a comparison of the logs.

    The other arguments are those of ``CopyingLink``.
    """

    def __init__(
        self,
        store: MessageStore,
        disk: Disk,
        settings: SlaveSettings,
        history: LogHistory,
        *,
        ack_flushed: bool,
        flushes: bool,
        rules: PeerRules,
        tls: ClientTls | None,
    ) -> None:
        super().__init__(
            store, disk, settings, ack_flushed=ack_flushed, flushes=flushes, rules=rules, tls=tls
        )
        self.history = history
        self.begin_at: Callable[[bool, bool], Awaitable[int | None]] = self._log_end
        """Awaited before each connection. Returns the offset from which the slave wants the log.

        - None if the master is turbopump's, and the logs are to be compared.
        - 0 to start at the file that the master is writing, as Apache's slave does. This is for a
          master that cannot be asked.

        The first argument is True if a handshake follows, the second if the connection uses TLS.
        Raises RemotingError, ProtocolError or ReadsRefusedError if the offset cannot be found,
        CopyError if this master must not be copied.
        """

    async def prepare(self, handshake: SlaveHandshake | None, *, by_tls: bool) -> MasterPeer:
        wanted = await self.begin_at(handshake is not None, by_tls)
        if wanted is not None:
            await self._record_unknown_log()
        return MasterPeer(self, wanted, handshake)

    async def _log_end(self, _shakes_hands: bool, _by_tls: bool) -> int | None:
        return self.store.log.end

    async def _record_unknown_log(self) -> None:
        """Record in the history that the next bytes come from a log without a known id.

        Raises CopyError if the history cannot be saved.
        """
        saved: asyncio.Future[OSError | None]
        saved, done, _ = awaited()
        self.history.begin_own(self.store.log.end)
        self.history.save(done)
        if (error := await saved) is not None:
            raise CopyError(_not_saved(error))


def _not_saved(error: OSError) -> str:
    return f"{error.filename or 'turbopump.history.json'} cannot be written: {error.strerror}"


class MasterPeer(CopyingPeer):
    """Connection to the master, on the slave's side.

    - ``wanted``: the first offset that the slave wants, or None to compare the logs first.
    - ``handshake``: the handshake with which the connection begins, or None.
    """

    link: SlaveLink
    connection: MasterConnection

    def __init__(
        self, link: SlaveLink, wanted: int | None, handshake: SlaveHandshake | None
    ) -> None:
        super().__init__(link, handshake)
        loop = asyncio.get_running_loop()
        self._wanted = wanted
        self.copies = wanted is not None
        log_ = link.store.log
        self._comparison = (
            SlaveComparison(log_.start, log_.end, link.history.known) if wanted is None else None
        )
        self._reading = False
        self.connection = MasterConnection(link.settings, wanted or 0, loop.time())

    def connected(self) -> None:
        if self._wanted is not None:
            self.note_begin(self._wanted)

    def first_bytes(self) -> bytes:
        return (self._comparison or self.connection).begin()

    def receive(self, data: bytes, now: float) -> None:
        if self._comparison is not None:
            self.connection.last_read = now
            self._answer_digests(self._comparison, data)
        else:
            self.connection.received(data, now)

    def _answer_digests(self, comparison: SlaveComparison, data: bytes) -> None:
        """Answer the next request of the master in a comparison of the logs.

        Raises ProtocolError if the master does not wait for the previous answer.
        """
        if self._reading:
            raise ProtocolError("the master requests a digest before the last one was sent")
        found = comparison.received(data)
        link = self.link
        if isinstance(found, Range):
            self._reading = True
            start_digest(link.store.log, link.disk, found, self._has_digest)
        elif found is not None:
            self._end_comparison(comparison, found)

    def _has_digest(self, digest: bytes | OSError) -> None:
        self._reading = False
        if isinstance(digest, OSError):
            self.refuse(f"the log cannot be read to compare it: {digest.strerror or digest}")
        else:
            self.write(digest)

    def _end_comparison(self, comparison: SlaveComparison, found: Outcome) -> None:
        """Record the result of a comparison in the history.

        If the logs agree, start to copy the master's log. Otherwise refuse the master.
        """
        link = self.link
        end = comparison.end
        if found.verdict is not Verdict.EQUAL:
            if found.verdict is Verdict.DIFFERS and found.known:
                link.history.found_different(found.known, found.offset)
                link.history.save(lambda _error: None)  # the next comparison is shorter
            self.refuse(slaves_refusal(found, link.address or "?", end))
            return

        def saved(error: OSError | None) -> None:
            if error is not None:
                self.refuse(_not_saved(error))
            elif self.is_open:
                self._start_copying(comparison, found.offset)

        link.history.follow_master(found.known)
        link.history.save(saved)

    def _start_copying(self, comparison: SlaveComparison, offset: int) -> None:
        """Start copying the log from ``offset`` on, after a successful comparison."""
        self.note_begin(offset)
        now = asyncio.get_running_loop().time()
        self._comparison = None
        self.copies = True
        self.connection = MasterConnection(self.link.settings, offset, now, proved=True)
        self.data_received(comparison.rest)
