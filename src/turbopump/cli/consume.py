"""`turbopump consume`: messages as JSON lines on standard output."""

import asyncio
import sys
from contextlib import nullcontext
from typing import Final

import click
from click.core import ParameterSource

from turbopump.cli.cluster import checked_number, checked_topic, client_command
from turbopump.cli.json_lines import write_message
from turbopump.client.consumer.subscription import Sql
from turbopump.client.push_consumer import ConsumeFrom, PushConsumer

AT_ONCE: Final = 256
"""Messages that are written before the output is flushed and they count as consumed."""


@client_command(None, "consume", nullcontext, output="")
@click.argument("topic", callback=checked_topic)
@click.option(
    "--group", default="turbopump-consume", help="Consumer group, whose offsets are kept."
)
@click.option("--tags", default="*", help="Tags wanted: 'A || B'.")
@click.option(
    "--sql",
    metavar="FILTER",
    help="Properties wanted, instead of tags: \"price > 5 AND region IN ('eu', 'us')\".",
)
@click.option(
    "--from",
    "start",
    type=click.Choice(["first", "last"]),
    default="first",
    help="Where a group that is new to the topic begins.",
)
@click.option(
    "--count", type=click.IntRange(1), help="End after so many messages.  [default: never]"
)
@click.option(
    "--idle",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    callback=checked_number,
    help="End when nothing came for so long.",
)
@click.option("--raw", is_flag=True, help="Write bodies alone.")
async def command(
    namesrv: list[str],
    topic: str,
    group: str,
    tags: str,
    sql: str | None,
    start: str,
    count: int | None,
    idle: float | None,
    raw: bool,
) -> None:
    """Write the messages of TOPIC to standard output as JSON lines, until Ctrl-C.

    A message counts as consumed when its line has been written. What is written, `turbopump
    produce` reads.
    """
    if (
        sql is not None
        and click.get_current_context().get_parameter_source("tags") is ParameterSource.COMMANDLINE
    ):
        raise click.UsageError(
            "--tags and --sql do not go together: tags are the property TAGS, as in \"TAGS = 'A' "
            'AND price > 5"'
        )
    left = sys.maxsize if count is None else count
    where = ConsumeFrom[start.upper()]
    wanted = tags if sql is None else Sql(sql)
    async with PushConsumer(
        namesrv, group=group, topic=topic, tags=wanted, consume_from=where
    ) as consumer:
        while left:
            try:
                async with asyncio.timeout(idle):
                    messages = await consumer.take(min(left, AT_ONCE))
            except TimeoutError:
                return
            for message in messages:
                sys.stdout.buffer.write((message.body if raw else write_message(message)) + b"\n")
            sys.stdout.buffer.flush()
            for message in messages:
                message.done()
            left -= len(messages)
