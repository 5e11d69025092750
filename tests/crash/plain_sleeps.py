"""How late this machine lets a program that sleeps be: what nobody's own doing is.

Its one rule: it does what a broker's timers do, sleep until a whole second and then work for a
moment, but in plain asyncio, without a broker. Whoever judges lateness on the wall clock compares
with it.
"""

import asyncio
import time

WORK_S = 0.005
"""Processor time after each sleep: about what a broker needs for the hundred messages of a
second."""
QUIET_MS = 5.0
"""A machine is quiet whose sleeps are no later than this."""


async def lateness_of_sleeps(until: float) -> list[float]:
    """By how many ms each sleep until a whole second, and the work after it, ended late; one for
    each second up to ``until`` (a time as ``time.time()`` tells it)."""
    late: list[float] = []
    second = int(time.time()) + 1
    while second <= until:
        await asyncio.sleep(max(second - time.time(), 0))
        begun = time.thread_time()
        while time.thread_time() - begun < WORK_S:
            pass
        late.append(max((time.time() - second - WORK_S) * 1000, 0.0))
        second = max(second, int(time.time())) + 1
    await asyncio.sleep(max(until - time.time(), 0))
    return late
