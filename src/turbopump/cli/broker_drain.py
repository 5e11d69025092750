"""`turbopump broker drain`: preparation of a running broker for a stop."""

import asyncio
from collections.abc import Iterator

import click

from turbopump.admin.cluster import Servers
from turbopump.admin.draining import (
    ROUTES_S,
    DrainedBroker,
    DrainState,
    drain,
    find_broker,
    hand_mastership_over,
    set_write_permission,
)
from turbopump.cli.changes import Change, dry_run_option, show_changes
from turbopump.cli.entry import INCOMPLETE, complain
from turbopump.cli.frame import WITHOUT_CSV, client_command, show
from turbopump.cli.names import broker_subject
from turbopump.cli.values import NumberOption
from turbopump.clock import SystemClock


@client_command(None, "drain", short_help="Let a broker leave in good order.", forms=WITHOUT_CSV)
@broker_subject("name")
@click.option(
    "--timeout", type=NumberOption(0), default=600.0, help="Maximum time to wait, in seconds."
)
@click.option(
    "--routes",
    "routes_s",
    type=NumberOption(0),
    default=ROUTES_S,
    help="Seconds after which all clients have noticed the removed permission.",
)
@click.option("--undo", is_flag=True, help="Restore the write permission and end.")
@dry_run_option
async def command(
    servers: Servers,
    name: str,
    timeout: float,
    routes_s: float,
    undo: bool,
    dry_run: bool,
    output: str,
) -> int:
    """Make clients send to other brokers, then wait until the consumers of this broker have read
    everything and its slaves have copied everything. NAME is its brokerName. The command does not
    stop the broker. With a controller, another replica becomes the master instead.

    Exit code 1 if the time is over, or a name server refused. The broker then stays without write
    permission until `--undo`, or until its master stops.
    """
    broker = await find_broker(servers, name)
    text = output == "table"
    if broker.controller is not None and not undo:
        return await _hand_over(servers, broker, timeout, output, dry_run=dry_run)
    if dry_run:
        old, new = ("wiped", "granted") if undo else ("granted", "wiped")
        return show_changes(
            output,
            [Change(at, f"write permission of {name}", old, new) for at in broker.name_servers],
            dry_run=True,
        )
    failed = await set_write_permission(servers, broker, wiped=not undo)
    for address, cause in failed.items():
        complain(f"name server {address}: {cause}")
    done = [address for address in broker.name_servers if address not in failed]
    did = "given back" if undo else "wiped"
    if text:
        click.echo(f"write permission of {name} is {did} at {', '.join(done) or 'no name server'}")
    if undo or not done:
        if not text:
            show(output, {"broker": name, "undone": undo, "failed": failed}, ())
        return INCOMPLETE if failed else 0
    state = DrainState(0.0, fault="it has not answered yet")
    try:
        async with asyncio.timeout(timeout):
            async for state in drain(servers, broker, SystemClock(), routes_s=routes_s):
                if text and not state.drained:
                    click.echo(f"{state.seconds:4.0f} s  {'; '.join(state.waits_for())}")
    except TimeoutError:
        pass
    row = {
        "broker": name,
        "drained": state.drained,
        "waits_for": list(state.waits_for()),
        "unread": state.unread,
        "waiting": state.waiting,
        "failed": failed,
    }
    show(output, row, _end(broker, state, timeout, servers))
    return 0 if state.drained and not failed else INCOMPLETE


async def _hand_over(
    servers: Servers, broker: DrainedBroker, timeout: float, output: str, *, dry_run: bool
) -> int:
    """Drain the master of a group of replicas. No write permission is removed, because clients
    go on with the new master."""
    old = broker.address
    if dry_run:
        change = Change(broker.name, "master", old, "another replica in sync")
        return show_changes(output, [change], dry_run=True)
    new = None
    try:
        async with asyncio.timeout(timeout):
            new = await hand_mastership_over(servers, broker)
    except TimeoutError:
        complain(
            f"{old} is not back in sync after {timeout:g} s: `turbopump controller replicas` shows "
            "the state"
        )
    row = {"broker": broker.name, "drained": new is not None, "old_master": old, "master": new}
    lines = (f"{new} is the master of {broker.name} now: it is safe to stop {old}",)
    show(output, row, lines if new is not None else ())
    return 0 if new is not None else INCOMPLETE


def _end(
    broker: DrainedBroker, state: DrainState, timeout: float, servers: Servers
) -> Iterator[str]:
    name = broker.name
    for group, count in state.unread.items():
        yield f"group {group} has no consumer: {count:,} messages stay unread here"
    for kind, count in state.waiting.items():
        yield f"{count:,} {kind} wait on its disk until it runs again"
    if not broker.slaves:
        yield "it has no slave: its messages cannot be read while it is stopped"
    if state.drained:
        yield f"{name} is drained: it is safe to stop it ({broker.address})"
    else:
        yield f"{name} is not drained after {timeout:g} s: {'; '.join(state.waits_for())}"
    yield (
        f"clients send to it again when it was stopped and started, or after: turbopump broker "
        f"drain {name} --undo {servers.n_option}"
    )
