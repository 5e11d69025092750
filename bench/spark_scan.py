"""`python -m bench.spark_scan`: what decoding stored messages costs, and a scan of a CommitLog by
Spark beside a read of the same rows from Parquet.

    python -m bench.spark_scan [--rows N] [--rounds R] [--decode-only]

Bodies are flights as JSON, cut to 128 bytes and 1 KiB, each with a unique id, a key and a tag; the
log is written by our store. Three tables: vectors against tuples (CPU of one process, no CRCs); the
scan of a log in one process, with CRCs, by ConsumeQueues and by walking; Spark's scan of the log
against Spark's read of Parquet, all columns, into ``noop`` (CPU of the JVM and of the Python
workers). Its one rule: A B A B, the best of the rounds of each, for the machine may have other
work. Exit status 1: rows differ, or a goal is missed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import click
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches
from tests.spark.measure_read import Cpu, cpu_seconds, jvm_pid
from tests.spark.plain_twin import rows as plain_rows

from bench.spark_jobs import descendants
from turbopump.clock import SystemClock
from turbopump.disk.system_disk import SystemDisk
from turbopump.message.java import tags_code
from turbopump.spark import end_session, rocketmq_session
from turbopump.spark.commitlog import log_options, log_schema, plan, scan_options
from turbopump.spark.decode import decode
from turbopump.spark.log_scan import scan
from turbopump.spark.options import READ_SCHEMA
from turbopump.store.files import StorePaths
from turbopump.store.message_store import MessageStore, NewMessage
from turbopump.store.store_config import StoreConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from flights import Flight, flights

SIZES = (128, 1024)
QUEUES = 8
HOST = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")
DECODED_ROWS = 10_000
TUPLES_MIN = 8.0
ROWS_PER_S_MIN = 400_000
MB_PER_S_MIN = 300.0
PARQUET_MAX = {128: 1.25, 1024: 2.0}


@click.command()
@click.option("--rows", default=500_000, help="messages of 128 bytes; of 1 KiB a quarter of that")
@click.option("--rounds", default=5, help="of each; the best counts")
@click.option("--decode-only", is_flag=True, help="without Spark")
def main(rows: int, rounds: int, decode_only: bool) -> None:
    """Measure decoding, and a scan of a CommitLog beside Parquet."""
    met = True
    with tempfile.TemporaryDirectory(prefix="turbopump-scan-") as directory:
        stores = {size: Path(directory) / str(size) for size in SIZES}
        counts = {size: rows if size == SIZES[0] else rows // 4 for size in SIZES}
        for size, store in stores.items():
            fill(store, size, counts[size])
        met &= decoding(stores, rounds)
        scanning(stores, counts, rounds)
        if not decode_only:
            met &= parquet(stores, counts, rounds)
    sys.exit(0 if met else 1)


def fill(directory: Path, size: int, count: int) -> None:
    """Make a store with ``count`` messages of ``size`` bytes in eight queues."""
    config = StoreConfig(StorePaths(directory), with_crc=True)
    store = MessageStore.open(config, SystemDisk(), clock := SystemClock(), print)
    for number, (flight, body) in enumerate(islice(bodies(size), count)):
        text = f"UNIQ_KEY\x017F0000010E2B18B4AAC2{number:012X}\x02KEYS\x01{flight.tail_number}\x02"
        text += f"TAGS\x01{flight.carrier}\x02WAIT\x01true\x02"
        now = clock.now_ms()
        store.put(
            "flights",
            number % QUEUES,
            NewMessage(body, text.encode(), tags_code(flight.carrier)),
            sys_flag=0,
            born_timestamp=now,
            born_host=HOST,
            store_host=HOST,
        )
        if number % 20_000 == 0:
            store.flusher.flush_log()
    store.finish_background()
    store.close()


def bodies(size: int) -> Iterator[tuple[Flight, bytes]]:
    """Flights, again and again: as many side by side as fill ``size`` bytes."""
    kept = b""
    for flight in chain.from_iterable(map(flights, repeat(None))):
        kept += flight.body
        if len(kept) >= size:
            yield flight, kept[:size]
            kept = b""


def decoding(stores: dict[int, Path], rounds: int) -> bool:
    """Vectors against tuples over the first messages of the log, each up to the Arrow batches that
    a Python worker of Spark hands over; and the tuples alone."""
    met = True
    print(
        f"\nDecode, CPU of one core{'rows/s':>14}{'MB/s':>8}{'tuples':>12}{'ratio':>8}"
        f"{'before Arrow':>15}{'ratio':>8}"
    )
    for size, store in stores.items():
        raw, rows = first_entries(store)
        vectors, tuples, bare = best(
            rounds,
            lambda raw=raw: handed_over(decode(raw, "b")),
            lambda raw=raw: handed_over(plain_rows(raw, "b")),
            lambda raw=raw: list(plain_rows(raw, "b")),
        )
        speed, ratio = rows / vectors, tuples / vectors
        mb_per_s = len(raw) / vectors / 1e6
        print(
            f"  {size:>5} B{speed:>29,.0f}{mb_per_s:>8.0f}{rows / tuples:>12,.0f}"
            f"{ratio:>7.1f}x{rows / bare:>15,.0f}{bare / vectors:>7.1f}x"
        )
        met &= ratio >= TUPLES_MIN
        met &= speed >= ROWS_PER_S_MIN if size == 128 else mb_per_s >= MB_PER_S_MIN
    print(
        f"  goals: ratio {TUPLES_MIN:.0f}; {ROWS_PER_S_MIN:,} rows/s at 128 B, "
        f"{MB_PER_S_MIN:.0f} MB/s at 1 KiB: {'reached' if met else 'MISSED'}"
    )
    return met


def handed_over(rows: Iterator[Any]) -> int:
    """Convert a reader's batches or tuples as a worker does. Return the number of rows."""
    made = records_to_arrow_batches(rows, DECODED_ROWS, from_arrow_schema(READ_SCHEMA), None)
    return sum(batch.num_rows for batch in made)


