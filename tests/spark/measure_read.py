"""CPU of reading the flights topic in Spark: the vectorised source against the tuple-per-row
reader, the same rows, the same broker.

    python tests/spark/measure_read.py [--flights N] [--rounds R]

Prints for both readers the CPU per row of Spark's JVM and of its Python workers, and the ratios;
the broker's own CPU, the same for both, is not in them. Exit status 1 if the rows differ or a ratio
is below what the project promises (3 end to end, 8 in Python). Linux only: CPU times come from
/proc. Rounds alternate A B A B; the best of each is taken, for the machine may have other work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
os.environ["PYTHONPATH"] = os.pathsep.join(
    (str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))
)

from flights import flights  # noqa: E402
from flights_demo import TOPIC, running_servers, running_spark, send  # noqa: E402
from pyspark import SparkContext  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql.functions import map_entries, sort_array, xxhash64  # noqa: E402
from tests.spark.plain_reader import PlainDataSource  # noqa: E402

WHOLE_MIN, PYTHON_MIN = 3.0, 8.0


class Cpu(NamedTuple):
    """Seconds of CPU since their start."""

    java: float
    python: float


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--flights", type=int, default=None, metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="R")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="turbopump-measure-") as directory:
        todo = list(flights(options.flights))
        with running_servers(Path(directory)) as servers:
            name_server = servers.name_server
            asyncio.run(send(name_server, todo))
            with running_spark(java_options="") as spark:
                spark.dataSource.register(PlainDataSource)
                equal = same_rows(spark, name_server)
                figures = measure(spark, name_server, len(todo), options.rounds)
    return report(figures, equal)


def read(spark: SparkSession, name_server: str, format_name: str) -> DataFrame:
    return (
        spark.read.format(format_name)
        .option("nameServer", name_server)
        .option("topic", TOPIC)
        .load()
    )


def same_rows(spark: SparkSession, name_server: str) -> bool:
    """Return True if both readers give equal rows: the same number and the same hashes in all. This
    also warms up both."""
    seen = []
    for name in ("rocketmq", "rocketmqPlain"):
        rows = read(spark, name_server, name)
        columns = [
            sort_array(map_entries("properties")) if column == "properties" else column
            for column in rows.columns
        ]
        seen.append(
            rows.select(xxhash64(*columns).alias("h"))
            .selectExpr("count(*)", "bit_xor(h)", "sum(h % 1000003)")
            .collect()
        )
    return bool(seen[0] == seen[1])


def measure(spark: SparkSession, name_server: str, rows: int, rounds: int) -> dict[str, Cpu]:
    best: dict[str, Cpu] = {}
    for _ in range(rounds):
        for name in ("rocketmq", "rocketmqPlain"):
            before = cpu_seconds(jvm_pid())
            read(spark, name_server, name).write.format("noop").mode("overwrite").save()
            after = cpu_seconds(jvm_pid())
            used = Cpu((after.java - before.java) / rows, (after.python - before.python) / rows)
            if name not in best or sum(used) < sum(best[name]):
                best[name] = used
    return best


def jvm_pid() -> int:
    gateway: Any = SparkContext._gateway
    # The launch script replaces itself with java.
    return int(gateway.proc.pid)


def cpu_seconds(java: int) -> Cpu:
    """CPU of the JVM, and of all processes below it with those they have already buried."""
    children: dict[int, list[int]] = {}
    times: dict[int, tuple[float, float]] = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                fields = (directory / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            pid = int(directory.name)
            children.setdefault(int(fields[1]), []).append(pid)
            own, buried = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
            times[pid] = own / os.sysconf("SC_CLK_TCK"), buried / os.sysconf("SC_CLK_TCK")
    python, todo = times[java][1], list(children.get(java, ()))
    while todo:
        pid = todo.pop()
        python += sum(times[pid])
        todo += children.get(pid, ())
    return Cpu(times[java][0], python)


def report(figures: dict[str, Cpu], equal: bool) -> int:
    vector, plain = figures["rocketmq"], figures["rocketmqPlain"]
    whole, python = sum(plain) / sum(vector), plain.python / vector.python
    print(f"\nCPU per row in µs{'java':>18}{'python':>10}{'together':>10}")
    for name, used in (("vectors", vector), ("tuple per row", plain)):
        print(
            "  "
            f"{name:<20}{used.java * 1e6:>13.2f}{used.python * 1e6:>10.2f}{sum(used) * 1e6:>10.2f}"
        )
    print(f"  ratio                {'':>12}{python:>10.1f}{whole:>10.1f}")
    print(f"  promised             {'':>12}{PYTHON_MIN:>10.1f}{WHOLE_MIN:>10.1f}")
    print(f"  rows equal: {'yes' if equal else 'NO'}")
    print(
        json.dumps(
            {
                "java_python_us": {n: [round(v * 1e6, 3) for v in c] for n, c in figures.items()},
                "ratio": [whole, python],
            }
        )
    )
    return 0 if equal and whole >= WHOLE_MIN and python >= PYTHON_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
