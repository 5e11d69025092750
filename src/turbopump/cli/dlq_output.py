"""Output of dead letters: lines of text for people, rows for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from turbopump.cli.json_lines import body_fields, body_or_stored, json_line
from turbopump.cli.message import message_lines, shown
from turbopump.cli.tables import Column, Table
from turbopump.cli.values import time_text
from turbopump.client.dead_letters import DeadGroup, DeadLetter, ResendReport
from turbopump.config.addresses import join_address
from turbopump.message import properties as names
from turbopump.message.properties import CONSUME_FAILURE

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


GROUPS: Final = (
    Column("group"),
    Column("count", "letters"),
    Column("oldest_ms", "oldest"),
    Column("newest_ms", "newest"),
)
LETTERS: Final = (
    *(Column(key) for key in ("group", "broker", "queue_id", "queue_offset", "msg_id")),
    *(Column(key) for key in ("origin_topic", "attempts", "died_ms", "born_ms", "tags", "keys")),
    *(Column(key) for key in ("reason", "body", "body_base64")),
)
"""Columns of a dead letter in CSV."""


def group_table(groups: Sequence[DeadGroup], now_ms: int | None) -> Table:
    """Return the table of the groups with dead letters.

    - ``now_ms``: the time, for a table with the ages of the letters. None for plain times.
    """
    rows = [msgspec.to_builtins(one) for one in groups]
    if now_ms is not None:
        for row in rows:
            row |= {key: _age(row[key], now_ms) for key in ("oldest_ms", "newest_ms")}
    return Table(GROUPS, rows)


def letter_lines(letter: DeadLetter, reason: str) -> Iterator[str]:
    """Yield a dead letter as lines of text. The body comes last."""
    message = letter.message
    yield shown(letter.position)
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
    yield from message_lines(message, facts, _SHOWN_APART)


def letter_row(letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as a row of JSON or Parquet fields."""
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
    return row | body_fields(message)


def report_lines(report: ResendReport) -> Iterator[str]:
    """Yield the report of a resend of dead letters, line by line. The resend may be a dry run."""
    yield (
        f"{report.sent:,} dead letters of {shown(report.group)} "
        f"{'would be ' if report.dry_run else ''}resent"
    )
    for topic, count in sorted(report.targets.items()):
        yield f"  {count:,} to {shown(topic)}"
    later = "" if report.out_of_sight else ", the next run finds out"
    counts = {
        "were resent before": report.already,
        "of an interrupted run were found in their topics": report.recovered,
        "were resent by somebody else": report.elsewhere,
        "could not be sent": report.failures,
        f"may or may not have been sent{later}": report.in_doubt,
    }
    for text, count in counts.items():
        if count:
            yield f"  {count:,} {text}"


def _age(ms: int | None, now_ms: int) -> str | None:
    if ms is None:
        return None
    past = max(now_ms - ms, 0)
    return next((f"{past // size} {unit} ago" for size, unit in _AGES if past >= size), "now")


# Dead letters as a file: JSON lines, or Parquet. Only one row group is in memory at a time.
ROW_GROUP: Final = 1024
ROW_GROUP_SIZE: Final = 64 * 1024 * 1024
"""Bytes of bodies in one row group of a Parquet file."""

Write = Callable[[DeadLetter], None]


@contextmanager
def open_export(file: Path, kind: str) -> Iterator[Write]:
    """Open a file for dead letters. Yield a function that writes one dead letter.

    The file is complete when the block ends. After an error, the file has its old content.
    """
    with _replacing(file) as part:
        if kind == "parquet":
            with _parquet(part) as write:
                yield write
            return
        with _json_lines(part) as write:
            yield write


def streams(file: Path) -> bool:
    """Return True if a file is a stream, so that written bytes cannot be taken back.

    Standard output, a pipe and a device are streams.
    """
    return str(file) == "-" or (file.exists() and not file.is_file())


@contextmanager
def _replacing(file: Path) -> Iterator[Path]:
    """Yield the path for the new content of a file.

    Usually the path is a temporary file. It replaces ``file`` when the block ends without an error.
    If ``file`` is a stream, the path is ``file`` itself.
    """
    if streams(file):
        yield file
        return
    # The old file stays until the new one is complete, also after Ctrl-C, which is no Exception.
    # The part is beside the file, because a file is replaced in one step only on one disk.
    whole = file.resolve()
    part = whole.with_name(f"{whole.name}.part")
    try:
        yield part
        part.replace(whole)
    except OSError as error:
        part.unlink(missing_ok=True)
        if error.filename == str(part):
            error.filename = str(file)
        raise
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def _json_lines(file: Path) -> Iterator[Write]:
    with click.open_file(str(file), "wb") as lines:

        def write_line(letter: DeadLetter) -> None:
            lines.write(json_line(letter_row(letter)) + b"\n")

        yield write_line


@contextmanager
def _parquet(file: Path) -> Iterator[Write]:
    if str(file) == "-":
        raise click.UsageError("Parquet is written to a file, not to standard output; name one")
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise click.ClickException(
            "Parquet needs the package pyarrow: pip install pyarrow; or export JSON lines"
        ) from None
    text, time = arrow.string(), arrow.timestamp("ms", tz="UTC")
    kinds = {
        **dict.fromkeys(("group", "broker"), text),
        "queue_id": arrow.int32(),
        "queue_offset": arrow.int64(),
        **dict.fromkeys(("msg_id", "offset_msg_id", "origin_topic", "origin_msg_id"), text),
        "attempts": arrow.int32(),
        **dict.fromkeys(("died_ms", "born_ms"), time),
        "tags": text,
        "keys": arrow.list_(text),
        "properties": arrow.map_(text, text),
        "body": arrow.binary(),
        "body_fault": text,
    }
    schema = arrow.schema(list(kinds.items()))
    rows: list[dict[str, Any]] = []
    size = 0
    with parquet.ParquetWriter(file, schema) as writer:

        def flush() -> None:
            nonlocal size
            if rows:
                writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
            rows.clear()
            size = 0

        def write_row(letter: DeadLetter) -> None:
            nonlocal size
            row = letter_row(letter)
            row.pop("body_base64", None)
            row["properties"] = list(row["properties"].items())
            row["body"], _ = body_or_stored(letter.message)
            rows.append(row)
            size += len(letter.message.stored_body)
            if len(rows) >= ROW_GROUP or size >= ROW_GROUP_SIZE:
                flush()

        yield write_row
        flush()
