"""A master whose machine loses power and is back before anyone noticed, with less than it had
acknowledged. Names are Apache's settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.replica_groups import APACHE, ReplicaGroup, Setting
from tests.interop.replica_questions import GroupClient, forget_from
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


@pytest.mark.parametrize("side", [APACHE])
@in_loop
async def test_what_three_replicas_had_is_lost_when_apache_s_master_comes_back_unnoticed(
    tmp_path: Path, side: str
) -> None:
    with (
        skipping_without_tools(),
        ReplicaGroup(tmp_path, [side] * 3, controller=side, settings=UNNOTICED) as group,
    ):
        async with GroupClient.of(group) as client:
            await client.whole()
            before = await client.elect(1)
            master = before.master
            assert master == 1
            await client.send(KEPT)
            tail = await client.send(FORGOTTEN)
            await client.until_all_confirm()
            # the power of the master's machine fails: its connections are not closed
            group.proxies[master].hide_closes()
            group.replicas[master].kill()
            forget_from(group, master, tail[0])

            group.replicas[master].start()
            await client.send(1)

            after = await client.state()
            assert (after.master, after.epoch) == (master, before.epoch)
            assert await client.lost(master) == client.acknowledged[-FORGOTTEN - 1 : -1]
            # nor has any other replica them any more
            await client.until_all_confirm()
