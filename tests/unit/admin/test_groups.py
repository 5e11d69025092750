"""``admin.groups``, against a broker of ours."""

from __future__ import annotations

import pytest
from tests.loops import in_loop
from tests.unit.admin.admins import with_admin, with_two_brokers

from turbopump import ClientError, ConsumeFrom, PushConsumer
from turbopump.admin.admin import Admin
from turbopump.protocol import fastjson
from turbopump.protocol.requests.assignment import MessageRequestMode, MessageRequestModeTable
from turbopump.protocol.requests.clients import ConsumeType, MessageModel
from turbopump.protocol.requests.groups import SubscriptionGroupConfig
from turbopump.testing import RunningBroker


@in_loop(with_admin)
async def test_a_group_is_created_once_altered_and_deleted(
    broker: RunningBroker, admin: Admin, /
) -> None:
    (made,) = (await admin.groups.create("billing", retry_max_times=3)).values()
    assert (made.group_name, made.retry_max_times) == ("billing", 3)
    (same,) = (await admin.groups.create("billing", retry_max_times=9)).values()
    assert same == made
    (changed,) = (await admin.groups.alter("billing", consume_timeout_minute=1)).values()
    assert (changed.retry_max_times, changed.consume_timeout_minute) == (3, 1)
    assert await admin.groups.names() == ["billing"]
    assert "CID_RMQ_SYS_TRANS" in await admin.groups.names(system=True)
    assert await admin.groups.all_settings("broker-test") == {"billing": changed}
    assert await admin.groups.delete("billing") == [broker.broker_address]
    assert await admin.groups.settings("billing") == {}
    with pytest.raises(ClientError, match="no broker knows the group billing"):
        await admin.groups.alter("billing", retry_max_times=1)


@in_loop(with_admin)
async def test_a_group_takes_its_offsets_along_if_wanted(
    broker: RunningBroker, admin: Admin, /
) -> None:
    await admin.topics.create("orders", read_queues=1, write_queues=1)
    for offsets in (False, True):
        await admin.groups.create("billing")
        await admin.offsets.reset_silently("billing", "orders", "begin")
        assert await admin.groups.topics("billing") == ["orders"]
        await admin.groups.delete("billing", offsets=offsets)
        assert await admin.groups.topics("billing") == ([] if offsets else ["orders"])


@in_loop(with_admin)
async def test_many_groups_are_created_with_one_request(
    broker: RunningBroker, admin: Admin, /
) -> None:
    wanted = [SubscriptionGroupConfig(group_name=f"g{number}") for number in range(20)]
    assert await admin.groups.put_all(wanted) == [broker.broker_address]
    found = await admin.groups.all_settings("broker-test")
    assert found == {one.group_name: one for one in wanted}


@in_loop(with_admin)
async def test_members_and_subscriptions_are_those_of_the_running_consumers(
    broker: RunningBroker, admin: Admin, /
) -> None:
    await admin.topics.create("orders")
    assert (await admin.groups.members("billing")).members == []
    assert await admin.groups.subscription("billing", "orders") is None
    async with PushConsumer(
        broker.namesrv,
        group="billing",
        topic="orders",
        tags="new || old",
        consume_from=ConsumeFrom.FIRST,
    ) as consumer:
        found = await admin.groups.members("billing")
        (member,) = found.members
        assert (member.client_id, member.language) == (consumer.client_id, "PYTHON")
        assert member.address.startswith("127.0.0.1:")
        assert found.consume_type is ConsumeType.CONSUME_PASSIVELY
        assert found.message_model is MessageModel.CLUSTERING
        assert found.subscriptions["orders"].sub_string == "new || old"
        assert found == await admin.clients.consumers("billing")
        subscription = await admin.groups.subscription("billing", "orders")
        assert subscription is not None
        assert set(subscription.tags_set) == {"new", "old"}


@in_loop(with_admin)
async def test_a_group_is_forbidden_a_topic_and_allowed_again(
    broker: RunningBroker, admin: Admin, /
) -> None:
    await admin.topics.create("orders")
    await admin.groups.create("billing")
    assert await admin.groups.may_read("billing", "orders")
    await admin.groups.allow_reading("billing", "orders", False)
    assert not await admin.groups.may_read("billing", "orders")
    await admin.groups.allow_reading("billing", "orders", True)
    assert await admin.groups.may_read("billing", "orders")


@in_loop(with_admin)
async def test_the_mode_of_a_group_is_stored(broker: RunningBroker, admin: Admin, /) -> None:
    await admin.topics.create("orders")
    done = await admin.groups.set_mode("billing", "orders", MessageRequestMode.POP, pop_share=2)
    assert done == [broker.broker_address]
    saved = (broker.directory / "config" / "messageRequestMode.json").read_bytes()
    table = fastjson.decode(saved, MessageRequestModeTable).message_request_mode_map
    mode = table["orders"]["billing"]
    assert (mode.mode, mode.pop_share_queue_num) == (MessageRequestMode.POP, 2)


@in_loop(with_two_brokers)
async def test_a_consumer_of_two_brokers_is_one_member(admin: Admin, /) -> None:
    await admin.topics.create("orders", read_queues=1, write_queues=1)
    namesrv = admin.servers.name_servers[0]
    async with PushConsumer(
        namesrv, group="billing", topic="orders", consume_from=ConsumeFrom.FIRST
    ):
        (member,) = (await admin.groups.members("billing")).members
        info = await admin.clients.running_info("billing", member.client_id)
        assert {queue.broker_name for queue in info.mq_table if queue.topic == "orders"} == {
            "broker-test",
            "broker-two",
        }
    await admin.offsets.reset("billing", "orders", "begin")
    assert len((await admin.groups.lag("billing", "orders")).queues) == 2
    assert len((await admin.groups.lag("billing", "orders", broker="broker-two")).queues) == 1
    changed = await admin.groups.alter("billing", retry_max_times=2)
    assert [settings.retry_max_times for settings in changed.values()] == [2, 2]
