"""A master whose machine loses power and is back before anyone noticed, with less than it had
acknowledged. Names are Apache's settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.interop.replica_groups import APACHE, OURS, ReplicaGroup, Setting
from tests.interop.replica_questions import GroupClient, GroupState, forget_from
from tests.interop.tools import skipping_without_tools
from tests.loops import in_loop

KEPT, FORGOTTEN = 20, 10

UNNOTICED: dict[str, Setting] = {
    # Apache's broker is dead for its controller after 10 s. A JVM may take as long to start on a
    # busy machine.
    "controllerHeartBeatTimeoutMills": 60_000,
    # It syncs less than four pages each 10 s only, which is not before the cut then.
    "flushCommitLogThoroughInterval": 60_000,
}


@pytest.mark.skipif(
    "TURBOPUMP_BY_HAND" not in os.environ, reason="two minutes for a fault that is Apache's alone"
)
@in_loop
async def test_apache_s_group_loses_what_its_master_forgot_while_nobody_noticed(
    tmp_path: Path,
) -> None:
    with skipping_without_tools(), group_of(APACHE, tmp_path) as group:
        async with GroupClient.of(group) as client:
            before = await return_unnoticed(group, client)

            after = await client.state()
            assert (after.master, after.epoch) == (before.master, before.epoch)
            assert await client.lost(before.master) == client.acknowledged[-FORGOTTEN - 1 : -1]
            # nor has any other replica them any more
            await client.until_all_confirm()


@in_loop
async def test_our_group_elects_another_master_when_one_forgot_while_nobody_noticed(
    tmp_path: Path,
) -> None:
    with group_of(OURS, tmp_path) as group:
        async with GroupClient.of(group) as client:
            before = await return_unnoticed(group, client)

            after = await client.whole()
            assert after.master not in (None, before.master)
            assert after.epoch > before.epoch
            assert await client.lost(after.master) == []


def group_of(side: str, directory: Path) -> ReplicaGroup:
    return ReplicaGroup(directory, [side] * 3, controller=side, settings=UNNOTICED)


async def return_unnoticed(group: ReplicaGroup, client: GroupClient) -> GroupState:
    """Cut the power of the master's machine, and start it again; the state before. A message is
    acknowledged afterwards."""
    await client.whole()
    before = await client.elect(1)
    master = before.master
    assert master == 1
    await client.send(KEPT)
    tail = await client.send(FORGOTTEN)
    await client.until_all_confirm()
    # a machine without power closes no connection
    group.proxies[master].hide_closes()
    group.replicas[master].kill()
    forget_from(group, master, tail[0])

    group.replicas[master].start()
    await client.send(1)
    return before
