"""A whole controller in virtual time: replicas register, die, vanish and return; operators ask."""

from __future__ import annotations

import asyncio

from tests.loops import in_loop
from tests.unit.controller.world import (
    BROKER,
    CLUSTER,
    CONTROLLER,
    World,
    controlled,
    pause,
    set_in,
)

from turbopump.controller.decided_groups import REPORTS_S
from turbopump.protocol.codes import LanguageCode, ResponseCode
from turbopump.protocol.command import encode_command, request_command
from turbopump.protocol.requests import controller as requests
from turbopump.protocol.requests.namesrv import BrokerHeartbeat


@in_loop(controlled)
async def test_replicas_get_ids_and_a_master_and_form_a_set(world: World, /) -> None:
    first, second, third = await world.group()
    assert [one.id for one in (first, second, third)] == [1, 2, 3]
    assert await first.master() == (1, 1)
    assert set_in(await second.info()) == requests.SyncStateSet(
        sync_state_set=[1, 2, 3], sync_state_set_epoch=2
    )
    await pause()
    assert [one.master_broker_id for one in third.notices] == [1]
    assert third.notices[0].master_address == first.address


@in_loop(controlled)
async def test_a_killed_master_is_replaced_at_once(world: World, /) -> None:
    first, second, third = await world.group()
    second.max_offset = third.max_offset = 5 << 30
    second.epoch = third.epoch = 1
    third.priority = 1
    await second.beat()
    await third.beat()
    first.kill()
    await pause()
    assert await second.master() == (3, 2)
    assert set_in(await second.info()).sync_state_set == [3]
    assert [one.master_epoch for one in second.notices] == [1, 2]
    assert [one.master_epoch for one in third.notices] == [1, 2]


@in_loop(controlled)
async def test_the_longest_log_is_elected_though_its_last_report_was_shorter(
    world: World, /
) -> None:
    """Both slaves report their logs again when they lose the killed master."""
    first, second, third = await world.group()
    for one, end in ((second, 1000), (third, 900)):
        one.epoch, one.max_offset = 1, end
        await one.beat()
    first.kill()
    await asyncio.sleep(REPORTS_S / 4)
    await second.beat()
    assert await second.master() == (1, 1)
    third.max_offset = 1100
    await third.beat()
    await asyncio.sleep(REPORTS_S / 4)
    assert await second.master() == (3, 2)


@in_loop(controlled)
async def test_a_vanished_master_is_replaced_after_its_time_of_silence(world: World, /) -> None:
    first, second, third = await world.group()
    await first.beat()
    first.vanish()
    await world.beats(2.5, second, third)
    assert await second.master() == (1, 1)
    await world.beats(1.0, second, third)
    assert await second.master() == (2, 2)


@in_loop(controlled)
async def test_a_master_that_started_again_unnoticed_is_elected_by_its_true_offset(
    world: World, /
) -> None:
    first, second, third = await world.group()
    for one in (first, second, third):
        one.epoch, one.max_offset = 1, 1000
        await one.beat()
    first.confirm_offset = 1000
    await first.beat()
    first.vanish()
    first.max_offset, first.confirm_offset = 400, 400  # lost by the power cut
    await first.start()
    await first.beat()
    answer = await first.register()
    reply = answer.header(requests.RegisterReplicaReply)
    assert (reply.master_broker_id, reply.master_epoch) == (2, 2)


@in_loop(controlled)
async def test_a_lone_master_that_lost_confirmed_messages_is_not_elected_again(
    world: World, /
) -> None:
    (first,) = await world.group(1)
    first.epoch, first.max_offset, first.confirm_offset = 1, 1000, 1000
    await first.beat()
    first.vanish()
    first.max_offset, first.confirm_offset = 400, 400
    await first.start()
    await first.register()
    await first.beat()
    await pause()
    assert await first.master() == (None, 2)
    answer = await first.elect()
    assert answer.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert "end before the confirmed offset 1000: 1 at 400" in str(answer.remark)
    answer = await first.ask(requests.UpdateControllerConfig(), b"enableElectUncleanMaster=true\n")
    assert answer.code == 0
    await first.beat()
    await pause()
    assert await first.master() == (1, 3)


@in_loop(controlled)
async def test_a_member_whose_heartbeat_is_old_is_elected_with_its_next_one(
    world: World, /
) -> None:
    first, second, third = await world.group()
    for one in (second, third):
        one.epoch, one.max_offset = 1, 900
        await one.beat()
    first.epoch, first.max_offset, first.confirm_offset = 1, 1100, 1000
    await first.beat()
    first.kill()
    await pause()
    assert await second.master() == (None, 2)
    third.max_offset = 1000
    await third.beat()
    await pause()
    assert await second.master() == (3, 3)


