"""Cases about brokers, name servers, their key-value configuration, replication, and accounts."""

from __future__ import annotations

import dataclasses
from typing import Final

from tests.interop.admin_cases import BROKER, CLUSTER, TOPIC, Cases, Side, eventual, only, refused

from turbopump.message.rules import is_system_group

SERVERS: Final = Cases()
"""For servers without access control."""
ACCOUNTS: Final = Cases()
"""For servers with access control."""

NOT_ALWAYS: Final = {"refuses_sends_because", "transactions_pending", "put_rate", "get_rate"}
"""Figures that only our broker reports, or that Apache's reports only later."""


# --- brokers


@SERVERS.case("examineBrokerClusterInfo")
async def lists_the_brokers(side: Side) -> object:
    listed = await side.admin.brokers.list()
    assert listed == await side.admin.brokers.list(CLUSTER)
    return listed, await refused(side.admin.brokers.list("nope"))


@SERVERS.case("fetchBrokerRuntimeStats")
async def shows_the_figures(side: Side) -> object:
    figures = await side.admin.brokers.figures(BROKER)
    assert figures.started_ms is not None
    assert figures.time_ms is not None
    assert figures.log_start is not None
    assert figures.log_end is not None
    assert abs(figures.time_ms - figures.started_ms) < 3_600_000
    assert 0 <= figures.log_start < figures.log_end
    return figures.version, figures.is_active, figures.delayed, figures.earliest_message_ms


@SERVERS.case("fetchBrokerRuntimeStats")
async def finds_every_figure(side: Side) -> object:
    figures = await side.admin.brokers.figures(BROKER)
    return {
        one.name: getattr(figures, one.name) is None
        for one in dataclasses.fields(figures)
        if one.name not in NOT_ALWAYS
    }


@SERVERS.case("getBrokerConfig")
async def shows_settings(side: Side) -> object:
    settings = await side.admin.brokers.settings(BROKER)
    keys = ("brokerName", "brokerClusterName", "brokerId", "brokerRole", "flushDiskType")
    return {key: settings.get(key) for key in (*keys, "fileReservedTime", "storePathRootDir")}


@SERVERS.case("updateBrokerConfig")
async def changes_a_setting(side: Side) -> object:
    wanted = {"fileReservedTime": "48", "transactionTimeOut": "7000"}
    return await side.admin.brokers.change_settings(BROKER, wanted)


@SERVERS.case("updateBrokerConfig")
async def refuses_to_change_a_path(side: Side) -> object:
    return await refused(side.admin.brokers.change_settings(BROKER, {"brokerConfigPath": "/x"}))


@SERVERS.case("viewBrokerStatsData")
async def has_no_statistics_of_an_unknown_topic(side: Side) -> object:
    return await side.admin.brokers.statistics(BROKER, "TOPIC_PUT_NUMS", "nope")


@SERVERS.case("viewBrokerStatsData")
async def counts_the_messages_of_a_topic(side: Side) -> object:
    await side.admin.topics.create("counted", read_queues=1, write_queues=1)
    for _ in range(3):
        await side.producer.send("counted", b"x")

    async def is_sampled() -> bool:
        found = await side.admin.brokers.statistics(BROKER, "TOPIC_PUT_NUMS", "counted")
        return found is not None and found.minute is not None and found.minute.sum > 0

    await eventual(is_sampled)
    found = await side.admin.brokers.statistics(BROKER, "TOPIC_PUT_NUMS", "counted")
    assert found is not None
    assert found.minute is not None
    assert 0 < found.minute.per_second < 3
    return found.minute.sum, found.hour is None, found.day is None


@SERVERS.case("fetchConsumeStatsInBroker")
async def shows_what_groups_have_consumed(side: Side) -> object:
    stats = await side.admin.brokers.consume_stats(BROKER)
    assert stats.behind == sum(lag.messages for lag in stats.groups)
    users = [lag for lag in stats.groups if not is_system_group(lag.group)]
    return users, stats.in_flight, await side.admin.brokers.consume_stats(BROKER, is_ordered=True)


@SERVERS.case("cleanExpiredConsumerQueue", "cleanExpiredConsumerQueueByAddr")
async def cleans_queues(side: Side) -> object:
    brokers = side.admin.brokers
    return (
        await brokers.clean_expired_queues(),
        await brokers.clean_expired_queues(cluster=CLUSTER),
        await brokers.clean_expired_queues(side.broker),
    )


@SERVERS.case("cleanUnusedTopic", "cleanUnusedTopicByAddr")
async def cleans_unused_topics(side: Side) -> object:
    brokers = side.admin.brokers
    return await brokers.clean_unused_topics(), await brokers.clean_unused_topics(side.broker)


