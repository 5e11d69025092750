"""Who a client says it is: its instance's name, its credentials, its namespace; and what every
request carries because of that.

Signature of a request (apache/rocketmq ``AclClientRPCHook``, ``AclUtils``)::

    fields  = every header field but Signature, with AccessKey, and SecurityToken if there is one
    content = the fields' values by name (upper case before lower), joined, UTF-8; then the body
    Signature = Base64(HMAC-SHA1(secret key, content))

One rule: values in, values out; a secret is in no text that this room makes. It must not know what
a request means.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from turbopump.client.setting_rules import INSTANCE_RULES, check_fields, is_name
from turbopump.config.tls import ClientTls
from turbopump.errors import ConfigError

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a cluster with access control knows a user by; ``security_token`` for temporary
    credentials. Raises ConfigError if empty."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key", "security_token"):
            value = getattr(self, name)
            # their values are not shown
            if not is_name(value) and (value is not None or name != "security_token"):
                what = "empty, or no valid Unicode"
                if not isinstance(value, str):
                    what = f"of type {type(value).__name__}"
                raise ConfigError(
                    "credentials need an access_key and a secret_key, text and both not empty; "
                    f"this {name} is {what}"
                )


@dataclass(frozen=True, slots=True)
class InstanceSettings:
    """What clients share with an instance. ``instance_name`` None: whatever name there is."""

    name_servers: tuple[str, ...]
    instance_name: str | None = None
    unit_name: str | None = None
    credentials: Credentials | None = None
    namespace_v2: str | None = None
    tls: ClientTls | bool = False
    """True: ``ClientTls()``."""

    def __post_init__(self) -> None:
        check_fields(INSTANCE_RULES, self)
        if self.credentials is not None and not isinstance(self.credentials, Credentials):
            # their value is not shown
            raise ConfigError("credentials must be made as Credentials(access_key, secret_key)")

    @property
    def client_name(self) -> tuple[str | None, str | None]:
        """Two instances with the same are one client to the brokers of a cluster."""
        return self.instance_name, self.unit_name

    @property
    def client_tls(self) -> ClientTls | None:
        """None: plain text."""
        return self.tls if isinstance(self.tls, ClientTls) else ClientTls() if self.tls else None

    def signer(self) -> RequestSigner | None:
        """What every request carries; None: nothing."""
        if self.credentials is None and self.namespace_v2 is None:
            return None
        return RequestSigner(self.credentials, self.namespace_v2)


class RequestSigner:
    """Adds to requests what the client's identity asks for. ``signs``: whether requests are signed;
    ``fields``: what is the same in every request."""

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
        """The header fields ``ext`` with what is to be added."""
        fields = {**ext, **self.fields} if ext else dict(self.fields)
        if self.signs:
            values = [fields[name] for name in sorted(fields) if name != SIGNATURE]
            fields[SIGNATURE] = self.signature("".join(values).encode(), body)
        return fields

    def signature(self, content: bytes, body: bytes) -> str:
        """Of the values of the fields in order, and the body."""
        return b64encode(hmac.digest(self._secret, content + body, "sha1")).decode()
