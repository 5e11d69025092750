"""Apache's mqadmin asks our broker and our consumer, and resets, clones and deletes a group's
place."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.interop.mqadmin import Mqadmin
from tests.interop.tools import skipping_without_tools

from turbopump.blocking import ConsumeFrom, Producer, PullConsumer, PushConsumer
from turbopump.testing.broker_in_loop import BrokerThread

COUNT = 21
PATIENCE_SECONDS = 120.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def mqadmin(broker: BrokerThread, java: Mqadmin, *arguments: str) -> str:
    return java.run(broker.namesrv, *arguments)


def test_mqadmin_sees_and_moves_a_group_of_ours(tmp_path: Path, summary: list[str]) -> None:
    started = time.monotonic()
    seen: list[bytes] = []

    with skipping_without_tools(), Mqadmin(tmp_path) as java, BrokerThread() as broker:
        broker.create_topic("T", 2)
        with Producer(broker.namesrv) as producer:
            results = [producer.send("T", b"%d" % number) for number in range(COUNT)]
        settings = {"group": "g", "topic": "T", "consume_from": ConsumeFrom.FIRST}
        with PushConsumer(
            broker.namesrv, handler=lambda m: seen.append(m.body), **settings
        ) as consumer:  # type: ignore[arg-type]
            until(lambda: len(seen) == COUNT)
            consumer.commit(acknowledged=True)
            assert "Consume Diff Total: 0" in mqadmin(broker, java, "consumerProgress", "-g", "g")
            connected = mqadmin(broker, java, "consumerConnection", "-g", "g")
            assert consumer.client_id in connected
            assert "PYTHON" in connected
            whole = mqadmin(broker, java, "brokerConsumeStats", "-b", broker.broker_address)
            rows = [line.split() for line in whole.splitlines() if line.startswith("T ")]
            assert [
                (group, queue, behind)
                for _topic, group, _broker, queue, _end, _place, behind, *_ in rows
            ] == [("g", "0", "0"), ("g", "1", "0")]
            mqadmin(broker, java, "resetOffsetByTime", "-g", "g", "-t", "T", "-s", "0")
            until(lambda: len(seen) == 2 * COUNT)
            assert "_pull_for_ever" in mqadmin(
                broker, java, "consumerStatus", "-g", "g", "-i", consumer.client_id, "-s"
            )
            place = ("-t", "T", "-i", results[-1].offset_msg_id or "")
            assert "CR_SUCCESS" in mqadmin(
                broker, java, "queryMsgById", "-g", "g", "-d", consumer.client_id, *place
            )
            assert seen[2 * COUNT :] == [b"%d" % (COUNT - 1)]
            consumer.commit(acknowledged=True)
            mqadmin(
                broker, java, "updateSubGroup", "-g", "h", "-b", broker.broker_address, "-r", "3"
            )
            mqadmin(broker, java, "cloneGroupOffset", "-s", "g", "-d", "h", "-t", "T", "-o", "true")
            with PullConsumer(broker.namesrv, group="h") as other:
                assert sum(other.committed(queue) or 0 for queue in other.queues("T")) == COUNT
            mqadmin(
                broker, java, "deleteSubGroup", "-g", "h", "-b", broker.broker_address, "-r", "true"
            )
    summary.append(f"mqadmin moves a group of ours: {time.monotonic() - started:.1f} s")
