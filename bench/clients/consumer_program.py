"""Push consumer of ours as a load. The program reads lines ``MODE COUNT``, consumes COUNT messages
as a new group, and answers with a line of JSON. ConsumerLoad.java is its twin. MODE: ``coroutine``
(an async handler), ``thread`` (a plain one) or ``iterate`` (``async for``)."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from turbopump import PushConsumer
from turbopump.client.push_consumer import ConsumeFrom, Delivery

CONCURRENCY = 20
PATIENCE_S = 300.0


class Count:
    """From the first message in a handler's hands to the last one: CPU seconds of the process, and
    seconds."""

    def __init__(self, wanted: int, all_handled: Callable[[], None]) -> None:
        self.handled = 0
        self.cpu_s = self.seconds = 0.0
        self._wanted = wanted
        self._all_handled = all_handled

    def one(self) -> None:
        self.handled += 1
        if self.handled == 1:
            self.cpu_s, self.seconds = -time.process_time(), -time.perf_counter()
        elif self.handled == self._wanted:
            self.cpu_s += time.process_time()
            self.seconds += time.perf_counter()
            self._all_handled()


async def consume(namesrv: str, topic: str, mode: str, wanted: int) -> Count:
    loop = asyncio.get_running_loop()
    complete = asyncio.Event()
    count = Count(wanted, lambda: loop.call_soon_threadsafe(complete.set))
    one = count.one

    async def coroutine(message: Delivery) -> None:
        one()

    def plain(message: Delivery) -> None:
        one()

    handler = {"coroutine": coroutine, "thread": plain, "iterate": None}[mode]
    async with PushConsumer(
        namesrv,
        group=f"bench-ours-{time.time_ns()}",
        topic=topic,
        handler=handler,
        concurrency=CONCURRENCY,
        consume_from=ConsumeFrom.FIRST,
    ) as consumer:
        async with asyncio.timeout(PATIENCE_S):
            if handler is None:
                async for _ in consumer:
                    one()
                    if count.handled == wanted:
                        break
            await complete.wait()
    if count.handled != wanted:
        raise RuntimeError(f"{count.handled} of {wanted} messages came")
    return count


def in_loop(work: Coroutine[Any, Any, Count]) -> Count:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def main() -> None:
    namesrv, topic = sys.argv[1:]
    for order in sys.stdin:
        mode, wanted = order.split()
        count = in_loop(consume(namesrv, topic, mode, int(wanted)))
        print(
            json.dumps({"messages": count.handled, "seconds": count.seconds, "cpu_s": count.cpu_s}),
            flush=True,
        )


if __name__ == "__main__":
    main()
