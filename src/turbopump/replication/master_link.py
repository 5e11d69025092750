"""HA port of a master. Slaves connect to this port to copy the log.

This module moves bytes and measures time. ``master.py`` decides about sending, refusing and
acknowledging; the store decides what readers see. Topics, requests and name servers are unknown
here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
from collections.abc import Callable
from typing import Final, cast

from turbopump.config.tls import ServerTls, TlsMode
from turbopump.disk.disk import Disk, Found, Piece
from turbopump.errors import ConfigError, ProtocolError
from turbopump.remoting.listening_port import FirstByte, ListeningPort, bound_sockets
from turbopump.remoting.tls import HANDSHAKE_S
from turbopump.repeated_line import RepeatedLine
from turbopump.replication.comparison import (
    PROVE,
    MasterComparison,
    Outcome,
    Range,
    Verdict,
    masters_refusal,
)
from turbopump.replication.handshake import NONCE_SIZE, MasterHandshake, PeerRules
from turbopump.replication.history import LogHistory
from turbopump.replication.in_sync_slaves import InSyncSlaves
from turbopump.replication.log_digest import start_digest
from turbopump.replication.master import LogSpan, MasterSettings, SlaveConnection, Transfer
from turbopump.replication.stream import TRANSFER_HEAD
from turbopump.store.message_store import MessageStore

log = logging.getLogger(__name__)
_refused = RepeatedLine(log, logging.ERROR, "HA connection closed slave=%s cause=%s")
_refused_peer = RepeatedLine(log, logging.WARNING, "HA connection refused peer=%s cause=%s")

Bytes = bytes | bytearray | memoryview
HOT_SIZE: Final = 16 * 1024 * 1024
"""Number of bytes at the end of the log that count as being in memory."""
TURN_SIZE: Final = 256 * 1024
"""Maximum number of bytes sent to one slave before the event loop does other work."""
UNSENT_MAX: Final = 1024 * 1024
"""Maximum number of unsent bytes for a slave that does not read.

The bytes of one more call of ``send_new`` may be added.
"""
SLAVES_MAX: Final = 64
"""Maximum number of connected slaves. Further connections are refused."""
STRANGERS_MAX: Final = 256
"""Maximum number of unauthenticated connections. Further ones wait in the system's accept queue."""
GATHER_S: Final = 0.005
"""Seconds for which an ASYNC_MASTER collects messages before they are sent to slaves."""
CHECK_S: Final = 0.5
"""Seconds between two checks of heartbeats, silent slaves, and slaves in sync."""


