"""`turbopump doctor`: problems that this machine sees in a cluster, a topic or a group, with
fixes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from turbopump.admin.cluster import Servers
from turbopump.admin.doctor import Diagnosis, Level, examine_cluster
from turbopump.cli.frame import client_command, show
from turbopump.cli.names import group_option, topic_option
from turbopump.cli.tables import Column, Table
from turbopump.clock import SystemClock
from turbopump.plural import counted

FINDINGS: Final = (Column("level"), Column("subject"), Column("message"), Column("fix"))


@client_command(None, "doctor", watch=True)
@topic_option("Also check this topic.")
@group_option("Also check this consumer group.")
async def command(servers: Servers, output: str, topic: str | None, group: str | None) -> int:
    """Find problems and show the fix for each. The doctor checks name servers, brokers, their
    advertised addresses, clocks, versions and disks. It also checks a topic's route and
    permissions, and a group's consumers and lag. It changes nothing.

    Exit code 0: no problem. 1: at least one problem.
    """
    findings = await examine_cluster(servers, SystemClock(), topic, group)
    wrong = sum(finding.level is Level.WRONG for finding in findings)
    parts: Iterable[str | Table] = _lines(findings, wrong)
    if output == "csv":
        rows = [
            {
                "level": str(one.level),
                "subject": one.subject,
                "message": one.message,
                "fix": one.fix,
            }
            for one in findings
        ]
        parts = [Table(FINDINGS, rows)]
    show(output, {"healthy": not wrong, "findings": findings}, parts)
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
