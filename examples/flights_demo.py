"""Example on real input: 336,776 flights through RocketMQ into a lake, counted twice.

Starts a name server and a broker, sends every flight of 2013 from New York as a JSON message (tag:
the carrier, key: the aircraft's tail number), and archives them into a Parquet lake with Spark,
bodies as columns, exactly once: in the middle the broker is killed with SIGKILL and started again.
Then a reader that is not Spark (DuckDB) counts the lake, a SQL query averages the departure delays,
which are drawn, and all is compared with what went in. Exit status 0 means that everything agrees,
1 that it does not.

    python examples/flights_demo.py [--flights N] [--out DIR]

The demo leaves no process running and no file but ``flights.png``, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb
from flights import Delays, Flight, average_delays, by_delay, flights, plot
from pyspark.sql import SparkSession

from turbopump import Message, Producer
from turbopump.spark import archive as lakes
from turbopump.spark import end_session, rocketmq_session
from turbopump.spark.pipelines import ArchiveReport, archive, json_bodies, query
from turbopump.spark.pipelines.row_progress import RowProgress

TOPIC = "flights"
SEND_AT_ONCE = 16
BATCH = 32
SCHEMA = (
    "year int, month int, day int, dep_delay int, carrier string not null, flight int, tailnum "
    "string, origin string, dest string"
)
COLUMNS = (
    *("topic", "brokerName", "queueId", "queueOffset"),
    *("keys", "tags", "body", "bornTimestamp", "storeTimestamp"),
)
DELAYS = (
    "select carrier, month, avg(dep_delay) as delay, count(dep_delay) as departed from lake "
    "group by carrier, month"
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
        servers = stack.enter_context(running_servers(directory / "store"))
        sent = asyncio.run(send(servers.name_server, todo))
        print("Starting Spark")
        spark = stack.enter_context(running_spark())
        archived = archive_all(spark, servers, directory / "lake", len(todo))
        delays = average(spark, servers, directory / "lake")
        result = compare(directory / "lake", todo, sent, archived, delays, servers.kills)
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
        help="directory for flights.png (default: out)",
    )
    return parser.parse_args()


def free_ports() -> tuple[str, str]:
    """Return a free port for the name server and one for the broker. The broker also uses the port
    two below its own and the next one. The ports are below those that the system gives to outgoing
    connections, so no connection takes them while the servers are stopped."""
    while True:
        first = random.randrange(12_000, 32_000)
        with ExitStack() as held, suppress(OSError):
            for port in range(first, first + 5):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return str(first), str(first + 3)


class Servers:
    """Process of ``turbopump dev``, which can be killed and started again with the same ports and
    directory."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._ports = free_ports()
        self.name_server = ""
        self.kills = 0
        self._process = self._started()

    def kill_and_start(self) -> None:
        """Kill the process with SIGKILL, and start it again in the same directory."""
        self._process.kill()
        self._process.wait()
        self.kills += 1
        self._process = self._started()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _started(self) -> subprocess.Popen[str]:
        namesrv, broker = self._ports
        command = [sys.executable, "-m", "turbopump", "dev", "--data", str(self._store)]
        command += ["--namesrv-port", namesrv, "--broker-port", broker]
        # A session of its own keeps Ctrl-C from reaching the servers; this program ends them last.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ready "):
                ready = dict(part.split("=", 1) for part in line.split()[1:])
                self.name_server = ready["namesrv"]
                return process
        raise SystemExit("the servers did not start; their output above has the reason")


@contextmanager
def running_servers(store: Path) -> Iterator[Servers]:
    """Run the servers on free ports."""
    servers = Servers(store)
    try:
        yield servers
    finally:
        servers.stop()