class MasterLink:
    """HA port of a master broker. Slaves copy the log from this port.

    - ``durable_only``: True to send only bytes that are on this disk, so that no slave is ahead of
      its master after a power cut (SYNC_FLUSH).
    - ``rules``: the slaves that may connect.
    - ``tls``: the settings with which both TLS and plain text are accepted, or None for plain text.

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
        self.store = store
        self.disk = disk
        self.settings = settings
        self.history = history
        self.rules = rules
        self.in_sync_slaves = InSyncSlaves(settings)
        self.slaves: list[SlavePeer] = []
        self.refused = 0
        """Number of connections that were closed because of the slave's permission or log."""
        self.on_in_sync: Callable[[], None] = lambda: None
        """Called when enough slaves are in sync again."""
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
        self._watches = False
        self._due = False

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Open the HA port for slaves, and return its host and port.

        Raises ConfigError if the port cannot be opened.
        """
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
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check_slaves)
        address = sockets[0].getsockname()
        return str(address[0]), int(address[1])

    def _is_full(self) -> bool:
        """Return True if STRANGERS_MAX connections are not authenticated yet."""
        waiting = sum(port.waiting for port in self._ports)
        return len(self._unproven) + waiting >= STRANGERS_MAX

    async def close(self) -> None:
        """Close the HA port and all connections of slaves. This may be called twice."""
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
        """Offsets of the log. Slaves may get the bytes before its ``end``."""
        log_ = self.store.log
        store = self.store
        end = min(store.durable.value, log_.end) if self._durable_only else log_.end
        return LogSpan(log_.start, end, log_.end, log_.segment_size)

    def add_stranger(self, slave: SlavePeer) -> None:
        """Add a connection that has not completed its handshake.

        If ``SLAVES_MAX`` such connections exist, the oldest of them is closed.
        """
        if len(self._unproven) >= SLAVES_MAX:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            oldest.refuse("too many connections wait for authentication, and it was the oldest")
        self._unproven[slave] = asyncio.get_running_loop().time()

    @property
    def hot_from(self) -> int:
        """Offset from which on the log is in memory. This process has just written these bytes."""
        return max(self.store.log.end - HOT_SIZE, self._opened_at)

    def add_slave(self, slave: SlavePeer) -> None:
        """Add the connection of a slave. One slave may have several connections."""
        self._unproven.pop(slave, None)
        self.slaves.append(slave)

    def remove_slave(self, slave: SlavePeer) -> None:
        """Remove the connection of a slave after its end."""
        if slave in self.slaves:
            self.slaves.remove(slave)
        self._unproven.pop(slave, None)
        self._all_gone.set()

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

    def watch_log(self) -> None:
        """Wait until the log grows. Then send the new bytes to all slaves."""
        if self._watches or not self.slaves:
            return
        self._watches = True
        if self._durable_only:
            self.store.durable.when(self.store.durable.value + 1, self._log_has_grown)
        else:
            self.store.log.when_longer(self._log_has_grown)

    def _log_has_grown(self) -> None:
        """Schedule the sending of new bytes of the log to all slaves.

        If sends of producers wait for slaves, the bytes are sent in the next run of the event loop.
        Otherwise they are sent after GATHER_S, because the cost is per transfer, not per message.
        """
        self._watches = False
        if not self._due:
            self._due = True
            loop = asyncio.get_running_loop()
            if self.settings.acks:
                loop.call_soon(self._send_to_all)
            else:
                loop.call_later(GATHER_S, self._send_to_all)

    def _send_to_all(self) -> None:
        self._due = False
        if not self._ports:  # the port was closed during the wait
            return
        for slave in list(self.slaves):
            slave.send_new()
        self.watch_log()

    def _check_slaves(self) -> None:
        """Close the connections of silent slaves. Send heartbeats to the other slaves.

        Connections without a handshake are closed too. The check repeats itself.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        for slave in list(self.slaves):
            if slave.connection.is_silent(now):
                log.warning("slave is silent, its connection is closed slave=%s", slave.address)
                slave.close()
            else:
                slave.send_new()
        for slave, since in list(self._unproven.items()):
            if now - since > HANDSHAKE_S:
                slave.refuse(f"it did not authenticate within {HANDSHAKE_S:.0f} s")
        for port in self._ports:
            port.close_silent(now - HANDSHAKE_S)
        self.in_sync_slaves.update(now, self.store.confirmed.value)
        self._publish_copied()
        self.watch_log()
        self._timer = loop.call_later(CHECK_S, self._check_slaves)

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


