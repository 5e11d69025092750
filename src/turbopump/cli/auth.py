"""`turbopump auth user|policy|test|import|export`: users and policies, on every server of a cluster
that has access control, or in a server's file."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from turbopump.admin.access import OFF, Held, Told, change_all, held, import_all
from turbopump.admin.cluster import Servers
from turbopump.auth import plain_acl
from turbopump.auth.accounts import SUBJECT, Accounts
from turbopump.auth.policies import Action, Resource, actions_of, one_of
from turbopump.auth.server_access import Change, change_file, open_to_others
from turbopump.cli.cluster import INCOMPLETE, checked_address, client_command, show
from turbopump.cli.entry import command_group, complain
from turbopump.errors import ClientError, ConfigError, RemotingError
from turbopump.protocol.command import Body
from turbopump.protocol.request import Request
from turbopump.protocol.requests.access import (
    AclInfo,
    CreateAcl,
    CreateUser,
    DeleteAcl,
    DeleteUser,
    PolicyEntryInfo,
    PolicyInfo,
    UpdateUser,
    UserInfo,
)
from turbopump.store.disk import SystemDisk

F = TypeVar("F", bound=Callable[..., Any])
DENIED: Final = 3
"""Exit code of `auth test`: it is not allowed."""

command = command_group("auth", "Users and policies: who may do what.")
user = command_group("user", "List, make, change and delete users.")
policy = command_group("policy", "List, add and delete policies.")
command.add_command(user)
command.add_command(policy)

_file = click.option(
    "--file",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Do it in this accounts.json, beside its server, and ask nobody.",
)
_server = click.option(
    "--server",
    metavar="ADDR",
    callback=checked_address,
    help="Only on this name server or broker.  [default: all that have access control]",
)


def places(function: F) -> F:
    """Where it is done."""
    return _file(_server(function))


async def _addresses(servers: Servers, server: str | None) -> list[str]:
    """The name servers, and the brokers that they know: masters before slaves, so that no slave
    copies an older state after its change."""
    return [server] if server else [*servers.name_servers, *await servers.members()]


async def _held(
    servers: Servers, server: str | None, file: Path | None, name: str
) -> tuple[list[Held], int]:
    """What each server, or the file, holds; exit code 1 if a server could not be asked."""
    if file is not None:
        accounts = _read_file(file)
        infos = [one.info for one in accounts.users.values()]
        return [Held(str(file), infos, accounts.acls())], 0
    found, faults = list[Held](), list[RemotingError]()
    for address in await _addresses(servers, server):
        try:
            found += await held(servers, [address], name)
        except RemotingError as error:
            faults.append(error)
        except ClientError:  # it has no access control
            continue
    if not found:
        raise faults[0] if faults else ClientError(OFF)
    for fault in faults:
        complain(f"not asked: {fault}")
    for one in found:
        if one.amiss:
            complain(f"{one.server}: {one.amiss}")
    return found, INCOMPLETE if faults else 0


async def _change(
    servers: Servers,
    server: str | None,
    file: Path | None,
    change: Change,
    request: Request[Any],
    body: Body = b"",
) -> list[Told]:
    if file is not None:
        try:
            _change_file(file, change)
        except ConfigError as error:
            raise ConfigError(_plain(str(error))) from None
        return [Told(str(file))]
    return await change_all(servers, await _addresses(servers, server), request, body)


def _change_file(file: Path, change: Change) -> None:
    """Change it; a complaint if others than its owner can read it, or could before."""
    disk = SystemDisk()
    before = open_to_others(disk, file)
    change_file(disk, file, change)
    now = open_to_others(disk, file)
    if now is not None:
        complain(now)
    elif before is not None:
        complain(
            f"{file} was open to others than its owner, and has mode 0600 now; whoever has read "
            "it knows its passwords until you change them"
        )


def _read_file(path: Path) -> Accounts:
    """The users and policies in a file, with passwords; a complaint if others can read it. Raises
    ConfigError, OSError."""
    amiss = open_to_others(SystemDisk(), path)
    if amiss is not None:
        complain(amiss)
    try:
        return Accounts.decode(path.read_bytes())
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _say(output: str, told: Sequence[Told], what: str) -> int:
    """Exit code 1 if it is not done everywhere."""
    rows = [{"server": one.server, "done": one.fault is None} for one in told]
    show(output, rows, [f"{one.server}: {what}" for one in told if one.fault is None])
    failed = [one for one in told if one.fault is not None]
    for one in failed:
        complain(f"{one.server}: {_plain(one.fault or '')}")
    return INCOMPLETE if failed else 0


_APACHES_WORDS: Final = (
    (r"The user is existed: (\S+?)(; update changes them)?$", r"there is a user \1 already"),
    (r"The user is not exist: (\S+)$", r"there is no user \1"),
    (r"The subject of User:(\S+) is not exist.*", r"there is no user \1"),
    (r"The acl is not exist.*", "there is no such policy"),
)


def _plain(fault: str) -> str:
    """What a server says in Apache's words, which mqadmin shows, in plain ones."""
    for pattern, words in _APACHES_WORDS:
        fault = re.sub(pattern, words, fault)
    return fault


