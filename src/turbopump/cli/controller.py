"""`turbopump controller`: a controller in the foreground."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from turbopump.cli import serving
from turbopump.cli.entry import LazyGroup
from turbopump.cli.service_manager import ServiceManager
from turbopump.config.system import require_unix

if TYPE_CHECKING:
    from turbopump.config.controller_config import ControllerConfig

COMMANDS: Final = {
    "show": ("turbopump.cli.controller_show", "show_controllers"),
    "replicas": ("turbopump.cli.controller_show", "show_replicas"),
    "elect": ("turbopump.cli.controller_change", "elect"),
    "clean": ("turbopump.cli.controller_change", "clean"),
    "config": ("turbopump.cli.server_config", "controller"),
    "ping": ("turbopump.cli.server_ping", "controller"),
}


@click.group(name="controller", cls=LazyGroup, places=COMMANDS, invoke_without_command=True)
@serving.server_options("controller.conf", port=9878)
@click.option(
    "--data",
    "controller_store_path",
    metavar="DIR",
    help="Directory of the decisions (controllerStorePath).  [default: ~/controller]",
)
def command(file: Path | None, show: bool, insecure: bool, **given: Any) -> None:
    """Run a controller until Ctrl-C or SIGTERM. It decides which replica of a broker is the master.

    When the controller is ready, it prints `ready controller=HOST:PORT`.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    from turbopump.config.controller_config import load_controller_config

    require_unix("turbopump controller")
    serving.refuse_unmeant_directory(given["controller_store_path"])
    config = load_controller_config(file, given)
    if show:
        serving.print_effective(config, file, given)
        return
    serving.refuse_open_ports(config, config.bind_address, insecure=insecure)
    service = ServiceManager()
    serving.serve(_running(config, file, service), service)


@asynccontextmanager
async def _running(
    config: ControllerConfig, file: Path | None, service: ServiceManager
) -> AsyncIterator[None]:
    from turbopump.controller import Controller
    from turbopump.disk.system_disk import SystemDisk

    disk = SystemDisk(asyncio.get_running_loop().call_soon_threadsafe)
    controller = Controller(config, disk=disk, file=file)
    service.reasons = controller.unready_reasons
    try:
        await controller.start()
        serving.log_effective(config)
        click.echo("The Controller Server boot success. serializeType=JSON")
        click.echo(f"ready controller={controller.address}")
        yield
    finally:
        await controller.close()
        disk.close()
