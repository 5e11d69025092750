"""Ways in which groups of RocketMQ have lost messages or topics, each told with our replicas, under
load.

The numbers are those of apache/rocketmq's issues.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from tests.loops import in_loop
from tests.simulation.failover import CONTROLLER, NAMESRV, REPLICAS, Group, Shape, scrubbing_often
from tests.simulation.world.ledger import Send
from tests.simulation.world.simulation import Simulation, simulate

from turbopump.broker.broker import Broker
from turbopump.broker.log_repair import Range
from turbopump.config.broker_config import FlushDiskType
from turbopump.store.message_store import MessageStore

SYNC_FLUSH = FlushDiskType.SYNC_FLUSH
Story = Callable[[Group], Awaitable[None]]


def with_group(story: Story, *, flush: FlushDiskType = SYNC_FLUSH, seed: int = 1) -> None:
    """Tell a story with a group under load. In the end all is as promised."""
    with scrubbing_often():
        simulate(seed, partial(_tell, story, flush))


async def _tell(story: Story, flush: FlushDiskType, simulation: Simulation) -> None:
    group = Group(simulation, Shape(flush=flush))
    await group.start()
    await asyncio.sleep(5)
    await story(group)
    await group.settle()
    wrong = await group.verdict()
    assert wrong == [], group.story()
    await group.end()


def cut(group: Group, some: tuple[str, ...], others: tuple[str, ...]) -> None:
    """Cut all ways between hosts, in both directions."""
    for one in some:
        for other in others:
            group.simulation.network.cut(one, other)
            group.simulation.network.cut(other, one)


def heal(group: Group, some: tuple[str, ...], others: tuple[str, ...]) -> None:
    for one in some:
        for other in others:
            group.simulation.network.heal(one, other)
            group.simulation.network.heal(other, one)


def master_of(group: Group) -> str:
    master = group.master()
    assert master is not None
    return master


def others_than(*hosts: str) -> tuple[str, ...]:
    return tuple(host for host in REPLICAS if host not in hosts)


def by_after(group: Group, host: str, since: float) -> list[Send]:
    """Sends begun after a moment that a host has acknowledged."""
    ledger = group.ledger
    return [send for send, by in ledger.by.items() if by.host == host and send.begun > since]


async def another_master(group: Group, old: str) -> str:
    await group.until(lambda: group.master() not in (None, old), 15, "no other master is elected")
    return master_of(group)


def has_more(group: Group, answered: int) -> bool:
    """True if more changes than these were answered."""
    return group.ledger.facts.answered > answered


@in_loop(with_group)
async def test_6316_name_servers_keep_the_master_of_the_higher_epoch(group: Group, /) -> None:
    """An old master that the controller cannot reach goes on registering at the name server."""
    old = master_of(group)
    cut(group, (old,), (CONTROLLER, *others_than(old)))
    new = await another_master(group, old)
    await asyncio.sleep(3)
    for _ in range(40):
        assert await group.master_of_route() == f"{new}:10911"
        await asyncio.sleep(1)
    heal(group, (old,), (CONTROLLER, *others_than(old)))


@pytest.mark.parametrize("seed", [1, 2, 3])
@in_loop(with_group)
async def test_6662_an_isolated_master_with_one_slave_confirms_nothing(
    group: Group, /, seed: int
) -> None:
    old = master_of(group)
    with_it, alone = others_than(old)
    cut(group, (old, with_it), (CONTROLLER, alone))
    since = group.now
    await another_master(group, old)
    await asyncio.sleep(15)
    assert by_after(group, old, since) == []
    heal(group, (old, with_it), (CONTROLLER, alone))


@pytest.mark.parametrize("flush", list(FlushDiskType))
@in_loop(with_group)
async def test_7689_queue_offsets_behind_the_confirmed_one_are_not_given_twice(
    group: Group, /, flush: FlushDiskType
) -> None:
    """Master and controller are killed at once, with messages that no slave has, and both come back
    at once."""
    for _ in range(4):
        await group.until(group.is_whole, 60, "the group does not get whole")
        old = master_of(group)
        for slave in others_than(old):
            group.simulation.network.cut(old, slave)
        await asyncio.sleep(1)
        group.rest_s = 0.2
        group.simulation.end(CONTROLLER, power_cut=False)
        group.simulation.end(old, power_cut=False)
        for slave in others_than(old):
            group.simulation.network.heal(old, slave)
        await asyncio.sleep(5)


@in_loop(with_group)
async def test_topics_groups_users_and_offsets_do_not_vanish_with_their_master(
    group: Group, /
) -> None:
    """The master dies after each change that was answered."""
    group.rest_s = 1.0
    for _ in range(10):
        await group.until(group.is_whole, 60, "the group does not get whole")
        before = group.ledger.facts.answered
        await group.until(partial(has_more, group, before), 30, "nothing is changed")
        group.simulation.end(master_of(group), power_cut=False)
        await asyncio.sleep(1)


@pytest.mark.parametrize("flush", list(FlushDiskType))
@pytest.mark.parametrize("seed", [1, 2, 3])
@in_loop(with_group)
async def test_a_master_that_is_back_before_anybody_noticed_does_not_go_on_with_a_shorter_log(
    group: Group, /, seed: int, flush: FlushDiskType
) -> None:
    """Its power is cut, and it is back within less than the time of a heartbeat."""
    group.rest_s = 0.3
    for _ in range(4):
        await group.until(group.is_whole, 60, "the group does not get whole")
        await asyncio.sleep(2)
        group.simulation.end(master_of(group), power_cut=True)
        await asyncio.sleep(5)


@in_loop(with_group)
async def test_a_master_without_the_controller_goes_on_while_all_are_in_sync(
    group: Group, /
) -> None:
    master = master_of(group)
    group.kept_down.add(CONTROLLER)
    group.simulation.end(CONTROLLER, power_cut=False)
    since = group.now
    await asyncio.sleep(20)
    assert group.master() == master
    assert len(by_after(group, master, since)) > 20
    group.kept_down.clear()


@in_loop(with_group)
async def test_the_death_of_the_name_server_does_not_matter_to_the_group(group: Group, /) -> None:
    group.kept_down.add(NAMESRV)
    group.simulation.end(NAMESRV, power_cut=False)
    old = master_of(group)
    group.simulation.end(old, power_cut=False)
    await another_master(group, old)
    await asyncio.sleep(3)
    group.kept_down.clear()


@in_loop(with_group)
async def test_a_name_server_that_is_cut_off_does_not_stop_a_switch(group: Group, /) -> None:
    """The new master registers for seconds in vain. Meanwhile its slaves join."""
    cut(group, (NAMESRV,), REPLICAS)
    old = master_of(group)
    group.simulation.end(old, power_cut=False)
    await another_master(group, old)
    await group.until(lambda: len(group.in_sync()) >= 2, 15, "no slave joins the new master")
    heal(group, (NAMESRV,), REPLICAS)


@in_loop(partial(with_group, flush=FlushDiskType.ASYNC_FLUSH))
async def test_the_longest_log_of_the_living_wins_so_none_of_them_is_cut(group: Group, /) -> None:
    """One slave has copied more when the master dies. The controller knows ends of the logs that
    are up to 500 ms old, from before that."""
    group.rest_s = 0.3
    for number in range(6):
        await group.until(group.is_whole, 60, "the group does not get whole")
        old = master_of(group)
        short, long = sorted(others_than(old), reverse=number % 2 == 0)
        group.simulation.network.cut(old, short)
        while group.end_of(long) <= group.end_of(short):
            await asyncio.sleep(0.01)
        group.kept_down.add(old)
        group.simulation.end(old, power_cut=False)
        assert await another_master(group, old) == long, group.story()
        group.simulation.network.heal(old, short)
        group.kept_down.clear()


@in_loop(with_group)
async def test_a_planned_stop_makes_no_replica_cut_its_log(
    group: Group, /, caplog: pytest.LogCaptureFixture
) -> None:
    """Each master is stopped by SIGTERM while clients send, commit and change tables."""
    caplog.set_level("INFO", "turbopump.broker.replica.replica")
    group.rest_s = 0.3
    for _ in range(4):
        await group.until(group.is_whole, 60, "the group does not get whole")
        old = master_of(group)
        group.stop_cleanly(old)
        await another_master(group, old)
    await group.until(group.is_whole, 60, "the group does not get whole")
    handed = [one for one in caplog.messages if one.startswith("mastership is handed over")]
    assert len(handed) == 4
    assert [one for one in caplog.messages if one.startswith("log cut")] == []


@in_loop(with_group)
async def test_a_replica_with_an_open_damage_is_not_elected(group: Group, /) -> None:
    """It finds no copy, because it is cut off from the name server. Later the new master has it."""
    await group.until(group.is_whole, 60, "the group does not get whole")
    old = master_of(group)
    first = min(others_than(old), key=partial(id_of, group))
    cut(group, (first,), (NAMESRV,))
    broker = group.broker(first)
    assert broker is not None
    offset, size = first_message(broker.store)
    file = broker.store.log.files.at(offset)
    assert file is not None
    file.buffer[offset - file.start + size - 20] ^= 1
    fetch = broker.parts.delivering.log_repair.fetch
    assert group.simulation.process(first).call(fetch, [Range(offset, offset + size)])
    await asyncio.sleep(1)
    group.simulation.end(old, power_cut=False)
    assert await another_master(group, old) != first
    heal(group, (first,), (NAMESRV,))
    await group.until(partial(is_whole, broker), 10, "the damage is not repaired")


def id_of(group: Group, host: str) -> int:
    """Id of a replica. Of two equal ones the smaller is elected."""
    role = group.replicas[host].role
    assert role is not None
    return role.id


def first_message(store: MessageStore) -> tuple[int, int]:
    """Offset and size of the first message that is in a queue."""
    unit = min(unit for queue in store.queues if (unit := queue.unit(queue.min_index)) is not None)
    return unit[:2]


def is_whole(broker: Broker) -> bool:
    return broker.parts.delivering.log_repair.open_from is None
