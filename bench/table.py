"""Report as plain text for the terminal, or as Markdown for the docs. results.py computes the
values."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.brokers import APACHE, OURS
from bench.results import METRICS, Report, Spread, targets


def case_rows(report: Report) -> list[list[str]]:
    """One row a case: per metric Apache's median, ours, and the ratio with its spread."""
    rows = []
    for case in report.cases():
        row = [case]
        for metric in METRICS:
            for broker in (APACHE, OURS):
                spread = report.spread(case, broker, metric)
                row.append("-" if spread is None else number(spread.median))
            row.append(ratio_text(report.ratio(case, metric)))
        rows.append(row)
    return rows


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratio_text(ratio: Spread | None) -> str:
    return "-" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


def other_rows(report: Report) -> list[list[str]]:
    """Memory and start: what, Apache's, ours."""
    rows = []
    figures = (
        ("anonymous memory under load, MiB", report.anonymous_mib),
        ("resident memory under load, MiB", report.resident_mib),
    )
    for title, figure in figures:
        rows.append(
            [
                title,
                *(
                    "-" if (value := figure(broker)) is None else number(value)
                    for broker in (APACHE, OURS)
                ),
            ]
        )
    starts = [report.start_spread(broker) for broker in (APACHE, OURS)]
    cells = ["-" if s is None else f"{s.median:.2f} ({s.low:.2f}-{s.high:.2f})" for s in starts]
    rows.append(["start to first acknowledged send, s", *cells])
    return rows


def target_rows(report: Report) -> list[list[str]]:
    words = {True: "reached", False: "MISSED", None: "not measured"}
    return [
        [target.name, target.wanted, target.measured, words[target.reached]]
        for target in targets(report)
    ]


def context_lines(report: Report) -> list[str]:
    """Return the context of the absolute figures."""
    machine, settings = report.machine, report.settings
    loops = " and ".join(f"{seconds:.3f} s" for seconds in report.calibration_s)
    alone = ", ".join(f"{case} {rate:,.0f}/s" for case, rate in report.generator_rate.items())
    busiest = max((run.load.generator_cpu_s / run.load.seconds for run in report.runs), default=0.0)
    refused = sum(run.refused for run in report.runs)
    foreign = Spread.of([run.foreign_cores for run in report.runs] or [0.0])
    return [
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, Python "
        f"{machine['python']}",
        f"cores: {settings['cores']}",
        f"Apache {settings['apache']}",
        f"{settings['pairs']} pairs of {settings['seconds']} s; calibration loop {loops} before "
        "and after",
        f"the generator alone: {alone}; at most {busiest:.0%} of its core in any run",
        f"busy with other things (kernel threads included): {foreign.median:.2f} of a core in "
        f"the median run, at most {foreign.high:.2f}",
        f"runs repeated because the broker said it was busy: {refused}",
    ]


def exit_status(rows: Sequence[Sequence[str]]) -> int:
    """0 if no row ends with MISSED, else 1."""
    return int(any(row[-1] == "MISSED" for row in rows))


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (headings, *rows)) for i in range(len(headings))]

    def line(cells: Iterable[str]) -> str:
        padded = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(headings), line("-" * width for width in widths), *map(line, rows)])


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|---" + "|---:" * (len(headings) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def publish(page: Path, start: str, end: str, tables: str) -> None:
    """Put tables between two marks in a page of the docs."""
    before, _, rest = page.read_text().partition(start)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{start}\n\n{tables}\n\n{end}{after}")


def as_text(report: Report) -> str:
    """All of it for the terminal: one table a metric keeps the lines short."""
    parts = ["\n".join(context_lines(report))]
    rows = case_rows(report)
    for i, title in enumerate(METRICS.values()):
        columns = [[row[0], *row[1 + 3 * i : 4 + 3 * i]] for row in rows]
        if columns:
            parts.append(plain_table((title, "Apache", "ours", "ours/Apache (spread)"), columns))
    parts.append(plain_table(("", "Apache", "ours"), other_rows(report)))
    parts.append(plain_table(("figure to reach", "wanted", "measured", ""), target_rows(report)))
    return "\n\n".join(parts)


def as_markdown(report: Report) -> str:
    """The tables that docs/explanations/benchmarks.md holds between its marks."""
    parts = ["\n".join(f"{line}  " for line in context_lines(report)).rstrip()]
    rows = case_rows(report)
    for i, title in enumerate(METRICS.values()):
        columns = [[row[0], *row[1 + 3 * i : 4 + 3 * i]] for row in rows]
        parts.append(markdown_table((title, "Apache", "ours", "ours/Apache (spread)"), columns))
    parts.append(markdown_table(("", "Apache", "ours"), other_rows(report)))
    parts.append(markdown_table(("figure to reach", "wanted", "measured", ""), target_rows(report)))
    return "\n\n".join(parts)
