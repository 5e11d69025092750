"""`turbopump pipeline mirror`: topics of one cluster are copied into another. It needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import click

from turbopump.cli.client_loop import run_client
from turbopump.cli.entry import INCOMPLETE
from turbopump.cli.frame import (
    WITHOUT_CSV,
    credentials_option,
    output_option,
    show,
    tls_options,
    who_and_how,
)
from turbopump.cli.log_output import log_options
from turbopump.cli.pipeline import STOPPED, metrics_port_option
from turbopump.cli.values import checked_pairs
from turbopump.config.addresses import parse_addresses

if TYPE_CHECKING:
    from turbopump.admin.mirror import MirrorReport
    from turbopump.spark.job_metrics import JobMetrics
    from turbopump.spark.pipelines.row_progress import RowProgress


def _addresses(_context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
    return parse_addresses(text, what="name server address")


@click.command(name="mirror", short_help="Copy topics into another cluster.")
@click.argument("topics", metavar="TOPIC…", nargs=-1, required=True)
@click.option(
    "--from",
    "source",
    metavar="ADDRS",
    required=True,
    callback=_addresses,
    help="Name servers of the source, HOST:PORT;HOST:PORT.",
)
@click.option(
    "--to",
    "target",
    metavar="ADDRS",
    required=True,
    callback=_addresses,
    help="Name servers of the target, HOST:PORT;HOST:PORT.",
)
@click.option("--follow", is_flag=True, help="Continue until Ctrl-C, also with new topics.")
@click.option("--groups", is_flag=True, help="Set the positions of groups in the target.")
@click.option("--skip-lost", is_flag=True, help="Continue after deleted messages, and count them.")
@click.option(
    "--from-name",
    metavar="NAME",
    help="Name of the source in the marks of copies.  [default: its cluster's]",
)
@click.option(
    "--to-name",
    metavar="NAME",
    help="Name of the target in the marks of copies.  [default: its cluster's]",
)
@click.option(
    "--broker",
    "brokers",
    metavar="SOURCE=TARGET",
    multiple=True,
    callback=checked_pairs,
    help="Target broker of a source broker, if their names differ; more than once.",
)
@click.option(
    "--to-credentials",
    metavar="FILE",
    type=click.Path(dir_okay=False, exists=True),
    help="The user in the target, if it is another one than in the source.",
)
@metrics_port_option
@output_option("Form of the report.", forms=WITHOUT_CSV)
@credentials_option
@tls_options
@log_options("warning", plain=True)
def command(
    topics: tuple[str, ...],
    source: list[str],
    target: list[str],
    to_credentials: str | None,
    metrics_port: int | None,
    output: str,
    **settings: Any,
) -> None:
    """Copy the messages of topics into another cluster. TOPIC is a name, or a pattern with * and ?.

    Queues, order, bodies, properties, keys, tags and message ids stay. The target stores the
    progress: start the command again, also after a kill. Exit code 1 if a topic or a queue was not
    mirrored.
    """
    from turbopump.spark.job_metrics import JobMetrics, MetricsPage
    from turbopump.spark.pipelines.row_progress import ProgressLine, RowProgress

    metrics = JobMetrics()
    with ExitStack() as stack:
        if metrics_port is not None:
            page = stack.enter_context(MetricsPage(metrics.metrics, metrics_port))
            click.echo(f"metrics at {page.url}", err=True)
        line = stack.enter_context(closing(ProgressLine("mirror")))
        shown = _Shown(RowProgress(shown=line), metrics, ";".join(target))
        run = _mirror(list(topics), source, target, to_credentials, shown, settings)
        report = run_client(run)
    value = {
        "agrees": report.agrees,
        **{name: getattr(report, name) for name in report.__dataclass_fields__},
        "behind": {str(queue): count for queue, count in report.behind.items() if count},
    }
    show(output, value, _lines(report))
    code = 0
    if not report.agrees:
        code = INCOMPLETE
    elif report.stopped and not settings["follow"]:
        code = STOPPED
    click.get_current_context().exit(code)


async def _mirror(
    topics: list[str],
    source: list[str],
    target: list[str],
    to_credentials: str | None,
    shown: _Shown,
    settings: dict[str, Any],
) -> MirrorReport:
    from turbopump.admin.admin import Admin
    from turbopump.admin.mirror import mirror
    from turbopump.auth.credentials import credentials_of
    from turbopump.stop_signals import stop_on_signals

    given = who_and_how()
    credentials = given["credentials"]
    if to_credentials is not None:
        credentials = credentials_of({"credentials_file": to_credentials}, {})
    names = {"source_name": settings.pop("from_name"), "target_name": settings.pop("to_name")}
    async with (
        stop_on_signals() as stop,
        Admin(source, **given) as source_admin,
        Admin(target, credentials=credentials, tls=given["tls"]) as target_admin,
    ):
        return await mirror(
            source_admin,
            target_admin,
            topics,
            stop=stop,
            on_progress=shown.update,
            **names,
            **settings,
        )


class _Shown:
    """Progress line and metrics of a mirror."""

    def __init__(self, progress: RowProgress, metrics: JobMetrics, name: str) -> None:
        self._progress = progress
        self._counts = metrics.job("mirror", name)
        self._rows = self._lost = 0
        self._seconds = 0.0

    def update(self, report: MirrorReport) -> None:
        rows = report.sent - self._rows
        lost = report.lost - self._lost
        if rows or lost:
            self._counts.count_batch(rows, report.seconds - self._seconds, lost=lost)
        self._counts.note_behind(report.behind)
        self._rows, self._lost, self._seconds = report.sent, report.lost, report.seconds
        self._progress.done = report.sent + report.returned
        self._progress.expect(report.left)


def _lines(report: MirrorReport) -> Iterator[str]:
    rate = report.sent / max(report.seconds, 1e-9)
    yield (
        f"mirrored   {report.sent:,} messages in {report.queues:,} queues of {report.topics:,} "
        f"topics, {report.seconds:.1f} s, {rate:,.0f}/s"
    )
    for count, what in (
        (report.repeated, "repeated   {:,} messages were stored once more"),
        (report.lost, "lost       {:,} messages were deleted before they were read"),
        (report.returned, "returned   {:,} messages come from the target, and were not sent back"),
        (report.damaged, "damaged    {:,} messages were left out"),
        (report.positions, "groups     {:,} positions set"),
    ):
        if count:
            yield what.format(count)
    for note in report.notes:
        yield f"note       {note}"
    for name, why in report.failed.items():
        yield f"FAILED     {name}: {why}"
    if report.stopped:
        yield f"stopped    {report.left:,} messages are left; start it again to continue"
    yield f"agree      {'yes' if report.agrees else 'NO'}"
