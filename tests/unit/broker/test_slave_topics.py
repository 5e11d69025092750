"""A slave serves what its log holds, also of a topic that its tables do not have yet; what was
deleted or forbidden at the master wins."""

import pytest
from tests.loops import in_loop
from tests.unit.broker.replicas import (
    MASTER,
    SECOND_SLAVE,
    SLAVE,
    SYNC,
    Replicas,
    a_round_later,
    same_logs,
    until_joined,
    until_stored,
    until_topic,
    with_replicas,
)
from tests.unit.broker.talking import Client

from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerRole
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.protocol.requests.topics import DeleteTopic

SLOW = {"ha_flow_control_enable": True, "max_ha_transfer_byte_in_second": 20_000}
"""The log takes seconds to a slave, and tables come before it."""


async def send_new(client: Client, body: bytes, queue_id: int = 0, queues: int = 4) -> None:
    """Send to a topic that need not exist."""
    request = SendMessageV2(
        topic="T", queue_id=queue_id, default_topic="TBW102", default_topic_queue_nums=queues
    )
    assert (await client.code(request, body))[0] == ResponseCode.SUCCESS


async def in_sync(replicas: Replicas) -> Client:
    """A client of a master that waits for its slave, which has copied the tables."""
    await until_joined(replicas.brokers[MASTER])
    await a_round_later(replicas.brokers[SLAVE])
    return replicas.client_of(MASTER)


async def read(replicas: Replicas, host: str = SLAVE) -> list[bytes]:
    """All messages that the slave, or who was it, gives of the topic."""
    client = replicas.client_of(host)
    return [body for one in range(4) for body in await client.all_bodies(queue_id=one)]


async def promote(replicas: Replicas) -> Broker:
    """Make the slave a master."""
    await replicas.stop(SLAVE)
    return await replicas.broker(SLAVE, BrokerRole.ASYNC_MASTER)


@in_loop(with_replicas)
async def test_a_slave_serves_a_topic_as_soon_as_it_has_a_message_of_it(
    replicas: Replicas, /
) -> None:
    await replicas.master(**SYNC)
    slave = await replicas.slave()
    client = await in_sync(replicas)
    for number in range(100):
        await send_new(client, b"%d" % number, number % 4)
    replicas.kill(MASTER)
    wanted = {b"%d" % number for number in range(100)}
    topic = slave.tables.topics.find("T")
    assert topic is not None
    assert set(await read(replicas)) == wanted
    await promote(replicas)
    assert set(await read(replicas)) == wanted


@in_loop(with_replicas)
async def test_a_slave_serves_the_new_queues_of_a_topic_that_has_become_wider(
    replicas: Replicas, /
) -> None:
    await replicas.master(**SYNC)
    await replicas.slave()
    client = await in_sync(replicas)
    await client.create(queues=1)
    await a_round_later(replicas.brokers[SLAVE])
    await client.create(queues=12)
    await client.send(b"far", queue_id=11)
    replicas.kill(MASTER)
    assert await replicas.client_of(SLAVE).all_bodies(queue_id=11) == [b"far"]
    await promote(replicas)
    assert await replicas.client_of(SLAVE).all_bodies(queue_id=11) == [b"far"]


