"""The main job on real input: 336,776 flights through RocketMQ and Spark, counted at both ends.

Starts a name server and a broker, sends every flight of 2013 from New York as a JSON message (tag:
the carrier, key: the aircraft's tail number), lets one Spark streaming query write them into
Parquet partitioned by carrier and a second one average the departure delays, draws these, and
compares what went in with what came out. Exit status 0 means that everything agrees, 1 that it does
not.

    python examples/flights_demo.py [--flights N] [--out DIR]

Nothing is left running, and nothing left behind but ``flights.png``, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from flights import Delays, Flight, average_delays, by_delay, flights, plot
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import avg, col, count, count_distinct, from_json
from pyspark.sql.streaming.query import StreamingQuery

from turbopump import Message, Producer
from turbopump.spark import end_session, rocketmq_session

TOPIC = "flights"
SEND_AT_ONCE = 16
BATCH = 32
SCHEMA = (
    "year int, month int, day int, dep_delay int, carrier string, flight int, tailnum "
    "string, origin string, dest string"
)


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="turbopump-flights-"))
        )
        print("Reading the flights")
        todo = list(flights(options.flights))
        print(f"Starting a name server and a broker in {directory}")
        name_server = stack.enter_context(running_servers(directory / "store"))
        sent = asyncio.run(send(name_server, todo))
        print("Starting Spark")
        spark = stack.enter_context(running_spark())
        delays = stream(spark, name_server, directory)
        result = compare(spark, directory, todo, sent, delays)
        show(delays)
        plot(delays, options.out / "flights.png")
        print(f"Drawn in {options.out / 'flights.png'}")
    return report(result, time.monotonic() - began)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--flights", type=int, default=None, metavar="N", help="only the first N flights"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out"),
        metavar="DIR",
        help="where flights.png goes (default: out)",
    )
    return parser.parse_args()


@contextmanager
def running_servers(store: Path) -> Iterator[str]:
    """``turbopump dev`` on free ports; yields the name server's address."""
    command = [
        sys.executable,
        "-m",
        "turbopump",
        "dev",
        "--data",
        str(store),
        "--namesrv-port",
        "0",
        "--broker-port",
        "0",
    ]
    # In a session of its own, so that Ctrl-C reaches this program alone, which then ends the
    # servers last.
    servers = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert servers.stdout is not None
        for line in servers.stdout:
            if line.startswith("ready "):
                yield dict(part.split("=", 1) for part in line.split()[1:])["namesrv"]
                break
        else:
            raise SystemExit("the servers did not start; what they said stands above")
    finally:
        servers.terminate()
        try:
            servers.wait(15)
        except subprocess.TimeoutExpired:
            servers.kill()
            servers.wait()


async def send(name_server: str, todo: list[Flight]) -> int:
    """Send the flights in batches, several on the way at once; the number of messages that the
    broker acknowledged."""
    bar = Progress("Sending", len(todo))
    batches = iter([todo[at : at + BATCH] for at in range(1, len(todo), BATCH)])
    sent = 0

    def message(flight: Flight) -> Message:
        return Message(TOPIC, flight.body, tags=flight.carrier, keys=flight.tail_number)

    async def send_batches(producer: Producer) -> None:
        nonlocal sent
        for batch in batches:
            await producer.send_batch([message(flight) for flight in batch])
            sent += len(batch)
            bar.show(sent)

    async with Producer(name_server, group="flights_demo", send_timeout=30) as producer:
        # makes the topic, so that the others find it on its broker
        await producer.send(message(todo[0]))
        sent = 1
        async with asyncio.TaskGroup() as group:
            for _ in range(SEND_AT_ONCE):
                group.create_task(send_batches(producer))
    bar.end()
    return sent


@contextmanager
def running_spark(
    java_options: str = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
) -> Iterator[SparkSession]:
    """A local session. For work as short as this, Java's second compiler and parallel collector
    cost more than they save."""
    spark = rocketmq_session(
        "flights",
        master=os.environ.get("FLIGHTS_MASTER", "local[2]"),
        conf={
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.adaptive.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": java_options,
        },
    )
    try:
        yield spark
    finally:
        end_session(spark)


