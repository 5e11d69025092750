"""Requests to create topics and groups: whether they succeeded, and how long they took."""

from tests.loops import in_loop
from tests.unit.broker.metrics.scraping import scrape
from tests.unit.broker.talking import Talk, converse

from turbopump.protocol import fastjson
from turbopump.protocol.requests.groups import CreateGroup, SubscriptionGroupConfig
from turbopump.protocol.requests.topics import (
    CreateTopic,
    CreateTopicList,
    CreateTopicListRequestBody,
    TopicConfig,
)

TOPICS = "topic_create_execution_time_milliseconds_count"
GROUPS = "consumer_group_create_execution_time_milliseconds_count"


@in_loop(converse)
async def test_each_request_counts_once_with_its_outcome(talk: Talk, /) -> None:
    ask = talk.client.code
    await talk.client.create()
    assert (await ask(CreateTopic(topic="no blank", read_queue_nums=1, write_queue_nums=1)))[0] != 0
    two = CreateTopicListRequestBody(
        topic_config_list=(TopicConfig(topic_name="A"), TopicConfig(topic_name="B"))
    )
    assert (await ask(CreateTopicList(), fastjson.encode(two)))[0] == 0
    for name in ("g", "CID_RMQ_SYS_g"):
        group = SubscriptionGroupConfig(group_name=name)
        assert (await ask(CreateGroup(), fastjson.encode(group)))[0] == 0
    assert scrape(talk.broker, TOPICS, GROUPS) == {
        f"{TOPICS} invocation_status=success is_system=false": 2,
        f"{TOPICS} invocation_status=failure is_system=false": 1,
        f"{GROUPS} invocation_status=success": 2,
    }
