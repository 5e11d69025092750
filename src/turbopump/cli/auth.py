"""`turbopump auth`: users and policies on every server with access control, or in one server's
file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from turbopump.admin.access import ServerAccounts, import_all
from turbopump.auth import plain_acl
from turbopump.auth.accounts import Accounts
from turbopump.auth.policies import Action, Policies, Resource, one_of
from turbopump.cli import auth_policy, auth_user
from turbopump.cli.auth_accounts import (
    Place,
    change_accounts_file,
    complain_of_faults,
    merged_rows,
    place_options,
    read_file,
    servers_table,
    user_text,
)
from turbopump.cli.changes import Change, dry_run_option, show_changes
from turbopump.cli.entry import DENIED, command_group, complain
from turbopump.cli.frame import client_command, show
from turbopump.cli.log_output import log_options
from turbopump.cli.names import group_option, topic_option
from turbopump.cli.tables import Column

DECISIONS: Final = (Column("allowed"), Column("because"), Column("servers"))

command = command_group("auth", "Manage users and their permissions.")
command.add_command(auth_user.command)
command.add_command(auth_policy.command)


@client_command(command, "test", short_help="Show which policy decides.", watch=True)
@click.option("--user", "name", metavar="NAME", required=True, help="The user.")
@click.option(
    "--action",
    "actions",
    metavar="ACTION",
    multiple=True,
    required=True,
    help="The action; repeatable.",
)
@topic_option("The topic.")
@group_option("The group.")
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
    command sends nothing in the user's name. Exit code 5: at least one server denies it."""
    named = [
        f"{kind}:{text}"
        for kind, text in (("Topic", topic), ("Group", group), ("Cluster", cluster))
        if text is not None
    ]
    if len(named) != 1:
        raise click.UsageError("give one of --topic, --group, --cluster")
    asked = Resource.parse(named[0])
    wanted = [one_of(Action, action, "action") for action in actions]
    decided = []
    found, code = await place.read_accounts(name)
    for one in found:
        allowed, why = _decision(one, name, asked, wanted, source)
        decided.append((one.server, {"allowed": allowed, "because": why}))
    rows = merged_rows(decided)
    show(output, {"decisions": rows}, [servers_table(output, DECISIONS, rows, len(found))])
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
@dry_run_option
async def import_(place: Place, source: Path, dry_run: bool, output: str) -> int:
    """Import the users that a server lacks, with passwords and policies. FILE is a plain_acl.yml of
    RocketMQ 4.x (needs the extra acl-import) or a file from `turbopump auth export`."""
    accounts, left_out = _read(source)
    for text in left_out:
        complain(f"left out: {text}")
    if place.file is not None:
        held = {str(place.file): set(read_file(place.file).users) if place.file.exists() else set()}
        code = 0
    else:
        found, code = await place.read_accounts()
        held = {one.server: {each.username or "" for each in one.users} for one in found}
    faults: dict[str, str | None] = {}
    if place.file is not None and not dry_run:
        change_accounts_file(place.file, lambda old: old.with_more(accounts))
    elif not dry_run:
        _, failed = await import_all(place.servers, held, accounts)
        faults = {one.server: one.fault for one in failed}
    changes = [
        Change(server, f"user {name}", None, user_text(user), faults.get(server))
        for server, names in held.items()
        for name, user in accounts.users.items()
        if name not in names
    ]
    complain_of_faults([one for one in changes if one.fault is not None])
    return show_changes(output, changes, dry_run=dry_run) or code


def _read(source: Path) -> tuple[Accounts, Sequence[str]]:
    if source.suffix in (".yml", ".yaml"):
        found = plain_acl.read(source)
        return found.accounts, found.left_out
    return read_file(source), ()


@click.command(name="export", short_help="Write the users of a file with passwords.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@log_options("warning", plain=True)
def export(file: Path) -> None:
    """Write the users, passwords and policies of an accounts.json to standard output. Servers never
    show passwords, so this needs read access to the file. `turbopump auth import` reads the
    output."""
    click.echo(read_file(file).encode(), nl=False)


command.add_command(export)
