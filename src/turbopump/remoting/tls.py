"""TLS certificates and keys, loaded from files and loaded again when the files change.

A connection keeps the context that it was made with, so a new certificate closes no connection.
Files are checked when a connection is made, at most once in ``LOOK_AGAIN_S``. If a file cannot be
used, the last context stays in force and the problem is logged. TLS 1.2 is the minimum. Sockets are
unknown here.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import re
import ssl
from asyncio import sslproto
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from turbopump.config.tls import ClientAuth, ClientTls, ServerTls
from turbopump.errors import ConfigError

log = logging.getLogger(__name__)

HANDSHAKE: Final = b"\x16"
"""First byte of a connection that uses TLS. Source: apache/rocketmq ``TlsModeHandler``."""
RECORD_HEAD: Final = 5
RECORD_MAX: Final = 16 * 1024
"""``RECORD_HEAD`` is the size of a record's header in bytes, ``RECORD_MAX`` the maximum size of its
content. Source: RFC 8446, 5.1."""
HANDSHAKE_S: Final = 10.0
"""Seconds after which an unfinished handshake is cancelled."""
SHUTDOWN_S: Final = 5.0
READ_SIZE: Final = 64 * 1024
LOOK_AGAIN_S: Final = 1.0
WARN_DAYS: Final = 30
"""Days of validity left below which a certificate causes a warning."""
FILE_SIZE_MAX: Final = 1024 * 1024


def keep_buffers_small() -> None:
    """Limit the read buffer of asyncio's TLS to 64 KiB per connection, in this whole process.

    The default is 256 KiB. The smaller buffer costs 2 % of CPU with messages of 1 KiB, and 12 %
    with bodies of 300 KB. A buffer of 32 KiB would cost 32 %.
    """
    sslproto.SSLProtocol.max_size = READ_SIZE


def trim_heap() -> None:
    """Return free memory of the C library's heap to the kernel.

    This works with glibc only; another C library is left alone. It takes 2.4 ms of CPU after 256
    TLS connections have ended, 7 ms after 1,000.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def hello_size(head: bytes) -> int:
    """Return the size of the TLS record that begins with ``head``.

    If ``head`` is shorter than a record's header, the size of that header is returned.
    """
    if len(head) < RECORD_HEAD:
        return RECORD_HEAD
    # a longer record is no TLS; OpenSSL reports that
    return RECORD_HEAD + min(int.from_bytes(head[3:RECORD_HEAD]), RECORD_MAX)


class ServerContext:
    """TLS context of a server, loaded from the files of its settings.

    Raises ConfigError if a file cannot be used when the object is made.
    """

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self.certificate_end: datetime | None = None
        """End of the validity of the certificate, or None if it is unknown."""
        self._files = _Files((tls.certificate, tls.key, tls.trust), self._make_context)

    def context_at(self, now: float) -> ssl.SSLContext:
        """Return the TLS context for a connection that arrives at ``now``.

        ``now`` is in seconds on any monotonic clock. Changed files are loaded first.
        """
        return self._files.current(now)

    def _make_context(self) -> ssl.SSLContext:
        tls = self._tls
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        _load_pair(context, tls.certificate, tls.key, tls.key_password)
        if tls.client_auth is not ClientAuth.NONE:
            _load_trust(context, tls.trust)
            context.verify_mode = ssl.CERT_OPTIONAL
            if tls.client_auth is ClientAuth.REQUIRE:
                context.verify_mode = ssl.CERT_REQUIRED
        self.certificate_end = _tell_of_expiry(tls.certificate)
        return context


class ClientContext:
    """TLS context of a client, loaded from the files of its settings.

    Raises ConfigError if a file cannot be used when the object is made.
    """

    def __init__(self, tls: ClientTls) -> None:
        self._tls = tls
        self._trust, self._certificate, self._key = (
            "" if path is None else str(path) for path in (tls.trust, tls.certificate, tls.key)
        )
        paths = (self._certificate, self._key, self._trust)
        self._files = _Files(paths, self._make_context)

    def context_at(self, now: float) -> ssl.SSLContext:
        """Return the TLS context for a connection that is made at ``now``.

        ``now`` is in seconds on any monotonic clock. Changed files are loaded first.
        """
        return self._files.current(now)

    def _make_context(self) -> ssl.SSLContext:
        tls = self._tls
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = tls.verify and tls.check_host_name
        if not tls.verify:
            context.verify_mode = ssl.CERT_NONE
        elif self._trust:
            _load_trust(context, self._trust)
        else:
            context.load_default_certs()
        if self._certificate:
            _load_pair(context, self._certificate, self._key, tls.key_password or "")
            _tell_of_expiry(self._certificate)
        return context


