"""A broker starts with names that all of its parts can use: new ones are checked, those of a store
that is there are warned of."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.loops import in_loop
from tests.unit.broker.talking import talking

from turbopump import ConsumeFrom, Message, Producer, SimpleConsumer
from turbopump.broker.tables import name_faults
from turbopump.client.request_reply import REPLY_TOPIC_END
from turbopump.config.broker_config import BrokerConfig, BrokerRole
from turbopump.errors import ConfigError
from turbopump.message.handles import PopHandle, QueueKind
from turbopump.message.rules import topic_fault
from turbopump.testing.broker_in_loop import running_broker

UNUSABLE = [
    ("broker_name", "my MacBook"),
    ("broker_name", "a\tb"),
    ("broker_cluster_name", "prod.eu"),
    ("broker_cluster_name", "prod eu"),
    ("broker_cluster_name", "c" * 120),
    ("broker_cluster_name", "größe"),
]
NAMES = pytest.mark.parametrize(("key", "name"), UNUSABLE)


@NAMES
@in_loop
async def test_a_new_name_that_some_part_cannot_use_is_refused(
    tmp_path: Path, key: str, name: str
) -> None:
    java = {"broker_name": "brokerName", "broker_cluster_name": "brokerClusterName"}[key]
    with pytest.raises(ConfigError, match=f"^{java}={name}: .*; choose another name$"):
        async with talking(tmp_path, **{key: name}):
            pass


@NAMES
@in_loop
async def test_a_store_that_has_such_a_name_starts_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str, name: str
) -> None:
    async with talking(tmp_path, **{key: "plain"}) as talk:
        await talk.client.create("T")
    file = tmp_path / "config" / "topics.json"
    topics = json.loads(file.read_text())
    topics["topicConfigTable"][name] = topics["topicConfigTable"].pop("plain")
    file.write_text(json.dumps(topics))
    async with talking(tmp_path, **{key: name}):
        pass
    (line,) = [one for one in caplog.records if "this store has it already" in one.getMessage()]
    assert (line.levelno, name in line.getMessage()) == (logging.WARNING, True)


def test_a_slave_has_its_master_s_name() -> None:
    config = BrokerConfig(broker_role=BrokerRole.SLAVE, broker_name="a b")
    assert [key for key, _, _ in name_faults(config)] == ["brokerName"]


@given(broker=st.text(min_size=1, max_size=40), cluster=st.text(min_size=1, max_size=130))
@example(broker="a\u3000b", cluster="c" * 109)
def test_names_without_a_fault_suit_handles_and_topics(broker: str, cluster: str) -> None:
    faults = {
        key
        for key, _, _ in name_faults(BrokerConfig(broker_name=broker, broker_cluster_name=cluster))
    }
    if "brokerName" not in faults:
        handle = PopHandle(
            start_offset=1,
            pop_time_ms=2,
            invisible_ms=3,
            revive_queue_id=4,
            kind=QueueKind.NORMAL,
            broker_name=broker,
            queue_id=5,
        )
        assert PopHandle.decode(handle.encode()) == handle
    if "brokerClusterName" not in faults:
        assert topic_fault(cluster + REPLY_TOPIC_END) is None


async def pop_and_acknowledge(broker: str, cluster: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with running_broker(
            directory=directory, broker_name=broker, broker_cluster_name=cluster
        ) as running:
            await running.create_topic("orders")
            async with (
                Producer(running.namesrv) as producer,
                SimpleConsumer(
                    running.namesrv, group="g", topic="orders", consume_from=ConsumeFrom.FIRST
                ) as consumer,
            ):
                await producer.send(Message("orders", b"one"))
                (message,) = await consumer.receive()
                await consumer.ack(message)


@settings(max_examples=4, deadline=None)
@given(
    broker=st.text("aZ9_-.@#;:/%", min_size=1, max_size=60),
    cluster=st.text("aZ9_-%|", min_size=1, max_size=108),
)
def test_with_any_name_that_is_taken_messages_are_popped_and_acknowledged(
    broker: str, cluster: str
) -> None:
    asyncio.run(pop_and_acknowledge(broker, cluster))
