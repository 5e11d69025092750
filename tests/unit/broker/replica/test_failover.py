"""A controller elects another master when the master dies, and nothing acknowledged is lost."""

import asyncio
from contextlib import suppress

import pytest
from tests.loops import in_loop
from tests.unit.broker.replica.groups import (
    HOSTS,
    Group,
    eventually_routed,
    with_empty_group,
    with_group,
)
from tests.unit.broker.replicas import NAMESRV, eventually, until_mended, until_same_end

from turbopump.admin.cluster import Servers
from turbopump.admin.draining import find_broker, hand_mastership_over
from turbopump.broker.broker import Broker
from turbopump.broker.log_repair import AGAIN_S, Range
from turbopump.broker.replica.role import Part
from turbopump.client.producer import Producer
from turbopump.errors import ConnectionLostError, SendError


@in_loop(with_group)
async def test_after_the_death_of_the_master_both_messages_are_read(group: Group, /) -> None:
    first = await group.master_other_than()
    talk = group.client(first)
    await talk.create("T")
    await talk.send(b"before")
    group.kill(first.host)

    second = await group.master_other_than(first.host)
    talk = group.client(second)
    await talk.send(b"after")
    assert await talk.all_bodies() == [b"before", b"after"]


@in_loop(with_group)
async def test_a_master_that_was_cut_off_does_not_get_its_old_place_at_name_servers(
    group: Group, /
) -> None:
    first = await group.master_other_than()
    await eventually_routed(group, 0, first.address)
    group.cut(first.host)
    group.controller.elect_without(first.host)

    second = await group.master_other_than(first.host)
    await eventually_routed(group, 0, second.address)
    group.mend(first.host)
    await group.until_slave(first.host)
    own_id = group.id_of(first.host)
    await eventually_routed(group, own_id, first.address)
    await eventually_routed(group, 0, second.address)


@in_loop(with_empty_group)
async def test_a_replica_with_a_wrong_controller_says_so_again_and_again(
    group: Group, /, caplog: pytest.LogCaptureFixture
) -> None:
    await group.replica(HOSTS[0], controller_addr="10.0.0.7:9878")
    await asyncio.sleep(65.0)
    lines = [one for one in caplog.messages if one.startswith("no id yet: no controller leads")]
    assert 5 <= len(lines) <= 8
    assert "10.0.0.7:9878" in lines[-1]


@in_loop(with_group)
async def test_a_slave_passes_a_send_on_to_the_master(group: Group, /) -> None:
    master = await group.master_other_than()
    await group.client(master).create("T")
    slave = next(host for host in HOSTS if host != master.host)
    await group.until_slave(slave)
    reply = await group.client_of(slave).send(b"by way of a slave")
    assert reply.queue_offset == 0
    assert await group.client(master).all_bodies() == [b"by way of a slave"]


@in_loop(with_group)
async def test_a_send_that_finds_no_master_waits_for_the_next_one(group: Group, /) -> None:
    master = await group.master_other_than()
    await group.client(master).create("T")
    for host in HOSTS:
        if host != master.host:
            await group.until_slave(host)
    last = [host for host in HOSTS if host != master.host][-1]
    group.kill(master.host)
    reply = await group.client_of(last).send(b"meanwhile")
    assert reply.queue_offset == 0


@in_loop(with_group)
async def test_no_send_fails_while_the_master_is_stopped(group: Group, /) -> None:
    master = await group.master_other_than()
    talk = group.client(master)
    await talk.create("T")
    await group.until_in_sync(3)
    stopping = asyncio.ensure_future(group.stop(master.host))
    sent = [b"%d" % number for number in range(40)]
    for body in sent:
        await talk.send(body)
        await asyncio.sleep(0.02)
    await stopping
    second = await group.master_other_than(master.host)
    assert await group.client(second).all_bodies() == sent


@in_loop(with_group)
async def test_a_restarted_master_is_a_slave_until_it_is_elected_anew(group: Group, /) -> None:
    first = await group.master_other_than()
    await group.client(first).create("T")
    await group.client(first).send(b"before")
    await group.until_in_sync(3)
    group.controller.elects_at_death = False  # nobody notices
    group.kill(first.host)
    await group.replica(first.host)
    second = await group.master_other_than(first.host)
    role = group.replicas[first.host].role
    assert role is not None
    assert (role.part, role.master_epoch, role.floor) == (Part.SLAVE, 2, 2)
    assert await group.client(second).all_bodies() == [b"before"]