async def send(name_server: str, todo: list[Flight]) -> int:
    """Send the flights in batches, several at a time. Return the number of messages that the broker
    has acknowledged."""
    bar = ProgressBar("Sending", len(todo))
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
        # The first message creates the topic, so the batches find it on its broker.
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
    """Run a local session. For such short work, Java's second compiler and its parallel collector
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


def archive_all(spark: SparkSession, servers: Servers, lake: Path, total: int) -> ArchiveReport:
    """Archive the topic in three batches. The broker is killed while the second one is read."""
    bar = ProgressBar("Archiving", total)
    planned = 0
    is_read = threading.Event()

    def kill_while_it_reads() -> None:
        while not any((lake / "_staging").iterdir()) and not is_read.wait(0.005):
            pass  # until a task has begun a file
        print("\nKilling the broker with SIGKILL and starting it again")
        servers.kill_and_start()

    killing = threading.Thread(target=kill_while_it_reads)

    def at_step(step: str) -> None:
        nonlocal planned
        planned += step == "planned"
        if step == "planned" and planned == 2:
            killing.start()
        elif step == "written" and planned == 2:
            is_read.set()

    found = archive(
        lake,
        [TOPIC],
        name_server=servers.name_server,
        spark=spark,
        columns=COLUMNS,
        bodies=json_bodies(SCHEMA),
        rows_per_batch=-(-total // 3),
        progress=RowProgress(shown=lambda progress: bar.show(progress.done)),
        at_step=at_step,
    )
    if killing.ident is not None:
        killing.join()
    bar.end()
    return found


def average(spark: SparkSession, servers: Servers, lake: Path) -> Delays:
    """Return the average delays, computed by SQL over the lake."""
    print(f'turbopump sql --lake {lake.name} "{DELAYS}"')
    rows = query(DELAYS, name_server=servers.name_server, lakes={"lake": lake}, spark=spark)
    return {
        (row.carrier, row.month): (row.delay, row.departed)
        for row in rows.collect()
        if row.departed
    }


@dataclass(frozen=True)
class Comparison:
    """Counts of what was sent and what was found."""

    flights: int
    sent: int
    rows: int
    rows_elsewhere: int
    tail_numbers: int
    keys: int
    places: int
    kills: int
    archive_agrees: bool
    delays_agree: bool

    @property
    def agrees(self) -> bool:
        return (
            self.flights == self.sent == self.rows == self.rows_elsewhere == self.places
            and self.keys == self.tail_numbers
            and self.archive_agrees
            and self.delays_agree
        )


def compare(
    lake: Path, todo: list[Flight], sent: int, archived: ArchiveReport, delays: Delays, kills: int
) -> Comparison:
    """Compare what was sent with the counts of DuckDB and of Spark."""
    counts = duckdb.from_arrow(lakes.dataset(lake)).aggregate(
        "count(*), count(distinct keys), count(distinct (brokerName, queueId, queueOffset))"
    )
    (rows, keys, places) = counts.fetchall()[0]
    expected = average_delays(todo)
    return Comparison(
        flights=len(todo),
        sent=sent,
        rows=archived.rows,
        rows_elsewhere=rows,
        tail_numbers=len({flight.tail_number for flight in todo} - {None}),
        keys=keys,
        places=places,
        kills=kills,
        archive_agrees=archived.agrees,
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
        ("kills of the broker", f"{result.kills}", "while it was read"),
        ("rows in the lake", f"{result.rows:,}", "by Spark's count"),
        ("rows by DuckDB", f"{result.rows_elsewhere:,}", ""),
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


class ProgressBar:
    """Progress of one step: a bar on a terminal, elsewhere a line every five seconds."""

    def __init__(self, label: str, total: int) -> None:
        self._label = label
        self._total = total
        self._is_terminal = sys.stdout.isatty()
        self._began = self._printed_at = time.monotonic()
        self._done = 0

    def show(self, done: int) -> None:
        """Print the progress, unless a line was just printed. ``end`` prints the last one."""
        self._done = done
        now = time.monotonic()
        interval_s = 0.1 if self._is_terminal else 5
        if done < self._total and now - self._printed_at >= interval_s:
            self._printed_at = now
            self._print("\r" if self._is_terminal else "\n")

    def end(self) -> None:
        self._print("\n")

    def _print(self, end: str) -> None:
        filled = 30 * self._done // max(self._total, 1)
        bar = "#" * filled + "." * (30 - filled)
        seconds = time.monotonic() - self._began
        line = f"{self._label:<13}[{bar}] {self._done:>9,} in {seconds:5.1f} s"
        print(line, end=end, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted; servers and Spark are stopped")
