"""``admin.topics``, against a broker of ours."""

from __future__ import annotations

import pytest
from tests.loops import in_loop
from tests.unit.admin.admins import with_admin, with_two_brokers

from turbopump import ClientError, Producer, PullConsumer, ResponseError, RouteNotFoundError
from turbopump.admin.admin import Admin
from turbopump.message.message import MessageQueue
from turbopump.protocol.requests.topics import TopicConfig
from turbopump.testing import RunningBroker


@in_loop(with_admin)
async def test_a_topic_is_created_once_and_listed(broker: RunningBroker, admin: Admin, /) -> None:
    made = await admin.topics.create("orders", read_queues=4, write_queues=2)
    (settings,) = made.values()
    assert list(made) == [broker.broker_address]
    assert (settings.read_queue_nums, settings.write_queue_nums, settings.perm) == (4, 2, 6)
    assert await admin.topics.create("orders", read_queues=16) == made
    assert await admin.topics.names() == ["orders"]
    assert await admin.topics.names("DefaultCluster") == ["orders"]
    assert {"orders", "broker-test", "DefaultCluster"} <= set(await admin.topics.names(system=True))
    assert list(await admin.topics.all_settings("broker-test")) == ["orders"]
    assert "TBW102" in await admin.topics.all_settings("broker-test", system=True)
    with pytest.raises(ClientError, match="cluster Nope does not exist"):
        await admin.topics.names("Nope")


@in_loop(with_admin)
async def test_a_change_leaves_what_is_not_named(broker: RunningBroker, admin: Admin, /) -> None:
    await admin.topics.create("orders", attributes={"message.type": "FIFO"})
    (changed,) = (await admin.topics.alter("orders", write_queues=2)).values()
    assert (changed.read_queue_nums, changed.write_queue_nums) == (8, 2)
    assert changed.attributes == {"message.type": "FIFO"}
    (changed,) = (await admin.topics.alter("orders", perm=4, order=True)).values()
    assert (changed.perm, changed.order, changed.write_queue_nums) == (4, True, 2)
    (changed,) = (await admin.topics.alter("orders", attributes={"message.type": None})).values()
    assert changed.attributes == {}
    with pytest.raises(RouteNotFoundError, match=r"unknown topic oders \(did you mean orders\?\)"):
        await admin.topics.alter("oders", perm=6)
    with pytest.raises(ResponseError):
        await admin.topics.alter("orders", attributes={"message.type": "NOTHING"})


@in_loop(with_admin)
async def test_queues_and_groups_that_a_change_would_hide_are_shown(
    broker: RunningBroker, admin: Admin, /
) -> None:
    await admin.topics.create("orders", read_queues=2, write_queues=2)
    one = MessageQueue("orders", "broker-test", 1)
    async with Producer(broker.namesrv) as producer:
        for number in range(3):
            await producer.send("orders", b"%d" % number, queue=one)
    async with PullConsumer(broker.namesrv, group="billing") as consumer:
        await consumer.commit(one, 1)
    zero, queue = await admin.topics.queues("orders")
    assert (zero.first, zero.end, zero.last_stored_ms) == (0, 0, 0)
    assert (queue.broker, queue.queue_id, queue.messages) == ("broker-test", 1, 3)
    assert queue.last_stored_ms > 1_700_000_000_000
    (hidden,) = await admin.topics.hidden_by("orders", 1)
    assert (hidden.queue_id, hidden.messages) == (1, 3)
    assert [(group.group, group.behind) for group in hidden.groups] == [("billing", 2)]
    assert await admin.topics.hidden_by("orders", 2) == []
    assert await admin.topics.groups("orders") == ["billing"]


@in_loop(with_admin)
async def test_a_route_has_the_brokers_and_their_addresses(
    broker: RunningBroker, admin: Admin, /
) -> None:
    await admin.topics.create("orders", read_queues=3, write_queues=3)
    (found,) = await admin.topics.route("orders")
    assert (found.broker, found.cluster) == ("broker-test", "DefaultCluster")
    assert (found.read_queues, found.write_queues, found.perm) == (3, 3, 6)
    assert found.addresses == {0: broker.broker_address}
    assert await admin.topics.clusters("orders") == ["DefaultCluster"]
    for ask in (admin.topics.route, admin.topics.queues, admin.topics.clusters):
        with pytest.raises(RouteNotFoundError, match="unknown topic missing"):
            await ask("missing")


@in_loop(with_admin)
async def test_many_topics_are_created_with_one_request(
    broker: RunningBroker, admin: Admin, /
) -> None:
    wanted = [
        TopicConfig(
            topic_name=f"t{number}",
            read_queue_nums=1,
            write_queue_nums=1,
            attributes={"message.type": "DELAY"},
        )
        for number in range(20)
    ]
    assert await admin.topics.put_all(wanted, broker="broker-test") == [broker.broker_address]
    found = await admin.topics.all_settings("broker-test")
    assert found == {one.topic_name: one for one in wanted}


@in_loop(with_admin)
async def test_a_deleted_topic_is_gone_everywhere(broker: RunningBroker, admin: Admin, /) -> None:
    await admin.topics.create("orders")
    gone = await admin.topics.delete("orders")
    assert gone.brokers == [broker.broker_address]
    assert gone.name_servers == {broker.namesrv: None}
    assert await admin.topics.names() == []
    with pytest.raises(RouteNotFoundError):
        await admin.topics.delete("orders")
    with pytest.raises(ClientError, match="RocketMQ's own"):
        await admin.topics.delete("TBW102")


@in_loop(with_admin)
async def test_a_topic_goes_from_one_broker_and_its_route_alone(
    broker: RunningBroker, admin: Admin, /
) -> None:
    await admin.topics.create("orders")
    await admin.topics.delete_on_broker("orders", broker.broker_address)
    assert await admin.topics.settings("orders") == {}
    assert await admin.topics.delete_routes("orders") == {broker.namesrv: None}
    async with Admin([broker.namesrv, "127.0.0.1:1"]) as wide:
        failures = await wide.topics.delete_routes("orders")
    assert failures[broker.namesrv] is None
    assert "127.0.0.1:1" in str(failures["127.0.0.1:1"])


@in_loop(with_admin)
async def test_brokers_have_names_and_addresses(broker: RunningBroker, admin: Admin, /) -> None:
    await admin.topics.create("orders", broker="broker-test")
    for name in ("broker-test", "broker-test:0", broker.broker_address):
        assert list(await admin.topics.settings("orders", broker=name)) == [broker.broker_address]
    with pytest.raises(ClientError, match=r"no broker brokr-test .*did you mean broker-test"):
        await admin.topics.settings("orders", broker="brokr-test")


@in_loop(with_two_brokers)
async def test_a_topic_is_on_all_brokers_or_on_one(admin: Admin, /) -> None:
    await admin.topics.create("orders", read_queues=1, write_queues=1)
    await admin.topics.create("single", broker="broker-two")
    both = [(one.broker, one.queue_id) for one in await admin.topics.queues("orders")]
    assert both == [("broker-test", 0), ("broker-two", 0)]
    assert [one.broker for one in await admin.topics.route("single")] == ["broker-two"]
    made = await admin.topics.create("single", read_queues=2)
    assert sorted(settings.read_queue_nums for settings in made.values()) == [2, 8]
    one, two = sorted(made)
    with pytest.raises(ClientError, match=f"not changed: {one}: .*; {two}: .*Changed: none"):
        await admin.topics.alter("orders", attributes={"no.such": "x"})
    assert len((await admin.topics.delete("orders")).brokers) == 2
