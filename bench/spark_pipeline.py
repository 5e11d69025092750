"""`python -m bench.spark_pipeline`: cost of reading, archiving and following a topic with Spark,
beside Spark's own work on the same rows in the same session.

    python -m bench.spark_pipeline [--quick] [--case NAME …] [--rows N] [--backlog N] [--rounds R]

Flights as JSON with a key and a tag go through our broker. Cases:

- ``reads``: the topic, the CommitLog under the running broker, and the same rows in Parquet:
  all columns, and the body alone;
- ``archive``: the pipeline against Parquet to Parquet;
- ``streams``: micro-batches of one and of 1,000 rows against Spark's ``rate-micro-batch``;
- ``backlog`` and ``queues``: the cost of a row for few and many rows and queues.

The one rule: compared jobs are measured in turn, and a ratio is one of two neighbours; medians of
the rounds, after one that warms up. CPU of Spark is that of the JVM, its Python workers and the
driver. Exit status 1: a figure was missed, which on a busy machine says little for wall time.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, islice, repeat
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamReader

from bench.brokers import OURS, RunningBroker, running_broker
from bench.cores import Cores
from bench.generator import CACHE
from bench.remote import create_topic
from bench.spark_jobs import Used, session, spent
from bench.spark_kafka import send
from turbopump import Message
from turbopump.spark.cluster import Cluster
from turbopump.spark.offsets import encode_offsets, limit_ends
from turbopump.spark.options import COLUMN_NAMES
from turbopump.spark.pipelines import archive

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from flights import flights

TOPIC, QUEUES = "flights", 4
SMALL_BACKLOG, FEW_ROWS = 100_000, 2000
"""Numbers of rows that are read in two tasks, as more rows are."""
QUEUE_COUNTS = (1, 4, 16, 64)
MICRO_BATCHES, MICRO_BATCHES_WARM = 20, 5
STREAM_ROUNDS = 3
STREAM_TIMEOUT_S = 120.0
FLAT = 1.2


class Figure(NamedTuple):
    """A ratio and the goal of issue 13 for it."""

    what: str
    ratio: float
    goal: float
    at_least: bool = False

    @property
    def is_reached(self) -> bool:
        return self.ratio >= self.goal if self.at_least else self.ratio <= self.goal


class Job(NamedTuple):
    """Measured job, and its number of rows."""

    rows: int
    run: Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Environment of all cases. ``flights`` is the topic as a Parquet table with ``rows`` rows."""

    spark: SparkSession
    broker: RunningBroker
    directory: Path
    rows: int
    backlog: int
    rounds: int
    numbers: count[int] = field(default_factory=count)

    @property
    def flights(self) -> DataFrame:
        return self.spark.read.parquet(str(self.directory / "parquet"))

    def topic(self, topic: str, **options: str) -> DataFrame:
        """A batch read of a topic."""
        reader = self.spark.read.format("rocketmq").option("nameServer", self.broker.namesrv)
        return reader.option("topic", topic).options(**options).load()

    def new_directory(self) -> Path:
        return self.directory / f"made-{next(self.numbers)}"


@click.command(help=__doc__)
@click.option(
    "--case",
    "names",
    multiple=True,
    type=click.Choice(["reads", "archive", "streams", "backlog", "queues"]),
    help="Only this case; repeatable.",
)
@click.option("--rows", type=click.IntRange(10_000), default=400_000, show_default=True)
@click.option(
    "--backlog",
    type=click.IntRange(2 * SMALL_BACKLOG),
    default=1_000_000,
    show_default=True,
    help="The largest. 5000000 adds some minutes.",
)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--quick", is_flag=True, help="1 round of few rows: a first look, not a result.")
def main(names: tuple[str, ...], rows: int, backlog: int, rounds: int, quick: bool) -> None:
    began = time.monotonic()
    if quick:
        rows, backlog, rounds = 100_000, 3 * SMALL_BACKLOG, 1
    CACHE.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="data-", dir=CACHE))
        )
        cores = Cores.of_this_machine()
        broker = stack.enter_context(running_broker(OURS, directory, cores))
        spark = stack.enter_context(session("pipelines"))
        scene = Scene(
            spark=spark,
            broker=broker,
            directory=directory,
            rows=rows,
            backlog=backlog,
            rounds=rounds,
        )
        fill(scene)
        figures = [figure for name in names or CASES for figure in CASES[name](scene)]
    missed = report(figures)
    load = " ".join(f"{number:.1f}" for number in os.getloadavg())
    click.echo(f"{time.monotonic() - began:.0f} s; load average at the end {load}")
    raise SystemExit(1 if missed else 0)


def fill(scene: Scene) -> None:
    """The flights, again and again, into the topic; and from there into Parquet."""
    create_topic(scene.broker.port, TOPIC, QUEUES)
    messages = (
        Message(TOPIC, flight.body, tags=flight.carrier, keys=flight.tail_number)
        for flight in islice(chain.from_iterable(map(flights, repeat(None))), scene.rows)
    )
    asyncio.run(send(scene.broker.namesrv, messages))
    scene.topic(TOPIC).write.parquet(str(scene.directory / "parquet"))
    check_count("the topic in Parquet", scene.flights, scene.rows)


