"""Decisions that fail on their way to storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.loops import in_loop
from tests.stand_ins import does_nothing, returns

from turbopump.clock import SystemClock
from turbopump.controller.decided_groups import WAITING_MAX, BusyError, DecidedGroups
from turbopump.controller.decision_file import DecisionFile
from turbopump.controller.decisions import ConflictError, NotLeaderError
from turbopump.controller.groups import Answer, Decision, Group, View
from turbopump.controller.liveness import Liveness


class Storage(DecisionFile):
    """Decisions in memory that fail, or wait, as a test says."""

    def __init__(self) -> None:
        super().__init__(None, Path("/none"))
        self.fault: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def replace(self, name: str, old: Group | None, new: Group | None) -> None:
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        await super().replace(name, old, new)


async def decided(storage: Storage, on_lost: Callable[[], None] = does_nothing) -> DecidedGroups:
    await storage.open("10.0.0.9:9878", does_nothing)
    groups = DecidedGroups(
        storage, Liveness(), SystemClock(), returns(False), does_nothing, on_lost
    )
    groups.begin(await storage.load())
    return groups


def next_epoch(group: Group | None, _view: View) -> Decision:
    epoch = 1 if group is None else group.master_epoch + 1
    return Decision(Group(cluster_name="c", broker_name="a", master_epoch=epoch), Answer())


@pytest.mark.parametrize("fault", [ConflictError("another"), NotLeaderError("no"), KeyError("a")])
@in_loop
async def test_a_failed_decision_has_no_answer_and_the_groups_are_read_again(
    fault: Exception,
) -> None:
    storage, lost = Storage(), list[bool]()
    groups = await decided(storage, lambda: lost.append(True))
    await groups.decide("a", next_epoch, "a test")
    storage.fault = fault
    with pytest.raises(NotLeaderError):
        await groups.decide("a", next_epoch, "a test")
    assert (lost, groups.leads) == ([True], False)
    storage.fault = None
    groups.begin(await storage.load())
    found = groups.get("a")
    assert found is not None
    assert found.master_epoch == 1


@in_loop
async def test_changes_of_a_group_follow_each_other_also_if_nobody_waits_any_more() -> None:
    storage = Storage()
    groups = await decided(storage)
    storage.gate.clear()
    changes = [asyncio.ensure_future(groups.decide("a", next_epoch, "a test")) for _ in range(5)]
    await asyncio.sleep(0)
    changes[0].cancel()
    storage.gate.set()
    await asyncio.gather(*changes[1:])
    found = (await storage.load())["a"]
    assert found.master_epoch == 5
    assert groups.get("a") == found


@in_loop
async def test_a_bounded_number_of_requests_waits_for_a_group() -> None:
    storage = Storage()
    groups = await decided(storage)
    storage.gate.clear()
    changes = [
        asyncio.ensure_future(groups.decide("a", next_epoch, "a test")) for _ in range(WAITING_MAX)
    ]
    await asyncio.sleep(0)
    with pytest.raises(BusyError):
        await groups.decide("a", next_epoch, "a test")
    storage.gate.set()
    await asyncio.gather(*changes)
    await groups.close()
    with pytest.raises(NotLeaderError):
        groups.get("a")
