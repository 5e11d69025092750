"""`python -m bench.mirror`: rate of `turbopump pipeline mirror` between two brokers of ours,
against the rate of the producer that filled the source.

Both brokers, the producer and the mirror share the machine. The producer sends messages of 1 KiB
one by one, with 64 in flight, to eight queues. Then the command mirrors them all. With --kills, the
command is killed (kill -9) that often on its way, and started again. At the end the target is read:
every message must be there, in the order of its queue. Copies that are there twice are counted;
only a kill may cause them. Exit status 1: a figure was missed, which on a busy machine says little;
2: a message is missing, or out of order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import click

from bench.brokers import OURS, SOURCES, running_broker
from bench.cores import Cores
from bench.cpu_time import process_seconds
from turbopump import Message, MessageQueue, Producer
from turbopump.admin.admin import Admin
from turbopump.admin.mirror.mirrored_cluster import MirroredCluster
from turbopump.admin.mirror.origin import origin_of

TOPIC, QUEUES, BODY, IN_FLIGHT = "mirrored", 8, 1024, 64
GOAL = 0.5
PIECE = 4096


@click.command(help=__doc__)
@click.option("--messages", type=click.IntRange(1000), default=100_000, show_default=True)
@click.option("--kills", type=click.IntRange(0), default=0, show_default=True)
def main(messages: int, kills: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-mirror-") as directory, ExitStack() as stack:
        root = Path(directory)
        source, target = (
            stack.enter_context(
                running_broker(
                    OURS, root / name, Cores.of_this_machine(), settings={"brokerClusterName": name}
                )
            )
            for name in ("source", "target")
        )
        produced = asyncio.run(fill(source.namesrv, messages))
        print(f"produced  {messages:,} messages, {produced:,.0f}/s")
        before = [process_seconds(one.pid) for one in (source, target)]
        seconds, cpu = run_mirror(source.namesrv, target.namesrv, kills, messages / produced)
        used = [
            process_seconds(one.pid) - was
            for one, was in zip((source, target), before, strict=True)
        ]
        rate = messages / seconds
        print(
            f"mirrored  {rate:,.0f}/s, {rate / produced:.2f} x (goal {GOAL}); CPU a message: "
            f"mirror {cpu / messages * 1e6:.1f} us, source {used[0] / messages * 1e6:.1f}, "
            f"target {used[1] / messages * 1e6:.1f}"
        )
        whole = asyncio.run(compare(source.namesrv, target.namesrv))
    if not whole:
        sys.exit(2)
    sys.exit(0 if rate >= GOAL * produced else 1)


async def fill(namesrv: str, messages: int) -> float:
    """Send the messages. Return their number a second."""
    async with Admin(namesrv) as admin:
        await admin.topics.create(TOPIC, read_queues=QUEUES, write_queues=QUEUES)
    async with Producer(namesrv) as producer:
        queues = await producer.publish_queues(TOPIC)
        numbers = iter(range(messages))

        async def send() -> None:
            for number in numbers:
                body = b"%09d" % number + b"x" * (BODY - 9)
                message = Message(TOPIC, body, tags="a", keys=f"key-{number}")
                await producer.send(message, queue=queues[number % QUEUES])

        began = time.monotonic()
        await asyncio.gather(*(send() for _ in range(IN_FLIGHT)))
        return messages / (time.monotonic() - began)


def run_mirror(source: str, target: str, kills: int, expected: float) -> tuple[float, float]:
    """Run the command to its end. Return its seconds, and the CPU seconds of the last run."""
    command = [sys.executable, "-m", "turbopump", "pipeline", "mirror", TOPIC]
    command += ["--from", source, "--to", target]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    began = time.monotonic()
    for number in range(kills):
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        time.sleep(max(1.0, expected / 2 / (kills + 1)))
        process.send_signal(signal.SIGKILL)
        code = process.wait()
        print(f"kill {number + 1}    after {time.monotonic() - began:.1f} s, exit code {code}")
    process = subprocess.Popen(command, env=environment)
    cpu = 0.0
    while process.poll() is None:
        cpu = process_seconds(process.pid)
        time.sleep(0.02)
    if process.returncode:
        sys.exit(2)
    return time.monotonic() - began, cpu


async def compare(source: str, target: str) -> bool:
    """Compare the target with the source. Return True if it has every message in order."""
    whole = True
    copies = distinct = 0
    async with Admin(source) as source_admin, Admin(target) as target_admin:
        there = MirroredCluster(source_admin.servers, "source", None)
        here = MirroredCluster(target_admin.servers, "target", None)
        await there.refresh()
        await here.refresh()
        for number in range(QUEUES):
            queue = MessageQueue(TOPIC, next(iter(there.brokers)), number)
            end = await there.end(queue)
            following = 0
            low, high = await here.bounds(queue)
            for begin in range(low, high, PIECE):
                for entry in await here.read(queue, begin, min(begin + PIECE, high)):
                    origin = origin_of(entry)
                    if origin is None or origin.offset > following:
                        print(f"out of order in {queue}: {origin}, expected offset {following}")
                        whole = False
                    copies += 1
                    if origin is not None and origin.offset == following:
                        following += 1
            distinct += following
            whole = whole and following == end
    print(f"target    {copies:,} copies of {distinct:,} messages, {copies - distinct:,} repeated")
    return whole


if __name__ == "__main__":
    main()
