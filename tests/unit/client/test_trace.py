"""Traces of sends, in virtual time. Their encoding is tested against Apache's in tests/golden/test_clients.py."""

from __future__ import annotations

import asyncio

from tests.unit.client.scripted_cluster import ScriptedCluster, refusal, scripted_cluster, until
from tests.unit.client.test_producer import producer_of

from turbopump.client.hooks import MessageKind
from turbopump.client.trace import TRACE_TOPIC, Traced, pub_record
from turbopump.client.trace_dispatcher import HELD_MAX, SIZE_MAX, TraceDispatcher, trace_messages
from turbopump.errors import SendError
from turbopump.message.codec import decode_entry
from turbopump.message.message import Message, ReceivedMessage
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.testing.simulation import Simulation, simulate


def traces(cluster: ScriptedCluster, topic: str = TRACE_TOPIC) -> list[ReceivedMessage]:
    found = [decode_entry(entry) for key, entries in cluster.broker.entries.items() if key[0] == topic for entry in entries]
    return sorted(found, key=lambda message: message.body)


def records(message: ReceivedMessage) -> list[list[str]]:
    return [record.split("\x01") for record in message.body.decode().split("\x02") if record]


def test_a_send_leaves_a_trace_after_five_seconds() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with scripted_cluster(simulation) as cluster:
            cluster.name_server.route(TRACE_TOPIC, cluster.broker)
            async with producer_of(cluster, group="sellers", trace=True) as producer:
                result = await producer.send("orders", b"body", tags="new", keys=["k1", "k2"])
                await asyncio.sleep(4.9)
                assert traces(cluster) == []
                await until(lambda: bool(traces(cluster)))
            (message,) = traces(cluster)
            (fields,) = records(message)
            assert fields[0] == "Pub"
            assert fields[2:9] == [
                "DefaultRegion",
                "sellers",
                "orders",
                result.msg_id,
                "new",
                "k1 k2",
                cluster.broker.address,
            ]
            assert (fields[9], fields[11], fields[12], fields[13]) == ("4", "0", result.offset_msg_id, "true")
            assert message.keys == [result.msg_id, "k1", "k2"]
            groups = [data.group_name for data in cluster.broker.heartbeats[-1].producer_data_set]
            assert groups == ["sellers", "_INNER_TRACE_PRODUCER-sellers-PRODUCE-1"]

    simulate(1, scenario)


def test_ten_traces_go_at_once_the_rest_at_the_close_and_traces_leave_none() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with scripted_cluster(simulation) as cluster:
            cluster.name_server.route("my_traces", cluster.broker)
            async with producer_of(cluster, trace="my_traces") as producer:
                for _ in range(10):
                    await producer.send("orders", b"x")
                await until(lambda: len(traces(cluster, "my_traces")) == 1)
                assert simulation.loop.time() < 1
                await producer.send("orders", b"x")
            assert sorted(len(records(message)) for message in traces(cluster, "my_traces")) == [1, 10]

    simulate(1, scenario)


def test_what_failed_and_what_the_broker_does_not_want_traced_leaves_none() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with scripted_cluster(simulation) as cluster:
            cluster.name_server.route(TRACE_TOPIC, cluster.broker)
            async with producer_of(cluster, trace=True, retries=0) as producer:
                off = refusal(ResponseCode.SUCCESS)
                off.ext = {"msgId": "AB", "queueId": "0", "queueOffset": "7", "TRACE_ON": "false", "MSG_REGION": "north"}
                late = refusal(ResponseCode.FLUSH_DISK_TIMEOUT)
                late.ext = {**off.ext, "TRACE_ON": "true"}
                cluster.broker.script[RequestCode.SEND_MESSAGE_V2].extend([refusal(ResponseCode.SYSTEM_BUSY), off, late])
                try:
                    await producer.send("orders", b"x")
                except SendError:
                    pass
                else:
                    raise AssertionError
                await producer.send("orders", b"x")
                await producer.send("orders", b"x")
            (message,) = traces(cluster)
            ((*_, success),) = records(message)
            assert success == "false"  # stored, but not flushed in time
            assert records(message)[0][2] == "north"

    simulate(1, scenario)


def test_traces_that_cannot_be_sent_disturb_nobody(caplog) -> None:  # type: ignore[no-untyped-def]
    async def scenario(simulation: Simulation) -> None:
        async with scripted_cluster(simulation) as cluster, producer_of(cluster, trace=True) as producer:
            for _ in range(30):
                await producer.send("orders", b"x")
            assert simulation.loop.time() < 5

    simulate(1, scenario)
    assert caplog.text.count("traces not sent") == 1


def test_what_cannot_be_kept_is_dropped_and_counted() -> None:
    async def scenario(simulation: Simulation) -> None:
        never = asyncio.get_running_loop().create_future()

        async def send(_: Message) -> None:
            await never

        dispatcher = TraceDispatcher(send, topic=TRACE_TOPIC, namespace=None, now_ms=lambda: 0)
        for i in range(HELD_MAX + 100):
            dispatcher.append(Traced("t", f"{i}"), "r\x02")
        assert dispatcher.dropped == 100
        before = simulation.loop.time()
        await dispatcher.close()
        assert 4.9 < simulation.loop.time() - before < 5.1

    simulate(1, scenario)


def test_a_trace_message_holds_one_topic_and_is_not_too_long() -> None:
    def record(topic: str, i: int, size: int = 20) -> tuple[Traced, str]:
        traced = Traced(topic, f"{topic}{i}", keys="k" * size)
        text = pub_record(
            traced,
            time_ms=1,
            region="r",
            group="g",
            store_host="h",
            body_size=1,
            cost_ms=1,
            kind=MessageKind.NORMAL,
            offset_msg_id="o",
            success=True,
        )
        return traced, text

    two = trace_messages([record("a", 1), record("b", 1), record("a", 2)], TRACE_TOPIC)
    assert [message.keys[::2] for message in two] == [["a1", "a2"], ["b1"]]
    large = trace_messages([record("a", i, 50_000) for i in range(6)], TRACE_TOPIC)
    assert [len(message.body) < SIZE_MAX + 60_000 for message in large] == [True, True]