def _password(from_file: str | None) -> str:
    """The first line of a file (- is standard input), else of what is typed. Never an argument:
    others see the arguments of a process."""
    if from_file is None:
        if not sys.stdin.isatty():
            raise click.UsageError("give --password-file FILE, or - for standard input")
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    try:
        text = sys.stdin.readline() if from_file == "-" else Path(from_file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the file of the password cannot be read: {cause}") from None
    line = text.split("\n", 1)[0].removesuffix("\r")
    if not line.strip():
        raise ConfigError("the first line of the file of the password is empty")
    return line


_password_file = click.option(
    "--password-file",
    metavar="FILE",
    help="File whose first line is the password; - is standard input.  [default: it is asked for]",
)


# --- users


@client_command(user, "list", short_help="Users, without passwords.")
@places
async def list_users(servers: Servers, file: Path | None, server: str | None, output: str) -> int:
    """List the users of each server."""
    found, code = await _held(servers, server, file, "")
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


@client_command(user, "create", short_help="Make a user.")
@click.argument("name")
@click.option("--super", "is_super", is_flag=True, help="A user who may do everything.")
@_password_file
@places
async def create_user(
    servers: Servers,
    name: str,
    is_super: bool,
    password_file: str | None,
    file: Path | None,
    server: str | None,
    output: str,
) -> int:
    """Make a user who is not there. NAME is the access key of clients, the password their secret
    key. Without a policy a user may do nothing."""
    kind = "Super" if is_super else "Normal"
    info = UserInfo(username=name, password=_password(password_file), user_type=kind)
    change = _edit(Accounts.with_new_user, info)
    request = CreateUser(username=name)
    return _say(output, await _change(servers, server, file, change, request, info), "created")


@client_command(user, "alter", short_help="Change a user.")
@click.argument("name")
@click.option("--password", "new_password", is_flag=True, help="Give them another password.")
@_password_file
@click.option("--enable/--disable", default=None, help="Whether their signature counts.")
@click.option("--super/--normal", "is_super", default=None, help="Whether they may do everything.")
@places
async def alter_user(
    servers: Servers,
    name: str,
    new_password: bool,
    password_file: str | None,
    enable: bool | None,
    is_super: bool | None,
    file: Path | None,
    server: str | None,
    output: str,
) -> int:
    """Change the password, the status or the type of a user. It is in force with the next
    request."""
    wants_password = new_password or password_file is not None
    if not wants_password and enable is None and is_super is None:
        raise click.UsageError("give --password, --enable, --disable, --super or --normal")
    info = UserInfo(
        username=name,
        password=_password(password_file) if wants_password else None,
        user_type=None if is_super is None else "Super" if is_super else "Normal",
        user_status=None if enable is None else "enable" if enable else "disable",
    )
    change = _edit(Accounts.with_changed_user, info)
    request = UpdateUser(username=name)
    return _say(output, await _change(servers, server, file, change, request, info), "changed")


@client_command(user, "delete", short_help="Delete a user, and the policies for them.")
@click.argument("name")
@places
async def delete_user(
    servers: Servers, name: str, file: Path | None, server: str | None, output: str
) -> int:
    """Delete a user, and the policies for them. One who is not there is no error."""
    change = _edit(Accounts.without_user, name)
    told = await _change(servers, server, file, change, DeleteUser(username=name))
    return _say(output, told, "deleted")


def _edit(method: Callable[..., Accounts], *arguments: Any) -> Change:
    return lambda accounts: method(accounts, *arguments)


# --- policies


@client_command(policy, "list", short_help="Policies of users.")
@click.option("--user", "name", metavar="NAME", default="", help="Only of this user.")
@places
async def list_policies(
    servers: Servers, name: str, file: Path | None, server: str | None, output: str
) -> int:
    """List the policies of each server."""
    found, code = await _held(servers, server, file, name)
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
    source = f" from {','.join(row['from'])}" if row["from"] else ""
    actions = ",".join(row["actions"] or ())
    return (
        f"{row['server']}  {row['user']}  {row['policy']}: {row['decision']} {actions} on "
        f"{row['resource']}{source}"
    )


_resources = click.option(
    "--resource",
    "resources",
    metavar="TYPE:NAME",
    multiple=True,
    required=True,
    help="Topic:NAME, Group:NAME, Cluster:NAME, with * at the end for a prefix; more than once.",
)
_default_policy = click.option(
    "--default", "is_default", is_flag=True, help="Of the Default policy, not the Custom one."
)


@client_command(policy, "add", short_help="Allow or deny a user something.")
@click.argument("name", metavar="USER")
@_resources
@click.option(
    "--action",
    "actions",
    metavar="ACTION",
    multiple=True,
    required=True,
    help="All, Pub, Sub, Create, Update, Delete, Get or List; more than once.",
)
@click.option("--deny", is_flag=True, help="Deny it.  [default: allow it]")
@click.option(
    "--from", "sources", metavar="ADDR", multiple=True, help="Only from this address or range."
)
@_default_policy
@places
async def add_policy(
    servers: Servers,
    name: str,
    resources: Sequence[str],
    actions: Sequence[str],
    deny: bool,
    sources: Sequence[str],
    is_default: bool,
    file: Path | None,
    server: str | None,
    output: str,
) -> int:
    """Allow or deny a user actions on resources. What there was for the same resource is replaced.

    \b
    turbopump auth policy add billing --resource Topic:orders --resource Group:billing --action Sub
    """
    entries = [
        PolicyEntryInfo(
            resource=str(Resource.parse(resource)),
            actions=sorted(actions_of(actions)),
            source_ips=list(sources) or None,
            decision="Deny" if deny else "Allow",
        )
        for resource in resources
    ]
    policies = [PolicyInfo(policy_type=_policy_type(is_default), entries=entries)]
    acl = AclInfo(subject=SUBJECT + name, policies=policies)
    change = _edit(Accounts.with_acl, acl)
    request = CreateAcl(subject=acl.subject)
    return _say(output, await _change(servers, server, file, change, request, acl), "added")


@client_command(policy, "delete", short_help="Delete policies of a user.")
@click.argument("name", metavar="USER")
@click.option("--resource", metavar="TYPE:NAME", help="Of this resource.  [default: all]")
@_default_policy
@places
async def delete_policy(
    servers: Servers,
    name: str,
    resource: str | None,
    is_default: bool,
    file: Path | None,
    server: str | None,
    output: str,
) -> int:
    """Delete what a user is allowed or denied on a resource, or everywhere."""
    type_ = _policy_type(is_default) if resource else None
    change = _edit(Accounts.without_acl, SUBJECT + name, type_, resource)
    request = DeleteAcl(subject=SUBJECT + name, policy_type=type_, resource=resource)
    return _say(output, await _change(servers, server, file, change, request), "deleted")


def _policy_type(is_default: bool) -> str:
    return "Default" if is_default else "Custom"


# --- which rule decides


@client_command(command, "test", short_help="Which policy decides about something.")
@click.option("--user", "name", metavar="NAME", required=True, help="Who would do it.")
@click.option("--action", "actions", metavar="ACTION", multiple=True, required=True, help="What.")
@click.option("--topic", metavar="NAME", help="On a topic.")
@click.option("--group", metavar="NAME", help="On a group.")
@click.option("--cluster", metavar="NAME", help="On a cluster.")
@click.option("--from", "source", metavar="ADDR", default="127.0.0.1", help="From this address.")
@places
async def test(
    servers: Servers,
    name: str,
    actions: Sequence[str],
    topic: str | None,
    group: str | None,
    cluster: str | None,
    source: str,
    file: Path | None,
    server: str | None,
    output: str,
) -> int:
    """Say whether a user may do one of these actions on a resource, and which policy decides.
    Nothing is sent in the user's name. Exit code 3: it is not allowed everywhere."""
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
    found, code = await _held(servers, server, file, name)
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
    place: Held, name: str, asked: Resource, actions: Sequence[Action], source: str
) -> tuple[bool, str]:
    if place.user(name) is None:
        return False, f"there is no user {name}"
    accounts = place.accounts
    found = accounts.users[name]
    if not found.enabled:
        return False, f"{name} is disabled"
    if found.is_super:
        return True, f"{name} is a Super user"
    policies = accounts.policies.get(name)
    decided = None if policies is None else policies.deciding(asked, actions, source)
    if decided is None:
        return False, "no policy says anything about it"
    type_, entry = decided
    return entry.decision == "Allow", f"by the {type_} policy: {entry}"


