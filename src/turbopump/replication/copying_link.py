"""Connection of a broker that copies the log of its master. A lost connection is renewed.

This module moves bytes and measures time: it connects, authenticates, stores what was received and
acknowledges it. Subclasses process what the master says: ``slave_link.py`` for plain slaves,
``replica_slave_link.py`` for replicas. The store decides what readers see. Topics, requests and
name servers are unknown here.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from abc import abstractmethod
from collections.abc import Callable
from typing import Final, cast

from turbopump.config.addresses import host_of
from turbopump.config.tls import ClientTls
from turbopump.disk.disk import Disk
from turbopump.errors import (
    CopyError,
    ProtocolError,
    ReadsRefusedError,
    RemotingError,
    RoomInMakingError,
    StoreError,
)
from turbopump.remoting.tls import ClientContext, failure_words
from turbopump.replication.handshake import NONCE_SIZE, PeerRules, SlaveHandshake
from turbopump.replication.slave import MasterSource, SlaveSettings
from turbopump.store.message_store import MessageStore

log = logging.getLogger(__name__)

CONNECT_S: Final = 3.0
CHECK_S: Final = 0.5
"""Seconds between two checks for heartbeats and for a silent master."""
AGAIN_MIN_S: Final = 0.1
AGAIN_MAX_S: Final = 1.0
AGAIN_GROWTH: Final = 1.25
"""Factor by which the pause grows between two attempts to reach a master.

Short first pauses find a restarted master soon.
"""
REFUSED_S: Final = 5.0
"""Seconds to wait after invalid data before the slave connects again.

