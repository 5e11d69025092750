"""Requests and connections leave nothing to Python's collector, on the loop that servers use: it
passes over what has been there for long (``cli/serving.short_collections``), dead or not."""

import gc
import time
from pathlib import Path

import pytest
from tests.unit.broker.talking import SMALL, subscription, talking
from tests.unit.broker.test_turns import heartbeat, popping, pulling
from tests.unit.metered_loop import PATIENCE_S, BlockingClient, Metered, metered

from turbopump.broker.broker import Broker
from turbopump.protocol.frame import TLS_HANDSHAKE
from turbopump.protocol.requests.clients import Heartbeat
from turbopump.protocol.requests.pop import BatchAckMessage
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.protocol.requests.topics import CreateTopic, GetTopicStatsInfo

CONNECTIONS = 10


def visit(port: int, number: int) -> None:
    """What a client may do in the life of its connection, and what it may do wrong."""
    with BlockingClient(port) as client:
        topic = f"visited-{number % 2}"
        client.ask(Heartbeat(), heartbeat(subscription(topic=topic)))
        client.ask(CreateTopic(topic=topic, read_queue_nums=1, write_queue_nums=1))
        client.ask(SendMessageV2(topic=topic, queue_id=0), b"one")
        client.ask(SendMessageV2(topic=topic, queue_id=99), b"one")
        client.ask(pulling(topic))
        client.ask(pulling("no-such-topic"))
        client.ask(popping(topic))
        client.ask(BatchAckMessage(), b"{")
        client.ask(GetTopicStatsInfo(topic=topic))
        client.write(client.frame(pulling("held", hold_ms=50)))
        if number % 2:
            client.write(TLS_HANDSHAKE.to_bytes(2) * 100)
            client.read()


def wait_until_all_are_gone(broker: Metered[Broker]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while broker.do(lambda server: len(server.held_pulls)):
        assert time.monotonic() < give_up_at


def test_connections_leave_no_cycles(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")
    with (
        metered(lambda: talking(tmp_path, **SMALL), uvloop.new_event_loop) as running,
        BlockingClient(running.do(lambda talk: talk.broker.port)) as client,
    ):
        broker = Metered(running.loop, running.server.broker)
        port = broker.do(lambda server: server.port)
        client.ask(CreateTopic(topic="held", read_queue_nums=1, write_queue_nums=1))
        visit(port, CONNECTIONS)  # what is made once
        wait_until_all_are_gone(broker)
        gc.collect()
        gc.disable()
        try:
            for number in range(CONNECTIONS):
                visit(port, number)
            wait_until_all_are_gone(broker)
            assert gc.collect() < CONNECTIONS
        finally:
            gc.enable()
