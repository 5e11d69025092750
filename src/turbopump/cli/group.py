"""`turbopump group list|show|create|alter|delete`: consumer groups as brokers keep them.

A group has settings, offsets and lag on each broker. Running members are shown here, and asked by
`turbopump consumer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import click
import msgspec

from turbopump.admin.cluster import Servers
from turbopump.admin.group_lag import GroupLag
from turbopump.admin.groups import GroupMembers, Groups, Member
from turbopump.admin.offsets import Offsets
from turbopump.admin.topics import Topics
from turbopump.cli.changes import Change, dry_run_option, failure_of, show_changes
from turbopump.cli.entry import EXISTS, NOT_FOUND, WRONG_USAGE, command_group, complain
from turbopump.cli.frame import client_command, show
from turbopump.cli.names import broker_names, broker_option, group_subject
from turbopump.cli.tables import TIME, VERSION, Column, Table
from turbopump.cli.values import checked_pairs
from turbopump.errors import RouteNotFoundError
from turbopump.message.rules import DLQ_PREFIX, RETRY_PREFIX, did_you_mean
from turbopump.plural import counted
from turbopump.protocol.requests.groups import SubscriptionGroupConfig

GROUPS: Final = (Column("group"), Column("consumers"), Column("behind", unit="messages"))
SETTINGS: Final = (
    Column("broker"),
    Column("enabled"),
    Column("ordered"),
    Column("broadcast"),
    Column("max_retries", "retries"),
    Column("retry_queues"),
    Column("others", "other than the default"),
)
MEMBERS: Final = (
    Column("client_id", "consumer"),
    Column("address"),
    Column("language"),
    Column("version", unit=VERSION),
)
SUBSCRIPTIONS: Final = (Column("topic"), Column("kind"), Column("expression"))
QUEUES: Final = (
    Column("topic"),
    Column("broker"),
    Column("queue"),
    Column("offset"),
    Column("end"),
    Column("behind", unit="messages"),
    Column("behind_seconds", "behind", "s"),
    Column("last_timestamp", "last consumed", TIME),
)
_KEYS: Final = {
    "enabled": "consumeEnable",
    "ordered": "consumeMessageOrderly",
    "broadcast": "consumeBroadcastEnable",
    "max_retries": "retryMaxTimes",
    "retry_queues": "retryQueueNums",
}
"""Settings that have a column and an option of their own, with Apache's keys."""
command = command_group(
    "group", "Consumer groups: settings, members, lag. `turbopump consumer` asks running consumers."
)


@client_command(command, "list", short_help="Groups, their consumers, how far behind.", watch=True)
@click.option("--cluster", metavar="NAME", help="Only the groups of this cluster.")
@click.option("--all", "every", is_flag=True, help="Groups without consumers and offsets too.")
async def list_groups(servers: Servers, cluster: str | None, every: bool, output: str) -> None:
    """List the groups that have consumers or an offset anywhere, with the messages that they have
    not consumed."""
    facet = Groups(servers)
    rows = []
    for group in await facet.names(cluster, system=every):
        members = (await facet.members(group, cluster=cluster)).members
        lag = await Offsets(servers).show(group, cluster=cluster)
        if every or members or lag.queues:
            rows.append({"group": group, "consumers": len(members), "behind": lag.messages})
    show(output, {"groups": rows}, [Table(GROUPS, rows)])


