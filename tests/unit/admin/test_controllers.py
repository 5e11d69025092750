"""Operations on controllers, beside a controller and three replicas in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop, on_a_client_s_host
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.replica.groups import CONTROLLER, HOSTS, Group

from turbopump.admin.admin import Admin
from turbopump.admin.controllers import GroupState, ReplicaLog, ReplicaState
from turbopump.admin.doctor.controllers import group_problems, weaker_promises
from turbopump.admin.doctor.diagnosis import Diagnosis, Level
from turbopump.admin.doctor.examination import examine_cluster
from turbopump.config.controller_config import ControllerConfig
from turbopump.controller import Controller
from turbopump.errors import ClientError, NotFoundError, ResponseError
from turbopump.protocol.requests.controller import EpochCache, EpochEntry

ADDRESS = f"{CONTROLLER}:9878"
BROKER = "broker-a"


async def _with_admin(story: Any, simulation: Simulation) -> None:
    group = Group(simulation)
    controller = Controller(ControllerConfig(bind_address=CONTROLLER))
    group.controller = controller  # type: ignore[assignment]  # a real one
    await group.name_server()
    await group.start_controller()
    for host in HOSTS:
        await group.replica(host)
    async with Admin("10.0.0.9:9876") as admin:
        await until_group(admin, lambda one: len(one.in_sync) == len(HOSTS))
        await story(group, admin)
    await group.close()


def with_admin(story: Any, *, seed: int = 1) -> None:
    """Run a story with a controller, three replicas that are in sync, and an Admin."""
    on_a_client_s_host(partial(_with_admin, story), seed=seed)


async def until_group(admin: Admin, holds: Callable[[GroupState], bool]) -> GroupState:
    """Wait until the controller shows a group that fulfils a condition."""
    async with asyncio.timeout(60.0):
        while True:
            found = (await admin.controllers.replicas([BROKER], ADDRESS)).get(BROKER)
            if found is not None and holds(found):
                return found
            await asyncio.sleep(0.1)


@in_loop(with_admin)
async def test_the_controllers_are_found_through_the_brokers(group: Group, admin: Admin, /) -> None:
    controllers = admin.controllers
    assert await controllers.addresses() == [ADDRESS]
    (state,) = await controllers.states()
    assert (state.address, state.leader, state.fault) == (ADDRESS, ADDRESS, None)
    assert await controllers.leader(f"10.0.0.7:9878;{ADDRESS}") == ADDRESS
    with pytest.raises(ClientError, match=r"no controller leads: 10\.0\.0\.7:9878: "):
        await controllers.leader("10.0.0.7:9878")


@in_loop(with_admin)
async def test_replicas_show_ids_roles_and_what_they_are_behind(
    group: Group, admin: Admin, /
) -> None:
    found = (await admin.controllers.replicas())[BROKER]
    assert [one.id for one in found.replicas] == [1, 2, 3]
    assert all(one.alive and one.in_sync for one in found.replicas)
    assert [one.address for one in found.replicas if one.is_master] == [found.master_address]
    logs = await admin.controllers.logs(found)
    assert [(log.behind_bytes, log.fault) for log in logs] == [(0, None)] * 3
    assert await admin.controllers.replicas(["nope"]) == {}


@in_loop(with_admin)
async def test_an_election_makes_the_wanted_replica_the_master(
    group: Group, admin: Admin, /
) -> None:
    before = (await admin.controllers.replicas())[BROKER]
    wanted = next(one for one in before.replicas if not one.is_master)
    elected = await admin.controllers.elect(BROKER, wanted.id)
    assert (elected.master_id, elected.master_address) == (wanted.id, wanted.address)
    assert elected.master_epoch == before.master_epoch + 1
    after = await until_group(admin, lambda one: len(one.in_sync) == len(HOSTS))
    assert after.master_id == wanted.id
    with pytest.raises(ResponseError):
        await admin.controllers.elect(BROKER, 9)
    with pytest.raises(NotFoundError, match="no broker nope"):
        await admin.controllers.elect("nope")


@in_loop(with_admin)
async def test_a_replica_that_is_gone_is_forgotten(group: Group, admin: Admin, /) -> None:
    found = (await admin.controllers.replicas())[BROKER]
    gone = next(one for one in found.replicas if not one.is_master)
    with pytest.raises(ResponseError):
        await admin.controllers.clean(BROKER, [gone.id])
    group.kill(gone.address.partition(":")[0])
    away = await until_group(admin, lambda one: not one.replicas[gone.id - 1].alive)
    log = (await admin.controllers.logs(away))[gone.id - 1]
    assert (log.epochs, log.behind_bytes, bool(log.fault)) == (None, None, True)
    await until_group(admin, lambda one: gone.id not in one.in_sync)
    await admin.controllers.clean(BROKER, [gone.id])
    left = (await admin.controllers.replicas())[BROKER]
    assert gone.id not in [one.id for one in left.replicas]


@in_loop(with_admin)
async def test_settings_of_controllers_change_while_they_run(group: Group, admin: Admin, /) -> None:
    controllers = admin.controllers
    before = await controllers.settings()
    (change,) = await controllers.change_settings({"enableElectUncleanMaster": "true"})
    assert before[ADDRESS]["enableElectUncleanMaster"] == "false"
    assert (change.server, change.old, change.new) == (ADDRESS, "false", "true")


@in_loop(with_admin)
async def test_a_replica_shows_the_epochs_of_its_log(group: Group, admin: Admin, /) -> None:
    found = await admin.replication.epochs(BROKER)
    assert (found.broker_name, found.broker_id) == (BROKER, 0)  # of a master, as at Apache's
    assert found.max_offset >= 0
    group_now = (await admin.controllers.replicas())[BROKER]
    for one in group_now.replicas:  # the master has two ids
        found = await admin.replication.epochs(f"{BROKER}:{one.id}")
        assert found.broker_id == (0 if one.is_master else one.id)
    with pytest.raises(NotFoundError, match="no replica 9 now"):
        await admin.replication.epochs(f"{BROKER}:9")


@in_loop(with_admin)
async def test_the_doctor_finds_replicas_that_are_away(group: Group, admin: Admin, /) -> None:
    clock = group.simulation.clock("10.0.0.2")

    async def examined() -> list[Diagnosis]:
        return await examine_cluster(admin.servers, clock)

    healthy = await examined()
    assert (f"{ADDRESS} leads 1 controller") in [one.message for one in healthy]
    assert [one for one in healthy if one.level is Level.WRONG] == []
    found = (await admin.controllers.replicas())[BROKER]
    for one in found.replicas:
        if not one.is_master:
            group.kill(one.address.partition(":")[0])
    await until_group(admin, lambda one: len(one.in_sync) == 1)
    messages = [one.message for one in await examined() if one.level is Level.WRONG]
    assert "sends are refused: 1 of 3 replicas in sync, and minInSyncReplicas=2" in messages
    assert sum("is away" in message for message in messages) == 2


@in_loop(with_admin)
async def test_the_doctor_finds_a_replica_that_was_cleaned_while_it_runs(
    group: Group, admin: Admin, /
) -> None:
    found = (await admin.controllers.replicas())[BROKER]
    cleaned = next(one for one in found.replicas if not one.is_master)
    await admin.controllers.clean(BROKER, [cleaned.id], also_living=True)
    diagnoses = await examine_cluster(admin.servers, group.simulation.clock("10.0.0.2"))
    (one,) = [one for one in diagnoses if "no replica of the controller" in one.message]
    assert one.message.startswith(f"{cleaned.address} is no replica of the controller: it was cl")
    assert one.fix is not None
    assert "remove brokerIdentity" in one.fix


def replica(number: int, *, alive: bool = True, in_sync: bool = True) -> ReplicaState:
    return ReplicaState(BROKER, number, f"h:{number}", alive, in_sync, number == 1)


def log(state: ReplicaState, *epochs: tuple[int, int], end: int = 500) -> ReplicaLog:
    entries = [EpochEntry(epoch=epoch, start_offset=at, end_offset=end) for epoch, at in epochs]
    return ReplicaLog(state, EpochCache(epoch_list=entries, max_offset=end), 500 - end)


def state_of(*replicas: ReplicaState, master: int | None = 1) -> GroupState:
    return GroupState(BROKER, master, "h:1", 4, 7, replicas)


ONE, TWO = replica(1), replica(2)
BOTH = [log(ONE, (1, 0), (4, 300)), log(TWO, (1, 0), (4, 300))]


@pytest.mark.parametrize(
    ("group", "logs", "masters", "settings", "says"),
    [
        (state_of(ONE, TWO), BOTH, ["h:1"], {"minInSyncReplicas": "2"}, []),
        (state_of(ONE, TWO, master=None), [], [], {}, ["it has no master: sends fail"]),
        (state_of(ONE, TWO), BOTH, ["h:1", "h:2"], {}, ["h:1, h:2 call themselves master"]),
        (
            state_of(ONE, TWO),
            BOTH,
            ["h:1"],
            {"minInSyncReplicas": "3"},
            ["sends are refused: 2 of 2 replicas in sync, and minInSyncReplicas=3"],
        ),
        (
            state_of(ONE, TWO),
            [BOTH[0], log(TWO, (1, 0), (3, 250))],
            ["h:1"],
            {},
            ["the log of replica 2 is not the master's from epoch 3 on"],
        ),
        (
            state_of(ONE, replica(2, in_sync=False)),
            [BOTH[0], log(replica(2, in_sync=False), (1, 0), end=200)],
            ["h:1"],
            {},
            ["replica 2 is not in sync, 300 bytes behind"],
        ),
    ],
)
def test_problems_of_a_group(
    group: GroupState,
    logs: list[ReplicaLog],
    masters: list[str],
    settings: dict[str, str],
    says: list[str],
) -> None:
    found = group_problems(group, logs, masters, settings, "-n x")
    assert [one.message for one in found] == says


def test_weaker_settings_are_named() -> None:
    settings = {"allAckInSyncStateSet": "false", "minInSyncReplicas": "1"}
    found = [one.message for one in weaker_promises(state_of(ONE, TWO), settings)]
    assert [text.partition(":")[0] for text in found] == [
        "allAckInSyncStateSet=false",
        "minInSyncReplicas=1",
        "it has 2 replicas",
    ]
    assert not list(weaker_promises(state_of(ONE, TWO, replica(3)), {"minInSyncReplicas": "2"}))