@SERVERS.case("deleteExpiredCommitLog", "deleteExpiredCommitLogByAddr")
async def deletes_expired_files_of_the_log(side: Side) -> object:
    brokers = side.admin.brokers
    return await brokers.delete_expired_log(), await brokers.delete_expired_log(side.broker)


@SERVERS.case(
    "updateColdDataFlowCtrGroupConfig", "removeColdDataFlowCtrGroupConfig", "getColdDataFlowCtrInfo"
)
async def limits_reads_of_old_messages(side: Side) -> object:
    brokers = side.admin.brokers
    before = await brokers.cold_reads(BROKER)
    await brokers.set_cold_read_limits(BROKER, {"audit": 1000, "billing": 2000})
    limited = await brokers.cold_reads(BROKER)
    await brokers.remove_cold_read_limit(BROKER, "audit")
    after = await brokers.cold_reads(BROKER)
    await brokers.remove_cold_read_limit(BROKER, "nobody")
    thresholds = before.cg_cold_read_threshold, before.global_cold_read_threshold
    return thresholds, [one.config_table for one in (before, limited, after)]


@SERVERS.case("setCommitLogReadAheadMode")
async def turns_reading_ahead_off_and_on(side: Side) -> object:
    await side.admin.brokers.set_read_ahead(BROKER, enabled=False)
    await side.admin.brokers.set_read_ahead(BROKER, enabled=True)
    return "done"


# --- name servers


@SERVERS.case("getNameServerAddressList")
async def knows_its_name_servers(side: Side) -> object:
    return side.admin.name_servers.addresses


@SERVERS.case("getNameServerConfig")
async def shows_settings_of_name_servers(side: Side) -> object:
    settings = only(await side.admin.name_servers.settings())
    keys = ("enableAllTopicList", "enableTopicList", "orderMessageEnable", "kvConfigPath")
    return {key: settings.get(key) for key in keys}


@SERVERS.case("updateNameServerConfig")
async def changes_a_setting_of_name_servers(side: Side) -> object:
    name_servers = side.admin.name_servers
    changed = await name_servers.change_settings({"enableAllTopicList": "false"})
    hidden = await refused(side.admin.topics.names())
    return changed, hidden, await name_servers.change_settings({"enableAllTopicList": "true"})


@SERVERS.case("updateNameServerConfig")
async def refuses_to_change_a_path_of_name_servers(side: Side) -> object:
    return await refused(side.admin.name_servers.change_settings({"kvConfigPath": "/x"}))


@SERVERS.case("wipeWritePermOfBroker", "addWritePermOfBroker")
async def wipes_and_restores_the_write_permission(side: Side) -> object:
    name_servers = side.admin.name_servers
    wiped = await name_servers.wipe_write_permission(BROKER)
    during = await side.admin.topics.route(TOPIC)
    restored = await name_servers.restore_write_permission(BROKER)
    after = await side.admin.topics.route(TOPIC)
    assert only(wiped) > 0
    assert only(restored) > 0
    return during, after, await name_servers.wipe_write_permission("nope")


# --- key-value configuration


@SERVERS.case("createAndUpdateKvConfig", "getKVConfig", "getKVListByNamespace")
async def puts_a_value(side: Side) -> object:
    kv = side.admin.kv
    await kv.put("NS", "k", "v")
    await kv.put("NS", "other", "w;x:1")
    return await kv.get("NS", "k"), await kv.get("NS", "nope"), await kv.list("NS")


@SERVERS.case("deleteKvConfig")
async def deletes_a_value(side: Side) -> object:
    kv = side.admin.kv
    await kv.delete("NS", "k")
    await kv.delete("NS", "k")
    await kv.delete("nope", "k")
    return await kv.list("NS"), await kv.list("nope")


@SERVERS.case("createOrUpdateOrderConf")
async def makes_an_ordered_topic(side: Side) -> object:
    kv = side.admin.kv
    await kv.set_ordered_queues("ordered", {BROKER: 2})
    added = await kv.set_ordered_queues("ordered", {"broker-b": 4}, keep_others=True)
    both = await kv.ordered_queues("ordered")
    replaced = await kv.set_ordered_queues("ordered", {BROKER: 3})
    topics = await kv.ordered_topics()
    await kv.delete_ordered_queues("ordered")
    return added, both, replaced, topics, await kv.ordered_topics()


# --- replication


