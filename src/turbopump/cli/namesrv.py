"""`turbopump namesrv`: a name server in the foreground."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

from turbopump.cli import serving
from turbopump.config.addresses import outward_address
from turbopump.config.namesrv_config import NamesrvConfig, load_namesrv_config


@click.command(name="namesrv")
@click.option("-c", "file", metavar="FILE", help="Configuration in Apache's keys (namesrv.conf).")
@click.option("-p", "show", is_flag=True, help="Print the effective configuration and end.")
@click.option("--host", help="Interface to listen on (bindAddress).  [default: 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port, 0 for a free one (listenPort).  [default: 9876]",
)
@click.option("--insecure", is_flag=True, help="Allow an interface that other machines reach.")
@serving.log_options("info")
def command(
    file: str | None, show: bool, host: str | None, port: int | None, insecure: bool
) -> None:
    """Run a name server until Ctrl-C or SIGTERM.

    Prints `ready namesrv=HOST:PORT` when it can serve.
    """
    given = {"bind_address": host, "listen_port": port}
    config = load_namesrv_config(
        file, {name: value for name, value in given.items() if value is not None}
    )
    if show:
        serving.print_effective(config)
        return
    serving.refuse_open_bind(config.bind_address, insecure=insecure)
    serving.serve(lambda: _running(config))


@asynccontextmanager
async def _running(config: NamesrvConfig) -> AsyncIterator[None]:
    from turbopump.namesrv.server import NameServer

    server = NameServer(config)
    try:
        address = await server.start()
        serving.log_effective(config)
        click.echo(f"ready namesrv={serving.reachable(address, outward_address())}")
        yield
    finally:
        await server.close()
