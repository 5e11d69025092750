"""`turbopump namesrv`: a name server in the foreground."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click

from turbopump.cli import serving
from turbopump.config.addresses import outward_address
from turbopump.config.namesrv_config import NamesrvConfig, load_namesrv_config


@click.command(name="namesrv")
@click.option(
    "-c",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Configuration in Apache's keys (namesrv.conf).",
)
@click.option("-p", "show", is_flag=True, help="Print the effective configuration and end.")
@click.option("--host", help="Interface to listen on (bindAddress).  [default: 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port, 0 for a free one (listenPort).  [default: 9876]",
)
@serving.insecure_option
@serving.log_options("info")
def command(
    file: Path | None, show: bool, host: str | None, port: int | None, insecure: bool
) -> None:
    """Run a name server until Ctrl-C or SIGTERM.

    When the name server is ready, it prints `ready namesrv=HOST:PORT`.
    """
    given = {"bind_address": host, "listen_port": port}
    config = load_namesrv_config(file, given)
    if show:
        serving.print_effective(config, file, given)
        return
    serving.refuse_open_bind(
        config.bind_address, insecure=insecure, authentication=config.authentication_enabled
    )
    serving.serve(_running(config, file))


@asynccontextmanager
async def _running(config: NamesrvConfig, file: Path | None) -> AsyncIterator[None]:
    from turbopump.disk.system_disk import SystemDisk
    from turbopump.namesrv.server import NameServer

    disk = SystemDisk(asyncio.get_running_loop().call_soon_threadsafe)
    server = NameServer(config, disk=disk, file=file)
    try:
        address = await server.start()
        serving.log_effective(config)
        click.echo(
            f"The Name Server boot success. serializeType=JSON, address {address[0]}:{address[1]}"
        )
        click.echo(f"ready namesrv={serving.reachable(address, outward_address())}")
        yield
    finally:
        await server.close()
        disk.close()
