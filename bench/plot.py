"""The report as one picture: for each metric, how ours compares with Apache's, case by case.

The one rule: it computes no figure, results.py does.
"""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench.results import METRICS, Report

HIGHER_IS_BETTER = {"rate"}
PLAIN = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8}
GOOD, BAD = "#2a7f62", "#b5533c"


def draw(report: Report, path: Path) -> None:
    """Write a PNG with one panel a metric."""
    figure, panels = plt.subplots(1, len(METRICS), figsize=(15, 4.6), sharey=True)
    for axes, (metric, title) in zip(panels, METRICS.items(), strict=True):
        draw_metric(axes, report, metric, title)
    figure.suptitle(
        "turbopump compared with Apache RocketMQ 5.3.3: the median pair, whiskers to "
        "the lowest and highest"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_metric(axes: Axes, report: Report, metric: str, title: str) -> None:
    cases = list(reversed(report.cases()))
    for row, case in enumerate(cases):
        ratio = report.ratio(case, metric)
        if ratio is None:
            continue
        better = ratio.median >= 1 if metric in HIGHER_IS_BETTER else ratio.median <= 1
        whiskers = [[ratio.median - ratio.low], [ratio.high - ratio.median]]
        axes.barh(
            row,
            ratio.median,
            color=GOOD if better else BAD,
            xerr=whiskers,
            error_kw={"ecolor": "#333333"},
        )
        axes.annotate(
            f"{ratio.median:.2f}",
            (ratio.high, row),
            (4, 0),
            textcoords="offset points",
            va="center",
            bbox=PLAIN,
        )
    axes.set_yticks(range(len(cases)), cases)
    axes.axvline(1.0, color="#666666", linewidth=1, linestyle="--")
    axes.set_title(
        f"{title}\n({'more' if metric in HIGHER_IS_BETTER else 'less'} is better)", fontsize=10
    )
    axes.margins(x=0.2)
    axes.set_xlim(left=0)
