"""Readers of a message that only the master has when all replicas die, if producers do not wait for
the sync state set. Names are Apache's settings."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Final

import pytest
from tests.interop.replica_groups import APACHE, OURS, ReplicaGroup, Setting
from tests.interop.replica_questions import TOPIC, GroupClient
from tests.interop.tools import skipping_without_tools
from tests.loops import in_loop

from turbopump.protocol.requests.send import SendMessageV2

NOT_SAFE: dict[str, Setting] = {"allAckInSyncStateSet": False, "minInSyncReplicas": 1}
BODY: Final = b"0"
READING_S: Final = 1.5
"""A slave that is frozen for longer leaves the set of ours, which confirms the message."""

BY_HAND = pytest.mark.skipif(
    "TURBOPUMP_BY_HAND" not in os.environ, reason="a minute for a fault that is Apache's alone"
)


@pytest.mark.parametrize(
    ("side", "is_seen"), [pytest.param(APACHE, True, marks=BY_HAND), (OURS, False)]
)
@in_loop
async def test_apache_s_readers_see_what_a_switch_takes_away_and_ours_do_not(
    tmp_path: Path, side: str, is_seen: bool
) -> None:
    with (
        skipping_without_tools(),
        ReplicaGroup(tmp_path, [side] * 3, controller=side, settings=NOT_SAFE) as group,
    ):
        async with GroupClient.of(group) as client:
            master = (await client.whole()).master
            assert master is not None
            slaves = [
                replica for replica in group.replicas if replica is not group.replicas[master]
            ]
            for slave in slaves:
                slave.freeze()
            request = SendMessageV2(topic=TOPIC, queue_id=0, producer_group="p")
            assert (await client.replicas[master].code(request, BODY))[0] == 0
            assert await is_read(client, master) is is_seen

            group.replicas[master].kill()
            for slave in slaves:
                slave.kill()
                slave.start()
            if side == APACHE:
                # one of the slaves, though a member of their set is missing
                await client.another_master(master)
            group.replicas[master].start()
            state = await client.whole()

            assert state.master is not None
            is_kept = BODY in await client.replicas[state.master].all_bodies(TOPIC)
            if side == APACHE:
                assert not is_kept  # ours may keep it or not: no reader has seen it


async def is_read(client: GroupClient, master: int) -> bool:
    """True if a reader sees the message soon."""
    until = time.monotonic() + READING_S
    while time.monotonic() < until:
        if BODY in await client.replicas[master].all_bodies(TOPIC):
            return True
        await asyncio.sleep(0.1)
    return False
