"""Readers go to a slave when it is suggested, or when the master is gone, and come back."""

import asyncio
from functools import partial

from tests.loops import CLIENT, in_loop
from tests.unit.broker.replicas import (
    MASTER,
    NAMESRV,
    SLAVE,
    SYNC,
    Replicas,
    eventually,
    same_logs,
    until_joined,
    until_offset,
    until_stored,
    until_topic,
    with_replicas,
)
from tests.unit.broker.talking import pull
from tests.waits import has_count

from turbopump.client.push_consumer import ConsumeFrom, Delivery, PushConsumer
from turbopump.config.broker_config import BrokerRole
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.groups import CreateGroup, SubscriptionGroupConfig

OTHER_MASTER = "10.0.2.1"


async def read_all(replicas: Replicas, taken: list[bytes]) -> None:
    """A push consumer on the story's own host, until it is cancelled."""
    async with PushConsumer(
        f"{NAMESRV}:9876",
        group="readers",
        topic="T",
        consume_from=ConsumeFrom.FIRST,
        local_ip=CLIENT,
        clock=replicas.simulation.clock(CLIENT),
        random=replicas.simulation.source("reader"),
    ) as reader:
        async for message in reader:
            body = message.body
            taken.append(body)


@in_loop(with_replicas)
async def test_a_reader_of_a_backlog_is_told_to_ask_the_slave_and_one_at_the_end_the_master(
    replicas: Replicas, /
) -> None:
    await replicas.master(slave_read_enable=True, access_message_in_memory_max_ratio=0)
    slave = await replicas.slave()
    client = replicas.client_of(MASTER)
    await client.create()
    for number in range(5):
        await client.send(b"%d" % number)
    group = SubscriptionGroupConfig(group_name="far", which_broker_when_consume_slowly=3)
    assert (await client.code(CreateGroup(), fastjson.encode(group)))[0] == 0
    _, header = await client.pull(0)
    assert header.suggest_which_broker_id == 1
    _, header = await client.pull(0, consumer_group="far")
    assert header.suggest_which_broker_id == 3
    await until_stored(slave, "T", 5)
    await until_topic(slave, "T")
    _, header = await replicas.client_of(SLAVE).pull(0)
    assert header.suggest_which_broker_id == 0


@in_loop(with_replicas)
async def test_an_offset_that_the_slave_does_not_have_yet_is_kept_and_waited_for(
    replicas: Replicas, /
) -> None:
    master = await replicas.master()
    slave = await replicas.slave()
    client = replicas.client_of(MASTER)
    await client.create()
    await client.send(b"0")
    await same_logs(master, slave)
    await until_topic(slave, "T")
    reader = replicas.client_of(SLAVE)
    answer, header = await reader.pull(2)
    assert (answer.code, header.next_begin_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 2)
    answer, header = await reader.pull(9, topic="T", queue_id=0)
    assert (answer.code, header.next_begin_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 9)
    held = reader.ask(pull(2, suspend_ms=5000))
    for number in range(1, 3):
        await client.send(b"%d" % number)
    answer = await held
    assert answer.code == ResponseCode.SUCCESS


@in_loop(with_replicas)
async def test_who_has_read_at_the_slave_what_the_master_does_not_show_yet_is_not_sent_back(
    replicas: Replicas, /
) -> None:
    master = await replicas.master(**SYNC)
    slave = await replicas.slave()
    client, network = replicas.client_of(MASTER), replicas.simulation.network
    await client.create()
    await until_joined(master)
    network.cut(SLAVE, MASTER)  # no acknowledgement comes
    sending = asyncio.ensure_future(client.send(b"0"))
    await until_stored(slave, "T", 1)
    assert master.store.max_offset("T", 0) == 0
    answer, header = await client.pull(1)
    assert (answer.code, header.next_begin_offset) == (ResponseCode.PULL_NOT_FOUND, 1)
    held = asyncio.ensure_future(client.messages(1, suspend_ms=5000))
    network.heal(SLAVE, MASTER)
    await sending
    await client.send(b"1")
    assert [message.body for message in await held] == [b"1"]


@in_loop(with_replicas)
async def test_a_consumer_goes_on_at_the_slave_when_the_master_is_gone_and_comes_back(
    replicas: Replicas, /
) -> None:
    master = await replicas.master()
    slave = await replicas.slave()
    client = replicas.client_of(MASTER)
    await client.create()
    for number in range(10):
        await client.send(b"%d" % number)
    await same_logs(master, slave)
    await until_topic(slave, "T")
    replicas.kill(MASTER)
    taken: list[bytes] = []
    reading = asyncio.create_task(read_all(replicas, taken))
    await eventually(has_count, taken, 10, seconds=120)
    await until_offset(slave, "readers", "T", 10, seconds=60)
    await replicas.master()
    again = replicas.client_of(MASTER)
    await again.send(b"10")
    await eventually(has_count, taken, 11, seconds=120)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert taken == [b"%d" % number for number in range(11)]


async def handle(seen: list[tuple[str, int]], delivery: Delivery) -> None:
    seen.append((delivery.broker_name, delivery.reconsume_times))
    if len(seen) == 1:
        raise ValueError("not now")


@in_loop(with_replicas)
async def test_a_message_that_fails_while_its_master_is_gone_comes_again_from_another_broker(
    replicas: Replicas, /
) -> None:
    master, slave = await replicas.master(), await replicas.slave()
    await replicas.broker(OTHER_MASTER, BrokerRole.ASYNC_MASTER, broker_name="broker-b")
    client = replicas.client_of(MASTER)
    await client.create()
    await replicas.client_of(OTHER_MASTER).create()
    await client.send(b"fails at first")
    await same_logs(master, slave)
    await until_topic(slave, "T")
    replicas.kill(MASTER)
    seen: list[tuple[str, int]] = []

    async with PushConsumer(
        f"{NAMESRV}:9876",
        group="readers",
        topic="T",
        consume_from=ConsumeFrom.FIRST,
        handler=partial(handle, seen),
        local_ip=CLIENT,
        clock=replicas.simulation.clock(CLIENT),
        random=replicas.simulation.source("reader"),
    ):
        await eventually(has_count, seen, 2, seconds=120)
    assert seen == [("broker-a", 0), ("broker-b", 1)]
