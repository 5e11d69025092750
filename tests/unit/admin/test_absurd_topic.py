"""A topic of more queues than can be, which a broker of Apache's may have: an operator must be able
to delete it."""

from __future__ import annotations

import asyncio

from tests.loops import in_loop
from tests.stand_ins import returns
from tests.unit.client.scripted_cluster import ScriptedBroker

from turbopump.admin.topic_contents import QueueContent, queue_contents
from turbopump.message.message import MessageQueue
from turbopump.protocol.requests.consumers import QueryTopicConsumeByWho
from turbopump.protocol.requests.groups import GroupList
from turbopump.protocol.requests.topics import GetTopicStatsInfo, TopicOffset, TopicStatsTable
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.response import Response

STATS = TopicStatsTable(
    offset_table={MessageQueue("T", "b", number): TopicOffset(max_offset=3) for number in (0, 7)}
)


@in_loop
async def test_the_contents_of_two_billion_queues_are_those_that_the_broker_tells_of() -> None:
    broker = ScriptedBroker()
    broker.further = [
        (GetTopicStatsInfo, returns(Response(STATS))),
        (QueryTopicConsumeByWho, returns(Response(GroupList()))),
    ]
    await broker.start()
    client = RemotingClient()
    try:
        async with asyncio.timeout(5):
            found = await queue_contents(client, broker.address, "T", range(2**31 - 1))
    finally:
        await client.close()
        await broker.stop()
    assert found == [QueueContent("b", 0, 3, []), QueueContent("b", 7, 3, [])]
