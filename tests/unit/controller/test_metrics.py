"""Metrics of a controller, under Apache's names."""

from __future__ import annotations

from collections.abc import Mapping

from tests.loops import in_loop
from tests.unit.controller.world import World, controlled, pause
from tests.unit.metrics.reading import series_of

from turbopump.controller.metrics import ACTIVE_BROKERS, ELECTIONS, REQUESTS, ROLE, metrics_of
from turbopump.metrics.family import Family


def read(world: World, family: Family) -> Mapping[tuple[str, ...], object]:
    controller = world.controller
    metrics = metrics_of(
        controller.config,
        controller.groups,
        controller.liveness,
        controller.times,
        lambda: controller.leader,
    )
    assert metrics.labels == {"node_type": "controller", "group": "turbopump", "peer_id": "n0"}
    return series_of(metrics, family)


@in_loop(controlled)
async def test_elections_live_replicas_and_requests_are_counted(world: World, /) -> None:
    assert (read(world, ROLE), read(world, ELECTIONS)) == ({(): 3}, {})
    first, second, _third = await world.group()
    assert (await second.elect()).code != 0
    assert read(world, ACTIVE_BROKERS) == {("c", "a"): 3}
    first.kill()
    await pause()
    assert read(world, ACTIVE_BROKERS) == {("c", "a"): 2}
    second.kill()
    await pause()
    assert read(world, ELECTIONS) == {
        ("new_master_elected",): 2,
        ("keep_current_master",): 1,
        ("no_master_elected",): 1,
    }
    assert read(world, REQUESTS)["controller_apply_broker_id", "success"] == 3
    world.controller.groups.end()
    assert read(world, ROLE) == {(): 2}
