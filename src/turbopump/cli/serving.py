"""Run servers in the foreground until Ctrl-C or SIGTERM, after checking that they can start.

Both signals stop the servers cleanly, with the same effect. The kinds of servers are unknown here.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import click

from turbopump.cli.log_output import log_options
from turbopump.cli.service_manager import ServiceManager
from turbopump.config import addresses
from turbopump.config.metrics import MetricsConfig, MetricsExporterType
from turbopump.config.properties import decode, encode
from turbopump.config.setting import HIDDEN, SettingsClass, effective, settings_of
from turbopump.config.tls import TlsConfig, tls_file
from turbopump.disk.maps import outlive_lost_pages
from turbopump.documentation import page_url
from turbopump.errors import ConfigError
from turbopump.event_loop import loop_factory
from turbopump.log_keys import LogKeys
from turbopump.repeated_line import report_all
from turbopump.stop_signals import stop_on_signals

T = TypeVar("T")

log = logging.getLogger(__name__)

KEPT_SIZE: Final = 64 * 1024 * 1024
M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
"""Value of M_MMAP_THRESHOLD in glibc's malloc.h."""
DESCRIPTORS_OF_MACOS: Final = 10_240
"""Limit of open files on macOS (OPEN_MAX), if the system reports no limit."""


def serve(servers: AbstractAsyncContextManager[None], service: ServiceManager) -> None:
    """Run servers in the foreground until SIGINT or SIGTERM, and report that to ``service``.

    The servers start when the context ``servers`` is entered, and stop when this context is left. A
    second signal, more than a second later, ends the process at once.
    """
    from turbopump.remoting.tls import keep_buffers_small  # for servers alone

    _keep_freed_memory()
    _raise_descriptor_limit()
    outlive_lost_pages()
    keep_buffers_small()
    ctrl_c = signal.signal(signal.SIGINT, signal.SIG_DFL)  # of the second Ctrl-C, in any state
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            runner.run(_until_signal(servers, service))
        except ConfigError as error:
            # The settings are valid, but this machine cannot serve them, for example because a port
            # is in use.
            raise click.ClickException(str(error)) from None
        finally:
            signal.signal(signal.SIGINT, ctrl_c)


def _keep_freed_memory() -> None:
    """Make glibc keep the memory of freed buffers instead of returning it to the kernel.

    This costs some MiB. Returned memory is faulted in again for the next buffer, which takes 0.4
    faults for each batched message, 7 % of the CPU. Without glibc nothing changes.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT_SIZE)
        mallopt(M_MMAP_THRESHOLD, KEPT_SIZE // 2)


def _raise_descriptor_limit() -> None:
    """Raise the limit of open files of this process to the allowed maximum.

    The limit of a shell is often 1,024. The JVM does the same for Apache's broker.
    """
    import resource  # Windows has none

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (hard, DESCRIPTORS_OF_MACOS):
        with contextlib.suppress(ValueError, OSError):
            if soft != limit:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            break
    log.info("open files limit=%d", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


async def _until_signal(
    servers: AbstractAsyncContextManager[None], service: ServiceManager
) -> None:
    # SIGHUP comes from a closed terminal or from logrotate. A new log file is noticed anyway.
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGHUP, log.info, "continuing signal=SIGHUP"
    )
    with short_collections():
        async with stop_on_signals() as stop, servers:
            gc.collect()
            gc.freeze()  # objects of the start live as long as the server
            service.report_ready()
            await stop.wait()
            service.report_stopping()
            assert stop.signal is not None
            log.info("stopping signal=%s", stop.signal.name)
    report_all()


# Python's garbage collector searches for unreachable cycles. Now and then it scans all objects, and
# the event loop stands still for 100 ms or more with 40,000 queues. Nearly all objects are in the
# tables of a server and live as long as the server. Reference counting frees dead objects: neither
# our code nor uvloop creates cycles. Only asyncio's own closed transports are cycles.

LONG_LOOK_S: Final = 0.005
"""CPU time in seconds. Objects that survive a full collection longer than this are not scanned
again."""
DEAD_MAX: Final = 10_000
"""Number of dead new objects after which older objects are collected too."""


@contextmanager
def short_collections(long_look_s: float = LONG_LOOK_S, dead_max: int = DEAD_MAX) -> Iterator[None]:
    """Keep Python's garbage collector from scanning the same long-lived objects again and again.

    Objects that survive a long full collection are frozen (``gc.freeze``). After ``dead_max``
    objects have died in cycles, all objects are scanned once more. At the end of the block, the
    collector's old settings return.
    """
    began = 0.0
    dead = 0
    looks_at_all = False
    thresholds = gc.get_threshold()

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal began, dead, looks_at_all
        if phase == "start":
            began = time.thread_time()
            return
        dead += info["collected"]
        if info["generation"] == 2:
            if looks_at_all:
                dead, looks_at_all = 0, False
            if time.thread_time() - began >= long_look_s:
                gc.freeze()
        elif dead >= dead_max and not looks_at_all:
            looks_at_all = True
            gc.unfreeze()

    gc.set_threshold(*thresholds[:2], thresholds[2] // 2)  # so that collections are short
    gc.callbacks.append(watch)
    try:
        yield
    finally:
        gc.callbacks.remove(watch)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


insecure_option = click.option(
    "--insecure",
    is_flag=True,
    help="Allow an interface that other machines reach without access control.",
)


def server_options(file_name: str, port: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return a decorator that adds the common options of all servers.

    The options are for the configuration file, the interface, the port and the log. The parameters
    for interface and port are named like the settings.
    """
    options = (
        click.option(
            "-c",
            "file",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help=f"Configuration in Apache's keys ({file_name}).",
        ),
        click.option("-p", "show", is_flag=True, help="Print the effective configuration and end."),
        click.option(
            "--host",
            "bind_address",
            help="Interface to listen on (bindAddress).  [default: 127.0.0.1]",
        ),
        click.option(
            "--port",
            "listen_port",
            type=click.IntRange(0, 65535),
            help=f"Port, 0 for a free one (listenPort).  [default: {port}]",
        ),
        insecure_option,
        log_options("info"),
    )

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def refuse_open_ports(config: MetricsConfig, host: str, *, insecure: bool) -> None:
    """Raise ConfigError if strangers could use a server, or read its metrics.

    - ``host``: the interface on which the server listens.
    - ``insecure``: allow both.
    """
    refuse_open_bind(host, insecure=insecure, authentication=config.authentication_enabled)
    _refuse_open_metrics(config, insecure=insecure)


