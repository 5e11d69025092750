"""`turbopump broker promote`: a slave becomes the master of its broker name.

The command runs on the slave's machine, because it rewrites the slave's configuration file.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
from click.core import ParameterSource

from turbopump.admin.cluster import Servers
from turbopump.admin.promotion import (
    PromotionChecks,
    SlaveFile,
    Verdict,
    check_promotion,
    new_master,
    restart_broker,
)
from turbopump.cli.changes import COLUMNS, dry_run_option
from turbopump.cli.entry import INCOMPLETE, complain
from turbopump.cli.frame import client_command, show
from turbopump.cli.names import broker_subject
from turbopump.cli.tables import Column, Table
from turbopump.cli.values import NumberOption
from turbopump.clock import SystemClock

CHECKS = (Column("check"), Column("verdict"), Column("finding"))
ROLES = ("SYNC_MASTER", "ASYNC_MASTER")


@client_command(None, "promote", short_help="Make a slave the master, after its master has gone.")
@broker_subject("name")
@click.option(
    "-c",
    "file",
    metavar="FILE",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Configuration file of the slave on this machine; the old one is kept as FILE.bak.",
)
@click.option(
    "--role",
    type=click.Choice(ROLES),
    help="Role of the new master.  [default: by inSyncReplicas in FILE]",
)
@click.option(
    "--restart",
    metavar="COMMAND",
    help='Command that restarts the slave, such as "systemctl restart turbopump-broker".',
)
@click.option(
    "--timeout",
    type=NumberOption(0),
    default=120.0,
    help="With --restart: maximum time until the new master answers, in seconds.",
)
@click.option("--yes", is_flag=True, help="Promote the slave although a check shows a risk.")
@dry_run_option
async def command(
    servers: Servers,
    name: str,
    file: Path,
    role: str | None,
    restart: str | None,
    timeout: float,
    yes: bool,
    dry_run: bool,
    output: str,
) -> int:
    """Make a slave the master of its broker. Run it on the slave's machine, while the slave runs
    and the old master is stopped or lost. NAME is the brokerName.

    The command checks that no master is left, that the slave had copied its master, that no other
    slave has more messages, and that its users and policies are those of the cluster. Then it sets
    brokerRole and brokerId in FILE. The slave becomes the master when it is restarted.

    Exit code 1 if a check fails; FILE is then unchanged. A risk needs `--yes`.
    """
    slave = SlaveFile.read(file, name)
    given = click.get_current_context().get_parameter_source("namesrv")
    if given is ParameterSource.DEFAULT and slave.config.namesrv_addresses:
        servers.name_servers = list(slave.config.namesrv_addresses)
    role = role or slave.role()
    if role is None:
        raise click.UsageError(
            f"{file} does not set inSyncReplicas: give --role SYNC_MASTER if sends shall wait for "
            "a slave, otherwise --role ASYNC_MASTER"
        )
    changes = slave.changes(role)
    checks = await check_promotion(servers, slave, SystemClock().now_ms())
    verdict = checks.verdict
    may = verdict is Verdict.OK or (verdict is Verdict.RISK and yes)
    copy = slave.write(role) if may and not dry_run else None
    answer = {
        "broker": name,
        "dry_run": dry_run,
        "promoted": copy is not None,
        "checks": [
            {"check": one.name, "verdict": one.verdict, "finding": one.finding, "fix": one.fix}
            for one in checks.checks
        ],
        "changes": [
            {"where": str(file), "what": key, "old": old, "new": new, "fault": None}
            for key, (old, new) in changes.items()
        ],
        "copy": None if copy is None else str(copy),
        "address": checks.address,
    }
    parts: list[str | Table] = [Table(CHECKS, answer["checks"])]  # type: ignore[arg-type]
    parts += [f"  {one.name}: {one.fix}" for one in checks.checks if one.fix is not None]
    if may:
        parts += ["", Table(COLUMNS[:-1], answer["changes"])]  # type: ignore[arg-type]
    if dry_run:
        parts.append("dry run: nothing was changed")
    if copy is not None:
        parts.append(f"{file} is changed, the old file is {copy}")
        if restart is None:
            parts += _next_steps(slave, servers)
    show(output, answer, parts)
    if not may:
        if verdict is Verdict.RISK:
            complain(f"{name} is not promoted: --yes accepts the risk")
        else:
            complain(f"{name} is not promoted: a check failed, and --yes does not change that")
        return INCOMPLETE
    if copy is None or restart is None:
        return 0
    return await _restart(servers, name, restart, timeout, checks, output)


def _next_steps(slave: SlaveFile, servers: Servers) -> list[str]:
    number = slave.config.broker_id
    return [
        "next: restart this broker; it starts as the master",
        f"then: turbopump cluster ha {servers.n_option}",
        f"the old master, before it starts again: brokerRole=SLAVE and brokerId={number} in its "
        "file",
    ]


async def _restart(
    servers: Servers, name: str, restart: str, timeout: float, checks: PromotionChecks, output: str
) -> int:
    """Restart the slave, wait until it serves as the master, and report it. Return the exit
    code."""
    await restart_broker(restart)
    try:
        async with asyncio.timeout(timeout):
            address = await new_master(servers, name, checks.log_end or 0)
    except TimeoutError:
        complain(f"{name} has no master after {timeout:g} s: read the log of its broker")
        return INCOMPLETE
    if output == "table":
        click.echo(f"{address} is the master of {name} now, with all messages of the slave")
    return 0
