"""A stream over two brokers of ours, one of which goes away and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from turbopump import Message, Producer
from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerConfig
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.client import RemotingClient
from turbopump.spark.batch import BatchReader
from turbopump.spark.offsets import Offsets, decode_offsets, encode_offsets
from turbopump.spark.options import read_options
from turbopump.spark.stream import StreamReader
from turbopump.testing import BrokerThread
from turbopump.testing.broker_in_loop import PATIENT, SMALL_FILES


class SecondBroker:
    """``broker-b``, on the loop of the first; keeps its store when it is stopped."""

    def __init__(self, first: BrokerThread, directory: Path) -> None:
        self._first = first
        self._directory = directory
        self._broker: Broker | None = None
        self._port = 0

    def start(self) -> None:
        self._first.run(self._start())

    def stop(self) -> None:
        if self._broker is not None:
            self._first.run(self._broker.close())
            self._broker = None

    @property
    def address(self) -> str:
        assert self._broker is not None
        return self._broker.address

    async def _start(self) -> None:
        config = BrokerConfig(
            namesrv_addr=self._first.namesrv,
            store_path_root_dir=str(self._directory),
            broker_name="broker-b",
            bind_address="127.0.0.1",
            listen_port=self._port,
            **SMALL_FILES,
            **PATIENT,
        )
        self._broker = Broker(config)
        await self._broker.start()
        self._port = int(self._broker.address.rpartition(":")[2])


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[BrokerThread, SecondBroker]]:
    """Both have the topic T with one queue."""
    with BrokerThread() as first:
        second = SecondBroker(first, tmp_path / "broker-b")
        second.start()
        first.create_topic("T", 1)
        first.run(create_topic(second.address))
        try:
            yield first, second
        finally:
            second.stop()


async def create_topic(address: str) -> None:
    client = RemotingClient()
    try:
        await client.call(address, CreateTopic(topic="T", read_queue_nums=1, write_queue_nums=1))
    finally:
        await client.close()


async def send(name_server: str, broker: str, count: int) -> None:
    async with Producer(name_server) as producer:
        (queue,) = [
            each for each in await producer.publish_queues("T") if each.broker_name == broker
        ]
        for _ in range(count):
            await producer.send(Message("T", b"x"), queue=queue)


def by_broker(offsets: Offsets) -> dict[str, int]:
    return {queue.broker_name: offset for queue, offset in offsets.items()}


def batch(now: Any, stream: StreamReader, begin: Offsets) -> tuple[Offsets, int]:
    """The end of the next micro-batch, and its rows."""
    now[0] += 10
    start = encode_offsets(begin)
    end = stream.latestOffset(start, ReadAllAvailable())
    rows = sum(
        found.num_rows for task in stream.partitions(start, end) for found in stream.read(task)
    )
    return decode_offsets(end), rows


def test_a_stream_goes_on_with_the_other_broker_and_misses_nothing_when_the_first_is_back(
    brokers: tuple[BrokerThread, SecondBroker], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = brokers
    now = [0.0]
    options = read_options({"nameServer": first.namesrv, "topic": "T", "columns": "queueOffset"})
    stream = StreamReader(options, now=lambda: now[0])

    try:
        offsets = decode_offsets(stream.initialOffset())
        assert by_broker(offsets) == {"broker-test": 0, "broker-b": 0}
        for broker in ("broker-test", "broker-b"):
            first.run(send(first.namesrv, broker, 5))
        second.stop()
        first.run(send(first.namesrv, "broker-test", 2))
        offsets, rows = batch(now, stream, offsets)
        assert by_broker(offsets) == {"broker-test": 7, "broker-b": 0}
        assert rows == 7
        assert "T@broker-b:0 is not in the route at the moment; its offset 0 is kept" in caplog.text

        second.start()
        first.run(send(first.namesrv, "broker-b", 3))
        offsets, rows = batch(now, stream, offsets)
        assert by_broker(offsets) == {"broker-test": 7, "broker-b": 8}
        assert rows == 8
    finally:
        stream.stop()


def test_available_now_takes_what_the_brokers_that_answer_have_if_told_to(
    brokers: tuple[BrokerThread, SecondBroker],
) -> None:
    first, second = brokers
    for broker in ("broker-test", "broker-b"):
        first.run(send(first.namesrv, broker, 5))
    given = {"nameServer": first.namesrv, "topic": "T", "brokerOfflineStrategy": "skip"}
    stream = StreamReader(read_options({**given, "startingOffsets": "earliest"}))
    try:
        begin = stream.initialOffset()
        second.stop()
        stream.prepareForTriggerAvailableNow()
        end = decode_offsets(stream.latestOffset(begin, ReadAllAvailable()))
        assert by_broker(end) == {"broker-test": 5, "broker-b": 0}
    finally:
        stream.stop()
    reader = BatchReader(read_options(given))
    rows = sum(found.num_rows for task in reader.partitions() for found in reader.read(task))
    assert rows == 5
