"""The tables that a slave copies before the log, and what becomes of changes that were never
confirmed."""

import asyncio

from tests.loops import in_loop
from tests.unit.broker.replica.groups import HOSTS, Group, with_empty_group, with_group
from tests.unit.broker.replicas import eventually, same_logs, until_offset

from turbopump.broker.broker import Broker
from turbopump.broker.topics import plain_topic
from turbopump.config.broker_config import BrokerRole
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.offsets import UpdateConsumerOffset
from turbopump.protocol.requests.topics import DeleteTopic


def slave_of(group: Group, host: str) -> Broker:
    broker = group.replicas[host].broker
    assert broker is not None
    return broker


async def commit(group: Group, master: Broker, offset: int) -> None:
    client = group.client(master)
    await client.join("c1")
    answer = await client.ask(
        UpdateConsumerOffset(consumer_group="g", topic="T", queue_id=0, commit_offset=offset)
    )
    assert answer.code == ResponseCode.SUCCESS, answer


@in_loop(with_group)
async def test_a_change_that_no_other_replica_has_goes_with_the_end_of_the_log(
    group: Group, /
) -> None:
    first = await group.master_other_than()
    await group.client(first).create("T")
    group.cut(first.host)
    first.tables.topics.put(plain_topic("alone", 1))
    first.tables.topics.delete("T")
    await asyncio.sleep(0.1)
    group.controller.elect_without(first.host)

    second = await group.master_other_than(first.host)
    group.mend(first.host)
    await group.until_slave(first.host)
    await same_logs(second, slave_of(group, first.host))
    topics = slave_of(group, first.host).tables.topics
    assert topics.find("alone") is None
    assert topics.find("T") is not None


@in_loop(with_empty_group)
async def test_a_new_replica_has_all_tables_on_its_disk_before_it_counts(group: Group, /) -> None:
    """Old records may be deleted with the log, so the copied tables must survive a kill."""
    await group.start_controller()
    for host in HOSTS[:2]:
        await group.replica(host)
    master = await group.master_other_than()
    client = group.client(master)
    await client.create("T")
    await client.send(b"1")
    await commit(group, master, 1)
    last = HOSTS[2]
    await group.replica(last)
    await group.until_slave(last)
    group.kill(last)
    alone = await group.broker(last, BrokerRole.ASYNC_MASTER)  # it applies no records
    assert alone.tables.topics.find("T") is not None
    assert alone.tables.groups.get("g") is not None
    assert alone.tables.offsets.find("g", "T", 0) == 1


@in_loop(with_group)
async def test_a_replica_that_was_away_gets_what_was_deleted_and_made_again(
    group: Group, /
) -> None:
    master = await group.master_other_than()
    away = next(host for host in HOSTS if host != master.host)
    client = group.client(master)
    for topic in ("T", "gone"):
        await client.create(topic)
        for number in range(3):
            await client.send(b"%d" % number, topic=topic)
    await group.until_slave(away)
    await same_logs(master, slave_of(group, away))
    group.kill(away)
    for topic in ("T", "gone"):
        await client.send(b"old", topic=topic)
        assert (await client.code(DeleteTopic(topic=topic)))[0] == ResponseCode.SUCCESS
    await client.create("T", queues=2)
    await client.send(b"new")

    group.mend(away)
    await group.replica(away)
    await group.until_slave(away)
    slave = slave_of(group, away)
    await same_logs(master, slave)
    made = slave.tables.topics.find("T")
    assert made is not None
    assert made.read_queue_nums == 2
    assert slave.tables.topics.find("gone") is None
    await eventually(lambda: slave.store.max_offset("gone", 0) == 0)
    assert await group.client(slave).all_bodies() == [b"new"]


@in_loop(with_group)
async def test_offsets_of_a_busy_group_come_by_records(group: Group, /) -> None:
    master = await group.master_other_than()
    client = group.client(master)
    await client.create("T")
    for number in range(30):
        await client.send(b"%d" % number)
    for number in range(30):
        await commit(group, master, number)
    for host in HOSTS:
        await group.until_slave(host) if host != master.host else None
        await until_offset(slave_of(group, host), "g", "T", 29, seconds=0.5)
