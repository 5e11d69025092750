"""With ``enableRetryTopicV2`` a broker makes `%RETRY%group+topic`. Every tool takes that name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from turbopump import ConsumeFrom, Producer, PushConsumer, SimpleConsumer
from turbopump.cli import main
from turbopump.testing.broker_in_loop import BrokerThread

RETRY = "%RETRY%g+orders"


@pytest.fixture(scope="module")
def popped() -> Iterator[BrokerThread]:
    """A broker whose group g has popped a message of orders, and let its time pass."""
    with BrokerThread(enable_retry_topic_v2=True) as rocketmq:
        rocketmq.create_topic("orders")
        rocketmq.run(_pop_in_vain(rocketmq.namesrv))
        yield rocketmq


async def _pop_in_vain(namesrv: str) -> None:
    async with (
        Producer(namesrv) as producer,
        SimpleConsumer(
            namesrv, group="g", topic="orders", consume_from=ConsumeFrom.FIRST
        ) as consumer,
    ):
        await producer.send("orders", "one")
        (first,) = await consumer.receive(invisible_seconds=1)
        again = await consumer.receive()
        assert (first.reconsume_times, again[0].reconsume_times) == (0, 1)


@pytest.mark.parametrize(
    "command",
    [
        f"topic route {RETRY}",
        f"topic alter {RETRY} --queues 2",
        f"consume {RETRY} --count 1",
        f"doctor -t {RETRY}",
        f"message by-time {RETRY} --begin 1h",
    ],
)
def test_a_command_takes_the_retry_topic_that_the_broker_made(
    popped: BrokerThread, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([*command.split(), "-n", popped.namesrv]) == 0, capsys.readouterr().err


async def _read(namesrv: str) -> bytes:
    async with PushConsumer(
        namesrv, group="h", topic=RETRY, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        (delivery,) = await consumer.take(1)
        delivery.done()
        return delivery.body


def test_a_push_consumer_reads_it(popped: BrokerThread) -> None:
    assert popped.run(_read(popped.namesrv)) == b"one"


def test_it_can_be_deleted(popped: BrokerThread, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "delete", RETRY, "--yes", "-n", popped.namesrv]) == 0
    assert RETRY in capsys.readouterr().out
