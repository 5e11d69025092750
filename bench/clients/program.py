"""Our producer as a load: reads MODE SIZE SECONDS, one a line, and answers each with a line of
JSON. ProducerLoad.java is its twin.

A process of its own, so that its CPU time is the client's alone. Every result is looked at: stored,
with an id and an offset.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable

from turbopump import Message, Producer
from turbopump.blocking import Producer as BlockingProducer
from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.sending.send_result import SendResult

IN_FLIGHT = 64
BATCH_IN_FLIGHT = 512
"""For the comparison of auto-batching with plain sends, both alike: enough that a batch can
fill."""

Trips = list[float]


def check(result: SendResult) -> None:
    if not result.msg_id or result.queue_offset < 0:
        raise RuntimeError(f"not stored: {result}")


async def tasks(
    producer: Producer, topic: str, body: bytes, in_flight: int, seconds: float
) -> Trips:
    """Run this many tasks, each with one send after the other. Return the seconds of each send."""
    trips: Trips = []
    clock = time.perf_counter
    until = clock() + seconds

    async def one() -> None:
        after = clock()
        while not trips or after < until:
            before = after
            check(await producer.send(Message(topic, body)))
            after = clock()
            trips.append(after - before)

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(one())
    return trips


def blocking(namesrv: str, topic: str, body: bytes, seconds: float) -> Trips:
    trips: Trips = []
    clock = time.perf_counter
    with BlockingProducer(namesrv, group="bench-blocking") as producer:
        producer.send(Message(topic, body))
        after = clock()
        until = after + seconds
        while not trips or after < until:
            before = after
            check(producer.send(Message(topic, body)))
            after = clock()
            trips.append(after - before)
    return trips


def in_loop(work: Callable[[], Awaitable[Trips]]) -> Trips:
    async def main() -> Trips:
        return await work()

    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    return uvloop.run(main())


def run(mode: str, namesrv: str, topic: str, body: bytes, seconds: float) -> Trips:
    if mode == "blocking-1":
        return blocking(namesrv, topic, body, seconds)
    batch = AutoBatch() if mode == "auto-batch" else None
    in_flight = IN_FLIGHT if mode == "async-64" else BATCH_IN_FLIGHT

    async def work() -> Trips:
        async with Producer(namesrv, group=f"bench-{mode}", auto_batch=batch) as producer:
            check(await producer.send(Message(topic, body)))
            return await tasks(producer, topic, body, in_flight, seconds)

    return in_loop(work)


def main() -> None:
    namesrv, topic = sys.argv[1:]
    for order in sys.stdin:
        mode, size, seconds = order.split()
        cpu, begun = time.process_time(), time.perf_counter()
        trips = sorted(run(mode, namesrv, topic, b"x" * int(size), float(seconds)))
        answer = {
            "messages": len(trips),
            "seconds": time.perf_counter() - begun,
            "cpu_s": time.process_time() - cpu,
        }
        answer |= {
            "p50_us": trips[len(trips) // 2] * 1e6,
            "p99_us": trips[int(len(trips) * 0.99)] * 1e6,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
