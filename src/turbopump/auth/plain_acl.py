"""``plain_acl.yml`` of RocketMQ 4.x, as users and policies.

What is taken over, and how, is as in apache/rocketmq ``AuthMigrator``: an admin becomes a Super
user; topicPerms and groupPerms become a Custom policy, defaultTopicPerm and defaultGroupPerm a
Default one. Addresses that 4.x served without a signature (globalWhiteRemoteAddresses,
whiteRemoteAddress) are not taken over.

Of YAML it reads what such files hold: mappings and lists by indentation, lists in brackets,
comments, quotes. Whatever else there is, is refused: it might have been a DENY.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

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
DEPTH_MAX: Final = 20
_Value = Any
"""A text, None, a list or a mapping of such."""


@dataclass(frozen=True)
class Found:
    """What a file holds; ``left_out``: what has no place in policies, in words."""

    accounts: Accounts
    left_out: tuple[str, ...] = ()


def configuration_directory() -> Path:
    """``conf`` of ROCKETMQ_HOME, where 4.x has its files; of this directory without one."""
    return Path(os.environ.get("ROCKETMQ_HOME", "")) / "conf"


def read_directory(directory: Path) -> Accounts:
    """The users of ``acl/*.yml`` and of ``plain_acl.yml``; of two with one name the first. Raises
    ConfigError, OSError."""
    found = Accounts()
    inner = sorted(path for path in (directory / "acl").rglob("*") if _is_yaml(path))
    for path in [*inner, directory / "plain_acl.yml"]:
        if path.is_file():
            found = found.with_more(read(path).accounts)
    return found


def _is_yaml(path: Path) -> bool:
    return path.suffix in (".yml", ".yaml") and path.name != "tools.yml"


def read(path: Path) -> Found:
    """The users and policies in a file. Raises ConfigError that names it, OSError."""
    try:
        return decode(path.read_bytes().decode("utf-8"))
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def decode(text: str) -> Found:
    """The same of its text. No error holds a secret."""
    content = _parse(text)
    if not isinstance(content, dict):
        raise ConfigError("it is no plain_acl.yml: a line `accounts:` is expected")
    accounts, left_out = Accounts(), []
    if content.get("globalWhiteRemoteAddresses"):
        left_out.append("globalWhiteRemoteAddresses: every request needs a signature")
    for number, account in enumerate(_list(content, "accounts"), 1):
        if not isinstance(account, dict):
            raise ConfigError(f"account {number} is no mapping with accessKey and secretKey")
        name, secret = account.get("accessKey"), account.get("secretKey")
        if not isinstance(name, str) or not isinstance(secret, str):
            raise ConfigError(f"account {number} needs an accessKey and a secretKey")
        if account.get("whiteRemoteAddress"):
            left_out.append(f"whiteRemoteAddress of {name}: every request needs a signature")
        is_admin = str(account.get("admin")).lower() in ("true", "yes", "on")
        user = UserInfo(username=name, password=secret, user_type=SUPER if is_admin else None)
        policies = Policies(tuple(_custom(account, name)), tuple(_default(account, name)))
        accounts = accounts.with_more(Accounts().with_new_user(user).having(name, policies))
    return Found(accounts, tuple(left_out))


def _custom(account: dict[str, _Value], name: str) -> Iterator[Entry]:
    for key, type_ in (("topicPerms", ResourceType.TOPIC), ("groupPerms", ResourceType.GROUP)):
        for text in _list(account, key):
            resource, equals, permission = str(text).partition("=")
            if not equals or not resource.strip():
                raise ConfigError(f"{key} of {name}: {str(text)[:80]!r} is not NAME=PERMISSION")
            yield _entry(Resource(type_, resource.strip()), permission, f"{key} of {name}")


def _default(account: dict[str, _Value], name: str) -> Iterator[Entry]:
    for key, type_ in (
        ("defaultTopicPerm", ResourceType.TOPIC),
        ("defaultGroupPerm", ResourceType.GROUP),
    ):
        permission = account.get(key)
        if permission:
            yield _entry(Resource(type_, "", Pattern.ANY), str(permission), f"{key} of {name}")


def _entry(resource: Resource, permission: str, where: str) -> Entry:
    permission = permission.strip()
    if permission == "DENY":
        return Entry(resource, frozenset({Action.ALL}), Decision.DENY)
    actions = _ACTIONS.get(permission)
    if actions is None:
        known = ", ".join(["DENY", *_ACTIONS])
        raise ConfigError(f"{where}: {permission[:40]!r} is no permission; one of {known} is")
    return Entry(resource, frozenset(actions), Decision.ALLOW)


def _list(content: dict[str, _Value], key: str) -> list[_Value]:
    found = content.get(key)
    if found is None or found == "":
        return []
    if not isinstance(found, list):
        raise ConfigError(f"{key} is no list")
    return found


# --- As much of YAML as there is in such files.

_KEY: Final = re.compile(r"([\w.-]+)\s*:(?:\s+(.*))?$")
_COMMENT: Final = re.compile(r"(?:^|\s)#.*$")


class _Line(NamedTuple):
    number: int
    indent: int
    text: str


def _parse(text: str) -> _Value:
    lines = list(_lines(text))
    if not lines:
        return None
    value, rest = _block(lines, 0, lines[0].indent, 0)
    if rest < len(lines):
        raise _odd(lines[rest])
    return value


def _lines(text: str) -> Iterator[_Line]:
    open_line: _Line | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        bare = _without_comment(raw)
        if not bare.strip() or (not raw[:1].isspace() and bare.startswith(("---", "...", "!!"))):
            continue
        if "\t" in raw[: len(raw) - len(raw.lstrip())]:
            raise ConfigError(f"line {number} is indented by a tab")
        line = _Line(number, len(bare) - len(bare.lstrip()), bare.strip())
        if open_line is not None:  # a list in brackets goes on
            line = open_line._replace(text=f"{open_line.text} {line.text}")
        open_line = line if line.text.count("[") > line.text.count("]") else None
        if open_line is None:
            yield line
    if open_line is not None:
        raise _odd(open_line)


def _without_comment(raw: str) -> str:
    if "'" in raw or '"' in raw:
        return "" if raw.lstrip().startswith("#") else raw.rstrip()
    return _COMMENT.sub("", raw).rstrip()


def _block(lines: list[_Line], at: int, indent: int, depth: int) -> tuple[_Value, int]:
    if depth > DEPTH_MAX:
        raise _odd(lines[at])
    if lines[at].text == "-" or lines[at].text.startswith("- "):
        return _items(lines, at, indent, depth)
    if _KEY.match(lines[at].text):
        return _members(lines, at, indent, depth)
    return _scalar(lines[at], lines[at].text), at + 1


def _items(lines: list[_Line], at: int, indent: int, depth: int) -> tuple[_Value, int]:
    found: list[_Value] = []
    while at < len(lines) and lines[at].indent == indent and lines[at].text[:2] in ("-", "- "):
        line = lines[at]
        rest = line.text[1:].lstrip()
        if not rest:
            raise _odd(line)
        inner = indent + len(line.text) - len(rest)
        lines[at] = _Line(line.number, inner, rest)
        value, at = _block(lines, at, inner, depth + 1)
        found.append(value)
    return found, at


def _members(lines: list[_Line], at: int, indent: int, depth: int) -> tuple[_Value, int]:
    found: dict[str, _Value] = {}
    while at < len(lines) and lines[at].indent == indent and not lines[at].text.startswith("- "):
        line = lines[at]
        match = _KEY.match(line.text)
        if match is None or match[1] in found:
            raise _odd(line)
        value: _Value = None
        at += 1
        if match[2]:
            value = _scalar(line, match[2])
        elif at < len(lines) and (
            lines[at].indent > indent
            or (lines[at].indent == indent and lines[at].text.startswith("- "))
        ):
            value, at = _block(lines, at, lines[at].indent, depth + 1)
        found[match[1]] = value
    return found, at


def _scalar(line: _Line, text: str) -> _Value:
    text = text.strip()
    if text.startswith("["):
        if not text.endswith("]") or "[" in text[1:]:
            raise _odd(line)
        return [_scalar(line, part) for part in text[1:-1].split(",") if part.strip()]
    if text[:1] in "'\"":
        if len(text) < 2 or text[-1] != text[0] or text[0] in text[1:-1] or "\\" in text:
            raise _odd(line)
        return text[1:-1]
    if text[:1] in "&*!|>{%@`":
        raise _odd(line)
    return "" if text in ("null", "~") else text


def _odd(line: _Line) -> ConfigError:
    return ConfigError(
        f"line {line.number} is not understood (it is not shown: it may hold a secret); of YAML, "
        "mappings, lists and plain texts are read"
    )
