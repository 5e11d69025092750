"""Network side of replication: a master's HA port with the connections of its slaves, and a slave's
connection to its master.

This module moves bytes and measures time. ``master.py`` and ``slave.py`` decide about sending,
refusing and acknowledging; the store decides what readers see. Topics, requests and name servers
are unknown here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
import secrets
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, cast

from turbopump.config.addresses import host_of
from turbopump.config.tls import ClientTls, ServerTls, TlsMode
from turbopump.disk.disk import Disk, Found, Piece, read_now
from turbopump.errors import (
    ConfigError,
    CopyError,
    ProtocolError,
    ReadsRefusedError,
    RemotingError,
    RoomInMakingError,
    StoreError,
)
from turbopump.remoting.listening_port import FirstByte, ListeningPort, bound_sockets
from turbopump.remoting.tls import HANDSHAKE_S, ClientContext, failure_words
from turbopump.repeated_line import RepeatedLine
from turbopump.replication.comparison import (
    PROVE,
    MasterComparison,
    Outcome,
    Range,
    SlaveComparison,
    Verdict,
    masters_refusal,
    slaves_refusal,
)
from turbopump.replication.handshake import NONCE_SIZE, MasterHandshake, PeerRules, SlaveHandshake
from turbopump.replication.history import LogHistory
from turbopump.replication.master import (
    LogSpan,
    MasterSettings,
    Replicas,
    SlaveConnection,
    Transfer,
)
from turbopump.replication.slave import MasterConnection, SlaveSettings
from turbopump.replication.stream import TRANSFER_HEAD
from turbopump.store.log.commit_log import CommitLog
from turbopump.store.message_store import MessageStore

log = logging.getLogger(__name__)
_refused = RepeatedLine(log, logging.ERROR, "HA connection closed slave=%s cause=%s")
_refused_peer = RepeatedLine(log, logging.WARNING, "HA connection refused peer=%s cause=%s")

ANYONE: Final = PeerRules()
Bytes = bytes | bytearray | memoryview
HOT_SIZE: Final = 16 * 1024 * 1024
"""Bytes at the end of the log that count as being in memory."""
TURN_SIZE: Final = 256 * 1024
"""Maximum bytes sent to one slave before other work gets its turn in the event loop."""
UNSENT_MAX: Final = 1024 * 1024
"""Maximum of unsent bytes for a slave that does not read, not counting those of one turn."""
SLAVES_MAX: Final = 64
"""Maximum number of slave connections; more are refused."""
STRANGERS_MAX: Final = 256
"""Maximum number of unauthenticated connections; more wait in the system's accept queue."""
GATHER_S: Final = 0.005
"""Seconds for which an ASYNC_MASTER gathers messages before sending them to slaves."""
LOOK_S: Final = 0.5
"""Seconds between two checks of heartbeats, silent slaves, and slaves in sync."""
CONNECT_S: Final = 3.0
AGAIN_MIN_S: Final = 0.1
AGAIN_MAX_S: Final = 1.0
AGAIN_GROWTH: Final = 1.25
"""Growth of the pause between two attempts to reach a master. Short first pauses find a restarted
master soon."""
TOLD_AGAIN_S: Final = 3600.0
"""Seconds after which a slave that does not copy logs the same reason again."""
_DIGITS: Final = dict.fromkeys(map(ord, "0123456789"))
REFUSED_S: Final = 5.0
"""Seconds until the next attempt after invalid data, and the longest pause after a master closed
the connection at once."""


