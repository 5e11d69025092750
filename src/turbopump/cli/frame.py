"""Common frame of all client commands: shared options, connections, exit codes, output formats.

The shared options are `-n`, `--output`, `--credentials`, `--tls…` and `--log-…`. This module must
not know single commands.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, TypedDict, TypeVar

import click
import msgspec

from turbopump.auth.credentials import SECRET_FIELDS, credentials_of
from turbopump.auth.signatures import Credentials
from turbopump.cli.client_loop import run_client
from turbopump.cli.entry import complain
from turbopump.cli.log_output import log_options
from turbopump.cli.names import SubjectCommand
from turbopump.cli.tables import Column, Table
from turbopump.cli.values import NumberOption
from turbopump.config.addresses import parse_addresses
from turbopump.config.tls import ClientTls, tls_of
from turbopump.errors import ConfigError, MissingExtraError, TurbopumpError
from turbopump.message.rules import is_unicode

T = TypeVar("T")
FORMS: Final = ("table", "json", "yaml", "csv")
"""Forms of an answer. JSON and YAML have everything, a table and CSV what people compare."""
WITHOUT_CSV: Final = FORMS[:-1]
"""Forms of an answer that has no table."""


def show(output: str, value: object, parts: Iterable[str | Table]) -> None:
    """Print an answer in one of the forms of the option --output.

    - ``value``: the answer for ``json`` and ``yaml``. Structs and dataclasses within it become
      objects.
    - ``parts``: lines and tables for ``table``. The form ``csv`` is that of the first table.

    Raises UsageError if the answer has no table and the form is ``csv``, and MissingExtraError if
    the form is ``yaml`` and PyYAML is not installed.
    """
    if output == "table":
        for part in parts:
            if isinstance(part, str):
                click.echo(part)
            elif sys.stdout is not None and sys.stdout.isatty():
                part.show_on_terminal()
            else:
                for line in part.lines():
                    click.echo(line)
        return
    if output == "csv":
        found = next((part for part in parts if not isinstance(part, str)), None)
        if found is None:
            raise click.UsageError("this answer is no table, so it has no form csv: use json")
        click.echo(found.csv(), nl=False)
        return
    plain = msgspec.to_builtins(value)
    if output == "yaml":
        click.echo(_yaml(plain), nl=False)
        return
    _write_json(plain)


class RowStream:
    """Writer of rows that arrive one by one, in a form of the option --output.

    JSON has one row on each line, and YAML one document for each row. CSV begins with the keys.

    - ``columns``: the columns of CSV.
    """

    def __init__(self, output: str, columns: Sequence[Column]) -> None:
        self._output = output
        self._columns = columns
        self._begun = False

    def write(self, row: Mapping[str, Any], lines: Iterable[str] = ()) -> None:
        """Write one row. ``lines`` is its form ``table``."""
        if self._output == "table":
            for line in lines:
                click.echo(line)
        elif self._output == "json":
            _write_json(row)
        elif self._output == "yaml":
            click.echo(b"---\n" + _yaml(row), nl=False)
        else:
            text = Table(self._columns, [row]).csv(headings=not self._begun)
            click.echo(text, nl=False)
        self._begun = True


def _write_json(plain: object) -> None:
    text = json.dumps(plain, ensure_ascii=False)
    if not is_unicode(text):  # a file name from elsewhere may contain bytes that are not UTF-8
        text = json.dumps(plain)
    click.echo(text.encode())  # JSON is UTF-8, whatever the terminal or pipe is


def _yaml(plain: object) -> bytes:
    try:
        import yaml
    except ModuleNotFoundError:
        raise MissingExtraError(
            "--output yaml needs PyYAML: pip install 'turbopump[cli]', or use --output json"
        ) from None
    text: bytes = yaml.safe_dump(plain, allow_unicode=True, sort_keys=False, encoding="utf-8")
    return text


def hex_lines(data: bytes) -> Iterator[tuple[int, str]]:
    """For each 16 bytes of ``data``, yield their offset and a line in hexadecimal and in ASCII."""
    for at in range(0, len(data), 16):
        piece = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        yield at, f"{piece.hex(' '):47}  {text}"


def output_option(
    about: str = "Form of the answer.", default: str = "table", forms: Sequence[str] = FORMS
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return a decorator that adds the option --output to a command.

    ``about`` is the help text of the option.
    """
    return click.option("--output", type=click.Choice(forms), default=default, help=about)


