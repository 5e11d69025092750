"""Java's clients and ours while the master dies: with retries alone, every acknowledged message is
consumed, and an ordered consumer gets them in order."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path
from typing import Final

from tests.interop.apache import NEWEST
from tests.interop.foreign import java_client
from tests.interop.replica_groups import OURS, ReplicaGroup
from tests.interop.replica_questions import PATIENCE_S, GroupClient
from tests.interop.tools import skipping_without_tools
from tests.loops import in_loop

from turbopump import ConsumeFrom, Producer, PushConsumer
from turbopump.client.consumer.delivery import Delivery
from turbopump.errors import TurbopumpError
from turbopump.protocol.requests.topics import CreateTopic

BEFORE, AFTER = 50, 50
SECONDS: Final = PATIENCE_S


class Numbers:
    """Numbers that a client was told are stored, and those that it got, in turn."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.got: list[int] = []

    async def until_sent(self, count: int) -> None:
        async with asyncio.timeout(SECONDS):
            while len(self.sent) < count:
                await asyncio.sleep(0.05)

    async def until_got(self) -> None:
        """Wait until everything sent was consumed."""
        async with asyncio.timeout(SECONDS):
            while not set(self.sent) <= set(self.got):
                await asyncio.sleep(0.05)

    def first_deliveries(self) -> list[int]:
        """Each number once, in the turn in which it first came."""
        return list(dict.fromkeys(self.got))


async def run_ours(namesrv: str, numbers: Numbers, stop: asyncio.Event) -> None:
    """Send and consume with our clients until told to stop, and everything is consumed."""

    async def take(message: Delivery) -> None:
        numbers.got.append(int(message.body))

    consumer = PushConsumer(
        namesrv,
        group="ours",
        topic="ours",
        handler=take,
        ordered=True,
        consume_from=ConsumeFrom.FIRST,
    )
    async with Producer(namesrv, group="ours-producer") as producer, consumer:
        number = 0
        while not stop.is_set():
            try:
                await producer.send("ours", b"%d" % number, sharding_key=1)
            except TurbopumpError:
                continue
            numbers.sent.append(number)
            number += 1
            await asyncio.sleep(0.01)
        await numbers.until_got()


async def run_java(
    command: list[str], numbers: Numbers, stop: asyncio.Event, directory: Path
) -> None:
    """The same with Java's clients."""
    with (directory / "java.stderr").open("w") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        reading = asyncio.create_task(read_numbers(process.stdout, numbers))
        await stop.wait()
        process.stdin.write(b"\n")
        await process.stdin.drain()
        await numbers.until_got()
        reading.cancel()
    finally:
        process.kill()
        await process.wait()


async def read_numbers(lines: asyncio.StreamReader, numbers: Numbers) -> None:
    async for line in lines:
        what, _, number = line.decode().partition(" ")
        if what in {"sent", "got"}:
            getattr(numbers, what).append(int(number))


@in_loop
async def test_clients_of_both_sides_come_through_the_master_s_death_with_retries_alone(
    tmp_path: Path,
) -> None:
    with skipping_without_tools():
        java = java_client(NEWEST, program="Switching")
    with ReplicaGroup(tmp_path, [OURS] * 3, controller=OURS) as group:
        async with GroupClient.of(group) as client:
            master = (await client.whole()).master
            assert master is not None
            for topic in ("ours", "java"):
                made = CreateTopic(topic=topic, read_queue_nums=1, write_queue_nums=1)
                assert (await client.replicas[master].code(made))[0] == 0
            stop, ours, javas = asyncio.Event(), Numbers(), Numbers()
            names = group.namesrv_address
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(run_ours(names, ours, stop))
                tasks.create_task(run_java([*java, names, "java", "java"], javas, stop, tmp_path))
                for numbers in (ours, javas):
                    await numbers.until_sent(BEFORE)
                group.replicas[master].kill()
                died = time.monotonic()
                for numbers in (ours, javas):
                    await numbers.until_sent(len(numbers.sent) + AFTER)
                print(f"both sent {AFTER} more {time.monotonic() - died:.1f} s after the death")
                stop.set()
            for numbers in (ours, javas):
                assert numbers.first_deliveries() == sorted(set(numbers.got))
                assert set(numbers.sent) <= set(numbers.got)