class MasterLink:
    """HA port of a master.

    - ``durable_only``: send only bytes that are on this disk, so that no slave is ahead of its
      master after a power cut (SYNC_FLUSH).
    - ``rules``: the slaves that may connect.
    - ``tls``: accept TLS and plain text. Raises ConfigError if its files cannot be used.
    """

    def __init__(
        self,
        store: MessageStore,
        disk: Disk,
        settings: MasterSettings,
        history: LogHistory,
        *,
        durable_only: bool,
        rules: PeerRules = ANYONE,
        tls: ServerTls | None = None,
    ) -> None:
        self.store = store
        self.disk = disk
        self.settings = settings
        self.history = history
        self.rules = rules
        self.replicas = Replicas(settings)
        self.slaves: list[SlavePeer] = []
        self.on_in_sync: Callable[[], None] = lambda: None
        """Callback for the moment when enough slaves are in sync again."""
        self._unproven: dict[SlavePeer, float] = {}
        self._durable_only = durable_only
        self._tls = (
            FirstByte(dataclasses.replace(tls, mode=TlsMode.PERMISSIVE))
            if tls is not None and tls.certificate and tls.mode is not TlsMode.DISABLED
            else None
        )
        self._opened_at = store.log.end
        self._ports: list[ListeningPort] = []
        self._all_gone = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._watching = False
        self._due = False

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Start accepting slaves, and return the bound address. Raises ConfigError."""
        try:
            sockets = await bound_sockets(host, port)
        except ConfigError as error:
            raise ConfigError(f"{error} (that is haListenPort, for slaves)") from None
        self._ports += [
            ListeningPort(
                one,
                lambda: SlavePeer(self),
                self._tls,
                self._is_full,
                lambda _host: True,
                self._ports,
            )
            for one in sockets
        ]
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        address = sockets[0].getsockname()
        return str(address[0]), int(address[1])

    def _is_full(self) -> bool:
        """True when STRANGERS_MAX connections are not authenticated yet."""
        waiting = sum(port.waiting for port in self._ports)
        return len(self._unproven) + waiting >= STRANGERS_MAX

    async def close(self) -> None:
        """Stop accepting slaves, and close all connections. May be called twice."""
        if self._timer is not None:
            self._timer.cancel()
        for port in self._ports:
            port.close()
        self._ports.clear()
        for slave in (*self.slaves, *self._unproven):
            slave.close()
        while self.slaves or self._unproven:
            self._all_gone.clear()
            await self._all_gone.wait()

    @property
    def span(self) -> LogSpan:
        """Part of the log that may be sent."""
        log_, store = self.store.log, self.store
        end = min(store.durable.value, log_.end) if self._durable_only else log_.end
        return LogSpan(log_.start, end, log_.end, log_.segment_size)

    def came(self, slave: SlavePeer) -> None:
        """Add a connection that must complete a handshake. At the limit, close the oldest of
        these."""
        if len(self._unproven) >= SLAVES_MAX:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            oldest.refuse("others came, too, and it has not proved itself yet")
        self._unproven[slave] = asyncio.get_running_loop().time()

    @property
    def hot_from(self) -> int:
        """Offset after which the log is in memory, because this process has just written these
        bytes."""
        return max(self.store.log.end - HOT_SIZE, self._opened_at)

    def joined(self, slave: SlavePeer) -> None:
        """Add a slave connection. One slave may have several."""
        self._unproven.pop(slave, None)
        self.slaves.append(slave)

    def left(self, slave: SlavePeer) -> None:
        """Remove a connection that has ended."""
        if slave in self.slaves:
            self.slaves.remove(slave)
        self._unproven.pop(slave, None)
        self._all_gone.set()

    def acknowledged(self, slave: SlavePeer) -> None:
        """Record a slave's acknowledgement, and complete the sends that waited for this offset."""
        connection, now = slave.connection, asyncio.get_running_loop().time()
        self.replicas.acknowledged(
            connection.slave,
            connection.acked,
            self.span.end,
            now,
            self.store.confirmed.value,
            proved=connection.proved,
        )
        self._tell()

    def begins(self, slave: SlavePeer) -> None:
        """Record and log that sending to a slave begins."""
        connection, now = slave.connection, asyncio.get_running_loop().time()
        end = self.store.log.end
        self.replicas.begins(connection.slave, proved=connection.proved, end=end, now=now)
        log.info(
            "slave begins slave=%s sent_from=%d log=%s",
            slave.address,
            connection.next,
            "proved"
            if connection.proved
            else "not proved: it counts only for messages stored from now on",
        )

    def watch(self) -> None:
        """Wait for new bytes of the log, and send them to all slaves."""
        if self._watching or not self.slaves:
            return
        self._watching = True
        if self._durable_only:
            self.store.durable.when(self.store.durable.value + 1, self._grown)
        else:
            self.store.log.when_longer(self._grown)

    def _grown(self) -> None:
        """Plan to send the new bytes of the log.

        If sends wait for slaves, send in the next turn of the loop. Otherwise wait for GATHER_S,
        because the cost is per transfer, not per message.
        """
        self._watching = False
        if not self._due:
            self._due = True
            loop = asyncio.get_running_loop()
            if self.settings.acks:
                loop.call_soon(self._pump)
            else:
                loop.call_later(GATHER_S, self._pump)

    def _pump(self) -> None:
        self._due = False
        if not self._ports:  # closed meanwhile
            return
        for slave in list(self.slaves):
            slave.pump()
        self.watch()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for slave in list(self.slaves):
            if slave.connection.is_silent(now):
                log.warning("slave is silent, its connection is closed slave=%s", slave.address)
                slave.close()
            else:
                slave.pump()
        for slave, since in list(self._unproven.items()):
            if now - since > HANDSHAKE_S:
                slave.refuse(f"it has not proved itself within {HANDSHAKE_S:.0f} s")
        for port in self._ports:
            port.close_silent(now - HANDSHAKE_S)
        self.replicas.look(now, self.store.confirmed.value)
        self._tell()
        self.watch()
        self._timer = loop.call_later(LOOK_S, self._look)

    def _tell(self) -> None:
        replicas, confirmed = self.replicas, self.store.confirmed
        if not self.settings.acks:
            return
        if replicas.alone != confirmed.alone:
            wanted = self.settings.acks
            if replicas.alone:
                log.warning(
                    "too few slaves are in sync: sends are answered SLAVE_NOT_AVAILABLE wanted=%d",
                    wanted,
                )
            else:
                log.info("enough slaves are in sync wanted=%d", wanted)
        begins = confirmed.alone and not replicas.alone
        confirmed.copied_to(replicas.copied, alone=replicas.alone)
        if begins:
            self.on_in_sync()


