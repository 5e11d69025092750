"""Signatures of requests: signing and checking.

::

    fields  = every header field but Signature, with AccessKey, and SecurityToken if there is one
    content = the fields' values by name (upper case before lower), joined, UTF-8; then the body
    Signature = Base64(HMAC-SHA1(secret key, content))

The algorithm is the same in 4.x and 5.x. Clients up to 4.9.3 leave out ``_UNIQUE_KEY_QUERY``, which
they add after signing. A signature contains no time, so an observer can repeat a request (TLS
prevents that).

Source: apache/rocketmq ``AclClientRPCHook``, ``AclUtils``, ``DefaultAuthenticationContextBuilder``.
The functions are pure. No error text of this package contains a secret. The meaning of a request is
unknown here.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

import msgspec

from turbopump.compiled import has_twin
from turbopump.errors import ConfigError
from turbopump.message.properties import property_bytes
from turbopump.message.rules import is_unicode

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
V4_9_3: Final = 399
"""Last version whose clients do not sign ``UNIQUE_KEY_QUERY``."""
BLOCK_SIZE: Final = 64
"""Block size of SHA-1 in bytes."""
ORDERS_MAX: Final = 512
"""Maximum number of cached field orders."""
NAMES_MAX: Final = 64
NAMES_SIZE: Final = 1024
"""Maximum number of fields in a cached order, and of their characters."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of a user in a cluster with access control.

    ``security_token`` belongs to temporary credentials. Raises ConfigError if a value is empty.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key", "security_token"):
            value = getattr(self, name)
            if isinstance(value, str) and value.strip() and is_unicode(value):
                continue
            if value is None and name == "security_token":
                continue
            # The error does not show the values.
            what = "empty, or no valid Unicode"
            if not isinstance(value, str):
                what = f"of type {type(value).__name__}"
            raise ConfigError(
                f"credentials need a non-empty text for access_key and secret_key; {name} is {what}"
            )


class RequestSigner:
    """Signer of requests. It adds header fields with the client's identity.

    ``signs`` is True if requests are signed. ``fields`` are those that are the same in every
    request.
    """

    __slots__ = ("_secret", "fields", "signs")

    def __init__(self, credentials: Credentials | None, namespace_v2: str | None = None) -> None:
        self.signs = credentials is not None
        self._secret = b"" if credentials is None else credentials.secret_key.encode()
        self.fields: dict[str, str] = {}
        if namespace_v2 is not None:
            self.fields |= {"nsd": "true", "ns": namespace_v2}
        if credentials is not None:
            self.fields[ACCESS_KEY] = credentials.access_key
            if credentials.security_token is not None:
                self.fields[SECURITY_TOKEN] = credentials.security_token

    def __call__(self, ext: Mapping[str, str] | None, body: bytes) -> dict[str, str]:
        """Return the header fields ``ext`` together with the client's own fields."""
        fields = {**ext, **self.fields} if ext else dict(self.fields)
        if self.signs:
            values = [fields[name] for name in sorted(fields) if name != SIGNATURE]
            fields[SIGNATURE] = self.signature("".join(values).encode(errors="replace"), body)
        return fields

    def signature(self, content: bytes, body: bytes) -> str:
        """Return the signature of a request.

        ``content`` has the values of the header fields in order.
        """
        return b64encode(hmac.digest(self._secret, content + body, "sha1")).decode()


class SigningKey:
    """Secret key that is prepared for checking many signatures.

    The part of HMAC that depends only on the secret is computed once, which halves the time for a
    request of 1 KiB.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: str) -> None:
        key = secret.encode()
        if len(key) > BLOCK_SIZE:
            key = hashlib.sha1(key, usedforsecurity=False).digest()
        key = key.ljust(BLOCK_SIZE, b"\0")
        self._inner = hashlib.sha1(bytes(byte ^ 0x36 for byte in key), usedforsecurity=False)
        self._outer = hashlib.sha1(bytes(byte ^ 0x5C for byte in key), usedforsecurity=False)

    def has_signed(self, content: bytes, signature: str) -> bool:
        """Return True if the signature of the content is valid. The comparison takes constant
        time."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        made = b2a_base64(outer.digest(), newline=False)
        return hmac.compare_digest(made, signature.encode("utf-8", "replace"))


_orders: dict[tuple[str, ...], Callable[[Mapping[str, str]], tuple[str, ...]]] = {}


class _Fields(msgspec.Struct, rename={"ext": "extFields"}, gc=False):
    ext: dict[str, str] | None = None


_fields = msgspec.json.Decoder(_Fields)


@has_twin
def signed_in_header(header: bytes, body: bytes, version: int) -> tuple[str, str, bytes] | None:
    """Read AccessKey, Signature and signed content from a JSON header. Return None if it is
    unsigned.

    Raises msgspec.DecodeError if a field is not text.
    """
    return signed_in_fields(_fields.decode(header).ext, body, version)


def signed_in_fields(
    fields: Mapping[str, str] | None, body: bytes, version: int
) -> tuple[str, str, bytes] | None:
    """Read AccessKey, Signature and signed content from header fields. Return None if they are
    unsigned."""
    if not fields:
        return None
    name, signature = fields.get(ACCESS_KEY), fields.get(SIGNATURE)
    if name is None or signature is None:
        return None
    return name, signature, signed_content(fields, body, version)


def signed_content(fields: Mapping[str, str], body: bytes, version: int) -> bytes:
    """Return the signed content of a request.

    The header fields include AccessKey and Signature.
    """
    if version <= V4_9_3 and UNIQUE_KEY_QUERY in fields:
        fields = {name: text for name, text in fields.items() if name != UNIQUE_KEY_QUERY}
    names = tuple(fields)
    in_order = _orders.get(names)
    if in_order is None:
        in_order = itemgetter(*sorted({*names} - {SIGNATURE}), SIGNATURE)
        if len(names) <= NAMES_MAX and sum(map(len, names)) <= NAMES_SIZE:
            if len(_orders) >= ORDERS_MAX:
                _orders.clear()
            _orders[names] = in_order  # requests of one kind have the same fields
    return property_bytes("".join(in_order(fields)[:-1])) + body
