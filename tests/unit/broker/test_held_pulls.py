"""Held pulls are read again when their queue grows, in the order in which they came, and leave the
loop to others meanwhile."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

import pytest
from tests.loops import in_loop
from tests.stand_ins import does_nothing

from turbopump.broker.held_pulls import HeldPulls
from turbopump.remoting.router import Router
from turbopump.remoting.served_requests import ServedRequests
from turbopump.remoting.turns import Turns
from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.store.watermark import Watermark


class Queue:
    topic = "orders"

    def __init__(self) -> None:
        self.end = Watermark()


def peer() -> ServedRequests:
    return ServedRequests(Router())


@pytest.mark.parametrize(("read_s", "most"), [(0.0, 100), (0.0004, 3), (0.005, 1)])
@in_loop
async def test_pulls_that_are_woken_together_leave_the_loop_to_others(
    read_s: float, most: int
) -> None:
    """``read_s``: what reading again takes for one of a hundred; a turn is over with the one that
    makes it a millisecond."""
    loop = cast("Any", asyncio.get_running_loop())
    now = loop.time()
    loop.time = lambda: now
    queue, held = Queue(), HeldPulls(Turns())
    turns: list[list[int]] = [[]]

    def read(number: int) -> None:
        nonlocal now
        turns[-1].append(number)
        now += read_s

    for number in range(100):
        again = lambda _expired, number=number: read(number)  # noqa: E731
        held.hold_pull(cast("ConsumeQueue", queue), 0, 60, again, peer())
    queue.end.advance(1)
    assert turns == [[]], "not within the turn in which the queue grew"
    while sum(map(len, turns)) < 100:
        await asyncio.sleep(0)  # somebody else's turn
        turns.append([])
    assert [number for turn in turns for number in turn] == list(range(100))
    assert max(map(len, turns)) == most
    assert len(held) == 0


@in_loop
async def test_when_users_may_less_all_are_answered_in_order_a_few_in_each_turn() -> None:
    """Each waits for a queue of its own; to read again takes 0.4 ms."""
    loop = cast("Any", asyncio.get_running_loop())
    now = loop.time()
    loop.time = lambda: now
    held = HeldPulls(Turns())
    queues = [Queue() for _ in range(100)]
    turns: list[list[int]] = [[]]

    def read(number: int, expired: bool) -> None:
        nonlocal now
        assert expired or number == 77
        turns[-1].append(number)
        now += 0.0004

    for number, queue in enumerate(queues):
        again = partial(read, number)
        held.hold_pull(cast("ConsumeQueue", queue), 0, 60, again, peer())
    held.revoke_all()
    assert (held.revocations, len(held), turns) == (1, 100, [[]])
    queues[77].end.advance(1)  # a message comes meanwhile
    late = list[bool]()  # another pull that comes meanwhile waits
    held.hold_pull(cast("ConsumeQueue", Queue()), 0, 60, late.append, peer())
    while len(held) > 1:
        await asyncio.sleep(0)
        turns.append([])
    answered = [number for turn in turns for number in turn]
    assert answered == [77, *(number for number in range(100) if number != 77)]
    assert max(map(len, turns)) == 3
    assert (len(held), late) == (1, [])


@in_loop
async def test_a_broker_that_stops_answers_also_those_that_are_woken_and_not_read_yet() -> None:
    queue, held = Queue(), HeldPulls(Turns())
    answers: list[bool] = []

    def again(expired: bool) -> None:
        if expired:
            answers.append(expired)
        else:
            held.hold_pull(cast("ConsumeQueue", queue), 1, 60, again, peer())  # not for it

    held.hold_pull(cast("ConsumeQueue", queue), 0, 60, again, peer())
    queue.end.advance(1)
    held.expire_all()
    assert answers == [True]
    assert len(held) == 0


async def hold_two() -> None:
    queue, held, answered = cast("ConsumeQueue", Queue()), HeldPulls(Turns()), asyncio.Event()
    held.hold_pull(queue, 0, -1, does_nothing, peer())
    held.hold_pull(queue, 0, 0, lambda _expired: answered.set(), peer())
    await answered.wait()


def test_a_pull_whose_time_is_up_at_once_harms_no_other_on_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(hold_two())
