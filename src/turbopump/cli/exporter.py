"""`turbopump exporter`: metrics of a whole cluster for Prometheus, under the names of
rocketmq-exporter."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import click

from turbopump.cli import serving
from turbopump.cli.frame import (
    WhoAndHow,
    credentials_option,
    name_server_option,
    tls_options,
    who_and_how,
)
from turbopump.cli.log_output import log_options
from turbopump.cli.service_manager import ServiceManager
from turbopump.cli.values import NumberOption
from turbopump.config.addresses import LOOPBACK, check_host, is_loopback, join_address
from turbopump.config.metrics import MetricsConfig, MetricsExporterType
from turbopump.config.system import require_unix
from turbopump.documentation import page_url
from turbopump.errors import ConfigError

PORT: Final = 5559
"""Port beside those of a broker (5557) and a name server (5558)."""


@click.command(name="exporter")
@name_server_option
@click.option(
    "--host", default=LOOPBACK, show_default=True, help="Interface of the page `/metrics`."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="Port of the page, 0 for a free one.",
)
@click.option(
    "--interval",
    metavar="SECONDS",
    type=NumberOption(1),
    default=15,
    show_default=True,
    help="Time between two collections. The page shows the last one.",
)
@serving.insecure_option
@credentials_option
@tls_options
@log_options("info")
def command(namesrv: list[str], host: str, port: int, interval: float, insecure: bool) -> None:
    """Serve the metrics of a whole cluster until Ctrl-C or SIGTERM. Brokers may be Apache's. The
    names are those of Apache's rocketmq-exporter.

    After the first collection it prints `ready exporter=HOST:PORT`.
    """
    require_unix("turbopump exporter")
    check_host(host, what="--host")
    if not insecure and not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines, and everyone there could read the "
            f"names of topics and groups: run Prometheus on this machine and use {LOOPBACK} "
            f"({page_url('docs/guide/monitoring.md')}), or add --insecure"
        )
    config = MetricsConfig(
        metrics_exporter_type=MetricsExporterType.PROM, metrics_prom_exporter_host=host
    )
    service = ServiceManager()
    serving.serve(_running(namesrv, who_and_how(), config, port, interval), service)


@asynccontextmanager
async def _running(
    name_servers: list[str], who: WhoAndHow, config: MetricsConfig, port: int, interval_s: float
) -> AsyncIterator[None]:
    from turbopump.admin.cluster import Servers
    from turbopump.admin.exporter import Collector
    from turbopump.clock import SystemClock
    from turbopump.remoting.metrics_port import MetricsPort

    async with Servers(name_servers, **who) as servers:
        collector = Collector(servers, SystemClock(), interval_s)
        await collector.collect()
        page = MetricsPort(config, collector.metrics)
        await page.open(port)
        collecting = asyncio.create_task(collector.run())
        try:
            assert page.address is not None
            click.echo(f"ready exporter={join_address(*page.address)}")
            yield
        finally:
            page.close()
            collecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await collecting
