"""Tables of a command's answer: on a terminal, as plain text, and as CSV.

A table declares its columns with a heading and a unit. The values in its rows are those of the JSON
form. The rows and their order are those of the command; nothing is sorted or left out here.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from turbopump.cli.values import time_text
from turbopump.protocol.codes import version_name

BYTES: Final = "bytes"
TIME: Final = "time"
MS: Final = "ms"
VERSION: Final = "version"


class Column(NamedTuple):
    """Column of a table.

    - ``key``: the key of the value in each row.
    - ``heading``: the heading, or empty for the key with blanks instead of underscores.
    - ``unit``: ``BYTES``, ``TIME`` (ms since 1970, 0 for never) and ``VERSION`` (Apache's number)
      become readable in a table; any other unit stands in the heading.
    """

    key: str
    heading: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with the same columns. A row may lack a key, and its cell is empty then."""

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table, the headings first. A table without rows has none."""
        if not self.rows:
            return
        texts = [self._headings(), *self._cells()]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        right = self._numeric()
        for row in texts:
            cells = [
                text.rjust(width) if is_right else text.ljust(width)
                for text, width, is_right in zip(row, widths, right, strict=True)
            ]
            yield "  ".join(cells).rstrip()

    def show_on_terminal(self) -> None:
        """Write the table to a terminal with bold headings, if the library rich is installed."""
        try:
            from rich.console import Console
            from rich.table import Table as RichTable
        except ModuleNotFoundError:
            for line in self.lines():
                sys.stdout.write(f"{line}\n")
            return
        if not self.rows:
            return
        table = RichTable(box=None, pad_edge=False, header_style="bold")
        for heading, is_right in zip(self._headings(), self._numeric(), strict=True):
            table.add_column(heading, justify="right" if is_right else "left", overflow="fold")
        for row in self._cells():
            table.add_row(*row)
        Console(markup=False, highlight=False).print(table)

    def csv(self, *, headings: bool = True) -> str:
        """Return the table as CSV: the keys, then the values as in JSON (RFC 4180, lines end with
        ``\\n``)."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if headings:
            writer.writerow([column.key for column in self.columns])
        for row in self.rows:
            writer.writerow([_raw(row.get(column.key)) for column in self.columns])
        return text.getvalue()

    def _headings(self) -> list[str]:
        return [_heading(column) for column in self.columns]

    def _cells(self) -> list[list[str]]:
        return [[_cell(row.get(one.key), one.unit) for one in self.columns] for row in self.rows]

    def _numeric(self) -> list[bool]:
        return [self._is_numeric(one) for one in self.columns]

    def _is_numeric(self, column: Column) -> bool:
        values = [row.get(column.key) for row in self.rows]
        numbers = [value for value in values if value is not None]
        return (
            column.unit not in (TIME, VERSION)
            and bool(numbers)
            and all(type(value) in (int, float) for value in numbers)
        )


def _heading(column: Column) -> str:
    heading = (column.heading or column.key.replace("_", " ")).upper()
    if column.unit in ("", BYTES, TIME, VERSION):
        return heading
    return f"{heading} ({column.unit})"


def _cell(value: Any, unit: str) -> str:
    if value is None or (unit == TIME and value == 0):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(one, unit) for one in value)
    if unit == BYTES and isinstance(value, int):
        return size_text(value)
    if unit == TIME and isinstance(value, int):
        return time_text(value)
    if unit == VERSION and isinstance(value, int):
        return version_name(value)
    if isinstance(value, float):
        return f"{value:.1f}"
    text = str(value)
    if not text.isprintable():  # a terminal must not obey a name that a client chose
        text = json.dumps(text)
    return text


def size_text(size: float) -> str:
    """Format a number of bytes with a binary unit, such as ``1.5 GiB``."""
    if abs(size) < 1024:
        return f"{size:.0f} B"
    units = iter(("KiB", "MiB", "GiB", "TiB", "PiB"))
    unit = ""
    while abs(size) >= 1024:
        size /= 1024
        unit = next(units)
    return f"{size:.1f} {unit}"


def _raw(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return value
