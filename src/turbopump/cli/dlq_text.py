"""Dead letters as people read them, and as rows for programs. Values in, lines or rows out."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any, Final

from turbopump.cli.message import body_lines, shown, time_text
from turbopump.client.dead_letters import DeadGroup, DeadLetter, ResendReport
from turbopump.config.addresses import join_address
from turbopump.errors import StoredMessageError
from turbopump.message import properties as names
from turbopump.message.failure import CONSUME_FAILURE

_AGES: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
_SHOWN_APART: Final = frozenset(
    {
        names.TAGS,
        names.KEYS,
        names.UNIQ_KEY,
        names.RETRY_TOPIC,
        names.ORIGIN_MESSAGE_ID,
        CONSUME_FAILURE,
    }
)


def group_lines(groups: Sequence[DeadGroup], now_ms: int) -> Iterator[str]:
    """A table with a heading; a sentence if there is nothing."""
    if not groups:
        yield "no group has dead letters"
        return
    rows = [("GROUP", "LETTERS", "OLDEST", "NEWEST")]
    rows += [
        (
            shown(one.group),
            f"{one.count:,}",
            _age(one.oldest_ms, now_ms),
            _age(one.newest_ms, now_ms),
        )
        for one in groups
    ]
    first, second, third = (max(len(row[column]) for row in rows) for column in range(3))
    for row in rows:
        yield f"{row[0]:{first}}  {row[1]:>{second}}  {row[2]:{third}}  {row[3]}".rstrip()


def letter_lines(letter: DeadLetter, reason: str) -> Iterator[str]:
    """One letter, its body last."""
    message = letter.message
    yield f"{shown(letter.place)}"
    facts = {
        "id": shown(message.msg_id),
        "offset id": message.offset_msg_id,
        "origin": shown(letter.origin_topic or "unknown"),
        "first copy": shown(letter.origin_msg_id or ""),
        "attempts": str(letter.attempts),
        "reason": shown(reason),
        "died": time_text(message.store_timestamp),
        "born": f"{time_text(message.born_timestamp)} on {join_address(*message.born_host)}",
        "tags": shown(message.tags or ""),
        "keys": " ".join(shown(key) for key in message.keys),
    }
    for name, value in facts.items():
        if value:
            yield f"  {name:12} {value}"
    for name, value in message.properties.items():
        if name not in _SHOWN_APART:
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


def letter_row(letter: DeadLetter) -> dict[str, Any]:
    """One letter for programs: a body that is no UTF-8 text is ``body_base64``, one that cannot be
    read ``body_fault``."""
    message = letter.message
    row: dict[str, Any] = {
        "group": letter.group,
        "broker": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "origin_topic": letter.origin_topic,
        "origin_msg_id": letter.origin_msg_id,
        "attempts": letter.attempts,
        "died_ms": message.store_timestamp,
        "born_ms": message.born_timestamp,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
    }
    try:
        body = message.body
    except StoredMessageError as error:
        return {**row, "body_fault": str(error)}
    try:
        return {**row, "body": body.decode()}
    except UnicodeDecodeError:
        return {**row, "body_base64": base64.b64encode(body).decode()}


def report_lines(report: ResendReport) -> Iterator[str]:
    """What was done, or would be."""
    yield (
        f"{report.sent:,} dead letters of {shown(report.group)} "
        f"{'would be ' if report.dry_run else ''}resent"
    )
    for topic, count in sorted(report.targets.items()):
        yield f"  {count:,} to {shown(topic)}"
    counts = {
        "were resent before": report.already,
        "of an interrupted run were found in their topics": report.recovered,
        "were resent by somebody else": report.elsewhere,
        "could not be sent": report.failures,
        f"may or may not have been sent{'' if report.out_of_sight else ', the next run finds out'}": report.in_doubt,
    }
    for text, count in counts.items():
        if count:
            yield f"  {count:,} {text}"


def _age(ms: int | None, now_ms: int) -> str:
    if ms is None:
        return ""
    past = max(now_ms - ms, 0)
    return next((f"{past // size} {unit} ago" for size, unit in _AGES if past >= size), "now")
