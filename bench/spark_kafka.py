"""`python -m bench.spark_kafka`: reading a topic in Spark, from our broker with format("rocketmq")
and from a Kafka broker with Spark's own Kafka source: the same rows, one session, in turn.

Kafka 3.9 (KRaft, its own defaults) and the connector come from Maven Central into .cache. Each
topic has four partitions or queues of 100-byte bodies with a key. Read are six columns (topic,
partition, offset, timestamp, key, body) and all columns; then both brokers are started again, which
is the usual case of a batch read, and all is read once more. Between the two the same rows are
written by both sinks, to topics of their own. Wall time, CPU of Spark (JVM and
Python workers) and CPU of the broker, in µs a row; ratios of medians. Exit status 1: a figure was
missed, which on a busy machine says little.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from statistics import median

import click
from pyspark.sql import DataFrame, SparkSession
from tests.interop.apache import end, fetch_maven, java, properties_text
from tests.ports import free_ports

from bench.brokers import start_ours
from bench.generator import CACHE
from bench.spark_jobs import Used, session, spent
from turbopump import Message, Producer

KAFKA, CONNECTOR = "3.9.1", "4.2.0"
"""The connector's newest release; it runs on Spark 4.3."""
TOPIC, QUEUES, BODY = "compared", 4, 100
OURS, THEIRS = "rocketmq", "kafka"
SIX = {
    OURS: "topic,queueId,queueOffset,storeTimestamp,keys,body",
    THEIRS: "topic,partition,offset,timestamp,key,value",
}
GOALS = {
    ("six columns", "wall"): 1.0,
    ("six columns", "spark"): 1.6,
    ("all columns", "wall"): 1.6,
    ("all columns", "spark"): 2.5,
    ("six columns", "broker"): 1.6,
    ("written", "wall"): 1.0,
    ("six columns after a restart", "wall"): 1.0,
    ("six columns after a restart", "spark"): 1.6,
    ("all columns after a restart", "wall"): 1.6,
    ("all columns after a restart", "spark"): 2.5,
    ("six columns after a restart", "broker"): 2.0,
}
"""Maximum ratios to Kafka's figures (issue 13)."""


class Server:
    """A broker that can be started again on its directory. ``address``: of the name server or the
    bootstrap server."""

    def __init__(self, name: str, directory: Path, libraries: Path | None) -> None:
        self._name, self._directory, self._libraries = name, directory, libraries
        self._stack = ExitStack()
        self.pid, self.address = 0, ""
        self._port = free_ports(0)
        self.start()

    def start(self) -> None:
        if self._name == OURS:
            broker = start_ours(self._stack, self._directory, {"defaultTopicQueueNums": QUEUES})
            self.pid, self.address = broker.pid, broker.namesrv
        else:
            self.address = f"127.0.0.1:{self._port}"
            self.pid = self._start_kafka()

    def stop(self) -> None:
        self._stack.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def _start_kafka(self) -> int:
        assert self._libraries is not None
        config = self._directory / "server.properties"
        run = [java(), "-cp", f"{self._libraries}/*"]
        if not config.exists():
            self._directory.mkdir(parents=True)
            controller = free_ports(0)
            settings: dict[str, str | int | bool] = {
                "process.roles": "broker,controller",
                "node.id": 1,
                "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": str(self._directory / "logs"),
                "num.partitions": QUEUES,
                "offsets.topic.replication.factor": 1,
            }
            config.write_text(properties_text(settings))
            tool = [*run, "kafka.tools.StorageTool", "format", "-t", "dHVyYm9wdW1wLWJlbmNoAA"]
            subprocess.run([*tool, "-c", str(config)], check=True, capture_output=True)
        heap = ["-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC"]  # as kafka-server-start.sh
        with (self._directory / "kafka.out").open("ab") as out:
            process = subprocess.Popen(
                [run[0], *heap, *run[1:], "kafka.Kafka", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        self._stack.callback(end, process, signal.SIGTERM)
        return process.pid


@click.command(help=__doc__)
@click.option("--rows", type=click.IntRange(1000), default=1_000_000, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
def main(rows: int, rounds: int) -> None:
    libraries = fetch_maven(f"kafka-{KAFKA}", [f"org.apache.kafka:kafka_2.13:{KAFKA}"])
    connector = fetch_maven(
        f"spark-kafka-{CONNECTOR}", [f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR}"]
    )
    wanted = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
    jars = [str(jar) for jar in sorted(connector.iterdir()) if jar.name.startswith(wanted)]
    CACHE.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="data-", dir=CACHE)))
        servers = {
            OURS: Server(OURS, data / OURS, None),
            THEIRS: Server(THEIRS, data / THEIRS, libraries),
        }
        for server in servers.values():
            stack.callback(server.stop)
        spark = stack.enter_context(session("compared with Kafka", {"spark.jars": ",".join(jars)}))
        fill(spark, servers, rows)
        found = measured(spark, servers, rows, rounds, "")
        found |= written(spark, servers, rows, rounds)
        for server in servers.values():
            server.restart()
        for name in servers:
            await_rows(spark, name, servers[name].address, rows)
        found |= measured(spark, servers, rows, rounds, " after a restart")
    raise SystemExit(report(found))


