"""Messages with a time of delivery, and calling them back: what a user gives, what is sent, what
comes back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import ScriptedBroker, scripted_cluster

from turbopump.blocking import Producer as BlockingProducer
from turbopump.client import tracing
from turbopump.client.producer import Producer
from turbopump.errors import (
    CallTimeoutError,
    ConnectionLostError,
    MessageError,
    ResponseError,
    RouteNotFoundError,
)
from turbopump.message.handles import RecallHandle
from turbopump.message.message import Message
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import RecallMessage, RecallMessageReply
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.response import Response
from turbopump.remoting.router import RequestContext
from turbopump.testing import running_broker
from turbopump.testing.broker_in_loop import BrokerThread, RunningBroker

AT = datetime(2026, 11, 22, 3, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "properties"),
    [
        ({"deliver_at": AT}, {"TIMER_DELIVER_MS": "1795318200000"}),
        ({"deliver_at": 1795318200001}, {"TIMER_DELIVER_MS": "1795318200001"}),
        ({"delay": 5}, {"TIMER_DELAY_SEC": "5"}),
        ({"delay": 0.25}, {"TIMER_DELAY_MS": "250"}),
        ({"delay": 0.0001}, {"TIMER_DELAY_MS": "1"}),
        ({"delay": timedelta(days=400)}, {"TIMER_DELAY_SEC": "34560000"}),
        ({"delay": timedelta(milliseconds=1)}, {"TIMER_DELAY_MS": "1"}),
        ({"delay": 0}, {"TIMER_DELAY_SEC": "0"}),
    ],
)
def test_a_time_becomes_apaches_property(given: dict[str, Any], properties: dict[str, str]) -> None:
    assert Message("T", b"x", **given).properties == properties


@pytest.mark.parametrize(
    "given",
    [
        {"deliver_at": 1795318200},
        {"deliver_at": 1795318200.5},
        {"deliver_at": True},
        {"deliver_at": datetime(1970, 1, 1, tzinfo=UTC)},
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": "5"},
        {"delay": True},
        {"delay": 5, "deliver_at": AT},
        {"delay": 5, "delay_level": 3},
    ],
)
def test_what_is_no_time_is_told(given: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match=r"deliver_at|delay"):
        Message("T", b"x", **given)


def test_a_handle_is_apaches_text() -> None:
    handle = RecallHandle("T", "broker-a", "1795318199001", "U1")
    assert handle.encode() == "djEgVCBicm9rZXItYSAxNzk1MzE4MTk5MDAxIFUx"
    assert RecallHandle.decode(handle.encode()) == handle
    long = RecallHandle("Ü", "b", "1", "U123")
    assert RecallHandle.decode(long.encode().rstrip("=")) == long
    spaced = RecallHandle("T", "b", "1", "order 17 ")
    assert RecallHandle.decode(spaced.encode()) == spaced
    assert handle.time_ms == 1795318199001
    for text in ("", "v1", "djIgVCBicm9rZXItYSAxIFUx", "@@@", "djEgVCA=", "é"):
        with pytest.raises(MessageError, match="recall handle is invalid"):
            RecallHandle.decode(text)


@in_loop
async def test_a_producer_recalls_what_it_sent_and_is_told_when_it_is_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "FLUSH_INTERVAL_S", 1000.0)  # it is looked at what is held
    async with (
        running_broker() as running,
        Producer(running.namesrv, group="p", trace=True) as producer,
    ):
        await running.create_topic("Orders")
        plain = await producer.send("Orders", b"now")
        assert plain.recall_handle is None
        later = await producer.send(Message("Orders", b"later", delay=3600))
        assert later.recall_handle is not None
        assert await producer.recall("Orders", later.recall_handle) == later.msg_id
        own = await producer.send(
            Message("Orders", b"x", delay=60, properties={"UNIQ_KEY": "order 17"})
        )
        assert own.recall_handle is not None
        assert await producer.recall("Orders", own.recall_handle) == "order 17"
        wrong = RecallHandle.decode(later.recall_handle)
        with pytest.raises(ResponseError, match="no message") as refused:
            await producer.recall(
                "Orders",
                RecallHandle("Orders", wrong.broker_name, wrong.time_text, "UNKNOWN").encode(),
            )
        assert refused.value.code == ResponseCode.ILLEGAL_OPERATION
        with pytest.raises(ResponseError, match="timestamp invalid: the message was due at"):
            await producer.recall(
                "Orders", RecallHandle("Orders", wrong.broker_name, "1000001", "X").encode()
            )
        with pytest.raises(RouteNotFoundError, match="elsewhere"):
            await producer.recall("Orders", RecallHandle("Orders", "elsewhere", "1", "X").encode())
        with pytest.raises(MessageError, match="recall handle is invalid"):
            await producer.recall("Orders", "nonsense")
        plain = await producer.send(Message("Orders", b"at once"))
        with pytest.raises(
            MessageError, match="recall_handle is None: only a message with a future"
        ):
            await producer.recall("Orders", plain.recall_handle)  # type: ignore[arg-type]
        with pytest.raises(MessageError, match="retry"):
            await producer.recall("%RETRY%g", later.recall_handle)
        assert producer._tracing is not None
        records = [record.split("\x01") for _, record in producer._tracing.dispatcher._held]
        told = [record for record in records if record[0] == "Recall"]
        assert told[0][3:7] == ["p", "Orders", later.msg_id, "true\x02"]
        assert [one[6] for one in told] == ["true\x02", "true\x02", "false\x02", "false\x02"]


async def change_topic(running: RunningBroker, **settings: int) -> None:
    admin = RemotingClient()
    await admin.call(running.broker_address, CreateTopic(topic="Orders", **settings), timeout=60)
    await admin.close()


@pytest.mark.parametrize("since", [{"perm": 4}, {"perm": 0}, {"write_queue_nums": 0}])
@in_loop
async def test_a_producer_that_comes_later_recalls_in_a_topic_that_takes_no_more_messages(
    since: dict[str, int],
) -> None:
    async with running_broker() as running:
        await running.create_topic("Orders")
        async with Producer(running.namesrv, group="p") as producer:
            sent = await producer.send(Message("Orders", b"later", delay=3600))
        assert sent.recall_handle is not None
        await change_topic(running, **{"read_queue_nums": 4, "write_queue_nums": 4, **since})
        async with Producer(running.namesrv, group="p") as producer:
            with pytest.raises(RouteNotFoundError, match="no writable queue"):
                await producer.send("Orders", b"now")
            assert await producer.recall("Orders", sent.recall_handle) == sent.msg_id
        async with Producer(running.namesrv, group="p") as producer:
            assert await producer.recall("Orders", sent.recall_handle) == sent.msg_id


@in_loop
async def test_a_producer_recalls_on_a_broker_that_was_made_read_only(tmp_path: Path) -> None:
    async with (
        running_broker(directory=tmp_path, broker_name="broker-a") as running,
        Producer(running.namesrv) as producer,
    ):
        await running.create_topic("Orders")
        sent = await producer.send(Message("Orders", b"later", delay=3600))
    assert sent.recall_handle is not None
    async with (
        running_broker(directory=tmp_path, broker_name="broker-a", broker_permission=4) as running,
        Producer(running.namesrv) as producer,
    ):
        assert await producer.recall("Orders", sent.recall_handle) == sent.msg_id


def test_the_blocking_producer_recalls_too() -> None:
    with BrokerThread() as running, BlockingProducer(running.namesrv) as producer:
        later = producer.send(Message("Orders", b"later", delay=timedelta(hours=1)))
        assert later.recall_handle is not None
        assert producer.recall("Orders", later.recall_handle) == later.msg_id


class _Recalls:
    """A broker's answers to recalls: it loses the connection ``losses`` times first."""

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self.asked = 0

    def prepare(self, broker: ScriptedBroker) -> None:
        broker.further.append((RecallMessage, self.answer))

    def answer(self, request: RecallMessage, context: RequestContext) -> Response | None:
        self.asked += 1
        if self.asked <= self.losses:
            context.peer.abort()
            return None
        return Response(
            RecallMessageReply(msg_id=RecallHandle.decode(request.recall_handle).unique_id)
        )


