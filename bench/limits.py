"""`python -m bench.limits`: effect of one client on another, without malice: Apache's broker and
ours under the same load.

While the load of each scenario runs, a bystander sends one byte every 10 ms (`bench/bystander.py`).
The table has its longest wait and its p99.9, the most CPU time that the broker used within one of
its waits, and the broker's anonymous memory at the peak. Exit status 1: a goal of ours was missed;
2: a broker or a load failed. `bench/stalls.py` says how to add a scenario.
"""

import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
import msgspec
from tests.interop.apache import ApacheStartError, ToolMissingError

from bench.brokers import APACHE, OURS
from bench.cores import Cores
from bench.memory import MIB
from bench.stalls import Scenario, Stall, measure
from bench.table import exit_status, markdown_table, plain_table, publish

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "out" / "limits.json", ROOT / "docs" / "explanations" / "limits.md"

SUBJECTS = ("requests", "tables", "connections")
"""Each is a module `bench/limits_<subject>.py` with a tuple `SCENARIOS`."""

TABLE_START, TABLE_END = "<!-- table: python -m bench.limits --publish -->", "<!-- end of table -->"
HEADINGS = (
    "what one client does",
    "broker",
    "answer",
    "longest wait, ms",
    "p99.9",
    "CPU in a wait, ms",
    "beside an idle client",
    "memory, MiB",
    "goal",
    "",
)


def scenarios() -> list[Scenario]:
    """All of them, in the order of their subjects."""
    modules = (importlib.import_module(f"bench.limits_{subject}") for subject in SUBJECTS)
    return [scenario for module in modules for scenario in module.SCENARIOS]


def row(scenario: Scenario, stall: Stall) -> list[str]:
    loaded, calm = stall.loaded, stall.calm
    grown = (stall.anonymous_peak - stall.anonymous_before) / MIB
    lost = f", {loaded.lost} lost" if loaded.lost else ""
    refused = f", {loaded.refused} refused" if loaded.refused else ""
    goals = [f"{scenario.stall_ms:.0f} ms"] if scenario.stall_ms is not None else []
    goals += [f"+{scenario.grown_mib:.0f} MiB"] if scenario.grown_mib is not None else []
    goals += [f"{figure.name} {figure.goal:g}" for figure in stall.figures]
    reached = (
        (scenario.stall_ms is None or loaded.longest_ms <= scenario.stall_ms)
        and (scenario.grown_mib is None or grown <= scenario.grown_mib)
        and all(figure.measured <= figure.goal for figure in stall.figures)
        and not loaded.lost
    )
    ours = stall.broker == OURS and bool(goals)
    return [
        scenario.title,
        stall.broker,
        stall.answer,
        f"{loaded.longest_ms:.0f}{refused}{lost}",
        f"{loaded.p999_ms:.0f}",
        f"{loaded.cpu_ms:.0f}",
        f"{calm.longest_ms:.0f}",
        f"{stall.anonymous_before / MIB:.0f} + {grown:.0f}",
        ", ".join(goals) if ours else "",
        ("reached" if reached else "MISSED") if ours else "",
    ]


def rows(stalls: Iterable[Stall]) -> list[list[str]]:
    known = {scenario.name: scenario for scenario in scenarios()}
    return [row(known[stall.scenario], stall) for stall in stalls if stall.scenario in known]


def not_measured(stalls: Iterable[Stall]) -> list[str]:
    """Return the scenarios that are missing in a table, and the broker of each."""
    found = {(stall.scenario, stall.broker) for stall in stalls}
    wanted = [(one.name, broker) for one in scenarios() for broker in (APACHE, OURS)]
    return [f"{name} ({broker})" for name, broker in wanted if (name, broker) not in found]


@click.command(help=__doc__)
@click.option(
    "--scenario", "names", multiple=True, help="Only those whose name begins so; repeatable."
)
@click.option("--ours-only", is_flag=True, help="Only our broker.")
@click.option("--list", "listed", is_flag=True, help="Do not run: list the scenarios.")
@click.option(
    "--publish",
    "published",
    is_flag=True,
    help="Do not run: put out/limits.json, once reviewed, into docs/explanations/limits.md.",
)
def main(names: tuple[str, ...], ours_only: bool, listed: bool, published: bool) -> None:
    chosen = [one for one in scenarios() if not names or one.name.startswith(names)]
    if listed:
        click.echo(plain_table(("name", "what"), [(one.name, one.title) for one in chosen]))
        return
    if published:
        stalls = msgspec.json.decode(RESULTS.read_bytes(), type=list[Stall])
        if missing := not_measured(stalls):
            click.echo(
                f"limits: not measured, and not in the table: {', '.join(missing)}", err=True
            )
        publish(PAGE, TABLE_START, TABLE_END, markdown_table(HEADINGS, rows(stalls)))
        return
    stalls = []
    failed = False
    for scenario in chosen:
        for name in (OURS,) if ours_only else (APACHE, OURS):
            try:
                stalls.append(measure(scenario, name, Cores.of_this_machine()))
            except (OSError, ChildProcessError, ApacheStartError, ToolMissingError) as problem:
                click.echo(f"limits: {scenario.name}, {name}: {problem}", err=True)
                failed = True
            else:
                click.echo("; ".join(row(scenario, stalls[-1])), err=True)
                keep(stalls)
    table = rows(stalls)
    click.echo(plain_table(HEADINGS, table))
    sys.exit(2 if failed else exit_status(table))


def keep(stalls: Sequence[Stall]) -> None:
    """Write out/limits.json: what was measured now, and of earlier runs what was not."""
    RESULTS.parent.mkdir(exist_ok=True)
    known = msgspec.json.decode(RESULTS.read_bytes(), type=list[Stall]) if RESULTS.exists() else []
    found = {(stall.scenario, stall.broker): stall for stall in [*known, *stalls]}
    order = [scenario.name for scenario in scenarios()]
    kept = [stall for stall in found.values() if stall.scenario in order]
    kept.sort(key=lambda stall: (order.index(stall.scenario), stall.broker))
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=2))


if __name__ == "__main__":
    main()
