"""`turbopump broker config`, `namesrv config` and `controller config`: settings of running
servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from functools import partial

import click

from turbopump.admin.brokers import Brokers
from turbopump.admin.cluster import Servers
from turbopump.admin.controllers import Controllers
from turbopump.admin.name_servers import NameServers
from turbopump.admin.settings import SettingChange
from turbopump.cli.changes import Change, dry_run_option, show_changes
from turbopump.cli.entry import NOT_FOUND, command_group, complain
from turbopump.cli.frame import client_command, show
from turbopump.cli.names import broker_option
from turbopump.cli.tables import Column, Table
from turbopump.cli.values import checked_address, checked_pairs, controller_option
from turbopump.errors import ResponseError, TurbopumpError
from turbopump.message.rules import did_you_mean

SETTINGS = (Column("server"), Column("key"), Column("value"))

broker = command_group("config", "Show and change settings of running brokers.")
namesrv = command_group("config", "Show and change settings of running name servers.")
controller = command_group("config", "Show and change settings of running controllers.")

keys_argument = click.argument("keys", metavar="[KEY]...", nargs=-1)
pairs_argument = click.argument(
    "wanted", metavar="KEY=VALUE...", nargs=-1, required=True, callback=checked_pairs
)
cluster_option = click.option("--cluster", metavar="NAME", help="On all brokers of this cluster.")
server_option = click.option(
    "--server", metavar="ADDR", callback=checked_address, help="Only this name server."
)


@client_command(broker, "get", short_help="Settings of brokers, by Apache's keys.", watch=True)
@keys_argument
@broker_option("Only of this broker.")
@click.option("--cluster", metavar="NAME", help="Only of the brokers of this cluster.")
async def get_of_brokers(
    servers: Servers, keys: Sequence[str], broker: str | None, cluster: str | None, output: str
) -> int:
    """Show settings of each broker, masters and slaves. Without KEY all settings. Exit code 3 if
    no broker has such a key."""
    facet = Brokers(servers)
    members = await facet.list(cluster) if broker is None else [await facet.find(broker)]
    found = {one.label: await facet.settings(one.address) for one in members}
    return _show_settings(found, keys, output, {one.name for one in members} | set(found))


@client_command(
    namesrv, "get", short_help="Settings of name servers, by Apache's keys.", watch=True
)
@keys_argument
@server_option
async def get_of_name_servers(
    servers: Servers, keys: Sequence[str], server: str | None, output: str
) -> int:
    """Show settings of each name server in -n. Without KEY all settings. Exit code 3 if no name
    server has such a key."""
    return _show_settings(await NameServers(servers).settings(server), keys, output)


def _show_settings(
    found: Mapping[str, Mapping[str, str]],
    keys: Sequence[str],
    output: str,
    brokers: Container[str] = (),
) -> int:
    rows = [
        {"server": server, "key": key, "value": value}
        for server, settings in found.items()
        for key, value in settings.items()
        if not keys or key in keys
    ]
    show(output, {"settings": rows}, [Table(SETTINGS, rows)])
    known = {key for settings in found.values() for key in settings}
    unknown = [key for key in keys if key not in known]
    for key in unknown:
        near = did_you_mean(key, sorted(known))
        if key in brokers:
            near = f": it is a broker (-b {key} asks only this one)"
        complain(f"no server has the key {key}{near}")
    return NOT_FOUND if unknown else 0


@client_command(broker, "set", short_help="Change settings of running brokers.")
@pairs_argument
@broker_option("Only on this broker.")
@cluster_option
@dry_run_option
async def set_on_brokers(
    servers: Servers,
    wanted: dict[str, str],
    broker: str | None,
    cluster: str | None,
    dry_run: bool,
    output: str,
) -> int:
    """Change settings of a running broker, or with --cluster of all brokers of a cluster, masters
    and slaves. A change is in force at once, and is kept in the broker's file (-c).

    A broker changes all its keys or none. Exit code 1 if a broker refused.
    """
    if (broker is None) == (cluster is None):
        raise click.UsageError("give -b BROKER or --cluster NAME")
    facet = Brokers(servers)
    changes: list[Change] = []
    members = await facet.list(cluster) if broker is None else [await facet.find(broker)]
    for one in members:
        before = await facet.settings(one.address)
        change = partial(facet.change_settings, one.address, wanted)
        changes += await _set_on(one.label, before, wanted, change, dry_run=dry_run)
    return show_changes(output, changes, dry_run=dry_run)


@client_command(namesrv, "set", short_help="Change settings of running name servers.")
@pairs_argument
@server_option
@dry_run_option
async def set_on_name_servers(
    servers: Servers, wanted: dict[str, str], server: str | None, dry_run: bool, output: str
) -> int:
    """Change settings of each name server in -n. A change is in force at once, and is kept in the
    name server's file (-c).

    A name server changes all its keys or none. Exit code 1 if a name server refused.
    """
    facet = NameServers(servers)
    addresses = [server] if server is not None else facet.addresses
    return await _set_on_each(facet, addresses, wanted, dry_run, output)


@client_command(
    controller, "get", short_help="Settings of controllers, by Apache's keys.", watch=True
)
@keys_argument
@controller_option
async def get_of_controllers(
    servers: Servers, keys: Sequence[str], controller: str | None, output: str
) -> int:
    """Show settings of each controller. Without KEY all settings. Exit code 3 if no controller has
    such a key."""
    return _show_settings(await Controllers(servers).settings(controller), keys, output)


@client_command(controller, "set", short_help="Change settings of running controllers.")
@pairs_argument
@controller_option
@dry_run_option
async def set_on_controllers(
    servers: Servers, wanted: dict[str, str], controller: str | None, dry_run: bool, output: str
) -> int:
    """Change settings of each controller. A change is in force at once, and is kept in the
    controller's file (-c).

    A controller changes all its keys or none. Exit code 1 if a controller refused.
    """
    facet = Controllers(servers)
    addresses = list(await facet.settings(controller))
    return await _set_on_each(facet, addresses, wanted, dry_run, output)


async def _set_on_each(
    facet: NameServers | Controllers,
    addresses: Iterable[str],
    wanted: dict[str, str],
    dry_run: bool,
    output: str,
) -> int:
    changes: list[Change] = []
    for address in addresses:
        before = (await facet.settings(address))[address]
        change = partial(facet.change_settings, wanted, address)
        changes += await _set_on(address, before, wanted, change, dry_run=dry_run)
    return show_changes(output, changes, dry_run=dry_run)


async def _set_on(
    where: str,
    before: Mapping[str, str],
    wanted: Mapping[str, str],
    change: Callable[[], Awaitable[Iterable[SettingChange]]],
    *,
    dry_run: bool,
) -> list[Change]:
    """Change settings of one server, or with ``dry_run`` only list the changes."""
    if dry_run:
        return _planned(where, before, wanted)
    try:
        return _made(where, await change())
    except TurbopumpError as error:
        return _failed(where, before, wanted, error)


def _planned(where: str, before: Mapping[str, str], wanted: Mapping[str, str]) -> list[Change]:
    return [
        Change(where, key, before.get(key), value, _unknown(key, before))
        for key, value in wanted.items()
    ]


def _unknown(key: str, before: Mapping[str, str]) -> str | None:
    if key in before:
        return None
    return f"it has no such key{did_you_mean(key, sorted(before))}"


def _made(where: str, changes: Iterable[SettingChange]) -> list[Change]:
    return [
        Change(
            where,
            one.key,
            one.old,
            one.new,
            f"it did not take {one.wanted}" if one.ignored else None,
        )
        for one in changes
    ]


def _failed(
    where: str, before: Mapping[str, str], wanted: Mapping[str, str], error: Exception
) -> list[Change]:
    fault = error.remark if isinstance(error, ResponseError) else None
    return [
        Change(where, key, before.get(key), value, fault or str(error))
        for key, value in wanted.items()
    ]
