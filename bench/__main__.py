"""`python -m bench`: compare Apache's broker with ours and show the result as a table,
`out/bench.json` and `out/bench.png`.

docs/explanations/benchmarks.md says what the figures mean. Exit status: 0 when every figure that
was measured was reached; 1 when one was missed, which on a busy machine says little; 2 when a
broker or the generator failed.
"""

import sys
import time
from pathlib import Path

import click
import msgspec
from tests.interop.apache import ApacheStartError, ToolMissingError

from bench.brokers import APACHE, OURS
from bench.cases import CASES
from bench.comparison import Plan, compare
from bench.generator import LoadError
from bench.plot import draw
from bench.results import Report
from bench.table import as_markdown, as_text, exit_status, publish, target_rows

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out"
DOCS = ROOT / "docs" / "explanations"
TABLE_START, TABLE_END = "<!-- table: python -m bench --publish -->", "<!-- end of table -->"


@click.command(help=__doc__)
@click.option(
    "--case",
    "names",
    multiple=True,
    type=click.Choice([case.name for case in CASES]),
    help="Only this case; repeatable.",
)
@click.option(
    "--pairs",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="How often both brokers take their turn.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.5),
    default=5.0,
    show_default=True,
    help="Length of a measured window.",
)
@click.option("--ours-only", is_flag=True, help="Only our broker: no ratios.")
@click.option("--apache-only", is_flag=True, help="Only Apache's broker: no ratios.")
@click.option("--no-start", is_flag=True, help="Do not time the starts.")
@click.option(
    "--quick",
    is_flag=True,
    help="1 pair of 2 s, Apache's broker warmed 15 s: a first look, not a result.",
)
@click.option(
    "--publish",
    "published",
    is_flag=True,
    help="Do not run: put out/bench.json, once reviewed, into docs/explanations/.",
)
def main(
    names: tuple[str, ...],
    pairs: int,
    seconds: float,
    ours_only: bool,
    apache_only: bool,
    no_start: bool,
    quick: bool,
    published: bool,
) -> None:
    if published:
        publish_report()
        return
    if ours_only and apache_only:
        raise click.UsageError("--ours-only and --apache-only exclude each other")
    plan = Plan(
        cases=tuple(case for case in CASES if not names or case.name in names),
        brokers=(OURS,) if ours_only else (APACHE,) if apache_only else (APACHE, OURS),
        pairs=1 if quick else pairs,
        seconds=2.0 if quick else seconds,
        apache_warm_s=15.0 if quick else 45.0,
        our_warm_s=2.0 if quick else 5.0,
        starts=0 if no_start else 1 if quick else 3,
    )
    begun = time.monotonic()
    try:
        report = compare(
            plan, lambda line: click.echo(f"{time.monotonic() - begun:6.1f} s  {line}", err=True)
        )
    except (
        LoadError,
        TimeoutError,
        ChildProcessError,
        ApacheStartError,
        ToolMissingError,
    ) as problem:
        click.echo(f"bench: {problem}", err=True)
        sys.exit(2)
    OUT.mkdir(exist_ok=True)
    (OUT / "bench.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    (OUT / "bench.txt").write_text(as_text(report) + "\n")
    if len(plan.brokers) == 2:
        draw(report, OUT / "bench.png")
    click.echo(as_text(report))
    click.echo(
        f"\n{time.monotonic() - begun:.0f} s in all; written to {OUT.name}/bench.json, "
        "bench.txt, bench.png",
        err=True,
    )
    sys.exit(exit_status(target_rows(report)))


def publish_report() -> None:
    """Copy the last run's JSON to docs/explanations/benchmarks.json and its tables between the
    marks in docs/explanations/benchmarks.md."""
    data = (OUT / "bench.json").read_bytes()
    tables = as_markdown(msgspec.json.decode(data, type=Report))
    publish(DOCS / "benchmarks.md", TABLE_START, TABLE_END, tables)
    (DOCS / "benchmarks.json").write_bytes(data)


main()
