"""`turbopump doctor`: problems of a cluster, a topic or a group, as seen from this machine, with
fixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from turbopump.admin.cluster import Servers
from turbopump.admin.doctor import Diagnosis, Doctor, Level
from turbopump.cli.frame import client_command, count_text, show
from turbopump.cli.values import checked_topic
from turbopump.clock import SystemClock


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
    doctor = Doctor(servers, SystemClock())
    await doctor.examine(topic, group)
    answer = {"healthy": doctor.healthy, "findings": doctor.findings}
    show(output, answer, _lines(doctor.findings))
    return 0 if doctor.healthy else 1


def _lines(findings: Sequence[Diagnosis]) -> Iterator[str]:
    for finding in findings:
        level: str = finding.level
        if finding.level is Level.WRONG:
            level = level.upper()
        yield f"{level:6} {finding.subject}: {finding.message}"
        if finding.fix:
            yield f"       -> {finding.fix}"
    wrong = sum(finding.level is Level.WRONG for finding in findings)
    yield count_text(wrong, "problem") if wrong else "no problem found"
