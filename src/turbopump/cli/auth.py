"""`turbopump auth user|policy|test|import|export`: users and policies.

A command reads or changes them on every server with access control, or in one server's file.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from turbopump.admin.access import (
    OFF,
    ChangeOutcome,
    ServerAccounts,
    account_servers,
    acl_of,
    change_all,
    import_all,
    list_accounts,
    policy_type,
)
from turbopump.admin.cluster import Servers
from turbopump.auth import plain_acl
from turbopump.auth.accounts import DISABLED, ENABLED, NORMAL, SUBJECT, SUPER, Accounts
from turbopump.auth.policies import Action, Policies, Resource, one_of
from turbopump.auth.server_access import Change, change_file, open_to_others
from turbopump.cli.entry import command_group, complain
from turbopump.cli.frame import INCOMPLETE, client_command, show
from turbopump.cli.log_output import log_options
from turbopump.cli.values import checked_address
from turbopump.config.system import require_unix
from turbopump.disk.whole_files import WholeFiles
from turbopump.errors import ClientError, ConfigError, RemotingError
from turbopump.protocol.command import Body
from turbopump.protocol.request import Request
from turbopump.protocol.requests.access import (
    CreateAcl,
    CreateUser,
    DeleteAcl,
    DeleteUser,
    UpdateUser,
    UserInfo,
)

DENIED: Final = 3
"""Exit code of `auth test` if a server denies the action."""

command = command_group("auth", "Manage users and their permissions.")
user = command_group("user", "List, create, change and delete users.")
policy = command_group("policy", "List, add and delete policies.")
command.add_command(user)
command.add_command(policy)

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

    async def read_accounts(self, name: str) -> tuple[list[ServerAccounts], int]:
        """Read the accounts from each server. Return the accounts, and an exit code.

        The exit code is 1 if a server could not be asked.
        """
        if self.file is not None:
            accounts = _read_file(self.file)
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
        self, output: str, done: str, change: Change, request: Request[Any], body: Body = b""
    ) -> int:
        """Change the accounts of each server, print the outcomes, and return the exit code.

        The exit code is 1 if a server refused the change.
        """
        if self.file is not None:
            try:
                _change_file(self.file, change)
            except ConfigError as error:
                raise ConfigError(_plain(str(error))) from None
            outcomes = [ChangeOutcome(str(self.file))]
        else:
            outcomes = await change_all(self.servers, await self.addresses(), request, body)
        rows = [{"server": one.server, "done": one.fault is None} for one in outcomes]
        show(output, rows, [f"{one.server}: {done}" for one in outcomes if one.fault is None])
        failed = [one for one in outcomes if one.fault is not None]
        for one in failed:
            complain(f"{one.server}: {_plain(one.fault or '')}")
        return INCOMPLETE if failed else 0


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


def _change_file(file: Path, change: Change) -> None:
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


def _read_file(path: Path) -> Accounts:
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


_APACHES_WORDS: Final = (
    (r"The user is existed: (\S+?)(; update changes them)?$", r"there is a user \1 already"),
    (r"The user is not exist: (\S+)$", r"there is no user \1"),
    (r"The subject of User:(\S+) is not exist.*", r"there is no user \1"),
    (r"The acl is not exist.*", "there is no such policy"),
)


def _plain(fault: str) -> str:
    """Translate the reason of a refused change into plain words.

    Servers give the reason in the words of Apache's broker, because mqadmin shows them.
    """
    for pattern, words in _APACHES_WORDS:
        fault = re.sub(pattern, words, fault)
    return fault


def _password(from_file: str | None) -> str:
    """Read a password from the first line of a file. If no file is given, prompt for the password.

    The file ``-`` is standard input. A password is never an argument, because other users can see
    the arguments of a process.
    """
    if from_file is None:
        if not sys.stdin.isatty():
            raise click.UsageError("give --password-file FILE, or - for standard input")
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    try:
        text = sys.stdin.readline() if from_file == "-" else Path(from_file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot read the password file: {cause}") from None
    line = text.split("\n", 1)[0].removesuffix("\r")
    if not line.strip():
        raise ConfigError("the first line of the password file is empty")
    return line


_password_file = click.option(
    "--password-file",
    metavar="FILE",
    help="File whose first line is the password; - is standard input.  [default: ask]",
)


# --- users


@client_command(user, "list", short_help="Users, without passwords.")
@place_options
async def list_users(place: Place, output: str) -> int:
    """List the users of each server."""
    found, code = await place.read_accounts("")
    rows = [
        {
            "server": one.server,
            "user": each.username,
            "type": each.user_type,
            "status": each.user_status,
        }
        for one in found
        for each in one.users
    ]
    show(output, rows, ("{server}  {user}  {type}  {status}".format(**row) for row in rows))
    return code


@client_command(user, "create", short_help="Create a user.")
@click.argument("name")
@click.option(
    "--super", "is_super", is_flag=True, help="Create a Super user, who may do everything."
)
@_password_file
@place_options
async def create_user(
    place: Place, name: str, is_super: bool, password_file: str | None, output: str
) -> int:
    """Create a new user. NAME is the access key of clients, the password their secret key. A user
    without a policy may do nothing."""
    kind = SUPER if is_super else NORMAL
    info = UserInfo(username=name, password=_password(password_file), user_type=kind)
    change = _edit(Accounts.with_new_user, info)
    request = CreateUser(username=name)
    return await place.change_accounts(output, "created", change, request, info)


@client_command(user, "alter", short_help="Change a user.")
@click.argument("name")
@click.option("--password", "new_password", is_flag=True, help="Set another password.")
@_password_file
@click.option("--enable/--disable", default=None, help="Accept or reject the user's signature.")
@click.option(
    "--super/--normal",
    "is_super",
    default=None,
    help="Make the user Super (may do everything) or Normal.",
)
@place_options
async def alter_user(
    place: Place,
    name: str,
    new_password: bool,
    password_file: str | None,
    enable: bool | None,
    is_super: bool | None,
    output: str,
) -> int:
    """Change the password, the status or the type of a user. Servers apply the change to the next
    request."""
    info = UserInfo(username=name)
    if enable is not None:
        info.user_status = ENABLED if enable else DISABLED
    if is_super is not None:
        info.user_type = SUPER if is_super else NORMAL
    if new_password or password_file is not None:
        info.password = _password(password_file)
    elif enable is None and is_super is None:
        raise click.UsageError("give --password, --enable, --disable, --super or --normal")
    change = _edit(Accounts.with_changed_user, info)
    request = UpdateUser(username=name)
    return await place.change_accounts(output, "changed", change, request, info)


@client_command(user, "delete", short_help="Delete a user and their policies.")
@click.argument("name")
@place_options
async def delete_user(place: Place, name: str, output: str) -> int:
    """Delete a user and their policies. A missing user is no error."""
    change = _edit(Accounts.without_user, name)
    return await place.change_accounts(output, "deleted", change, DeleteUser(username=name))


def _edit(method: Callable[..., Accounts], *arguments: Any) -> Change:
    return lambda accounts: method(accounts, *arguments)


# --- policies


@client_command(policy, "list", short_help="Policies of users.")
@click.option("--user", "name", metavar="NAME", default="", help="Show only this user.")
@place_options
async def list_policies(place: Place, name: str, output: str) -> int:
    """List the policies of each server."""
    found, code = await place.read_accounts(name)
    rows = [
        {"server": one.server, "user": (acl.subject or "").removeprefix(SUBJECT)}
        | {"policy": policy.policy_type, "resource": entry.resource, "actions": entry.actions}
        | {"from": entry.source_ips, "decision": entry.decision}
        for one in found
        for acl in one.acls
        if not name or acl.subject == SUBJECT + name
        for policy in acl.policies or ()
        for entry in policy.entries or ()
    ]
    show(output, rows, map(_policy_line, rows))
    return code


def _policy_line(row: dict[str, Any]) -> str:
    actions = ",".join(row["actions"] or ())
    line = (
        f"{row['server']}  {row['user']}  {row['policy']}: {row['decision']} {actions} on "
        f"{row['resource']}"
    )
    if row["from"]:
        line += f" from {','.join(row['from'])}"
    return line


_resources = click.option(
    "--resource",
    "resources",
    metavar="TYPE:NAME",
    multiple=True,
    required=True,
    help="Topic:NAME, Group:NAME, Cluster:NAME, with * at the end for a prefix; repeatable.",
)
_default_policy = click.option(
    "--default",
    "is_default",
    is_flag=True,
    help="Use the Default policy instead of the Custom one.",
)


@client_command(policy, "add", short_help="Allow or deny actions to a user.")
@click.argument("name", metavar="USER")
@_resources
@click.option(
    "--action",
    "actions",
    metavar="ACTION",
    multiple=True,
    required=True,
    help="All, Pub, Sub, Create, Update, Delete, Get or List; repeatable.",
)
@click.option("--deny", is_flag=True, help="Deny the actions.  [default: allow]")
@click.option(
    "--from",
    "sources",
    metavar="ADDR",
    multiple=True,
    help="Apply only to this client address or range; repeatable.",
)
@_default_policy
@place_options
async def add_policy(
    place: Place,
    name: str,
    resources: Sequence[str],
    actions: Sequence[str],
    deny: bool,
    sources: Sequence[str],
    is_default: bool,
    output: str,
) -> int:
    """Allow or deny a user actions on resources. A policy for the same resource is replaced.

    \b
    turbopump auth policy add billing --resource Topic:orders --resource Group:billing --action Sub
    """
    acl = acl_of(name, resources, actions, deny, sources, is_default)
    change = _edit(Accounts.with_acl, acl)
    request = CreateAcl(subject=acl.subject)
    return await place.change_accounts(output, "added", change, request, acl)


@client_command(policy, "delete", short_help="Delete policies of a user.")
@click.argument("name", metavar="USER")
@click.option(
    "--resource", metavar="TYPE:NAME", help="Delete only this resource's policy.  [default: all]"
)
@_default_policy
@place_options
async def delete_policy(
    place: Place, name: str, resource: str | None, is_default: bool, output: str
) -> int:
    """Delete the policies of a user for one resource, or for all."""
    type_ = None
    if resource:
        type_ = policy_type(is_default)
    change = _edit(Accounts.without_acl, SUBJECT + name, type_, resource)
    request = DeleteAcl(subject=SUBJECT + name, policy_type=type_, resource=resource)
    return await place.change_accounts(output, "deleted", change, request)


# --- which rule decides


@client_command(command, "test", short_help="Show which policy decides.")
@click.option("--user", "name", metavar="NAME", required=True, help="The user.")
@click.option(
    "--action",
    "actions",
    metavar="ACTION",
    multiple=True,
    required=True,
    help="The action; repeatable.",
)
@click.option("--topic", metavar="NAME", help="The topic.")
@click.option("--group", metavar="NAME", help="The group.")
@click.option("--cluster", metavar="NAME", help="The cluster.")
@click.option("--from", "source", metavar="ADDR", default="127.0.0.1", help="The client's address.")
@place_options
async def test(
    place: Place,
    name: str,
    actions: Sequence[str],
    topic: str | None,
    group: str | None,
    cluster: str | None,
    source: str,
    output: str,
) -> int:
    """Show if a user may do one of these actions on a resource, and which policy decides. The
    command sends nothing in the user's name. Exit code 3: at least one server denies it."""
    named = [
        f"{kind}:{text}"
        for kind, text in (("Topic", topic), ("Group", group), ("Cluster", cluster))
        if text is not None
    ]
    if len(named) != 1:
        raise click.UsageError("give one of --topic, --group, --cluster")
    asked = Resource.parse(named[0])
    wanted = [one_of(Action, action, "action") for action in actions]
    rows = []
    found, code = await place.read_accounts(name)
    for one in found:
        allowed, why = _decision(one, name, asked, wanted, source)
        rows.append({"server": one.server, "allowed": allowed, "because": why})
    lines = [
        f"{row['server']}: {'allowed' if row['allowed'] else 'denied'}, {row['because']}"
        for row in rows
    ]
    show(output, rows, lines)
    return code if all(row["allowed"] for row in rows) else DENIED


