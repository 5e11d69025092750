"""`turbopump broker list|show`: running brokers and their figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click

from turbopump.admin.broker_figures import BrokerFigures
from turbopump.admin.brokers import BrokerMember, Brokers
from turbopump.admin.cluster import Servers
from turbopump.cli.entry import INCOMPLETE
from turbopump.cli.frame import client_command, show
from turbopump.cli.names import broker_subject
from turbopump.cli.tables import BYTES, Column, Table, size_text
from turbopump.cli.values import time_text
from turbopump.errors import TurbopumpError

BROKERS: Final = (
    Column("cluster"),
    Column("broker"),
    Column("id"),
    Column("role"),
    Column("address"),
    Column("version"),
    Column("put_per_second", "in", "msg/s"),
    Column("get_per_second", "out", "msg/s"),
    Column("log_size", "log", BYTES),
    Column("disk_used_percent", "disk", "%"),
    Column("fault", "not asked because"),
)
FIGURES: Final = (Column("figure"), Column("value"))


@client_command(None, "list", short_help="All brokers: address, version, rates, disk.", watch=True)
@click.option("--cluster", metavar="NAME", help="Only the brokers of this cluster.")
async def list_brokers(servers: Servers, cluster: str | None, output: str) -> int:
    """List the registered brokers, masters and slaves. Rates are means of the last minute. Exit
    code 1 if a broker could not be asked."""
    facet = Brokers(servers)
    rows = []
    for member in await facet.list(cluster):
        row = member_row(member)
        try:
            row |= _short_figures(await facet.figures(member.address))
        except TurbopumpError as error:
            row["fault"] = str(error)
        rows.append(row)
    failed = any("fault" in row for row in rows)
    columns = BROKERS if failed else BROKERS[:-1]
    show(output, {"brokers": rows}, [Table(columns, rows)])
    return INCOMPLETE if failed else 0


def member_row(member: BrokerMember) -> dict[str, Any]:
    """Return the row of a broker in JSON output."""
    return {
        "cluster": member.cluster,
        "broker": member.name,
        "id": member.id,
        "role": "master" if member.is_master else "slave",
        "address": member.address,
    }


def _short_figures(figures: BrokerFigures) -> dict[str, Any]:
    used = figures.log_disk_used
    return {
        "version": figures.version,
        "put_per_second": figures.put_rate.over_60_s if figures.put_rate is not None else None,
        "get_per_second": figures.get_rate.over_60_s if figures.get_rate is not None else None,
        "log_size": _log_size(figures),
        "disk_used_percent": round(used * 100, 1) if used is not None else None,
    }


def _log_size(figures: BrokerFigures) -> int | None:
    if figures.log_end is None:
        return None
    return figures.log_end - (figures.log_start or 0)


@client_command(None, "show", short_help="Figures of one broker.", watch=True)
@broker_subject()
@click.option("--all", "every", is_flag=True, help="All figures, as the broker names them.")
async def show_broker(servers: Servers, broker: str, every: bool, output: str) -> int:
    """Show the figures of a broker: version, rates, log, disk, waiting messages. BROKER is a
    brokerName, which means its master, brokerName:ID, or HOST:PORT."""
    facet = Brokers(servers)
    member = await facet.find(broker)
    figures = await facet.figures(member.address)
    rows = [
        {"figure": name, "value": value}
        for name, value in (
            figures.texts.items() if every else (*_identity(member), *_readable(figures))
        )
    ]
    show(output, {**member_row(member), "figures": figures}, [Table(FIGURES, rows)])
    return 0


def _identity(member: BrokerMember) -> Iterator[tuple[str, Any]]:
    role = "master" if member.is_master else "slave"
    yield "broker", f"{member.name}:{member.id}, {role} in {member.cluster}"
    yield "address", member.address


def _readable(figures: BrokerFigures) -> Iterator[tuple[str, Any]]:
    yield "version", figures.version
    if figures.started_ms is not None:
        yield "started", time_text(figures.started_ms)
    if figures.refuses_sends_because is not None:
        yield "refuses sends", figures.refuses_sends_because
    for name, rate in (("in", figures.put_rate), ("out", figures.get_rate)):
        if rate is not None:
            yield (
                f"{name} (msg/s)",
                f"{rate.over_10_s:.1f} in 10 s, {rate.over_60_s:.1f} in 1 min, "
                f"{rate.over_600_s:.1f} in 10 min",
            )
    yield "messages in", f"{figures.messages_put:,} since the start"
    yield "messages out", f"{figures.messages_got:,} since the start"
    if figures.put_latency_p99_ms is not None:
        yield "append, p99 (ms)", figures.put_latency_p99_ms
    size = _log_size(figures)
    if size is not None:
        yield "log", f"{size_text(size)}, from {figures.log_start} to {figures.log_end}"
    if figures.earliest_message_ms is not None:
        yield "oldest message", time_text(figures.earliest_message_ms)
    yield "not flushed", size_text(figures.unflushed_bytes)
    yield "not readable yet", size_text(figures.dispatch_behind_bytes)
    for name, used in (("log", figures.log_disk_used), ("queues", figures.queue_disk_used)):
        if used is not None and used >= 0:
            yield f"disk of the {name}", f"{used:.1%} used"
    yield "waiting sends", f"{figures.send_queue_size}, the first for {figures.send_wait_ms} ms"
    delayed = sum(figures.delayed.values())
    yield "delayed messages", f"{delayed:,}"
    yield "timer messages", f"{figures.timers.waiting:,}"
    if figures.transactions_pending is not None:
        yield "transactions without an end", f"{figures.transactions_pending:,}"
