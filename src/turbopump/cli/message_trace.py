"""`turbopump message trace`: what each group has done with a message, and what clients have
recorded about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from turbopump.cli.frame import client_command, show
from turbopump.cli.names import topic_subject
from turbopump.cli.tables import TIME, Column, Table
from turbopump.errors import RouteNotFoundError

if TYPE_CHECKING:
    from turbopump.admin.admin import Admin
    from turbopump.client.trace_reading import TracedAction

GROUPS: Final = (Column("group"), Column("state"), Column("fault", "not asked because"))
ACTIONS: Final = (
    Column("time_ms", "time", TIME),
    Column("kind", "action"),
    Column("group"),
    Column("client"),
    Column("success"),
    Column("cost_ms", "took", "ms"),
    Column("attempt"),
    Column("outcome"),
    Column("error"),
)


def _admin(name_servers: list[str], **who_and_how: Any) -> Admin:
    from turbopump.admin.admin import Admin  # the other searches start without

    return Admin(name_servers, **who_and_how)


@client_command(None, "trace", _admin, short_help="Which groups have consumed a message.")
@topic_subject()
@click.argument("msg_id", metavar="ID")
async def command(admin: Admin, topic: str, msg_id: str, output: str) -> None:
    """Show what each group of TOPIC has done with the message ID: CONSUMED, NOT_CONSUME_YET,
    NOT_ONLINE (it has no consumers now) and so on. If clients trace (trace=True), show also what
    they have recorded: sends, and each handling with its outcome. Exit code 3 if there is no such
    message."""
    groups = [msgspec.to_builtins(one) for one in await admin.messages.tracks(topic, msg_id)]
    try:
        actions = [_row(one) for one in await admin.messages.trace(msg_id)]
    except RouteNotFoundError:
        actions = []
    unasked = any(row["fault"] for row in groups)
    parts: list[str | Table] = [Table(GROUPS if unasked else GROUPS[:-1], groups)]
    if not groups:
        parts.append(f"no group reads the topic {topic}")
    if actions:
        parts += ["", Table(ACTIONS, actions)]
    else:
        parts.append("no client has recorded anything: they do with trace=True")
    value = {"topic": topic, "msg_id": msg_id, "groups": groups, "actions": actions}
    show(output, value, parts)


def _row(action: TracedAction) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(action)
    row["outcome"] = None if action.outcome is None else action.outcome.name
    return row
