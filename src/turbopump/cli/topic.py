"""`turbopump topic list|create|alter|delete|route`: topics of a cluster and their brokers.

Before a change, the command shows which messages the change would hide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click
from msgspec import structs

from turbopump.admin.cluster import Servers, refuse_unknown_cluster
from turbopump.admin.kv import Kv
from turbopump.admin.topic_contents import QueueContent, queue_contents, unread_ids
from turbopump.admin.topics import (
    delete_topic_on_broker,
    delete_topic_route,
    find_topic,
    put_topic,
    topic_names,
    users_topics,
)
from turbopump.cli.entry import command_group, complain
from turbopump.cli.frame import INCOMPLETE, NOT_FOUND, client_command, show
from turbopump.cli.group import broker_names
from turbopump.cli.topic_queues import order, show_topic
from turbopump.cli.values import checked_address, checked_pairs, checked_topic
from turbopump.errors import ResponseError
from turbopump.message.rules import did_you_mean, is_system_topic
from turbopump.plural import counted
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests import namesrv as requests
from turbopump.protocol.requests.topics import QUEUES_MAX, TopicConfig

ASKED_WRONGLY: Final = 2
"""Exit code if `--yes` is missing."""
T = TypeVar("T", bound=Callable[..., Any])

command = command_group("topic", "List, show, create, change and delete topics.")
command.add_command(show_topic)
command.add_command(order)


@client_command(command, "list")
@click.option("--cluster", metavar="NAME", help="Only the topics of this cluster.")
@click.option("--all", "every", is_flag=True, help="RocketMQ's own topics too.")
async def list_topics(servers: Servers, cluster: str | None, every: bool, output: str) -> None:
    """List your topics, one on each line."""
    names = await topic_names(servers, cluster)
    info = await servers.brokers()
    if cluster is not None and not names:
        refuse_unknown_cluster(info, cluster)
    topics = names if every else users_topics(names, info)
    show(output, {"topics": topics}, topics)
    if names and not topics:
        complain(f"no topics except {len(names)} of RocketMQ itself, which --all shows")


def _where(command: T) -> T:
    broker = click.option(
        "--broker", metavar="ADDR", callback=checked_address, help="Only on this broker."
    )
    cluster = click.option(
        "--cluster",
        metavar="NAME",
        help="Only on the brokers of this cluster.  [default: on every broker]",
    )
    return broker(cluster(command))


async def _addresses(servers: Servers, broker: str | None, cluster: str | None) -> list[str]:
    return [broker] if broker is not None else await servers.masters(cluster)


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
@click.argument("name", callback=checked_topic)
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
    output: str,
) -> None:
    """Create a topic. An existing topic is not changed: use `turbopump topic alter`."""
    addresses = await _addresses(servers, broker, cluster)
    existing = await find_topic(servers, addresses, name)
    if existing and not if_not_exists:
        there = ", ".join(f"{_settings(topic)} on {at}" for at, topic in existing.items())
        raise click.ClickException(
            f"the topic {name} exists: {there}. `turbopump topic alter {name}` changes "
            "it; --if-not-exists leaves it unchanged, and creates it where it is missing"
        )
    made = [address for address in addresses if address not in existing]
    wanted = TopicConfig(
        topic_name=name,
        read_queue_nums=queues if read_queues is None else read_queues,
        write_queue_nums=queues if write_queues is None else write_queues,
        perm=perm,
        order=ordered,
    )
    for address in made:
        await put_topic(servers, address, wanted, attributes)
    if ordered:
        names = await broker_names(servers)
        given = {names[at]: wanted.write_queue_nums for at in addresses if at in names}
        await Kv(servers).set_ordered_queues(name, given, keep_others=True)
    lines = [f"created {name} on {address}: {_settings(wanted)}" for address in made]
    lines += [f"exists  {name} on {address}: {_settings(one)}" for address, one in existing.items()]
    show(output, {"topic": name, "brokers": made, "existing": list(existing)}, lines)


def _settings(topic: TopicConfig) -> str:
    read, write = topic.read_queue_nums, topic.write_queue_nums
    queues = counted(read, "queue") if read == write else f"{read} queues to read, {write} to write"
    return f"{queues}, perm {topic.perm}"


@client_command(command, "alter", short_help="Change a topic, and warn of hidden messages.")
@click.argument("name", callback=checked_topic)
@click.option("--queues", type=click.IntRange(1, QUEUES_MAX), help="Queues on each broker.")
@click.option("--read-queues", type=click.IntRange(0, QUEUES_MAX), help="Number of queues to read.")
@click.option(
    "--write-queues", type=click.IntRange(0, QUEUES_MAX), help="Number of queues to write."
)
@click.option("--perm", type=click.IntRange(0, 7), help="4 read + 2 write.")
@click.option("--yes", is_flag=True, help="Allow a change that hides messages.")
@_where
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
    changes = {key: value for key, value in given.items() if value is not None}
    if not changes:
        raise click.UsageError("give --queues, --read-queues, --write-queues or --perm")
    found = await find_topic(servers, await _addresses(servers, broker, cluster), name)
    if not found:
        return await _complain_of_no_topic(servers, name)
    wanted = {address: structs.replace(topic, **changes) for address, topic in found.items()}
    hidden = [
        content
        for address, topic in found.items()
        for content in await queue_contents(
            servers, address, name, unread_ids(topic, wanted[address])
        )
    ]
    messages = sum(content.messages for content in hidden)
    done = yes or not messages
    if done:
        for address, topic in wanted.items():
            if topic != found[address]:
                await put_topic(servers, address, topic)
    lines = [f"no longer read: {line}" for line in _content_lines(hidden)]
    lines += [
        f"{'altered' if done else 'not altered:'} {name} on {address}: {_settings(found[address])} "
        f"-> {_settings(topic)}"
        for address, topic in wanted.items()
    ]
    answer = {
        "topic": name,
        "altered": done,
        "brokers": list(wanted),
        "unread": [_content_row(content) for content in hidden],
    }
    show(output, answer, lines)
    if done:
        return 0
    complain(
        f"{counted(messages, 'message')} of {name} could no longer be read: --yes makes "
        "the change anyway. To lose none, lower --write-queues first, and --read-queues "
        "when `turbopump offset show GROUP` shows no lag"
    )
    return ASKED_WRONGLY


@client_command(command, "delete", short_help="Delete a topic, with its queues and offsets.")
@click.argument("name", callback=checked_topic)
@click.option("--yes", is_flag=True, help="Delete; without it, only list what would be deleted.")
async def delete_topic(servers: Servers, name: str, yes: bool, output: str) -> int:
    """Delete a topic on all brokers and name servers: its settings, its queues, and the offsets of
    groups in it. Show what is deleted."""
    if is_system_topic(name):
        raise click.ClickException(
            f"{name} is a topic of RocketMQ's own, which brokers do not delete"
        )
    found = await find_topic(servers, await servers.masters(), name)
    if not found and name not in await topic_names(servers):
        return await _complain_of_no_topic(servers, name)
    contents = [
        content
        for address, topic in found.items()
        for content in await queue_contents(
            servers, address, name, range(max(topic.read_queue_nums, topic.write_queue_nums))
        )
    ]
    outcomes: dict[str, str | None] = {}
    if yes:
        for address in found:
            await delete_topic_on_broker(servers, address, name)
        outcomes = await delete_topic_route(servers, name)
    lines = [f"{'gone' if yes else 'would go'}: {line}" for line in _content_lines(contents)]
    lines += [f"deleted {name} on {address}" for address in found if yes]
    lines += [f"deleted the route on {at}" for at, failure in outcomes.items() if failure is None]
    answer = {
        "topic": name,
        "deleted": yes,
        "brokers": list(found),
        "name_servers": [at for at, failure in outcomes.items() if failure is None],
        "queues": [_content_row(content) for content in contents],
    }
    show(output, answer, lines)
    if not yes:
        messages = sum(content.messages for content in contents)
        where = ", ".join(found) or "no broker, but name servers know a route"
        complain(f"{name} with {counted(messages, 'message')} is on {where}: --yes deletes it")
        return ASKED_WRONGLY
    failures = [failure for failure in outcomes.values() if failure is not None]
    for failure in failures:
        complain(f"a name server still has the route of {name}: {failure}; delete it once more")
    return INCOMPLETE if failures else 0


async def _complain_of_no_topic(servers: Servers, name: str) -> int:
    """Warn that a topic does not exist. Return the exit code.

    The warning suggests a similar name, because the name of the topic may be mistyped. Raises
    ClientError if there is no broker either.
    """
    await servers.masters()
    near = did_you_mean(name, users_topics(await topic_names(servers), await servers.brokers()))
    complain(f"unknown topic {name}{near}; turbopump topic list shows all")
    return NOT_FOUND


def _content_lines(contents: Sequence[QueueContent]) -> list[str]:
    lines = []
    for content in contents:
        behind = ", ".join(
            f"{one.group} {one.behind} behind ({counted(one.consumers, 'consumer')})"
            for one in content.groups
        )
        where = f"{content.broker}:{content.queue_id}"
        lines.append(f"{where}  {counted(content.messages, 'message')}  {behind}".rstrip())
    return lines


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


@client_command(command, "route")
@click.argument("name")
async def show_route(servers: Servers, name: str, output: str) -> int:
    """Show which brokers have a topic, and with how many queues. Exit code 3 if none has it."""
    asked = requests.GetRouteInfo(topic=name, accept_standard_json_only=True)
    try:
        rows = _route_rows(await servers.ask_name_servers(asked))
    except ResponseError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return await _complain_of_no_topic(servers, name)
    lines = [
        f"{row['broker']}  read {row['read_queues']}  write {row['write_queues']}  perm "
        f"{row['perm']}  " + "  ".join(f"{key}={at}" for key, at in row["addresses"].items())
        for row in rows
    ]
    show(output, {"topic": name, "brokers": rows}, lines)
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
