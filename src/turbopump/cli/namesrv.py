"""`turbopump namesrv`: a name server in the foreground."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from turbopump.cli import serving
from turbopump.cli.entry import LazyGroup
from turbopump.cli.service_manager import ServiceManager
from turbopump.config.addresses import outward_address
from turbopump.config.system import require_unix

if TYPE_CHECKING:
    from turbopump.config.controller_config import ControllerConfig
    from turbopump.config.namesrv_config import NamesrvConfig

COMMANDS: Final = {
    "list": ("turbopump.cli.namesrv_show", "list_name_servers"),
    "show": ("turbopump.cli.namesrv_show", "show_name_server"),
    "config": ("turbopump.cli.server_config", "namesrv"),
    "wipe": ("turbopump.cli.namesrv_wipe", "wipe"),
    "restore": ("turbopump.cli.namesrv_wipe", "restore"),
    "ping": ("turbopump.cli.server_ping", "namesrv"),
}


@click.group(name="namesrv", cls=LazyGroup, places=COMMANDS, invoke_without_command=True)
@serving.server_options("namesrv.conf", port=9876)
def command(file: Path | None, show: bool, insecure: bool, **given: Any) -> None:
    """Run a name server until Ctrl-C or SIGTERM.

    When the name server is ready, it prints `ready namesrv=HOST:PORT`. With
    enableControllerInNamesrv=true a controller runs in the same process, and the line ends with
    `controller=HOST:PORT`.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    from turbopump.config.namesrv_config import load_namesrv_config  # a ping does not need it

    require_unix("turbopump namesrv")
    config = load_namesrv_config(file, given)
    if show:
        serving.print_effective(config, file, given)
        return
    serving.refuse_open_ports(config, config.bind_address, insecure=insecure)
    controller = None
    if config.enable_controller_in_namesrv:
        from turbopump.config.controller_config import load_controller_in_namesrv

        accounts = config.auth_config_path or str(Path(config.kv_config_path).parent / "auth")
        shared = {"bind_address": config.bind_address, "auth_config_path": accounts}
        controller = load_controller_in_namesrv(file, {**shared, "health_port": 0})
    service = ServiceManager()
    serving.serve(_running(config, controller, file, service), service)


@asynccontextmanager
async def _running(
    config: NamesrvConfig,
    controller: ControllerConfig | None,
    file: Path | None,
    service: ServiceManager,
) -> AsyncIterator[None]:
    from turbopump.disk.system_disk import SystemDisk
    from turbopump.namesrv.server import NameServer

    async with AsyncExitStack() as stack:
        disk = SystemDisk(asyncio.get_running_loop().call_soon_threadsafe)
        stack.callback(disk.close)
        server = NameServer(config, disk=disk, file=file)
        service.reasons = server.unready_reasons
        stack.push_async_callback(server.close)
        address = await server.start()
        serving.log_effective(config)
        click.echo(
            f"The Name Server boot success. serializeType=JSON, address {address[0]}:{address[1]}"
        )
        ready = f"ready namesrv={serving.reachable(address, outward_address())}"
        if controller is not None:
            from turbopump.controller import Controller

            beside = Controller(controller, disk=disk, file=file)
            service.reasons = lambda: [*server.unready_reasons(), *beside.unready_reasons()]
            stack.push_async_callback(beside.close)
            await beside.start()
            serving.log_effective(controller)
            ready += f" controller={beside.address}"
        click.echo(ready)
        yield