@in_loop(with_group)
async def test_a_drain_makes_another_replica_the_master_and_this_one_its_slave(
    group: Group, /
) -> None:
    master = await group.master_other_than()
    await group.client(master).create("T")
    await group.until_in_sync(3)
    await eventually_routed(group, 0, master.address)
    drained = asyncio.Event()
    sending = asyncio.ensure_future(_send_until(group, master.host, drained))
    async with Servers(["10.0.0.9:9876"]) as servers:
        broker = await find_broker(servers, "broker-a")
        assert broker.controller == "10.0.0.8:9878"
        new = await hand_mastership_over(servers, broker)
    drained.set()
    sent = await sending
    await group.until_slave(master.host)
    second = await group.master_other_than(master.host)
    assert second.address == new
    read = await group.client(second).all_bodies()
    assert set(read) >= set(sent)


async def _send_until(group: Group, host: str, over: asyncio.Event) -> list[bytes]:
    """Send to one host without a pause, as a producer with an old route does. A connection that
    ends is renewed."""
    sent = list[bytes]()
    while not over.is_set():
        body = b"%d" % len(sent)
        with suppress(ConnectionLostError):
            await group.client_of(host).send(body)
            sent.append(body)
        await asyncio.sleep(0.02)
    return sent


@in_loop(with_group)
async def test_without_a_name_server_another_master_takes_sends_all_the_same(
    group: Group, /
) -> None:
    first = await group.master_other_than()
    await group.client(first).create("T")
    await group.until_in_sync(3)
    group.kill(NAMESRV, power_cut=True)
    group.kill(first.host)
    second = await group.master_other_than(first.host)
    assert (await group.client(second).send(b"after")).queue_offset == 0


@in_loop(with_group)
async def test_a_producer_is_over_a_master_that_was_cut_off_soon_after_the_election(
    group: Group, /
) -> None:
    first = await group.master_other_than()
    await group.client(first).create("T")
    await group.until_in_sync(3)
    await eventually_routed(group, 0, first.address)
    loop = asyncio.get_running_loop()
    async with Producer("10.0.0.9:9876") as producer:
        await producer.send("T", b"before")
        began = loop.time()
        group.cut(first.host)
        loop.call_later(3.5, group.controller.elect_without, first.host)
        while loop.time() < began + 60:
            with suppress(SendError):
                await producer.send("T", b"after")
                break
        assert loop.time() - began < 4.5
    second = await group.master_other_than(first.host)
    assert b"after" in await group.client(second).all_bodies()


@in_loop(with_group)
async def test_a_slave_asks_a_master_that_comes_back_for_its_damaged_messages_again(
    group: Group, /
) -> None:
    """Nobody could help before, because all had the same damage."""
    master = await group.master_other_than()
    talk = group.client(master)
    await talk.create("T")
    await talk.send(b"damaged")
    hosts = [host for host in HOSTS if host != master.host]
    for host in hosts:
        await group.until_slave(host)
    slave = group.replicas[hosts[0]].broker
    assert slave is not None
    brokers = [one.broker for one in group.replicas.values() if one.broker is not None]
    for broker in brokers:
        await until_same_end(broker, master)
    await eventually(lambda: slave.store.durable.value == slave.store.log.end)
    queue = master.store.queue("T", 0)
    assert queue is not None
    unit = queue.unit(0)
    assert unit is not None
    damaged = Range(unit[0], unit[0] + unit[1])
    for broker in brokers:
        flip_bit_at(broker, damaged.start + 90)  # of the body
    repair = slave.parts.delivering.log_repair
    assert await repair.fetch_and_wait([damaged])
    assert (repair.mended, repair.open_from) == (0, None)
    flip_bit_at(master, damaged.start + 90)
    began = group.simulation.loop.time()
    link = slave.group_replication.slave
    assert link is not None
    link.reconnect()
    await until_mended(slave, 1)
    assert group.simulation.loop.time() - began < AGAIN_S / 4


def flip_bit_at(broker: Broker, offset: int) -> None:
    file = broker.store.log.files.at(offset)
    assert file is not None
    file.buffer[offset - file.start] ^= 1
