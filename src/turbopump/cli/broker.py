"""`turbopump broker`: a broker in the foreground. `turbopump broker drain`: one that runs elsewhere
leaves in good order."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import click

from turbopump.admin.cluster import Servers
from turbopump.admin.draining import (
    ROUTES_S,
    DrainedBroker,
    DrainState,
    drain,
    find_broker,
    set_write_permission,
)
from turbopump.cli import serving
from turbopump.cli.cluster import INCOMPLETE, client_command, show
from turbopump.cli.entry import SuggestingGroup, complain
from turbopump.clock import SystemClock
from turbopump.config.broker_config import BrokerConfig, load_broker_config


@click.group(name="broker", cls=SuggestingGroup, invoke_without_command=True)
@click.option("-c", "file", metavar="FILE", help="Configuration in Apache's keys (broker.conf).")
@click.option(
    "-n",
    "--namesrv",
    "namesrv",
    metavar="ADDRS",
    help="Name servers, HOST:PORT;HOST:PORT (namesrvAddr).",
)
@click.option("-p", "show", is_flag=True, help="Print the effective configuration and end.")
@click.option(
    "--data", metavar="DIR", help="Directory of the store (storePathRootDir).  [default: ~/store]"
)
@click.option("--host", help="Interface to listen on (bindAddress).  [default: 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port, 0 for a free one (listenPort).  [default: 10911]",
)
@click.option(
    "--advertise", metavar="HOST[:PORT]", help="Address that clients are told (brokerIP1)."
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Allow an interface that other machines reach without access control.",
)
@serving.log_options("info")
def command(
    file: str | None,
    namesrv: str | None,
    show: bool,
    data: str | None,
    host: str | None,
    port: int | None,
    advertise: str | None,
    insecure: bool,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    Prints `ready broker=HOST:PORT`, the address that clients are told, when it can serve.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    serving.refuse_unmeant_directory(data)
    given: dict[str, object | None] = {
        "namesrv_addr": namesrv,
        "store_path_root_dir": data,
        "bind_address": host,
        "listen_port": port,
    }
    given.update(serving.advertised(advertise))
    config = load_broker_config(
        file, {name: value for name, value in given.items() if value is not None}
    )
    if show:
        serving.print_effective(config, file, given)
        return
    serving.refuse_open_bind(
        config.bind_address, insecure=insecure, authentication=config.authentication_enabled
    )
    serving.serve(lambda: _running(config, file))


@asynccontextmanager
async def _running(config: BrokerConfig, file: str | None) -> AsyncIterator[None]:
    from turbopump.broker.broker import Broker

    broker = Broker(config, file=None if file is None else Path(file))
    try:
        await broker.start()
        serving.log_effective(config)
        click.echo(
            f"The broker[{config.broker_name}, {broker.address}] boot success. serializeType=JSON"
            + (f" and name server is {config.namesrv_addr}" if config.namesrv_addr else "")
        )
        click.echo(f"ready broker={broker.address}")
        yield
    finally:
        await broker.close()


@client_command(command, "drain", short_help="Let a broker leave in good order.")
@click.argument("name")
@click.option(
    "--timeout", type=click.FloatRange(0), default=600.0, help="Wait so many seconds at most."
)
@click.option(
    "--routes",
    "routes_s",
    type=click.FloatRange(0),
    default=ROUTES_S,
    help="So many seconds after the permission is wiped no client sends any more.",
)
@click.option("--undo", is_flag=True, help="Give the write permission back, and end.")
async def drain_broker(
    servers: Servers, name: str, timeout: float, routes_s: float, undo: bool, output: str
) -> int:
    """Have clients send to other brokers, and wait until the consumers of this one have read
    everything and its slaves have copied everything. NAME is its brokerName. It is not stopped.

    Exit code 1 if that is not so in time, or a name server did not take it. The broker stays
    without write permission then, until `--undo` or until its master stops.
    """
    broker = await find_broker(servers, name)
    text = output == "text"
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


def _end(
    broker: DrainedBroker, state: DrainState, timeout: float, servers: Servers
) -> Iterator[str]:
    name = broker.name
    for group, count in state.unread.items():
        yield f"group {group} has no consumer: {count:,} messages stay unread here"
    for kind, count in state.waiting.items():
        yield f"{count:,} {kind} wait on its disk, and go on when it runs again"
    if not broker.slaves:
        yield "it has no slave: while it is stopped nobody can read what it has"
    if state.drained:
        yield f"{name} is drained: it is safe to stop it ({broker.address})"
    else:
        yield f"{name} is not drained after {timeout:g} s: {'; '.join(state.waits_for())}"
    yield (
        f"clients send to it again when it was stopped and started, or after: turbopump broker "
        f"drain {name} --undo -n '{';'.join(servers.name_servers)}'"
    )
