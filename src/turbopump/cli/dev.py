"""`turbopump dev`: a name server and a broker in one process, in one directory, with small initial
files."""

import asyncio
import dataclasses
import logging
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from turbopump import __version__
from turbopump.cli import serving
from turbopump.cli.log_output import log_options
from turbopump.cli.service_manager import ServiceManager
from turbopump.config.addresses import LOOPBACK, join_address
from turbopump.config.broker_config import VIP_OFFSET, BrokerConfig, load_broker_config
from turbopump.config.namesrv_config import NamesrvConfig, load_namesrv_config
from turbopump.config.system import require_unix
from turbopump.errors import ConfigError

if TYPE_CHECKING:
    from turbopump.broker.broker import Broker
    from turbopump.namesrv.server import NameServer
    from turbopump.remoting.metrics_port import MetricsPort

log = logging.getLogger(__name__)

# A production broker's first message takes 1 GiB of commit log and 6 MB per queue.
SMALL_FILES: Final[Mapping[str, object]] = {
    "mapped_file_size_commit_log": 16 * 1024 * 1024,
    "mapped_file_size_consume_queue": 30_000 * 20,
    "max_hash_slot_num": 100_000,
    "max_index_num": 400_000,
    "disk_free_space_min": 128 * 1024 * 1024,  # a developer's disk may well be 95 % full
}
TEMPORARY_NOTE: Final = "  (temporary, removed at the end; --data DIR keeps it)"


@click.command(name="dev")
@click.option(
    "--data",
    metavar="DIR",
    help="Directory to keep messages in.  [default: a temporary one, removed at the end]",
)
@click.option("--host", default=LOOPBACK, help="Interface to listen on.")
@click.option(
    "--namesrv-port",
    type=click.IntRange(0, 65535),
    default=9876,
    help="Port of the name server, 0 for a free one.",
)
@click.option(
    "--broker-port",
    type=click.IntRange(0, 65535),
    default=10911,
    help="Port of the broker, 0 for a free one.",
)
@click.option("--advertise", metavar="HOST[:PORT]", help="Address of the broker for clients.")
@click.option(
    "--replicas",
    type=click.IntRange(1, 5),
    default=1,
    help="Brokers of one group, each a process; a controller elects the master.",
)
@serving.insecure_option
@log_options("warning")
def command(
    data: str | None,
    host: str,
    namesrv_port: int,
    broker_port: int,
    advertise: str | None,
    replicas: int,
    insecure: bool,
) -> None:
    """Run a name server and a broker until Ctrl-C or SIGTERM.

    When both are ready, they print a banner and the line `ready namesrv=HOST:PORT
    broker=HOST:PORT`. With `--replicas 3`, three brokers and a controller run, and a killed master
    is replaced.
    """
    require_unix("turbopump dev")
    serving.refuse_open_bind(host, insecure=insecure)
    serving.refuse_unmeant_directory(data)
    if namesrv_port and namesrv_port in (broker_port, broker_port - VIP_OFFSET):
        raise click.UsageError(
            f"--namesrv-port {namesrv_port} is one of the broker's ports: it listens on "
            f"{broker_port} and, for clients' VIP channel, on {broker_port - VIP_OFFSET}",
            click.get_current_context(),
        )
    kv_path = str(Path(data or tempfile.gettempdir()) / "namesrv" / "kvConfig.json")
    namesrv = load_namesrv_config(
        None, {"bind_address": host, "listen_port": namesrv_port, "kv_config_path": kv_path}
    )
    broker = load_broker_config(
        None,
        {
            "broker_name": "broker-dev",
            "store_path_root_dir": data or tempfile.gettempdir(),
            "bind_address": host,
            "listen_port": broker_port,
            **SMALL_FILES,
            **serving.advertised(advertise),
        },
        environ={},
    )
    service = ServiceManager()
    if replicas > 1:
        if advertise is not None:
            raise click.UsageError(
                "--advertise names one address, and --replicas needs one for each replica: leave "
                "one of them out",
                click.get_current_context(),
            )
        serving.serve(_replicas(namesrv, broker, data, replicas), service)
    else:
        serving.serve(_running(namesrv, broker, data, service), service)


