"""Encryption of accounts for another server or for a Super user. Passwords do not travel in plain
text, and a third party cannot change the accounts.

::

    keys   = HMAC-SHA512(secret, "turbopump accounts " + asker's nonce + nonce)
    sealed = 32 nonce   n content XOR SHAKE-256(first half of keys)   32 tag
    tag    = HMAC-SHA256(second half of keys, nonce + the n bytes)

The secret is that of the user who signed the request, and is not sent. The asker's nonce is new for
each request, so that an old answer is useless. The server's nonce is new for each answer, so that a
repeated request gets other keys. The functions are pure; nonces are arguments.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from turbopump.errors import ProtocolError

NONCE_SIZE: Final = 32
TAG_SIZE: Final = 32


def seal(content: bytes, secret: str, asked: str, nonce: bytes) -> bytes:
    """Return the content encrypted with the secret.

    ``asked`` is the nonce of the asker. ``nonce`` is that of this server.
    """
    assert len(nonce) == NONCE_SIZE
    stream, tag_key = _keys(secret, asked, nonce)
    sealed = nonce + _mixed(content, stream)
    return sealed + hmac.digest(tag_key, sealed, "sha256")


def unseal(data: bytes, secret: str, asked: str) -> bytes:
    """Return the decrypted content of ``data``.

    Raises ProtocolError if the content was sealed with another secret or for another request.
    """
    sealed = data[:-TAG_SIZE]
    tag = data[-TAG_SIZE:]
    nonce = sealed[:NONCE_SIZE]
    stream, tag_key = _keys(secret, asked, nonce)
    if len(nonce) < NONCE_SIZE or not hmac.compare_digest(
        tag, hmac.digest(tag_key, sealed, "sha256")
    ):
        raise ProtocolError(
            "its accounts are not sealed with the secret of this request: another secret, or "
            "somebody between has changed them"
        )
    return _mixed(sealed[NONCE_SIZE:], stream)


def version_of(content: bytes, secret: str) -> str:
    """Return a text that names the version of a content.

    Without the secret, the text reveals nothing about the content.
    """
    return hmac.digest(secret.encode(), b"turbopump version " + content, "sha256").hex()


def _keys(secret: str, asked: str, nonce: bytes) -> tuple[bytes, bytes]:
    text = b"turbopump accounts " + asked.encode("utf-8", "replace") + nonce
    keys = hmac.digest(secret.encode(), text, "sha512")
    return keys[:32], keys[32:]


def _mixed(content: bytes, key: bytes) -> bytes:
    """Encrypt or decrypt a content by XOR with the stream that ``key`` generates."""
    size = len(content)
    stream = hashlib.shake_256(key).digest(size)
    mixed = int.from_bytes(content, "big") ^ int.from_bytes(stream, "big")
    return mixed.to_bytes(size, "big")
