"""`turbopump kv get|put|delete|list`: key-value configuration of the name servers."""

from __future__ import annotations

from typing import Final

import click

from turbopump.admin.cluster import Servers
from turbopump.admin.kv import Kv
from turbopump.cli.changes import Change, dry_run_option, failure_of, show_changes
from turbopump.cli.entry import NOT_FOUND, command_group, complain
from turbopump.cli.frame import client_command, show
from turbopump.cli.tables import Column, Table

VALUES: Final = (Column("key"), Column("value"))
EVERYWHERE: Final = "all name servers"

command = command_group("kv", "Show and change the key-value configuration of the name servers.")


@client_command(command, "list", short_help="All keys of a namespace.", watch=True)
@click.argument("namespace", required=False, metavar="NAMESPACE")
async def list_values(servers: Servers, namespace: str | None, output: str) -> int:
    """List the keys and values of a namespace. Exit code 3 if it has none. Name servers do not list
    their namespaces; RocketMQ itself has one, ORDER_TOPIC_CONFIG: see `turbopump topic order`."""
    if namespace is None:
        raise click.UsageError(
            "Missing argument 'NAMESPACE': name servers do not list their namespaces; that of "
            "globally ordered topics is ORDER_TOPIC_CONFIG"
        )
    table = await Kv(servers).list(namespace)
    rows = [{"key": key, "value": value} for key, value in table.items()]
    show(output, {"namespace": namespace, "values": rows}, [Table(VALUES, rows)])
    if not rows:
        complain(f"the namespace {namespace} has no keys")
        return NOT_FOUND
    return 0


@client_command(command, "get", short_help="The value of a key.", watch=True)
@click.argument("namespace")
@click.argument("key")
async def get(servers: Servers, namespace: str, key: str, output: str) -> int:
    """Show the value of a key. Exit code 3 if there is none."""
    value = await Kv(servers).get(namespace, key)
    if value is None:
        complain(f"the namespace {namespace} has no key {key}; see turbopump kv list {namespace}")
        return NOT_FOUND
    rows = [{"key": key, "value": value}]
    parts: list[str | Table] = [value]
    if output == "csv":
        parts = [Table(VALUES, rows)]
    show(output, {"namespace": namespace, "key": key, "value": value}, parts)
    return 0


@client_command(command, "put", short_help="Set the value of a key.")
@click.argument("namespace")
@click.argument("key")
@click.argument("value")
@dry_run_option
async def put(
    servers: Servers, namespace: str, key: str, value: str, dry_run: bool, output: str
) -> int:
    """Set the value of a key on every name server."""
    return await _change(servers, namespace, key, value, dry_run, output)


@client_command(command, "delete", short_help="Delete a key.")
@click.argument("namespace")
@click.argument("key")
@dry_run_option
async def delete(servers: Servers, namespace: str, key: str, dry_run: bool, output: str) -> int:
    """Delete a key on every name server. A missing key is no error."""
    return await _change(servers, namespace, key, None, dry_run, output)


async def _change(
    servers: Servers, namespace: str, key: str, new: str | None, dry_run: bool, output: str
) -> int:
    facet = Kv(servers)
    old = await facet.get(namespace, key)
    fault = None
    if new is None and not dry_run:
        fault = await failure_of(facet.delete(namespace, key))
    elif new is not None and not dry_run:
        fault = await failure_of(facet.put(namespace, key, new))
    change = Change(EVERYWHERE, f"{namespace} {key}", old, new, fault)
    return show_changes(output, [change], dry_run=dry_run)
