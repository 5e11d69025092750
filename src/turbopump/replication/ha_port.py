"""HA port of a broker that slaves copy from, and the connections of the slaves.

This module moves bytes and measures time: it opens the port, lets the slaves authenticate, reads
the log and sends it. Subclasses process what a slave says: ``master_link.py`` for plain masters,
``replica_master_link.py`` for replicas. Topics, requests and name servers are unknown here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
from abc import abstractmethod
from typing import Any, Final, Generic, TypeVar, cast

from turbopump.config.tls import ServerTls, TlsMode
from turbopump.disk.disk import Disk, Found, Piece
from turbopump.errors import ConfigError, ProtocolError
from turbopump.remoting.listening_port import FirstByte, ListeningPort, bound_sockets
from turbopump.remoting.tls import HANDSHAKE_S
from turbopump.repeated_line import RepeatedLine
from turbopump.replication.handshake import NONCE_SIZE, MasterHandshake, PeerRules
from turbopump.replication.master import LogSpan, SlaveFeed, Transfer
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
"""Seconds for which a master whose sends wait for no slave collects messages to send."""
HEAD_SIZE: Final = 36
"""Size of the largest head of a transfer, for the counting of ``TURN_SIZE``."""
CHECK_S: Final = 0.5
"""Seconds between two checks of heartbeats, silent slaves, and slaves in sync."""


PeerT = TypeVar("PeerT", bound="HaPeer")


class HaPort(Generic[PeerT]):
    """HA port of a broker. Slaves copy the log from this port.

    - ``durable_only``: True to send only bytes that are on this disk, so that no slave is ahead of
      its master after a power cut (SYNC_FLUSH).
    - ``gather_s``: seconds for which new messages are collected, or 0 to send them at once.
    - ``rules``: the slaves that may connect.
    - ``tls``: the settings with which both TLS and plain text are accepted, or None for plain text.

    Raises ConfigError if the files of ``tls`` cannot be used.
    """

    def __init__(
        self,
        store: MessageStore,
        disk: Disk,
        *,
        durable_only: bool,
        gather_s: float,
        rules: PeerRules,
        tls: ServerTls | None,
    ) -> None:
        self.store = store
        self.disk = disk
        self.rules = rules
        self.slaves: list[PeerT] = []
        """Connections of slaves that may copy."""
        self.refused = 0
        """Number of connections that were closed because of the slave's permission or log."""
        self._unproven: dict[PeerT, float] = {}
        self._durable_only = durable_only
        self._gather_s = gather_s
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

    @abstractmethod
    def make_peer(self) -> PeerT:
        """Make the object for a new connection."""

    @abstractmethod
    def check_in_sync(self, now: float) -> None:
        """Check which slaves are in sync. Called twice a second with the time of the event loop."""

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
                one, self.make_peer, self._tls, self._is_full, lambda _host: True, self._ports
            )
            for one in sockets
        ]
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check_slaves)
        address = sockets[0].getsockname()
        return str(address[0]), int(address[1])

    @property
    def is_open(self) -> bool:
        """True from ``listen`` to ``close``."""
        return bool(self._ports)

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

    @property
    def hot_from(self) -> int:
        """Offset from which on the log is in memory. This process has just written these bytes."""
        return max(self.store.log.end - HOT_SIZE, self._opened_at)

    def add_stranger(self, slave: PeerT) -> None:
        """Add a connection that has not completed its handshake.

        If ``SLAVES_MAX`` such connections exist, the oldest of them is closed.
        """
        if len(self._unproven) >= SLAVES_MAX:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            oldest.refuse("too many connections wait for authentication, and it was the oldest")
        self._unproven[slave] = asyncio.get_running_loop().time()

    def add_slave(self, slave: PeerT) -> None:
        """Add the connection of a slave. One slave may have several connections."""
        self._unproven.pop(slave, None)
        self.slaves.append(slave)

    def remove_slave(self, slave: PeerT) -> None:
        """Remove the connection of a slave after its end."""
        if slave in self.slaves:
            self.slaves.remove(slave)
        self._unproven.pop(slave, None)
        self._all_gone.set()

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
        Otherwise they are sent a little later, because the cost is per transfer, not per message.
        """
        self._watches = False
        if not self._due:
            self._due = True
            loop = asyncio.get_running_loop()
            if self._gather_s:
                loop.call_later(self._gather_s, self._send_to_all)
            else:
                loop.call_soon(self._send_to_all)

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
        self.check_in_sync(now)
        self.watch_log()
        self._timer = loop.call_later(CHECK_S, self._check_slaves)


class HaPeer(asyncio.Protocol):
    """Connection of a slave, on the master's side.

    A subclass makes the state when the slave may copy, and reads what the slave says.

    - ``connection``: the state that decides the next bytes to send.
    """

    connection: SlaveFeed

    def __init__(self, port: HaPort[Any]) -> None:
        self.port = port
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._reading = False
        self._due = False
        self._encrypted = False
        self._handshake: MasterHandshake | None = None
        self.host = "?"
        self.address = "?"

    @abstractmethod
    def accepted(self, now: float) -> None:
        """Make ``connection``, because the slave is allowed to copy."""

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Process bytes of a slave that is allowed to copy."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(
            asyncio.Transport, transport
        )  # uvloop's class is no subclass
        host, port = transport.get_extra_info("peername")[:2]
        self.address = f"{host}:{port}"
        self.host = host
        transport.set_write_buffer_limits(high=UNSENT_MAX)
        rules = self.port.rules
        encrypted = self._encrypted = transport.get_extra_info("sslcontext") is not None
        if (refusal := rules.refusal(host, encrypted=encrypted)) is not None:
            self.refuse(refusal)
        elif rules.closed:
            self._handshake = MasterHandshake(rules, host, secrets.token_bytes(NONCE_SIZE))
            self.port.add_stranger(self)
        else:
            self._accept()

    def _accept(self) -> None:
        if len(self.port.slaves) >= SLAVES_MAX:
            self.refuse(f"{SLAVES_MAX} slaves are connected, the limit")
            return
        self.accepted(asyncio.get_running_loop().time())
        self.port.add_slave(self)

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
        if self.is_open and data:
            self.receive(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self in self.port.slaves:
            log.info("slave has left slave=%s cause=%s", self.address, error or "closed")
        self.port.remove_slave(self)

    @property
    def is_open(self) -> bool:
        """True while bytes can be sent to the slave."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """True if frames may be sent now, and no bytes of the log are being read for one."""
        return self.is_open and not (self._paused or self._reading)

    def write(self, data: bytes) -> None:
        """Send bytes that are not of the log."""
        if self._transport is not None:
            self._transport.write(data)

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
        self.port.refused += 1
        _refused_peer(self.address, cause, kind=f"{self.host} {cause}")
        self.close()

    def fail(self, cause: Exception | str, kind: str | None = None) -> None:
        """Close the connection of a slave at once, and log the reason.

        - ``kind``: lines of the same kind are counted together. By default, the cause.
        """
        self.port.refused += 1
        _refused(self.address, cause, kind=kind or str(cause))
        self.close()

    def dismiss(self, cause: str, kind: str) -> None:
        """Close the connection after its unsent bytes, and log the reason."""
        self.port.refused += 1
        _refused(self.address, cause, kind=kind)
        if self._transport is not None:
            self._transport.close()

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
        log_ = self.port.store.log
        turn = list[Transfer]()
        full = False
        size = 0
        try:
            while not full and (sent := self._next_transfer()) is not None:
                turn.append(sent)
                size += HEAD_SIZE + sent.size
                end = sent.offset + sent.size
                full = size >= TURN_SIZE or end == log_.segment_end(turn[0].offset)
            if not turn:
                return
            data = self._read_log(turn)
        except (ProtocolError, OSError) as error:
            self.fail(error)
            return
        if data is not None:
            self._send_transfers(turn, data)
            if full:
                self._plan_turn()

    def _plan_turn(self) -> None:
        self._due = True
        loop = asyncio.get_running_loop()
        pause = self.connection.pause(self.port.store.log.end, loop.time())
        if pause:
            loop.call_later(pause, self._send_turn)
        else:
            loop.call_soon(self._send_turn)

    def _next_transfer(self) -> Transfer | None:
        if self._transport is None or self._paused or self._reading:
            return None
        return self.connection.next_transfer(self.port.span, asyncio.get_running_loop().time())

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
        port = self.port
        file = port.store.log.files.at(begin)
        assert file is not None
        at = begin - file.start
        if begin >= port.hot_from and not self._encrypted:
            return memoryview(file.buffer)[at : at + size]
        data = bytearray(size)
        if file.segment.read_cached_into(data, at):
            return data
        self._reading = True
        piece = Piece(file.segment, at, size)
        port.disk.start_read([piece], lambda found: self._has_read(turn, found[0]))
        return None

    def _has_read(self, turn: list[Transfer], found: Found) -> None:
        self._reading = False
        if isinstance(found, OSError):
            self.fail(found)
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
            pieces += [self.connection.head_of(sent), view[at : at + sent.size]]
            at += sent.size
        self._transport.writelines(pieces)
