"""Access control settings, shared by name servers and brokers. Two of the settings are JSON texts.
The keys are those of Apache's broker; Apache's name server has no such keys.

Errors never contain the value of a secret. Users and files are unknown here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from turbopump.config.setting import setting
from turbopump.config.tls import TlsConfig
from turbopump.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig(TlsConfig):
    """Access control and TLS settings of a server."""

    authentication_enabled: bool = setting(
        False, "requests must be signed by a user of this server", group="access"
    )
    authorization_enabled: bool = setting(
        False, "users need a policy for each request; needs authenticationEnabled"
    )
    auth_config_path: str = setting(
        "",
        "directory of `accounts.json` with users and policies; empty: `config/auth` in "
        "storePathRootDir of a broker, `auth` beside kvConfigPath of a name server or in "
        "controllerStorePath of a controller",
    )
    init_authentication_user: str = setting(
        "",
        'first Super user, created at the start if missing: `{"username": …, "password": …}`',
        secret=True,
    )
    inner_client_authentication_credentials: str = setting(
        "",
        'user that signs this server\'s own requests: `{"accessKey": …, "secretKey": …}`; '
        "created at the start as a Super user if it does not exist",
        secret=True,
    )
    authentication_whitelist: str = setting(
        "", "codes of requests that need no signature, separated by commas"
    )
    authorization_whitelist: str = setting(
        "", "codes of requests that every user may send, separated by commas"
    )
    migrate_auth_from_v1_enabled: bool = setting(
        False,
        "users of plain_acl.yml and acl/*.yml of 4.x, in `conf` of ROCKETMQ_HOME, are taken over "
        "at the start unless they are there",
    )

    max_connections_per_address: int = setting(
        0, "connections that one address may have; more are closed; 0: no bound", own=True
    )

    @property
    def unsigned_codes(self) -> frozenset[int]:
        """Codes of the requests that are accepted without a signature.

        They are those of `authenticationWhitelist`. Raise ConfigError if the text is invalid.
        """
        return _codes("authenticationWhitelist", self.authentication_whitelist)

    @property
    def unasked_codes(self) -> frozenset[int]:
        """Codes of the requests for which no permission is checked.

        They are those of `authorizationWhitelist`. Raise ConfigError if the text is invalid.
        """
        return _codes("authorizationWhitelist", self.authorization_whitelist)

    @property
    def first_user(self) -> tuple[str, str] | None:
        """Name and password of the first user, or None if the configuration has none.

        The key is `initAuthenticationUser`. Raise ConfigError if the text is invalid.
        """
        return _pair(
            "initAuthenticationUser", self.init_authentication_user, "username", "password"
        )

    @property
    def inner_user(self) -> tuple[str, str] | None:
        """Name and password for the server's own requests, or None if they are not configured.

        The key is `innerClientAuthenticationCredentials`. Raise ConfigError if the text is invalid.
        """
        text = self.inner_client_authentication_credentials
        return _pair("innerClientAuthenticationCredentials", text, "accessKey", "secretKey")

    def check_access(self) -> None:
        """Raise ConfigError if the access settings are invalid or contradict each other."""
        _ = self.unsigned_codes, self.unasked_codes, self.first_user, self.inner_user
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled=true needs authenticationEnabled=true: policies "
                "need signed requests"
            )


def _codes(key: str, text: str) -> frozenset[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise ConfigError(f"{key}={text[:60]}: expected request codes separated by commas")
    return frozenset(map(int, parts))


def _pair(key: str, text: str, first: str, second: str) -> tuple[str, str] | None:
    if not text.strip():
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    values = [found.get(name) if isinstance(found, dict) else None for name in (first, second)]
    one, other = values
    if not isinstance(one, str) or not isinstance(other, str) or not one.strip() or not other:
        raise ConfigError(
            f'{key} is not {{"{first}": …, "{second}": …}}, JSON on one line (the value is not '
            "shown: it may hold a secret)"
        )
    return one, other