def first_entries(store: Path) -> tuple[bytes, int]:
    """The first ``DECODED_ROWS`` entries of a log, back to back, or all there are, and how many."""
    raw = min((store / "commitlog").iterdir()).read_bytes()
    at = rows = 0
    while rows < DECODED_ROWS and (size := int.from_bytes(raw[at : at + 4])):
        at += size
        rows += 1
    return raw[:at], rows


def scanning(stores: dict[int, Path], counts: dict[int, int], rounds: int) -> None:
    """The scan in one process, with CRCs: all, one queue's topic known by units, and walking."""
    print(f"\nScan with CRCs, one core{'by ConsumeQueues':>28}{'by walking':>16}")
    for size, store in stores.items():
        by_units, by_walk = best(
            rounds,
            lambda store=store: scan_all(store),
            lambda store=store: scan_all(store, walk=True),
        )
        speeds = [counts[size] / seconds for seconds in (by_units, by_walk)]
        print(f"  {size:>5} B{speeds[0]:>37,.0f} rows/s{speeds[1]:>9,.0f} rows/s")


def scan_all(store: Path, *, walk: bool = False) -> int:
    """Return the number of rows."""
    options = log_options({"path": str(store)})
    tasks, root = plan(options, 1)
    found = scan_options(options, log_schema(), None if walk else root)
    return sum(batch.num_rows for task in tasks for part in task for batch in scan(part, found))


def best(rounds: int, *calls: Callable[[], Any]) -> list[float]:
    """CPU seconds of each, the best of the rounds."""
    seconds = [float("inf")] * len(calls)
    for _ in range(rounds):
        for at, call in enumerate(calls):
            began = time.process_time()
            call()
            seconds[at] = min(seconds[at], time.process_time() - began)
    return seconds


def parquet(stores: dict[int, Path], counts: dict[int, int], rounds: int) -> bool:
    """Spark's scan of a log against its read of Parquet."""
    met = True
    spark = rocketmq_session(
        "scan",
        master="local[2]",
        conf={
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
        },
    )
    try:
        print(f"\nSpark, CPU a row in µs{'java':>14}{'python':>9}{'together':>10}{'ratio':>8}")
        for size, store in stores.items():
            log = spark.read.format("rocketmqCommitlog").load(str(store))
            log.write.parquet(str(store / "parquet"))
            table = spark.read.parquet(str(store / "parquet"))
            ok = log.where("status = 'ok'").count()
            if not ok == table.count() == counts[size]:
                print(f"  {size:>5} B: ROWS DIFFER: {ok} of {counts[size]} are ok")
                met = False
            used = in_turns(rounds, counts[size], {"log": log, "parquet": table})
            ratio = sum(used["log"]) / sum(used["parquet"])
            for name, cpu in used.items():
                print(
                    f"  {size:>5} B {name:<12}{cpu.java * 1e6:>16.2f}{cpu.python * 1e6:>9.2f}"
                    f"{sum(cpu) * 1e6:>10.2f}" + (f"{ratio:>7.2f}x" if name == "log" else "")
                )
            met &= ratio <= PARQUET_MAX[size]
        goals = ", ".join(f"{goal} at {size} B" for size, goal in PARQUET_MAX.items())
        print(f"  goals: at most {goals}: {'reached' if met else 'MISSED'}")
    finally:
        end_session(spark)
    return met


def in_turns(rounds: int, rows: int, tables: dict[str, DataFrame]) -> dict[str, Cpu]:
    """CPU seconds a row of reading each into nothing. The first round warms up. A round in which a
    Python worker has ended does not count (Spark ends those that were idle for a minute): what it
    had used is then in no sum."""
    found: dict[str, Cpu] = {}
    for number in range(rounds + 1):
        for name, table in tables.items():
            workers, before = descendants(jvm_pid()), cpu_seconds(jvm_pid())
            table.write.format("noop").mode("overwrite").save()
            after = cpu_seconds(jvm_pid())
            used = Cpu((after.java - before.java) / rows, (after.python - before.python) / rows)
            counts = number > 0 and workers <= descendants(jvm_pid())
            if counts and (name not in found or sum(used) < sum(found[name])):
                found[name] = used
    if len(found) < len(tables):
        sys.exit("Python workers ended in every round: the machine is too busy to measure")
    return found


if __name__ == "__main__":
    main()
