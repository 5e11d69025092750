"""Probes of one server, without HTTP: `turbopump broker ping`, `namesrv ping`, `controller ping`.

A container runs such a command every few seconds, so its start is cheap: one blocking connection,
and no event loop. Any answer counts, also a refusal.
"""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import click

from turbopump.auth.signatures import RequestSigner
from turbopump.cli.frame import credentials_option, output_option, show, tls_options, who_and_how
from turbopump.cli.log_output import log_options
from turbopump.cli.tables import Column, Table
from turbopump.cli.values import NumberOption, checked_address
from turbopump.message.rules import DEFAULT_TOPIC
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests.controller import GetControllerMetadata
from turbopump.protocol.requests.namesrv import GetRouteInfo
from turbopump.protocol.requests.offsets import GetMaxOffset
from turbopump.remoting.blocking_connection import BlockingConnection

Command = Callable[..., None]
ANSWER: Final = (Column("server"), Column("answer_ms"), Column("refusal"))


def _options(port: int) -> Callable[[Command], Command]:
    def decorate(function: Command) -> Command:
        function = credentials_option(tls_options(log_options("warning", plain=True)(function)))
        function = output_option()(function)
        function = click.option(
            "--timeout",
            type=NumberOption(0),
            default=3.0,
            help="Maximum time to wait for the answer, in seconds.",
        )(function)
        return click.argument(
            "address", metavar="[HOST:PORT]", default=f"127.0.0.1:{port}", callback=checked_address
        )(function)

    return decorate


@click.command("ping", short_help="Check that a broker answers.")
@_options(10911)
def broker(address: str, timeout: float, output: str) -> None:
    """Check that a broker answers. HOST:PORT is its address, by default 127.0.0.1:10911.

    Exit code 0: it answers. 1: it does not. With access control, a user's credentials keep the
    broker from logging a refusal each time.
    """
    # The default topic, for which every user may ask, also if the broker does not have it.
    _ping("broker", address, GetMaxOffset(topic=DEFAULT_TOPIC, queue_id=0), timeout, output)


@click.command("ping", short_help="Check that a name server answers.")
@_options(9876)
def namesrv(address: str, timeout: float, output: str) -> None:
    """Check that a name server answers. HOST:PORT is its address, by default 127.0.0.1:9876.

    Exit code 0: it answers. 1: it does not. With access control, a user's credentials keep the name
    server from logging a refusal each time.
    """
    _ping("name server", address, GetRouteInfo(topic=DEFAULT_TOPIC), timeout, output)


@click.command("ping", short_help="Check that a controller answers.")
@_options(9878)
def controller(address: str, timeout: float, output: str) -> None:
    """Check that a controller answers. HOST:PORT is its address, by default 127.0.0.1:9878.

    Exit code 0: it answers. 1: it does not. With access control, a user's credentials keep the
    controller from logging a refusal each time.
    """
    _ping("controller", address, GetControllerMetadata(), timeout, output)


def _ping(kind: str, address: str, request: Request[Any], timeout: float, output: str) -> None:
    given = who_and_how()
    credentials = given["credentials"]
    context = None
    if given["tls"]:
        from turbopump.remoting.tls import ClientContext

        assert not isinstance(given["tls"], bool)
        context = ClientContext(given["tls"])
    began = time.monotonic()
    connection = BlockingConnection(
        address,
        timeout=timeout,
        signer=None if credentials is None else RequestSigner(credentials),
        tls=context,
    )
    with closing(connection):
        left = max(timeout - (time.monotonic() - began), 0.001)
        (answer,) = connection.exchange_all([request], timeout=left)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise click.ClickException(f"{address} answers, but it is no {kind}")
    ms = (time.monotonic() - began) * 1000
    refusal = answer.remark if answer.code == ResponseCode.NO_PERMISSION else None
    row = {"server": address, "answer_ms": ms, "refusal": refusal}
    line = f"{address} answers after {ms:.0f} ms"
    parts: list[str | Table] = [line if refusal is None else f"{line}, with a refusal: {refusal}"]
    if output == "csv":
        parts = [Table(ANSWER, [row])]
    show(output, row, parts)
