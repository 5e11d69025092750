"""Replicas that their controller has forgotten: an operator has cleaned them while they ran, or the
controller has lost its file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.loops import in_loop
from tests.unit.broker.replica.groups import CONTROLLER, HOSTS
from tests.unit.broker.replicas import eventually
from tests.unit.controller.controlled_group import ControlledGroup, with_controller

from turbopump.admin.cluster import Servers
from turbopump.admin.controllers import Controllers

IDENTITY = Path("/store/brokerIdentity")


@in_loop(with_controller)
async def test_a_replica_that_is_cleaned_while_it_runs_says_what_to_do(
    group: ControlledGroup, /, caplog: pytest.LogCaptureFixture
) -> None:
    await group.until_in_sync(3)
    master = await group.master_other_than()
    slave = next(host for host in HOSTS if host != master.host)
    id_ = group.id_of(slave)
    async with Servers(["10.0.0.9:9876"]) as servers:
        controllers = Controllers(servers)
        await controllers.clean("broker-a", [id_], also_living=True)
    await eventually(group.replicas[slave].reasons, seconds=3.0)
    (reason,) = group.replicas[slave].reasons()
    assert f"id {id_} of broker-a was not given by this controller, or was cleaned" in reason
    assert f"stop this broker, remove {IDENTITY} and start it again" in reason
    errors = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert reason in errors

    asked = "turbopump.replication.replica_master_link"
    await asyncio.sleep(5.0)
    caplog.clear()
    caplog.set_level("INFO", asked)
    await asyncio.sleep(30.0)
    assert [one.getMessage() for one in caplog.records if one.name == asked] == []

    await group.stop(slave)
    group.simulation.disk(slave).replace(IDENTITY, None)
    await group.replica(slave)
    await group.until_in_sync(3)
    assert group.id_of(slave) == 4


@in_loop(with_controller)
async def test_a_controller_without_its_file_gives_no_id_while_old_replicas_run(
    group: ControlledGroup, /, caplog: pytest.LogCaptureFixture
) -> None:
    *old, new = HOSTS
    await group.until_in_sync(3)
    await group.stop(new)
    group.simulation.disk(new).replace(IDENTITY, None)
    group.kill(CONTROLLER)
    group.simulation.disk(CONTROLLER).replace(Path("/controller/decisions.json"), None)
    group.simulation.disk(CONTROLLER).replace(Path("/controller/decisions.json.bak"), None)
    await group.start_controller()
    heard = group.decides.liveness
    await eventually(lambda: len(heard.candidates("broker-a")) == 2)
    await group.replica(new)
    await asyncio.sleep(10.0)
    assert group.replicas[new].role is None
    assert "are alive, and this controller has no record of them" in caplog.text
    assert "replicas are alive that this controller has no record of" in caplog.text
    for host in old:
        await group.stop(host)
    await eventually(lambda: group.replicas[new].role is not None)
    assert group.id_of(new) == 1
