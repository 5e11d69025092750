"""`turbopump topic list|create|route`: what a cluster's topics are and where they live."""

from typing import Any

import click

from turbopump.cli.cluster import (
    ask_name_servers,
    checked_address,
    checked_topic,
    masters,
    name_server_option,
    refuse_other_server,
    refuse_unknown_cluster,
    show,
    with_client,
)
from turbopump.cli.serving import log_options, start_log
from turbopump.errors import RemotingError
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests.namesrv import (
    ClusterInfo,
    GetAllTopicList,
    GetBrokerClusterInfo,
    GetRouteInfo,
    GetTopicsByCluster,
    TopicRouteData,
)
from turbopump.protocol.requests.topics import CreateTopic, TopicList
from turbopump.remoting.client import RemotingClient

output_option = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Form of the answer.",
)


@click.group(name="topic", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """List, create and find topics."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


@command.command(name="list")
@name_server_option
@click.option("--cluster", metavar="NAME", help="Only the topics of this cluster.")
@output_option
@log_options("warning")
def list_topics(
    namesrv: list[str], cluster: str | None, output: str, log_level: str, log_file: str | None
) -> None:
    """List topics, one a line."""
    start_log(log_level, log_file)
    asked: Request[None] = (
        GetAllTopicList() if cluster is None else GetTopicsByCluster(cluster=cluster)
    )

    async def work(client: RemotingClient) -> None:
        topics = sorted((await ask_name_servers(client, namesrv, asked, TopicList)).topic_list)
        if cluster is not None and not topics:
            refuse_unknown_cluster(
                await ask_name_servers(client, namesrv, GetBrokerClusterInfo(), ClusterInfo),
                cluster,
            )
        show(output, {"topics": topics}, topics)

    with_client(work)


@command.command(name="create")
@click.argument("name", callback=checked_topic)
@name_server_option
@click.option(
    "--queues",
    type=click.IntRange(1, 65535),
    default=8,
    show_default=True,
    help="Queues on each broker.",
)
@click.option(
    "--perm", type=click.IntRange(0, 7), default=6, show_default=True, help="4 read + 2 write."
)
@click.option(
    "--broker", metavar="ADDR", callback=checked_address, help="Create it on this broker alone."
)
@click.option(
    "--cluster",
    metavar="NAME",
    help="Create it on the brokers of this cluster.  [default: on every broker]",
)
@output_option
@log_options("warning")
def create_topic(
    name: str,
    namesrv: list[str],
    queues: int,
    perm: int,
    broker: str | None,
    cluster: str | None,
    output: str,
    log_level: str,
    log_file: str | None,
) -> None:
    """Create a topic, or change the one that exists."""
    start_log(log_level, log_file)
    wanted = CreateTopic(topic=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)

    async def work(client: RemotingClient) -> None:
        addresses = [broker] if broker is not None else await masters(client, namesrv, cluster)
        for address in addresses:
            answer = await client.exchange(address, wanted)
            refuse_other_server(address, answer)
            if answer.code != ResponseCode.SUCCESS:
                raise RemotingError(
                    f"{address} does not create {name}: {answer.remark or f'code {answer.code}'}"
                )
        show(
            output,
            {"topic": name, "brokers": addresses},
            [f"created {name} on {address}" for address in addresses],
        )

    with_client(work)


@command.command(name="route")
@click.argument("name")
@name_server_option
@output_option
@log_options("warning")
def show_route(
    name: str, namesrv: list[str], output: str, log_level: str, log_file: str | None
) -> None:
    """Show which brokers have a topic, with how many queues."""
    start_log(log_level, log_file)

    async def work(client: RemotingClient) -> None:
        asked = GetRouteInfo(topic=name, accept_standard_json_only=True)
        route = await ask_name_servers(client, namesrv, asked, TopicRouteData)
        rows = _route_rows(route)
        lines = [
            f"{row['broker']}  read {row['read_queues']}  write {row['write_queues']}  perm "
            f"{row['perm']}  "
            + "  ".join(f"{key}={address}" for key, address in row["addresses"].items())
            for row in rows
        ]
        show(output, {"topic": name, "brokers": rows}, lines)

    with_client(work)


def _route_rows(route: TopicRouteData) -> list[dict[str, Any]]:
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
