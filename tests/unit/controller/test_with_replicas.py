"""Our controller and our replicas together, on the simulated loop."""

from __future__ import annotations

import asyncio
import errno
from unittest.mock import patch

from tests.loops import in_loop
from tests.unit.broker.replica.groups import CONTROLLER, HOSTS, eventually_routed
from tests.unit.broker.talking import Client
from tests.unit.controller.controlled_group import ControlledGroup, with_controller

from turbopump.broker.table_records.table_records import TableRecords
from turbopump.client.producer import Producer
from turbopump.protocol.requests.offsets import UpdateConsumerOffset


@in_loop(with_controller)
async def test_a_killed_master_is_replaced_and_returns_as_a_slave(
    group: ControlledGroup, /
) -> None:
    first = await group.master_other_than()
    talk = group.client(first)
    await talk.create("T")
    await group.until_in_sync(3)
    await talk.send(b"before")
    began = group.simulation.loop.time()
    group.kill(first.host)
    second = await group.master_other_than(first.host)
    assert group.simulation.loop.time() - began < 3.0
    await group.client(second).send(b"after")
    await group.replica(first.host)
    await group.until_slave(first.host)
    await group.until_in_sync(3)
    assert await group.client(second).all_bodies() == [b"before", b"after"]


@in_loop(with_controller)
async def test_a_replica_that_cannot_open_as_the_master_waits_for_another_election(
    group: ControlledGroup, /
) -> None:
    """Its epoch is on the disk already when the disk fails for a moment, and is used once only."""
    first = await group.master_other_than()
    await group.until_in_sync(3)
    opened = TableRecords.open
    failures = list[OSError]()

    def fails_once(records: TableRecords) -> None:
        if not failures:
            failures.append(OSError(errno.EIO, "the disk fails for a moment"))
            raise failures[0]
        opened(records)

    with patch.object(TableRecords, "open", fails_once):
        group.kill(first.host)
        second = await group.master_other_than(first.host)
    assert failures
    await group.client(second).create("T")


@in_loop(with_controller)
async def test_a_master_that_loses_its_power_unnoticed_is_not_master_again_at_once(
    group: ControlledGroup, /
) -> None:
    first = await group.master_other_than()
    talk = group.client(first)
    await talk.create("T")
    await group.until_in_sync(3)
    sent = [b"%d" % number for number in range(20)]
    for body in sent:
        await talk.send(body)
    group.kill(first.host, power_cut=True)
    await group.replica(first.host)
    second = await group.master_other_than()
    group_now = group.decides.groups.get("broker-a")
    assert group_now is not None
    assert group_now.master_epoch > 1
    await group.until_in_sync(3)
    assert await group.client(second).all_bodies() == sent


@in_loop(with_controller)
async def test_a_stopped_master_hands_over_and_no_send_fails(group: ControlledGroup, /) -> None:
    first = await group.master_other_than()
    talk = group.client(first)
    await talk.create("T")
    await group.until_in_sync(3)
    stopping = asyncio.ensure_future(group.stop(first.host))
    sent = [b"%d" % number for number in range(40)]
    for body in sent:
        await talk.send(body)
        await asyncio.sleep(0.02)
    await stopping
    second = await group.master_other_than(first.host)
    assert await group.client(second).all_bodies() == sent


@in_loop(with_controller)
async def test_a_stopped_master_writes_nothing_that_its_successor_lacks(
    group: ControlledGroup, /
) -> None:
    """Consumers commit all the time. A record of their offsets that came after the election would
    make the third replica cut its log, and nobody could confirm sends meanwhile."""
    first = await group.master_other_than()
    talk = group.client(first)
    await talk.create("T")
    await talk.join("consumer")
    await talk.send(b"x")
    await group.until_in_sync(3)
    committing = asyncio.ensure_future(_commit_often(group.client(first)))
    await asyncio.sleep(0.5)
    written = first.store.log
    slaves = [one.broker for host, one in group.replicas.items() if host != first.host]
    await group.stop(first.host)
    committing.cancel()
    second = await group.master_other_than(first.host)
    await group.until_in_sync(2)
    epoch = second.group_replication.epochs()[-1]
    assert written.end <= epoch.start_offset
    brokers = [one.broker for one in group.replicas.values()]
    assert sum(one in slaves for one in brokers) == 1  # only the successor was opened again


@in_loop(with_controller)
async def test_a_producer_that_sends_without_a_pause_gets_over_a_stop_of_its_master(
    group: ControlledGroup, /
) -> None:
    """Its route is older than the election until the stopping broker refuses a send."""
    first = await group.master_other_than()
    await group.client(first).create("T")
    await group.until_in_sync(3)
    await eventually_routed(group, 0, first.address)
    async with Producer("10.0.0.9:9876", group="p") as producer:
        await producer.send("T", b"first")
        stopping = asyncio.ensure_future(group.stop(first.host))
        sends = [asyncio.ensure_future(_send_until(producer, stopping)) for _ in range(5)]
        await asyncio.gather(*sends)
        await stopping
        await producer.send("T", b"last")


async def _send_until(producer: Producer, over: asyncio.Future[None]) -> None:
    while not over.done():
        await producer.send("T", b"x")
        await asyncio.sleep(0.001)


async def _commit_often(client: Client) -> None:
    offset = 0
    while True:
        offset = 1 - offset
        commit = UpdateConsumerOffset(
            consumer_group="g", topic="T", queue_id=0, commit_offset=offset
        )
        await client.remoting.send_oneway(client.address, commit)
        await asyncio.sleep(0.003)


@in_loop(with_controller)
async def test_sends_go_on_while_the_controller_is_away(group: ControlledGroup, /) -> None:
    first = await group.master_other_than()
    talk = group.client(first)
    await talk.create("T")
    await group.until_in_sync(3)
    group.kill(CONTROLLER, power_cut=True)
    await talk.send(b"without a controller")
    await asyncio.sleep(5.0)
    await talk.send(b"still without")
    await group.start_controller()
    await asyncio.sleep(5.0)
    found = group.decides.groups.get("broker-a")
    assert found is not None
    assert (found.master, found.master_epoch) == (group.id_of(first.host), 1)
    group.kill(first.host)
    second = await group.master_other_than(first.host)
    assert await group.client(second).all_bodies() == [b"without a controller", b"still without"]


@in_loop(with_controller)
async def test_a_master_that_dies_before_it_has_served_does_not_take_the_group_with_it(
    group: ControlledGroup, /
) -> None:
    first = await group.master_other_than()
    talk = group.client(first)
    await talk.create("T")
    await group.until_in_sync(3)
    await talk.send(b"before")
    hosts = {group.id_of(host): host for host in HOSTS}
    group.kill(first.host)
    second = hosts[await group.until_elected(2)]
    group.kill(second)
    third = hosts[await group.until_elected(3)]
    assert len({first.host, second, third}) == 3
    await group.replica(first.host)
    await group.until_in_sync(2)
    broker = await group.master_other_than()
    assert broker.host == third
    assert await group.client(broker).all_bodies() == [b"before"]
