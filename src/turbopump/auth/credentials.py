"""Credentials of a command or a Spark application. They come from options, a file or the
environment. No error text contains the credentials."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from turbopump.auth.signatures import Credentials
from turbopump.errors import ConfigError

ACCESS_KEY_VARIABLE: Final = "TURBOPUMP_ACCESS_KEY"
SECRET_KEY_VARIABLE: Final = "TURBOPUMP_SECRET_KEY"
SECURITY_TOKEN_VARIABLE: Final = "TURBOPUMP_SECURITY_TOKEN"
SECRET_FIELDS: Final = ("access_key", "secret_key", "security_token", "credentials_file")
_FILE_NAMES: Final = {
    "accessKey": "access_key",
    "secretKey": "secret_key",
    "securityToken": "security_token",
}


def credentials_of(
    secrets: Mapping[str, str | None], environment: Mapping[str, str]
) -> Credentials | None:
    """Return the credentials of a command or application. The result is None if they are not set.

    The values of ``SECRET_FIELDS`` have precedence over ``environment``. Raises ConfigError if
    the credentials are invalid.
    """
    path = secrets["credentials_file"]
    secrets = {name: value for name, value in secrets.items() if name != "credentials_file"}
    if path is not None:
        if any(secrets.values()):
            raise ConfigError(
                "credentialsFile replaces accessKey, secretKey and securityToken: remove "
                "these options"
            )
        secrets = {**secrets, **_file_credentials(path)}
    elif not any(secrets.values()):
        variables = (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE, SECURITY_TOKEN_VARIABLE)
        secrets = {
            name: environment.get(variable) or None
            for name, variable in zip(secrets, variables, strict=True)
        }
    access = secrets["access_key"]
    secret = secrets["secret_key"]
    if access is None and secret is None and secrets["security_token"] is None:
        return None
    if access is None or secret is None:
        there = "a secretKey or securityToken" if access is None else "an accessKey"
        raise ConfigError(
            f"{there} is set without the other: set accessKey and secretKey (as options, in "
            f"credentialsFile, or as {ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE} in "
            "the environment)"
        )
    return Credentials(access, secret, secrets["security_token"])


def _file_credentials(path: str) -> dict[str, str]:
    """Return the credentials in a file that has the form of mqadmin's ``tools.yml``.

    Its lines are ``accessKey: VALUE`` or ``accessKey=VALUE``.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"credentialsFile {path!r} cannot be read: {reason}") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, *rest = re.split(r"\s*[:=]\s*", text, maxsplit=1)
        if name not in _FILE_NAMES or rest in ([], [""]):
            raise ConfigError(
                f"credentialsFile {path!r}: line {number} is not accessKey: VALUE, secretKey: "
                "VALUE or securityToken: VALUE"
            )
        (value,) = rest
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        found[_FILE_NAMES[name]] = value
    if not {"access_key", "secret_key"} <= found.keys():
        raise ConfigError(f"credentialsFile {path!r} needs an accessKey and a secretKey")
    return found