@pytest.mark.parametrize("restarted", [False, True])
@in_loop(with_replicas)
async def test_entries_of_a_deleted_topic_do_not_bring_it_back(
    replicas: Replicas, /, restarted: bool
) -> None:
    """The deletion is known here before the entries."""
    master = await replicas.master(**SLOW)
    client = replicas.client_of(MASTER)
    for number in range(50):
        await send_new(client, b"%d" % number * 500, number % 4)
    assert (await client.code(DeleteTopic(topic="T")))[0] == 0
    await client.create("other")
    slave = await replicas.slave()
    await until_topic(slave, "other")
    assert slave.store.log.end < master.store.log.end, "the rest of the log is on its way"
    if restarted:
        await replicas.stop(SLAVE)
        slave = await replicas.slave()
    await same_logs(master, slave)
    await a_round_later(slave)
    assert slave.tables.topics.find("T") is None
    assert slave.store.max_offset("T", 0) == master.store.max_offset("T", 0) == 0
    await replicas.stop(SLAVE)
    slave = await replicas.slave()
    assert slave.tables.topics.find("T") is None
    replicas.kill(MASTER)
    promoted = await promote(replicas)
    assert promoted.tables.topics.find("T") is None


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("lagging", [False, True])
@in_loop(with_replicas)
async def test_a_topic_made_again_has_only_its_new_messages_at_the_slave(
    replicas: Replicas, /, lagging: bool, wide: bool
) -> None:
    """``wide``: all queues have a message again; else one has, and the others are empty."""
    slow = SLOW if lagging else {}
    master = await replicas.master(**slow)
    slave = await replicas.slave()
    client = replicas.client_of(MASTER)
    for number in range(50):
        await send_new(client, b"%d" % number * 500, number % 4)
    if not lagging:
        await same_logs(master, slave)
        await a_round_later(slave)
    assert (await client.code(DeleteTopic(topic="T")))[0] == 0
    for queue_id in range(4 if wide else 1):
        await send_new(client, b"new %d" % queue_id, queue_id)
    await same_logs(master, slave)
    await a_round_later(slave)
    wanted = [b"new %d" % queue_id for queue_id in range(4 if wide else 1)]
    assert await read(replicas) == wanted
    replicas.kill(MASTER)
    promoted = await promote(replicas)
    assert await read(replicas) == wanted
    second = await replicas.slave(SECOND_SLAVE)
    await same_logs(promoted, second)
    await a_round_later(second)
    assert await read(replicas, host=SECOND_SLAVE) == wanted


@in_loop(with_replicas)
async def test_a_topic_made_again_is_served_though_the_master_was_killed_at_once(
    replicas: Replicas, /
) -> None:
    await replicas.master(**SYNC)
    slave = await replicas.slave()
    client = await in_sync(replicas)
    for number in range(4):
        await send_new(client, b"old", number)
    await a_round_later(slave)
    assert (await client.code(DeleteTopic(topic="T")))[0] == 0
    await a_round_later(slave)
    assert slave.tables.topics.find("T") is None
    await send_new(client, b"new")
    replicas.kill(MASTER)
    assert await read(replicas) == [b"new"]
    await promote(replicas)
    assert await read(replicas) == [b"new"]


@in_loop(with_replicas)
async def test_what_an_operator_forbade_stays_forbidden_whatever_the_log_brings(
    replicas: Replicas, /
) -> None:
    master = await replicas.master(**SLOW)
    client = replicas.client_of(MASTER)
    for number in range(50):
        await send_new(client, b"%d" % number * 500, number % 4)
    await client.create(queues=4, perm=2)
    slave = await replicas.slave()
    await until_topic(slave, "T")
    await same_logs(master, slave)
    topic = slave.tables.topics.find("T")
    assert topic is not None
    assert not topic.readable
    await a_round_later(slave)
    assert slave.tables.topics.find("T") == master.tables.topics.find("T")


@in_loop(with_replicas)
async def test_a_topic_that_the_master_does_not_have_is_not_kept(replicas: Replicas, /) -> None:
    """A delayed message may come into a topic that was deleted meanwhile."""
    levels = {"message_delay_level": "1s 5s"}
    master = await replicas.master(**levels)
    slave = await replicas.slave(**levels)
    client = replicas.client_of(MASTER)
    await client.create()
    await client.send(b"late", properties="DELAY\x012\x02")
    assert (await client.code(DeleteTopic(topic="T")))[0] == 0
    await until_stored(master, "T", 1)
    await same_logs(master, slave)
    await a_round_later(slave)
    assert slave.tables.topics.find("T") == master.tables.topics.find("T")
