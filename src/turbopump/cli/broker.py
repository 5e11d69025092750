"""`turbopump broker`: a broker in the foreground."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click

from turbopump.cli import serving
from turbopump.cli.entry import SuggestingGroup
from turbopump.config.broker_config import BrokerConfig, load_broker_config


class _WithDrain(SuggestingGroup):
    """Group that imports `drain` only when it is called, because starting a broker does not need
    it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["drain"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != "drain":
            return None
        from turbopump.cli.draining import command

        return command


@click.group(name="broker", cls=_WithDrain, invoke_without_command=True)
@click.option(
    "-c",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Configuration in Apache's keys (broker.conf).",
)
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
    "--advertise", metavar="HOST[:PORT]", help="Address that clients connect to (brokerIP1)."
)
@serving.insecure_option
@serving.log_options("info")
def command(
    file: Path | None,
    namesrv: str | None,
    show: bool,
    data: str | None,
    host: str | None,
    port: int | None,
    advertise: str | None,
    insecure: bool,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    When the broker is ready, it prints `ready broker=HOST:PORT`, the address for clients.
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
    config = load_broker_config(file, given)
    if show:
        serving.print_effective(config, file, given)
        return
    serving.refuse_open_bind(
        config.bind_address, insecure=insecure, authentication=config.authentication_enabled
    )
    serving.serve(_running(config, file))


@asynccontextmanager
async def _running(config: BrokerConfig, file: Path | None) -> AsyncIterator[None]:
    from turbopump.broker.broker import Broker

    broker = Broker(config, file=file)
    try:
        await broker.start()
        serving.log_effective(config)
        line = (
            f"The broker[{config.broker_name}, {broker.address}] boot success. serializeType=JSON"
        )
        if config.namesrv_addr:
            line += f" and name server is {config.namesrv_addr}"
        click.echo(line)
        click.echo(f"ready broker={broker.address}")
        yield
    finally:
        await broker.close()