This is also the longest pause after a master closed the connection at once.
"""
LOG_AGAIN_S: Final = 3600.0
"""Seconds after which a slave that does not copy logs the same reason again."""
_DIGITS: Final = dict.fromkeys(map(ord, "0123456789"))


class CopyingLink:
    """Task that copies the log of the master to this broker. It renews a lost connection.

    Call ``start``, then ``set_master``, and at the end ``stop``.

    - ``ack_flushed``: True to acknowledge only bytes that are on the disk. False to acknowledge
      bytes that are written.
    - ``flushes``: True to sync the log at once (SYNC_FLUSH).
    - ``rules``: the masters that are accepted.
    - ``tls``: the settings for TLS, or None for plain text. Addresses in `haAllowedPeers` are
      always connected in plain text.
    """

    def __init__(
        self,
        store: MessageStore,
        disk: Disk,
        settings: SlaveSettings,
        *,
        ack_flushed: bool,
        flushes: bool,
        rules: PeerRules,
        tls: ClientTls | None,
    ) -> None:
        assert store.copied is not None
        self.store = store
        self.copied = store.copied
        self.disk = disk
        self.settings = settings
        self.ack_flushed = ack_flushed
        self.flushes = flushes or ack_flushed
        self._rules = rules
        self._tls = None if tls is None else ClientContext(tls)
        self.address: str | None = None
        """Address of the master's HA port, `host:port`, or None while unknown."""
        self.peer: CopyingPeer | None = None
        self._logged: str | None = None
        self._logged_at = 0.0
        self.fault: str | None = None
        """Reason why the slave does not copy now, or None while copying."""
        self.refusal: str | None = None
        """Reason why the last master that answered was not copied, or None if it was."""
        self.copied_until: float | None = None
        """Time at which the last connection that copied was last read, in seconds of the event
        loop. None if none has copied since the start."""
        self.on_copying: Callable[[], None] = lambda: None
        """Called each time when this broker begins to copy from a master."""
        self._has_address = asyncio.Event()
        self._warned = False
        self._pause = AGAIN_MIN_S
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start a task to copy the log of the master. The task waits for ``set_master``."""
        self._task = asyncio.create_task(self._run(), name="copying from the master")

    async def stop(self) -> None:
        """Stop copying the log of the master. This may be called twice."""
        task = self._task
        self._task = None
        if self.peer is not None:
            self.peer.close()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def set_master(self, address: str | None) -> None:
        """Set the address of the master's HA port. Reconnect if the address has changed.

        - ``address``: `host:port`, None if there is no master at present, or an empty string if the
          master takes no slaves. Without an address, a connection that works is kept.
        """
        if address == "" and not self._warned:
            self._warned = True
            log.warning("the master accepts no slaves: set its haListenPort to a free port")
        if not address or address == self.address:
            return
        self._warned = False
        log.info("master's HA address changes old=%s new=%s", self.address, address)
        self.address = address
        self._has_address.set()
        self.begin_again()

    def begin_again(self) -> None:
        """Connect to the master at once, instead of a present connection, attempt or pause."""
        self._pause = AGAIN_MIN_S
        if self._task is not None:
            self._task.cancel()
            self.start()

    def reconnect(self) -> None:
        """Connect to the master again, because there is news about it."""
        if self.peer is not None:
            self.peer.close()

    def room_made(self) -> None:
        """Store the bytes that waited for a new file of the log. Then read from the master
        again."""
        if self.peer is not None:
            self.peer.store_received()

    async def _run(self) -> None:
        while True:
            await self._has_address.wait()
            assert self.address is not None
            pause = await self._copy_from(self.address)
            await asyncio.sleep(pause)

    async def _copy_from(self, address: str) -> float:
        """Connect to the master. Copy its log until the connection ends.

        Return the seconds to wait before the next attempt.
        """
        try:
            peer = await self._connect(address)
        except (RemotingError, ProtocolError, ReadsRefusedError) as error:
            self._record_fault(f"the master cannot be asked before its log is copied: {error}")
            return self._next_pause()
        except StoreError as error:  # a CopyError, among others
            self.refusal = str(error)
            self._record_fault(self.refusal)
            return REFUSED_S
        except (ssl.SSLError, ConnectionResetError) as error:
            fault = f"no TLS connection to the master at {address}: {failure_words(error)}"
            if not isinstance(error, ssl.SSLCertVerificationError):
                fault += (
                    f"; if the master uses no TLS, add {host_of(address)} to haAllowedPeers here"
                )
            self._record_fault(fault)
            return self._next_pause(REFUSED_S)
        except (OSError, TimeoutError, ValueError) as error:
            self._record_fault(f"the master cannot be reached at {address}: {error or 'no answer'}")
            return self._next_pause()
        self.peer = peer
        try:
            cause = await peer.ended
        finally:
            if self.peer is peer:
                self.peer = None
            peer.close()
        if peer.connection.accepted:
            self.copied_until = peer.connection.last_read
            self.refusal = None
        if cause is None:
            if peer.connection.accepted:
                self._record_fault(f"the connection to the master at {address} has ended")
                self._pause = AGAIN_MIN_S
                return self._next_pause()
            cause = (
                f"the master at {address} stopped or refused this slave: read the reason in its log"
            )
            if peer.shakes_hands:
                cause += "; both brokers need the same innerClientAuthenticationCredentials"
            self.refusal = cause
            self._record_fault(cause)
            return self._next_pause(REFUSED_S)  # a master that stopped may be back at once
        self.refusal = cause
        self._record_fault(cause)
        return REFUSED_S

    async def _connect(self, address: str) -> CopyingPeer:
        """Connect to the HA port of the master.

        Raises CopyError if this slave must not copy the master's log, and the errors of
        ``prepare`` and of the connection.
        """
        host = host_of(address)
        port = int(address.rpartition(":")[2])
        loop = asyncio.get_running_loop()
        handshake = None
        tls = None
        is_listed = host in self._rules.allowed
        if self._tls is not None and not is_listed:
            tls = self._tls.context_at(loop.time())
        if self._rules.closed and not is_listed:
            credentials = self._rules.credentials
            if credentials is None:
                raise CopyError(
                    "access control is on, but this slave has no credentials to "
                    "authenticate its master: set innerClientAuthenticationCredentials, "
                    f"or add {host} to haAllowedPeers"
                )
            handshake = SlaveHandshake(credentials, secrets.token_bytes(NONCE_SIZE))
        made = await self.prepare(handshake, by_tls=tls is not None)
        async with asyncio.timeout(CONNECT_S):
            await loop.create_connection(lambda: made, host, port, ssl=tls)
        made.connected()
        return made

    @abstractmethod
    async def prepare(self, handshake: SlaveHandshake | None, *, by_tls: bool) -> CopyingPeer:
        """Make the object for a new connection.

        Raises CopyError if this master must not be copied, and RemotingError, ProtocolError or
        ReadsRefusedError if that cannot be found out.
        """

    def _next_pause(self, longest: float = AGAIN_MAX_S) -> float:
        pause = min(self._pause, longest)
        self._pause = min(pause * AGAIN_GROWTH, longest)
        return pause

    @property
    def accepted(self) -> bool:
        """True while the master accepts this slave and sends the log."""
        return self.peer is not None and self.peer.connection.accepted

    def clear_fault(self) -> None:
        """Forget the reason for a pause in copying. Bytes were copied again."""
        if self.fault is not None:
            log.info("copying continues address=%s end=%d", self.address, self.store.log.end)
            self.fault = self._logged = None

    def _record_fault(self, cause: str) -> None:
        now = asyncio.get_running_loop().time()
        # ignore numbers: they change while the master's log grows
        kind = cause.translate(_DIGITS)
        if kind != self._logged or now - self._logged_at >= LOG_AGAIN_S:
            self._logged = kind
            self._logged_at = now
            log.error("the slave does not copy cause=%s", cause)
        self.fault = cause


class CopyingPeer(asyncio.Protocol):
    """Connection to the master, on the slave's side.

    - ``connection``: the state of the connection.
    - ``handshake``: the handshake with which the connection begins, or None.
    - ``copies``: True once the slave knows from which offset on it copies.
    """

    connection: MasterSource

    def __init__(self, link: CopyingLink, handshake: SlaveHandshake | None) -> None:
        loop = asyncio.get_running_loop()
        self.link = link
        self.copies = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._syncing = False
        self._handshake = handshake
        self.ended: asyncio.Future[str | None] = loop.create_future()
        """Future that is done when the connection has ended.

        The result is the reason if this side closed the connection, else None.
        """

    @abstractmethod
    def first_bytes(self) -> bytes:
        """Return the first bytes to send, after the handshake."""

    @abstractmethod
    def receive(self, data: bytes, now: float) -> None:
        """Process received bytes. Raises ProtocolError if the connection must end."""

    def connected(self) -> None:
        """Note that copying begins, if that is known now."""

    def note_begin(self, offset: int) -> None:
        """Note that the log is copied from ``offset`` on."""
        link = self.link
        log.info(
            "copying from the master address=%s from=%d by=%s", link.address, offset, self.kind
        )
        link.on_copying()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(
            asyncio.Transport, transport
        )  # uvloop's class is no subclass
        transport.write(self._handshake.begin() if self._handshake else self.first_bytes())
        self._check_silence()

    @property
    def is_open(self) -> bool:
        """True while bytes can be sent to the master."""
        return self._transport is not None

    @property
    def kind(self) -> str:
        """Kind of the connection for log lines: TLS or plain text."""
        return "TLS" if self.encrypted else "plain text"

    @property
    def encrypted(self) -> bool:
        """True for a TLS connection."""
        transport = self._transport
        return transport is not None and transport.get_extra_info("sslcontext") is not None

    @property
    def shakes_hands(self) -> bool:
        """True while the handshake with the master is not complete."""
        return self._handshake is not None

    def data_received(self, data: bytes) -> None:
        try:
            if self._handshake is not None:
                step = self._handshake.received(data)
                if step.rest is None:
                    self.write(step.said)
                    return
                self._handshake, data = None, step.rest
                self.write(step.said + self.first_bytes())
            self.receive(data, asyncio.get_running_loop().time())
        except ProtocolError as error:
            self.refuse(str(error))
            return
        self.store_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        """Close the connection at once. Unsent bytes are lost."""
        if self._transport is not None:
            self._transport.abort()

    def store_received(self) -> None:
        """Append the received bytes to the log. Then acknowledge them to the master."""
        if self._transport is None or not self.copies:
            return
        store = self.link.store
        connection = self.connection
        try:
            while (piece := connection.to_store()) is not None:
                copied = self.link.copied.append(*piece)
                connection.record_stored(copied.end, copied.wanted)
                self.link.clear_fault()
        except RoomInMakingError:
            connection.record_stored(store.log.end, 1)
            self._transport.pause_reading()
            return
        except (CopyError, StoreError) as error:
            self.refuse(f"the master sent invalid data: {error}")
        except OSError as error:
            where = error.filename or "the store"
            self.refuse(f"{where} cannot be written: {error.strerror or error}")
        else:
            self._transport.resume_reading()
        for fault in self.link.copied.faults:
            log.error("copied entry cannot be added to its queue cause=%s", fault)
        self.link.copied.faults.clear()
        if self.link.flushes:
            self._sync_log()
        self.acknowledge()

    def _sync_log(self) -> None:
        store = self.link.store
        if self._syncing or store.durable.value >= store.log.end:
            return
        self._syncing = True
        store.durable.when(store.log.end, self._synced)
        store.flusher.flush_log()

    def _synced(self) -> None:
        self._syncing = False
        if self.link.store.durable.error is None:
            self._sync_log()
            self.acknowledge()
        else:
            self.refuse(str(self.link.store.durable.error))

    def acknowledge(self) -> None:
        """Report to the master what this broker has, if a report is due."""
        store = self.link.store
        end = store.durable.value if self.link.ack_flushed else store.log.end
        if self._handshake is None and self.copies:
            self.write(self.connection.next_report(end, asyncio.get_running_loop().time()))

    def write(self, said: bytes | None) -> None:
        """Send bytes to the master, if there are any."""
        if said and self._transport is not None:
            self._transport.write(said)

    def _check_silence(self) -> None:
        loop = asyncio.get_running_loop()
        if self.connection.is_silent(loop.time()):
            self.refuse("the master sends nothing any more")
            return
        self.acknowledge()
        self._timer = loop.call_later(CHECK_S, self._check_silence)

    def refuse(self, cause: str) -> None:
        """Close the connection at once, because of ``cause``."""
        if not self.ended.done():
            self.ended.set_result(cause)
        self.close()
