"""Common frame of all client commands: shared options, connections, exit codes, output formats.

The shared options are `-n`, `--output`, `--credentials`, `--tls…` and `--log-…`. This module must
not know single commands.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any, Final, TypedDict, TypeVar

import click
import msgspec

from turbopump.auth.credentials import SECRET_FIELDS, credentials_of
from turbopump.auth.signatures import Credentials
from turbopump.cli.entry import complain
from turbopump.cli.log_output import log_options
from turbopump.cli.serving import run_client
from turbopump.config.addresses import parse_addresses
from turbopump.config.tls import ClientTls, tls_of
from turbopump.errors import ConfigError, MessageNotFoundError
from turbopump.message.rules import is_unicode

T = TypeVar("T")
INCOMPLETE: Final = 1
"""Exit code if a broker could not be asked, or the work could not be completed."""
NOT_FOUND: Final = 3
"""Exit code if the thing that was asked for does not exist."""


def show(output: str, value: object, lines: Iterable[str]) -> None:
    """Print an answer as JSON if ``output`` is ``json``. Otherwise print it as lines of text.

    Structs and dataclasses within ``value`` become JSON objects.
    """
    if output != "json":
        for line in lines:
            click.echo(line)
        return
    plain = msgspec.to_builtins(value)
    text = json.dumps(plain, ensure_ascii=False)
    if not is_unicode(text):  # a file name from elsewhere may contain bytes that are not UTF-8
        text = json.dumps(plain)
    click.echo(text.encode())  # JSON is UTF-8, whatever the terminal or pipe is


def time_text(ms: int) -> str:
    """Convert a time in ms since 1970 to readable text. A time out of range stays a number."""
    if not 0 < ms < 1 << 43:
        return str(ms)
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def hex_lines(data: bytes) -> Iterator[tuple[int, str]]:
    """For each 16 bytes of ``data``, yield their offset and a line in hexadecimal and in ASCII."""
    for at in range(0, len(data), 16):
        piece = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        yield at, f"{piece.hex(' '):47}  {text}"


def output_option(
    about: str = "Form of the answer.", default: str = "text"
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return a decorator that adds the option --output to a command.

    ``about`` is the help text of the option.
    """
    return click.option(
        "--output", type=click.Choice(["text", "json"]), default=default, help=about
    )


_LAST: Final = {
    name: place
    for place, name in enumerate(
        (
            "output",
            "credentials",
            "tls",
            "tls_trust",
            "tls_config",
            "log_level",
            "log_format",
            "log_file",
        ),
        1,
    )
}
"""Options that the help lists after a command's own options."""


def client_command(
    parent: click.Group | None,
    name: str,
    connect: Callable[..., AbstractAsyncContextManager[Any]] | None = None,
    *,
    short_help: str | None = None,
    has_output: bool = True,
) -> Callable[[Callable[..., Coroutine[Any, Any, int | None]]], click.Command]:
    """Return a decorator that turns a coroutine function into a command of the group ``parent``.

    The function gets the connections, ``output`` and its own options. It returns the exit code, or
    None for 0.

    - ``connect``: makes the connections from the name servers and ``who_and_how()``. The default
      is ``Servers``; ``without_connections`` passes only the name servers.
    - ``has_output``: add the option --output, if the function does not add its own.
    """

    def decorate(work: Callable[..., Coroutine[Any, Any, int | None]]) -> click.Command:
        async def connected(name_servers: list[str], given: dict[str, Any]) -> int:
            from turbopump.admin.cluster import Servers  # a probe does without

            async with (connect or Servers)(name_servers, **who_and_how()) as connections:
                try:
                    return await work(connections, **given) or 0
                except MessageNotFoundError as error:
                    complain(str(error))
                    return NOT_FOUND

        @log_options("warning", plain=True)
        @functools.wraps(work)
        def run(namesrv: list[str], **given: Any) -> None:
            click.get_current_context().exit(run_client(connected(namesrv, given)))

        if has_output:
            run = output_option()(run)
        command = click.command(name=name, short_help=short_help)(
            name_server_option(credentials_option(tls_options(run)))
        )
        command.params.sort(key=lambda parameter: _LAST.get(parameter.name or "", 0))
        if parent is not None:
            parent.add_command(command)
        return command

    return decorate


def without_connections(
    name_servers: list[str], **_given: object
) -> AbstractAsyncContextManager[list[str]]:
    """Pass only the name servers to a command. Use this if the command makes its own
    connections."""
    return nullcontext(name_servers)


class WhoAndHow(TypedDict):
    """Credentials and TLS settings for all connections of a command."""

    credentials: Credentials | None
    tls: ClientTls | bool


def who_and_how() -> WhoAndHow:
    """Return the credentials and the TLS settings of the running command.

    They come from `--credentials` and `--tls…`, or from the environment. Raises ConfigError if they
    are invalid.
    """
    given = click.get_current_context().find_root().meta.get(_WHO_AND_HOW, {})
    secrets = dict.fromkeys(SECRET_FIELDS) | {"credentials_file": given.get("credentials")}
    return {
        "credentials": credentials_of(secrets, os.environ),
        "tls": tls_of(given, os.environ) or False,
    }


_WHO_AND_HOW: Final = "turbopump.who_and_how"


def _keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
    if value not in (None, False):
        given = context.find_root().meta.setdefault(_WHO_AND_HOW, {})
        given[parameter.name] = "true" if value is True else value


credentials_option = click.option(
    "--credentials",
    metavar="FILE",
    expose_value=False,
    callback=_keep,
    help="Lines accessKey: NAME and secretKey: SECRET, as mqadmin's tools.yml; else "
    "TURBOPUMP_ACCESS_KEY and TURBOPUMP_SECRET_KEY.",
)


def tls_options(function: Callable[..., T]) -> Callable[..., T]:
    """Add the options `--tls`, `--tls-trust` and `--tls-config` to a command."""
    for option in (
        click.option(
            "--tls-config",
            metavar="FILE",
            expose_value=False,
            callback=_keep,
            help="TLS with Apache's keys tls.client.… in a file; else TURBOPUMP_TLS_CONFIG.",
        ),
        click.option(
            "--tls-trust",
            metavar="FILE",
            expose_value=False,
            callback=_keep,
            help="TLS, and servers have one of these certificates (PEM), or are signed by one; "
            "else TURBOPUMP_TLS_TRUST.",
        ),
        click.option(
            "--tls",
            is_flag=True,
            expose_value=False,
            callback=_keep,
            help="TLS, with certificates that this machine trusts; else TURBOPUMP_TLS=true.",
        ),
    ):
        function = option(function)
    return function


def _parse(_context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
    addresses = parse_addresses(text, what="name server address")
    if not addresses:
        raise ConfigError("the list of name servers is empty: expected HOST:PORT;HOST:PORT")
    return addresses


# Name servers come from the option, else from the variable, else from `turbopump dev`.
name_server_option = click.option(
    "-n",
    "--namesrv",
    "namesrv",
    metavar="ADDRS",
    envvar="NAMESRV_ADDR",
    show_envvar=True,
    default="127.0.0.1:9876",
    callback=_parse,
    help="Name servers, HOST:PORT;HOST:PORT.",
)
