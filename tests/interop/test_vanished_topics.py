"""Topics, groups and offsets that a master said it made a moment before it died (apache/rocketmq-
helm#33). Names are Apache's settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.interop.replica_groups import APACHE, OURS, ReplicaGroup
from tests.interop.replica_questions import GROUP, TOPIC, GroupClient
from tests.interop.tools import skipping_without_tools
from tests.loops import in_loop

from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.groups import CreateGroup, SubscriptionGroupConfig
from turbopump.protocol.requests.offsets import UpdateConsumerOffset
from turbopump.protocol.requests.topics import CreateTopic, GetTopicConfig

COMMIT = UpdateConsumerOffset(consumer_group=GROUP, topic=TOPIC, queue_id=0, commit_offset=1)
BY_HAND = pytest.mark.skipif(
    "TURBOPUMP_BY_HAND" not in os.environ, reason="a minute for a fault that is Apache's alone"
)


@pytest.mark.parametrize(
    ("side", "kept"),
    [pytest.param(APACHE, False, marks=BY_HAND, id="apache"), pytest.param(OURS, True, id="ours")],
)
@in_loop
async def test_a_topic_and_an_offset_are_lost_with_apache_s_master_and_kept_with_ours(
    tmp_path: Path, side: str, kept: bool
) -> None:
    with skipping_without_tools(), ReplicaGroup(tmp_path, [side] * 3, controller=side) as group:
        async with GroupClient.of(group) as client:
            state = await client.whole()
            assert state.master is not None
            made = CreateTopic(topic="made", read_queue_nums=1, write_queue_nums=1, perm=6)
            config = fastjson.encode(SubscriptionGroupConfig(group_name=GROUP))
            master = client.replicas[state.master]
            for request, body in ((CreateGroup(), config), (made, b""), (COMMIT, b"")):
                assert (await master.code(request, body))[0] == ResponseCode.SUCCESS
            group.replicas[state.master].kill()

            after = await client.another_master(state.master)
            await client.send(1)
            assert after.master is not None
            found, _ = await client.replicas[after.master].code(GetTopicConfig(topic="made"))
            assert (found == ResponseCode.SUCCESS) is kept
            assert (await client.offset(after.master) == 1) is kept
