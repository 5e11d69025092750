"""`turbopump doctor`: what is wrong with a cluster, a topic or a group, seen from here, and what
mends it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import click
from msgspec import to_builtins

from turbopump.admin.cluster import Servers
from turbopump.admin.doctor import Doctor, Finding, Level
from turbopump.cli.cluster import checked_topic, client_command
from turbopump.clock import SystemClock


@client_command(None, "doctor")
@click.option(
    "-t", "--topic", metavar="NAME", callback=checked_topic, help="Look at this topic, too."
)
@click.option("-g", "--group", metavar="NAME", help="Look at this consumer group, too.")
async def command(servers: Servers, output: str, topic: str | None, group: str | None) -> int:
    """Look for what is wrong, and say what mends it: name servers, brokers and the addresses that
    they tell clients, their clocks, versions and disks; a topic, its route and permissions; a
    group, its consumers and how far they are behind. Nothing is changed.

    Exit code 0: all is well. 1: something is wrong.
    """
    doctor = Doctor(servers, SystemClock())
    await doctor.examine(topic, group)
    if output == "json":
        findings = [to_builtins(finding) for finding in doctor.findings]
        click.echo(json.dumps({"healthy": doctor.healthy, "findings": findings}))
    else:
        for line in _lines(doctor.findings):
            click.echo(line)
    return 0 if doctor.healthy else 1


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        level = finding.level.upper() if finding.level is Level.WRONG else finding.level
        yield f"{level:6} {finding.subject}: {finding.says}"
        if finding.mend:
            yield f"       -> {finding.mend}"
    wrong = sum(finding.level is Level.WRONG for finding in findings)
    count = "1 thing is wrong" if wrong == 1 else f"{wrong} things are wrong"
    yield count if wrong else "all is well"
