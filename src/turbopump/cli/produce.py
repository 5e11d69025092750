"""`turbopump produce`: messages from JSON lines on standard input."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import click

from turbopump.cli.entry import complain, drop_output
from turbopump.cli.frame import client_command, who_and_how, without_connections
from turbopump.cli.json_lines import (
    STANDARD_INPUT,
    LineDefaults,
    LineToSend,
    lines_as_they_arrive,
    raw_message,
    read_message,
    whole_input,
)
from turbopump.cli.names import topic_subject
from turbopump.cli.values import (
    NumberOption,
    QueueName,
    QueueOption,
    TimeOption,
    checked_pairs,
    find_queue,
)
from turbopump.client.producer import Producer
from turbopump.client.sending.send_result import SendResult, SendStatus
from turbopump.errors import MessageError, TurbopumpError
from turbopump.message.message import MessageQueue
from turbopump.message.user_properties import checked_properties
from turbopump.plural import counted

OUTSTANDING: Final = 64
"""Maximum number of lines that are sent at the same time."""

Numbered = tuple[int, LineToSend]
Bound = tuple[int, LineToSend, MessageQueue | None]
"""Line number, message, and the queue that the line names, if any."""
Outcome = tuple[int, SendResult | TurbopumpError]
"""Line number, and the result of the send or its error."""


def _checked_properties(
    context: click.Context, parameter: click.Parameter, given: Sequence[str]
) -> dict[str, str]:
    """Parse properties from texts ``NAME=VALUE``.

    Raises BadParameter if a text has another form, or if a property is not allowed.
    """
    try:
        return checked_properties(checked_pairs(context, parameter, given))
    except MessageError as error:
        raise click.BadParameter(str(error)) from None


@client_command(None, "produce", without_connections, has_output=False)
@topic_subject()
@click.option("--raw", is_flag=True, help="Each line is a body, not JSON.")
@click.option("--whole", is_flag=True, help="All of the input is one body.")
@click.option("--tags", metavar="TAG", help="Tag of the messages that name none.")
@click.option(
    "--keys",
    metavar="KEY",
    multiple=True,
    help="Key of the messages that name none; more than once.",
)
@click.option(
    "--property",
    "properties",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_checked_properties,
    help="Property of the messages that have none of this name; more than once.",
)
@click.option(
    "--sharding-key",
    metavar="KEY",
    help="Messages with an equal one go to the same queue, in the order of the input.",
)
@click.option(
    "--queue", type=QueueOption(), help="Queue of the messages that name none and no sharding key."
)
@click.option(
    "--delay", metavar="SECONDS", type=NumberOption(0), help="Delay of messages that have no time."
)
@click.option(
    "--delay-level",
    type=click.IntRange(1),
    help="The same by the delay level of the broker's table: 1 is 1 s, 18 is 2 h.",
)
@click.option(
    "--deliver-at",
    metavar="TIME",
    type=TimeOption(future=True),
    help="Deliver at this time the messages that give none.",
)
@click.option("--group", default="turbopump-produce", help="Producer group.")
@click.option(
    "--results",
    is_flag=True,
    help="Write where each message is stored, as JSON lines in the order of the input.",
)
async def command(
    namesrv: list[str],
    topic: str,
    raw: bool,
    whole: bool,
    group: str,
    results: bool,
    **of_messages: Any,
) -> None:
    """Send messages to TOPIC from JSON lines on standard input.

    A line is `{"body": "text"}`, with "tags", "keys", "properties", "sharding_key" or "queue", and
    "delay", "delay_level" or "deliver_at" if wanted. A body that is another JSON value is sent
    as it is written; bytes that are not text go as "body_base64". Lines of `turbopump consume` are
    accepted too. The command ends at the first line that cannot be sent.

    \b
    echo hello | turbopump produce orders --raw
    echo '{"body": "a book", "keys": "42"}' | turbopump produce orders
    """
    if raw and whole:
        raise click.UsageError("--raw and --whole do not go together: lines, or all of it")
    defaults = _line_defaults(**of_messages)

    def read(line: bytes, number: int) -> LineToSend:
        if raw or whole:
            return raw_message(line, topic, defaults)
        return read_message(line, topic, number=number, defaults=defaults)

    batches = _batches(raw=raw)
    if whole:
        batches = _whole()
    if os.isatty(STANDARD_INPUT):
        what = "bodies" if raw else 'messages such as {"body": "text"}'
        complain(f"reading lines from the terminal, as {what}; Ctrl-D ends the input")
    async with Producer(namesrv, **who_and_how(), group=group) as producer:
        sending = _Sending(producer, topic)
        try:
            async for lines in batches:
                messages, fault = _read_all(read, lines)
                outcomes = await sending.send(messages)
                if results:
                    _write(outcomes, sending.sent)
                sending.refuse_failures(outcomes)
                if fault is not None:
                    raise click.ClickException(f"{fault}{sending.before}")
        except asyncio.CancelledError:
            complain(f"stopped{sending.before or '; nothing is sent'}, perhaps more")
            raise
    click.echo(f"sent {counted(sending.sent, 'message')} to {topic}", err=True)
    if sending.unsure:
        counts = ", ".join(f"{n} with {status}" for status, n in sorted(sending.unsure.items()))
        raise click.ClickException(
            f"of these the broker stored {counts}: they are safe unless it fails now; "
            "check its disk, and its slaves (turbopump cluster ha); --results names the messages"
        )


def _line_defaults(
    tags: str | None,
    keys: tuple[str, ...],
    properties: dict[str, str],
    sharding_key: str | None,
    queue: QueueName | None,
    **times: float | None,
) -> LineDefaults:
    """Return the defaults for fields of JSON lines, according to the command's options.

    Raises UsageError for options that contradict each other.
    """
    time = {name: value for name, value in times.items() if value is not None}
    if len(time) > 1:
        raise click.UsageError("--delay, --delay-level and --deliver-at do not go together")
    if queue is not None and sharding_key is not None:
        raise click.UsageError("--queue and --sharding-key both choose the queue; give one of them")
    return LineDefaults(tags, keys, properties, sharding_key, queue, time)


def _read_all(
    read: Callable[[bytes, int], LineToSend], lines: Sequence[tuple[int, bytes]]
) -> tuple[list[Numbered], MessageError | None]:
    """Parse lines as messages, up to the first invalid line.

    The second result is the error of the invalid line, or None if all lines are valid.
    """
    messages: list[Numbered] = []
    for number, line in lines:
        try:
            messages.append((number, read(line, number)))
        except MessageError as error:
            return messages, error
    return messages, None


class _Sending:
    """Sender of messages to one topic.

    Messages for the same queue, or with the same sharding key, are sent in order, one at a time.
    All other messages are sent concurrently.
    """

    def __init__(self, producer: Producer, topic: str) -> None:
        self.sent = 0
        self.unsure: Counter[str] = Counter()
        self._producer = producer
        self._topic = topic
        self._queues: Sequence[MessageQueue] = ()

    async def send(self, messages: Sequence[Numbered]) -> list[Outcome]:
        """Send messages. Return the outcome of each message, in the order of the lines.

        After a failure, later messages for the same queue or with the same sharding key are not
        sent. Raises ClickException for an unknown queue.
        """
        if not self._queues and any(line.queue is not None for _, line in messages):
            self._queues = await self._producer.publish_queues(self._topic)
        lanes: dict[object, list[Bound]] = {}
        for number, line in messages:
            queue = None
            lane: object = number
            if line.queue is not None:
                lane = queue = find_queue(line.queue, self._queues, self._topic)
            elif line.sharding_key is not None:
                lane = str(line.sharding_key)
            lanes.setdefault(lane, []).append((number, line, queue))
        of_lanes = await asyncio.gather(*map(self._send_in_turn, lanes.values()))
        return sorted((outcome for each in of_lanes for outcome in each), key=lambda one: one[0])

    async def _send_in_turn(self, lane: Sequence[Bound]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for number, line, queue in lane:
            try:
                result = await self._producer.send(
                    line.message, queue=queue, sharding_key=line.sharding_key
                )
            except TurbopumpError as error:
                # The rest of this queue is not sent: the user will send the failed message again,
                # and later ones must not be before it.
                return [*outcomes, (number, error)]
            outcomes.append((number, result))
            self.sent += 1
            if result.status is not SendStatus.OK:
                self.unsure[result.status.value] += 1
        return outcomes

    def refuse_failures(self, outcomes: Sequence[Outcome]) -> None:
        """Raise ClickException if one of the messages was not sent."""
        failed = [(number, one) for number, one in outcomes if isinstance(one, TurbopumpError)]
        if failed:
            number, error = failed[0]
            more = ""
            if len(failed) > 1:
                more = f", nor were {len(failed) - 1} after it"
            raise click.ClickException(f"line {number} was not sent: {error}{more}{self.before}")

    @property
    def before(self) -> str:
        """End of an error text, with the number of messages already sent."""
        if not self.sent:
            return ""
        verb = "is" if self.sent == 1 else "are"
        return f"; {counted(self.sent, 'message')} {verb} sent"


def _write(outcomes: Sequence[Outcome], sent: int) -> None:
    try:
        for number, outcome in outcomes:
            if isinstance(outcome, SendResult):
                click.echo(_result_line(number, outcome))
    except BrokenPipeError:
        drop_output()
        raise click.ClickException(
            f"nobody reads the results any more; at least {sent} messages are sent, the rest is not"
        ) from None


async def _whole() -> AsyncIterator[list[tuple[int, bytes]]]:
    yield [(1, await whole_input())]


async def _batches(*, raw: bool) -> AsyncIterator[list[tuple[int, bytes]]]:
    """Yield numbered lines of standard input, in lists of at most `OUTSTANDING` lines.

    Empty lines are counted but skipped. Blank lines are skipped as well, unless ``raw`` makes each
    line a body.
    """
    number = 0
    async for lines in lines_as_they_arrive():
        numbered = enumerate(lines, number + 1)
        wanted = [(at, line) for at, line in numbered if line.strip() or (raw and line)]
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
