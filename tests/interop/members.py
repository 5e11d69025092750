"""Members of one group, theirs and ours. A foreign one is a program that lives until its standard
input ends and says each delivery in a line.

The one rule: nothing is judged while they run but whether all is done; what they said is judged
together.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.interop.foreign import CACHE, CLIENTS, cpp_client, go_client, java_client, node_client
from tests.interop.our_clients import PATIENCE_SECONDS

from turbopump import ConsumeFrom, PushConsumer
from turbopump.client.consumer.delivery import Delivery, Retry

BALANCE_EACH_SECOND = "-Drocketmq.client.rebalance.waitInterval=1000"
"""Java 5.x now and then has its queues only with its second rebalance, 20 s later."""

BESIDE: dict[str, Callable[[], list[str]]] = {
    "java-5.3.3": partial(java_client, "5.3.3", BALANCE_EACH_SECOND, program="Beside"),
    "java-4.9.8": partial(java_client, "4.9.8", BALANCE_EACH_SECOND, program="Beside"),
    "go-2.1.2": partial(go_client, "beside"),
    "cpp-0.4.4": lambda: [cpp_client()[0], str(CLIENTS / "cpp" / "beside.py")],
    "node-2.0.1": lambda: node_program("beside.js"),
}
"""Peer -> the command, without its arguments, of a member that does what clients/java/Beside.java
says."""


def node_program(name: str) -> list[str]:
    """The command of a program of clients/node."""
    return [
        "env",
        f"NODE_PATH={CACHE / 'node-2.0.1' / 'node_modules'}",
        *node_client()[:-1],
        str(CLIENTS / "node" / name),
    ]


class Handled(NamedTuple):
    """One delivery: by whom, of which message, how often it had been sent back, queue and topic as
    the client says, how it ended."""

    who: str
    number: int
    attempt: int
    queue: int
    topic: str
    ok: bool


class Deliveries:
    """What every member said."""

    def __init__(self) -> None:
        self.all: list[Handled] = []

    def read(self, who: str, words: Sequence[str]) -> None:
        """A line of a foreign member."""
        number, attempt, queue, topic, how = words
        self.all.append(Handled(who, int(number), int(attempt), int(queue), topic, how == "ok"))

    def done(self) -> set[int]:
        """Who was handled, or failed when it came again."""
        return {one.number for one in self.all if one.ok or one.attempt}

    def dead(self) -> set[int]:
        """Who failed again."""
        return {one.number for one in self.all if one.attempt and not one.ok}

    def shared(self, numbers: Collection[int], members: Sequence[str]) -> bool:
        """Whether of these messages each member got some queues, and no queue went to two."""
        queues: dict[str, set[int]] = defaultdict(set)
        for one in self.all:
            if one.number in numbers and not one.attempt:
                queues[one.who].add(one.queue)
        return set(queues) == set(members) and sum(map(len, queues.values())) == len(
            set().union(*queues.values())
        )

    def crossed(self, giver: str, taker: str) -> bool:
        """Whether the one has handled again what the other failed."""
        failed = {
            one.number for one in self.all if one.who == giver and not one.ok and not one.attempt
        }
        return any(one.number in failed for one in self.all if one.who == taker and one.attempt)


async def handle(deliveries: Deliveries, name: str, message: Delivery) -> Retry | None:
    bad = message.reconsume_times < int(message.properties.get("fails", "0"))
    number = int(message.properties["n"])
    deliveries.all.append(
        Handled(name, number, message.reconsume_times, message.queue_id, message.topic, not bad)
    )
    return Retry() if bad else None


def our_member(
    deliveries: Deliveries, name: str, namesrv: str, topic: str, group: str
) -> PushConsumer:
    """Ours, doing the same. ``name`` is an address, where its client id begins: members get their
    queues in the order of their ids."""

    return PushConsumer(
        namesrv,
        group=group,
        topic=topic,
        handler=partial(handle, deliveries, name),
        consume_from=ConsumeFrom.FIRST,
        max_reconsume_times=1,
        local_ip=name,
    )


async def read_words(lines: Any, said: Callable[[list[str]], None]) -> None:
    while line := await lines.readline():
        said(line.decode().split())


@asynccontextmanager
async def foreign_member(
    name: str,
    command: Sequence[str],
    *arguments: str,
    directory: Path,
    said: Callable[[list[str]], None],
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A foreign member from its line ``ready`` on; ``said`` is given the words of each other line.
    What is yielded stops it, which the end of the block does too.
    """
    with (directory / f"{name}.stderr").open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            cwd=directory,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    lines, reading = process.stdout, None

    async def stop() -> None:
        if process.returncode is None and not process.stdin.is_closing():
            process.stdin.close()
            await asyncio.wait_for(process.wait(), PATIENCE_SECONDS)
        if reading is not None:
            await reading

    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (line := await lines.readline()).startswith(b"ready"):
                assert line, f"{name} ended: {(directory / f'{name}.stderr').read_text()[-2000:]}"
                said(line.decode().split())
        reading = asyncio.create_task(read_words(lines, said))
        yield stop
    finally:
        if process.returncode is None:
            try:
                await stop()
            except TimeoutError:
                process.kill()
                await process.wait()
        if reading is not None:
            reading.cancel()
