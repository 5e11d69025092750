"""`turbopump consume`: messages as JSON lines on standard output.

The command reads beside all groups and keeps no offset, unless `--group` makes it a consumer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from turbopump.admin.topic_reader import TopicReader
from turbopump.cli.entry import complain
from turbopump.cli.frame import client_command, who_and_how, without_connections
from turbopump.cli.json_lines import body_or_stored, write_message
from turbopump.cli.names import group_option, topic_subject
from turbopump.cli.values import NumberOption, QueueName, QueueOption, TimeOption, find_queue
from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.client.consumer.subscription import Sql
from turbopump.errors import TurbopumpError
from turbopump.message.message import MessageQueue, ReceivedMessage

if TYPE_CHECKING:
    from turbopump.client.push_consumer import PushConsumer

AT_ONCE: Final = 256
"""Number of messages written before the output is flushed; the messages then count as consumed."""

Start = ConsumeFrom | datetime


def _start(_context: click.Context, _parameter: click.Parameter, given: str | int) -> Start:
    if isinstance(given, str):
        return ConsumeFrom[given.upper()]
    return datetime.fromtimestamp(given / 1000, UTC)


@client_command(None, "consume", without_connections, has_output=False)
@topic_subject()
@group_option(
    "Consume as this group, whose offsets the broker keeps.  [default: beside all groups]"
)
@click.option("--tags", metavar="TAGS", default="*", help="Tags wanted: 'A || B'.")
@click.option(
    "--sql",
    metavar="FILTER",
    help="Properties wanted, instead of tags: \"price > 5 AND region IN ('eu', 'us')\".",
)
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    type=TimeOption("first", "last", "now"),
    default="first",
    callback=_start,
    help="Start of a read without a group, or of a group that is new to the topic: first, "
    "last, now (the start of this command), or a time.",
)
@click.option("--queue", type=QueueOption(), help="Read only this queue; not with --group.")
@click.option("--offset", type=click.IntRange(0), help="First offset to read from --queue.")
@click.option(
    "--count", type=click.IntRange(1), help="End after this number of messages.  [default: never]"
)
@click.option(
    "--idle",
    metavar="SECONDS",
    type=NumberOption(0, min_open=True),
    help="End after this time without a message.",
)
@click.option("--raw", is_flag=True, help="Write only the bodies.")
async def command(
    namesrv: list[str],
    topic: str,
    group: str | None,
    tags: str,
    sql: str | None,
    start: Start,
    queue: QueueName | None,
    offset: int | None,
    count: int | None,
    idle: float | None,
    raw: bool,
) -> None:
    """Write the messages of TOPIC to standard output as JSON lines, until Ctrl-C.

    Every message is read, and no offset is kept. With --group the command is a consumer of the
    group: a message counts as consumed when its line has been written. `turbopump produce` reads
    these lines.

    \b
    turbopump consume orders --from 15m
    turbopump consume orders --group billing
    """
    _refuse_what_does_not_go_together(group, sql, queue, offset)
    wanted = tags if sql is None else Sql(sql)

    def encode(message: ReceivedMessage) -> bytes:
        if not raw:
            return write_message(message) + b"\n"
        body, fault = body_or_stored(message)
        if fault is not None:
            complain(f"{fault}; writing the stored bytes")
        return body + b"\n"

    output = _Output(encode, count)
    async with TopicReader(namesrv, **who_and_how()) as reader:
        queues = await reader.queues(topic)
        if group is None:
            if queue is not None:
                queues = [find_queue(queue, queues, topic)]
            starts = await reader.starts(queues, start if offset is None else offset)
            batches = reader.read(topic, starts, wanted, more=queue is None)
            await _write_all(batches, output, idle)
            return
        if _given("start"):
            await _complain_of_known_group(reader, queues, topic, group)
    from turbopump.client.push_consumer import PushConsumer  # most reads do without

    async with PushConsumer(
        namesrv, **who_and_how(), group=group, topic=topic, tags=wanted, consume_from=start
    ) as consumer:
        await _write_all(_taken(consumer, output), output, idle)


def _given(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source is ParameterSource.COMMANDLINE


def _refuse_what_does_not_go_together(
    group: str | None, sql: str | None, queue: QueueName | None, offset: int | None
) -> None:
    if sql is not None and _given("tags"):
        raise click.UsageError(
            "--tags and --sql do not go together: tags are the property TAGS, as in \"TAGS = 'A' "
            'AND price > 5"'
        )
    if offset is not None and queue is None:
        raise click.UsageError("--offset is of one queue: give --queue too")
    if offset is not None and _given("start"):
        raise click.UsageError("--offset and --from both say where to begin; give one of them")
    if group is not None and queue is not None:
        raise click.UsageError(
            "--group and --queue do not go together: a group's queues are shared by its "
            "consumers, and its offsets are kept"
        )


async def _complain_of_known_group(
    reader: TopicReader, queues: Sequence[MessageQueue], topic: str, group: str
) -> None:
    """Warn that `--from` has no effect, if the group already has an offset in the topic."""
    try:
        stands = [await reader.committed(group, each) for each in queues]
    except TurbopumpError:  # the consumer will report the error
        return
    if any(stands):
        complain(
            f"the group {group} continues at its offset in {topic}: --from applies only "
            "to a group that is new to it. Leave out --group to read from there, or move the group "
            f"with `turbopump offset reset {group} {topic}`"
        )


class _Output:
    """Writer of messages to standard output. After ``count`` messages, further messages are not
    written."""

    def __init__(self, encode: Callable[[ReceivedMessage], bytes], count: int | None) -> None:
        self.left = sys.maxsize
        if count is not None:
            self.left = count
        self._encode = encode

    def write(self, messages: Sequence[ReceivedMessage]) -> None:
        # A message counts as consumed only after its line has left this process. After a crash it
        # is delivered again; the other order would lose it.
        for message in messages[: self.left]:
            sys.stdout.buffer.write(self._encode(message))
        sys.stdout.buffer.flush()
        for message in messages:
            if isinstance(message, Delivery):
                message.done()
        self.left -= len(messages)


async def _taken(consumer: PushConsumer, output: _Output) -> AsyncGenerator[Sequence[Delivery]]:
    while True:
        yield await consumer.take(min(output.left, AT_ONCE))


async def _write_all(
    batches: AsyncGenerator[Sequence[ReceivedMessage]], output: _Output, idle: float | None
) -> None:
    async with aclosing(batches):
        while output.left > 0:
            try:
                async with asyncio.timeout(idle):
                    messages = await anext(batches)
            except TimeoutError:
                return
            output.write(messages)
