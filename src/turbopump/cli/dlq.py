"""`turbopump dlq list|show|resend|export`: dead letters, for people, or as JSON for programs.

Exit codes: 0 all of it was done, 1 it was not (not every broker could be asked, not every letter
was sent, somebody else is at it), 2 asked wrongly, 3 there is no such dead letter.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from turbopump.cli.cluster import checked_number, name_server_option
from turbopump.cli.dlq_output import group_lines, letter_lines, letter_row, report_lines
from turbopump.cli.message import INCOMPLETE, NOT_FOUND
from turbopump.cli.serving import log_options, run_client, start_log
from turbopump.cli.topic import output_option
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
from turbopump.errors import MessageNotFoundError
from turbopump.filtering.sql92 import SqlError, compile_sql
from turbopump.filtering.sql_nodes import Filter

FAILURES_SHOWN: Final = 10


class SqlOption(click.ParamType):  # type: ignore[type-arg]
    """A SQL92 filter over the properties of a message."""

    name = "FILTER"

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> Filter:
        try:
            return compile_sql(str(value))
        except SqlError as error:
            self.fail(f"{str(value)!r} is no filter: {error}")


sql_option = click.option(
    "--sql",
    metavar="FILTER",
    type=SqlOption(),
    help="Only letters whose properties match: \"price > 5 AND TAGS = 'a'\".",
)


@click.group(name="dlq", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Look at dead letters, send them again, take them out."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


@command.command(name="list", short_help="Groups that have dead letters.")
@name_server_option
@output_option
@log_options("warning")
def list_groups(namesrv: list[str], output: str, log_level: str, log_file: str | None) -> None:
    """List the groups that have dead letters: how many, and how old."""
    start_log(log_level, log_file)

    async def work(dead_letters: DeadLetters) -> int:
        groups = await dead_letters.groups()
        if output == "json":
            for group in groups:
                click.echo(msgspec.json.encode(group))
        else:
            for line in group_lines(groups, SystemClock().now_ms()):
                click.echo(line)
        missing = [
            f"{group.group}: {name}: {why}"
            for group in groups
            for name, why in group.missing.items()
        ]
        for text in missing:
            click.echo(f"turbopump: there may be more dead letters of {text}", err=True)
        return INCOMPLETE if missing else 0

    _run(namesrv, work)


@command.command(name="show", short_help="What dead letters of a group are, and why they died.")
@click.argument("group")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@name_server_option
@sql_option
@click.option(
    "--count",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Without ids: at most so many, the oldest.",
)
@click.option(
    "--trace-topic",
    metavar="NAME",
    default=TRACE_TOPIC,
    show_default=True,
    help="Where consumers leave their traces.",
)
@output_option
@log_options("warning")
def show(
    group: str,
    ids: tuple[str, ...],
    namesrv: list[str],
    sql: Filter | None,
    count: int,
    trace_topic: str,
    output: str,
    log_level: str,
    log_file: str | None,
) -> None:
    """Show dead letters of GROUP: those with an ID (unique id, offset message id, or
    BROKER:QUEUE:OFFSET), or the oldest."""
    start_log(log_level, log_file)
    choice = Choice(ids, sql)

    async def work(dead_letters: DeadLetters) -> int:
        shown = 0
        async for letter in dead_letters.letters(group, choice):
            reason = await dead_letters.reason(letter, trace_topic=trace_topic)
            if output == "json":
                click.echo(
                    msgspec.json.encode({**letter_row(letter), "reason": reason or "unknown"})
                )
            else:
                for line in letter_lines(letter, reason or "unknown"):
                    click.echo(line)
            shown += 1
            if choice.all_seen or (not ids and shown == count):
                break
        return choice.complain(shown)

    _run(namesrv, work)


@command.command(name="resend", short_help="Send dead letters again, each once.")
@click.argument("group")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@name_server_option
@sql_option
@click.option("--all", "every", is_flag=True, help="All of them.")
@click.option(
    "--to",
    type=click.Choice([to.value for to in ResendTo]),
    default=ResendTo.ORIGIN.value,
    show_default=True,
    help="The topic they came from (every group of it gets them), or the group's own retry topic. "
    "There is one for consumers that pull, one for those that pop: retry finds out which.",
)
@click.option(
    "--rate",
    metavar="N",
    type=click.FloatRange(0, min_open=True),
    callback=checked_number,
    help="At most so many a second.  [default: no limit]",
)
@click.option(
    "--in-doubt",
    type=click.Choice([what.value for what in InDoubt]),
    default=InDoubt.LEAVE.value,
    show_default=True,
    help="What to do with letters that may have been sent to a queue that cannot be read any more.",
)
@click.option("--dry-run", is_flag=True, help="Send nothing, say what would be sent.")
@click.option(
    "--journal",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where it is written down what was resent.  [default: $XDG_STATE_HOME/turbopump/dlq]",
)
@output_option
@log_options("warning")
def resend_letters(
    group: str,
    ids: tuple[str, ...],
    namesrv: list[str],
    sql: Filter | None,
    every: bool,
    to: str,
    in_doubt: str,
    rate: float | None,
    dry_run: bool,
    journal: Path | None,
    output: str,
    log_level: str,
    log_file: str | None,
) -> None:
    """Send dead letters of GROUP again, each once: those with an ID (as `show` has them), those
    that match --sql, or --all."""
    if sum((bool(ids), sql is not None, every)) != 1:
        raise click.UsageError("choose what to resend: ids, --sql FILTER, or --all")
    start_log(log_level, log_file)
    choice = Choice(ids, sql)
    directory = journal or default_journal()

    async def work(dead_letters: DeadLetters) -> int:
        if dry_run:
            report = await would_resend(dead_letters, group, directory, ResendTo(to), choice)
        else:
            report = ResendReport(group)

            def told(now: ResendReport) -> None:
                nonlocal report
                report = now
                tell(now)

            with _progress(await dead_letters.count(group), output) as tell:
                try:
                    report = await resend(
                        dead_letters,
                        group,
                        directory,
                        ResendTo(to),
                        choice,
                        in_doubt=InDoubt(in_doubt),
                        rate=rate,
                        on_progress=told,
                    )
                except asyncio.CancelledError:
                    click.echo(
                        f"turbopump: interrupted: {report.sent:,} dead letters of {group} resent "
                        "so far; whether those on their way have "
                        "arrived the next run finds out, and nothing is sent twice",
                        err=True,
                    )
                    raise
        if output == "json":
            click.echo(msgspec.json.encode(report))
        else:
            for line in report_lines(report):
                click.echo(line)
        for place, why in list(report.failed.items())[:FAILURES_SHOWN]:
            click.echo(f"turbopump: {place} was not sent: {why}", err=True)
        if report.failures > FAILURES_SHOWN:
            click.echo(
                f"turbopump: and {report.failures - FAILURES_SHOWN} more were not sent", err=True
            )
        for queue, why in report.out_of_sight.items():
            click.echo(
                f"turbopump: {queue}, where letters may have been sent, cannot be read: {why}",
                err=True,
            )
        if report.out_of_sight:
            click.echo(
                "turbopump: run it again when that can be read. If it is gone for good, decide: "
                "--in-doubt send sends those letters again "
                "(what had arrived is there twice), --in-doubt sent takes them for sent",
                err=True,
            )
        if report.stopped is not None:
            click.echo(
                f"turbopump: stopped: {report.stopped}; run it again when that is over, "
                "nothing is sent twice",
                err=True,
            )
        return choice.complain(report.handled) or (0 if report.complete else INCOMPLETE)

    _run(namesrv, work)


EXPORTED = {
    "": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
"""Endings of names, and the form of the file."""


@command.command(name="export", short_help="Write dead letters to a file.")
@click.argument("group")
@click.argument(
    "file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True)
)
@name_server_option
@sql_option
@click.option(
    "--format",
    "kind",
    type=click.Choice(["jsonl", "parquet"]),
    help="Form of the file.  [default: by the end of its name]",
)
@log_options("warning")
def export(
    group: str,
    file: Path,
    namesrv: list[str],
    sql: Filter | None,
    kind: str | None,
    log_level: str,
    log_file: str | None,
) -> None:
    """Write the dead letters of GROUP to FILE (- for standard output): JSON lines, or Parquet with
    the package pyarrow."""
    start_log(log_level, log_file)
    kind = kind or EXPORTED.get(file.suffix.lower())
    if kind is None:
        raise click.UsageError(
            f"the name {file.name} does not say in which form: let it end in .jsonl or .parquet, "
            "or give --format jsonl or parquet"
        )
    choice = Choice((), sql)

    async def work(dead_letters: DeadLetters) -> int:
        from turbopump.cli.dlq_output import open_export, streams

        written = 0
        try:
            with open_export(file, kind) as write:
                async for letter in dead_letters.letters(group, choice):
                    write(letter)
                    written += 1
        except asyncio.CancelledError:
            left = f"after {written:,} dead letters" if streams(file) else f"{file} is as it was"
            click.echo(f"turbopump: interrupted: {left}", err=True)
            raise
        if str(file) != "-":
            click.echo(f"{written} dead letters of {group} written to {file}", err=True)
        return 0

    _run(namesrv, work)


class Choice:
    """Which letters are meant; and afterwards, which ids meant none."""

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
        """Whether every id that was given has been found."""
        return bool(self._ids) and not self._missing

    def complain(self, found: int) -> int:
        """Say what was not there; the exit code."""
        for id_ in self._missing:
            click.echo(
                f"turbopump: there is no dead letter {id_}; turbopump dlq show lists them", err=True
            )
        if not found and not self._missing:
            click.echo("turbopump: there is no such dead letter", err=True)
        return NOT_FOUND if self._missing or not found else 0


def default_journal() -> Path:
    """Where the state of a user's programs is kept, by the XDG specification."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "turbopump" / "dlq"


def _run(namesrv: list[str], work: Callable[[DeadLetters], Coroutine[Any, Any, int]]) -> None:
    code = 0

    async def connected() -> None:
        nonlocal code
        async with DeadLetters(namesrv) as dead_letters:
            try:
                code = await work(dead_letters)
            except MessageNotFoundError as error:
                click.echo(f"turbopump: {error}", err=True)
                code = NOT_FOUND

    run_client(connected())
    click.get_current_context().exit(code)


@contextmanager
def _progress(count: int, output: str) -> Iterator[Callable[[ResendReport], None]]:
    """A bar on standard error, for a person at a terminal."""
    if output == "json" or not os.isatty(2):
        yield lambda report: None
        return
    with click.progressbar(length=count, label="resending", show_pos=True, file=sys.stderr) as bar:

        def tell(report: ResendReport) -> None:
            bar.update(report.handled - bar.pos)

        yield tell