class _Files:
    """Cache of a TLS context. The context is made again when its files change."""

    def __init__(self, paths: tuple[str, ...], make: Callable[[], ssl.SSLContext]) -> None:
        self._paths = tuple(filter(None, paths))
        self._make_context = make
        self._seen = self._state()
        self._context = make()
        self._looked = 0.0

    def current(self, now: float) -> ssl.SSLContext:
        if now - self._looked >= LOOK_AGAIN_S:
            self._looked = now
            state = self._state()
            if state != self._seen:
                self._seen = state
                self._renew_context()
        return self._context

    def _renew_context(self) -> None:
        # Two files cannot be replaced at once. A mismatch in between is temporary.
        try:
            self._context = self._make_context()
        except ConfigError as error:
            log.error(
                "changed TLS files cannot be used, the old ones stay in force cause=%s", error
            )
        else:
            log.info("TLS files changed, new connections have them files=%s", " ".join(self._paths))

    def _state(self) -> list[tuple[int, int, int] | None]:
        return [_file_state(path) for path in self._paths]


def _file_state(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _load_pair(context: ssl.SSLContext, certificate: str, key: str, password: str) -> None:
    """Load a certificate and its key into ``context``. Raises ConfigError if a file cannot be
    used."""
    for path in filter(None, (certificate, key)):
        _read(path)
    asked = []

    def given() -> str:
        asked.append(True)
        return password

    try:
        context.load_cert_chain(certificate, key or None, given)
    except (ssl.SSLError, ValueError) as error:
        where = key or certificate
        if asked and not password:
            why = f"the key in {where} is encrypted, and no password is given"
        elif asked:
            why = f"the key in {where} cannot be decrypted with the password that is given"
        elif isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            why = f"the key in {where} does not belong to the certificate in {certificate}"
        else:
            why = f"{certificate} and {where} do not hold a certificate and its key in PEM"
        raise ConfigError(f"TLS: {why}") from None


def _load_trust(context: ssl.SSLContext, path: str) -> None:
    """Load trusted certificates into ``context``. Raises ConfigError if the file cannot be used."""
    _read(path)
    # a server's own certificate may be in the trust file, whatever its issuer
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise ConfigError(f"TLS: {path} holds no certificates in PEM") from None


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(FILE_SIZE_MAX)
    except OSError as error:
        raise ConfigError(f"TLS: the file {path} cannot be read: {error.strerror}") from None


# End of a certificate's validity.
def expiry_warning(end: datetime, now: datetime) -> str | None:
    """Return a warning if a certificate expires within ``WARN_DAYS`` or has expired, else None.

    ``end`` is the end of the certificate's validity.
    """
    left = end - now
    if left.total_seconds() <= 0:
        return f"expired on {end:%Y-%m-%d %H:%M} UTC: clients that check it refuse the connection"
    if left.days < WARN_DAYS:
        return f"expires on {end:%Y-%m-%d %H:%M} UTC, in {left.days} days: replace it in time"
    return None


def peer_certificate_end(transport: asyncio.BaseTransport | None) -> datetime | None:
    """Return the expiry time of the peer's certificate, or None if it is unknown."""
    tls = None
    if transport is not None:
        tls = transport.get_extra_info("ssl_object")
    if tls is None:
        return None
    certificate = tls.getpeercert(binary_form=True)
    if certificate is None:
        return None
    return end_of_validity(certificate)


def _tell_of_expiry(path: str) -> datetime | None:
    """Log a warning if a certificate expires soon. Return the end of its validity, if known."""
    end = end_of_validity(_first_certificate(path))
    warning = None if end is None else expiry_warning(end, datetime.now(UTC))
    if warning is not None:
        log.warning("certificate %s file=%s", warning, path)
    return end


def _first_certificate(path: str) -> bytes:
    text = _read(path).decode("ascii", "replace")
    found = re.search("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", text, re.DOTALL)
    if found is None:
        return b""
    return ssl.PEM_cert_to_DER_cert(found[0])


def end_of_validity(certificate: bytes) -> datetime | None:
    """Return the expiry time of a DER certificate. Return None if the certificate cannot be
    decoded.

    The time is the field ``notAfter``. Source: RFC 5280, 4.1.
    """
    # Certificate ::= { tbsCertificate { [0] version, serial, algorithm, issuer,
    #                                    validity { notBefore, notAfter }, … }, … }
    try:
        _, body, _ = _element(certificate, 0)
        _, body, _ = _element(body, 0)
        at = 0
        tag, _, after = _element(body, at)
        if tag == 0xA0:
            at = after
        for _ in range(3):
            at = _element(body, at)[2]
        validity = _element(body, at)[1]
        tag, text, _ = _element(validity, _element(validity, 0)[2])
        form = "%Y%m%d%H%M%SZ"
        if tag == 0x17:
            form = "%y%m%d%H%M%SZ"
        return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)
    except (IndexError, ValueError):
        return None


def _element(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Decode the DER element at ``at``. Return its tag, its content and the position after it.

    Raises IndexError if the data ends before the element does.
    """
    tag = data[at]
    size = data[at + 1]
    at += 2
    if size & 0x80:
        count = size & 0x7F
        size = int.from_bytes(data[at : at + count])
        at += count
    if at + size > len(data):
        raise IndexError
    return tag, data[at : at + size], at + size


def failure_words(error: Exception) -> str:
    """Return a readable text for an error that occurred in a TLS handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    if isinstance(error, ConnectionError) or not str(error):
        return "the peer closed the connection during the handshake"
    return str(error)
