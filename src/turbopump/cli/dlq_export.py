"""Dead letters as a file: JSON lines, or Parquet. One rule: nothing is kept in memory but a row
group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from turbopump.cli.dlq_text import letter_row
from turbopump.client.dead_letters import DeadLetter
from turbopump.errors import StoredMessageError

ROW_GROUP: Final = 1024
ROW_GROUP_SIZE: Final = 64 * 1024 * 1024
"""Bytes of bodies."""

Write = Callable[[DeadLetter], None]


@contextmanager
def open_export(file: Path, kind: str) -> Iterator[Write]:
    """A function that writes a letter; the file is whole when the block has ended, and as it was if
    that ends with an error."""
    with _in_place_of(file) as part:
        if kind == "parquet":
            with _parquet(part) as write:
                yield write
            return
        with _json_lines(part) as write:
            yield write


def streams(file: Path) -> bool:
    """Whether what is written is gone at once: to standard output, a pipe or a device."""
    return str(file) == "-" or (file.exists() and not file.is_file())


@contextmanager
def _in_place_of(file: Path) -> Iterator[Path]:
    """Where to write what is to become ``file``: beside it, or into it where that cannot be."""
    if streams(file):
        yield file
        return
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
            lines.write(msgspec.json.encode(letter_row(letter)) + b"\n")

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
    schema = arrow.schema(
        [
            ("group", arrow.string()),
            ("broker", arrow.string()),
            ("queue_id", arrow.int32()),
            ("queue_offset", arrow.int64()),
            ("msg_id", arrow.string()),
            ("offset_msg_id", arrow.string()),
            ("origin_topic", arrow.string()),
            ("origin_msg_id", arrow.string()),
            ("attempts", arrow.int32()),
            ("died_ms", arrow.timestamp("ms", tz="UTC")),
            ("born_ms", arrow.timestamp("ms", tz="UTC")),
            ("tags", arrow.string()),
            ("keys", arrow.list_(arrow.string())),
            ("properties", arrow.map_(arrow.string(), arrow.string())),
            ("body", arrow.binary()),
            ("body_fault", arrow.string()),
        ]
    )
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
            try:
                row["body"] = letter.message.body
            except StoredMessageError:
                row["body"] = None
            rows.append(row)
            size += len(letter.message.stored_body)
            if len(rows) >= ROW_GROUP or size >= ROW_GROUP_SIZE:
                flush()

        yield write_row
        flush()
