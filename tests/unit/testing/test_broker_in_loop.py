"""A broker for a test, in the test's own loop: ready at once, usable by our clients, gone without a
trace."""

import asyncio
import time
from pathlib import Path

import pytest
from tests.loops import in_loop

from turbopump.client.producer import Producer
from turbopump.client.push_consumer import ConsumeFrom, PushConsumer
from turbopump.config.broker_config import FlushDiskType
from turbopump.errors import ConfigError
from turbopump.testing import running_broker


def test_a_message_goes_through_a_running_broker() -> None:
    async def main() -> bytes:
        async with running_broker() as rocketmq, Producer(rocketmq.namesrv) as producer:
            await producer.send("greetings", b"hello")
            async with PushConsumer(
                rocketmq.namesrv, group="g", topic="greetings", consume_from=ConsumeFrom.FIRST
            ) as consumer:
                async for message in consumer:
                    return message.body
        raise AssertionError("the consumer ended without a message")

    assert asyncio.run(main()) == b"hello"


def test_it_is_ready_in_well_under_a_second() -> None:
    async def main() -> float:
        begun = time.process_time()  # what it takes, however busy the machine is with other things
        async with running_broker():
            return time.process_time() - begun

    assert min(asyncio.run(main()) for _ in range(3)) < 0.5


@in_loop
async def test_nothing_is_left_behind() -> None:
    before = asyncio.all_tasks()
    async with running_broker() as rocketmq:
        assert rocketmq.directory.is_dir()
        addresses = (rocketmq.namesrv, rocketmq.broker_address)
    for address in addresses:
        host, port = address.split(":")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))
    directory, tasks = (
        rocketmq.directory,
        {task.get_name() for task in asyncio.all_tasks() - before},
    )
    assert not directory.exists()
    assert tasks == set()


async def send(tmp_path: Path) -> None:
    async with (
        running_broker(directory=tmp_path) as rocketmq,
        Producer(rocketmq.namesrv) as producer,
    ):
        await producer.send("kept", b"hello")


async def read(tmp_path: Path) -> list[bytes]:
    async with running_broker(directory=tmp_path) as rocketmq:
        store = rocketmq.broker.store
        queues = [queue for queue in range(8) if store.max_offset("kept", queue)]
        return [store.get("kept", queue, 0, 32).data for queue in queues]


def test_a_given_directory_is_kept_and_its_messages_are_there_the_next_time(tmp_path: Path) -> None:
    asyncio.run(send(tmp_path))
    (data,) = asyncio.run(read(tmp_path))
    assert b"hello" in data


def test_a_topic_is_created_with_as_many_queues_as_asked_for() -> None:
    async def main() -> int:
        async with running_broker() as rocketmq:
            await rocketmq.create_topic("orders", queues=3)
            async with Producer(rocketmq.namesrv) as producer:
                return len(await producer.publish_queues("orders"))

    assert asyncio.run(main()) == 3


def test_two_brokers_do_not_get_in_each_others_way() -> None:
    async def main() -> set[str]:
        async with running_broker() as one, running_broker() as other:
            return {one.namesrv, one.broker_address, other.namesrv, other.broker_address}

    assert len(asyncio.run(main())) == 4


async def wrong() -> None:
    async with running_broker(host="203.0.113.7"):
        pytest.fail("it listens on an address that this machine does not have")


def test_settings_reach_the_broker_and_impossible_ones_are_refused() -> None:
    async def main() -> FlushDiskType:
        async with running_broker(flush_disk_type=FlushDiskType.SYNC_FLUSH) as rocketmq:
            return rocketmq.broker.config.flush_disk_type

    assert asyncio.run(main()) == FlushDiskType.SYNC_FLUSH
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.7"):
        asyncio.run(wrong())
