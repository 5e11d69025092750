"""`turbopump consumer list|show|status`: consumer groups, who is in them, how far they are, and how
they do."""

from typing import Any

import click

from turbopump.cli.cluster import NOT_FOUND, ask_each, masters, show, with_client
from turbopump.cli.consumer_status import consumer_status, status_lines
from turbopump.cli.log_output import log_options, start_log
from turbopump.cli.name_servers import name_server_option
from turbopump.cli.names import did_you_mean
from turbopump.cli.offset import places
from turbopump.cli.topic import output_option
from turbopump.protocol.bodies.connections import ConsumerConnection
from turbopump.protocol.bodies.groups import SubscriptionGroupWrapper
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.consumers import GetConsumerConnectionList
from turbopump.protocol.requests.groups import GetAllGroups
from turbopump.remoting.client import RemotingClient


@click.group(name="consumer", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """List consumer groups, and look at one."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


@command.command(name="list", short_help="Groups, how many consumers they have, how far behind.")
@name_server_option
@output_option
@log_options("warning")
def list_groups(namesrv: list[str], output: str, log_level: str, log_file: str | None) -> None:
    """List the groups that have consumers or a place anywhere: how many consumers, and how far
    behind."""
    start_log(log_level, log_file)

    async def work(client: RemotingClient) -> None:
        addresses = await masters(client, namesrv)
        rows = []
        for group in await _groups(client, addresses):
            clients = {
                row["client_id"] for row in (await _group(client, addresses, group))["clients"]
            }
            queues = await places(client, addresses, group)
            if clients or queues:
                rows.append(
                    {
                        "group": group,
                        "consumers": len(clients),
                        "behind": sum(row["behind"] for row in queues),
                    }
                )
        lines = [
            f"{row['group']}  consumers {row['consumers']}  behind {row['behind']}" for row in rows
        ]
        show(output, {"groups": rows}, lines)

    with_client(work)


@command.command(name="show", short_help="Who is in a group, what it subscribes, how far behind.")
@click.argument("group")
@name_server_option
@output_option
@log_options("warning")
def show_group(
    group: str, namesrv: list[str], output: str, log_level: str, log_file: str | None
) -> None:
    """Show the consumers of a group, what they subscribe, and how far behind they are. Exit code 3
    if there is nothing of it."""
    start_log(log_level, log_file)

    async def work(client: RemotingClient) -> None:
        addresses = await masters(client, namesrv)
        found = await _group(client, addresses, group)
        queues = await places(client, addresses, group)
        behind = sum(row["behind"] for row in queues)
        lines = [
            *(
                f"{row['client_id']}  {row['address']}  {row['language']}  {row['version']}"
                for row in found["clients"]
            ),
            *(
                f"subscribes {row['topic']}  {row['kind']}  {row['expression']}"
                for row in found["subscriptions"]
            ),
            f"behind by {behind} in all",
        ]
        nothing = not queues and not found["clients"]
        show(output, {"group": group, **found, "behind": behind}, [] if nothing else lines)
        if nothing:
            what = (
                f"the group {group} has no consumers and no place in any topic; turbopump "
                "consumer list shows the groups"
            )
            click.echo(f"turbopump: {what}", err=True)
            raise SystemExit(NOT_FOUND)

    with_client(work)


@command.command(name="status", short_help="Ask every consumer of a group how it does.")
@click.argument("group")
@name_server_option
@output_option
@log_options("warning")
def show_status(
    group: str, namesrv: list[str], output: str, log_level: str, log_file: str | None
) -> None:
    """Ask every consumer of a group how it does, and whether they get along. Exit code 1 if they do
    not, or one does not answer; 3 if no broker knows the group."""
    start_log(log_level, log_file)

    async def work(client: RemotingClient) -> None:
        addresses = await masters(client, namesrv)
        status = await consumer_status(client, addresses, group)
        groups = [group] if status["clients"] else await _groups(client, addresses)
        show(output, status, list(status_lines(status)) if group in groups else [])
        if group not in groups:
            what = (
                f"no broker knows the group {group}{did_you_mean(group, groups)}; look at its "
                "name (turbopump consumer list) and at -n"
            )
            click.echo(
                f"turbopump: {what}: a new group is there when its first consumer has started",
                err=True,
            )
            raise SystemExit(NOT_FOUND)
        if status["conflicts"] or any(row["fault"] for row in status["clients"]):
            raise SystemExit(1)

    with_client(work)


async def _groups(client: RemotingClient, addresses: list[str]) -> list[str]:
    """The names of those that some broker knows, in order."""
    tables = await ask_each(client, addresses, GetAllGroups(), SubscriptionGroupWrapper)
    return sorted({name for table in tables.values() for name in table.subscription_group_table})


async def _group(client: RemotingClient, addresses: list[str], group: str) -> dict[str, Any]:
    """The clients of a group, each once, and its subscriptions."""
    asked = GetConsumerConnectionList(consumer_group=group)
    answers = await ask_each(
        client, addresses, asked, ConsumerConnection, ResponseCode.CONSUMER_NOT_ONLINE
    )
    clients = {one.client_id: one for body in answers.values() for one in body.connection_set}
    subscriptions = {
        topic: data for body in answers.values() for topic, data in body.subscription_table.items()
    }
    first = next(iter(answers.values()), ConsumerConnection())
    return {
        "consume_type": first.consume_type,
        "message_model": first.message_model,
        "clients": [
            {
                "client_id": client_id,
                "address": one.client_addr,
                "language": one.language.name if one.language is not None else None,
                "version": one.version,
            }
            for client_id, one in sorted(clients.items(), key=lambda item: item[0] or "")
        ],
        "subscriptions": [
            {"topic": topic, "kind": data.expression_type or "TAG", "expression": data.sub_string}
            for topic, data in sorted(subscriptions.items())
        ],
    }