# --- from and to files


@client_command(command, "import", short_help="Take users and policies over from a file.")
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@places
async def import_(
    servers: Servers, source: Path, file: Path | None, server: str | None, output: str
) -> int:
    """Take over users that are not there, with their passwords and policies: from a plain_acl.yml
    of RocketMQ 4.x (this needs the extra acl-import), or from what `turbopump auth export` has
    written."""
    accounts, left_out = _read(source)
    for text in left_out:
        complain(f"left out: {text}")
    made: list[str] = []
    failed: Iterable[Told] = ()
    if file is not None:

        def take_over(old: Accounts) -> Accounts:
            made.extend(f"{file}: {name}" for name in accounts.users if name not in old.users)
            return old.with_more(accounts)

        _change_file(file, take_over)
    else:
        made, failed = await import_all(servers, await _addresses(servers, server), accounts)
    show(output, made, made or ["every user is there already"])
    for one in failed:
        complain(f"{one.server}: {one.fault}")
    return INCOMPLETE if failed else 0


def _read(source: Path) -> tuple[Accounts, Sequence[str]]:
    if source.suffix in (".yml", ".yaml"):
        found = plain_acl.read(source)
        return found.accounts, found.left_out
    return _read_file(source), ()


@click.command(name="export", short_help="Write the users of a file, with passwords.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
def export(file: Path) -> None:
    """Write the users, passwords and policies of an accounts.json to standard output. No server
    shows a password to anybody; this is for whoever may read its file. `turbopump auth import`
    reads it."""
    click.echo(_read_file(file).encode(), nl=False)


command.add_command(export)
