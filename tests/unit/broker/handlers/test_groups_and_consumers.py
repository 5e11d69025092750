"""Consumer groups over the wire (200, 225, 207, 201, 352), who is connected (203, 204, 328), what
they want (345), and how far groups are (208, 317, 300, 343, 303)."""

from __future__ import annotations

from pathlib import Path

from tests.loops import in_loop
from tests.unit.broker.talking import Talk, converse, subscription, talking, watched

from turbopump.message.message import MessageQueue
from turbopump.protocol import fastjson
from turbopump.protocol.codes import LanguageCode, ResponseCode
from turbopump.protocol.requests.consumers import (
    ConsumerConnection,
    GetAllProducerInfo,
    GetBrokerConsumeStats,
    GetConsumerConnectionList,
    GetConsumeStats,
    GetProducerConnectionList,
    ProducerConnection,
    ProducerTableInfo,
    QueryConsumeTimeSpan,
    QuerySubscriptionByConsumer,
    QuerySubscriptionResponseBody,
    QueryTopicConsumeByWho,
    QueryTopicsByConsumer,
)
from turbopump.protocol.requests.groups import (
    CreateGroup,
    CreateGroupList,
    DeleteGroup,
    GetAllGroups,
    GetAllGroupsReply,
    GetGroup,
    GroupList,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from turbopump.protocol.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from turbopump.protocol.requests.statistics import (
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
)
from turbopump.protocol.requests.topics import TopicList


@in_loop(watched)
async def test_groups_are_created_changed_listed_and_deleted_and_survive_a_restart(
    tmp_path: Path,
) -> None:
    async with talking(tmp_path) as talk:
        one = SubscriptionGroupConfig(group_name="one", retry_max_times=3)
        assert await talk.client.code(CreateGroup(), fastjson.encode(one)) == (0, "")
        more = SubscriptionGroupList(
            group_config_list=[
                SubscriptionGroupConfig(group_name="two"),
                SubscriptionGroupConfig(group_name="three"),
            ]
        )
        assert await talk.client.code(CreateGroupList(), fastjson.encode(more)) == (0, "")
        bad = SubscriptionGroupList(
            group_config_list=[
                SubscriptionGroupConfig(group_name="four"),
                SubscriptionGroupConfig(group_name="no/good"),
            ]
        )
        assert (await talk.client.code(CreateGroupList(), fastjson.encode(bad)))[
            0
        ] == ResponseCode.INVALID_PARAMETER
        assert await talk.client.code(DeleteGroup(group_name="two")) == (0, "")
    async with talking(tmp_path) as talk:
        answer = await talk.client.ask(GetAllGroups())
        table = fastjson.decode(answer.body, SubscriptionGroupWrapper).subscription_group_table
        assert {"one", "three"} <= set(table)
        assert not {"two", "four"} & set(table), "all of a list or nothing"
        assert answer.header(GetAllGroupsReply).total_group_num == len(table)
        found = fastjson.decode(
            (await talk.client.ask(GetGroup(group="one"))).body, SubscriptionGroupConfig
        )
        assert found.retry_max_times == 3
        assert (await talk.client.code(GetGroup(group="two")))[
            0
        ] == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@in_loop(converse)
async def test_a_deleted_group_keeps_its_place_unless_that_is_cleaned_too(talk: Talk, /) -> None:
    for clean in (False, True):
        await talk.client.send()
        await talk.client.pull()
        await talk.client.ask(
            UpdateConsumerOffset(consumer_group="g", topic="T", queue_id=0, commit_offset=1)
        )
        await talk.client.ask(DeleteGroup(group_name="g", clean_offset=clean))
        asked = QueryConsumerOffset(
            consumer_group="g", topic="T", queue_id=0, set_zero_if_not_found=False
        )
        assert (await talk.client.ask(asked)).code == (ResponseCode.QUERY_NOT_FOUND if clean else 0)


@in_loop(converse)
async def test_the_members_of_groups_are_told_with_their_language_and_subscriptions(
    talk: Talk, /
) -> None:
    await talk.client.join("c", "g", subscription("T", "a || b"))
    await talk.client.heartbeat({"clientID": "p", "producerDataSet": [{"groupName": "pg"}]})
    answer = await talk.client.ask(GetConsumerConnectionList(consumer_group="g"))
    found = fastjson.decode(answer.body, ConsumerConnection)
    (one,) = found.connection_set
    assert (one.client_id, one.language) == ("c", LanguageCode.PYTHON)
    assert (one.client_addr or "").startswith("127.0.0.1:")
    assert found.subscription_table["T"].sub_string == "a || b"
    assert (found.consume_type, found.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    answer = await talk.client.ask(GetProducerConnectionList(producer_group="pg"))
    assert [
        each.client_id for each in fastjson.decode(answer.body, ProducerConnection).connection_set
    ] == ["p"]
    assert (await talk.client.code(GetConsumerConnectionList(consumer_group="x")))[
        0
    ] == ResponseCode.CONSUMER_NOT_ONLINE
    assert (await talk.client.code(GetProducerConnectionList(producer_group="x")))[
        0
    ] == ResponseCode.SYSTEM_ERROR


@in_loop(converse)
async def test_how_far_a_group_is_in_every_queue_and_in_time(talk: Talk, /) -> None:
    await talk.client.create(queues=2)
    for _ in range(3):
        await talk.client.send()
    await talk.client.pull()
    await talk.client.ask(
        UpdateConsumerOffset(consumer_group="g", topic="T", queue_id=0, commit_offset=2)
    )
    times = [message.store_timestamp for message in await talk.client.messages()]
    queue, other = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)
    for asked in (
        GetConsumeStats(consumer_group="g"),
        GetConsumeStats(consumer_group="g", topic="T"),
        GetConsumeStats(consumer_group="g", topic_list="T;unknown"),
    ):
        table = fastjson.decode((await talk.client.ask(asked)).body, ConsumeStats).offset_table
        stands = OffsetWrapper(
            broker_offset=3, consumer_offset=2, pull_offset=2, last_timestamp=times[1]
        )
        assert table == {queue: stands, other: OffsetWrapper()}
    span = await talk.client.ask(QueryConsumeTimeSpan(topic="T", group="g"))
    first, second = fastjson.decode(span.body, QueryConsumeTimeSpanBody).consume_time_span_set
    assert (first.min_time_stamp, first.max_time_stamp, first.consume_time_stamp) == (
        times[0],
        times[2],
        times[1],
    )
    assert 0 <= first.delay_time < 60_000
    assert (second.message_queue, second.delay_time) == (other, 0)
    who = await talk.client.ask(QueryTopicConsumeByWho(topic="T"))
    assert fastjson.decode(who.body, GroupList).group_list == ("g",)
    what = await talk.client.ask(QueryTopicsByConsumer(group="g"))
    assert fastjson.decode(what.body, TopicList).topic_list == ("T",)
    assert (await talk.client.code(QueryConsumeTimeSpan(topic="x", group="g")))[
        0
    ] == ResponseCode.TOPIC_NOT_EXIST


@in_loop(converse)
async def test_how_far_every_group_is_and_what_each_wants_and_who_produces(talk: Talk, /) -> None:
    await talk.client.create(queues=1)
    for _ in range(3):
        await talk.client.send()
    for group, place in (("one", 2), ("two", 0)):
        await talk.client.ask(
            CreateGroup(), fastjson.encode(SubscriptionGroupConfig(group_name=group))
        )
        await talk.client.ask(
            UpdateConsumerOffset(consumer_group=group, topic="T", queue_id=0, commit_offset=place)
        )
    found = fastjson.decode((await talk.client.ask(GetBrokerConsumeStats())).body, ConsumeStatsList)
    by_group = {
        group: standings for one in found.consume_stats_list for group, standings in one.items()
    }
    (one,), (two,) = by_group["one"], by_group["two"]
    assert [place.consumer_offset for place in one.offset_table.values()] == [2]
    assert [place.broker_offset for place in two.offset_table.values()] == [3]
    assert (found.total_diff, found.broker_addr) == (1 + 3, f"127.0.0.1:{talk.broker.port}")
    ordered = fastjson.decode(
        (await talk.client.ask(GetBrokerConsumeStats(is_order=True))).body, ConsumeStatsList
    )
    assert ordered.total_diff == 0
    await talk.client.join("c", "one", subscription("T", "a"))
    await talk.client.heartbeat({"clientID": "p", "producerDataSet": [{"groupName": "pg"}]})
    answer = await talk.client.ask(QuerySubscriptionByConsumer(group="one", topic="T"))
    wants = fastjson.decode(answer.body, QuerySubscriptionResponseBody)
    assert wants.subscription_data is not None
    assert (wants.group, wants.topic, wants.subscription_data.sub_string) == ("one", "T", "a")
    answer = await talk.client.ask(QuerySubscriptionByConsumer(group="two", topic="T"))
    assert fastjson.decode(answer.body, QuerySubscriptionResponseBody).subscription_data is None
    producers = (
        fastjson.decode((await talk.client.ask(GetAllProducerInfo())).body, ProducerTableInfo).data
        or {}
    )
    assert [each.client_id for each in producers["pg"]] == ["p"]