def stream(spark: SparkSession, name_server: str, directory: Path) -> Delays:
    """Both queries over all there is; the average delays of the second one."""

    def rows(columns: str) -> DataFrame:
        source = (
            spark.readStream.format("rocketmq")
            .option("nameServer", name_server)
            .option("topic", TOPIC)
        )
        source = (
            source.option("startingOffsets", "earliest")
            .option("columns", columns)
            .option("maxOffsetsPerTrigger", 120_000)
        )
        return source.load().withColumn("f", from_json(col("body").cast("string"), SCHEMA))

    archive = (
        rows("brokerName,queueId,queueOffset,keys,tags,body,bornTimestamp,storeTimestamp")
        .select(
            "brokerName", "queueId", "queueOffset", "keys", "bornTimestamp", "storeTimestamp", "f.*"
        )
        .writeStream.format("parquet")
        .partitionBy("carrier")
        .option("checkpointLocation", str(directory / "archive-checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "parquet"))
    )
    wait(archive, "Into Parquet")
    averages = (
        rows("body")
        .groupBy(col("f.carrier").alias("carrier"), col("f.month").alias("month"))
        .agg(avg("f.dep_delay").alias("delay"), count("f.dep_delay").alias("departed"))
        .writeStream.format("memory")
        .queryName("delays")
        .outputMode("complete")
        .option("checkpointLocation", str(directory / "delays-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    wait(averages, "Averaging")
    return {
        (row.carrier, row.month): (row.delay, row.departed)
        for row in spark.table("delays").collect()
        if row.departed
    }


def wait(query: StreamingQuery, label: str) -> None:
    bar = Progress(label, None)
    rows, seen = 0, -1
    try:
        while query.isActive:
            time.sleep(0.1)
            for progress in query.recentProgress:
                if progress.batchId > seen:
                    seen, rows = progress.batchId, rows + progress.numInputRows
            bar.show(rows)
        query.awaitTermination()  # raises what ended it, if that was an error
    finally:
        query.stop()
    bar.end()


@dataclass(frozen=True)
class Comparison:
    """What went in and what came out."""

    flights: int
    sent: int
    rows: int
    tail_numbers: int
    keys: int
    places: int
    delays_agree: bool

    @property
    def agrees(self) -> bool:
        return (
            self.flights == self.sent == self.rows == self.places
            and self.keys == self.tail_numbers
            and self.delays_agree
        )


def compare(
    spark: SparkSession, directory: Path, todo: list[Flight], sent: int, delays: Delays
) -> Comparison:
    rows = spark.read.parquet(str(directory / "parquet"))
    found = rows.agg(
        count("*").alias("rows"),
        count_distinct("keys").alias("keys"),
        count_distinct("brokerName", "queueId", "queueOffset").alias("places"),
    ).collect()[0]
    expected = average_delays(todo)
    return Comparison(
        flights=len(todo),
        sent=sent,
        rows=found.rows,
        tail_numbers=len({flight.tail_number for flight in todo} - {None}),
        keys=found.keys,
        places=found.places,
        delays_agree=delays.keys() == expected.keys()
        and all(
            delays[group][1] == n and abs(delays[group][0] - delay) < 1e-9
            for group, (delay, n) in expected.items()
        ),
    )


def show(delays: Delays) -> None:
    print("\nAverage departure delay in minutes, by carrier and month")
    print("     " + "".join(f"{month:>6}" for month in range(1, 13)))
    for carrier in by_delay(delays):
        cells = (delays.get((carrier, month)) for month in range(1, 13))
        print(
            f"{carrier:<5}"
            + "".join("     ." if cell is None else f"{cell[0]:6.1f}" for cell in cells)
        )
    print()


def report(result: Comparison, seconds: float) -> int:
    lines = [
        (
            "messages sent",
            f"{result.sent:,}",
            "" if result.sent == result.flights else f"of {result.flights:,} flights",
        ),
        ("rows in Parquet", f"{result.rows:,}", ""),
        ("distinct keys", f"{result.keys:,}", f"of {result.tail_numbers:,} tail numbers"),
        ("distinct (queue, offset)", f"{result.places:,}", ""),
        (
            "average delays",
            "equal" if result.delays_agree else "DIFFERENT",
            "to those computed without Spark",
        ),
        ("seconds", f"{seconds:.1f}", ""),
        ("all agree", "yes" if result.agrees else "NO", ""),
    ]
    print()
    for name, value, note in lines:
        print(f"  {name:<26}{value:>12}  {note}".rstrip())
    return 0 if result.agrees else 1


class Progress:
    """A bar on a terminal, a line every so often elsewhere."""

    def __init__(self, label: str, total: int | None) -> None:
        self._label, self._total = label, total
        self._began = self._shown = time.monotonic()
        self._done = 0

    def show(self, done: int) -> None:
        self._done = done
        now = time.monotonic()
        if now - self._shown >= (0.1 if sys.stdout.isatty() else 5):
            self._shown = now
            self._print("\r" if sys.stdout.isatty() else "\n")

    def end(self) -> None:
        self._print("\n")

    def _print(self, end: str) -> None:
        bar = ""
        if self._total:
            filled = 30 * self._done // self._total
            bar = f"[{'#' * filled}{'.' * (30 - filled)}] "
        seconds = time.monotonic() - self._began
        print(f"{self._label:<13}{bar}{self._done:>9,} in {seconds:5.1f} s", end=end, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted; servers and Spark are stopped")
