"""Asking the servers of a cluster for a command: name servers, masters, and how an answer is shown.
It must not know what is asked."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import click

from turbopump.cli.serving import run_client
from turbopump.errors import RemotingError
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.cluster import ClusterInfo
from turbopump.protocol.bodies.route import MASTER_ID
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.namesrv import GetBrokerClusterInfo
from turbopump.remoting.client import RemotingClient

BodyT = TypeVar("BodyT")
NOT_FOUND: Final = 3
"""Exit code: what was asked for is not there."""


def with_client(work: Callable[[RemotingClient], Awaitable[None]]) -> None:
    """Run ``work`` with connections that are closed after it."""

    async def run() -> None:
        client = RemotingClient()
        try:
            await work(client)
        finally:
            await client.close()

    run_client(run())


async def ask_name_servers(
    client: RemotingClient, addresses: list[str], request: Request[None], body: type[BodyT]
) -> BodyT:
    """The answer of the first name server that can be reached. Raises RemotingError."""
    failures: list[str] = []
    for address in addresses:
        try:
            answer = await client.exchange(address, request)
        except RemotingError as error:
            failures.append(str(error))
            continue
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RemotingError(
                f"{address} is no name server ({(answer.remark or '').strip()}); look at -n and "
                "NAMESRV_ADDR: is it a broker's address?"
            )
        if answer.code != ResponseCode.SUCCESS:
            raise RemotingError(
                answer.remark or f"the name server {address} answered with code {answer.code}"
            )
        return fastjson.decode(answer.body, body)
    raise RemotingError(
        f"no name server can be reached: {'; '.join(failures)}. "
        "Look at -n and NAMESRV_ADDR, and whether it runs (`turbopump dev` starts one)"
    )


async def masters(
    client: RemotingClient, namesrv: list[str], cluster: str | None = None
) -> list[str]:
    """The masters' addresses, of one ``cluster`` or of all. Raises ClickException if there is
    none."""
    info = await ask_name_servers(client, namesrv, GetBrokerClusterInfo(), ClusterInfo)
    if cluster is not None:
        refuse_unknown_cluster(info, cluster)
    brokers = [
        broker
        for broker in info.broker_addr_table.values()
        if cluster is None or broker.cluster == cluster
    ]
    found = [
        broker.broker_addrs[MASTER_ID] for broker in brokers if MASTER_ID in broker.broker_addrs
    ]
    if not found:
        raise click.ClickException(
            "no broker is registered with the name server: start one with this address in its "
            "namesrvAddr"
        )
    return sorted(found)


def refuse_unknown_cluster(info: ClusterInfo, cluster: str) -> None:
    """Raise ClickException that names those there are."""
    if cluster not in info.cluster_addr_table:
        known = ", ".join(sorted(info.cluster_addr_table)) or "none"
        raise click.ClickException(f"there is no cluster {cluster}; the name server knows: {known}")


async def ask_each(
    client: RemotingClient,
    addresses: list[str],
    request: Request[Any],
    body: type[BodyT],
    *without: int,
) -> dict[str, BodyT]:
    """What each broker answers, by address; those that answer with a code of ``without`` have
    nothing to say. Raises RemotingError."""
    found: dict[str, BodyT] = {}
    for address in addresses:
        answer = await client.exchange(address, request)
        refuse_other_server(address, answer)
        if answer.code == ResponseCode.SUCCESS:
            found[address] = fastjson.decode(answer.body, body)
        elif answer.code not in without:
            raise RemotingError(f"broker {address}: {answer.remark or f'code {answer.code}'}")
    return found


def refuse_other_server(address: str, answer: Command) -> None:
    """Raise RemotingError if what answers does not know what brokers are asked."""
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise RemotingError(
            f"{address} does not know this request ({(answer.remark or '').strip()}): is it a "
            "name server's address, or an older broker?"
        )


def show(output: str, value: object, lines: list[str]) -> None:
    """One JSON value, or lines for people."""
    if output == "json":
        click.echo(json.dumps(value, ensure_ascii=False))
        return
    for line in lines:
        click.echo(line)
