"""What a broker can have our clients log: a line at once, then one every ten seconds with how many
there were, however often it does so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import returns
from tests.unit.client.push_consumers import consumer_of
from tests.unit.client.scripted_cluster import ScriptedBroker, ScriptedCluster, scripted_cluster

from turbopump.message.message import MessageQueue
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import encode_command, request_command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.offsets import ResetConsumerOffset, ResetOffsetBody
from turbopump.protocol.requests.pull import PullMessage, PullMessageReply
from turbopump.protocol.requests.send import CheckTransactionState
from turbopump.remoting.response import Response

TIMES = 500


def send_often(broker: ScriptedBroker, request: Request[Any], body: Callable[[int], bytes]) -> None:
    """Requests of the broker's to its one consumer."""
    (connection,) = broker.members["readers"].values()
    for number in range(TIMES):
        command = request_command(request, body(number), opaque=number, oneway=True)
        connection.send_frame(encode_command(command))


async def moves_offsets(cluster: ScriptedCluster) -> None:
    for number in range(TIMES):
        reply = PullMessageReply(next_begin_offset=number % 7, min_offset=0, max_offset=9)
        cluster.broker.script[PullMessage.code].append(
            Response(reply, code=ResponseCode.PULL_OFFSET_MOVED)
        )
    cluster.broker.store("orders", 0, b"x")
    while cluster.broker.script[PullMessage.code]:
        await asyncio.sleep(0.1)


async def gives_damaged_messages(cluster: ScriptedCluster) -> None:
    broker = cluster.broker
    for _ in range(TIMES):
        broker.store("orders", 0, b"body")
    entries = broker.entries["orders", 0]
    for number, entry in enumerate(entries):
        entries[number] = entry.replace(b"body", b"b0dy")


async def asks_what_cannot_be_read(cluster: ScriptedCluster) -> None:
    question = CheckTransactionState(tran_state_table_offset=0, commit_log_offset=0)
    send_often(cluster.broker, question, returns(b"no message"))


def reset_body(cluster: ScriptedCluster, number: int) -> bytes:
    queue = MessageQueue("orders", cluster.broker.name, 0)
    return fastjson.encode(ResetOffsetBody(offset_table={queue: number % 3}))


async def resets_offsets(cluster: ScriptedCluster) -> None:
    send_often(
        cluster.broker,
        ResetConsumerOffset(group="readers", topic="orders", timestamp=0),
        partial(reset_body, cluster),
    )


async def changes_the_group(cluster: ScriptedCluster) -> None:
    """It says again and again that the group has changed, and lists another member each time."""
    broker = cluster.broker
    (connection,) = broker.members["readers"].values()
    for number in range(TIMES):
        if number % 2:
            broker.members["readers"]["0"] = connection
        else:
            broker.members["readers"].pop("0", None)
        broker.notify("readers")
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("hostile", "said"),
    [
        (moves_offsets, "offset outside of the queue"),
        (gives_damaged_messages, "damaged message left out"),
        (asks_what_cannot_be_read, "question about a transaction cannot be read"),
        (resets_offsets, "offset reset"),
        (changes_the_group, "rebalanced"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@in_loop(simulated)
async def test_a_line_that_a_broker_can_cause_is_counted(
    simulation: Simulation,
    /,
    hostile: Callable[[ScriptedCluster], Coroutine[Any, Any, None]],
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "turbopump")
    async with scripted_cluster(simulation, queues=2) as cluster, consumer_of(cluster):
        await asyncio.sleep(1)
        before = len(caplog.records)
        await hostile(cluster)
        await asyncio.sleep(21)
        told = [record.getMessage() for record in caplog.records[before:]]
    lines = [line for line in told if said in line]
    assert lines
    assert any("in_seconds=10" in line for line in lines)
    assert len(told) <= 12, "seconds and queues, not requests"
