"""Changes that a command makes: shown as old → new, and only shown with `--dry-run`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from turbopump.cli.frame import show
from turbopump.cli.tables import Column, Table


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


def show_changes(output: str, changes: Sequence[Change], *, dry_run: bool) -> int:
    """Print changes. Return the exit code: 1 if a change failed.

    In JSON the changes are the list ``changes``, beside ``dry_run``.
    """
    failed = any(change.fault is not None for change in changes)
    columns = COLUMNS if failed else COLUMNS[:-1]
    rows = [
        {"where": one.where, "what": one.what, "old": one.old, "new": one.new, "fault": one.fault}
        for one in changes
    ]
    parts: list[str | Table] = [Table(columns, rows)]
    if not changes:
        parts = ["nothing changes"]
    elif dry_run:
        parts.append("dry run: nothing was changed")
    show(output, {"dry_run": dry_run, "changes": rows}, parts)
    return int(failed)
