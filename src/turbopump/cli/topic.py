"""`turbopump topic list|create|route`: what a cluster's topics are and where they live."""

from typing import Any

import click

from turbopump.cli.cluster import (
    Servers,
    checked_address,
    checked_topic,
    client_command,
    refuse_other_server,
    refuse_unknown_cluster,
    show,
)
from turbopump.cli.entry import command_group
from turbopump.errors import RemotingError
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests import namesrv as requests
from turbopump.protocol.requests.topics import CreateTopic, TopicList

command = command_group("topic", "List, create and find topics.")


@client_command(command, "list")
@click.option("--cluster", metavar="NAME", help="Only the topics of this cluster.")
async def list_topics(servers: Servers, cluster: str | None, output: str) -> None:
    """List topics, one a line."""
    asked: Request[None] = (
        requests.GetAllTopicList()
        if cluster is None
        else requests.GetTopicsByCluster(cluster=cluster)
    )
    topics = sorted((await servers.ask_name_servers(asked, TopicList)).topic_list)
    if cluster is not None and not topics:
        info = await servers.ask_name_servers(requests.GetBrokerClusterInfo(), requests.ClusterInfo)
        refuse_unknown_cluster(info, cluster)
    show(output, {"topics": topics}, topics)


@client_command(command, "create")
@click.argument("name", callback=checked_topic)
@click.option("--queues", type=click.IntRange(1, 65535), default=8, help="Queues on each broker.")
@click.option("--perm", type=click.IntRange(0, 7), default=6, help="4 read + 2 write.")
@click.option(
    "--broker", metavar="ADDR", callback=checked_address, help="Create it on this broker alone."
)
@click.option(
    "--cluster",
    metavar="NAME",
    help="Create it on the brokers of this cluster.  [default: on every broker]",
)
async def create_topic(
    servers: Servers,
    name: str,
    queues: int,
    perm: int,
    broker: str | None,
    cluster: str | None,
    output: str,
) -> None:
    """Create a topic, or change the one that exists."""
    wanted = CreateTopic(topic=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
    addresses = [broker] if broker is not None else await servers.masters(cluster)
    for address in addresses:
        answer = await servers.exchange(address, wanted)
        refuse_other_server(address, answer)
        if answer.code != ResponseCode.SUCCESS:
            raise RemotingError(
                f"{address} does not create {name}: {answer.remark or f'code {answer.code}'}"
            )
    lines = [f"created {name} on {address}" for address in addresses]
    show(output, {"topic": name, "brokers": addresses}, lines)


@client_command(command, "route")
@click.argument("name")
async def show_route(servers: Servers, name: str, output: str) -> None:
    """Show which brokers have a topic, with how many queues."""
    asked = requests.GetRouteInfo(topic=name, accept_standard_json_only=True)
    rows = _route_rows(await servers.ask_name_servers(asked, requests.TopicRouteData))
    lines = [
        f"{row['broker']}  read {row['read_queues']}  write {row['write_queues']}  perm "
        f"{row['perm']}  " + "  ".join(f"{key}={at}" for key, at in row["addresses"].items())
        for row in rows
    ]
    show(output, {"topic": name, "brokers": rows}, lines)


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