@client_command(
    command, "show", short_help="Settings, members, queues and lag of a group.", watch=True
)
@group_subject()
@click.option("--cluster", metavar="NAME", help="Only on the brokers of this cluster.")
async def show_group(servers: Servers, group: str, cluster: str | None, output: str) -> int:
    """Show a consumer group: its settings on each broker, its members and subscriptions, and its
    lag in messages and seconds. Exit code 3 if the group does not exist."""
    facet = Groups(servers)
    settings = await facet.settings(group, cluster=cluster)
    found = await facet.members(group, cluster=cluster)
    lag = await facet.lag(group, cluster=cluster)
    if not (settings or found.members or lag.queues):
        return complain_of_no_group(group, await facet.names(system=True))
    names = await broker_names(servers)
    by_broker = [_settings_row(names.get(at, at), one) for at, one in settings.items()]
    members = [member_row(one) for one in found.members]
    subscriptions = subscription_rows(found)
    queues = _queue_rows(lag)
    answer = {
        "group": group,
        "settings": by_broker,
        "consume_type": found.consume_type,
        "message_model": found.message_model,
        "members": members,
        "subscriptions": subscriptions,
        "behind": lag.messages,
        "behind_seconds": lag.seconds,
        "queues": queues,
    }
    parts: list[str | Table] = [Table(SETTINGS, by_broker), ""]
    if members:
        parts += [Table(MEMBERS, members), "", Table(SUBSCRIPTIONS, subscriptions)]
    else:
        parts.append(f"the group {group} has no consumers now")
    if queues:
        parts += ["", Table(QUEUES, queues), _behind_line(lag)]
    if output == "csv":
        parts = [Table(QUEUES, queues)]
    show(output, answer, parts)
    return 0


def member_row(member: Member) -> dict[str, Any]:
    """Return the row of a group's member in JSON output."""
    row = msgspec.to_builtins(member)
    assert isinstance(row, dict)
    return row


def subscription_rows(found: GroupMembers) -> list[dict[str, Any]]:
    """Return the rows of a group's subscriptions in JSON output."""
    return [
        {"topic": topic, "kind": data.expression_type or "TAG", "expression": data.sub_string}
        for topic, data in sorted(found.subscriptions.items())
    ]


def _queue_rows(lag: GroupLag) -> list[dict[str, Any]]:
    """Return the rows of a group's queues in JSON output."""
    return [
        {
            "topic": one.topic,
            "broker": one.broker,
            "queue": one.queue_id,
            "offset": one.offset,
            "end": one.end,
            "behind": one.behind,
            "behind_seconds": None if one.delay_ms is None else one.delay_ms / 1000,
            "last_timestamp": one.last_consumed_ms or None,
        }
        for one in lag.queues
    ]


def _behind_line(lag: GroupLag) -> str:
    if lag.messages <= 0:
        return "nothing is behind"
    age = "" if lag.seconds is None else f", the oldest {lag.seconds:.1f} s old"
    return f"behind by {counted(lag.messages, 'message')} in all{age}"


def _settings_row(broker: str, settings: SubscriptionGroupConfig) -> dict[str, Any]:
    texts = _texts(settings)
    default = _texts(SubscriptionGroupConfig(group_name=settings.group_name))
    shown = _KEYS.values()
    return {
        "broker": broker,
        "enabled": settings.consume_enable,
        "ordered": settings.consume_message_orderly,
        "broadcast": settings.consume_broadcast_enable,
        "max_retries": settings.retry_max_times,
        "retry_queues": settings.retry_queue_nums,
        "others": [
            f"{key}={value}"
            for key, value in texts.items()
            if key not in shown and value != default[key]
        ],
    }


def _texts(settings: SubscriptionGroupConfig) -> dict[str, str]:
    """Return the settings of a group as texts, by Apache's keys."""
    found = msgspec.to_builtins(settings)
    return {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for key, value in found.items()
    }


def _group_options(function: Any) -> Any:
    for option in (
        broker_option("Only on this broker."),
        click.option(
            "--cluster",
            metavar="NAME",
            help="Only on the brokers of this cluster.  [default: on every broker]",
        ),
        click.option(
            "--set",
            "given",
            metavar="KEY=VALUE",
            multiple=True,
            callback=checked_pairs,
            help="Another setting by Apache's key, such as notifyConsumerIdsChangedEnable=false; "
            "more than once.",
        ),
        click.option("--retry-queues", type=click.IntRange(0), help="Queues of its retry topic."),
        click.option(
            "--max-retries",
            type=click.IntRange(-1),
            help="Deliveries after the first, until a message becomes a dead letter.",
        ),
        click.option("--broadcast/--no-broadcast", default=None, help="It may broadcast, or not."),
        click.option("--ordered/--unordered", default=None, help="Its pops are in order, or not."),
        click.option("--enabled/--disabled", default=None, help="It may consume, or not."),
    ):
        function = option(function)
    return function