def check_count(what: str, table: DataFrame, rows: int) -> None:
    found = table.count()
    if found != rows:
        raise SystemExit(f"{what} has {found} rows, not {rows}")


# The cases.
def reads(scene: Scene) -> list[Figure]:
    columns = ",".join(COLUMN_NAMES)
    reader = scene.spark.read.format("rocketmqCommitlog").option("topic", TOPIC)
    log = reader.option("columns", columns).load(str(scene.directory / "store"))
    check_count("the CommitLog", log, scene.rows)
    tables = {
        "topic": scene.topic(TOPIC),
        "CommitLog": log,
        "Parquet": scene.flights,
        "topic, body": scene.topic(TOPIC, columns="body"),
        "Parquet, body": scene.flights.select("body"),
    }
    jobs = {name: Job(scene.rows, partial(drain, table)) for name, table in tables.items()}
    found = in_turn(scene, f"read {scene.rows:,} rows", jobs)

    def wall(one: str, other: str) -> float:
        return ratio(found[one], found[other], lambda used: used.wall)

    return [
        Figure("topic : CommitLog, rows/s", wall("CommitLog", "topic"), 0.5, at_least=True),
        Figure("topic : Parquet, all columns, wall", wall("topic", "Parquet"), 4.0),
        Figure("topic : Parquet, the body, wall", wall("topic, body", "Parquet, body"), 6.0),
    ]


def archives(scene: Scene) -> list[Figure]:
    """Measure the archive. Spark writes its files with its default settings."""

    def to_lake() -> None:
        done = archive(
            scene.new_directory(), [TOPIC], name_server=scene.broker.namesrv, spark=scene.spark
        )
        if not (done.agrees and done.rows == scene.rows):
            raise SystemExit(f"the archive has not all rows: {done}")

    jobs = {
        "archive": Job(scene.rows, to_lake),
        "Parquet to Parquet": Job(
            scene.rows, lambda: scene.flights.write.parquet(str(scene.new_directory()))
        ),
    }
    found = in_turn(scene, f"archive {scene.rows:,} rows", jobs)
    cpu = ratio(found["archive"], found["Parquet to Parquet"], lambda used: used.spark)
    return [Figure("archive : Parquet to Parquet, CPU", cpu, 1.2)]


def streams(scene: Scene) -> list[Figure]:
    """Measure the streams. Both run one micro-batch after the other, each with the same number of
    rows in one task."""
    figures = []
    for rows in (1, 1000):
        topic = f"micro-batches-{rows}"
        enough = scene.flights.limit(rows * (MICRO_BATCHES_WARM + MICRO_BATCHES))
        write_topic(scene, topic, QUEUES, enough)
        ours = scene.spark.readStream.format("rocketmq").option("topic", topic)
        ours = ours.option("nameServer", scene.broker.namesrv).option("startingOffsets", "earliest")
        ours = ours.option("maxOffsetsPerTrigger", rows)
        rate = scene.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
        rate = rate.option("numPartitions", 1)
        found: dict[str, list[dict[str, float]]] = {"topic": [], "rate-micro-batch": []}
        for number in range(min(scene.rounds, STREAM_ROUNDS) + 1):
            for name, source in (("topic", ours), ("rate-micro-batch", rate)):
                used = micro_batch_ms(scene, source, rows)
                if number:
                    found[name].append(used)
        click.echo(f"\nmicro-batches of {rows:,} to noop, ms, median")
        for name, rounds in found.items():
            parts = {part: median(each.get(part, 0.0) for each in rounds) for part in rounds[0]}
            ordered = sorted(parts.items(), key=lambda item: -item[1])
            click.echo(f"  {name:20}" + "  ".join(f"{part} {ms:.0f}" for part, ms in ordered))
        times = median(
            one["triggerExecution"] / other["triggerExecution"]
            for one, other in zip(*found.values(), strict=True)
        )
        figures.append(Figure(f"topic : rate, micro-batches of {rows:,}, wall", times, 2.2))
    return figures


