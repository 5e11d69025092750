"""Accounts that a command of `turbopump auth` reads or changes: on servers, or in one file.

A change is computed here too, for its old and new values, and for a dry run. Equal rows of several
servers become one. Single commands are unknown here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from turbopump.admin.access import OFF, ServerAccounts, account_servers, change_all, list_accounts
from turbopump.admin.cluster import Servers
from turbopump.auth.accounts import Accounts, User
from turbopump.auth.policies import Policies
from turbopump.auth.server_access import Change as AccountsChange
from turbopump.auth.server_access import change_file, open_to_others
from turbopump.cli.changes import Change, servers_text, show_changes
from turbopump.cli.entry import EXISTS, INCOMPLETE, NOT_FOUND, complain
from turbopump.cli.tables import Column, Table
from turbopump.cli.values import checked_address
from turbopump.config.system import require_unix
from turbopump.disk.whole_files import WholeFiles
from turbopump.errors import ClientError, ConfigError, RemotingError
from turbopump.protocol.command import Body
from turbopump.protocol.request import Request


@dataclass(frozen=True)
class Place:
    """Location of the accounts for a command to read or change.

    If ``file`` is set, it is this file. If ``server`` is set, it is this server. If both are None,
    it is every server of the cluster.
    """

    servers: Servers
    server: str | None
    file: Path | None

    async def addresses(self) -> list[str]:
        """Return the addresses to change, in the order for a change."""
        if self.server is not None:
            return [self.server]
        return await account_servers(self.servers)

    async def read_accounts(self, name: str = "") -> tuple[list[ServerAccounts], int]:
        """Read the accounts from each server. Return the accounts, and an exit code.

        - ``name``: only users whose name contains it.

        The exit code is 1 if a server could not be asked.
        """
        if self.file is not None:
            accounts = read_file(self.file)
            infos = [one.info for one in accounts.users.values()]
            return [ServerAccounts(str(self.file), infos, accounts.acl_infos())], 0
        found: list[ServerAccounts] = []
        faults: list[RemotingError] = []
        for address in await self.addresses():
            try:
                found += await list_accounts(self.servers, [address], name)
            except RemotingError as error:
                faults.append(error)
            except ClientError:  # it has no access control
                continue
        if not found and not faults:
            raise ClientError(OFF)
        if not found:
            raise faults[0]
        for one in found:
            if one.warning:
                complain(f"{one.server}: {one.warning}")
        if not faults:
            return found, 0
        for fault in faults:
            complain(f"not asked: {fault}")
        return found, INCOMPLETE

    async def change_accounts(
        self,
        output: str,
        user: str,
        change: AccountsChange,
        request: Request[Any],
        body: Body = b"",
        *,
        dry_run: bool,
    ) -> int:
        """Change the accounts of each server, print old and new values, and return the exit code.

        - ``user``: the name of the user whose account changes.
        - ``change``: the same change, to be made here.
        - ``dry_run``: only print the values.
        """
        changes = []
        if self.file is not None:
            before = read_file(self.file) if self.file.exists() else Accounts()
            changes = _changes(str(self.file), user, before, change)
            if not dry_run and not any(one.fault for one in changes):
                change_accounts_file(self.file, change)
        elif dry_run:
            found, _ = await self.read_accounts(user)
            for one in found:
                changes += _changes(one.server, user, one.accounts, change)
        else:
            addresses = await self.addresses()
            known = await self._known(addresses, user)
            outcomes = await change_all(self.servers, addresses, request, body)
            # A slave accepts a user that it has, because the copy of its master may be faster.
            is_refused = any(outcome.fault is not None for outcome in outcomes)
            for outcome in outcomes:
                at = outcome.server
                its = _changes(at, user, known.get(at), change)
                if outcome.fault is not None:
                    its = [Change(at, f"user {user}", None, None, _plain(outcome.fault))]
                elif any(one.fault for one in its) and not is_refused:
                    # Another command was faster.
                    its = [_unknown(at, user)]
                changes += its
        failed = [one for one in changes if one.fault is not None]
        if not failed or failed != changes or output != "table":
            show_changes(output, changes, dry_run=dry_run)
        complain_of_faults(failed)
        return _exit_code(changes)

    async def _known(self, addresses: Sequence[str], user: str) -> Mapping[str, Accounts]:
        """Return the accounts of those servers that show them."""
        found = {}
        for address in addresses:
            try:
                (one,) = await list_accounts(self.servers, [address], user)
                found[address] = one.accounts
            except (RemotingError, ClientError, ConfigError):
                continue
        return found


_file = click.option(
    "--file",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Edit this accounts.json directly instead of asking a server.",
)
_server = click.option(
    "--server",
    metavar="ADDR",
    callback=checked_address,
    help="Only on this name server or broker.  [default: all that have access control]",
)


def place_options(
    work: Callable[..., Coroutine[Any, Any, int]],
) -> Callable[..., Coroutine[Any, Any, int]]:
    """Add the options --server and --file to a command. The command gets both as one ``Place``."""

    @functools.wraps(work)
    async def with_place(
        servers: Servers, server: str | None, file: Path | None, **given: Any
    ) -> int:
        return await work(Place(servers, server, file), **given)

    return _file(_server(with_place))


def edit(method: Callable[..., Accounts], *arguments: Any) -> AccountsChange:
    """Return the change that calls this method of ``Accounts``."""
    return lambda accounts: method(accounts, *arguments)


def change_accounts_file(file: Path, change: AccountsChange) -> None:
    """Change the accounts in a file.

    Warns if other users of the machine can read the file, or could before this change.
    """
    require_unix("--file, which changes a server's own file,")
    from turbopump.disk.system_disk import SystemDisk

    disk = SystemDisk()
    before = open_to_others(disk, file)
    change_file(disk, file, change)
    now = open_to_others(disk, file)
    if now is not None:
        complain(now)
    elif before is not None:
        complain(
            f"{file} could be read by other users and has mode 0600 now; change its passwords if "
            "others may have read it"
        )


def read_file(path: Path) -> Accounts:
    """Read users and policies, including passwords, from a file.

    Warns if other users of the machine can read the file. Raises ConfigError or OSError if the file
    cannot be read.
    """
    warning = open_to_others(WholeFiles(), path)
    if warning is not None:
        complain(warning)
    try:
        return Accounts.decode(path.read_bytes())
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


# --- rows of several servers


def merged_rows(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Merge equal rows of several servers into one with the list ``servers``."""
    found: dict[str, dict[str, Any]] = {}
    for server, row in rows:
        found.setdefault(repr(row), {**row, "servers": []})["servers"].append(server)
    return list(found.values())


