"""Operations on brokers, on a running broker of ours."""

from __future__ import annotations

import pytest
from tests.loops import in_loop

from turbopump import Producer, PullConsumer
from turbopump.admin.admin import Admin
from turbopump.admin.brokers import BrokerMember
from turbopump.errors import ClientError, ConfigError, RemotingError, ResponseError
from turbopump.testing.broker_in_loop import RunningBroker, running_broker


async def with_a_message(running: RunningBroker, topic: str, group: str) -> None:
    """A topic with one message that a group has not consumed, and one that it has."""
    await running.create_topic(topic)
    async with (
        Producer(running.namesrv) as producer,
        PullConsumer(running.namesrv, group=group) as consumer,
    ):
        for _ in range(2):
            await producer.send(topic, b"x")
        (queue,) = await consumer.queues(topic)
        await consumer.pull(queue, 0)
        await consumer.commit(queue, 1)


@in_loop
async def test_members_are_listed() -> None:
    async with running_broker(broker_name="a") as running, Admin(running.namesrv) as admin:
        (only,) = await admin.brokers.list()
        assert only == BrokerMember("DefaultCluster", "a", 0, running.broker_address)
        assert only.is_master
        assert await admin.brokers.list("DefaultCluster") == (only,)
        with pytest.raises(ClientError, match="cluster C does not exist"):
            await admin.brokers.list("C")


@in_loop
async def test_a_broker_has_a_name_a_replica_number_or_an_address() -> None:
    async with running_broker(broker_name="broker-a") as running, Admin(running.namesrv) as admin:
        for broker in ("broker-a", "broker-a:0", running.broker_address):
            assert (await admin.brokers.figures(broker)).is_active
        with pytest.raises(ClientError, match=r"no broker brokr-a .*did you mean broker-a"):
            await admin.brokers.figures("brokr-a")
        with pytest.raises(ClientError, match="broker broker-a has no replica 1 now; there are: 0"):
            await admin.brokers.figures("broker-a:1")
        with pytest.raises(RemotingError, match=r"127\.0\.0\.1:1:"):  # a port, not a brokerId
            await admin.brokers.figures("127.0.0.1:1")


@in_loop
async def test_figures_follow_the_log() -> None:
    async with running_broker(broker_name="a") as running, Admin(running.namesrv) as admin:
        before = await admin.brokers.figures("a")
        assert (before.messages_put, before.earliest_message_ms) == (0, None)
        await with_a_message(running, "orders", "billing")
        after = await admin.brokers.figures("a")
        assert after.version == "5.3.3"
        assert after.started_ms == before.started_ms
        assert after.earliest_message_ms is not None
        assert after.log_end is not None
        assert after.log_end > (before.log_end or 0)


@in_loop
async def test_a_setting_is_changed_with_its_old_and_new_value() -> None:
    async with running_broker(broker_name="a") as running, Admin(running.namesrv) as admin:
        (change,) = await admin.brokers.change_settings("a", {"fileReservedTime": "48"})
        assert (change.server, change.key) == (running.broker_address, "fileReservedTime")
        assert (change.old, change.new, change.ignored) == ("72", "48", False)
        assert (await admin.brokers.settings("a"))["fileReservedTime"] == "48"


@in_loop
async def test_a_refused_change_changes_no_setting() -> None:
    async with running_broker(broker_name="a") as running, Admin(running.namesrv) as admin:
        before = await admin.brokers.settings("a")
        wanted = {"fileReservedTime": "48", "brokerName": "b"}
        with pytest.raises(ResponseError, match="brokerName cannot be changed"):
            await admin.brokers.change_settings("a", wanted)
        with pytest.raises(ConfigError, match="no setting"):
            await admin.brokers.change_settings("a", {})
        assert await admin.brokers.settings("a") == before


@in_loop
async def test_statistics_of_a_topic_without_messages_are_none() -> None:
    async with running_broker(broker_name="a") as running, Admin(running.namesrv) as admin:
        assert await admin.brokers.statistics("a", "TOPIC_PUT_NUMS", "nope") is None


@in_loop
async def test_consume_stats_have_every_group() -> None:
    async with running_broker(broker_name="a") as running, Admin(running.namesrv) as admin:
        await with_a_message(running, "orders", "billing")
        stats = await admin.brokers.consume_stats("a")
        (lag,) = stats.groups
        assert (lag.group, lag.messages, stats.behind) == ("billing", 1, 1)
        assert (lag.queues[0].topic, lag.queues[0].offset, lag.queues[0].end) == ("orders", 1, 2)


@in_loop
async def test_cleaning_names_the_brokers_that_did_it() -> None:
    async with running_broker(broker_name="a") as running, Admin(running.namesrv) as admin:
        here = (running.broker_address,)
        assert await admin.brokers.clean_expired_queues() == here
        assert await admin.brokers.clean_unused_topics("a") == here
        assert await admin.brokers.delete_expired_log(cluster="DefaultCluster") == here


@in_loop
async def test_limits_for_reads_of_old_messages() -> None:
    async with running_broker(broker_name="a") as running, Admin(running.namesrv) as admin:
        await admin.brokers.set_cold_read_limits("a", {"billing": 1000, "audit": 2000})
        await admin.brokers.remove_cold_read_limit("a", "audit")
        assert (await admin.brokers.cold_reads("a")).config_table == {"billing": 1000}
        await admin.brokers.set_read_ahead("a", enabled=False)
        await admin.brokers.set_read_ahead("a", enabled=True)