def backlogs(scene: Scene) -> list[Figure]:
    """Measure the backlogs. Small reads are repeated, so that there is enough to measure. Each
    query has a fixed cost; the read of a few rows shows it, and it is subtracted."""
    topic = "backlog"
    again = scene.spark.range(-(-scene.backlog // scene.rows))
    write_topic(scene, topic, QUEUES, scene.flights.crossJoin(again))
    sizes = sorted({SMALL_BACKLOG, min(1_000_000, scene.backlog), scene.backlog})
    with Cluster([scene.broker.namesrv]) as cluster:
        ends = cluster.offsets_max(cluster.queues(topic))
    jobs = {}
    for size in (FEW_ROWS, *sizes):
        wanted = encode_offsets(limit_ends(dict.fromkeys(ends, 0), ends, size))
        table = scene.topic(topic, endingOffsets=json.dumps(wanted))
        check_count(f"a backlog of {size}", table, size)
        times = max(1, min(10, scene.backlog // size // 2))
        jobs[f"{size:,}"] = Job(size * times, partial(repeated, times, partial(drain, table)))
    found = in_turn(scene, "read of a backlog, repeated", jobs)
    few = found[f"{FEW_ROWS:,}"]
    costs = [
        [(used.spark * size - own.spark * FEW_ROWS) / (size - FEW_ROWS) for used, own in pairs]
        for size in sizes
        for pairs in (zip(found[f"{size:,}"], few, strict=True),)
    ]
    for size, cost in zip(sizes, costs, strict=True):
        click.echo(f"  {size:>12,} rows without the query's own cost{median(cost):16.2f}")
    return [
        Figure(
            f"CPU a row, backlog {sizes[0]:,} to {sizes[-1]:,}, most : least", spread(costs), FLAT
        )
    ]


def queues(scene: Scene) -> list[Figure]:
    jobs = {}
    for number in QUEUE_COUNTS:
        topic = f"queues-{number}"
        table = write_topic(scene, topic, number, scene.flights)
        check_count(topic, table, scene.rows)
        jobs[f"{number} queues"] = Job(scene.rows, partial(drain, table))
    found = in_turn(scene, f"read of {scene.rows:,} rows in so many queues", jobs)
    costs = [[used.spark for used in rounds] for rounds in found.values()]
    what = f"CPU a row, {QUEUE_COUNTS[0]} to {QUEUE_COUNTS[-1]} queues, most : least"
    return [Figure(what, spread(costs), FLAT)]


CASES: Mapping[str, Callable[[Scene], list[Figure]]] = {
    "reads": reads,
    "archive": archives,
    "streams": streams,
    "backlog": backlogs,
    "queues": queues,
}


# What the cases do and measure.
def drain(table: DataFrame) -> None:
    table.write.format("noop").mode("overwrite").save()


def repeated(times: int, job: Callable[[], object]) -> None:
    for _ in range(times):
        job()


def write_topic(scene: Scene, topic: str, number: int, rows: DataFrame) -> DataFrame:
    """Write the flights into a new topic with ``number`` queues. Return a read of the topic."""
    create_topic(scene.broker.port, topic, number)
    writer = rows.select("keys", "tags", "body").write.format("rocketmq").option("topic", topic)
    writer.option("nameServer", scene.broker.namesrv).mode("append").save()
    return scene.topic(topic)


def micro_batch_ms(scene: Scene, source: DataStreamReader, rows: int) -> dict[str, float]:
    """Milliseconds of a micro-batch of a new query, by part: medians."""
    writer = source.load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(scene.new_directory())).start()
    deadline = time.monotonic() + STREAM_TIMEOUT_S
    wanted = MICRO_BATCHES_WARM + MICRO_BATCHES
    try:
        while True:
            done = [one for one in query.recentProgress if one.numInputRows == rows]
            if len(done) >= wanted:
                break
            if not query.isActive or time.monotonic() > deadline:
                raise SystemExit(f"{len(done)} micro-batches of {wanted}: {query.exception()}")
            time.sleep(0.5)
    finally:
        scene.spark.sparkContext.setLogLevel("OFF")  # Spark calls a batch that is stopped an error
        query.stop()
        scene.spark.sparkContext.setLogLevel("ERROR")
    counted = [one.durationMs for one in done[MICRO_BATCHES_WARM:wanted]]
    return {part: median(one[part] for one in counted) for part in counted[0]}


def in_turn(scene: Scene, title: str, jobs: Mapping[str, Job]) -> dict[str, list[Used]]:
    """Return the cost of each job in each round but the first. Medians are printed."""
    found: dict[str, list[Used]] = {name: [] for name in jobs}
    for number in range(scene.rounds + 1):
        for name, job in jobs.items():
            used = spent(scene.broker.pid, job.rows, job.run)
            if number:
                found[name].append(used)
    click.echo(
        f"\n{title + ': µs a row, median':52}{'wall':>8}{'JVM':>8}{'Python':>8}{'broker':>8}"
    )
    for name, rounds in found.items():
        figures = (median(figure) for figure in zip(*rounds, strict=True))
        click.echo(f"  {name:50}" + "".join(f"{figure:8.2f}" for figure in figures))
    return found


def ratio(ours: Sequence[Used], others: Sequence[Used], figure: Callable[[Used], float]) -> float:
    """The median of the rounds' ratios."""
    return median(
        figure(one) / max(figure(other), 0.001) for one, other in zip(ours, others, strict=True)
    )


def spread(costs: Sequence[Sequence[float]]) -> float:
    """Return the ratio of the highest and the lowest median."""
    medians = [median(cost) for cost in costs]
    return max(medians) / max(min(medians), 0.001)


def report(figures: Sequence[Figure]) -> int:
    """Print all; how many were missed."""
    click.echo("")
    for figure in figures:
        sign = ">=" if figure.at_least else "<="
        verdict = "reached" if figure.is_reached else "MISSED"
        click.echo(
            f"{figure.what:58}{figure.ratio:6.2f} x, wanted {sign} {figure.goal:g}  {verdict}"
        )
    return sum(not figure.is_reached for figure in figures)


if __name__ == "__main__":
    main()
