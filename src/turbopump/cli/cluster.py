"""Asking the servers of a cluster for a command: name servers, masters, and how an answer is shown.
It must not know what is asked."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Iterable
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import click

from turbopump.cli.serving import run_client
from turbopump.config.addresses import parse_address, parse_addresses
from turbopump.errors import ConfigError, RemotingError
from turbopump.message.rules import topic_fault
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.namesrv import MASTER_ID, ClusterInfo, GetBrokerClusterInfo
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


# --- The option `-n`: where a client command finds its name servers.
#
# Its one rule: the option, else the variable NAMESRV_ADDR, else the address that `turbopump dev` has.
# It must not connect.


def _parse(_context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
    addresses = parse_addresses(text, what="name server address")
    if not addresses:
        raise ConfigError("the list of name servers is empty: HOST:PORT;HOST:PORT is expected")
    return addresses


name_server_option = click.option(
    "-n",
    "--namesrv",
    "namesrv",
    metavar="ADDRS",
    envvar="NAMESRV_ADDR",
    show_envvar=True,
    default="127.0.0.1:9876",
    show_default=True,
    callback=_parse,
    help="Name servers, HOST:PORT;HOST:PORT.",
)


# --- Names and numbers of the command line: what is checked before anything else happens, and what may
# have been meant.


def checked_topic(_context: click.Context, _parameter: click.Parameter, topic: str) -> str:
    """A topic whose name may be. Raises BadParameter."""
    fault = topic_fault(topic)
    if fault is not None:
        raise click.BadParameter(fault)
    return topic


def checked_address(
    _context: click.Context, _parameter: click.Parameter, address: str | None
) -> str | None:
    """HOST:PORT. Raises BadParameter."""
    if address is None:
        return None
    try:
        parse_address(address)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return address


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``" (did you mean orders?)"`` if a known name is near (case does not matter), else ``""``."""
    spelled = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), spelled, n=1, cutoff=0.6)
    return f" (did you mean {spelled[near[0]]}?)" if near else ""


def checked_number(
    _context: click.Context, _parameter: click.Parameter, number: float | None
) -> float | None:
    """Not `nan`, which is in every range of click. Raises BadParameter."""
    if number is not None and math.isnan(number):
        raise click.BadParameter("nan is no number")
    return number
