"""`turbopump topic order`: topics that are ordered over all brokers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from turbopump.admin.cluster import Servers
from turbopump.admin.kv import Kv
from turbopump.cli.changes import Change, dry_run_option, failure_of, show_changes
from turbopump.cli.entry import NOT_FOUND, complain
from turbopump.cli.frame import client_command, show
from turbopump.cli.names import topic_option
from turbopump.cli.tables import Column, Table

ORDERED: Final = (Column("topic"), Column("broker"), Column("queues"))


@client_command(None, "order", short_help="Globally ordered topics: list them, set one.")
@click.argument("given", metavar="[BROKER:QUEUES]...", nargs=-1)
@topic_option("Set the queues of this topic; without it all ordered topics are listed.")
@click.option("--keep-others", is_flag=True, help="Keep the queues on brokers that are not given.")
@click.option("--remove", is_flag=True, help="Make the topic an ordinary one; its messages stay.")
@dry_run_option
async def command(
    servers: Servers,
    given: Sequence[str],
    topic: str | None,
    keep_others: bool,
    remove: bool,
    dry_run: bool,
    output: str,
) -> int:
    """Show or set the queues of topics that are ordered over all brokers. The name servers keep
    them. A producer then sends to these queues also while a broker is away, so that messages of
    one key stay in one queue.

    With -t TOPIC and BROKER:QUEUES, such as broker-a:4 broker-b:4, set the queues of a topic. The
    topic itself must exist. With -t TOPIC alone show it; exit code 3 if it is not ordered.
    """
    facet = Kv(servers)
    if topic is None:
        if given or remove:
            raise click.UsageError("give the topic: -t TOPIC")
        return _show_ordered(await facet.ordered_topics(), output)
    old = await facet.ordered_queues(topic)
    if not given and not remove:
        if not old:
            complain(f"the topic {topic} is not globally ordered; turbopump topic order lists all")
            return NOT_FOUND
        return _show_ordered({topic: old}, output)
    if given and remove:
        raise click.UsageError("give BROKER:QUEUES or --remove")
    wanted = _queues(given)
    if keep_others:
        wanted = old | wanted
    fault = None
    if remove and not dry_run:
        fault = await failure_of(facet.delete_ordered_queues(topic))
    elif not dry_run:
        fault = await failure_of(facet.set_ordered_queues(topic, wanted))
    changes = [
        Change(broker, f"ordered queues of {topic}", old.get(broker), wanted.get(broker), fault)
        for broker in sorted({*old, *wanted})
        if old.get(broker) != wanted.get(broker)
    ]
    return show_changes(output, changes, dry_run=dry_run)


def _queues(given: Sequence[str]) -> dict[str, int]:
    found = {}
    for text in given:
        broker, _, number = text.rpartition(":")
        if not broker or not (number.isascii() and number.isdigit()) or int(number) < 1:
            raise click.UsageError(f"{text!r}: expected BROKER:QUEUES, as in broker-a:4")
        found[broker] = int(number)
    return found


def _show_ordered(topics: dict[str, dict[str, int]], output: str) -> int:
    rows = [
        {"topic": topic, "broker": broker, "queues": number}
        for topic, queues in topics.items()
        for broker, number in queues.items()
    ]
    show(output, {"topics": rows}, [Table(ORDERED, rows)])
    if not rows:
        complain("no topic is globally ordered")
    return 0
