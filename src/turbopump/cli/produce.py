"""`turbopump produce`: messages from JSON lines on standard input."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Final

import click

from turbopump.cli.cluster import checked_topic, client_command
from turbopump.cli.entry import drop_output
from turbopump.cli.json_lines import lines_as_they_arrive, read_message
from turbopump.client.producer import Producer
from turbopump.client.sending.send_result import SendResult, SendStatus
from turbopump.errors import TurbopumpError
from turbopump.message.message import Message
from turbopump.message.properties import TAGS

OUTSTANDING: Final = 64
"""Lines that are sent at once."""


@client_command(None, "produce", nullcontext, output="")
@click.argument("topic", callback=checked_topic)
@click.option("--raw", is_flag=True, help="Each line is a body, not JSON.")
@click.option("--tags", metavar="TAG", help="Tag of the messages that name none.")
@click.option("--group", default="turbopump-produce", help="Producer group.")
@click.option(
    "--results",
    is_flag=True,
    help="Write where each message is stored, as JSON lines in the order of the input.",
)
async def command(
    namesrv: list[str], topic: str, raw: bool, tags: str | None, group: str, results: bool
) -> None:
    """Send messages to TOPIC from JSON lines on standard input.

    A line is `{"body": "text"}`, with "tags", "keys" and "properties" if wanted. A body that is
    another JSON value is sent as that JSON; bytes that are no text go as "body_base64". The first
    line that cannot be sent ends the command.
    """

    def message(line: bytes, number: int) -> Message:
        found = Message(topic, line) if raw else read_message(line, topic, number=number)
        return (
            found
            if tags is None or found.tags
            else Message.as_it_is(topic, found.body, {**found.properties, TAGS: tags})
        )

    sent = 0
    unsure: Counter[str] = Counter()
    async with Producer(namesrv, group=group) as producer:
        async for lines in _batches():
            messages = [(number, message(line, number)) for number, line in lines]
            sends = [_send(producer, one, number) for number, one in messages]
            for (number, _), result in zip(messages, await asyncio.gather(*sends), strict=True):
                sent += 1
                if result.status is not SendStatus.OK:
                    unsure[result.status.value] += 1
                if results:
                    _write(_result_line(number, result), sent)
    click.echo(f"sent {sent} message{'' if sent == 1 else 's'} to {topic}", err=True)
    if unsure:
        counts = ", ".join(f"{count} with {status}" for status, count in sorted(unsure.items()))
        raise click.ClickException(
            f"of these the broker stored {counts}: they are there unless it fails now; look "
            "at its disk, --results names the messages"
        )


def _write(line: str, sent: int) -> None:
    try:
        click.echo(line)
    except BrokenPipeError:
        drop_output()
        raise click.ClickException(
            f"nobody reads the results any more; at least {sent} messages are sent, the rest is not"
        ) from None


async def _send(producer: Producer, message: Message, number: int) -> SendResult:
    try:
        return await producer.send(message)
    except TurbopumpError as error:
        raise click.ClickException(f"line {number} was not sent: {error}") from None


async def _batches() -> AsyncIterator[list[tuple[int, bytes]]]:
    """The numbered lines of standard input, `OUTSTANDING` at most at a time; empty ones are counted
    and passed over."""
    number = 0
    async for lines in lines_as_they_arrive():
        wanted = [(at, line) for at, line in enumerate(lines, number + 1) if line.strip()]
        number += len(lines)
        for at in range(0, len(wanted), OUTSTANDING):
            yield wanted[at : at + OUTSTANDING]


def _result_line(number: int, result: SendResult) -> str:
    import json

    return json.dumps(
        {
            "line": number,
            "status": result.status.value,
            "msg_id": result.msg_id,
            "broker": result.queue.broker_name,
            "queue_id": result.queue.queue_id,
            "queue_offset": result.queue_offset,
        }
    )