class SlavePeer(asyncio.Protocol):
    """A slave's connection to its master's HA port."""

    def __init__(self, link: MasterLink) -> None:
        self._link = link
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._reading = False
        self._due = False
        self._encrypted = False
        self._is_first = True
        self._handshake: MasterHandshake | None = None
        self._comparison: MasterComparison | None = None
        self._comparing: Range | None = None
        self._host = "?"
        self.address = "?"
        self.connection = SlaveConnection(link.settings, "", 0.0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is none
        host, port = transport.get_extra_info("peername")[:2]
        self.address = f"{host}:{port}"
        self._host = host
        transport.set_write_buffer_limits(high=UNSENT_MAX)
        rules = self._link.rules
        encrypted = self._encrypted = transport.get_extra_info("sslcontext") is not None
        if (refusal := rules.refusal(host, encrypted=encrypted)) is not None:
            self.refuse(refusal)
        elif rules.closed:
            self._handshake = MasterHandshake(rules, host, secrets.token_bytes(NONCE_SIZE))
            self._link.came(self)
        else:
            self._join()

    def _join(self) -> None:
        link = self._link
        if len(link.slaves) >= SLAVES_MAX:
            self.refuse(f"there are {SLAVES_MAX}")
            return
        now = asyncio.get_running_loop().time()
        self.connection = SlaveConnection(link.settings, self._host, now)
        link.joined(self)

    def data_received(self, data: bytes) -> None:
        if self._handshake is not None:
            try:
                step = self._handshake.received(data)
            except ProtocolError as error:
                self.refuse(str(error))
                return
            if self._transport is not None and step.said:
                self._transport.write(step.said)
            if step.rest is None:
                return
            self._handshake, data = None, step.rest
            self._join()
        if self._transport is None or self._transport.is_closing() or not data:
            return
        connection, now = self.connection, asyncio.get_running_loop().time()
        begins = connection.next is None
        first, self._is_first = self._is_first, False
        if first and data[0] == PROVE[0]:
            self._comparison = MasterComparison(self._link.history.known)
        try:
            if begins and self._comparison is not None:
                connection.last_read = now
                self._compare(self._comparison.received(data, self._link.span))
                return
            reported = connection.received(data, self._link.span, now)
        except ProtocolError as error:
            self._fail(error)
            return
        if begins and connection.next is not None:
            self._link.begins(self)
            self.pump()
        if reported:
            self._link.acknowledged(self)
        self._link.watch()

    @property
    def compares(self) -> bool:
        """True until the comparison with the slave's log is complete."""
        return self._comparison is not None and self.connection.next is None

    def _compare(self, said: bytes) -> None:
        """Send the next bytes of the comparison, then start the next step."""
        comparison, transport = self._comparison, self._transport
        assert comparison is not None
        if transport is None:
            return
        transport.write(said)
        if (found := comparison.found) is not None:
            self._compared(found, comparison.end)
        elif comparison.asked is not None and comparison.asked is not self._comparing:
            self._comparing = comparison.asked
            link = self._link
            start_digest(link.store.log, link.disk, comparison.asked, self._has_digest)

    def _has_digest(self, digest: bytes | OSError) -> None:
        if isinstance(digest, OSError):
            self._fail(digest)
        elif self._transport is not None and self._comparison is not None:
            self._compare(self._comparison.read(digest))

    def _compared(self, found: Outcome, end: int) -> None:
        assert self._transport is not None
        if found.verdict is Verdict.EQUAL:
            self.connection.begin_proved(found.offset)
            self._link.begins(self)
            self.pump()
            self._link.watch()
            return
        cause = masters_refusal(found, end)
        _refused(self.address, cause, kind=f"{self._host} {found.verdict}")
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self in self._link.slaves:
            log.info("slave has left slave=%s cause=%s", self.address, error or "closed")
        self._link.left(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.pump()

    @property
    def unsent(self) -> int:
        """Number of bytes that the slave has not read yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def refuse(self, cause: str) -> None:
        """Log the reason and close a connection that was not served yet."""
        _refused_peer(self.address, cause, kind=f"{self._host} {cause}")
        self.close()

    def close(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def pump(self) -> None:
        """Send new bytes: up to TURN_SIZE now, the rest in later turns of the loop."""
        if not self._due:
            self._take_turn()

    def _take_turn(self) -> None:
        self._due = False
        log_ = self._link.store.log
        turn, full, size = list[Transfer](), False, 0
        try:
            while not full and (sent := self._next()) is not None:
                turn.append(sent)
                size += TRANSFER_HEAD.size + sent.size
                # one turn is one read of one file
                end = sent.offset + sent.size
                full = size >= TURN_SIZE or end == log_.segment_end(turn[0].offset)
            if not turn:
                return
            data = self._read(turn)
        except (ProtocolError, OSError) as error:
            self._fail(error)
            return
        if data is not None:
            self._send(turn, data)
            if full:
                self._plan_turn()

    def _plan_turn(self) -> None:
        self._due = True
        loop = asyncio.get_running_loop()
        pause = self.connection.pause(self._link.store.log.end, loop.time())
        if pause:
            loop.call_later(pause, self._take_turn)
        else:
            loop.call_soon(self._take_turn)

    def _next(self) -> Transfer | None:
        if self._transport is None or self._paused or self._reading:
            return None
        return self.connection.transfer(self._link.span, asyncio.get_running_loop().time())

    def _read(self, turn: list[Transfer]) -> Bytes | None:
        """Return the bytes if the system has them in memory; otherwise start a thread that reads
        and sends them.

        Recently written bytes are not copied, because that part of the log does not change any
        more.
        """
        begin, size = turn[0].offset, sum(sent.size for sent in turn)
        if not size:
            return b""
        link = self._link
        file = link.store.log.files.at(begin)
        assert file is not None
        at = begin - file.start
        if begin >= link.hot_from and not self._encrypted:
            return memoryview(file.buffer)[at : at + size]
        data = bytearray(size)
        if file.segment.read_cached_into(data, at):
            return data
        self._reading = True
        piece = Piece(file.segment, at, size)
        link.disk.start_read([piece], lambda found: self._has_read(turn, found[0]))
        return None

    def _has_read(self, turn: list[Transfer], found: Found) -> None:
        self._reading = False
        if isinstance(found, OSError):
            self._fail(found)
        else:
            self._send(turn, found)
            self._plan_turn()

    def _send(self, turn: list[Transfer], data: Bytes) -> None:
        if self._transport is None:
            return
        pieces, at, view = list[Bytes](), 0, memoryview(data)
        for sent in turn:
            pieces += [TRANSFER_HEAD.pack(*sent), view[at : at + sent.size]]
            at += sent.size
        self._transport.writelines(pieces)

    def _fail(self, error: Exception) -> None:
        _refused(self.address, error, kind=str(error))
        self.close()


def start_digest(
    log_: CommitLog, disk: Disk, wanted: Range, done: Callable[[bytes | OSError], None]
) -> None:
    """Read a range of the log in a thread, and pass its digest or the error to ``done``. The range
    may span several files."""
    pieces = list[Piece]()
    offset, end = wanted.offset, wanted.offset + wanted.size
    while offset < end:
        file = log_.files.at(offset)
        if file is None:
            done(OSError(f"the file of the log at offset {offset} was deleted meanwhile"))
            return
        size = min(end, file.end) - offset
        pieces.append(Piece(file.segment, offset - file.start, size))
        offset += size
    digest = hashlib.sha256()

    def read() -> None:
        for piece in pieces:
            found = read_now(piece)
            if isinstance(found, OSError):
                raise found
            digest.update(found)

    def has_read(error: OSError | None) -> None:
        for piece in pieces:
            piece.segment.release()
        done(digest.digest() if error is None else error)

    for piece in pieces:
        piece.segment.hold(reading=True)
    disk.start(read, has_read)


class SlaveLink:
    """Connection of a slave to its master, renewed when lost. ``go_to`` sets the master's address.

    - ``ack_flushed``: acknowledge bytes that are on the disk; if False, bytes that are written.
    - ``flushes``: sync the log at once (SYNC_FLUSH).
    - ``rules``: the masters that are accepted.
    - ``tls``: use TLS, except with an address in `haAllowedPeers`; None: plain text.
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
        rules: PeerRules = ANYONE,
        tls: ClientTls | None = None,
    ) -> None:
        assert store.copied is not None
        self.store = store
        self.copied = store.copied
        self.disk = disk
        self.settings = settings
        self.history = history
        self.ack_flushed = ack_flushed
        self.flushes = flushes or ack_flushed
        self._rules = rules
        self._tls = None if tls is None else ClientContext(tls)
        self.begin_at: Callable[[bool, bool], Awaitable[int | None]] = self._log_end
        """Awaited before each connection. Returns the offset from which the slave wants the log:

        - None: the master is turbopump's, and the logs are compared.
        - 0: start at the file that the master is writing, as Apache's slave does. For a master that
          cannot be asked.

        The first argument is True if a handshake follows, the second if the connection uses TLS.
        Raises RemotingError, ProtocolError or ReadsRefusedError if the offset cannot be found,
        CopyError if this master must not be copied.
        """
        self.address: str | None = None
        """HA address of the master, `host:port`; None while unknown."""
        self.peer: MasterPeer | None = None
        self._told: str | None = None
        self._told_at = 0.0
        self.fault: str | None = None
        """Reason why the slave does not copy now; None while copying."""
        self._known = asyncio.Event()
        self._said = False
        self._again = AGAIN_MIN_S
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start copying from the master."""
        self._task = asyncio.create_task(self._run(), name="copying from the master")

    async def stop(self) -> None:
        """Stop copying. May be called twice."""
        task, self._task = self._task, None
        if self.peer is not None:
            self.peer.close()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def go_to(self, address: str | None) -> None:
        """Set the address of the master's HA port, and reconnect if it has changed.

        None: there is no master at present. Empty: the master takes no slaves. In both cases a
        connection that works is kept.
        """
        if address == "" and not self._said:
            self._said = True
            log.warning("the master takes no slaves: set its haListenPort to a free one")
        if not address or address == self.address:
            return
        self._said = False
        log.info("master's HA address changes old=%s new=%s", self.address, address)
        self.address = address
        self._known.set()
        if self.peer is not None:
            self.peer.close()

    def begin_again(self) -> None:
        """Reconnect, because ``begin_at`` can now learn more about the master."""
        if self.peer is not None:
            self.peer.close()

    def room_made(self) -> None:
        """Resume after the log got a new file."""
        if self.peer is not None:
            self.peer.go_on()

    async def _run(self) -> None:
        while True:
            await self._known.wait()
            assert self.address is not None
            pause = await self._copy_from(self.address)
            await asyncio.sleep(pause)

    async def _copy_from(self, address: str) -> float:
        """Copy until the connection ends. Return the seconds to wait before the next attempt."""
        host, port = host_of(address), address.rpartition(":")[2]
        loop = asyncio.get_running_loop()
        handshake, tls = None, None
        is_listed = host in self._rules.allowed
        if self._tls is not None and not is_listed:
            tls = self._tls.at(loop.time())
        if self._rules.closed and not is_listed:
            credentials = self._rules.credentials
            if credentials is None:
                self._failed(
                    "access control is on, so a slave needs a master that can prove "
                    f"itself: set innerClientAuthenticationCredentials, or add {host} to "
                    "haAllowedPeers"
                )
                return REFUSED_S
            handshake = SlaveHandshake(credentials, secrets.token_bytes(NONCE_SIZE))
        try:
            wanted = await self.begin_at(handshake is not None, tls is not None)
            if wanted is not None:
                await self._copies_from_anyone()
            async with asyncio.timeout(CONNECT_S):
                _, peer = await loop.create_connection(
                    lambda: MasterPeer(self, wanted, handshake), host, int(port), ssl=tls
                )
        except (RemotingError, ProtocolError, ReadsRefusedError) as error:
            self._failed(f"the master's history cannot be read: {error}")
            return self._next_pause()
        except CopyError as error:
            self._failed(str(error))
            return REFUSED_S
        except (ssl.SSLError, ConnectionResetError) as error:
            fault = f"no TLS connection to the master at {address}: {failure_words(error)}"
            if not isinstance(error, ssl.SSLCertVerificationError):
                fault += f"; if it speaks no TLS there, name {host} in haAllowedPeers here"
            self._failed(fault)
            return self._next_pause(REFUSED_S)
        except (OSError, TimeoutError, ValueError) as error:
            self._failed(f"the master cannot be reached at {address}: {error or 'no answer'}")
            return self._next_pause()
        self.peer = peer
        if wanted is not None:
            log.info("copying from the master address=%s from=%d by=%s", address, wanted, peer.how)
        try:
            cause = await peer.ended
        finally:
            self.peer = None
            peer.close()
        if cause is None:
            if peer.connection.accepted:
                self._failed(f"the connection to the master at {address} has ended")
                self._again = AGAIN_MIN_S
                return self._next_pause()
            cause = (
                f"the master at {address} stopped or refused this slave: read the reason in its log"
            )
            if peer.shakes_hands:
                cause += "; both need the same innerClientAuthenticationCredentials"
            self._failed(cause)
            return self._next_pause(REFUSED_S)  # one that was stopping may be back at once
        self._failed(cause)
        return REFUSED_S

    async def _log_end(self, _shakes_hands: bool, _by_tls: bool) -> int | None:
        return self.store.log.end

    async def _copies_from_anyone(self) -> None:
        """Record in the history that bytes of an unknown log follow. Raises CopyError."""
        saved: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        self.history.begin_own(self.store.log.end)
        self.history.save(lambda error: None if saved.done() else saved.set_result(error))
        if (error := await saved) is not None:
            raise CopyError(_not_saved(error))

    def _next_pause(self, longest: float = AGAIN_MAX_S) -> float:
        pause = min(self._again, longest)
        self._again = min(pause * AGAIN_GROWTH, longest)
        return pause

    @property
    def accepted(self) -> bool:
        """True if the master serves this slave."""
        return self.peer is not None and self.peer.connection.accepted

    def works(self) -> None:
        """Clear the fault after bytes were copied."""
        if self.fault is not None:
            log.info("copying continues address=%s end=%d", self.address, self.store.log.end)
            self.fault = self._told = None

    def _failed(self, cause: str) -> None:
        now = asyncio.get_running_loop().time()
        # ignore numbers: they change while the master's log grows
        kind = cause.translate(_DIGITS)
        if kind != self._told or now - self._told_at >= TOLD_AGAIN_S:
            self._told, self._told_at = kind, now
            log.error("the slave does not copy cause=%s", cause)
        self.fault = cause


def _not_saved(error: OSError) -> str:
    return f"{error.filename or 'turbopump.history.json'} cannot be written: {error.strerror}"


class MasterPeer(asyncio.Protocol):
    """Connection of a slave to its master.

    - ``wanted``: first offset that the slave wants; None: compare the logs first.
    - ``handshake``: handshake before that, or None.
    """

    def __init__(
        self, link: SlaveLink, wanted: int | None, handshake: SlaveHandshake | None
    ) -> None:
        loop = asyncio.get_running_loop()
        self._link = link
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._syncing = False
        self._handshake = handshake
        self.ended: asyncio.Future[str | None] = loop.create_future()
        """Done when the connection has ended. The result is the reason if this side closed the
        connection, else None."""
        log_ = link.store.log
        self._comparison = (
            SlaveComparison(log_.start, log_.end, link.history.known) if wanted is None else None
        )
        self._reading = False
        self.connection = MasterConnection(link.settings, wanted or 0, loop.time())

    def _begin(self) -> bytes:
        return (self._comparison or self.connection).begin()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is none
        transport.write(self._handshake.begin() if self._handshake else self._begin())
        self._look()

    @property
    def how(self) -> str:
        """Kind of connection for the log: TLS or plain text."""
        return "TLS" if self.encrypted else "plain text"

    @property
    def encrypted(self) -> bool:
        """True for a TLS connection."""
        transport = self._transport
        return transport is not None and transport.get_extra_info("sslcontext") is not None

    @property
    def shakes_hands(self) -> bool:
        """True until the handshake is complete."""
        return self._handshake is not None

    def data_received(self, data: bytes) -> None:
        try:
            if self._handshake is not None:
                step = self._handshake.received(data)
                if step.rest is None:
                    self._say(step.said)
                    return
                self._handshake, data = None, step.rest
                self._say(step.said + self._begin())
            now = asyncio.get_running_loop().time()
            if self._comparison is not None:
                self.connection.last_read = now
                self._compare(self._comparison, data)
                return
            self.connection.received(data, now)
        except ProtocolError as error:
            self._refuse(str(error))
            return
        self.go_on()

    def _compare(self, comparison: SlaveComparison, data: bytes) -> None:
        """Answer the master's requests for digests, one after the other. Raises ProtocolError."""
        if self._reading:
            raise ProtocolError("the master asks again before it has its answer")
        found = comparison.received(data)
        link = self._link
        if isinstance(found, Range):
            self._reading = True
            start_digest(link.store.log, link.disk, found, self._has_digest)
        elif found is not None:
            self._compared(comparison, found)

    def _has_digest(self, digest: bytes | OSError) -> None:
        self._reading = False
        if isinstance(digest, OSError):
            self._refuse(f"the log cannot be read to compare it: {digest.strerror or digest}")
        else:
            self._say(digest)

    def _compared(self, comparison: SlaveComparison, found: Outcome) -> None:
        """Record the master's verdict in the history, then start copying or refuse the master."""
        link, end = self._link, comparison.end
        if found.verdict is not Verdict.EQUAL:
            if found.verdict is Verdict.DIFFERS and found.known:
                link.history.found_different(found.known, found.offset)
                link.history.save(lambda _error: None)  # so that less is compared the next time
            self._refuse(slaves_refusal(found, link.address or "?", end))
            return

        def noted(error: OSError | None) -> None:
            if error is not None:
                self._refuse(_not_saved(error))
            elif self._transport is not None:
                self._copy_on(comparison, found.offset)

        link.history.follow(found.known)
        link.history.save(noted)

    def _copy_on(self, comparison: SlaveComparison, offset: int) -> None:
        """Start copying after a successful comparison."""
        address = self._link.address
        log.info("copying from the master address=%s from=%d by=%s", address, offset, self.how)
        now = asyncio.get_running_loop().time()
        self._comparison = None
        self.connection = MasterConnection(self._link.settings, offset, now, proved=True)
        self.data_received(comparison.rest)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def go_on(self) -> None:
        """Store the received bytes, and acknowledge them."""
        if self._transport is None or self._comparison is not None:
            return
        store, connection = self._link.store, self.connection
        try:
            for start, data in self._pieces():
                copied = self._link.copied.append(start, data)
                connection.stored(copied.end, copied.wanted)
                self._link.works()
        except RoomInMakingError:
            connection.stored(store.log.end, 1)
            self._transport.pause_reading()
            return
        except (CopyError, StoreError) as error:
            self._refuse(f"the master sent invalid data: {error}")
        except OSError as error:
            where = error.filename or "the store"
            self._refuse(f"{where} cannot be written: {error.strerror or error}")
        else:
            self._transport.resume_reading()
        for fault in self._link.copied.faults:
            log.error("copied entry has no place in its queue: %s", fault)
        self._link.copied.faults.clear()
        if self._link.flushes:
            self._sync()
        self._report()

    def _pieces(self) -> Iterator[tuple[int, bytes]]:
        while (piece := self.connection.to_store()) is not None:
            yield piece

    def _sync(self) -> None:
        store = self._link.store
        if self._syncing or store.durable.value >= store.log.end:
            return
        self._syncing = True
        store.durable.when(store.log.end, self._synced)
        store.flusher.flush_log()

    def _synced(self) -> None:
        self._syncing = False
        if self._link.store.durable.error is None:
            self._sync()
            self._report()
        else:
            self._refuse(str(self._link.store.durable.error))

    def _report(self) -> None:
        store = self._link.store
        end = store.durable.value if self._link.ack_flushed else store.log.end
        if self._handshake is None and self._comparison is None:
            self._say(self.connection.report(end, asyncio.get_running_loop().time()))

    def _say(self, said: bytes | None) -> None:
        if said and self._transport is not None:
            self._transport.write(said)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if self.connection.is_silent(loop.time()):
            self._refuse("the master is silent")
            return
        self._report()
        self._timer = loop.call_later(LOOK_S, self._look)

    def _refuse(self, cause: str) -> None:
        if not self.ended.done():
            self.ended.set_result(cause)
        self.close()
