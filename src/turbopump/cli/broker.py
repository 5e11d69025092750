"""`turbopump broker`: a broker in the foreground."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from turbopump.cli import serving
from turbopump.cli.entry import LazyGroup
from turbopump.cli.service_manager import ServiceManager
from turbopump.config.system import require_unix

if TYPE_CHECKING:
    from turbopump.config.broker_config import BrokerConfig

COMMANDS: Final = {
    "list": ("turbopump.cli.broker_show", "list_brokers"),
    "show": ("turbopump.cli.broker_show", "show_broker"),
    "config": ("turbopump.cli.server_config", "broker"),
    "cold-reads": ("turbopump.cli.broker_cold_reads", "command"),
    "clean": ("turbopump.cli.broker_clean", "command"),
    "epochs": ("turbopump.cli.broker_epochs", "command"),
    "promote": ("turbopump.cli.broker_promote", "command"),
    "drain": ("turbopump.cli.broker_drain", "command"),
    "ping": ("turbopump.cli.server_ping", "broker"),
}


@click.group(name="broker", cls=LazyGroup, places=COMMANDS, invoke_without_command=True)
@click.option(
    "-n",
    "--namesrv",
    "namesrv_addr",
    metavar="ADDRS",
    help="Name servers, HOST:PORT;HOST:PORT (namesrvAddr).",
)
@click.option(
    "--data",
    "store_path_root_dir",
    metavar="DIR",
    help="Directory of the store (storePathRootDir).  [default: ~/store]",
)
@click.option(
    "--advertise", metavar="HOST[:PORT]", help="Address that clients connect to (brokerIP1)."
)
@serving.server_options("broker.conf", port=10911)
def command(
    file: Path | None, show: bool, insecure: bool, advertise: str | None, **given: Any
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    When the broker is ready, it prints `ready broker=HOST:PORT`, the address for clients.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    from turbopump.config.broker_config import load_broker_config  # a ping does not need it

    require_unix("turbopump broker")
    serving.refuse_unmeant_directory(given["store_path_root_dir"])
    given.update(serving.advertised(advertise))
    config = load_broker_config(file, given)
    if show:
        serving.print_effective(config, file, given)
        return
    serving.refuse_open_ports(config, config.bind_address, insecure=insecure)
    service = ServiceManager()
    serving.serve(_running(config, file, service), service)


@asynccontextmanager
async def _running(
    config: BrokerConfig, file: Path | None, service: ServiceManager
) -> AsyncIterator[None]:
    running = _replica if config.enable_controller_mode else _broker
    async with running(config, file, service):
        serving.log_effective(config)
        yield


@asynccontextmanager
async def _broker(
    config: BrokerConfig, file: Path | None, service: ServiceManager
) -> AsyncIterator[None]:
    from turbopump.broker.broker import Broker

    broker = Broker(config, file=file)
    service.reasons = broker.readiness.reasons
    broker.readiness.recovery.on_progress = service.report_progress
    try:
        await broker.start()
        _print_ready(config, broker.address)
        yield
    finally:
        await broker.close()


@asynccontextmanager
async def _replica(
    config: BrokerConfig, file: Path | None, service: ServiceManager
) -> AsyncIterator[None]:
    """Run a broker in controller mode. It is ready in any role."""
    from turbopump.broker.replica.replica import Replica

    replica = Replica(config, file=file)
    service.reasons = replica.reasons
    replica.on_progress = service.report_progress
    replica.on_first_open = partial(_print_ready, config)
    try:
        await replica.start()
        yield
    finally:
        await replica.close()


def _print_ready(config: BrokerConfig, address: str) -> None:
    line = f"The broker[{config.broker_name}, {address}] boot success. serializeType=JSON"
    if config.namesrv_addr:
        line += f" and name server is {config.namesrv_addr}"
    click.echo(line)
    click.echo(f"ready broker={address}")