@SERVERS.case("getBrokerHAStatus")
async def shows_replication(side: Side) -> object:
    replication = side.admin.replication
    (state,) = await replication.states(CLUSTER)
    status = await replication.status(BROKER)
    assert status.master_commit_log_max_offset > 0
    return (
        (state.name, state.id, state.address, state.fault, state.slaves),
        (status.master, status.in_sync_slave_nums, status.ha_connection_info),
        await replication.slaves(BROKER),
        await replication.problems(),
    )


@SERVERS.case("resetMasterFlushOffset")
async def resets_the_flush_offset_of_the_master(side: Side) -> object:
    await side.admin.replication.reset_master_flush_offset(BROKER, 10)
    return (await side.admin.replication.status(BROKER)).master


# --- accounts


@ACCOUNTS.case("createUser")
async def creates_users(side: Side) -> object:
    users = side.admin.users
    return (
        await users.create("ann", "anns-secret", server=side.broker),
        await users.create("root", "roots-secret", is_super=True, server=side.broker),
        await refused(users.create("ann", "other", server=side.broker)),
    )


@ACCOUNTS.case("getUser")
async def shows_users(side: Side) -> object:
    users = side.admin.users
    ann = only(await users.get("ann", server=side.broker))
    root = only(await users.get("root", server=side.broker))
    nobody = only(await users.get("nobody", server=side.broker))
    return [one and (one.username, one.user_type, one.user_status) for one in (ann, root, nobody)]


@ACCOUNTS.case("updateUser")
async def changes_users(side: Side) -> object:
    users = side.admin.users
    return (
        await users.change("ann", password="anns-other-secret", server=side.broker),
        await users.change("ann", is_enabled=False, is_super=True, server=side.broker),
        await refused(users.change("nobody", is_super=True, server=side.broker)),
    )


@ACCOUNTS.case("listUser")
async def lists_users(side: Side) -> object:
    users = side.admin.users
    every = only({one.server: one.users for one in await users.list(server=side.broker)})
    some = only({one.server: one.users for one in await users.list("an", server=side.broker)})
    return [
        sorted((one.username, one.user_type, one.user_status) for one in found)
        for found in (every, some)
    ]


@ACCOUNTS.case("createAcl")
async def adds_policies(side: Side) -> object:
    users = side.admin.users
    resources = ["Topic:T", "Group:g"]
    return (
        await users.add_policy(
            "ann", resources, ["Pub", "Sub"], sources=["192.168.0.0/24"], server=side.broker
        ),
        await users.add_policy(
            "root", ["Topic:*"], ["Get"], is_denied=True, is_default=True, server=side.broker
        ),
        await refused(users.add_policy("nobody", resources, ["Pub"], server=side.broker)),
    )


@ACCOUNTS.case("updateAcl")
async def changes_policies(side: Side) -> object:
    users = side.admin.users
    return (
        await users.change_policy("ann", ["Topic:T"], ["All"], is_denied=True, server=side.broker),
        await refused(users.change_policy("nobody", ["Topic:T"], ["Pub"], server=side.broker)),
    )


@ACCOUNTS.case("getAcl")
async def shows_policies(side: Side) -> object:
    users = side.admin.users
    found = [only(await users.policies(user, server=side.broker)) for user in ("ann", "root")]
    return found, await refused(users.policies("nobody", server=side.broker))


@ACCOUNTS.case("listAcl")
async def lists_policies(side: Side) -> object:
    users = side.admin.users
    every = only({one.server: one.acls for one in await users.list(server=side.broker)})
    some = only({one.server: one.acls for one in await users.list("an", server=side.broker)})
    return [sorted(found, key=lambda one: one.subject or "") for found in (every, some)]


@ACCOUNTS.case("deleteAcl")
async def deletes_policies(side: Side) -> object:
    users = side.admin.users
    await users.delete_policy("ann", "Topic:T", server=side.broker)
    left = only(await users.policies("ann", server=side.broker))
    await users.delete_policy("ann", server=side.broker)
    none = only(await users.policies("ann", server=side.broker))
    return left, none, await refused(users.delete_policy("nobody", server=side.broker))


@ACCOUNTS.case("deleteUser")
async def deletes_users(side: Side) -> object:
    users = side.admin.users
    return (
        await users.delete("ann", server=side.broker),
        only(await users.get("ann", server=side.broker)),
        await refused(users.delete("nobody", server=side.broker)),
    )


@ACCOUNTS.case("createUser", "deleteUser")
async def changes_every_server_with_access_control(side: Side) -> object:
    users = side.admin.users
    made = await users.create("bob", "bobs-secret")
    listed = await users.list("bob")
    deleted = await users.delete("bob")
    assert list(made) == [one.server for one in listed] == list(deleted)
    return side.broker in made
