"""Producer and push consumer of ours in one process. The program reads lines ``RATE SECONDS``,
sends RATE messages per second, and answers with a line of JSON: the time from each send to its
handler. Each message of a window must arrive exactly once."""

import asyncio
import json
import sys
import time
from collections.abc import Coroutine
from typing import Any

from turbopump import Message, Producer, PushConsumer
from turbopump.client.push_consumer import Delivery

BODY_SIZE = 1024
PATIENCE_S = 30.0
SETTLE_S = 1.0


class Arrivals:
    """Nanoseconds from send to handler, by the number of the message; the first ``unjudged`` only
    make everything ready."""

    def __init__(self, count: int) -> None:
        self.trips = [0] * count
        self.missing = count
        self.complete = asyncio.Event()

    async def handle(self, message: Delivery) -> None:
        now = time.perf_counter_ns()
        number, sent = message.body[:40].split(b" ")[:2]
        if self.trips[int(number)]:
            raise RuntimeError(f"message {number.decode()} came twice")
        self.trips[int(number)] = now - int(sent)
        self.missing -= 1
        if not self.missing:
            self.complete.set()


async def measure(namesrv: str, topic: str, rate: float, seconds: float) -> list[int]:
    """Sorted nanoseconds of every message of the window."""
    count, unjudged = int(rate * seconds), int(rate * SETTLE_S)
    arrivals = Arrivals(count + unjudged)
    async with (
        PushConsumer(namesrv, group="bench-latency", topic=topic, handler=arrivals.handle),
        Producer(namesrv, group="bench-latency-sends") as producer,
        asyncio.TaskGroup() as sends,
    ):

        async def send(number: int) -> None:
            body = b"%d %d " % (number, time.perf_counter_ns())
            await producer.send(Message(topic, body.ljust(BODY_SIZE, b"x")))

        begun = time.perf_counter()
        for number in range(count + unjudged):
            ahead = begun + number / rate - time.perf_counter()
            if ahead > 0:
                await asyncio.sleep(ahead)
            sends.create_task(send(number))
        async with asyncio.timeout(PATIENCE_S):
            await arrivals.complete.wait()
    return sorted(arrivals.trips[unjudged:])


def in_loop(work: Coroutine[Any, Any, list[int]]) -> list[int]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def main() -> None:
    namesrv, topic = sys.argv[1:]
    for order in sys.stdin:
        rate, seconds = map(float, order.split())
        cpu, begun = time.process_time(), time.perf_counter()
        trips = in_loop(measure(namesrv, topic, rate, seconds))
        answer = {
            "messages": len(trips),
            "seconds": time.perf_counter() - begun,
            "cpu_s": time.process_time() - cpu,
        }
        answer |= {
            "p50_us": trips[len(trips) // 2] / 1e3,
            "p99_us": trips[int(len(trips) * 0.99)] / 1e3,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