def _wanted(given: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the wanted settings by Apache's keys. Raises UsageError for an unknown key or a value
    of another type."""
    wanted: dict[str, Any] = dict(given)
    for name, value in options.items():
        if value is None:
            continue
        if _KEYS[name] in given:
            raise click.UsageError(f"give --{name.replace('_', '-')} or --set {_KEYS[name]}")
        wanted[_KEYS[name]] = value
    return wanted


def _with(settings: SubscriptionGroupConfig, wanted: Mapping[str, Any]) -> SubscriptionGroupConfig:
    known = msgspec.to_builtins(settings)
    for key in wanted:
        if key not in known or key == "groupName":
            near = did_you_mean(key, sorted(known))
            raise click.UsageError(
                f"--set: a group has no setting {key}{near}; it has: {', '.join(sorted(known))}"
            )
    texts = {}
    for key, value in wanted.items():
        if isinstance(value, str) and value[:1] in ("{", "["):
            try:
                value = msgspec.json.decode(value)
            except msgspec.DecodeError as error:
                raise click.UsageError(f"--set {key}: {value!r} is no JSON: {error}") from None
        texts[key] = value
    try:
        return msgspec.convert(known | texts, SubscriptionGroupConfig, strict=False)
    except msgspec.ValidationError as error:
        raise click.UsageError(f"--set: {error}") from None


@client_command(command, "create", short_help="Create a group, or change nothing if it exists.")
@group_subject()
@_group_options
@dry_run_option
async def create_group(
    servers: Servers,
    group: str,
    given: dict[str, str],
    broker: str | None,
    cluster: str | None,
    dry_run: bool,
    output: str,
    **options: Any,
) -> int:
    """Create a consumer group. A consumer also creates its group, with the default settings, unless
    the broker has autoCreateSubscriptionGroup=false. An existing group is not changed: use
    `turbopump group alter`; exit code 4."""
    facet = Groups(servers)
    wanted = _with(SubscriptionGroupConfig(group_name=group), _wanted(given, options))
    existing = await facet.settings(group, broker=broker, cluster=cluster)
    if existing:
        names = await broker_names(servers)
        there = ", ".join(names.get(at, at) for at in existing)
        complain(f"the group {group} exists on {there}: turbopump group alter {group} changes it")
        return EXISTS
    return await _put(
        servers,
        dict.fromkeys(await servers.brokers_at(broker, cluster), wanted),
        {},
        dry_run,
        output,
    )


@client_command(command, "alter", short_help="Change the settings of a group.")
@group_subject()
@_group_options
@dry_run_option
async def alter_group(
    servers: Servers,
    group: str,
    given: dict[str, str],
    broker: str | None,
    cluster: str | None,
    dry_run: bool,
    output: str,
    **options: Any,
) -> int:
    """Change settings of an existing group; settings that are not given do not change. Exit code 3
    if the group does not exist."""
    wanted = _wanted(given, options)
    if not wanted:
        raise click.UsageError("give the settings to change, such as --max-retries 3")
    facet = Groups(servers)
    existing = await facet.settings(group, broker=broker, cluster=cluster)
    if not existing:
        return complain_of_no_group(group, await facet.names(system=True))
    new = {at: _with(settings, wanted) for at, settings in existing.items()}
    return await _put(servers, new, existing, dry_run, output)


async def _put(
    servers: Servers,
    wanted: Mapping[str, SubscriptionGroupConfig],
    existing: Mapping[str, SubscriptionGroupConfig],
    dry_run: bool,
    output: str,
) -> int:
    """Store the settings of a group on brokers, and show the changes. Return the exit code."""
    facet = Groups(servers)
    names = await broker_names(servers)
    changes: list[Change] = []
    for address, settings in wanted.items():
        old = _texts(existing[address]) if address in existing else {}
        differing = {key: value for key, value in _texts(settings).items() if old.get(key) != value}
        fault = None
        if differing and not dry_run:
            fault = await failure_of(facet.put(settings, broker=address))
        where = names.get(address, address)
        if not old:
            default = _texts(SubscriptionGroupConfig(group_name=settings.group_name))
            changes.append(Change(where, f"group {settings.group_name}", None, "created", fault))
            differing = {key: one for key, one in differing.items() if one != default[key]}
            old = default
        changes += [
            Change(where, key, old.get(key), value, fault) for key, value in differing.items()
        ]
    return show_changes(output, changes, dry_run=dry_run)


@client_command(command, "delete", short_help="Delete a group and its offsets.")
@group_subject()
@click.option("--yes", is_flag=True, help="Delete; without it, only list what would be deleted.")
@dry_run_option
@click.option("--keep-offsets", is_flag=True, help="Keep its offsets for a group of this name.")
@click.option("--topics", is_flag=True, help="Delete its retries and dead letters too.")
async def delete_group(
    servers: Servers,
    group: str,
    yes: bool,
    dry_run: bool,
    keep_offsets: bool,
    topics: bool,
    output: str,
) -> int:
    """Delete a consumer group on all brokers: its settings and its offsets. Exit code 1 if it has
    consumers, because they would create it again; 2 without `--yes`; 3 if it does not exist."""
    is_done = yes and not dry_run
    facet = Groups(servers)
    existing = await facet.settings(group)
    lag = await Offsets(servers).show(group)
    if not (existing or lag.queues):
        return complain_of_no_group(group, await facet.names(system=True))
    members = (await facet.members(group)).members
    if members:
        raise click.ClickException(
            f"the group {group} has {counted(len(members), 'consumer')}, which would create it "
            f"again: stop them first (turbopump group show {group} lists them)"
        )
    names = await broker_names(servers)
    changes: list[Change] = []
    for address in await servers.masters():
        where = names.get(address, address)
        fault = None
        if is_done:
            deletion = facet.delete(group, offsets=not keep_offsets, broker=address)
            fault = await failure_of(deletion)
        if address in existing:
            changes.append(Change(where, f"group {group}", "there", None, fault))
        offsets = sum(one.broker == where for one in lag.queues)
        if offsets and not keep_offsets:
            changes.append(Change(where, "offsets", counted(offsets, "queue"), None, fault))
    if topics:
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            changes += await _delete_topic(servers, prefix + group, is_done=is_done)
    code = show_changes(output, changes, dry_run=not is_done)
    if not (yes or dry_run):
        complain(f"the group {group} is not deleted: --yes deletes it")
        return WRONG_USAGE
    return code


async def _delete_topic(servers: Servers, topic: str, *, is_done: bool) -> list[Change]:
    """Delete a topic of a group, and return the changes."""
    try:
        queues = await Topics(servers).queues(topic)
    except RouteNotFoundError:
        return []
    fault = None
    if is_done:
        fault = await failure_of(Topics(servers).delete(topic))
    messages = {
        broker: sum(one.messages for one in queues if one.broker == broker)
        for broker in sorted({one.broker for one in queues})
    }
    return [
        Change(broker, f"topic {topic}", counted(number, "message"), None, fault)
        for broker, number in messages.items()
    ]


def complain_of_no_group(group: str, groups: Iterable[str]) -> int:
    """Warn that a group does not exist. Return the exit code.

    The warning suggests a similar name of ``groups``, because the name may be mistyped.
    """
    near = did_you_mean(group, set(groups) - {group})
    complain(
        f"no broker knows the group {group}{near}; turbopump group list --all shows the groups"
    )
    return NOT_FOUND
