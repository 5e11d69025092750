"""What client commands share: their frame, their names and numbers, and how an answer is shown. It
must not know what is asked. And `turbopump cluster ha`: where replication stands."""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any, Final, TypedDict, TypeVar

import click

from turbopump.admin.cluster import Servers
from turbopump.admin.replication import ha_status, replication_problems
from turbopump.auth.credentials import SECRET_FIELDS, credentials_of
from turbopump.auth.signatures import Credentials
from turbopump.cli.entry import command_group, complain
from turbopump.cli.serving import log_options, run_client
from turbopump.clock import SystemClock
from turbopump.config.addresses import parse_address, parse_addresses
from turbopump.config.tls import ClientTls, tls_of
from turbopump.errors import ConfigError, MessageNotFoundError
from turbopump.message.message import MessageQueue
from turbopump.message.rules import is_unicode, topic_fault
from turbopump.protocol.requests.replication import PROVED

T = TypeVar("T")
INCOMPLETE: Final = 1
"""Exit code: not every broker could be asked, or not all of it could be done."""
NOT_FOUND: Final = 3
"""Exit code: what was asked for is not there."""


def show(output: str, value: object, lines: Iterable[str]) -> None:
    """One JSON value, or lines for people."""
    if output != "json":
        for line in lines:
            click.echo(line)
        return
    text = json.dumps(value, ensure_ascii=False)
    # the name of a foreign file may hold what is not UTF-8
    click.echo(text if is_unicode(text) else json.dumps(value))


def time_text(ms: int) -> str:
    """A time in ms since 1970, as people read it; the number where it can be none."""
    if not 0 < ms < 1 << 43:
        return str(ms)
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def hex_lines(data: bytes) -> Iterator[tuple[int, str]]:
    """Where each 16 bytes begin, and how to show them."""
    for at in range(0, len(data), 16):
        piece = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        yield at, f"{piece.hex(' '):47}  {text}"


# The frame of a client command: its options `-n`, `--output` and those of the log, its connections,
# its exit code.
FORM_OF_ANSWER: Final = "Form of the answer."
_LAST: Final = {
    name: place
    for place, name in enumerate(
        ("output", "credentials", "tls", "tls_trust", "tls_config", "log_level", "log_file"), 1
    )
}
"""Options that stand behind a command's own in its help."""


def client_command(
    parent: click.Group | None,
    name: str,
    connect: Callable[..., AbstractAsyncContextManager[Any]] = Servers,
    *,
    short_help: str | None = None,
    output: str = FORM_OF_ANSWER,
) -> Callable[[Callable[..., Coroutine[Any, Any, int | None]]], click.Command]:
    """Make a coroutine function a command of ``parent``: it gets what ``connect`` makes of the name
    servers and ``who_and_how()`` (``without_connections``: of the name servers alone), ``output``
    (text or json; not if its help is empty) and its own options, and returns the exit code (None:
    0)."""

    def decorate(work: Callable[..., Coroutine[Any, Any, int | None]]) -> click.Command:
        async def connected(name_servers: list[str], given: dict[str, Any]) -> int:
            async with connect(name_servers, **who_and_how()) as connections:
                try:
                    return await work(connections, **given) or 0
                except MessageNotFoundError as error:
                    complain(str(error))
                    return NOT_FOUND

        @log_options("warning", plain=True)
        @functools.wraps(work)
        def run(namesrv: list[str], **given: Any) -> None:
            click.get_current_context().exit(run_client(connected(namesrv, given)))

        if output:
            run = click.option(
                "--output", type=click.Choice(["text", "json"]), default="text", help=output
            )(run)
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
    """For commands that connect in their own way."""
    return nullcontext(name_servers)


class WhoAndHow(TypedDict):
    """What a command's options say of every connection that it makes."""

    credentials: Credentials | None
    tls: ClientTls | bool


def who_and_how() -> WhoAndHow:
    """Who the user of the command is, and how it connects: by its options `--credentials` and
    `--tls…`, else the environment. Raises ConfigError."""
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
    """`--tls`, `--tls-trust` and `--tls-config`."""
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


# the option, else the variable, else the address that `turbopump dev` has
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


# Names and numbers of the command line: what is checked before anything else happens, and what may
# have been meant.
def checked_topic(
    _context: click.Context, _parameter: click.Parameter, topic: str | None
) -> str | None:
    """A topic whose name may be, if one is given. Raises BadParameter."""
    fault = None if topic is None else topic_fault(topic)
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


MS_DIGITS: Final = 15
"""Of a time in ms since 1970: to the year 33658."""
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO: Final = re.compile(r"(\d+)([smhd])")


def time_ms(text: str) -> int | None:
    """A time in ms since 1970, from ISO 8601 (without a zone: local time) or such a number; None if
    it is none."""
    if text.isascii() and text.isdigit() and len(text) <= MS_DIGITS:
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


