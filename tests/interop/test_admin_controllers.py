"""Our ``Admin`` on our controller and on Apache's, each with three replicas of its side: the
operations of ``DefaultMQAdminExt`` about controllers have the same results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.interop.admin_cases import CONTROLLED, refused
from tests.interop.replica_groups import APACHE, BROKER_NAME, CLUSTER, OURS, ReplicaGroup
from tests.interop.tools import skipping_without_tools

from turbopump.admin.admin import Admin
from turbopump.admin.controllers import GroupState
from turbopump.errors import TurbopumpError

PATIENCE_S = 120.0
SETTING = "enableElectUncleanMaster"


async def until(admin: Admin, holds: Callable[[GroupState], bool]) -> GroupState:
    """Wait until the controller shows a group that fulfils a condition."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                found = (await admin.controllers.replicas([BROKER_NAME])).get(BROKER_NAME)
            except TurbopumpError:
                found = None  # no replica is registered at the name server yet
            if found is not None and holds(found):
                return found
            await asyncio.sleep(0.2)


def all_in_sync(group: GroupState) -> bool:
    return len(group.in_sync) == 3 and all(one.alive for one in group.replicas)


def shown(group: GroupState) -> object:
    replicas = [(one.id, one.alive, one.in_sync, one.is_master) for one in group.replicas]
    return group.master_id, group.master_epoch, replicas


async def results(group: ReplicaGroup) -> dict[str, object]:
    """What each operation gives, by its name at Apache's."""
    found: dict[str, object] = {}
    async with Admin(group.namesrv_address) as admin:
        controllers = admin.controllers
        state = await until(admin, all_in_sync)
        found["getInSyncStateData"] = shown(state)
        (controller,) = await controllers.states(group.controller_address)
        assert controller.metadata is not None
        leads = controller.leader == group.controller_address, controller.metadata.is_leader
        found["getControllerMetaData"] = leads, controller.fault

        elected = await controllers.elect(BROKER_NAME, 2, cluster=CLUSTER)
        again = await until(admin, lambda one: all_in_sync(one) and one.master_id == 2)
        of_stranger = await refused(controllers.elect(BROKER_NAME, 9))
        found["electMaster"] = (
            (elected.master_id, elected.master_epoch, group.index_of(elected.master_address)),
            shown(again),
            of_stranger,
        )

        epochs = await admin.replication.epochs(group.address(1))
        logs = [(log.replica.id, log.behind_bytes) for log in await controllers.logs(again)]
        found["getBrokerEpochCache"] = epochs.broker_name, epochs.broker_id, logs

        before = (await controllers.settings(group.controller_address)).popitem()[1][SETTING]
        (change,) = await controllers.change_settings({SETTING: "true"}, group.controller_address)
        found["getControllerConfig"] = before
        found["updateControllerConfig"] = change.key, change.old, change.new, change.ignored

        of_living = await refused(controllers.clean(BROKER_NAME, [3], cluster=CLUSTER))
        group.replicas[2].kill()
        await until(admin, lambda one: one.in_sync == [1, 2] and not one.replicas[2].alive)
        await controllers.clean(BROKER_NAME, [3], cluster=CLUSTER)
        left = await until(admin, lambda one: len(one.replicas) == 2)
        found["cleanControllerBrokerData"] = (of_living, [one.id for one in left.replicas])
    return found


def test_operations_on_controllers_have_the_same_results(
    tmp_path: Path, summary: list[str]
) -> None:
    started = time.monotonic()
    outcomes = {}
    for side in (OURS, APACHE):
        with skipping_without_tools(), ExitStack() as stack:
            group = ReplicaGroup(tmp_path / side, [side] * 3, controller=side)
            outcomes[side] = asyncio.run(results(stack.enter_context(group)))
    summary.append(f"Admin of controllers: {time.monotonic() - started:.1f} s")
    assert outcomes[OURS].keys() == CONTROLLED
    assert outcomes[OURS] == outcomes[APACHE]
