"""`turbopump pipeline archive|cdc|compact|replay`: work on a lake with Spark. The commands archive
topics, apply database changes, merge small files, and replay messages. `mirror`, which needs no
Spark, is in `pipeline_mirror.py`.

Each command calls one function of `turbopump.spark.pipelines`, with progress, a clean stop and a
report. Spark is imported when a command runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from turbopump.cli.entry import LazyGroup, command_group
from turbopump.cli.frame import WITHOUT_CSV, name_server_option, output_option, show
from turbopump.cli.log_output import log_options
from turbopump.cli.message import begin_option
from turbopump.cli.values import NumberOption, TimeOption, checked_pairs, checked_topic

if TYPE_CHECKING:
    from turbopump.spark.pipelines import ArchiveReport, CdcReport, ReplayReport

STOPPED: Final = 130
DISAGREES: Final = 1

COMMANDS: Final = {"mirror": ("turbopump.cli.pipeline_mirror", "command")}

command = command_group(
    "pipeline",
    "Copy topics into a lake or tables, on Spark, or into another cluster.",
    cls=LazyGroup,
    places=COMMANDS,
)


class LakePath(click.Path):
    """Type of a command option that is a local directory of a lake.

    URLs are refused here, because ``Path`` would change them to other names.
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from turbopump.spark.pipelines.lake import lake_place

        lake_place(value)
        return super().convert(value, param, ctx)


def _checked_topics(
    context: click.Context, parameter: click.Parameter, topics: tuple[str, ...]
) -> tuple[str, ...]:
    for topic in topics:
        checked_topic(context, parameter, topic)
    return topics


def master_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option ``--master`` and the log options to a command."""
    option = click.option(
        "--master",
        metavar="URL",
        help="Spark's master.  [default: the variable MASTER, else local[*]]",
    )
    return option(log_options("warning", plain=True)(function))


metrics_port_option = click.option(
    "--metrics-port",
    metavar="N",
    type=click.IntRange(0, 65535),
    help="Serve the metrics of the run at http://127.0.0.1:N/metrics; 0 for a free port, which is "
    "printed.  [default: no page]",
)

source_option = click.option(
    "--option",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    callback=checked_pairs,
    help="A further option of format rocketmq, such as credentialsFile=FILE; more than once.",
)


def follow_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for a run that does not end at the present end of its topics."""
    follow = click.option("--follow", is_flag=True, help="Continue until Ctrl-C.")
    interval = click.option(
        "--interval",
        metavar="SECONDS",
        type=NumberOption(0.1),
        default=10.0,
        help="With --follow: seconds to wait when there is nothing more.",
    )
    return follow(interval(function))


