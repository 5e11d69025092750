"""Replicas of ours and of Apache's in one group: masters of each side die, and one of the other
side takes over. Names are Apache's settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.replica_groups import APACHE, OURS, ReplicaGroup
from tests.interop.replica_questions import GroupClient, log_bytes
from tests.interop.tools import skipping_without_tools
from tests.loops import in_loop

COUNT = 20


@pytest.mark.parametrize(
    ("controller", "sides"),
    [(APACHE, [OURS, APACHE, APACHE]), (OURS, [OURS, APACHE, APACHE])],
    ids=["controller-of-apache", "controller-of-ours"],
)
@in_loop
async def test_masters_of_both_sides_die_and_nothing_is_lost(
    tmp_path: Path, controller: str, sides: list[str]
) -> None:
    with skipping_without_tools(), ReplicaGroup(tmp_path, sides, controller=controller) as group:
        async with GroupClient.of(group) as client:
            state = await client.whole()
            await client.commit(7)
            died: set[str] = set()
            while died != {APACHE, OURS}:
                assert state.master is not None
                await client.send(COUNT)
                await client.until_all_confirm()
                await client.until_all_have_offset(7)
                died.add(sides[state.master])
                group.replicas[state.master].kill()
                await client.send(COUNT)
                group.replicas[state.master].start()
                state = await client.whole()
            assert state.master is not None
            assert await client.lost(state.master) == []
            assert await client.offset(state.master) == 7
            end = await client.max_offset(state.master)
            for index in range(len(sides)):
                assert log_bytes(group, index, end) == log_bytes(group, state.master, end)
                assert await client.epochs(index) == await client.epochs(state.master)
            assert len(await client.epochs(state.master)) == state.epoch
