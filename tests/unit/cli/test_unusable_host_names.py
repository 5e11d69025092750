"""A server that advertises a host name which Python cannot look up is a server that cannot be
reached, and no more than that."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from tests.loops import in_loop

from turbopump import ConsumeFrom, Producer, SimpleConsumer
from turbopump.broker.broker import Broker
from turbopump.cli import main
from turbopump.config.broker_config import BrokerConfig
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.client import RemotingClient
from turbopump.testing.broker_in_loop import (
    PATIENT,
    SMALL_FILES,
    BrokerThread,
    RunningBroker,
    running_broker,
)

UNUSABLE = ["mq..example", f"{'a' * 64}.example"]


@asynccontextmanager
async def unreachable_broker(namesrv: str, host: str) -> AsyncIterator[str]:
    """Run a broker with the topic orders that advertises ``host``; where it listens."""
    with tempfile.TemporaryDirectory() as directory:
        config = BrokerConfig(
            broker_name="broker-far",
            namesrv_addr=namesrv,
            broker_ip1=host,
            listen_port=0,
            store_path_root_dir=directory,
            **SMALL_FILES,
            **PATIENT,
        )
        broker = Broker(config)
        await broker.start()
        try:
            client = RemotingClient()
            wanted = CreateTopic(topic="orders", read_queue_nums=4, write_queue_nums=4)
            await client.call(f"127.0.0.1:{broker.port}", wanted)
            await client.close()
            yield f"{host}:{broker.port}"
        finally:
            await broker.close()


@asynccontextmanager
async def two_brokers(host: str) -> AsyncIterator[RunningBroker]:
    async with running_broker() as running:
        await running.create_topic("orders", 4)
        async with unreachable_broker(running.namesrv, host):
            yield running


@pytest.mark.parametrize("host", UNUSABLE)
@in_loop
async def test_sends_go_on_to_the_broker_that_can_be_reached(host: str) -> None:
    async with two_brokers(host) as running, Producer(running.namesrv) as producer:
        results = [await producer.send("orders", str(number)) for number in range(12)]
    assert {result.queue.broker_name for result in results} == {"broker-test"}


@pytest.mark.parametrize("host", UNUSABLE)
@in_loop
async def test_pops_go_on_at_the_broker_that_can_be_reached(host: str) -> None:
    async with two_brokers(host) as running:
        async with Producer(running.namesrv) as producer:
            await producer.send("orders", "one")
        async with SimpleConsumer(
            running.namesrv, group="g", topic="orders", consume_from=ConsumeFrom.FIRST
        ) as consumer:
            found = await consumer.receive(1)
    assert found[0].body == b"one"


@pytest.mark.parametrize("host", UNUSABLE)
@in_loop
async def test_the_next_name_server_of_a_list_is_asked(host: str) -> None:
    async with running_broker() as running:
        await running.create_topic("orders")
        async with Producer(f"{host}:9876;{running.namesrv}") as producer:
            await producer.send("orders", "one")


@pytest.fixture
def rocketmq_and_far_broker(rocketmq: BrokerThread) -> Iterator[tuple[BrokerThread, str]]:
    rocketmq.create_topic("orders")
    broker = unreachable_broker(rocketmq.namesrv, "mq..example")
    address = rocketmq.run(broker.__aenter__())
    yield rocketmq, address
    rocketmq.run(broker.__aexit__(None, None, None))


def test_commands_say_that_it_cannot_be_reached(
    rocketmq_and_far_broker: tuple[BrokerThread, str], capsys: pytest.CaptureFixture[str]
) -> None:
    rocketmq, address = rocketmq_and_far_broker
    for command in (
        "doctor",
        "topic create goods",
        "topic delete orders --yes",
        "consumer list",
        "offset show billing",
        "message by-time orders --begin 1h",
        "cluster ha",
        f"topic list -n {address}",
    ):
        if "-n" not in command:
            command += f" -n {rocketmq.namesrv}"
        assert main(command.split()) == 1, command
        told = capsys.readouterr()
        assert f"connect to {address}: 'mq..example' is not a host name" in told.out + told.err, (
            command
        )
