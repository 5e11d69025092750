"""Three controllers and an etcd under random faults: what etcd holds is one chain of decisions."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import msgspec
import pytest
from tests.simulation.world.simulation import Simulation, simulate
from tests.unit.controller.etcd_world import ETCD, LEASE_S, ONE, TWO, Controllers

from turbopump.controller.decisions import ConflictError, NotLeaderError
from turbopump.controller.etcd_decisions import EtcdDecisions
from turbopump.controller.groups import Group

HOSTS = (ONE, TWO, "10.0.0.3")
FAULTS = 40
KEY = b"turbopump/controller/group/brokers/a"


@dataclass
class History:
    """Outcome of each decision, by its number, which is the group's confirm offset."""

    terms: dict[int, int] = field(default_factory=dict)
    """Term in which each decision was tried."""
    olds: dict[int, int] = field(default_factory=dict)
    """Number of the decision that each one replaces; -1 for none."""
    made: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    loads: list[tuple[int, int]] = field(default_factory=list)
    """Term of each load, and the number of decisions in etcd by then."""
    stored: list[int] = field(default_factory=list)


@pytest.mark.parametrize("seed", range(4))
def test_no_decision_is_lost_repeated_or_late(seed: int) -> None:
    history = simulate(seed, story)

    assert history.made <= set(history.stored)
    assert not history.refused & set(history.stored)
    assert len(set(history.stored)) == len(history.stored)
    for before, after in zip([-1, *history.stored], history.stored, strict=False):
        assert history.olds[after] == before
    for term, count in history.loads:
        assert all(history.terms[number] >= term for number in history.stored[count:])
    assert len(history.made) > 5


async def story(simulation: Simulation) -> History:
    world = Controllers(simulation)
    await world.start_etcd()
    history = History()
    execute = world.etcd.execute

    def note(method: str, request: dict) -> dict:
        before = world.etcd.keys.get(KEY)
        answer = execute(method, request)
        after = world.etcd.keys.get(KEY)
        if after is not before and after is not None:
            group = msgspec.json.decode(world.etcd.value(KEY.decode()) or b"", type=Group)
            history.stored.append(group.confirm_offset)
        return answer

    world.etcd.execute = note  # type: ignore[method-assign]
    for host in HOSTS:
        await start(world, history, host)
    for _ in range(FAULTS):
        await asyncio.sleep(simulation.random.uniform(0.1, 1.5 * LEASE_S))
        await break_something(world, history, simulation.random)
    for host in HOSTS:
        world.heal(host)
    world.etcd.majority = True
    for member in world.members:
        member.go_on()
        member.execute_held()
    made = len(history.made)
    async with asyncio.timeout(10 * LEASE_S):
        while len(history.made) == made:
            await asyncio.sleep(0.1)
    return history


async def start(world: Controllers, history: History, host: str) -> None:
    decisions = await world.controller(host)
    rng = world.simulation.random
    world.simulation.process(host).start(decide(history, decisions, rng))


async def decide(history: History, decisions: EtcdDecisions, rng: random.Random) -> None:
    """Make one decision after the other while this controller leads."""
    while True:
        await asyncio.sleep(0.05)
        try:
            term = decisions.term
            groups = await decisions.load()
            history.loads.append((term, len(history.stored)))
            old = groups.get("a")
            for _ in range(3):
                await asyncio.sleep(rng.uniform(0, LEASE_S / 2))  # a late decision may come now
                old = await decide_once(history, decisions, old)
        except NotLeaderError:
            continue


async def decide_once(history: History, decisions: EtcdDecisions, old: Group | None) -> Group:
    number = len(history.terms)
    new = Group(cluster_name="c", broker_name="a", confirm_offset=number)
    history.terms[number] = decisions.term
    history.olds[number] = -1 if old is None else old.confirm_offset
    try:
        await decisions.replace("a", old, new)
    except ConflictError:
        history.refused.add(number)
        raise NotLeaderError("load again") from None
    history.made.add(number)
    return new


async def break_something(world: Controllers, history: History, rng: random.Random) -> None:
    host = rng.choice(HOSTS)
    member = rng.randrange(len(ETCD))
    kind = rng.choice(("cut", "one way", "heal", "hold", "late", "late", "majority", "kill"))
    network = world.simulation.network
    if kind == "cut":
        world.cut(host)
    elif kind == "one way":
        network.cut(*rng.choice(((host, ETCD[member]), (ETCD[member], host))))
    elif kind == "heal":
        for each in HOSTS:
            world.heal(each)
        world.etcd.majority = True
    elif kind == "hold":
        for one in world.members:
            one.hold()
        await asyncio.sleep(LEASE_S + 1)  # decisions have an unknown outcome
        for one in world.members:
            one.go_on()
    elif kind == "late":
        for one in world.members:
            one.execute_held()
    elif kind == "majority":
        world.etcd.majority = not world.etcd.majority
    else:
        world.simulation.end(host, power_cut=False)
        await start(world, history, host)
