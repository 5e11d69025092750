"""Changes that a command makes: shown as old → new, and only shown with `--dry-run`."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from turbopump.cli.frame import show
from turbopump.cli.tables import Column, Table
from turbopump.errors import TurbopumpError


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one value.

    - ``where``: the server, for example ``broker-a``.
    - ``what``: the thing, for example a setting or ``queue 3``.
    - ``old``, ``new``: the values; None is nothing.
    - ``fault``: the reason why the change failed, or None.
    """

    where: str
    what: str
    old: Any
    new: Any
    fault: str | None = None


COLUMNS: Final = (
    Column("where"),
    Column("what"),
    Column("old"),
    Column("new"),
    Column("fault", "failed because"),
)

dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show old → new values, and change nothing."
)


async def failure_of(change: Awaitable[object]) -> str | None:
    """Make a change. Return the reason why it failed, or None."""
    try:
        await change
    except TurbopumpError as error:
        return str(error)
    return None


def show_changes(
    output: str,
    changes: Sequence[Change],
    *,
    dry_run: bool,
    more: Mapping[str, Any] | None = None,
    before: Iterable[str | Table] = (),
) -> int:
    """Print changes. Return the exit code: 1 if a change failed.

    In JSON the changes are the list ``changes``, beside ``dry_run`` and the keys of ``more``. In a
    table servers with equal changes share their rows.

    - ``before``: lines and tables before the table of changes.
    """
    failed = any(change.fault is not None for change in changes)
    columns = COLUMNS if failed else COLUMNS[:-1]
    rows = [
        {"where": one.where, "what": one.what, "old": one.old, "new": one.new, "fault": one.fault}
        for one in changes
    ]
    value = {"dry_run": dry_run, **(more or {}), "changes": rows}
    if output == "csv":
        show(output, value, [Table(columns, rows)])
        return int(failed)
    parts: list[str | Table] = [*before, Table(columns, _merged(rows))]
    if not changes:
        parts.append("nothing changes")
    elif dry_run:
        parts.append("dry run: nothing was changed")
    show(output, value, parts)
    return int(failed)


def _merged(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the rows of servers that have the same changes."""
    by_server: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_server.setdefault(row["where"], []).append(row)
    servers: dict[str, list[str]] = {}
    for where, its in by_server.items():
        servers.setdefault(repr([{**row, "where": ""} for row in its]), []).append(where)
    return [
        {**row, "where": servers_text(where, len(by_server))}
        for where in servers.values()
        for row in by_server[where[0]]
    ]


ALL_FROM: Final = 3
"""Number of servers from which on a table has their number, instead of their addresses."""


def servers_text(servers: Sequence[str], asked: int) -> str:
    """Return servers as the cell of a table: their addresses, or ``all 4 servers``.

    - ``asked``: the number of all servers.
    """
    if len(servers) == asked >= ALL_FROM:
        return f"all {asked} servers"
    return ", ".join(servers)