@in_loop(controlled)
async def test_what_a_java_master_calls_confirmed_keeps_nobody_from_being_elected(
    world: World, /
) -> None:
    first, second, _third = await world.group()
    second.epoch, second.max_offset = 1, 900
    await second.beat()

    async def beat_as_java() -> None:
        connection = await first.remoting.connect(CONTROLLER)
        beat = BrokerHeartbeat(
            cluster_name=CLUSTER,
            broker_addr=first.address,
            broker_name=BROKER,
            broker_id=1,
            epoch=1,
            max_offset=1000,
            confirm_offset=1000,
        )
        command = request_command(beat, b"", opaque=77)
        command.language = LanguageCode.JAVA
        await connection.start_call(77, encode_command(command), 3.0)

    await first.process.start(beat_as_java())
    first.kill()
    await pause()
    assert await second.master() == (2, 2)


@in_loop(controlled)
async def test_a_designated_replica_gets_the_mastership_once_it_has_caught_up(
    world: World, /
) -> None:
    first, second, _third = await world.group()
    first.epoch, first.max_offset, first.confirm_offset = 1, 1000, 1000
    await first.beat()
    asking = asyncio.ensure_future(first.elect(2, designate=True))
    await pause()
    assert not asking.done()
    second.epoch, second.max_offset = 1, 1000
    await second.beat()
    answer = await asking
    reply = answer.header(requests.ElectMasterReply)
    assert (answer.code, reply.master_broker_id, reply.master_epoch) == (0, 2, 2)
    answer = await first.elect(3, designate=True)
    assert (answer.code, await first.master()) == (2012, (2, 2))


@in_loop(controlled)
async def test_a_controller_that_starts_again_knows_everything_and_waits_for_the_master(
    world: World, /
) -> None:
    first, second, third = await world.group()
    world.kill(power_cut=True)
    await world.start()
    for one in (first, second, third):
        one.connect_anew()
    await world.beats(2.0, second, third)
    assert await second.master() == (1, 1)
    await first.beat()
    await world.beats(2.0, first, second, third)
    assert await second.master() == (1, 1)
    world.kill()
    await world.start()
    for one in (first, second, third):
        one.connect_anew()
    await world.beats(3.5, second, third)
    assert await second.master() == (2, 2)


@in_loop(controlled)
async def test_a_controller_that_was_frozen_takes_nobody_for_dead(world: World, /) -> None:
    first, second, third = await world.group()
    beating = asyncio.ensure_future(world.beats(12.0, first, second, third))
    await asyncio.sleep(2)
    world.process.pause()
    await asyncio.sleep(6)
    world.process.resume()
    await beating
    assert await second.master() == (1, 1)


@in_loop(controlled)
async def test_only_one_election_is_made_for_many_requests(world: World, /) -> None:
    members = await world.group()
    first, second, third = members
    first.kill()
    answers = await asyncio.gather(*(one.elect() for one in (second, third) for _ in range(20)))
    epochs = {one.header(requests.ElectMasterReply).master_epoch for one in answers}
    assert epochs <= {1, 2}  # 1 before the death is noticed
    assert await second.master() == (2, 2)


@in_loop(controlled)
async def test_operators_ask_for_the_leader_the_set_and_the_settings(world: World, /) -> None:
    first, second, _third = await world.group()
    answer = await first.ask(requests.GetControllerMetadata())
    assert answer.ext == {
        "group": "turbopump",
        "controllerLeaderId": "n0",
        "controllerLeaderAddress": CONTROLLER,
        "isLeader": "true",
        "peers": f"n0:{CONTROLLER};",
    }
    second.kill()
    await pause()
    answer = await first.ask(requests.GetSyncStateData(), b'["a","b"]')
    assert answer.code == 0
    assert b'"a":{"inSyncReplicas":[{"alive":true,"brokerAddress":' in answer.body
    assert (await first.ask(requests.GetSyncStateData())).code == ResponseCode.SYSTEM_ERROR
    settings = (await first.ask(requests.GetControllerConfig())).body.decode()
    assert "scanNotActiveBrokerInterval=200" in settings
    answer = await first.ask(requests.UpdateControllerConfig(), b"controllerStorePath=/tmp/x\n")
    assert answer.code == ResponseCode.NO_PERMISSION
    answer = await first.ask(
        requests.CleanBrokerData(
            cluster_name=CLUSTER, broker_name=BROKER, broker_controller_ids_to_clean="2"
        )
    )
    assert answer.code == 0
    assert set_in(await first.info()).sync_state_set == [1, 3]


@in_loop(controlled)
async def test_a_heartbeat_without_an_id_is_refused(world: World, /) -> None:
    first = await world.member()
    answer = await first.ask(
        BrokerHeartbeat(cluster_name=CLUSTER, broker_addr=first.address, broker_name=BROKER)
    )
    assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
