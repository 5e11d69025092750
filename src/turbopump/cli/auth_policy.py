"""`turbopump auth policy list|add|delete`: what users of servers with access control may do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from turbopump.admin.access import acl_of, policy_type
from turbopump.auth.accounts import SUBJECT, Accounts
from turbopump.cli.auth_accounts import Place, edit, merged_rows, place_options, servers_table
from turbopump.cli.changes import dry_run_option
from turbopump.cli.entry import command_group
from turbopump.cli.frame import client_command, show
from turbopump.cli.tables import Column
from turbopump.protocol.requests.access import CreateAcl, DeleteAcl

POLICIES: Final = (
    *(Column(key) for key in ("user", "policy", "decision", "actions", "resource", "from")),
    Column("servers"),
)

command = command_group("policy", "List, add and delete policies.")


@client_command(command, "list", short_help="Policies of users.", watch=True)
@click.option("--user", "name", metavar="NAME", default="", help="Show only this user.")
@place_options
async def list_policies(place: Place, name: str, output: str) -> int:
    """List the policies, and the servers that have each of them."""
    found, code = await place.read_accounts(name)
    rows = merged_rows(
        (
            one.server,
            {
                "user": (acl.subject or "").removeprefix(SUBJECT),
                "policy": policy.policy_type,
                "resource": entry.resource,
                "actions": entry.actions,
                "from": entry.source_ips,
                "decision": entry.decision,
            },
        )
        for one in found
        for acl in one.acls
        if not name or acl.subject == SUBJECT + name
        for policy in acl.policies or ()
        for entry in policy.entries or ()
    )
    show(output, {"policies": rows}, [servers_table(output, POLICIES, rows, len(found))])
    return code


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


@client_command(command, "add", short_help="Allow or deny actions to a user.")
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
@dry_run_option
async def add_policy(
    place: Place,
    name: str,
    resources: Sequence[str],
    actions: Sequence[str],
    deny: bool,
    sources: Sequence[str],
    is_default: bool,
    dry_run: bool,
    output: str,
) -> int:
    """Allow or deny a user actions on resources. A policy for the same resource is replaced.

    \b
    turbopump auth policy add billing --resource Topic:orders --resource Group:billing --action Sub
    """
    acl = acl_of(name, resources, actions, deny, sources, is_default)
    change = edit(Accounts.with_acl, acl)
    request = CreateAcl(subject=acl.subject)
    return await place.change_accounts(output, name, change, request, acl, dry_run=dry_run)


@client_command(command, "delete", short_help="Delete policies of a user.")
@click.argument("name", metavar="USER")
@click.option(
    "--resource", metavar="TYPE:NAME", help="Delete only this resource's policy.  [default: all]"
)
@_default_policy
@place_options
@dry_run_option
async def delete_policy(
    place: Place, name: str, resource: str | None, is_default: bool, dry_run: bool, output: str
) -> int:
    """Delete the policies of a user for one resource, or for all."""
    type_ = None
    if resource:
        type_ = policy_type(is_default)
    change = edit(Accounts.without_acl, SUBJECT + name, type_, resource)
    request = DeleteAcl(subject=SUBJECT + name, policy_type=type_, resource=resource)
    return await place.change_accounts(output, name, change, request, dry_run=dry_run)