def _decision(
    place: ServerAccounts, name: str, asked: Resource, actions: Sequence[Action], source: str
) -> tuple[bool, str]:
    if place.user(name) is None:
        return False, f"there is no user {name}"
    accounts = place.accounts
    found = accounts.users[name]
    if not found.enabled:
        return False, f"{name} is disabled"
    if found.is_super:
        return True, f"{name} is a Super user"
    policies = accounts.policies.get(name, Policies())
    decided = policies.find_entry(asked, actions, source)
    if decided is None:
        return False, "no policy matches"
    type_, entry = decided
    return entry.decision == "Allow", f"by the {type_} policy: {entry}"


# --- from and to files


@client_command(command, "import", short_help="Import users and policies from a file.")
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@place_options
async def import_(place: Place, source: Path, output: str) -> int:
    """Import the users that a server lacks, with passwords and policies. FILE is a plain_acl.yml of
    RocketMQ 4.x (needs the extra acl-import) or a file from `turbopump auth export`."""
    accounts, left_out = _read(source)
    for text in left_out:
        complain(f"left out: {text}")
    made: list[str] = []
    failed: Iterable[ChangeOutcome] = ()
    if place.file is not None:

        def add_users(old: Accounts) -> Accounts:
            made.extend(f"{place.file}: {name}" for name in accounts.users if name not in old.users)
            return old.with_more(accounts)

        _change_file(place.file, add_users)
    else:
        made, failed = await import_all(place.servers, await place.addresses(), accounts)
    show(output, made, made or ["all users exist already"])
    for one in failed:
        complain(f"{one.server}: {one.fault}")
    return INCOMPLETE if failed else 0


def _read(source: Path) -> tuple[Accounts, Sequence[str]]:
    if source.suffix in (".yml", ".yaml"):
        found = plain_acl.read(source)
        return found.accounts, found.left_out
    return _read_file(source), ()


@click.command(name="export", short_help="Write the users of a file with passwords.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@log_options("warning", plain=True)
def export(file: Path) -> None:
    """Write the users, passwords and policies of an accounts.json to standard output. Servers never
    show passwords, so this needs read access to the file. `turbopump auth import` reads the
    output."""
    click.echo(_read_file(file).encode(), nl=False)


command.add_command(export)
