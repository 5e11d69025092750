"""Numbers of queues that cannot be, from those whom a broker believes: operators, its master, its
name server. None is counted to, and all else is taken."""

from __future__ import annotations

import logging
import time

import pytest
from tests.loops import in_loop
from tests.unit.broker.talking import Talk, converse
from tests.unit.client.scripted_cluster import ScriptedNameServer

from turbopump.broker.topic_routes import TopicRoutes
from turbopump.clock import SystemClock
from turbopump.config.broker_config import BrokerConfig
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.groups import (
    CreateGroup,
    CreateGroupList,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
)
from turbopump.protocol.requests.namesrv import QueueData, TopicRouteData
from turbopump.protocol.requests.topics import QUEUES_MAX, DataVersion, TopicConfig

MANY = 2**31 - 1


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


@pytest.mark.parametrize("count", [QUEUES_MAX + 1, MANY])
@in_loop(converse)
async def test_a_group_cannot_ask_for_more_retry_queues_than_a_topic_may_have(
    talk: Talk, /, count: int
) -> None:
    good = SubscriptionGroupConfig(group_name="good", retry_queue_nums=QUEUES_MAX)
    bad = SubscriptionGroupConfig(group_name="bad", retry_queue_nums=count)
    both = SubscriptionGroupList(group_config_list=[good, bad])
    for request, body in ((CreateGroup(), bad), (CreateGroupList(), both)):
        code, remark = await talk.client.code(request, fastjson.encode(body))
        assert code == ResponseCode.INVALID_PARAMETER
        assert f"retryQueueNums is {count}; give 65535 at most" in remark
    assert talk.broker.tables.groups.get("good") is None
    assert await talk.client.code(CreateGroup(), fastjson.encode(good)) == (0, "")


@in_loop(converse)
async def test_a_group_that_came_from_a_master_gets_the_most_retry_queues_there_may_be(
    talk: Talk, /
) -> None:
    talk.broker.tables.groups.put(SubscriptionGroupConfig(group_name="g", retry_queue_nums=MANY))
    await talk.client.join("c", "g")
    topic = talk.broker.tables.topics.find("%RETRY%g")
    assert topic is not None
    assert topic.read_queue_nums == topic.write_queue_nums == QUEUES_MAX


@in_loop(converse)
async def test_a_slave_takes_the_topics_of_its_master_but_those_that_cannot_be(
    talk: Talk, /, caplog: pytest.LogCaptureFixture
) -> None:
    topics = talk.broker.tables.topics
    given = {
        "good": TopicConfig(read_queue_nums=QUEUES_MAX),
        "bad": TopicConfig(read_queue_nums=MANY),
        "worse": TopicConfig(write_queue_nums=-1),
    }
    for _ in range(3):
        topics.copy(given, DataVersion(counter=9))
    assert topics.find("good") is not None
    assert topics.find("bad") is topics.find("worse") is None
    assert topics.version.counter == 9
    said = [text for text in warnings(caplog) if "left out" in text]
    assert len(said) == 2, "once each, however often it is copied"
    assert f"topic=bad cause=readQueueNums is {MANY}" in said[0]


@in_loop
async def test_a_broker_makes_no_queues_of_a_route_that_cannot_be(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = ScriptedNameServer()
    server.routes["T"] = route(MANY)
    await server.start()
    config = BrokerConfig(namesrv_addr=server.address, load_balance_poll_name_server_interval=0)
    routes = TopicRoutes(config, None, SystemClock())  # type: ignore[arg-type]
    try:
        began = time.process_time()
        assert await routes.queues("T") is None
        assert time.process_time() - began < 1
        (said,) = warnings(caplog)
        assert f"server={server.address} topic=T" in said
        assert f"readQueueNums is {MANY}" in said
        server.routes["T"] = route(4)
        known = await routes.queues("T")
        assert known is not None
        assert len(known) == 4
        server.routes["T"] = route(MANY)
        assert await routes.queues("T") == known
    finally:
        await routes.close()
        await server.stop()


def route(count: int) -> TopicRouteData:
    return TopicRouteData(
        queue_datas=[QueueData(broker_name="b", read_queue_nums=count, write_queue_nums=1, perm=6)]
    )
