"""Watch on the event loop: a turn that takes long is counted, and an idle loop has no delays."""

import asyncio
import time

from tests.loops import in_loop

from turbopump.remoting.loop_watch import LoopWatch


async def until_count(watch: LoopWatch, count: int) -> None:
    async with asyncio.timeout(30):
        while sum(watch.delays.counts) < count:
            await asyncio.sleep(0)


@in_loop
async def test_a_long_turn_is_counted_once() -> None:
    watch = LoopWatch()
    watch.start()
    watch.start()
    await until_count(watch, 2)
    before = watch.long_turns
    time.sleep(0.1)  # noqa: ASYNC251 - the loop stands still
    count = sum(watch.delays.counts)
    await until_count(watch, count + 1)
    assert watch.long_turns == before + 1
    assert watch.delays.total >= 0.08
    watch.stop()
    watch.stop()


@in_loop
async def test_a_stopped_watch_counts_nothing() -> None:
    watch = LoopWatch()
    watch.stop()
    watch.start()
    await until_count(watch, 1)
    watch.stop()
    count = sum(watch.delays.counts)
    await asyncio.sleep(0.03)
    assert sum(watch.delays.counts) == count
