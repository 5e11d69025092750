"""Large bodies are compressed in a thread; a loop that stood still is not the broker's fault."""

from __future__ import annotations

import logging
import random
import threading

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import returns
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import scripted_cluster

from turbopump import ConsumeFrom, Message, Producer, PushConsumer, SendError
from turbopump.client.loop_stalls import LOOK_INTERVAL_S, LoopStalls
from turbopump.client.sending import outgoing
from turbopump.client.sending.outgoing import LARGE_BODY_SIZE
from turbopump.message.compression import compress
from turbopump.message.properties import ZLIB
from turbopump.protocol.codes import RequestCode
from turbopump.testing.broker_in_loop import running_broker

NOISE = random.Random(1).randbytes(LARGE_BODY_SIZE + 1)
BODIES = [b"x" * 5000, b"x" * LARGE_BODY_SIZE, b"y" * (4 << 20), NOISE]


@in_loop
async def test_the_loop_is_free_while_a_large_body_is_compressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: dict[int, int] = {}

    def noted(body: bytes, kind: int = ZLIB, level: int = 5) -> tuple[bytes, int]:
        threads[len(body)] = threading.get_ident()
        return compress(body, kind, level)

    monkeypatch.setattr(outgoing, "compress", noted)
    async with running_broker() as running:
        await running.create_topic("orders", 1)
        async with Producer(running.namesrv, send_timeout=60) as producer:
            for body in BODIES:
                await producer.send("orders", body)
            await producer.send_oneway("orders", BODIES[1])
            task = await producer.start_send(Message("orders", BODIES[1]))
            await task
        async with PushConsumer(
            running.namesrv, group="billing", topic="orders", consume_from=ConsumeFrom.FIRST
        ) as consumer:
            messages = []
            while len(messages) < len(BODIES) + 2:
                messages += await consumer.take(1)
    assert [message.body for message in messages[: len(BODIES)]] == BODIES
    here = threading.get_ident()
    assert threads.pop(5000) == here
    assert threads
    assert here not in threads.values()


def test_only_a_look_that_is_late_tells_of_a_stall() -> None:
    now = 100.0
    stalls = LoopStalls(lambda: now)
    for late in (0.0, 0.9):
        now += LOOK_INTERVAL_S + late
        stalls.measure_delay()
    assert stalls.explanation(100.0) == ""
    now += LOOK_INTERVAL_S + 2.5
    assert "stood still for 2.5 s" in stalls.explanation(now), "before the look itself came"


@in_loop(simulated)
async def test_a_send_that_fails_because_the_loop_stood_still_says_so(
    simulation: Simulation, /, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster, retries=0) as producer:
        await producer.send("orders", b"x")
        cluster.broker.script[RequestCode.SEND_MESSAGE_V2].append(None)  # no answer
        monkeypatch.setattr(LoopStalls, "_lateness", returns(2.1))
        with (
            caplog.at_level(logging.WARNING, "turbopump.client.loop_stalls"),
            pytest.raises(SendError, match=r"event loop stood still for 2\.1 s") as raised,
        ):
            await producer.send("orders", b"y")
    assert "broker's log" not in str(raised.value)
    assert "stood still, something in it blocks seconds=2.1" in caplog.text