def fill(spark: SparkSession, servers: dict[str, Server], rows: int) -> None:
    """The same bodies and keys into both."""
    messages = (
        Message(TOPIC, str(number).ljust(BODY, "x").encode(), keys=f"k{number}")
        for number in range(rows)
    )
    asyncio.run(send(servers[OURS].address, messages))
    (
        spark.range(rows, numPartitions=2)
        .selectExpr(f"rpad(cast(id as string), {BODY}, 'x') as value", "concat('k', id) as key")
        .write.format("kafka")
        .option("kafka.bootstrap.servers", servers[THEIRS].address)
        .option("topic", TOPIC)
        .save()
    )
    for name, server in servers.items():
        await_rows(spark, name, server.address, rows)


async def send(name_server: str, messages: Iterator[Message]) -> None:
    """In batches of fifty, which have to be of one topic."""

    async def some(producer: Producer) -> None:
        while batch := list(islice(messages, 50)):
            await producer.send_batch(batch)

    async with Producer(name_server, group="compared", send_timeout=30) as producer:
        await asyncio.gather(*(some(producer) for _ in range(16)))


def read(spark: SparkSession, name: str, address: str, columns: str) -> DataFrame:
    reader = spark.read.format(name).option("subscribe", TOPIC)
    if name == OURS:
        reader = reader.option("nameServer", address)
        return (reader.option("columns", columns) if columns else reader).load()
    rows = (
        reader.option("kafka.bootstrap.servers", address)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", str(not columns).lower())
        .load()
    )
    return rows.select(*columns.split(",")) if columns else rows


def await_rows(spark: SparkSession, name: str, address: str, rows: int) -> None:
    """A broker that was just started takes a moment to answer."""
    deadline = time.monotonic() + 60
    while True:
        try:
            found = read(spark, name, address, SIX[name]).count()
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
            continue
        if found != rows:
            raise SystemExit(f"{name} gives {found} rows of {rows}")
        return


def measured(
    spark: SparkSession, servers: dict[str, Server], rows: int, rounds: int, when: str
) -> dict[tuple[str, str], list[Used]]:
    found: dict[tuple[str, str], list[Used]] = {}
    for _ in range(rounds):
        for columns in ("six columns", "all columns"):
            for name, server in servers.items():
                wanted = SIX[name] if columns.startswith("six") else ""
                writer = read(spark, name, server.address, wanted).write.format("noop")
                used = spent(server.pid, rows, writer.mode("overwrite").save)
                found.setdefault((columns + when, name), []).append(used)
    return found


def written(
    spark: SparkSession, servers: dict[str, Server], rows: int, rounds: int
) -> dict[tuple[str, str], list[Used]]:
    """The same rows by both sinks, each into a topic of its own."""
    found: dict[tuple[str, str], list[Used]] = {}
    for _ in range(rounds):
        for name, server in servers.items():
            body, key = ("body", "keys") if name == OURS else ("value", "key")
            frame = spark.range(rows, numPartitions=2).selectExpr(
                f"rpad(cast(id as string), {BODY}, 'x') as {body}", f"concat('k', id) as {key}"
            )
            address = "nameServer" if name == OURS else "kafka.bootstrap.servers"
            writer = frame.write.format(name).mode("append").option("topic", TOPIC + "-written")
            used = spent(server.pid, rows, writer.option(address, server.address).save)
            found.setdefault(("written", name), []).append(used)
    return found


def report(found: dict[tuple[str, str], list[Used]]) -> int:
    """Print both; 1 if a goal was missed."""

    def value(case: str, name: str, figure: str) -> float:
        return median(getattr(used, figure) for used in found[case, name])

    click.echo(f"{'µs a row, median':32}{'wall':>8}{'JVM':>8}{'Python':>8}{'broker':>8}")
    for case, name in found:
        figures = (value(case, name, figure) for figure in ("wall", "jvm", "python", "broker"))
        click.echo(f"{case + ', ' + name:40.40}" + "".join(f"{one:8.2f}" for one in figures))
    missed = 0
    for (case, figure), goal in GOALS.items():
        ratio = value(case, OURS, figure) / max(value(case, THEIRS, figure), 0.01)
        missed += ratio > goal
        verdict = "reached" if ratio <= goal else "MISSED"
        click.echo(
            f"{case + ': ' + figure:40}{ratio:6.2f} x Kafka's, wanted <= {goal:g}  {verdict}"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    main()
