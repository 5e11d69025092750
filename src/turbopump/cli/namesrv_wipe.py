"""`turbopump namesrv wipe|restore`: the write permission of a broker."""

from __future__ import annotations

from turbopump.admin.cluster import Servers
from turbopump.admin.name_servers import NameServers
from turbopump.cli.changes import Change, dry_run_option, show_changes
from turbopump.cli.entry import NOT_FOUND, complain
from turbopump.cli.frame import client_command
from turbopump.cli.names import broker_subject
from turbopump.errors import TurbopumpError
from turbopump.message.rules import did_you_mean


@client_command(None, "wipe", short_help="Let clients send to other brokers.")
@broker_subject()
@dry_run_option
async def wipe(servers: Servers, broker: str, dry_run: bool, output: str) -> int:
    """Remove the write permission of a broker at each name server in -n. Clients then send to other
    brokers, at the latest after 30 s, and read this one as before. BROKER is a brokerName.

    The permission comes back by `namesrv restore`, and when the broker starts again. To stop a
    broker, use `turbopump broker drain`.
    """
    return await _change_permission(
        servers, broker, is_wanted=False, dry_run=dry_run, output=output
    )


@client_command(None, "restore", short_help="Let clients send to a broker again.")
@broker_subject()
@dry_run_option
async def restore(servers: Servers, broker: str, dry_run: bool, output: str) -> int:
    """Restore the write permission of a broker at each name server in -n, after `namesrv wipe` or
    `broker drain`. BROKER is a brokerName."""
    return await _change_permission(servers, broker, is_wanted=True, dry_run=dry_run, output=output)


async def _change_permission(
    servers: Servers, broker: str, *, is_wanted: bool, dry_run: bool, output: str
) -> int:
    table = (await servers.brokers()).broker_addr_table
    if broker not in table:
        near = did_you_mean(broker, list(table))
        complain(f"no broker {broker} is registered{near}; turbopump broker list shows all")
        return NOT_FOUND
    facet = NameServers(servers)
    change = facet.restore_write_permission if is_wanted else facet.wipe_write_permission
    changes = []
    for address in facet.addresses:
        old: str | None = None
        fault = None
        try:
            old = _words(await facet.is_writable(broker, address))
            if not dry_run:
                await change(broker, address)
        except TurbopumpError as error:
            fault = str(error)
        what = f"write permission of {broker}"
        changes.append(Change(address, what, old, _words(is_wanted), fault))
    return show_changes(output, changes, dry_run=dry_run)


def _words(is_writable: bool) -> str:
    return "yes" if is_writable else "no"
