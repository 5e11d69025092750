"""`turbopump topic show`: the settings and the queues of a topic."""

from __future__ import annotations

from typing import Any, Final

import click

from turbopump.admin.cluster import Servers
from turbopump.admin.topics import Topics
from turbopump.cli.frame import client_command, show
from turbopump.cli.names import broker_names, topic_subject
from turbopump.cli.tables import TIME, Column, Table
from turbopump.cli.topic import complain_of_no_topic
from turbopump.plural import counted
from turbopump.protocol.requests.topics import TopicConfig

SETTINGS: Final = (
    Column("broker"),
    Column("read_queues"),
    Column("write_queues"),
    Column("perm"),
    Column("order"),
    Column("attributes"),
)
QUEUES: Final = (
    Column("broker"),
    Column("queue"),
    Column("first"),
    Column("end"),
    Column("messages"),
    Column("last_stored", "last write", TIME),
)


@client_command(None, "show", short_help="Queues, offsets, last write, settings.", watch=True)
@topic_subject()
@click.option("--cluster", metavar="NAME", help="Only on the brokers of this cluster.")
async def command(servers: Servers, topic: str, cluster: str | None, output: str) -> int:
    """Show the settings of a topic on each broker, and each of its queues: first offset, end,
    number of messages, time of the last write. Exit code 3 if no broker has it."""
    facet = Topics(servers)
    settings = await facet.settings(topic, cluster=cluster)
    if not settings:
        return await complain_of_no_topic(servers, topic)
    names = await broker_names(servers)
    brokers = [_settings_row(names.get(at, at), one) for at, one in settings.items()]
    queues = [
        {
            "broker": one.broker,
            "queue": one.queue_id,
            "first": one.first,
            "end": one.end,
            "messages": one.messages,
            "last_stored": one.last_stored_ms or None,
        }
        for one in await facet.queues(topic, cluster=cluster)
    ]
    messages = sum(int(one["messages"] or 0) for one in queues)
    answer = {"topic": topic, "brokers": brokers, "messages": messages, "queues": queues}
    table = Table(QUEUES, queues)
    parts: list[str | Table] = [Table(SETTINGS, brokers), "", table]
    parts.append(f"{counted(messages, 'message')} in all")
    if output == "csv":
        parts = [table]
    show(output, answer, parts)
    return 0


def _settings_row(broker: str, settings: TopicConfig) -> dict[str, Any]:
    return {
        "broker": broker,
        "read_queues": settings.read_queue_nums,
        "write_queues": settings.write_queue_nums,
        "perm": settings.perm,
        "order": settings.order,
        "attributes": [f"{key}={value}" for key, value in (settings.attributes or {}).items()],
    }
