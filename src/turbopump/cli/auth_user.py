"""`turbopump auth user list|create|alter|delete`: users of servers with access control."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from turbopump.auth.accounts import DISABLED, ENABLED, NORMAL, SUPER, Accounts
from turbopump.cli.auth_accounts import Place, edit, merged_rows, place_options, servers_table
from turbopump.cli.changes import dry_run_option
from turbopump.cli.entry import command_group
from turbopump.cli.frame import client_command, show
from turbopump.cli.tables import Column
from turbopump.errors import ConfigError
from turbopump.protocol.requests.access import CreateUser, DeleteUser, UpdateUser, UserInfo

USERS: Final = (Column("user"), Column("type"), Column("status"), Column("servers"))

command = command_group("user", "List, create, change and delete users.")


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


@client_command(command, "list", short_help="Users, without passwords.", watch=True)
@place_options
async def list_users(place: Place, output: str) -> int:
    """List the users, and the servers that have each of them."""
    found, code = await place.read_accounts()
    rows = merged_rows(
        (one.server, {"user": each.username, "type": each.user_type, "status": each.user_status})
        for one in found
        for each in one.users
    )
    show(output, {"users": rows}, [servers_table(output, USERS, rows, len(found))])
    return code


@client_command(command, "create", short_help="Create a user.")
@click.argument("name")
@click.option(
    "--super", "is_super", is_flag=True, help="Create a Super user, who may do everything."
)
@_password_file
@place_options
@dry_run_option
async def create_user(
    place: Place, name: str, is_super: bool, password_file: str | None, dry_run: bool, output: str
) -> int:
    """Create a new user. NAME is the access key of clients, the password their secret key. A user
    without a policy may do nothing."""
    kind = SUPER if is_super else NORMAL
    info = UserInfo(username=name, password=_password(password_file), user_type=kind)
    change = edit(Accounts.with_new_user, info)
    request = CreateUser(username=name)
    return await place.change_accounts(output, name, change, request, info, dry_run=dry_run)


@client_command(command, "alter", short_help="Change a user.")
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
@dry_run_option
async def alter_user(
    place: Place,
    name: str,
    new_password: bool,
    password_file: str | None,
    enable: bool | None,
    is_super: bool | None,
    dry_run: bool,
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
    change = edit(Accounts.with_changed_user, info)
    request = UpdateUser(username=name)
    return await place.change_accounts(output, name, change, request, info, dry_run=dry_run)


@client_command(command, "delete", short_help="Delete a user and their policies.")
@click.argument("name")
@place_options
@dry_run_option
async def delete_user(place: Place, name: str, dry_run: bool, output: str) -> int:
    """Delete a user and their policies. A missing user is no error."""
    change = edit(Accounts.without_user, name)
    return await place.change_accounts(
        output, name, change, DeleteUser(username=name), dry_run=dry_run
    )