def refuse_open_bind(host: str, *, insecure: bool, authentication: bool = False) -> None:
    """Raise ConfigError if a server without access control can be reached from other machines.

    ``insecure`` allows this.
    """
    if not insecure and not authentication and not addresses.is_loopback(host):
        raise ConfigError(
            f"{host or 'an empty address'} can be reached from other machines, and everyone there "
            "might do everything: set authenticationEnabled=true "
            f"({page_url('docs/guide/access-control.md')}), bind {addresses.LOOPBACK}, or add "
            "--insecure"
        )


def _refuse_open_metrics(config: MetricsConfig, *, insecure: bool) -> None:
    host = config.metrics_host
    if (
        insecure
        or config.metrics_exporter_type is not MetricsExporterType.PROM
        or addresses.is_loopback(host)
        or (config.authentication_enabled and config.server_tls.certificate)
    ):
        return
    raise ConfigError(
        f"metricsPromExporterHost={host} can be reached from other machines, and everyone there "
        "could read the names of topics and groups: set authenticationEnabled=true and "
        f"tls.server.certPath ({page_url('docs/guide/monitoring.md')}), use {addresses.LOOPBACK}, "
        "or add --insecure"
    )


def refuse_unmeant_directory(data: str | None) -> None:
    """Raise ConfigError if the directory of `--data` is probably a mistake.

    A shell makes `--data ""` from an unset variable, which would silently mean the current
    directory. A shell does not expand `--data=~/mq`, which would mean a directory `~` in the
    current directory.
    """
    if data is None:
        return
    if not data.strip():
        raise ConfigError("--data is empty: expected the name of a directory; . is this one")
    if data.startswith("~"):
        raise ConfigError(
            f"--data {data}: the shell did not replace ~ by the home directory; write "
            f"--data {data} without = and quotes"
        )


def advertised(text: str | None) -> Mapping[str, object]:
    """Return the broker settings for the option `--advertise HOST[:PORT]`."""
    if text is None:
        return {}
    host, port = addresses.split_host_port(text, what="--advertise")
    return {"broker_ip1": host, "advertised_port": port or 0}


def reachable(address: tuple[str, int], host: str) -> str:
    """Return the address of a server for a client on this machine.

    If the server listens on all interfaces, `host` replaces its host.
    """
    bound, port = address
    if addresses.is_wildcard(bound):
        bound = host
    return addresses.join_address(bound, port)


def print_effective(
    config: TlsConfig, file: Path | None, given: Mapping[str, object | None]
) -> None:
    """Print the effective configuration of a server as a file for the option `-c`.

    The values are grouped by their origin, and secrets are left out. ``given`` has the values from
    the command line by field name, with None for options that are not given.
    """
    files = {  # TLS settings of the first file take precedence
        str(path): decode(Path(path).read_bytes()) for path in (tls_file(config), file) if path
    }
    origins: dict[str, dict[str, str]] = {}
    hidden: list[str] = []
    values = effective(config)
    for name, known in settings_of(type(config)):
        if given.get(name) is not None:
            origin = "the command line"
        elif holders := [path for path, texts in files.items() if known.key in texts]:
            origin = holders[0]
        elif known.key == "namesrvAddr" and values[known.key]:
            origin = "the environment variable NAMESRV_ADDR"
        else:
            origin = "defaults"
        if known.secret and values[known.key]:
            hidden.append(f"# {known.key} is a secret, and left out here: add it\n")
        else:
            origins.setdefault(origin, {})[known.key] = values[known.key]
    page = page_url("docs/reference/configuration.md")
    click.echo(f"# a file for -c; {page} explains each key")
    for origin in sorted(origins, key="defaults".__eq__):
        click.echo(f"# from {origin}\n{encode(origins[origin])}", nl=False)
    click.echo("".join(hidden), nl=False)


def log_effective(config: SettingsClass) -> None:
    """Log the effective configuration of a server, one line for each group of settings."""
    values: dict[str, LogKeys] = {}
    for name, known in settings_of(type(config)):
        value = getattr(config, name)
        shown = HIDDEN if known.secret and value else value
        values.setdefault(known.group, LogKeys())[known.key] = shown
    for group, keys in values.items():
        log.info("configuration group=%s %s", group, keys)
