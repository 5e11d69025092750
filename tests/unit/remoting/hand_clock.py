"""A loop whose time goes on only when the test says so."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class HandClock(asyncio.SelectorEventLoop):
    now = 1000.0

    def time(self) -> float:
        return self.now


def play(scene: Callable[[HandClock], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=HandClock) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, HandClock)
        runner.run(scene(loop))


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