@asynccontextmanager
async def _replicas(
    namesrv: NamesrvConfig, broker: BrokerConfig, data: str | None, replicas: int
) -> AsyncIterator[None]:
    from turbopump.cli.dev_replicas import running

    with ExitStack() as stack:
        directory = data or stack.enter_context(tempfile.TemporaryDirectory(prefix="turbopump-"))
        click.echo(f"Turbopump {__version__}, for development: no access control, small files")
        note = "" if data is not None else TEMPORARY_NOTE
        async with running(namesrv, broker, Path(directory), replicas, note):
            yield


@asynccontextmanager
async def _running(
    namesrv: NamesrvConfig, broker_config: BrokerConfig, data: str | None, service: ServiceManager
) -> AsyncIterator[None]:
    from turbopump.broker.broker import Broker
    from turbopump.disk.system_disk import SystemDisk
    from turbopump.namesrv.server import NameServer

    async with AsyncExitStack() as stack:
        if data is not None:
            _refuse_directory_in_use(Path(data))
        directory = data or stack.enter_context(tempfile.TemporaryDirectory(prefix="turbopump-"))
        disk = SystemDisk(asyncio.get_running_loop().call_soon_threadsafe)
        stack.callback(disk.close)
        kv_path = str(Path(directory) / "namesrv" / "kvConfig.json")
        server = NameServer(dataclasses.replace(namesrv, kv_config_path=kv_path), disk=disk)
        stack.push_async_callback(server.close)
        bound = await server.start()
        config = dataclasses.replace(
            broker_config,
            store_path_root_dir=directory,
            namesrv_addr=serving.reachable(bound, LOOPBACK),
        )
        broker = Broker(config)
        service.reasons = broker.readiness.reasons
        broker.readiness.recovery.on_progress = service.report_progress
        stack.push_async_callback(broker.close)
        await broker.start()
        serving.log_effective(config)
        await open_metrics(
            server.metrics_port, namesrv.listen_port and namesrv.namesrv_metrics_port
        )
        assert broker.metrics_port is not None
        await open_metrics(
            broker.metrics_port, config.listen_port and config.metrics_prom_exporter_port
        )
        namesrv_address = serving.reachable(bound, config.advertised_host)
        _print_banner(namesrv_address, config, broker, server, kept=data is not None)
        click.echo(f"ready namesrv={namesrv_address} broker={broker.address}")
        yield


async def open_metrics(port: "MetricsPort", number: int) -> None:
    """Open a port with metrics: a free one if the server's own port is a free one.

    A busy port is only a warning, because a developer may run two clusters.
    """
    try:
        await port.open(number)
    except ConfigError as error:
        log.warning("no metrics page: %s", error)


def _refuse_directory_in_use(directory: Path) -> None:
    """Raise StoreLockedError if another process uses the directory.

    Otherwise a second start would fail later, with a misleading error about ports.
    """
    from turbopump.disk.system_disk import SystemDisk
    from turbopump.store.files import StorePaths

    lock = StorePaths(directory).lock
    if lock.exists():
        SystemDisk().lock(lock).release()


def _print_banner(
    namesrv: str, config: BrokerConfig, broker: "Broker", server: "NameServer", *, kept: bool
) -> None:
    note = "" if kept else TEMPORARY_NOTE
    click.echo(f"Turbopump {__version__}, for development: no access control, small files")
    click.echo(f"  name server  {namesrv}")
    click.echo(
        f"  broker       {join_address(broker.host, broker.port)}  advertised as {broker.address}"
    )
    for name, page in (("broker", broker.metrics_port), ("name server", server.metrics_port)):
        if page is not None and page.address is not None:
            click.echo(f"  metrics      http://{join_address(*page.address)}/metrics  ({name})")
    click.echo(f"  data         {config.store_path_root_dir}{note}")
    click.echo("  Ctrl-C stops it")
