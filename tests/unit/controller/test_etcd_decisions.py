"""Controllers that agree through an etcd, on the simulated network and clock."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation, simulate
from tests.unit.controller.etcd_world import ETCD, LEASE_S, ONE, TWO, Controllers
from tests.waits import until, until_count, until_logged

from turbopump.controller.decisions import ConflictError, NotLeaderError
from turbopump.controller.etcd_decisions import EtcdDecisions
from turbopump.controller.groups import Group

LEADER = "turbopump/controller/group/leader"
GROUP, OTHER = (Group(cluster_name="c", broker_name="a", master_epoch=epoch) for epoch in (1, 2))


def controllers(
    story: Callable[[Controllers], Coroutine[Any, Any, None]], *, seed: int = 1
) -> None:
    simulate(seed, functools.partial(in_world, story))


async def in_world(
    story: Callable[[Controllers], Coroutine[Any, Any, None]], simulation: Simulation
) -> None:
    world = Controllers(simulation)
    await world.start_etcd()
    await story(world)


@in_loop(controllers)
async def test_one_of_two_controllers_leads_and_both_know_it(world: Controllers, /) -> None:
    one = await world.leader(ONE)
    two = await world.controller(TWO)
    await until(lambda: two.leader)

    assert (one.leader, two.leader) == (f"{ONE}:9878", f"{ONE}:9878")
    assert (one.term > 0, two.term) == (True, 0)
    with pytest.raises(NotLeaderError):
        await world.run(TWO, two.load())
    with pytest.raises(NotLeaderError):
        await world.run(TWO, two.replace("a", None, GROUP))


@in_loop(controllers)
async def test_another_controller_leads_within_the_lease_and_knows_every_decision(
    world: Controllers, /
) -> None:
    one = await world.leader(ONE)
    await world.run(ONE, one.replace("a", None, OTHER))
    await world.run(ONE, one.replace("a", OTHER, GROUP))
    await world.run(ONE, one.replace("b", None, OTHER))
    await world.run(ONE, one.replace("b", OTHER, None))
    two = await world.controller(TWO)
    await until(lambda: two.leader)
    killed_at = world.simulation.loop.time()
    world.simulation.end(ONE, power_cut=False)
    await until(lambda: two.term)

    assert world.simulation.loop.time() - killed_at < LEASE_S + 1
    assert await world.run(TWO, two.load()) == {"a": GROUP}
    assert two.term > one.term


@in_loop(controllers)
async def test_a_closed_leader_gives_the_leadership_back_at_once(world: Controllers, /) -> None:
    one = await world.leader(ONE)
    two = await world.controller(TWO)
    await until(lambda: two.leader)
    closed_at = world.simulation.loop.time()
    await world.run(ONE, one.close())
    await until(lambda: two.term)

    assert world.simulation.loop.time() - closed_at < 1
    assert (one.term, one.leader) == (0, None)


@in_loop(controllers)
async def test_a_leader_that_etcd_does_not_hear_stops_before_another_leads(
    world: Controllers, /
) -> None:
    one = await world.leader(ONE)
    two = await world.controller(TWO)
    await until(lambda: two.leader)
    world.cut(ONE)
    while not two.term:
        both = one.term and two.term
        assert not both
        await asyncio.sleep(0.01)

    assert one.term == 0
    assert one.leader is None
    world.heal(ONE)
    await until(lambda: one.leader)
    assert one.leader == f"{TWO}:9878"


@in_loop(controllers)
async def test_a_deposed_leader_whose_clock_stood_still_decides_nothing(
    world: Controllers, /
) -> None:
    one = await world.leader(ONE)
    await world.run(ONE, one.replace("a", None, GROUP))
    two = await world.controller(TWO)
    world.clocks[ONE].stop()
    world.cut(ONE)
    await until(lambda: two.term)
    await world.run(TWO, two.load())
    assert one.term  # it has not noticed
    world.heal(ONE)
    with pytest.raises(NotLeaderError):
        await world.run(ONE, one.replace("a", GROUP, OTHER))

    assert await world.run(TWO, two.load()) == {"a": GROUP}
    assert one.term == 0


@in_loop(controllers)
async def test_a_decision_from_an_old_group_is_refused(world: Controllers, /) -> None:
    one = await world.leader(ONE)
    await world.run(ONE, one.replace("a", None, GROUP))
    with pytest.raises(ConflictError, match="broker_name=a"):
        await world.run(ONE, one.replace("a", None, OTHER))
    await until(lambda: one.term)
    await world.run(ONE, one.load())
    world.etcd.keys[b"turbopump/controller/group/brokers/a"]["mod_revision"] = "99"
    with pytest.raises(ConflictError, match="etcd holds another group"):
        await world.run(ONE, one.replace("a", GROUP, OTHER))
    await until(lambda: one.term)
    with pytest.raises(NotLeaderError, match="not loaded"):
        await world.run(ONE, one.replace("a", GROUP, OTHER))

    assert await world.run(ONE, one.load()) == {"a": GROUP}
    await world.run(ONE, one.replace("a", GROUP, OTHER))
    assert await world.run(ONE, one.load()) == {"a": OTHER}


@in_loop(controllers)
async def test_a_decision_whose_answer_is_lost_is_made_once_through_another_member(
    world: Controllers, /
) -> None:
    one = await world.leader(ONE)
    world.simulation.network.cut(ETCD[0], ONE)  # executes, and its answers are lost
    await world.run(ONE, one.replace("a", None, GROUP))

    assert await world.run(ONE, one.load()) == {"a": GROUP}
    assert one.term


@in_loop(controllers)
async def test_an_unknown_outcome_begins_a_term_in_which_the_late_decision_is_not_made(
    world: Controllers, /
) -> None:
    one = await world.leader(ONE)
    await world.run(ONE, one.replace("a", None, GROUP))
    term = one.term
    for member in world.members:
        member.hold()
    with pytest.raises(NotLeaderError, match="etcd cannot be used"):
        await world.run(ONE, one.replace("a", GROUP, OTHER))
    assert (one.term, one.leader) == (0, None)

    for member in world.members:
        member.go_on()
    await until(lambda: one.term)
    assert one.term > term
    assert await world.run(ONE, one.load()) == {"a": GROUP}
    assert sum(member.execute_held() for member in world.members) >= len(ETCD)
    await asyncio.sleep(1)

    assert await world.run(ONE, one.load()) == {"a": GROUP}
    await world.run(ONE, one.replace("a", GROUP, OTHER))


@in_loop(controllers)
async def test_without_a_majority_nothing_is_decided_and_the_log_says_what_goes_on(
    world: Controllers, /, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one = await world.leader(ONE)
    world.etcd.majority = False
    with pytest.raises(NotLeaderError, match="etcd cannot be used"):
        await world.run(ONE, one.replace("a", None, GROUP))
    await asyncio.sleep(10 * LEASE_S)

    assert (one.term, one.leader) == (0, None)
    assert "cannot decide about a: etcd cannot be used" in caplog.text
    told = [line for line in caplog.messages if "this controller cannot lead" in line]
    assert 2 <= len(told) <= 4
    world.etcd.majority = True
    await until(lambda: one.term)
    assert await world.run(ONE, one.load()) == {}
    await until_logged(caplog, "etcd can be used again")


@in_loop(controllers)
async def test_a_member_that_is_gone_is_not_noticed(world: Controllers, /) -> None:
    one = await world.leader(ONE)
    term = one.term
    world.simulation.end(ETCD[0], power_cut=True)
    await asyncio.sleep(10 * LEASE_S)
    await world.run(ONE, one.replace("a", None, GROUP))

    assert one.term == term
    assert one.leader == f"{ONE}:9878"


@in_loop(controllers)
async def test_a_leader_key_that_an_operator_deletes_is_fought_for_again(
    world: Controllers, /
) -> None:
    one = await world.leader(ONE)
    term = one.term
    del world.etcd.keys[LEADER.encode()]
    with pytest.raises(NotLeaderError):
        await world.run(ONE, one.replace("a", None, GROUP))
    await until(lambda: one.term)

    assert one.term > term


@in_loop(controllers)
async def test_a_lost_answer_to_the_campaign_ends_in_leadership(world: Controllers, /) -> None:
    world.simulation.network.cut(ETCD[0], ONE)
    one = await world.controller(ONE)
    await until(lambda: one.term)

    assert await world.run(ONE, one.load()) == {}


@in_loop(controllers)
async def test_a_killed_leader_that_starts_again_does_not_take_its_old_lease_for_its_own(
    world: Controllers, /
) -> None:
    one = await world.leader(ONE)
    term = one.term
    world.simulation.end(ONE, power_cut=False)
    again = await world.controller(ONE)
    await asyncio.sleep(LEASE_S / 2)

    assert (again.leader, again.term) == (None, 0)
    await until(lambda: again.leader)
    assert again.term > term


@in_loop(controllers)
async def test_a_group_of_a_later_version_is_an_error_that_names_it(world: Controllers, /) -> None:
    one = await world.leader(ONE)
    await world.run(ONE, one.replace("a", None, GROUP))
    world.etcd.keys[b"turbopump/controller/group/brokers/a"]["value"] = "W10="
    with pytest.raises(OSError, match="the group a in etcd"):
        await world.run(ONE, one.load())


@in_loop(controllers)
async def test_a_lease_that_is_renewed_late_begins_a_term(world: Controllers, /) -> None:
    one = await world.leader(ONE)
    term = one.term
    world.etcd.majority = False
    await until(lambda: not one.term)
    for lease, (ttl, end) in world.etcd.leases.items():
        world.etcd.leases[lease] = ttl, end + LEASE_S  # members that elect a leader prolong it
    world.etcd.majority = True
    await until(lambda: one.term)

    assert one.term > term


@in_loop(controllers)
async def test_each_change_of_the_leader_is_told(world: Controllers, /) -> None:
    changes: list[tuple[str | None, bool]] = []
    decisions: list[EtcdDecisions] = []

    def note() -> None:
        changes.append((decisions[0].leader, bool(decisions[0].term)))

    one = await world.leader(ONE)
    decisions.append(await world.controller(TWO, note))
    await until_count(changes, 1)
    await world.run(ONE, one.close())
    await until_count(changes, 2)
    world.etcd.majority = False
    with pytest.raises(NotLeaderError):
        await world.run(TWO, decisions[0].load())
    await until_count(changes, 3)
    world.etcd.majority = True
    await until(lambda: changes[-1][1])

    own = f"{TWO}:9878"
    told = [change for change, _ in itertools.groupby(changes)]
    assert told == [(f"{ONE}:9878", False), (own, True), (None, False), (own, True)]
