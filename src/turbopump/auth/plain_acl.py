"""Import of users and policies from ``plain_acl.yml`` of RocketMQ 4.x.

The import follows apache/rocketmq ``AuthMigrator``: an admin becomes a Super user; topicPerms and
groupPerms become a Custom policy, defaultTopicPerm and defaultGroupPerm a Default one. Addresses
that 4.x served without a signature (globalWhiteRemoteAddresses, whiteRemoteAddress) are left out.

PyYAML (the extra ``acl-import``) reads the file, with every scalar as text. The last of two equal
keys counts, as in 4.x. A value of an unexpected type is refused, because it might be a DENY.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from turbopump.auth.accounts import SUPER, Accounts
from turbopump.auth.policies import (
    Action,
    Decision,
    Entry,
    Pattern,
    Policies,
    Resource,
    ResourceType,
)
from turbopump.errors import ConfigError
from turbopump.protocol.requests.access import UserInfo

_ACTIONS: Final = {
    "PUB": {Action.PUB},
    "SUB": {Action.SUB},
    "PUB|SUB": {Action.PUB, Action.SUB},
    "SUB|PUB": {Action.PUB, Action.SUB},
    "ANY": {Action.ALL},
}
_NULLS: Final = ("", "~", "null", "Null", "NULL")
_Value = Any
"""Text, or a list or mapping of values, or None for an empty file."""


@dataclass(frozen=True)
class Found:
    """Users and policies from a file.

    ``left_out`` has sentences about parts that no policy can express.
    """

    accounts: Accounts
    left_out: tuple[str, ...] = ()


def configuration_directory() -> Path:
    """Return the directory with the configuration files of RocketMQ 4.x.

    It is ``conf`` in ROCKETMQ_HOME, or in the current directory if that is not set.
    """
    return Path(os.environ.get("ROCKETMQ_HOME", "")) / "conf"


def read_directory(directory: Path) -> Accounts:
    """Return the users and policies in ``acl/*.yml`` and in ``plain_acl.yml``.

    Of two users with the same name, the first counts. Raises ConfigError or OSError if a file
    cannot be read.
    """
    found = Accounts()
    inner = sorted(path for path in (directory / "acl").rglob("*") if _is_yaml(path))
    for path in [*inner, directory / "plain_acl.yml"]:
        if path.is_file():
            found = found.with_more(read(path).accounts)
    return found


def _is_yaml(path: Path) -> bool:
    return path.suffix in (".yml", ".yaml") and path.name != "tools.yml"


def read(path: Path) -> Found:
    """Return the users and policies in a file.

    Raises ConfigError, which names the file, or OSError.
    """
    try:
        return decode(path.read_bytes().decode("utf-8"))
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def decode(text: str) -> Found:
    """Return the users and policies in the text of a file.

    No error contains a secret.
    """
    content = _parse(text)
    if not isinstance(content, dict):
        raise ConfigError("not a plain_acl.yml: expected a line `accounts:`")
    accounts, left_out = Accounts(), []
    if _value(content, "globalWhiteRemoteAddresses"):
        left_out.append("globalWhiteRemoteAddresses: every request needs a signature")
    for number, account in enumerate(_list(content, "accounts"), 1):
        if not isinstance(account, dict):
            raise ConfigError(f"account {number} is not a mapping with accessKey and secretKey")
        name, secret = _value(account, "accessKey"), _value(account, "secretKey")
        if not isinstance(name, str) or not isinstance(secret, str):
            raise ConfigError(f"account {number} needs an accessKey and a secretKey")
        if _value(account, "whiteRemoteAddress"):
            left_out.append(f"whiteRemoteAddress of {name}: every request needs a signature")
        is_admin = str(account.get("admin")).lower() in ("true", "yes", "on")
        user = UserInfo(username=name, password=secret, user_type=SUPER if is_admin else None)
        policies = Policies(tuple(_custom(account, name)), tuple(_default(account, name)))
        accounts = accounts.with_more(Accounts().with_new_user(user).with_policies(name, policies))
    return Found(accounts, tuple(left_out))


def _custom(account: dict[str, _Value], name: str) -> Iterator[Entry]:
    for key, type_ in (("topicPerms", ResourceType.TOPIC), ("groupPerms", ResourceType.GROUP)):
        for text in _list(account, key):
            if not isinstance(text, str):
                raise ConfigError(f"{key} of {name}: one of them is not NAME=PERMISSION")
            resource, equals, permission = text.partition("=")
            if not equals or not resource.strip():
                raise ConfigError(f"{key} of {name}: {text[:80]!r} is not NAME=PERMISSION")
            yield _entry(Resource(type_, resource.strip()), permission, f"{key} of {name}")


def _default(account: dict[str, _Value], name: str) -> Iterator[Entry]:
    for key, type_ in (
        ("defaultTopicPerm", ResourceType.TOPIC),
        ("defaultGroupPerm", ResourceType.GROUP),
    ):
        permission = _value(account, key)
        if isinstance(permission, str):
            yield _entry(Resource(type_, "", Pattern.ANY), permission, f"{key} of {name}")
        elif permission is not None:
            raise ConfigError(f"{key} of {name} is not text")


def _entry(resource: Resource, permission: str, where: str) -> Entry:
    permission = permission.strip()
    if permission == "DENY":
        return Entry(resource, frozenset({Action.ALL}), Decision.DENY)
    actions = _ACTIONS.get(permission)
    if actions is None:
        known = ", ".join(["DENY", *_ACTIONS])
        raise ConfigError(f"{where}: {permission[:40]!r} is not a permission; use one of {known}")
    return Entry(resource, frozenset(actions), Decision.ALLOW)


def _list(content: dict[str, _Value], key: str) -> list[_Value]:
    found = _value(content, key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise ConfigError(f"{key} is not a list")
    return found


def _value(mapping: dict[str, _Value], key: str) -> _Value:
    """Return the value of a key, or None if the key is absent or null."""
    value = mapping.get(key)
    return None if value in _NULLS else value


def _parse(text: str) -> _Value:
    """Return the text parsed into lists and mappings of strings.

    PyYAML's own errors are not shown, because they quote the file, which may contain a secret.
    """
    try:
        import yaml
    except ImportError:
        raise ConfigError(
            "to read it needs the package PyYAML: pip install 'turbopump[acl-import]'"
        ) from None
    try:
        return yaml.load(text, yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "it" if mark is None else f"line {mark.line + 1}"
        raise ConfigError(
            f"{where} is not YAML (the line is not shown: it may hold a secret)"
        ) from None