class TimeOption(click.ParamType):  # type: ignore[type-arg]
    """A time in ms since 1970 as ``time_ms`` reads it, or (unless it is in the future) `15m`: so
    long ago (s, m, h, d)."""

    name = "TIME"

    def __init__(self, *, future: bool = False, also: str = "") -> None:
        self._future = future
        self._also = also

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> int:
        text = str(value)
        found = None if self._future else _AGO.fullmatch(text)
        if found is not None:
            return max(SystemClock().now_ms() - int(found[1]) * _UNITS_MS[found[2]], 0)
        ms = time_ms(text)
        if ms is None:
            ago = "" if self._future else ", or 15m (so long ago; s, m, h, d)"
            self.fail(
                f"{text!r} is not a time: expected {self._also}2026-11-21T08:30:00, ms since "
                f"1970{ago}"
            )
        return ms


class QueueOption(click.ParamType):  # type: ignore[type-arg]
    """One queue of a topic, as ``BROKER:ID``, or by its id alone where one broker has it."""

    name = "[BROKER:]ID"

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> QueueName:
        wanted = queue_name(str(value))
        if wanted is None:
            self.fail(f"{value!r} is not a queue: expected its number, or BROKER:NUMBER")
        return wanted


QueueName = tuple[str | None, int]
"""A broker's name, or None, and a queue id."""


def queue_name(text: str) -> QueueName | None:
    """``3`` or ``broker-a:3``; None if it is neither."""
    broker, _, number = text.rpartition(":")
    if not (number.isascii() and number.isdigit() and len(number) < MS_DIGITS):
        return None
    return broker or None, int(number)


def find_queue(wanted: QueueName, queues: Sequence[MessageQueue], topic: str) -> MessageQueue:
    """The one that is meant. Raises ClickException that names those there are."""
    broker, number = wanted
    named = f"{broker}:{number}" if broker else str(number)
    found = [
        queue
        for queue in queues
        if queue.queue_id == number and broker in (None, queue.broker_name)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        each = " or ".join(f"{queue.broker_name}:{number}" for queue in found)
        raise click.ClickException(f"queue {named} of {topic} is on several brokers: give {each}")
    count = Counter(queue.broker_name for queue in queues)
    there = ", ".join(f"{name}:0 to {name}:{of - 1}" for name, of in sorted(count.items()))
    raise click.ClickException(f"{topic} has no queue {named}; it has {there or 'none'}")


def checked_number(
    _context: click.Context, _parameter: click.Parameter, number: float | None
) -> float | None:
    """Not `nan`, which is in every range of click. Raises BadParameter."""
    if number is not None and math.isnan(number):
        raise click.BadParameter("nan is no number")
    return number


# `turbopump cluster`.
command = command_group("cluster", "Look at a cluster as a whole.")


@client_command(command, "ha", short_help="Masters, their slaves, and how far these are behind.")
@click.option("--cluster", metavar="NAME", help="Only this cluster.")
async def ha(servers: Servers, output: str, cluster: str | None) -> int:
    """Show each master with its slaves: bytes behind, bytes a second, seconds left. The exit code
    is 1 if there is a problem, or a broker could not be asked."""
    brokers = await ha_status(servers, cluster)
    n = f"-n '{';'.join(servers.name_servers)}'"
    problems = [
        {"broker": name, "message": message, "fix": fix}
        for name, replicas in itertools.groupby(brokers, lambda one: one.name)
        for message, fix in replication_problems(list(replicas), n)
    ]
    lines = [line for one in brokers for line in _ha_lines(one.row)]
    for one in problems:
        lines += [f"WRONG  broker {one['broker']}: {one['message']}", f"       -> {one['fix']}"]
    show(output, {"brokers": [one.row for one in brokers], "problems": problems}, lines)
    return INCOMPLETE if problems or any(one.status is None for one in brokers) else 0


def _ha_lines(row: dict[str, Any]) -> Iterator[str]:
    name = f"{row['broker']} {row['id']}  {row['address']}"
    if "fault" in row:
        yield f"{name}  not asked: {row['fault']}"
    elif row["role"] == "slave":
        copies = f"copies from {row['copies_from']}" if row["copies_from"] else "does not copy"
        if row["does_not_copy"]:
            copies = f"does not copy: {row['does_not_copy']}"
        yield f"{name}  slave  log {row['log_end']}  {copies}"
    else:
        yield f"{name}  master  log {row['log_end']}"
    for slave in row.get("slaves", ()):
        left = slave["seconds_left"]
        yield (
            f"  slave {slave['address']}  log {slave['log_end']}  behind {slave['behind']}  "
            f"{'in sync' if slave['in_sync'] else 'not in sync'}  "
            + (f"{slave['proof']}  " if slave["proof"] not in (None, PROVED) else "")
            + f"{slave['bytes_per_second']} bytes/s  {'?' if left is None else left} s left"
        )
