"""`turbopump doctor`: problems that this machine sees in a cluster, a topic or a group, with
fixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from turbopump.admin.cluster import Servers
from turbopump.admin.doctor import Diagnosis, Level, examine_cluster
from turbopump.cli.frame import client_command, show
from turbopump.cli.values import checked_topic
from turbopump.clock import SystemClock
from turbopump.plural import counted


@client_command(None, "doctor")
@click.option(
    "-t", "--topic", metavar="NAME", callback=checked_topic, help="Also check this topic."
)
@click.option("-g", "--group", metavar="NAME", help="Also check this consumer group.")
async def command(servers: Servers, output: str, topic: str | None, group: str | None) -> int:
    """Find problems and show the fix for each. The doctor checks name servers, brokers, their
    advertised addresses, clocks, versions and disks. It also checks a topic's route and
    permissions, and a group's consumers and lag. It changes nothing.

    Exit code 0: no problem. 1: at least one problem.
    """
    findings = await examine_cluster(servers, SystemClock(), topic, group)
    wrong = sum(finding.level is Level.WRONG for finding in findings)
    show(output, {"healthy": not wrong, "findings": findings}, _lines(findings, wrong))
    return min(wrong, 1)


def _lines(findings: Sequence[Diagnosis], wrong: int) -> Iterator[str]:
    for finding in findings:
        level: str = finding.level
        if finding.level is Level.WRONG:
            level = level.upper()
        yield f"{level:6} {finding.subject}: {finding.message}"
        if finding.fix:
            yield f"       -> {finding.fix}"
    yield counted(wrong, "problem") if wrong else "no problem found"
