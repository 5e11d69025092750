"""Cases about topics, consumer groups, offsets, clients and messages."""

from __future__ import annotations

from typing import Final

from tests.interop.admin_cases import (
    BROKER,
    CLUSTER,
    PRODUCERS,
    PULLERS,
    PUSHERS,
    TOPIC,
    Cases,
    Side,
    eventual,
    only,
    refused,
)

from turbopump import Message, MessageQueue
from turbopump.protocol.requests.assignment import MessageRequestMode
from turbopump.protocol.requests.groups import SubscriptionGroupConfig
from turbopump.protocol.requests.topics import PERM_READ, TopicConfig

CLIENTS: Final = Cases()
"""For servers without access control."""
GIVEN_UP: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Topic of transactions that are no longer checked."""


# --- topics


@CLIENTS.case("createAndUpdateTopicConfig", "examineTopicConfig", "createTopic")
async def creates_topics(side: Side) -> object:
    topics = side.admin.topics
    made = await topics.create(
        "made", read_queues=3, write_queues=2, attributes={"message.type": "NORMAL"}
    )
    again = await topics.create("made", read_queues=8)
    return only(made), only(again), only(await topics.settings("made", broker=BROKER))


@CLIENTS.case("examineTopicConfig")
async def misses_the_settings_of_a_topic(side: Side) -> object:
    return await side.admin.topics.settings("nope")


@CLIENTS.case("createAndUpdateTopicConfig")
async def alters_a_topic(side: Side) -> object:
    topics = side.admin.topics
    altered = await topics.alter("made", write_queues=4, read_queues=4, perm=PERM_READ)
    attributes = {"+": only(altered).attributes}
    removed = await topics.alter("made", attributes={"message.type": None})
    return (
        only(altered),
        attributes,
        only(removed),
        await refused(topics.alter("nope", perm=PERM_READ)),
    )


@CLIENTS.case("createAndUpdateTopicConfigList")
async def puts_topics_at_once(side: Side) -> object:
    wanted = [
        TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count)
        for name, count in (("L1", 3), ("L2", 1))
    ]
    done = await side.admin.topics.put_all(wanted)
    return done, [only(await side.admin.topics.settings(name)) for name in ("L1", "L2")]


@CLIENTS.case("fetchAllTopicList", "fetchTopicsByCLuster")
async def lists_topics(side: Side) -> object:
    topics = side.admin.topics

    async def is_registered() -> bool:
        return {"L1", "L2", "made"} <= set(await topics.names())

    await eventual(is_registered)
    return (
        await topics.names(),
        await topics.names(CLUSTER),
        set(await topics.names(system=True)) >= {"SCHEDULE_TOPIC_XXXX", BROKER, CLUSTER},
        await refused(topics.names("nope")),
    )


@CLIENTS.case("getAllTopicConfig", "getUserTopicConfig")
async def shows_the_settings_of_all_topics(side: Side) -> object:
    topics = side.admin.topics
    every = await topics.all_settings(BROKER, system=True)
    return await topics.all_settings(BROKER), "TBW102" in every


@CLIENTS.case("examineTopicStats", "examineTopicStatsConcurrent")
async def shows_the_queues_of_a_topic(side: Side) -> object:
    topics = side.admin.topics
    return (
        await topics.queues(TOPIC),
        await topics.queues(TOPIC, broker=BROKER),
        await refused(topics.queues("nope")),
    )


@CLIENTS.case("examineTopicRouteInfo")
async def shows_a_route(side: Side) -> object:
    return await side.admin.topics.route("made"), await refused(side.admin.topics.route("nope"))


@CLIENTS.case("getTopicClusterList")
async def shows_the_clusters_of_a_topic(side: Side) -> object:
    return await side.admin.topics.clusters(TOPIC)


@CLIENTS.case("queryTopicConsumeByWho")
async def shows_the_groups_of_a_topic(side: Side) -> object:
    return await side.admin.topics.groups(TOPIC), await side.admin.topics.groups("L1")


# --- groups


@CLIENTS.case("createAndUpdateSubscriptionGroupConfig", "examineSubscriptionGroupConfig")
async def creates_groups(side: Side) -> object:
    groups = side.admin.groups
    made = await groups.create("made", retry_max_times=3, consume_message_orderly=True)
    altered = await groups.alter("made", retry_max_times=5, retry_queue_nums=2)
    return (
        only(made),
        only(altered),
        only(await groups.settings("made")),
        await groups.settings("nope"),
        await refused(groups.alter("nope", retry_max_times=1)),
    )


@CLIENTS.case("createAndUpdateSubscriptionGroupConfigList")
async def puts_groups_at_once(side: Side) -> object:
    wanted = [
        SubscriptionGroupConfig(group_name="gl1", retry_max_times=3),
        SubscriptionGroupConfig(group_name="gl2", consume_enable=False),
    ]
    done = await side.admin.groups.put_all(wanted)
    return done, [only(await side.admin.groups.settings(name)) for name in ("gl1", "gl2")]


@CLIENTS.case("getAllSubscriptionGroup", "getUserSubscriptionGroup")
async def lists_groups(side: Side) -> object:
    groups = side.admin.groups
    return (
        await groups.names(),
        await groups.all_settings(BROKER),
        "TOOLS_CONSUMER" in await groups.names(system=True),
    )


@CLIENTS.case("queryTopicsByConsumer", "queryTopicsByConsumerConcurrent")
async def shows_the_topics_of_a_group(side: Side) -> object:
    return await side.admin.groups.topics(PULLERS), await side.admin.groups.topics("nope")


@CLIENTS.case("updateAndGetGroupReadForbidden")
async def forbids_a_group_to_read(side: Side) -> object:
    groups = side.admin.groups
    before = await groups.may_read("made", TOPIC)
    await groups.allow_reading("made", TOPIC, False)
    forbidden = await groups.may_read("made", TOPIC)
    await groups.allow_reading("made", TOPIC, True)
    return before, forbidden, await groups.may_read("made", TOPIC)


@CLIENTS.case("setMessageRequestMode")
async def sets_how_a_group_reads(side: Side) -> object:
    groups = side.admin.groups
    return (
        await groups.set_mode("made", TOPIC, MessageRequestMode.POP, pop_share=1),
        await groups.set_mode("made", TOPIC, MessageRequestMode.PULL),
        await refused(groups.set_mode("nope", TOPIC, MessageRequestMode.POP)),
        await refused(groups.set_mode("made", "nope", MessageRequestMode.POP)),
    )


@CLIENTS.case("deleteSubscriptionGroup")
async def deletes_groups(side: Side) -> object:
    groups = side.admin.groups
    return (
        await groups.delete("gl1"),
        await groups.delete("gl2", offsets=True),
        await groups.delete("nope"),
        await groups.names(),
    )


# --- messages


@CLIENTS.case("viewMessage", "queryMessage")
async def finds_messages(side: Side) -> object:
    messages = side.admin.messages
    by_unique_id = await messages.by_id(TOPIC, side.kept["id0"])
    by_offset_id = await messages.by_id(TOPIC, by_unique_id.offset_msg_id)
    by_key = await messages.by_key(TOPIC, "key1")
    missing = "7F0000010000000000000000000000FF"
    return (
        [(one.body, one.tags, one.keys, one.queue_offset) for one in (by_unique_id, by_offset_id)],
        [(one.body, one.queue_id) for one in by_key.messages],
        (await messages.by_key(TOPIC, "nope")).messages,
        (await messages.at(side.queue, 2)).body,
        await refused(messages.by_id(TOPIC, missing)),
    )


@CLIENTS.case("queryConsumeQueue")
async def shows_units_of_a_queue(side: Side) -> object:
    messages = side.admin.messages
    units = await messages.queue_units(side.queue, 0, 2)
    return (
        [(one.tags_code, one.physic_size > 0) for one in units.queue_data or ()],
        (units.min_queue_index, units.max_queue_index),
        await refused(messages.queue_units(MessageQueue("nope", BROKER, 0), 0, 2)),
    )


@CLIENTS.case("resumeCheckHalfMessage")
async def resumes_the_checks_of_a_transaction(side: Side) -> object:
    messages = side.admin.messages

    async def is_given_up() -> bool:
        return bool(await with_messages())

    async def with_messages() -> list[MessageQueue]:
        if not await side.admin.topics.settings(GIVEN_UP):
            return []
        return [
            MessageQueue(GIVEN_UP, queue.broker, queue.queue_id)
            for queue in await side.admin.topics.queues(GIVEN_UP)
            if queue.messages
        ]

    async with side.undecided(Message(TOPIC, "half", keys=["half"])):
        await eventual(is_given_up)
    (queue,) = await with_messages()
    half = await messages.at(queue, 0)
    await messages.resume_check(half.offset_msg_id)
    return half.body


# --- offsets without running consumers


@CLIENTS.case("minOffset", "maxOffset", "earliestMsgStoreTime", "searchOffset")
async def shows_the_ends_of_a_queue(side: Side) -> object:
    offsets = side.admin.offsets
    empty = MessageQueue("L2", BROKER, 0)
    first_ms = await offsets.first_stored_ms(side.queue)
    return (
        await offsets.bounds(side.queue),
        await offsets.bounds(empty),
        first_ms,
        await offsets.first_stored_ms(empty),
        await offsets.at_time(side.queue, 0),
        await offsets.at_time(side.queue, first_ms),
        await offsets.at_time(side.queue, first_ms + 3_600_000),
        await offsets.at_time(empty, 0),
    )


@CLIENTS.case("examineConsumeStats", "examineConsumeStatsConcurrent")
async def shows_the_offsets_of_a_group(side: Side) -> object:
    offsets = side.admin.offsets
    return (
        await offsets.show(PULLERS),
        await offsets.show(PULLERS, TOPIC, broker=BROKER),
        await offsets.show(PULLERS, TOPIC, cluster=CLUSTER),
        await offsets.show("nope"),
    )


@CLIENTS.case("queryConsumeTimeSpan", "queryConsumeTimeSpanConcurrent")
async def shows_the_times_of_a_group(side: Side) -> object:
    times = await side.admin.offsets.times(PULLERS, TOPIC)
    lag = await side.admin.groups.lag(PULLERS)
    assert lag.seconds is not None
    return (
        [(one.queue, one.first_ms > 0, one.last_ms > 0, one.consumed_ms > 0) for one in times],
        lag.messages,
        0 < lag.seconds < 3600,
    )


@CLIENTS.case("updateConsumeOffset")
async def sets_an_offset(side: Side) -> object:
    offsets = side.admin.offsets
    await offsets.set(PULLERS, side.queue, 2)
    return await offsets.show(PULLERS, TOPIC)


@CLIENTS.case("resetOffsetByTimestamp", "resetOffsetNew", "resetOffsetNewConcurrent")
async def resets_offsets_by_time(side: Side) -> object:
    offsets = side.admin.offsets
    return (
        await offsets.reset(PULLERS, TOPIC, "end"),
        await offsets.reset(PULLERS, TOPIC, "begin", only_back=True),
        await offsets.reset(PULLERS, TOPIC, "end", only_back=True),
        await offsets.reset(PULLERS, TOPIC, 0, broker=BROKER),
        await refused(offsets.reset("nope", TOPIC, "end")),
        await refused(offsets.reset(PULLERS, "nope", "end")),
    )


@CLIENTS.case("resetOffsetByQueueId")
async def resets_the_offset_of_a_queue(side: Side) -> object:
    offsets = side.admin.offsets
    return (
        await offsets.reset_queue(PULLERS, side.queue, 1),
        await refused(offsets.reset_queue(PULLERS, side.queue, 99)),
        await offsets.show(PULLERS, TOPIC),
    )


@CLIENTS.case("resetOffsetByTimestampOld")
async def resets_offsets_silently(side: Side) -> object:
    offsets = side.admin.offsets
    return (
        await offsets.reset_silently("made", TOPIC, "end"),
        await offsets.reset_silently("made", TOPIC, "begin", only_back=True),
        await refused(offsets.reset_silently("made", "nope", "end")),
        await refused(offsets.reset_silently("nope", TOPIC, "end")),
    )


@CLIENTS.case("cloneGroupOffset")
async def clones_offsets(side: Side) -> object:
    offsets = side.admin.offsets
    await side.admin.topics.create("%RETRY%later", read_queues=1, write_queues=1)
    return await offsets.clone(PULLERS, "later", TOPIC), await offsets.show("later", TOPIC)


# --- running clients


@CLIENTS.case("examineProducerConnectionInfo", "getAllProducerInfo")
async def shows_producers(side: Side) -> object:
    clients = side.admin.clients

    async def is_connected() -> bool:
        return bool(await clients.producers(PRODUCERS))

    await eventual(is_connected)
    every = await clients.all_producers(BROKER)
    return (
        await clients.producers(PRODUCERS, broker=BROKER),
        every[PRODUCERS],
        await clients.producers("nope"),
    )


@CLIENTS.case("examineConsumerConnectionInfo", "querySubscription")
async def shows_consumers(side: Side) -> object:
    await side.start_pusher()
    members = await side.admin.groups.members(PUSHERS)
    assert [one.client_id for one in members.members] == [side.pusher_id]
    found = await side.admin.clients.consumers(PUSHERS)
    subscription = await side.admin.groups.subscription(PUSHERS, TOPIC)
    assert subscription is not None
    return (
        (found.group, found.consume_type, found.message_model, found.consume_from),
        sorted(found.subscriptions),
        [(one.language, one.address) for one in found.members],
        (subscription.topic, subscription.sub_string, subscription.expression_type),
        await side.admin.groups.subscription("nope", TOPIC),
        (await side.admin.groups.members("nope")).members,
    )


@CLIENTS.case("getConsumerRunningInfo")
async def asks_a_consumer_for_its_state(side: Side) -> object:
    clients = side.admin.clients
    info = await clients.running_info(PUSHERS, side.pusher_id)
    with_stack = await clients.running_info(PUSHERS, side.pusher_id, stack=True)
    return (
        sorted(info.properties),
        sorted(queue.queue_id for queue in info.mq_table if queue.topic == TOPIC),
        bool(with_stack.jstack),
        await refused(clients.running_info(PUSHERS, "nobody")),
    )


@CLIENTS.case("getConsumeStatus")
async def asks_consumers_for_their_offsets(side: Side) -> object:
    clients = side.admin.clients

    async def has_consumed() -> bool:
        found = await clients.offsets(PUSHERS, TOPIC)
        return any(table.get(side.queue) == 3 for table in found.values())

    await eventual(has_consumed)
    return (
        await clients.offsets(PUSHERS, TOPIC, client_id=side.pusher_id),
        await clients.offsets("nope", TOPIC),
    )


@CLIENTS.case("messageTrackDetail", "messageTrackDetailConcurrent")
async def tells_who_has_consumed_a_message(side: Side) -> object:
    messages = side.admin.messages

    async def is_committed() -> bool:
        lag = await side.admin.offsets.show(PUSHERS, TOPIC)
        return lag.messages == 0 and bool(lag.queues)

    await eventual(is_committed)
    return await messages.tracks(TOPIC, side.kept["id0"])


@CLIENTS.case("consumeMessageDirectly")
async def has_a_consumer_handle_a_message(side: Side) -> object:
    clients = side.admin.clients
    found = await clients.consume_directly(PUSHERS, side.pusher_id, TOPIC, side.kept["id1"])
    return (
        (found.consume_result, found.order, found.auto_commit),
        await refused(clients.consume_directly(PUSHERS, "nobody", TOPIC, side.kept["id1"])),
    )


# --- deletion, last


@CLIENTS.case(
    "deleteTopic", "deleteTopicInBroker", "deleteTopicInBrokerConcurrent", "deleteTopicInNameServer"
)
async def deletes_topics(side: Side) -> object:
    topics = side.admin.topics
    await topics.delete_on_broker("L1", BROKER)
    on_broker = await topics.settings("L1")
    routes = await topics.delete_routes("L1")
    return (
        await topics.delete("L2"),
        (on_broker, routes),
        await refused(topics.route("L1")),
        await refused(topics.delete("nope")),
        await refused(topics.delete("SCHEDULE_TOPIC_XXXX")),
        await topics.names(),
    )