class SlavePeer(asyncio.Protocol):
    """Connection of a slave, on the master's side."""

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
        self._transport = transport = cast(
            asyncio.Transport, transport
        )  # uvloop's class is no subclass
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
            self._link.add_stranger(self)
        else:
            self._accept()

    def _accept(self) -> None:
        link = self._link
        if len(link.slaves) >= SLAVES_MAX:
            self.refuse(f"{SLAVES_MAX} slaves are connected, the limit")
            return
        now = asyncio.get_running_loop().time()
        self.connection = SlaveConnection(link.settings, self._host, now)
        link.add_slave(self)

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
            self._accept()
        if self._transport is None or self._transport.is_closing() or not data:
            return
        connection = self.connection
        now = asyncio.get_running_loop().time()
        begins = connection.next is None
        first = self._is_first
        self._is_first = False
        if first and data[0] == PROVE[0]:
            self._comparison = MasterComparison(self._link.history.known)
        try:
            if begins and self._comparison is not None:
                connection.last_read = now
                self._send_comparison(self._comparison.received(data, self._link.span))
                return
            reported = connection.receive_reports(data, self._link.span, now)
        except ProtocolError as error:
            self._fail(error)
            return
        if begins and connection.next is not None:
            self._link.record_begin(self)
            self.send_new()
        if reported:
            self._link.record_acknowledgement(self)
        self._link.watch_log()

    @property
    def compares(self) -> bool:
        """True until the comparison of the slave's log with this log is complete."""
        return self._comparison is not None and self.connection.next is None

    def _send_comparison(self, said: bytes) -> None:
        """Send bytes of a comparison to the slave. Then read the next range of the log to compare.

        After the end of the comparison, start to send the log or close the connection.
        """
        comparison, transport = self._comparison, self._transport
        assert comparison is not None
        if transport is None:
            return
        transport.write(said)
        if (found := comparison.found) is not None:
            self._end_comparison(found, comparison.end)
        elif comparison.asked is not None and comparison.asked is not self._comparing:
            self._comparing = comparison.asked
            link = self._link
            start_digest(link.store.log, link.disk, comparison.asked, self._has_digest)

    def _has_digest(self, digest: bytes | OSError) -> None:
        if isinstance(digest, OSError):
            self._fail(digest)
        elif self._transport is not None and self._comparison is not None:
            self._send_comparison(self._comparison.set_digest(digest))

    def _end_comparison(self, found: Outcome, end: int) -> None:
        assert self._transport is not None
        if found.verdict is Verdict.EQUAL:
            self.connection.begin_proved(found.offset)
            self._link.record_begin(self)
            self.send_new()
            self._link.watch_log()
            return
        cause = masters_refusal(found, end)
        self._link.refused += 1
        _refused(self.address, cause, kind=f"{self._host} {found.verdict}")
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self in self._link.slaves:
            log.info("slave has left slave=%s cause=%s", self.address, error or "closed")
        self._link.remove_slave(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.send_new()

    @property
    def unsent(self) -> int:
        """Number of bytes in the send buffer. The slave has not read them yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def refuse(self, cause: str) -> None:
        """Close the connection before it is served, and log the reason."""
        self._link.refused += 1
        _refused_peer(self.address, cause, kind=f"{self._host} {cause}")
        self.close()

    def close(self) -> None:
        """Close the connection at once. Unsent bytes are lost."""
        if self._transport is not None:
            self._transport.abort()

    def send_new(self) -> None:
        """Send new log bytes to the slave. One run of the event loop sends roughly ``TURN_SIZE``
        bytes."""
        if not self._due:
            self._send_turn()

    def _send_turn(self) -> None:
        """Send the next log bytes to the slave, roughly ``TURN_SIZE`` at most.

        All these bytes are in one file of the log, and are read at once.
        """
        self._due = False
        log_ = self._link.store.log
        turn = list[Transfer]()
        full = False
        size = 0
        try:
            while not full and (sent := self._next_transfer()) is not None:
                turn.append(sent)
                size += TRANSFER_HEAD.size + sent.size
                end = sent.offset + sent.size
                full = size >= TURN_SIZE or end == log_.segment_end(turn[0].offset)
            if not turn:
                return
            data = self._read_log(turn)
        except (ProtocolError, OSError) as error:
            self._fail(error)
            return
        if data is not None:
            self._send_transfers(turn, data)
            if full:
                self._plan_turn()

    def _plan_turn(self) -> None:
        self._due = True
        loop = asyncio.get_running_loop()
        pause = self.connection.pause(self._link.store.log.end, loop.time())
        if pause:
            loop.call_later(pause, self._send_turn)
        else:
            loop.call_soon(self._send_turn)

    def _next_transfer(self) -> Transfer | None:
        if self._transport is None or self._paused or self._reading:
            return None
        return self.connection.next_transfer(self._link.span, asyncio.get_running_loop().time())

    def _read_log(self, turn: list[Transfer]) -> Bytes | None:
        """Return the bytes to send, if the operating system has them in memory.

        Otherwise return None, and start a thread that reads them; they are sent afterwards.
        Recently written bytes are not copied, because that part of the log does not change any
        more.
        """
        begin = turn[0].offset
        size = sum(sent.size for sent in turn)
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
            self._send_transfers(turn, found)
            self._plan_turn()

    def _send_transfers(self, turn: list[Transfer], data: Bytes) -> None:
        if self._transport is None:
            return
        pieces = list[Bytes]()
        at = 0
        view = memoryview(data)
        for sent in turn:
            pieces += [TRANSFER_HEAD.pack(*sent), view[at : at + sent.size]]
            at += sent.size
        self._transport.writelines(pieces)

    def _fail(self, error: Exception) -> None:
        self._link.refused += 1
        _refused(self.address, error, kind=str(error))
        self.close()
