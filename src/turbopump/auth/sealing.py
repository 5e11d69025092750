"""Accounts on their way to another server, or to a Super user: sealed, so that passwords do not
travel in plain text, and nobody between can change them.

::

    keys   = HMAC-SHA512(secret, "turbopump accounts " + asker's nonce + nonce)
    sealed = 32 nonce   n content XOR SHAKE-256(first half of keys)   32 tag
    tag    = HMAC-SHA256(second half of keys, nonce + the n bytes)

The secret is that of the user who has signed the request; it does not travel. The asker's nonce is
new for each request, so that an old answer is worth nothing. The server's is new for each answer,
so that a request that somebody sends again gets other keys. Values in, values out; nonces come in
as values, too.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from turbopump.errors import ProtocolError

NONCE_SIZE: Final = 32
TAG_SIZE: Final = 32


def seal(content: bytes, secret: str, asked: str, nonce: bytes) -> bytes:
    """Content that only the secret opens. ``asked``: the asker's nonce."""
    assert len(nonce) == NONCE_SIZE
    stream, tag_key = _keys(secret, asked, nonce)
    sealed = nonce + _mixed(content, stream)
    return sealed + hmac.digest(tag_key, sealed, "sha256")


def unseal(data: bytes, secret: str, asked: str) -> bytes:
    """The content. Raises ProtocolError if this secret and this request did not seal it."""
    sealed, tag = data[:-TAG_SIZE], data[-TAG_SIZE:]
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
    """Name of a content. Without the secret, nobody can learn the content from it."""
    return hmac.digest(secret.encode(), b"turbopump version " + content, "sha256").hex()


def _keys(secret: str, asked: str, nonce: bytes) -> tuple[bytes, bytes]:
    text = b"turbopump accounts " + asked.encode("utf-8", "replace") + nonce
    keys = hmac.digest(secret.encode(), text, "sha512")
    return keys[:32], keys[32:]


def _mixed(content: bytes, key: bytes) -> bytes:
    """The content with its key stream: sealed if it was open, open if it was sealed."""
    size = len(content)
    stream = hashlib.shake_256(key).digest(size)
    mixed = int.from_bytes(content, "big") ^ int.from_bytes(stream, "big")
    return mixed.to_bytes(size, "big")
