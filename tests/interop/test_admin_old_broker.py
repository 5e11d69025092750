"""Our ``Admin`` on Apache's servers of 4.9, which do not know every request."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.apache import NEWEST_4
from tests.interop.patient_apache import patient_apache
from tests.loops import in_loop

from turbopump import ClientError, Producer, PullConsumer, RemotingError
from turbopump.admin.admin import Admin
from turbopump.message.message import MessageQueue
from turbopump.protocol.requests.topics import TopicConfig


@in_loop
async def test_nothing_is_reset_on_a_broker_that_knows_only_whole_topics(tmp_path: Path) -> None:
    """A broker of 4.9 ignores the queue and the offset of a reset, and would skip all messages."""
    with patient_apache(NEWEST_4, tmp_path) as cluster:
        async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
            made = await admin.topics.create("orders", read_queues=2, write_queues=2)
            assert [topic.read_queue_nums for topic in made.values()] == [2]
            first, second = await admin.messages.queues("orders")
            for number in range(5):
                for queue in (first, second):
                    await producer.send("orders", b"%d" % number, queue=queue)
            await admin.groups.create("billing")
            async with PullConsumer(cluster.namesrv, group="billing") as consumer:
                await consumer.commit(first, 3)
                await consumer.commit(second, 3)

                async def stands() -> dict[MessageQueue, int]:
                    found = (await admin.offsets.show("billing", "orders")).queues
                    return {one.queue: one.offset for one in found}

                with pytest.raises(
                    ClientError, match=r"brokers before 5\.0 reset whole topics only"
                ):
                    await admin.offsets.reset_queue("billing", first, 1)
                assert await stands() == {first: 3, second: 3}
            await admin.offsets.set("billing", first, 1)
            assert await stands() == {first: 1, second: 3}
            with pytest.raises(RemotingError, match="an older broker"):
                await admin.topics.put_all([TopicConfig(topic_name="more")])
            lag = await admin.groups.lag("billing")
            assert lag.messages == 6
            assert lag.seconds is not None
            assert (await admin.topics.delete("orders")).brokers == list(made)
