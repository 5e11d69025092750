"""One member of a group, a program of its own, which writes down what it does, line by line: a kill
leaves what was written.

    python group_member.py namesrv group topic ordered|concurrent journal

It says `ready`, joins when it is told to (a line on standard input), and leaves at SIGTERM. Each
line of the journal begins with monotonic seconds, the same clock in all processes of a machine. Its
one rule: it judges nothing.
"""

import asyncio
import os
import random
import signal
import sys
import time
from functools import partial

from turbopump.client.push_consumer import ConsumeFrom, Delivery, PushConsumer, RunningPush

TICK_S = 0.02
LATE_S = 0.25
"""A tick that came so much later was held up: by a machine without a processor to spare, or by
us."""


class Journal:
    """Each line in one write: what a killed process had written is there."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, *words: object) -> None:
        os.write(
            self._file, (" ".join(map(str, (f"{time.monotonic():.6f}", *words))) + "\n").encode()
        )


async def handle(journal: Journal, rng: random.Random, message: Delivery) -> None:
    place = f"{message.queue_id} {message.queue_offset}"
    journal.write("begin", place, message.body.hex())
    await asyncio.sleep(rng.choice((0.0, 0.002, 0.01)))
    journal.write("end", place)


def journal_notices(journal: Journal) -> None:
    """Write each notice of the broker that the group has changed, before the consumer acts on
    it."""
    act = RunningPush._group_changed

    def write_and_act(running: RunningPush) -> None:
        journal.write("notice")
        act(running)

    RunningPush._group_changed = write_and_act  # type: ignore[method-assign]


async def live(namesrv: str, group: str, topic: str, kind: str, journal: Journal) -> None:
    rng = random.Random()
    journal_notices(journal)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with PushConsumer(
        namesrv,
        group=group,
        topic=topic,
        handler=partial(handle, journal, rng),
        ordered=kind == "ordered",
        consume_from=ConsumeFrom.FIRST,
    ) as consumer:
        journal.write("id", consumer.client_id)
        held, ticked = None, time.monotonic()
        while not stop.is_set():
            queues = [queue.queue_id for queue in consumer.queues]
            if queues != held:
                held = queues
                journal.write("queues", *queues)
            await asyncio.sleep(TICK_S)
            late = time.monotonic() - ticked - TICK_S
            ticked = time.monotonic()
            if late > LATE_S:
                journal.write("late", f"{late:.3f}")
    journal.write("left")


if __name__ == "__main__":
    *arguments, path = sys.argv[1:]
    print("ready", flush=True)
    if sys.stdin.readline():
        asyncio.run(live(*arguments, Journal(path)))  # type: ignore[call-arg]
