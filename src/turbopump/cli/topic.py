"""`turbopump topic list|create|alter|delete|route`: topics of a cluster and their brokers.

Before a change, the command shows which messages the change would hide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click
from msgspec import structs

from turbopump.admin.cluster import Servers, refuse_unknown_cluster
from turbopump.admin.topic_contents import QueueContent, queue_contents, unread_ids
from turbopump.admin.topics import (
    Topics,
    find_topic,
    put_topic,
    topic_names,
    unknown_topic,
    users_topics,
)
from turbopump.cli.changes import Change, dry_run_option, show_changes
from turbopump.cli.entry import (
    EXISTS,
    INCOMPLETE,
    NOT_FOUND,
    WRONG_USAGE,
    LazyGroup,
    command_group,
    complain,
)
from turbopump.cli.frame import client_command, show
from turbopump.cli.names import broker_names, broker_option, topic_subject
from turbopump.cli.tables import Column, Table
from turbopump.cli.values import checked_pairs
from turbopump.errors import ResponseError
from turbopump.message.rules import is_system_topic
from turbopump.plural import counted
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests import namesrv as requests
from turbopump.protocol.requests.topics import QUEUES_MAX, DeleteTopic, TopicConfig

PERM: Final = "4 read + 2 write"
ROUTE: Final = (
    Column("broker"),
    Column("read_queues"),
    Column("write_queues"),
    Column("perm", unit=PERM),
    Column("addresses"),
)
CONTENT: Final = (
    Column("broker"),
    Column("queue"),
    Column("messages"),
    Column("groups", "groups that have not read all"),
)
SETTINGS: Final = {
    "read queues": "read_queue_nums",
    "write queues": "write_queue_nums",
    "perm": "perm",
}
"""Settings of a topic that a command changes, with the field of each."""
T = TypeVar("T")

PLACES: Final = {
    "show": ("turbopump.cli.topic_show", "command"),
    "order": ("turbopump.cli.topic_order", "command"),
}

command = command_group(
    "topic", "List, show, create, change and delete topics.", cls=LazyGroup, places=PLACES
)


@client_command(command, "list", watch=True)
@click.option("--cluster", metavar="NAME", help="Only the topics of this cluster.")
@click.option("--all", "every", is_flag=True, help="RocketMQ's own topics too.")
async def list_topics(servers: Servers, cluster: str | None, every: bool, output: str) -> None:
    """List your topics, one on each line."""
    names = await topic_names(servers, cluster)
    info = await servers.brokers()
    if cluster is not None and not names:
        refuse_unknown_cluster(info, cluster)
    topics = names if every else users_topics(names, info)
    table = Table((Column("topic"),), [{"topic": topic} for topic in topics])
    show(output, {"topics": topics}, [table])
    if names and not topics:
        complain(f"no topics except {len(names)} of RocketMQ itself, which --all shows")


def _where(command: Callable[..., T]) -> Callable[..., T]:
    broker = broker_option("Only on this broker: its name or address.")
    cluster = click.option(
        "--cluster",
        metavar="NAME",
        help="Only on the brokers of this cluster.  [default: on every broker]",
    )
    return broker(cluster(command))


def _checked_attributes(
    context: click.Context, parameter: click.Parameter, given: Sequence[str]
) -> dict[str, str]:
    """Parse the attributes of a topic that are given as ``NAME=VALUE`` texts.

    The broker checks their names. Raises BadParameter if a text has another form.
    """
    for text in given:
        if text.endswith("=") or "," in text:
            raise click.BadParameter(f"{text!r}: expected NAME=VALUE, as in message.type=FIFO")
    return checked_pairs(context, parameter, given)


@client_command(command, "create")
@topic_subject("name")
@click.option(
    "--queues", type=click.IntRange(1, QUEUES_MAX), default=8, help="Queues on each broker."
)
@click.option("--read-queues", type=click.IntRange(0, QUEUES_MAX), help="Number of queues to read.")
@click.option(
    "--write-queues", type=click.IntRange(0, QUEUES_MAX), help="Number of queues to write."
)
@click.option("--perm", type=click.IntRange(0, 7), default=6, help="4 read + 2 write.")
@click.option(
    "--ordered", is_flag=True, help="Ordered over all brokers: the name servers keep its queues."
)
@click.option(
    "--attribute",
    "attributes",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_checked_attributes,
    help="Attribute such as message.type=FIFO; more than once.",
)
@click.option("--if-not-exists", is_flag=True, help="Leave an existing topic unchanged.")
@_where
@dry_run_option
async def create_topic(
    servers: Servers,
    name: str,
    queues: int,
    read_queues: int | None,
    write_queues: int | None,
    perm: int,
    ordered: bool,
    attributes: dict[str, str],
    if_not_exists: bool,
    broker: str | None,
    cluster: str | None,
    dry_run: bool,
    output: str,
) -> int:
    """Create a topic. An existing topic is not changed: use `turbopump topic alter`. Exit code 4 if
    it exists."""
    addresses = await servers.brokers_at(broker, cluster)
    existing = await find_topic(servers, addresses, name)
    if existing and not if_not_exists:
        there = ", ".join(f"{_settings(topic)} on {at}" for at, topic in existing.items())
        raise _TopicExistsError(
            f"the topic {name} exists: {there}. `turbopump topic alter {name}` changes "
            "it; --if-not-exists leaves it unchanged, and creates it where it is missing"
        )
    wanted = TopicConfig(
        topic_name=name,
        read_queue_nums=queues if read_queues is None else read_queues,
        write_queue_nums=queues if write_queues is None else write_queues,
        perm=perm,
        order=ordered,
    )
    names = await broker_names(servers)
    changes = []
    for address in addresses:
        if address in existing:
            continue
        if not dry_run:
            await put_topic(servers, address, wanted, attributes)
        where = names.get(address, address)
        changes += _changes(where, None, wanted)
        changes += [Change(where, key, None, value) for key, value in attributes.items()]
    if ordered and not dry_run:
        from turbopump.admin.kv import Kv  # few topics are ordered

        given = {names[at]: wanted.write_queue_nums for at in addresses if at in names}
        await Kv(servers).set_ordered_queues(name, given, keep_others=True)
    if ordered:
        changes.append(Change("name servers", f"order of {name}", None, "by queue"))
    lines = [f"exists on {at}: {_settings(one)}" for at, one in existing.items()]
    more = {"topic": name, "existing": list(existing)}
    return show_changes(output, changes, dry_run=dry_run, more=more, before=lines)


class _TopicExistsError(click.ClickException):
    exit_code = EXISTS


def _settings(topic: TopicConfig) -> str:
    read, write = topic.read_queue_nums, topic.write_queue_nums
    queues = counted(read, "queue") if read == write else f"{read} queues to read, {write} to write"
    return f"{queues}, perm {topic.perm}"


def _changes(broker: str, before: TopicConfig | None, after: TopicConfig) -> list[Change]:
    """Return the settings of a topic that differ on a broker. None is a topic that does not
    exist."""
    found = []
    for what, field in SETTINGS.items():
        old = None if before is None else getattr(before, field)
        new = getattr(after, field)
        if old != new:
            found.append(Change(broker, what, old, new))
    return found


@client_command(command, "alter", short_help="Change a topic, and warn of hidden messages.")
@topic_subject("name")
@click.option("--queues", type=click.IntRange(1, QUEUES_MAX), help="Queues on each broker.")
@click.option("--read-queues", type=click.IntRange(0, QUEUES_MAX), help="Number of queues to read.")
@click.option(
    "--write-queues", type=click.IntRange(0, QUEUES_MAX), help="Number of queues to write."
)
@click.option("--perm", type=click.IntRange(0, 7), help="4 read + 2 write.")
@click.option("--yes", is_flag=True, help="Allow a change that hides messages.")
@_where
@dry_run_option
async def alter_topic(
    servers: Servers,
    name: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: int | None,
    yes: bool,
    broker: str | None,
    cluster: str | None,
    dry_run: bool,
    output: str,
) -> int:
    """Change an existing topic; settings that are not given do not change. If fewer queues would be
    read, show the messages in the others. If there are messages, --yes is required."""
    if queues is not None and (read_queues is not None or write_queues is not None):
        raise click.UsageError("give --queues, or --read-queues and --write-queues, not both")
    given = {
        "read_queue_nums": queues if read_queues is None else read_queues,
        "write_queue_nums": queues if write_queues is None else write_queues,
        "perm": perm,
    }
    settings = {key: value for key, value in given.items() if value is not None}
    if not settings:
        raise click.UsageError("give --queues, --read-queues, --write-queues or --perm")
    found = await find_topic(servers, await servers.brokers_at(broker, cluster), name)
    if not found:
        return await complain_of_no_topic(servers, name)
    wanted = {address: structs.replace(topic, **settings) for address, topic in found.items()}
    hidden = [
        content
        for address, topic in found.items()
        for content in await queue_contents(
            servers, address, name, unread_ids(topic, wanted[address])
        )
    ]
    messages = sum(content.messages for content in hidden)
    is_refused = bool(messages) and not (yes or dry_run)
    names = await broker_names(servers)
    changes = []
    for address, topic in wanted.items():
        changes += _changes(names.get(address, address), found[address], topic)
        if topic != found[address] and not (dry_run or is_refused):
            await put_topic(servers, address, topic)
    code = show_changes(
        output,
        changes,
        dry_run=dry_run or is_refused,
        more={"topic": name, "unread": [_content_row(content) for content in hidden]},
        before=_content_parts("no longer read:", hidden),
    )
    if not is_refused:
        return code
    complain(
        f"{counted(messages, 'message')} of {name} could no longer be read: --yes makes "
        "the change anyway. To lose none, lower --write-queues first, and --read-queues "
        "when `turbopump offset show GROUP` shows no lag"
    )
    return WRONG_USAGE


@client_command(command, "delete", short_help="Delete a topic, with its queues and offsets.")
@topic_subject("name")
@click.option("--yes", is_flag=True, help="Delete; without it, only list what would be deleted.")
@dry_run_option
async def delete_topic(servers: Servers, name: str, yes: bool, dry_run: bool, output: str) -> int:
    """Delete a topic on all brokers and name servers: its settings, its queues, and the offsets of
    groups in it. Show what is deleted."""
    if is_system_topic(name):
        raise click.ClickException(
            f"{name} is a topic of RocketMQ's own, which brokers do not delete"
        )
    found = await find_topic(servers, await servers.masters(), name)
    if not found and name not in await topic_names(servers):
        return await complain_of_no_topic(servers, name)
    contents = [
        content
        for address, topic in found.items()
        for content in await queue_contents(
            servers, address, name, range(max(topic.read_queue_nums, topic.write_queue_nums))
        )
    ]
    is_done = yes and not dry_run
    outcomes: dict[str, str | None] = dict.fromkeys(servers.name_servers)
    if is_done:
        for address in found:
            await servers.ask(address, DeleteTopic(topic=name))
        outcomes = await Topics(servers).delete_routes(name)
    names = await broker_names(servers)
    changes = [
        Change(names.get(at, at), f"topic {name}", _settings(topic), None)
        for at, topic in found.items()
    ]
    changes += [
        Change(at, f"route of {name}", "there", None, fault) for at, fault in outcomes.items()
    ]
    show_changes(
        output,
        changes,
        dry_run=not is_done,
        more={"topic": name, "queues": [_content_row(content) for content in contents]},
        before=_content_parts("deleted:" if is_done else "to be deleted:", contents),
    )
    if not (yes or dry_run):
        messages = sum(content.messages for content in contents)
        where = ", ".join(found) or "no broker, but name servers know a route"
        complain(f"{name} with {counted(messages, 'message')} is on {where}: --yes deletes it")
        return WRONG_USAGE
    failures = [failure for failure in outcomes.values() if failure is not None]
    for failure in failures:
        complain(f"a name server still has the route of {name}: {failure}; delete it once more")
    return INCOMPLETE if failures else 0


async def complain_of_no_topic(servers: Servers, name: str) -> int:
    """Warn that a topic does not exist. Return the exit code.

    The warning suggests a similar name, because the name of the topic may be mistyped. Raises
    ClientError if there is no broker either.
    """
    complain(str(await unknown_topic(servers, name)))
    return NOT_FOUND


def _content_parts(heading: str, contents: Sequence[QueueContent]) -> list[str | Table]:
    """Return the table of the messages in queues, with its heading."""
    if not contents:
        return []
    rows = []
    for content in contents:
        behind = [
            f"{one.group} {one.behind} behind ({counted(one.consumers, 'consumer')})"
            for one in content.groups
        ]
        rows.append({**_content_row(content), "groups": behind or None})
    return [heading, Table(CONTENT, rows), ""]


def _content_row(content: QueueContent) -> dict[str, Any]:
    return {
        "broker": content.broker,
        "queue": content.queue_id,
        "messages": content.messages,
        "groups": [
            {"group": one.group, "behind": one.behind, "consumers": one.consumers}
            for one in content.groups
        ],
    }


@client_command(command, "route", watch=True)
@topic_subject("name")
async def show_route(servers: Servers, name: str, output: str) -> int:
    """Show which brokers have a topic, and with how many queues. Exit code 3 if none has it."""
    asked = requests.GetRouteInfo(topic=name, accept_standard_json_only=True)
    try:
        rows = _route_rows(await servers.ask_name_servers(asked))
    except ResponseError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return await complain_of_no_topic(servers, name)
    cells = [
        {**row, "addresses": [f"{number}={at}" for number, at in row["addresses"].items()]}
        for row in rows
    ]
    show(output, {"topic": name, "brokers": rows}, [Table(ROUTE, cells)])
    return 0


def _route_rows(route: requests.TopicRouteData) -> list[dict[str, Any]]:
    addresses = {broker.broker_name: broker.broker_addrs for broker in route.broker_datas}
    return [
        {
            "broker": queue.broker_name,
            "read_queues": queue.read_queue_nums,
            "write_queues": queue.write_queue_nums,
            "perm": queue.perm,
            "addresses": {
                str(key): address
                for key, address in sorted(addresses.get(queue.broker_name, {}).items())
            },
        }
        for queue in sorted(route.queue_datas, key=lambda queue: queue.broker_name or "")
    ]