_LAST: Final = {
    name: place
    for place, name in enumerate(
        (
            "watch",
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
    forms: Sequence[str] = FORMS,
    has_output: bool = True,
    watch: bool = False,
) -> Callable[[Callable[..., Coroutine[Any, Any, int | None]]], click.Command]:
    """Return a decorator that turns a coroutine function into a command of the group ``parent``.

    The function gets the connections, ``output`` and its own options. It returns the exit code, or
    None for 0.

    - ``connect``: makes the connections from the name servers and ``who_and_how()``. The default
      is ``Servers``; ``without_connections`` passes only the name servers.
    - ``forms``: the forms of the option --output.
    - ``has_output``: add the option --output, if the function does not add its own.
    - ``watch``: add the option --watch, which repeats the command until Ctrl-C.
    """

    def decorate(work: Callable[..., Coroutine[Any, Any, int | None]]) -> click.Command:
        async def connected(name_servers: list[str], given: dict[str, Any]) -> int:
            from turbopump.admin.cluster import Servers  # a probe does without

            seconds = given.pop("watch", None)
            async with (connect or Servers)(name_servers, **who_and_how()) as connections:
                if seconds is not None:
                    await _repeat(seconds, work, connections, given)
                return await work(connections, **given) or 0

        @log_options("warning", plain=True)
        @functools.wraps(work)
        def run(namesrv: list[str], **given: Any) -> None:
            context = click.get_current_context()
            try:
                code = run_client(connected(namesrv, given))
            except click.UsageError as error:
                error.ctx = error.ctx or context  # the error names the command then
                raise
            context.exit(code)

        if watch:
            run = watch_option(run)
        if has_output:
            run = output_option(forms=forms)(run)
        command = click.command(name=name, short_help=short_help, cls=SubjectCommand)(
            name_server_option(credentials_option(tls_options(run)))
        )
        command.params.sort(key=lambda parameter: _LAST.get(parameter.name or "", 0))
        if parent is not None:
            parent.add_command(command)
        return command

    return decorate


watch_option = click.option(
    "--watch",
    metavar="SECONDS",
    type=NumberOption(0.1),
    help="Repeat the command after this time, until Ctrl-C.",
)


async def _repeat(
    seconds: float,
    work: Callable[..., Coroutine[Any, Any, int | None]],
    connections: object,
    given: dict[str, Any],
) -> None:
    """Repeat a command until it is cancelled. On a terminal each answer replaces the last one.

    Servers may be away for a while: an error after the first answer does not end the command.
    """
    has_answer = False
    while True:
        if sys.stdout is not None and sys.stdout.isatty():
            click.clear()
        try:
            await work(connections, **given)
            has_answer = True
        except TurbopumpError as error:
            if not has_answer:
                raise
            complain(str(error))
        sys.stdout.flush()
        await asyncio.sleep(seconds)


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


def who_and_how(context: click.Context | None = None) -> WhoAndHow:
    """Return the credentials and the TLS settings of a command, by default of the running one.

    They come from `--credentials` and `--tls…`, or from the environment. Raises ConfigError if they
    are invalid.
    """
    given = (context or click.get_current_context()).find_root().meta.get(_WHO_AND_HOW, {})
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


def default_name_servers() -> list[str]:
    """Return the name servers of a command without `-n`. Raises ConfigError if they are invalid."""
    text = os.environ.get(NAMESRV_VARIABLE) or DEFAULT_NAMESRV
    return parse_addresses(text, what="name server address")


NAMESRV_VARIABLE: Final = "NAMESRV_ADDR"
DEFAULT_NAMESRV: Final = "127.0.0.1:9876"

# Name servers come from the option, else from the variable, else from `turbopump dev`.
name_server_option = click.option(
    "-n",
    "--namesrv",
    "namesrv",
    metavar="ADDRS",
    envvar=NAMESRV_VARIABLE,
    show_envvar=True,
    default=DEFAULT_NAMESRV,
    callback=_parse,
    help="Name servers, HOST:PORT;HOST:PORT.",
)