def lost_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about small files, lost messages and restarted queues."""
    small = click.option("--no-compact", is_flag=True, help="Leave small files as they are.")
    skip = click.option(
        "--skip-lost", is_flag=True, help="Continue after deleted messages, and count them."
    )
    restart = click.option(
        "--restart-queue",
        "restart_queues",
        is_flag=True,
        help="Begin another generation of a queue that was made again or lost its end.",
    )
    return small(skip(restart(function)))


@command.command(name="archive", short_help="Append topics to a lake, exactly once.")
@click.argument("topics", metavar="TOPIC…", nargs=-1, required=True, callback=_checked_topics)
@click.argument("lake", metavar="LAKE", type=LakePath())
@name_server_option
@click.option(
    "--format",
    "format",
    type=click.Choice(["parquet", "delta"]),
    help="Format of a new lake.  [default: parquet]",
)
@click.option("--columns", metavar="A,B,…", help="Columns of a new lake.  [default: all]")
@click.option(
    "--json-schema",
    metavar="DDL",
    help='Bodies of a new lake are JSON and become columns: "carrier string, date AS day date".',
)
@click.option(
    "--timestamp-unit",
    "units",
    metavar="[FIELD=]UNIT",
    multiple=True,
    help="With --json-schema: numbers in timestamps, or in those of FIELD, count s, ms or us since "
    "1970; more than once.  [default: s]",
)
@click.option(
    "--avro-schema",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Bodies of a new lake are Avro records of this schema and become columns.",
)
@click.option("--drop-body", is_flag=True, help="Leave out the column with the whole body.")
@click.option(
    "--body-prefix", metavar="TEXT", default="", help="Columns of bodies begin with this text."
)
@click.option(
    "--body-struct",
    metavar="NAME",
    default="",
    help="Columns of bodies are within the one column NAME.",
)
@click.option(
    "--from",
    "starting",
    metavar="WHERE",
    type=TimeOption("earliest", "latest"),
    default="earliest",
    help="Start of a queue that is new to the lake: earliest, latest, or a time.",
)
@follow_options
@click.option(
    "--rows-per-batch", type=click.IntRange(1), default=500_000, help="Messages of one commit."
)
@lost_options
@click.option(
    "--max-rejected",
    metavar="N|N%",
    help="End with exit code 1 if more rows were rejected.  [default: only if all were]",
)
@source_option
@metrics_port_option
@output_option("Form of the report.", forms=WITHOUT_CSV)
@master_option
def archive_command(
    topics: tuple[str, ...],
    lake: Path,
    namesrv: list[str],
    json_schema: str | None,
    units: tuple[str, ...],
    avro_schema: Path | None,
    drop_body: bool,
    body_prefix: str,
    body_struct: str,
    starting: str | int,
    no_compact: bool,
    skip_lost: bool,
    output: str,
    master: str | None,
    metrics_port: int | None,
    **settings: Any,
) -> None:
    """Append the messages of topics that the directory LAKE does not have yet.

    The lake stores its progress: start the command again, also after a kill. Exit code 1 if the
    counts do not agree at the end, a topic or queue was left out, or too many rows were rejected.
    """
    if json_schema is not None and avro_schema is not None:
        raise click.UsageError("bodies are JSON or Avro: give one of --json-schema, --avro-schema")
    if json_schema is None and avro_schema is None:
        for given, name in (
            (drop_body, "--drop-body"),
            (body_prefix, "--body-prefix"),
            (body_struct, "--body-struct"),
        ):
            if given:
                raise click.UsageError(f"{name} needs --json-schema or --avro-schema")
    if units and json_schema is None:
        raise click.UsageError("--timestamp-unit needs --json-schema")
    unit = _timestamp_unit(units)

    from turbopump.spark.pipelines import archive, avro_bodies, json_bodies

    with _spark_run("archive", master, metrics_port) as run:
        bodies = None
        names = {"prefix": body_prefix, "struct": body_struct}
        if json_schema is not None:
            bodies = json_bodies(json_schema, kept=not drop_body, timestamp_unit=unit, **names)
        elif avro_schema is not None:
            bodies = avro_bodies(avro_schema.read_text("utf-8"), kept=not drop_body, **names)
        report = archive(
            lake,
            topics,
            name_server=";".join(namesrv),
            bodies=bodies,
            starting=starting,
            compact=not no_compact,
            fail_on_data_loss=not skip_lost,
            **settings,
            **run,
        )
    _show_and_exit(report, output, _archived(report), ok=report.ok or report.stopped)


def _timestamp_unit(given: tuple[str, ...]) -> str | dict[str, str]:
    """Parse the option for the unit of timestamps. Return one unit for all fields, or a unit for
    each field.

    The option is given once as ``UNIT``, or as ``FIELD=UNIT`` for each field. The default is ``s``.
    Raises UsageError if both forms are mixed.
    """
    pairs = [text.rpartition("=") for text in given]
    if len(given) == 1 and not pairs[0][1]:
        return given[0]
    if not all(equals for _, equals, _ in pairs):
        raise click.UsageError(
            "--timestamp-unit is one UNIT for all fields, or FIELD=UNIT for each"
        )
    if not given:
        return "s"
    return {name: unit for name, _, unit in pairs}


def _declared_keys(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, tuple[str, ...]] | None:
    """Parse ``--key``: ``DATABASE.TABLE=COLUMN,…``, or ``COLUMN,…`` for all other tables."""
    found = {}
    for text in given:
        table, equals, columns = text.rpartition("=")
        found[table if equals else "*"] = tuple(columns.split(","))
    return found or None


@command.command(name="cdc", short_help="Apply database changes in a topic to Delta tables.")
@click.argument("topic", callback=checked_topic)
@click.argument("lake", metavar="LAKE", type=LakePath())
@name_server_option
@click.option(
    "--format",
    "format",
    type=click.Choice(["canal-json", "debezium-json", "maxwell", "ticdc"]),
    required=True,
    help="Format of the bodies.",
)
@click.option(
    "--key",
    "keys",
    metavar="[TABLE=]A,B,…",
    multiple=True,
    callback=_declared_keys,
    help="Key of DATABASE.TABLE, or of all other tables, if messages do not tell it; more than "
    "once.",
)
@click.option(
    "--type",
    "types",
    metavar="COLUMN=TYPE",
    multiple=True,
    callback=checked_pairs,
    help="MySQL type of DATABASE.TABLE.COLUMN, if messages do not tell it; more than once.",
)
@click.option(
    "--time-zone",
    metavar="ZONE",
    help="Zone of times in columns of type timestamp, such as Asia/Shanghai.  [default: UTC]",
)
@click.option(
    "--soft-deletes",
    is_flag=True,
    default=None,
    help="Keep deleted rows of a new lake, with the column _deleted.",
)
@click.option(
    "--history",
    is_flag=True,
    default=None,
    help="Also keep each change of a new lake, in LAKE/_history.",
)
@click.option(
    "--from",
    "starting",
    metavar="WHERE",
    type=TimeOption("earliest", "latest"),
    default="earliest",
    help="Start of a queue that is new to the lake: earliest, latest, or a time.",
)
@follow_options
@click.option(
    "--rows-per-batch", type=click.IntRange(1), default=100_000, help="Messages of one commit."
)
@lost_options
@click.option(
    "--max-rejected",
    metavar="N|N%",
    help="End with exit code 1 if more messages were rejected.  [default: only if all were]",
)
@source_option
@metrics_port_option
@output_option("Form of the report.", forms=WITHOUT_CSV)
@master_option
def cdc_command(
    topic: str,
    lake: Path,
    namesrv: list[str],
    types: dict[str, str],
    no_compact: bool,
    skip_lost: bool,
    output: str,
    master: str | None,
    metrics_port: int | None,
    **settings: Any,
) -> None:
    """Apply the database changes in TOPIC to the directory LAKE, with a Delta table for each table.

    LAKE/DATABASE/TABLE has the rows that the database has. The lake stores its progress: start the
    command again, also after a kill. Exit code 1 if too many messages were rejected.
    """
    from turbopump.spark.pipelines import cdc

    with _spark_run("cdc", master, metrics_port) as run:
        report = cdc(
            lake,
            topic,
            name_server=";".join(namesrv),
            types=types or None,
            compact=not no_compact,
            fail_on_data_loss=not skip_lost,
            **settings,
            **run,
        )
    _show_and_exit(report, output, _captured(report), ok=report.ok or report.stopped)


@command.command(name="compact", short_help="Put small files of a lake together.")
@click.argument("lake", metavar="LAKE", type=LakePath())
@click.option(
    "--files",
    metavar="N",
    type=click.IntRange(2),
    default=2,
    help="Number of small files of a topic in an hour from which on they are merged.",
)
@click.option(
    "--size", metavar="MIB", type=click.IntRange(1), default=128, help="Size that files may reach."
)
@output_option("Form of the report.", forms=WITHOUT_CSV)
@log_options("warning", plain=True)
def compact_command(lake: Path, files: int, size: int, output: str) -> None:
    """Merge small files of the directory LAKE. Rows and offsets do not change.

    `archive` does this at its end if there are sixteen or more small files.
    """
    from turbopump.spark.pipelines import compact

    gone = compact(lake, files_min=files, size_target=size << 20)
    show(output, {"files_compacted": gone}, [f"{gone:,} files less"])


@command.command(name="replay", short_help="Send messages of a lake to a topic.")
@click.argument("lake", metavar="LAKE", type=LakePath())
@click.argument("topic", callback=checked_topic)
@click.argument("target", callback=checked_topic)
@name_server_option
@begin_option
@click.option("--end", metavar="TIME", type=TimeOption(), help="Stored before this time.")
@click.option("--key", "keys", metavar="KEY", multiple=True, help="With this key; more than once.")
@click.option("--where", metavar="CONDITION", help="In SQL: \"tags = 'UA' and queueId < 2\".")
@click.option(
    "--rate",
    metavar="N",
    type=NumberOption(0, min_open=True),
    help="Maximum messages a second.  [default: no limit]",
)
@click.option(
    "--name", help="Name of the replay.  [default: the same for the same TOPIC, TARGET and options]"
)
@click.option(
    "--rows-per-batch",
    type=click.IntRange(1),
    default=50_000,
    help="Messages after which progress is noted.",
)
@source_option
@metrics_port_option
@output_option("Form of the report.", forms=WITHOUT_CSV)
@master_option
def replay_command(
    lake: Path,
    topic: str,
    target: str,
    namesrv: list[str],
    begin: int | None,
    end: int | None,
    keys: tuple[str, ...],
    output: str,
    master: str | None,
    metrics_port: int | None,
    **settings: Any,
) -> None:
    """Send the messages of TOPIC in the lake LAKE to the topic TARGET, in the order of time.

    Ids, keys, tags and properties do not change. Each copy has the properties REPLAY_ID and
    REPLAYED_FROM, which name the original. After a stop or a kill start the command again: it
    continues where it stopped.
    """
    from turbopump.spark.pipelines import replay

    with _spark_run("replay", master, metrics_port) as run:
        report = replay(
            lake,
            topic,
            target,
            name_server=";".join(namesrv),
            begin_ms=begin,
            end_ms=end,
            **settings,
            **run,
        )
    _show_and_exit(report, output, _replayed(report), ok=report.agrees)


@contextmanager
def _spark_run(name: str, master: str | None, metrics_port: int | None) -> Iterator[dict[str, Any]]:
    """Open the environment of a pipeline in a command. Yield it as keyword arguments.

    The arguments are a Spark session, a stop event that Ctrl-C sets, the progress that is shown on
    standard error, and the metrics.
    """
    from turbopump.blocking.stop_signals import stop_on_signals
    from turbopump.spark.job_metrics import JobMetrics, MetricsPage
    from turbopump.spark.pipelines.row_progress import ProgressLine, RowProgress
    from turbopump.spark.pipelines.running import command_session

    metrics = JobMetrics()
    with ExitStack() as stack:
        if metrics_port is not None:
            page = stack.enter_context(MetricsPage(metrics.metrics, metrics_port))
            click.echo(f"metrics at {page.url}", err=True)
        spark = stack.enter_context(command_session(f"turbopump {name}", master))
        stop = stack.enter_context(stop_on_signals())
        line = stack.enter_context(closing(ProgressLine(name)))
        yield {
            "spark": spark,
            "stop": stop,
            "progress": RowProgress(shown=line),
            "metrics": metrics,
        }


def _show_and_exit(
    report: ArchiveReport | CdcReport | ReplayReport, output: str, lines: list[str], *, ok: bool
) -> None:
    """Print the report of a pipeline. End the command with the exit code of the report."""
    show(output, {**dataclasses.asdict(report), "agrees": report.agrees}, lines)
    code = 0
    if not ok:
        code = DISAGREES
    elif report.stopped:
        code = STOPPED
    click.get_current_context().exit(code)


def _archived(report: ArchiveReport) -> list[str]:
    there = f"{report.rows:,} rows"
    if report.rejected:
        there += f", {report.rejected:,} rejected (their bodies do not fit: table _rejected)"
    if report.lost:
        there += f", {report.lost:,} lost (deleted before they were read)"
    restarted = [f"restarted  {queue}, which was made again" for queue in report.restarted]
    lines = [
        *restarted,
        f"archived   {report.messages:,} messages in {report.batches} batches, "
        f"{report.seconds:.1f} s",
        f"in files   {there}",
        f"the lake   {report.lake_rows:,} rows of {report.lake_messages:,} messages, "
        f"version {report.version}",
    ]
    if report.files_compacted:
        lines.append(f"compacted  {report.files_compacted:,} files less")
    if report.stopped:
        lines.append("stopped    before the end; start it again to continue")
    lines.append(f"agree      {'yes' if report.agrees else 'NO'}")
    if not report.rejected_allowed:
        lines.append("FAILED     more rows were rejected than --max-rejected allows")
    return lines


def _captured(report: CdcReport) -> list[str]:
    lines = [f"restarted  {queue}, which was made again" for queue in report.restarted]
    lines += [
        f"applied    {report.changes:,} changes in {report.messages:,} messages, "
        f"{report.batches} batches, {report.seconds:.1f} s",
        f"the lake   {report.inserted:,} rows inserted, {report.updated:,} updated, "
        f"{report.deleted:,} deleted; {report.tables} tables",
    ]
    if report.zero_dates:
        lines.append(f"nulls      {report.zero_dates:,} zero dates")
    if report.lost:
        lines.append(f"lost       {report.lost:,} messages, deleted before they were read")
    if report.rejected:
        lines.append(f"rejected   {report.rejected:,} messages (table _rejected)")
    lines += [f"statement  {each}" for each in report.statements]
    if report.stopped:
        lines.append("stopped    before the end; start it again to continue")
    if not report.rejected_allowed:
        lines.append("FAILED     more messages were rejected than --max-rejected allows")
    return lines


def _replayed(report: ReplayReport) -> list[str]:
    there = ""
    if report.present:
        there = f", {report.present:,} were there already"
    lines = [
        f"replayed   {report.done:,} of {report.selected:,} messages; in this run "
        f"{report.sent:,} sent{there}, {report.seconds:.1f} s",
        f"in target  {report.found:,} of {report.name}, of {report.distinct:,} messages",
    ]
    if report.stopped:
        lines.append("stopped    before the end; start it again to continue")
    lines.append(f"agree      {'yes' if report.agrees else 'NO'}")
    return lines
