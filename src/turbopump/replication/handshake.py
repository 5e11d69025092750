"""Handshake on the HA port. Two turbopump brokers prove that they belong to one cluster.

::

    slave to master    8 HELLO   32 nonce
    master to slave    8 HELLO   32 nonce
    slave to master    32 proof
    master to slave    32 proof      then as in stream.py

    proof = HMAC-SHA256(secret key, "turbopump ha slave" or "… master",
                        the slave's nonce, the master's nonce, access key)

The keys are those of `innerClientAuthenticationCredentials`. Nonces are new for each connection, so
an observed proof cannot be used again. The connecting side proves itself first.

The first byte tells a master if a handshake follows: Apache's slave sends an offset first, and
HELLO would be a negative offset. Values in, values out, nonces included.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final, NamedTuple

from turbopump.auth.signatures import Credentials
from turbopump.errors import ProtocolError
from turbopump.replication.comparison import PROVE
from turbopump.replication.stream import ReceivedBytes

HELLO: Final = b"\xffTPHA\0\0\1"
NONCE_SIZE: Final = 32
PROOF_SIZE: Final = 32


@dataclass(frozen=True, slots=True)
class PeerRules:
    """Rules for brokers that connect to the HA port.

    - ``closed``: True if access control is on, so the other broker must prove that it knows the
      credentials.
    - ``allowed``: addresses that need neither proof nor TLS (`haAllowedPeers`), because Apache's
      brokers have neither on this port.
    - ``credentials``: the credentials of the cluster, or None.
    - ``encrypted``: True to accept only TLS, as on the main port.
    - ``certified``: True to accept only TLS with a client certificate.
    """

    closed: bool = False
    allowed: frozenset[str] = frozenset()
    credentials: Credentials | None = None
    encrypted: bool = False
    certified: bool = False

    def refusal(self, host: str, *, encrypted: bool) -> str | None:
        """Return the reason why a master refuses connections from an address. Return None if they
        are allowed."""
        if host in self.allowed:
            return None
        if self.encrypted and not encrypted:
            return (
                "it does not use TLS (tls.server.mode=enforcing), and its address is not "
                "in haAllowedPeers"
            )
        if self.closed and self.credentials is None:
            return (
                "its address is not in haAllowedPeers, and this broker has no "
                "innerClientAuthenticationCredentials"
            )
        if self.allowed and not (self.closed or self.certified):
            return "its address is not in haAllowedPeers"
        return None


class Step(NamedTuple):
    """Result of one step of a handshake, after bytes were received.

    - ``said``: the bytes to send.
    - ``rest``: the bytes received after the handshake, or None while the handshake runs.
    """

    said: bytes
    rest: bytes | None


_NOT_YET: Final = Step(b"", None)


class _Handshake:
    """Common part of the handshakes of master and slave."""

    def __init__(self, credentials: Credentials | None, nonce: bytes) -> None:
        assert len(nonce) == NONCE_SIZE
        self._credentials = credentials
        self._nonce = nonce
        self._others_nonce: bytes | None = None
        self._came = ReceivedBytes()

    def _take_greeting(self) -> bytes | None:
        """Return the nonce of the other side. Return None if more bytes must arrive. Raises
        ProtocolError."""
        if not HELLO.startswith(self._came.rest[: len(HELLO)]):
            raise ProtocolError("it sent no handshake")
        greeting = self._came.take(len(HELLO) + NONCE_SIZE)
        return None if greeting is None else greeting[len(HELLO) :]

    def _proof(self, role: bytes, slaves_nonce: bytes, masters_nonce: bytes) -> bytes:
        assert self._credentials is not None
        text = role + slaves_nonce + masters_nonce + self._credentials.access_key.encode()
        return hmac.digest(self._credentials.secret_key.encode(), b"turbopump ha " + text, "sha256")


class MasterHandshake(_Handshake):
    """Handshake on the master's side. A slave whose address is in `haAllowedPeers` may omit the
    handshake."""

    def __init__(self, rules: PeerRules, host: str, nonce: bytes) -> None:
        super().__init__(rules.credentials, nonce)
        self._allowed = host in rules.allowed

    def received(self, data: bytes) -> Step:
        """Process received bytes. Return the bytes to send to the slave.

        Raises ProtocolError if the slave must be refused.
        """
        self._came.rest += data
        said = b""
        if self._others_nonce is None:
            first = self._came.rest[: len(HELLO)]
            compares = PROVE.startswith(first) and not HELLO.startswith(first)
            if compares or (first and first[0] < HELLO[0]):  # or an offset
                if self._allowed:
                    return Step(b"", self._came.rest)
                raise ProtocolError(
                    "it sent no credentials, like Apache's brokers and those without "
                    "authenticationEnabled, and its address is not in haAllowedPeers"
                )
            self._others_nonce = self._take_greeting()
            if self._others_nonce is None:
                return _NOT_YET
            if self._credentials is None:
                raise ProtocolError("this broker has no innerClientAuthenticationCredentials")
            said = HELLO + self._nonce
        proof = self._came.take(PROOF_SIZE)
        if proof is None:
            return Step(said, None)
        if not hmac.compare_digest(proof, self._proof(b"slave", self._others_nonce, self._nonce)):
            raise ProtocolError(
                "it has other innerClientAuthenticationCredentials than this broker"
            )
        return Step(said + self._proof(b"master", self._others_nonce, self._nonce), self._came.rest)


class SlaveHandshake(_Handshake):
    """Handshake on the side of a slave that has credentials."""

    def begin(self) -> bytes:
        """Return the first bytes that a slave sends in a handshake."""
        return HELLO + self._nonce

    def received(self, data: bytes) -> Step:
        """Process received bytes. Return the bytes to send to the master.

        Raises ProtocolError if the master is not of this cluster.
        """
        self._came.rest += data
        said = b""
        if self._others_nonce is None:
            try:
                self._others_nonce = self._take_greeting()
            except ProtocolError:
                raise ProtocolError(
                    "the master does not answer the handshake, like Apache's brokers and "
                    "those without authenticationEnabled; to copy it, add its address to "
                    "haAllowedPeers here"
                ) from None
            if self._others_nonce is None:
                return _NOT_YET
            said = self._proof(b"slave", self._nonce, self._others_nonce)
        proof = self._came.take(PROOF_SIZE)
        if proof is None:
            return Step(said, None)
        if not hmac.compare_digest(proof, self._proof(b"master", self._nonce, self._others_nonce)):
            raise ProtocolError(
                "the master cannot prove this broker's "
                "innerClientAuthenticationCredentials: it belongs to another cluster"
            )
        return Step(said, self._came.rest)
