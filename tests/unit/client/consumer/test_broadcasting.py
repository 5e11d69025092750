"""Broadcasting consumers: everybody gets everything, nothing is retried, and the offsets lie in a
file as Apache's clients have it."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import async_does_nothing
from tests.unit.client.push_consumers import DIRECTORY, broadcasting, fill
from tests.unit.client.scripted_cluster import scripted_cluster
from tests.waits import until_count, until_has

from turbopump.client.consumer.delivery import Delivery, Retry
from turbopump.client.push_consumer import ConsumeFrom, PushConsumer
from turbopump.errors import ConfigError
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.requests.assignment import LockBatchMq
from turbopump.protocol.requests.clients import MessageModel
from turbopump.protocol.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from turbopump.protocol.requests.pull import PullMessage, PullSysFlag
from turbopump.protocol.requests.send import ConsumerSendMsgBack

FILE = DIRECTORY / "127.0.0.1@DEFAULT" / "readers" / "offsets.json"


async def read(consumer: PushConsumer, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    async for message in consumer:
        bodies.append(message.body)
        if len(bodies) == count:
            message.done()
            break
    return bodies


@in_loop(simulated)
async def test_every_consumer_gets_every_message(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster:
        fill(cluster, 3)
        fill(cluster, 3, queue_id=1)
        async with (
            broadcasting(cluster, simulation, instance_name="a") as one,
            broadcasting(cluster, simulation, instance_name="b") as other,
        ):
            assert len(one.queues) == len(other.queues) == 2
            assert (
                sorted(await read(one, 6))
                == sorted(await read(other, 6))
                == sorted([b"m0", b"m1", b"m2"] * 2)
            )
        assert {
            data.message_model
            for beat in cluster.broker.heartbeats
            for data in beat.consumer_data_set
        } == {MessageModel.BROADCASTING}


@in_loop(simulated)
async def test_its_offsets_are_in_a_file_of_apaches_form_and_the_next_life_goes_on_there(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 3)
        async with broadcasting(cluster, simulation) as consumer:
            assert consumer.client_id == "127.0.0.1@DEFAULT"
            await read(consumer, 2)
        disk = simulation.disk("client").mounted
        assert disk is not None
        assert disk.read_file(FILE) == (
            b'{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"orders"\n\t\t}:2\n\t}\n}'
        )
        async with broadcasting(cluster, simulation) as consumer:
            assert await read(consumer, 1) == [b"m2"]
        assert (
            cluster.broker.requests(UpdateConsumerOffset)
            == cluster.broker.requests(QueryConsumerOffset)
            == []
        )
        assert not any(
            pull.sys_flag & PullSysFlag.COMMIT_OFFSET
            for pull in cluster.broker.requests(PullMessage)
        )


@in_loop(simulated)
async def test_offsets_are_written_every_five_seconds_and_only_where_something_changed(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 3)

        async with broadcasting(cluster, simulation, handler=async_does_nothing):
            await asyncio.sleep(6)
            disk = simulation.disk("client").mounted
            assert disk is not None
            assert b":3" in (disk.read_file(FILE) or b"")
            written = disk.modified_ms(FILE)
            await asyncio.sleep(20)
            assert disk.modified_ms(FILE) == written


@in_loop(simulated)
async def test_a_damaged_file_gives_way_to_its_bak(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 3)
        async with broadcasting(cluster, simulation) as consumer:
            await read(consumer, 2)
        disk = simulation.disk("client").mounted
        assert disk is not None
        disk.write_file(FILE, b'{\n\t"offsetTa')
        async with broadcasting(cluster, simulation) as consumer:
            assert await read(consumer, 1) == [b"m2"]


@in_loop(simulated)
async def test_apaches_file_is_read_and_a_queue_missing_in_it_begins_as_configured(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=2) as cluster:
        fill(cluster, 3)
        fill(cluster, 3, queue_id=1)
        mount = simulation.disk("client").mount()
        mount.make_directory(FILE.parent)
        mount.write_file(
            FILE,
            b'{\n\t"offsetTable":{{\n\t\t"brokerName":"broker-a",\n\t\t"queueId":0,\n\t\t"topic":"orders"\n\t}:1}\n}',
        )
        async with broadcasting(cluster, simulation, consume_from=ConsumeFrom.LAST) as consumer:
            assert await read(consumer, 2) == [b"m1", b"m2"]
            cluster.broker.store("orders", 1, b"new")
            assert await read(consumer, 1) == [b"new"]


async def note(got: list[bytes], message: Delivery) -> None:
    got.append(message.body)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("consume_from", list(ConsumeFrom))
@in_loop(simulated)
async def test_a_queue_that_ends_before_the_kept_offset_is_begun_as_configured(
    simulation: Simulation, /, consume_from: ConsumeFrom, ordered: bool
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 3)
        mount = simulation.disk("client").mount()
        mount.make_directory(FILE.parent)
        mount.write_file(
            FILE, b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:10}}'
        )
        got: list[bytes] = []

        async with broadcasting(
            cluster,
            simulation,
            consume_from=consume_from,
            ordered=ordered,
            handler=partial(note, got),
        ):
            await asyncio.sleep(5)
            cluster.broker.store("orders", 0, b"new")
            await until_has(got, b"new")
        old = [b"m0", b"m1", b"m2"] if consume_from is ConsumeFrom.FIRST else []
        assert got == [*old, b"new"]


async def note_and_retry_and_fail(seen: list[tuple[bytes, int]], message: Delivery) -> Retry | None:
    seen.append((message.body, message.attempt))
    if message.body == b"m0":
        raise ZeroDivisionError
    return Retry(delay=3) if (message.body, message.attempt) == (b"m1", 1) else None


@in_loop(simulated)
async def test_what_fails_is_not_delivered_again_unless_it_asks_to_be_kept(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 3)
        seen: list[tuple[bytes, int]] = []

        async with broadcasting(
            cluster, simulation, handler=partial(note_and_retry_and_fail, seen)
        ) as consumer:
            await until_count(seen, 4)
            assert all(not queue.topic.startswith("%RETRY%") for queue in consumer.queues)
        assert seen == [(b"m0", 1), (b"m1", 1), (b"m2", 1), (b"m1", 2)]
        assert cluster.broker.requests(ConsumerSendMsgBack) == []


async def handle(seen: list[bytes], message: Delivery) -> Retry | None:
    seen.append(message.body)
    return Retry() if seen == [b"m0"] else None


@in_loop(simulated)
async def test_in_order_too_without_locks(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 3)
        seen: list[bytes] = []

        async with broadcasting(cluster, simulation, handler=partial(handle, seen), ordered=True):
            await until_count(seen, 4)
        assert seen == [b"m0", b"m0", b"m1", b"m2"]
        assert cluster.broker.requests(LockBatchMq) == []


@in_loop(simulated)
async def test_nobody_needs_to_be_listed_as_a_member(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 1)
        async with broadcasting(cluster, simulation) as consumer:
            assert await read(consumer, 1) == [b"m0"]
        codes = {int(request.code) for request, _ in cluster.broker.received}
        assert RequestCode.GET_CONSUMER_LIST_BY_GROUP not in codes


@in_loop(simulated)
async def test_a_second_of_a_group_gets_its_own_name_and_file_and_a_restart_finds_both(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 3)
        async with (
            broadcasting(cluster, simulation, trace=True) as one,
            broadcasting(cluster, simulation, trace=True) as other,
            broadcasting(cluster, simulation, group="others") as apart,
        ):
            assert [one.client_id, other.client_id, apart.client_id] == [
                "127.0.0.1@DEFAULT",
                "127.0.0.1@DEFAULT#2",
                "127.0.0.1@DEFAULT",
            ]
            await read(one, 2)
            await read(other, 1)
        async with (
            broadcasting(cluster, simulation) as one,
            broadcasting(cluster, simulation) as other,
        ):
            assert await read(one, 1) == [b"m2"]
            assert await read(other, 2) == [b"m1", b"m2"]


@in_loop(simulated)
async def test_the_first_name_that_is_free_is_the_next_ones(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        one = broadcasting(cluster, simulation)
        await one.start()
        async with broadcasting(cluster, simulation):
            await one.close()
            async with broadcasting(cluster, simulation) as next_one:
                assert next_one.client_id == "127.0.0.1@DEFAULT"


@in_loop(simulated)
async def test_a_second_of_a_group_under_one_given_name_is_refused_and_so_is_a_bad_name(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        async with broadcasting(cluster, simulation, instance_name="till"):
            with pytest.raises(
                ConfigError,
                match=r"already has a consumer .* under instance_name='till'; pass another",
            ):
                await broadcasting(cluster, simulation, instance_name="till").start()
        with pytest.raises(ConfigError, match="name of the directory"):
            await broadcasting(cluster, simulation, instance_name="../x").start()


@in_loop(simulated)
async def test_a_disk_that_fails_for_a_while_keeps_nobody_from_consuming(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        fill(cluster, 2)
        async with broadcasting(cluster, simulation) as consumer:
            simulation.disk("client").fail("rename", times=2)
            stream = aiter(consumer)
            await anext(stream)
            await anext(stream)
            await asyncio.sleep(30)
            disk = simulation.disk("client").mounted
            assert disk is not None
            assert b":1" in (disk.read_file(FILE) or b"")
            del stream


def test_unusable_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="offsets_directory is for broadcast=True"):
        PushConsumer("127.0.0.1:9876", group="g", offsets_directory="/tmp")