HANDLE = RecallHandle("orders", "broker-a", "1795318199001", "U1").encode()


@pytest.mark.parametrize("losses", [1, 3])
@in_loop(simulated)
async def test_a_recall_whose_connection_is_lost_is_asked_again(
    simulation: Simulation, /, losses: int
) -> None:
    recalls = _Recalls(losses)
    async with (
        scripted_cluster(simulation, prepare=recalls.prepare) as cluster,
        producer_of(cluster) as producer,
    ):
        assert await producer.recall("orders", HANDLE) == "U1"
        assert recalls.asked == losses + 1


@in_loop(simulated)
async def test_a_recall_that_stays_without_an_answer_says_that_nobody_knows(
    simulation: Simulation, /
) -> None:
    recalls = _Recalls(10_000)
    async with (
        scripted_cluster(simulation, prepare=recalls.prepare) as cluster,
        producer_of(cluster) as producer,
    ):
        before = simulation.loop.time()
        with pytest.raises(
            ConnectionLostError, match="whether the message was recalled is not known: ask again"
        ):
            await producer.recall("orders", HANDLE, timeout=2)
        assert simulation.loop.time() - before <= 2
        assert recalls.asked > 3


@pytest.mark.parametrize("timeout", [0, -1])
@in_loop(simulated)
async def test_a_recall_without_time_asks_nobody(simulation: Simulation, /, timeout: float) -> None:
    recalls = _Recalls(0)
    async with (
        scripted_cluster(simulation, prepare=recalls.prepare) as cluster,
        producer_of(cluster) as producer,
    ):
        with pytest.raises(CallTimeoutError, match="leaves no time for it: nobody was asked"):
            await producer.recall("orders", HANDLE, timeout=timeout)
        assert recalls.asked == 0