def servers_table(
    output: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], asked: int
) -> Table:
    """Return the table of merged rows. ``asked`` is the number of all servers."""
    if output != "table":
        return Table(columns, rows)
    return Table(columns, [{**row, "servers": servers_text(row["servers"], asked)} for row in rows])


# --- old and new values


def _changes(
    where: str, user: str, before: Accounts | None, change: AccountsChange
) -> list[Change]:
    """Return what a change does to a user's account: old and new values, or a fault.

    - ``before``: the accounts, or None if the server does not show them.
    """
    if before is None:
        return [_unknown(where, user)]
    try:
        after = change(before)
    except ConfigError as error:
        return [Change(where, f"user {user}", None, None, _plain(str(error)))]
    return list(_differences(where, user, before, after))


def _unknown(where: str, user: str) -> Change:
    return Change(where, f"user {user}", "unknown", "as requested")


def _differences(where: str, user: str, before: Accounts, after: Accounts) -> Iterator[Change]:
    old, new = before.users.get(user), after.users.get(user)
    if user_text(old) != user_text(new):
        yield Change(where, f"user {user}", user_text(old), user_text(new))
    if old is not None and new is not None and old.password != new.password:
        yield Change(where, f"password of {user}", "the old one", "the new one")
    old_entries, new_entries = _entries(before, user), _entries(after, user)
    for key in dict.fromkeys((*old_entries, *new_entries)):
        if old_entries.get(key) != new_entries.get(key):
            type_, resource = key
            what = f"{type_} policy of {user} for {resource}"
            yield Change(where, what, old_entries.get(key), new_entries.get(key))


def user_text(user: User | None) -> str | None:
    """Return the type and the status of a user, such as ``Normal, enabled``."""
    if user is None:
        return None
    kind = "Super" if user.is_super else "Normal"
    return f"{kind}, {'enabled' if user.enabled else 'disabled'}"


def _entries(accounts: Accounts, user: str) -> dict[tuple[str, str], str]:
    """Return the policies of a user as texts, by type and resource."""
    found = {}
    for type_, entries in accounts.policies.get(user, Policies()).by_type():
        for entry in entries:
            text = f"{entry.decision} {','.join(entry.actions_in_order)}"
            if entry.sources:
                text += f" from {','.join(entry.sources)}"
            found[str(type_), str(entry.resource)] = text
    return found


# --- faults

_APACHES_WORDS: Final = (
    (
        r"The user is existed: (\S+?)(; update changes them)?$",
        r"there is a user \1 already",
        EXISTS,
    ),
    (r"The user is not exist: (\S+)$", r"there is no user \1", NOT_FOUND),
    (r"The subject of User:(\S+) is not exist.*", r"there is no user \1", NOT_FOUND),
    (r"The acl is not exist.*", "there is no such policy", NOT_FOUND),
)
"""Refusals in the words of Apache's broker, which servers use because mqadmin shows them; plain
words, and the exit code."""


def _plain(fault: str) -> str:
    """Translate the reason of a refused change into plain words."""
    for pattern, words, _ in _APACHES_WORDS:
        fault = re.sub(pattern, words, fault)
    return fault


def _exit_code(changes: Sequence[Change]) -> int:
    """Return 3 or 4 if all servers refused because a name is missing or exists, 1 for any other
    fault."""
    faults = {one.fault for one in changes}
    if faults == {None} or not faults:
        return 0
    for _, words, code in _APACHES_WORDS:
        plain = re.compile(words.replace(r"\1", r"\S+"))
        if all(fault is not None and plain.fullmatch(fault) for fault in faults):
            return code
    return INCOMPLETE


def complain_of_faults(failed: Sequence[Change]) -> None:
    """Warn of changes that failed, once for servers with the same fault."""
    servers: dict[str, list[str]] = {}
    for one in failed:
        where = servers.setdefault(one.fault or "", [])
        if one.where not in where:
            where.append(one.where)
    asked = len({one.where for one in failed})
    for fault, where in servers.items():
        complain(f"{servers_text(where, asked)}: {fault}")
