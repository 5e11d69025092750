"""Topics in tests of whole programs: create them, fill them, read them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter

from tests.spark.fake_cluster import FakeCluster
from tests.spark_long.conftest import PATIENCE_S, Servers

from turbopump.blocking import Producer
from turbopump.message.message import Message
from turbopump.spark.cluster import Cluster
from turbopump.spark.offsets import OffsetRange
from turbopump.spark.options import read_options
from turbopump.spark.reading import read_ranges


def create(servers: Servers, *topics: str) -> None:
    """Topics of four queues."""
    for topic in topics:
        command = ["topic", "create", topic, "--queues", "4", "--namesrv", servers.name_server]
        subprocess.run(
            [sys.executable, "-m", "turbopump", *command], check=True, timeout=PATIENCE_S
        )


def fill(servers: Servers, topic: str, count: int) -> None:
    """Send the numbers from 0 up, one in each message."""
    with Producer(servers.name_server) as producer:
        for begin in range(0, count, 1000):
            part = range(begin, min(begin + 1000, count))
            producer.send_batch([Message(topic, str(number)) for number in part])


def store_in_seconds(origin: FakeCluster, numbers: range, each: int) -> None:
    """Numbers as JSON into topic T, in two queues; ``each`` of them are stored in a second of their
    own."""
    for number in numbers:
        origin.queues["T", number % 2].put(
            f'{{"n": {number}}}'.encode(),
            topic="T",
            queue_id=number % 2,
            stored_ms=(1_700_000_000 + number // each) * 1000,
        )


def once(count: int) -> dict[str, int]:
    """Return the result of `bodies` if each number exists once."""
    return {str(number): 1 for number in range(count)}


def bodies(servers: Servers, topic: str) -> Counter[str]:
    options = read_options({"nameServer": servers.name_server, "topic": topic, "columns": "body"})
    with Cluster(options.name_servers) as cluster:
        ranges = [OffsetRange(q, 0, cluster.offset_max(q)) for q in cluster.queues(topic)]
    found: Counter[str] = Counter()
    for batch in read_ranges(ranges, options):
        found.update(body.decode() for body in batch.column(0).to_pylist())
    return found


def stored(servers: Servers, topic: str) -> int:
    with Cluster([servers.name_server]) as cluster:
        return sum(map(cluster.offset_max, cluster.queues(topic)))


def wait_until_stored(
    servers: Servers, topic: str, count: int, process: subprocess.Popen[str]
) -> bool:
    """Wait until a topic has this many messages. Return False if the program ends before."""
    deadline = time.monotonic() + PATIENCE_S
    with Cluster([servers.name_server]) as cluster:
        queues = cluster.queues(topic)
        while sum(cluster.offsets_max(queues).values()) < count:
            if process.poll() is not None:
                return False
            assert time.monotonic() < deadline
            time.sleep(0.01)  # what is waited for needs the processor
    return True
