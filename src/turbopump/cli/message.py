"""`turbopump message by-id|by-key|by-offset|by-time`: single messages of a running cluster, shown
to a person or as JSON lines.

Exit codes of these four: 0 found, 1 not every broker could be asked, 2 asked wrongly, 3 there is no
such message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import click

from turbopump.cli.cluster import name_server_option
from turbopump.cli.json_lines import write_message
from turbopump.cli.serving import log_options, run_client, start_log
from turbopump.client.consumer.pull import FoundMessages
from turbopump.client.message_finder import MessageFinder
from turbopump.clock import SystemClock
from turbopump.config.addresses import join_address
from turbopump.errors import MessageNotFoundError, StoredMessageError
from turbopump.message import properties as names
from turbopump.message.message import ReceivedMessage

INCOMPLETE: Final = 1
NOT_FOUND: Final = 3
HEX_SHOWN: Final = 1024
"""Bytes of a body that is no text, shown in hex."""
MS_DIGITS: Final = 15
"""Of a time in ms since 1970: to the year 33658."""

_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO: Final = re.compile(r"(\d+)([smhd])")

output_option = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people, or JSON lines like those of `turbopump consume`.",
)


class TimeOption(click.ParamType):  # type: ignore[type-arg]
    """A time in ms since 1970, from ISO 8601 (without a zone: local time), such a number, or `15m`:
    so long ago (s, m, h, d)."""

    name = "TIME"

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> int:
        text = str(value)
        if text.isascii() and text.isdigit() and len(text) <= MS_DIGITS:
            return int(text)
        if found := _AGO.fullmatch(text):
            return max(SystemClock().now_ms() - int(found[1]) * _UNITS_MS[found[2]], 0)
        try:
            return int(datetime.fromisoformat(text).timestamp() * 1000)
        except (ValueError, OverflowError):
            self.fail(
                f"{text!r} is no time: 2026-11-21T08:30:00, ms since 1970, or 15m (so long "
                "ago; s, m, h, d) is expected"
            )


begin_option = click.option(
    "--begin", metavar="TIME", type=TimeOption(), help="Stored at this time or later."
)
end_option = click.option(
    "--end", metavar="TIME", type=TimeOption(), help="Stored at this time or before."
)


@click.group(name="message", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Find messages by id, by key, by place in a queue, by time."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


@command.command(name="by-id", short_help="The message with an id.")
@click.argument("topic")
@click.argument("msg_id", metavar="ID")
@name_server_option
@output_option
@log_options("warning")
def by_id(
    topic: str, msg_id: str, namesrv: list[str], output: str, log_level: str, log_file: str | None
) -> None:
    """Show the message of TOPIC with this ID: the one its producer gave it, or the offset message
    id that the broker gave it."""
    start_log(log_level, log_file)
    _find(namesrv, output, lambda finder: _one(finder.view(topic, msg_id)))


@command.command(name="by-key", short_help="Messages with a key.")
@click.argument("topic")
@click.argument("key")
@name_server_option
@begin_option
@end_option
@click.option(
    "--count",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="At most so many, the newest.",
)
@output_option
@log_options("warning")
def by_key(
    topic: str,
    key: str,
    namesrv: list[str],
    begin: int | None,
    end: int | None,
    count: int,
    output: str,
    log_level: str,
    log_file: str | None,
) -> None:
    """Show the messages of TOPIC that have this KEY, oldest first."""
    _refuse_nothing_between(begin, end)
    start_log(log_level, log_file)
    _find(namesrv, output, lambda finder: finder.by_key(topic, key, count, begin=begin, end=end))


@command.command(name="by-offset", short_help="The message at a place in a queue.")
@click.argument("topic")
@click.argument("queue_id", metavar="QUEUE", type=click.IntRange(0))
@click.argument("offset", type=click.IntRange(0))
@name_server_option
@click.option(
    "--broker",
    metavar="NAME",
    help="Which broker's queue.  [default: the only one that has the queue]",
)
@output_option
@log_options("warning")
def by_offset(
    topic: str,
    queue_id: int,
    offset: int,
    namesrv: list[str],
    broker: str | None,
    output: str,
    log_level: str,
    log_file: str | None,
) -> None:
    """Show the message at an OFFSET of a QUEUE (its number) of TOPIC."""
    start_log(log_level, log_file)

    async def find(finder: MessageFinder) -> FoundMessages:
        queues = [queue for queue in await finder.queues(topic) if queue.queue_id == queue_id]
        brokers = [queue.broker_name for queue in queues]
        if not queues:
            raise click.UsageError(
                f"topic {topic} has no queue {queue_id} that can be read; turbopump topic route "
                "shows its queues"
            )
        if broker is None and len(queues) > 1:
            raise click.UsageError(
                f"queue {queue_id} of topic {topic} is on "
                f"{', '.join(brokers)}: choose one with --broker"
            )
        if broker is not None and broker not in brokers:
            raise click.UsageError(
                f"queue {queue_id} of topic {topic} is not on {broker}, but on {', '.join(brokers)}"
            )
        queue = queues[brokers.index(broker) if broker is not None else 0]
        return await _one(finder.at(queue, offset))

    _find(namesrv, output, find)


@command.command(name="by-time", short_help="The first messages from a time on.")
@click.argument("topic")
@name_server_option
@click.option(
    "--begin",
    metavar="TIME",
    type=TimeOption(),
    required=True,
    help="Stored at this time or later.",
)
@end_option
@click.option(
    "--count",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="At most so many, the oldest.",
)
@output_option
@log_options("warning")
def by_time(
    topic: str,
    namesrv: list[str],
    begin: int,
    end: int | None,
    count: int,
    output: str,
    log_level: str,
    log_file: str | None,
) -> None:
    """Show the first messages of TOPIC, over all of its queues, that were stored from a time on."""
    _refuse_nothing_between(begin, end)
    start_log(log_level, log_file)
    _find(namesrv, output, lambda finder: finder.by_time(topic, begin, end, count))


def _refuse_nothing_between(begin: int | None, end: int | None) -> None:
    if begin is not None and end is not None and begin > end:
        raise click.UsageError(
            f"--begin {time_text(begin)} is after --end {time_text(end)}: nothing lies between them"
        )


def _find(
    namesrv: list[str], output: str, ask: Callable[[MessageFinder], Awaitable[FoundMessages]]
) -> None:
    """Ask, show what is found, and end with the code that tells how it went."""
    code = 0

    async def work() -> None:
        nonlocal code
        async with MessageFinder(namesrv) as finder:
            try:
                found = await ask(finder)
            except MessageNotFoundError as error:
                click.echo(f"turbopump: {error}", err=True)
                code = NOT_FOUND
                return
        for message in found.messages:
            for line in _text_lines(message) if output == "text" else [_json_line(message)]:
                click.echo(line)
        for name, why in found.missing.items():
            click.echo(
                f"turbopump: {name} could not be asked, there may be more messages: {why}", err=True
            )
        if found.missing:
            code = INCOMPLETE
        elif not found.messages:
            said = "; ".join(f"{name}: {why}" for name, why in found.remarks.items())
            click.echo(f"turbopump: no message was found{f' ({said})' if said else ''}", err=True)
            code = NOT_FOUND

    run_client(work())
    click.get_current_context().exit(code)


async def _one(view: Awaitable[ReceivedMessage]) -> FoundMessages:
    return FoundMessages([await view], {})


def _json_line(message: ReceivedMessage) -> str:
    """As `turbopump consume` writes it, and where it is."""
    more: dict[str, Any] = {
        "offset_msg_id": message.offset_msg_id,
        "commit_log_offset": message.commit_log_offset,
        "born_host": join_address(*message.born_host),
        "store_host": join_address(*message.store_host),
        "reconsume_times": message.reconsume_times,
    }
    return f"{write_message(message).decode()[:-1]},{json.dumps(more)[1:]}"


def _text_lines(message: ReceivedMessage) -> Iterator[str]:
    yield f"{message.topic}@{message.broker_name}:{message.queue_id} offset {message.queue_offset}"
    facts = {
        "id": shown(message.msg_id),
        "offset id": message.offset_msg_id,
        "stored": f"{time_text(message.store_timestamp)} on {join_address(*message.store_host)}",
        "born": f"{time_text(message.born_timestamp)} on {join_address(*message.born_host)}",
        "tags": shown(message.tags or ""),
        "keys": " ".join(shown(key) for key in message.keys),
        "redelivered": f"{message.reconsume_times} times" if message.reconsume_times else "",
        "in the log": f"{message.store_size} bytes at {message.commit_log_offset}",
    }
    for name, value in facts.items():
        if value:
            yield f"  {name:12} {value}"
    for name, value in message.properties.items():
        if name not in (names.TAGS, names.KEYS, names.UNIQ_KEY):
            yield f"  {'property':12} {shown(name)} = {shown(value)}"
    try:
        body = message.body
    except StoredMessageError as error:
        yield f"  {'body':12} cannot be read: {error}"
        return
    kind, lines = body_lines(body)
    yield f"  {'body':12} {len(body)} bytes{', ' + kind if body else ''}"
    for line in lines:
        yield f"    {line}"


def body_lines(body: bytes) -> tuple[str, list[str]]:
    """What a body is, and how to show it. Nothing that a terminal would obey gets through."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return "no text", _hex_lines(body)
    if text[:1] in ("{", "["):
        try:
            return "JSON", json.dumps(json.loads(text), indent=2, ensure_ascii=False).splitlines()
        except (ValueError, RecursionError):
            pass
    lines = text.replace("\r\n", "\n").replace("\t", "    ").split("\n")
    if all(line.isprintable() for line in lines):
        return "text", lines
    return "no plain text", _hex_lines(body)


def _hex_lines(body: bytes) -> list[str]:
    lines = []
    for at in range(0, min(len(body), HEX_SHOWN), 16):
        piece = body[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{at:06x}  {piece.hex(' '):47}  {text}")
    if len(body) > HEX_SHOWN:
        lines.append(f"… and {len(body) - HEX_SHOWN} more bytes (--output json has them all)")
    return lines


def shown(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)


def time_text(ms: int) -> str:
    if not 0 < ms < 1 << 43:
        return str(ms)
    return (
        datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"
    )
