"""Values of command options: topics, addresses, times, queues and numbers. Each value is checked
before the command starts its work."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from turbopump.clock import SystemClock
from turbopump.config.addresses import parse_address, parse_addresses
from turbopump.errors import ConfigError, NotFoundError
from turbopump.message.message import MessageQueue
from turbopump.message.rules import group_fault, topic_fault


def checked_topic(
    _context: click.Context, _parameter: click.Parameter, topic: str | None
) -> str | None:
    """Check the topic that an option names, and return it. Return None if the option is not given.

    Raises BadParameter for an invalid name.
    """
    fault = None if topic is None else topic_fault(topic)
    if fault is not None:
        raise click.BadParameter(fault)
    return topic


def checked_group(
    _context: click.Context, _parameter: click.Parameter, group: str | None
) -> str | None:
    """Check the consumer group that an option names, and return it. Return None if the option is
    not given.

    Raises BadParameter for an invalid name.
    """
    fault = None if group is None else group_fault(group)
    if fault is not None:
        raise click.BadParameter(fault)
    return group


def checked_address(
    _context: click.Context, _parameter: click.Parameter, address: str | None
) -> str | None:
    """Check that an option has the form HOST:PORT, and return it. Return None if the option is not
    given.

    Raises BadParameter if the option has another form.
    """
    if address is None:
        return None
    try:
        parse_address(address)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return address


def _checked_addresses(
    _context: click.Context, _parameter: click.Parameter, addresses: str | None
) -> str | None:
    if addresses is None:
        return None
    try:
        if not parse_addresses(addresses, what="controller address"):
            raise ConfigError("the list of controllers is empty: expected HOST:PORT;HOST:PORT")
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return addresses


controller_option = click.option(
    "-a",
    "--controller",
    metavar="ADDRS",
    callback=_checked_addresses,
    help="Controllers, HOST:PORT;HOST:PORT; one is enough to find the others' leader.  [default: "
    "controllerAddr of the brokers]",
)


MS_DIGITS: Final = 15
"""Maximum number of digits of a time in ms since 1970, which reaches to the year 33658."""
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO: Final = re.compile(r"(\d+)([smhd])")


def time_ms(text: str) -> int | None:
    """Return a time in ms since 1970 from a text, or None if the text is not a time.

    The text is ISO 8601 or a number of ms. A time without a zone is local time.
    """
    if text.isascii() and text.isdigit() and len(text) <= MS_DIGITS:
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def time_text(ms: int) -> str:
    """Convert a time in ms since 1970 to readable text. A time out of range stays a number."""
    if not 0 < ms < 1 << 43:
        return str(ms)
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


class TimeOption(click.ParamType):  # type: ignore[type-arg]
    """Type of a command option for a time.

    The text is one of ``words``, or has a form that ``time_ms`` accepts. A past time may also be
    `15m`, 15 minutes ago (s, m, h, d).
    """

    name = "TIME"

    def __init__(self, *words: str, future: bool = False) -> None:
        self._words = words
        self._future = future

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> int | str:
        text = str(value)
        if text in self._words:
            return text
        found = _AGO.fullmatch(text)
        if found is not None and not self._future:
            return max(SystemClock().now_ms() - int(found[1]) * _UNITS_MS[found[2]], 0)
        ms = time_ms(text)
        if ms is None:
            forms = [*self._words, "2026-11-21T08:30:00", "ms since 1970"]
            if not self._future:
                forms.append("or 15m (15 minutes ago; s, m, h, d)")
            self.fail(f"{text!r} is not a time: expected {', '.join(forms)}")
        return ms


class QueueOption(click.ParamType):  # type: ignore[type-arg]
    """Type of a command option for one queue of a topic.

    The text is ``BROKER:ID``, or ``ID`` if only one broker has that id.
    """

    name = "[BROKER:]ID"

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> QueueName:
        wanted = queue_name(str(value))
        if wanted is None:
            self.fail(f"{value!r} is not a queue: expected its number, or BROKER:NUMBER")
        return wanted


QueueName = tuple[str | None, int]
"""Name of a broker and a queue id. The name is None if it is not given."""


def queue_name(text: str) -> QueueName | None:
    """Parse the name of a queue, such as ``3`` or ``broker-a:3``. Return None for other text."""
    broker, _, number = text.rpartition(":")
    if not (number.isascii() and number.isdigit() and len(number) < MS_DIGITS):
        return None
    return broker or None, int(number)


def find_queue(wanted: QueueName, queues: Sequence[MessageQueue], topic: str) -> MessageQueue:
    """Find the queue of a topic that the user has named.

    Raises NotFoundError if there is no such queue, and ClickException if several brokers have one.
    The error lists the existing queues.
    """
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
    raise NotFoundError(f"{topic} has no queue {named}; it has {there or 'none'}")


class NumberOption(click.FloatRange):
    """Type of a command option for a number in a range.

    Unlike click's own range, it refuses `nan`.
    """

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        number = float(super().convert(value, parameter, context))
        if math.isnan(number):
            self.fail("nan is not a number")
        return number


def checked_pairs(
    _context: click.Context, _parameter: click.Parameter, given: Sequence[str]
) -> dict[str, str]:
    """Parse the texts ``NAME=VALUE`` of an option. Return the values by name.

    Raises BadParameter if a text has another form.
    """
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{text!r}: expected NAME=VALUE")
        pairs[name] = value
    return pairs
