"""`turbopump dlq list|show|resend|export`: dead letters, as text for people or JSON for programs.

Exit codes: 0 complete, 1 incomplete (a broker could not be asked, a letter was not sent, another
resend is running), 2 wrong usage, 3 no such dead letter.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import click

from turbopump.cli import dlq_output
from turbopump.cli.entry import INCOMPLETE, NOT_FOUND, command_group, complain
from turbopump.cli.frame import WITHOUT_CSV, RowStream, client_command, show
from turbopump.cli.names import group_subject
from turbopump.cli.values import NumberOption
from turbopump.client.dead_letters import (
    DeadLetter,
    DeadLetters,
    InDoubt,
    ResendReport,
    ResendTo,
    resend,
    would_resend,
)
from turbopump.client.trace import TRACE_TOPIC
from turbopump.clock import SystemClock
from turbopump.config.setting import below_home
from turbopump.filtering.sql92 import SqlError, compile_sql
from turbopump.filtering.sql_nodes import Filter

FAILURES_SHOWN: Final = 10
NOTHING: Final = "no group has dead letters"


def _compiled(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> Filter | None:
    if text is None:
        return None
    try:
        return compile_sql(text)
    except SqlError as error:
        raise click.BadParameter(f"{text!r} is not a filter: {error}") from None


sql_option = click.option(
    "--sql",
    metavar="FILTER",
    callback=_compiled,
    help="Only letters whose properties match: \"price > 5 AND TAGS = 'a'\".",
)


command = command_group("dlq", "Show, resend and export dead letters.")


@client_command(
    command, "list", DeadLetters, short_help="Groups that have dead letters.", watch=True
)
async def list_groups(dead_letters: DeadLetters, output: str) -> int:
    """List the groups that have dead letters, with their number and age."""
    groups = await dead_letters.groups()
    now_ms = SystemClock().now_ms() if output == "table" else None
    table = dlq_output.group_table(groups, now_ms)
    show(output, {"groups": groups}, [table] if groups or output == "csv" else [NOTHING])
    code = 0
    for group in groups:
        for name, why in group.missing.items():
            complain(f"there may be more dead letters of {group.group}: {name}: {why}")
            code = INCOMPLETE
    return code


@client_command(
    command, "show", DeadLetters, short_help="Dead letters of a group, and the reasons."
)
@group_subject()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@sql_option
@click.option(
    "--count",
    type=click.IntRange(1),
    default=10,
    help="Maximum number of letters, the oldest, if no ids are given.",
)
@click.option(
    "--trace-topic", metavar="NAME", default=TRACE_TOPIC, help="Topic of the consumers' traces."
)
async def show_letters(
    dead_letters: DeadLetters,
    group: str,
    ids: tuple[str, ...],
    sql: Filter | None,
    count: int,
    trace_topic: str,
    output: str,
) -> int:
    """Show dead letters of GROUP: those with an ID (unique id, offset message id, or
    BROKER:QUEUE:OFFSET), or the oldest."""
    choice = LetterChoice(ids, sql)
    rows = RowStream(output, dlq_output.LETTERS)
    found = 0
    async for letter in dead_letters.letters(group, choice):
        reason = await dead_letters.reason(letter, trace_topic=trace_topic) or "unknown"
        row = {**dlq_output.letter_row(letter), "reason": reason}
        rows.write(row, dlq_output.letter_lines(letter, reason))
        found += 1
        if choice.all_seen or (not ids and found == count):
            break
    return choice.complain(found)


@client_command(
    command,
    "resend",
    DeadLetters,
    short_help="Send dead letters again, each once.",
    forms=WITHOUT_CSV,
)
@group_subject()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@sql_option
@click.option("--all", "every", is_flag=True, help="All of them.")
@click.option(
    "--to",
    type=click.Choice([to.value for to in ResendTo]),
    default=ResendTo.ORIGIN.value,
    help="The topic they came from (every group of it gets them), or the group's own retry topic. "
    "There is one for consumers that pull, one for those that pop: retry finds out which.",
)
@click.option(
    "--rate",
    metavar="N",
    type=NumberOption(0, min_open=True),
    help="Maximum letters a second.  [default: no limit]",
)
@click.option(
    "--in-doubt",
    type=click.Choice([what.value for what in InDoubt]),
    default=InDoubt.LEAVE.value,
    help="How to treat letters that may have been sent to a queue that can no longer be read.",
)
@click.option("--dry-run", is_flag=True, help="Send nothing, only list.")
@click.option(
    "--journal",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the resend journal.  [default: $XDG_STATE_HOME/turbopump/dlq]",
)
async def resend_letters(
    dead_letters: DeadLetters,
    group: str,
    ids: tuple[str, ...],
    sql: Filter | None,
    every: bool,
    to: str,
    in_doubt: str,
    rate: float | None,
    dry_run: bool,
    journal: Path | None,
    output: str,
) -> int:
    """Send dead letters of GROUP again, each once: those with an ID (as `show` has them), those
    that match --sql, or --all."""
    if sum((bool(ids), sql is not None, every)) != 1:
        raise click.UsageError("nothing selected: give ids, --sql FILTER, or --all")
    choice = LetterChoice(ids, sql)
    directory = journal or default_journal()
    report = ResendReport(group)

    def on_progress(now: ResendReport) -> None:
        nonlocal report
        report = now
        if bar is not None:
            bar.update(now.handled - bar.pos)

    if dry_run:
        report = await would_resend(dead_letters, group, directory, ResendTo(to), choice)
    else:
        with _progress(await dead_letters.count(group), output) as bar:
            try:
                report = await resend(
                    dead_letters,
                    group,
                    directory,
                    ResendTo(to),
                    choice,
                    in_doubt=InDoubt(in_doubt),
                    rate=rate,
                    on_progress=on_progress,
                )
            except asyncio.CancelledError:
                complain(
                    f"interrupted: {report.sent:,} dead letters of {group} resent so far; "
                    "the next run checks the letters in flight, and sends nothing twice"
                )
                raise
    show(output, report, dlq_output.report_lines(report))
    _complain_of(report)
    return choice.complain(report.handled) or (0 if report.complete else INCOMPLETE)


def _complain_of(report: ResendReport) -> None:
    for position, why in list(report.failed.items())[:FAILURES_SHOWN]:
        complain(f"{position} was not sent: {why}")
    if report.failures > FAILURES_SHOWN:
        complain(f"and {report.failures - FAILURES_SHOWN} more were not sent")
    for queue, why in report.out_of_sight.items():
        complain(f"{queue}, where letters may have been sent, cannot be read: {why}")
    if report.out_of_sight:
        complain(
            "run it again when that queue can be read. If it is lost for good, decide: "
            "--in-doubt send sends those letters again (letters that had arrived are "
            "then there twice), --in-doubt sent counts them as sent"
        )
    if report.stopped is not None:
        complain(
            f"stopped: {report.stopped}; run it again when that is over, nothing is sent twice"
        )


EXPORTED = dict.fromkeys(("", ".jsonl", ".ndjson", ".json"), "jsonl") | {".parquet": "parquet"}
"""File name suffixes, and the format for each."""


@client_command(
    command, "export", DeadLetters, short_help="Write dead letters to a file.", has_output=False
)
@group_subject()
@click.argument(
    "file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True)
)
@sql_option
@click.option(
    "--format",
    "kind",
    type=click.Choice(["jsonl", "parquet"]),
    help="Form of the file.  [default: by the end of its name]",
)
async def export(
    dead_letters: DeadLetters, group: str, file: Path, sql: Filter | None, kind: str | None
) -> None:
    """Write the dead letters of GROUP to FILE (- for standard output): JSON lines, or Parquet with
    the package pyarrow."""
    kind = kind or EXPORTED.get(file.suffix.lower())
    if kind is None:
        raise click.UsageError(
            f"the name {file.name} does not say in which form: let it end in .jsonl or .parquet, "
            "or give --format jsonl or parquet"
        )
    written = 0
    try:
        with dlq_output.open_export(file, kind) as write:
            async for letter in dead_letters.letters(group, LetterChoice((), sql)):
                write(letter)
                written += 1
    except asyncio.CancelledError:
        left = (
            f"after {written:,} dead letters"
            if dlq_output.streams(file)
            else f"{file} is as it was"
        )
        complain(f"interrupted: {left}")
        raise
    if str(file) != "-":
        click.echo(f"{written} dead letters of {group} written to {file}", err=True)


class LetterChoice:
    """Filter of dead letters: by their ids, by SQL, or by both.

    The filter also records which ids were not found.
    """

    def __init__(self, ids: tuple[str, ...], sql: Filter | None) -> None:
        self._ids = frozenset(ids)
        self._sql = sql
        self._missing = dict.fromkeys(ids)

    def __call__(self, letter: DeadLetter) -> bool:
        if self._ids:
            if not letter.is_one_of(self._ids):
                return False
            for id_ in letter.ids:
                self._missing.pop(id_, None)
        return self._sql is None or self._sql(letter.message.properties)

    @property
    def all_seen(self) -> bool:
        """True if ids were given and all of them were found."""
        return bool(self._ids) and not self._missing

    def complain(self, found: int) -> int:
        """Warn about each id without a dead letter. Return the exit code."""
        for id_ in self._missing:
            complain(f"no dead letter has the id {id_}; turbopump dlq show lists them")
        if not found and not self._missing:
            complain("no dead letter matches")
        return NOT_FOUND if self._missing or not found else 0


def default_journal() -> Path:
    """Return the default directory of the resend journal, according to the XDG specification."""
    state = os.environ.get("XDG_STATE_HOME")
    home = Path(state) if state else below_home(".local", "state", instead="--journal")
    return home / "turbopump" / "dlq"


def _progress(count: int, output: str) -> AbstractContextManager[Any]:
    """Return a context manager that shows a progress bar on standard error.

    If the output is for programs, or if standard error is not a terminal, the context manager
    yields None and shows nothing.
    """
    if output != "table" or not os.isatty(2):
        return nullcontext()
    return click.progressbar(length=count, label="resending", show_pos=True, file=sys.stderr)
