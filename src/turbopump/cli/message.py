"""`turbopump message by-id|by-key|by-offset|by-time`: single messages of a running cluster, as text
or JSON lines.

Exit codes: 0 found, 1 a broker could not be asked, 2 wrong usage, 3 no such message.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Container, Coroutine, Iterator, Mapping
from typing import Any, Final

import click

from turbopump.cli.entry import INCOMPLETE, NOT_FOUND, command_group, complain
from turbopump.cli.frame import RowStream, client_command, hex_lines, output_option
from turbopump.cli.json_lines import MESSAGE_COLUMNS, message_row
from turbopump.cli.message_trace import command as trace
from turbopump.cli.names import broker_option, topic_subject
from turbopump.cli.values import TimeOption, time_text
from turbopump.client.message_finder import FoundMessages, MessageFinder
from turbopump.config.addresses import join_address
from turbopump.errors import NotFoundError, StoredMessageError
from turbopump.message import properties as names
from turbopump.message.message import ReceivedMessage

HEX_SHOWN: Final = 1024
"""Number of bytes that are shown in hex if a body is not text."""


begin_option = click.option(
    "--begin", metavar="TIME", type=TimeOption(), help="Stored at this time or later."
)
end_option = click.option(
    "--end", metavar="TIME", type=TimeOption(), help="Stored at this time or before."
)


command = command_group("message", "Find messages by id, by key, by offset in a queue, by time.")
command.add_command(trace)


def _finding(
    name: str, short_help: str
) -> Callable[[Callable[..., Coroutine[Any, Any, FoundMessages]]], click.Command]:
    """Return a decorator that turns a search for messages into a command.

    The command prints the messages found.
    """

    def decorate(find: Callable[..., Coroutine[Any, Any, FoundMessages]]) -> click.Command:
        @functools.wraps(find)
        async def find_and_show(finder: MessageFinder, output: str, **given: Any) -> int:
            return _show(await find(finder, **given), output)

        output = output_option("For people, or JSON lines like those of `turbopump consume`.")
        framed = client_command(
            command, name, MessageFinder, short_help=short_help, has_output=False
        )
        return framed(output(find_and_show))

    return decorate


@_finding("by-id", "The message with an id.")
@topic_subject()
@click.argument("msg_id", metavar="ID")
async def by_id(finder: MessageFinder, topic: str, msg_id: str) -> FoundMessages:
    """Show the message of TOPIC with this ID: a unique id from its producer, or an offset message
    id from the broker."""
    return FoundMessages([await finder.view(topic, msg_id)], {})


@_finding("by-key", "Messages with a key.")
@topic_subject()
@click.argument("key")
@begin_option
@end_option
@click.option(
    "--count", type=click.IntRange(1), default=32, help="Maximum number of messages, the newest."
)
async def by_key(
    finder: MessageFinder, topic: str, key: str, begin: int | None, end: int | None, count: int
) -> FoundMessages:
    """Show the messages of TOPIC that have this KEY, oldest first."""
    _refuse_nothing_between(begin, end)
    return await finder.by_key(topic, key, count, begin=begin, end=end)


@_finding("by-offset", "The message at an offset of a queue.")
@topic_subject()
@click.argument("queue_id", metavar="QUEUE", type=click.IntRange(0))
@click.argument("offset", type=click.IntRange(0))
@broker_option("Broker of the queue.  [default: the only one that has the queue]")
async def by_offset(
    finder: MessageFinder, topic: str, queue_id: int, offset: int, broker: str | None
) -> FoundMessages:
    """Show the message at an OFFSET of a QUEUE (its number) of TOPIC."""
    queues = {
        queue.broker_name: queue
        for queue in await finder.queues(topic)
        if queue.queue_id == queue_id
    }
    if not queues:
        raise NotFoundError(
            f"topic {topic} has no queue {queue_id} that can be read; turbopump topic route "
            "shows its queues"
        )
    if broker is None and len(queues) > 1:
        raise click.UsageError(
            f"queue {queue_id} of topic {topic} is on {', '.join(queues)}: choose one with --broker"
        )
    if broker is not None and broker not in queues:
        raise NotFoundError(
            f"queue {queue_id} of topic {topic} is not on {broker}, but on {', '.join(queues)}"
        )
    return FoundMessages([await finder.at(queues[broker or next(iter(queues))], offset)], {})


@_finding("by-time", "The first messages from a time on.")
@topic_subject()
@click.option(
    "--begin",
    metavar="TIME",
    type=TimeOption(),
    required=True,
    help="Stored at this time or later.",
)
@end_option
@click.option(
    "--count", type=click.IntRange(1), default=32, help="Maximum number of messages, the oldest."
)
async def by_time(
    finder: MessageFinder, topic: str, begin: int, end: int | None, count: int
) -> FoundMessages:
    """Show the first messages of TOPIC, over all of its queues, that were stored at or after a
    time."""
    _refuse_nothing_between(begin, end)
    return await finder.by_time(topic, begin, end, count)


def _refuse_nothing_between(begin: int | None, end: int | None) -> None:
    if begin is not None and end is not None and begin > end:
        raise click.UsageError(f"--begin {time_text(begin)} is after --end {time_text(end)}")


def _show(found: FoundMessages, output: str) -> int:
    """Print the messages found. Return the exit code."""
    rows = RowStream(output, MESSAGE_COLUMNS)
    for message in found.messages:
        rows.write(_row(message), _text_lines(message))
    for name, why in found.missing.items():
        complain(f"{name} could not be asked, there may be more messages: {why}")
    if found.missing:
        return INCOMPLETE
    if not found.messages:
        said = "; ".join(f"{name}: {why}" for name, why in found.remarks.items())
        complain(f"no message was found ({said})" if said else "no message was found")
        return NOT_FOUND
    return 0


def _row(message: ReceivedMessage) -> dict[str, Any]:
    """Return the fields of a message, more than `turbopump consume` writes."""
    more: dict[str, Any] = {
        "offset_msg_id": message.offset_msg_id,
        "commit_log_offset": message.commit_log_offset,
        "born_host": join_address(*message.born_host),
        "store_host": join_address(*message.store_host),
        "reconsume_times": message.reconsume_times,
    }
    return message_row(message, more)


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
    yield from message_lines(message, facts, (names.TAGS, names.KEYS, names.UNIQ_KEY))


def message_lines(
    message: ReceivedMessage, facts: Mapping[str, str], apart: Container[str]
) -> Iterator[str]:
    """Yield a message as lines of text: first the facts, then the properties, then the body.

    Facts without a value are left out. Properties in ``apart`` are left out too.
    """
    for name, value in facts.items():
        if value:
            yield f"  {name:12} {value}"
    for name, value in message.properties.items():
        if name not in apart:
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
    """Return the kind of a body, and the body as lines for a terminal.

    The kind is a phrase such as ``JSON`` or ``text``. The lines have no control characters.
    """
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
    lines = [f"{at:06x}  {line}" for at, line in hex_lines(body[:HEX_SHOWN])]
    if len(body) > HEX_SHOWN:
        lines.append(f"… and {len(body) - HEX_SHOWN} more bytes (--output json has them all)")
    return lines


def shown(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)
