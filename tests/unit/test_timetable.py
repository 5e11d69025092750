"""What a broker does again and again keeps its times."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.loops import in_loop

from turbopump.timetable import Timetable


class HandClock(asyncio.SelectorEventLoop):
    """A loop whose time goes on only when the test says so."""

    now = 1000.0

    def time(self) -> float:
        return self.now


def by_hand(story: Callable[[HandClock], Coroutine[Any, Any, None]]) -> None:
    """Run a story on a loop whose clock it sets."""
    with asyncio.Runner(loop_factory=HandClock) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, HandClock)
        runner.run(story(loop))


@in_loop(by_hand)
async def test_a_late_action_does_not_delay_the_next_and_missed_ones_are_not_made_up_for(
    loop: HandClock, /
) -> None:
    seen: list[float] = []
    timetable = Timetable()
    timetable.every(0.5, lambda: seen.append(loop.now - 1000))
    for at in (0.25, 0.5, 0.75, 1.25, 1.5, 1.75, 2.0, 3.75, 4.0, 4.25):
        loop.now = 1000 + at
        for _ in range(5):
            await asyncio.sleep(0)
    timetable.close()
    assert seen == [0.5, 1.25, 1.5, 2.0, 3.75, 4.25]
