"""Rows a second of writing to a topic with Spark, against our own producer sending the same rows in
batches from one process without Spark.

    python tests/spark/measure_write.py [--rows N] [--rounds R] [--option NAME=VALUE …]

Each round writes N rows of 100 bytes three times, one after the other: to Spark's ``noop`` sink
(what making the rows costs), to a topic, and by the producer. The first round warms up. Every row
is counted in the topic. Exit status 1 if one is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
os.environ["PYTHONPATH"] = os.pathsep.join(
    (str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))
)

from flights_demo import running_servers, running_spark  # noqa: E402

from turbopump import Message, Producer  # noqa: E402
from turbopump.spark.cluster import Cluster  # noqa: E402

BODY_SIZE = 100
BATCH_ROWS = 1000
IN_FLIGHT = 32


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--rounds", type=int, default=4, metavar="R")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    options = dict(one.split("=", 1) for one in arguments.option)
    count, complete = arguments.rows, True
    with (
        tempfile.TemporaryDirectory(prefix="turbopump-measure-") as directory,
        running_servers(Path(directory)) as servers,
        running_spark(java_options="") as spark,
    ):
        name_server = servers.name_server
        text = f"cast(lpad(cast(id as string), {BODY_SIZE}, '0') as binary) as body"
        rows = spark.range(count).selectExpr(text)
        for number in range(arguments.rounds):
            noop = seconds(lambda: rows.write.format("noop").mode("overwrite").save())
            topic = f"sink-{number}"
            given = {"nameServer": name_server, "topic": topic, **options}
            sink = seconds(
                lambda o=given: rows.write.format("rocketmq").options(**o).mode("append").save()
            )
            other = f"producer-{number}"
            own = seconds(lambda t=other: asyncio.run(produce(name_server, t, count)))
            complete &= [stored(name_server, each) for each in (topic, other)] == [count] * 2
            print(
                f"noop {noop:.2f} s; sink {sink:.2f} s, {count / sink:,.0f} rows/s; "
                f"producer {own:.2f} s, {count / own:,.0f} rows/s; "
                f"sink / producer {own / sink:.2f}; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    print(f"  every row is there: {'yes' if complete else 'NO'}")
    return 0 if complete else 1


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


async def produce(name_server: str, topic: str, count: int) -> None:
    async with Producer(name_server) as producer:
        room = asyncio.Semaphore(IN_FLIGHT)

        async def send(begin: int) -> None:
            async with room:
                numbers = range(begin, min(begin + BATCH_ROWS, count))
                await producer.send_batch(
                    [Message(topic, b"%0*d" % (BODY_SIZE, number)) for number in numbers]
                )

        await asyncio.gather(*map(send, range(0, count, BATCH_ROWS)))


def stored(name_server: str, topic: str) -> int:
    with Cluster([name_server]) as cluster:
        return sum(map(cluster.offset_max, cluster.queues(topic)))


if __name__ == "__main__":
    sys.exit(main())
