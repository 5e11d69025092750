"""Pops that wait are answered a few in each turn, in the order in which they came."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

from tests.loops import in_loop

from turbopump.broker.pop.group_queue import TopicGroup
from turbopump.broker.pop.held_pops import HeldPops
from turbopump.broker.pop.view import PopView
from turbopump.remoting.router import Router
from turbopump.remoting.served_requests import ServedRequests
from turbopump.remoting.turns import STARTS_A_TURN, Turns


class NothingThere:
    """A view of queues that have nothing for anybody."""

    def queues(self, *_line: Any, **_kind: Any) -> list[Any]:
        return []


def pops() -> HeldPops:
    return HeldPops(Turns(), cast("PopView", NothingThere()), line_max=1000, total_max=1000)


def note_again(turns: list[list[int]], number: int, expired: bool) -> None:
    assert expired
    turns[-1].append(number)


@in_loop
async def test_when_users_may_less_all_are_answered_in_order_a_few_in_each_turn() -> None:
    held = pops()
    turns: list[list[int]] = [[]]

    for number in range(100):
        line = TopicGroup("orders", f"group-{number // 10}")
        held.hold_pop(
            line, 0, 60, partial(partial(note_again, turns), number), ServedRequests(Router())
        )
    held.revoke_all()
    held.revoke_all()
    assert (held.revocations, turns) == (2, [[]])
    while sum(map(len, turns)) < 100:
        await asyncio.sleep(0)
        turns.append([])
    assert [number for turn in turns for number in turn] == list(range(100))
    assert max(map(len, turns)) == STARTS_A_TURN
    assert held.count_waiting(TopicGroup("orders", "group-0"), 0) == 0


@in_loop
async def test_whose_time_is_up_meanwhile_is_answered_once() -> None:
    held = pops()
    answered: list[str] = []
    lines = [TopicGroup("orders", name) for name in ("a", "b", "c")]
    for line in lines:
        again = lambda _expired, name=line.group: answered.append(name)  # noqa: E731
        held.hold_pop(line, 0, 60, again, ServedRequests(Router()))
    held.revoke_all()
    held.expire_group(lines[2])
    while len(answered) < 3:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sorted(answered) == ["a", "b", "c"]
