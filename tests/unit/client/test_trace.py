"""Traces of sends and of consumers, in virtual time. Their encoding is tested against Apache's in
tests/golden/test_clients.py."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import returns
from tests.unit.client.producers import producer_of
from tests.unit.client.push_consumers import consumer_of, fill
from tests.unit.client.scripted_cluster import refusal, scripted_cluster
from tests.unit.client.trace_records import by_message, records, store, traces
from tests.waits import until, until_count

from turbopump.client.consumer.delivery import Delivery, Retry
from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.client.hooks import MessageKind
from turbopump.client.lite_pull_consumer import LitePullConsumer
from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.trace import TRACE_TOPIC, TracedMessage, pub_record
from turbopump.client.tracing import (
    HELD_MAX,
    KEYS_SIZE_MAX,
    SIZE_MAX,
    TraceDispatcher,
    TraceRecord,
    trace_message,
    trace_parts,
)
from turbopump.errors import SendError
from turbopump.message.message import Message
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.frame import ROCKETMQ


@in_loop(simulated)
async def test_a_send_leaves_a_trace_after_five_seconds(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster:
        cluster.name_server.route(TRACE_TOPIC, cluster.broker)
        async with producer_of(cluster, group="sellers", trace=True) as producer:
            result = await producer.send("orders", b"body", tags="new", keys=["k1", "k2"])
            await asyncio.sleep(4.9)
            assert traces(cluster) == []
            await until(traces, cluster)
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
        assert (fields[9], fields[11], fields[12], fields[13]) == (
            "4",
            "0",
            result.offset_msg_id,
            "true",
        )
        assert message.keys == [result.msg_id, "k1", "k2"]
        groups = [data.group_name for data in cluster.broker.heartbeats[-1].producer_data_set]
        assert groups == ["sellers", "_INNER_TRACE_PRODUCER-sellers-PRODUCE-1"]


@in_loop(simulated)
async def test_groups_of_any_length_are_traced_each_under_a_group_of_its_own(
    simulation: Simulation, /
) -> None:
    """A group of 89 characters and more once could not be started: the name of its traces' group
    was too long."""
    long = "g" * 120
    groups = ["g" * 88, "g" * 89, long, long[:-1] + "h"]
    async with scripted_cluster(simulation) as cluster, AsyncExitStack() as stack:
        cluster.name_server.route(TRACE_TOPIC, cluster.broker)
        fill(cluster, 1)
        for group in groups:
            producer = await stack.enter_async_context(
                producer_of(cluster, group=group, trace=True, instance_name="till")
            )
            await producer.send("orders", b"body")
        await stack.enter_async_context(
            consumer_of(
                cluster,
                group=long,
                trace=True,
                instance_name="till",
                consume_from=ConsumeFrom.FIRST,
            )
        )
        await until(lambda: len(cluster.broker.heartbeats[-1].producer_data_set) == 9)
        named = [data.group_name for data in cluster.broker.heartbeats[-1].producer_data_set]
        by_traces = [name for name in named if name.startswith("_INNER_TRACE_PRODUCER-")]
        assert by_traces[0] == f"_INNER_TRACE_PRODUCER-{groups[0]}-PRODUCE-1"
        assert [len(name) for name in by_traces] == [120] * 5
        assert [name.endswith("-PRODUCE-1") for name in by_traces] == [True] * 4 + [False]
        assert len(set(by_traces)) == 5
    traced = {
        record[3]
        for message in traces(cluster)
        for record in records(message)
        if record[0] == "Pub"
    }
    assert traced == set(groups)


@in_loop(simulated)
async def test_traces_travel_as_their_producers_settings_say(simulation: Simulation, /) -> None:
    """A traced producer with an instance_name and any other of these settings could not start."""
    async with scripted_cluster(simulation) as cluster:
        cluster.name_server.route(TRACE_TOPIC, cluster.broker)
        settings = {"instance_name": "till", "header_form": "ROCKETMQ", "heartbeat_interval": 9.0}
        async with producer_of(cluster, trace=True, **settings) as producer:
            await producer.send("orders", b"body")
        assert len(traces(cluster)) == 1
        assert set(cluster.broker.forms) == {ROCKETMQ}


@in_loop(simulated)
async def test_ten_traces_go_at_once_the_rest_at_the_close_and_traces_leave_none(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        cluster.name_server.route("my_traces", cluster.broker)
        async with producer_of(cluster, trace="my_traces") as producer:
            for _ in range(10):
                await producer.send("orders", b"x")
            await until(lambda: len(traces(cluster, "my_traces")) == 1)
            assert simulation.loop.time() < 1
            await producer.send("orders", b"x")
        assert sorted(len(records(message)) for message in traces(cluster, "my_traces")) == [1, 10]


@in_loop(simulated)
async def test_what_failed_and_what_the_broker_does_not_want_traced_leaves_none(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        cluster.name_server.route(TRACE_TOPIC, cluster.broker)
        async with producer_of(cluster, trace=True, retries=0) as producer:
            off = refusal(ResponseCode.SUCCESS)
            off.ext = {
                "msgId": "AB",
                "queueId": "0",
                "queueOffset": "7",
                "TRACE_ON": "false",
                "MSG_REGION": "north",
            }
            late = refusal(ResponseCode.FLUSH_DISK_TIMEOUT)
            late.ext = {**off.ext, "TRACE_ON": "true"}
            cluster.broker.script[RequestCode.SEND_MESSAGE_V2].extend(
                [refusal(ResponseCode.SYSTEM_BUSY), off, late]
            )
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


@in_loop(simulated)
async def test_traces_that_cannot_be_sent_disturb_nobody(simulation: Simulation, /, caplog) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, trace=True) as producer,
    ):
        for _ in range(30):
            await producer.send("orders", b"x")
        assert simulation.loop.time() < 5
    assert caplog.text.count("traces not sent") == 1


@in_loop(simulated)
async def test_what_cannot_be_kept_is_dropped_and_counted(simulation: Simulation, /) -> None:
    never = asyncio.get_running_loop().create_future()

    async def send(_: Message) -> None:
        await never

    dispatcher = TraceDispatcher(send, topic=TRACE_TOPIC, namespace=None, now_ms=returns(0))
    for i in range(HELD_MAX + 100):
        dispatcher.append(TracedMessage("t", f"{i}"), "r\x02")
    assert dispatcher.dropped == 100
    before = simulation.loop.time()
    await dispatcher.close()
    assert 4.9 < simulation.loop.time() - before < 5.1


def messages_of(records: list[TraceRecord]) -> list[Message]:
    return [trace_message(part, TRACE_TOPIC) for part in trace_parts(records)]


def test_a_trace_message_holds_one_topic_and_is_not_too_long() -> None:
    def record(topic: str, i: int, size: int = 20) -> tuple[TracedMessage, str]:
        traced = TracedMessage(topic, f"{topic}{i}", None, "k" * size, 1, "r", "g")
        text = pub_record(
            traced,
            store_host="h",
            body_size=1,
            cost_ms=1,
            kind=MessageKind.NORMAL,
            offset_msg_id="o",
            success=True,
        )
        return traced, text

    two = messages_of([record("a", 1), record("b", 1), record("a", 2)])
    assert [message.keys[::2] for message in two] == [["a1", "a2"], ["b1"]]
    large = messages_of([record("a", i, 50_000) for i in range(6)])
    assert [len(message.body) < SIZE_MAX + 60_000 for message in large] == [True, True]


@in_loop(simulated)
async def test_each_message_of_a_batch_has_a_trace_with_its_own_id_and_keys(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        cluster.name_server.route(TRACE_TOPIC, cluster.broker)
        async with producer_of(cluster, trace=True) as producer:
            batch = [
                Message("orders", b"first", keys="k1", tags="a"),
                Message("orders", b"2nd", keys=["k2", "k3"]),
            ]
            result = await producer.send_batch(batch)
            (alone,) = (await producer.send_batch([Message("orders", b"x", keys="k4")])).msg_ids
        (message,) = traces(cluster)
        first, second = result.msg_ids
        fields = [
            (record[5], record[6], record[7], record[9], record[12]) for record in records(message)
        ]
        offset_ids = result.offset_msg_id.split(",")
        assert fields[:2] == [
            (first, "a", "k1", "5", offset_ids[0]),
            (second, "null", "k2 k3", "3", offset_ids[-1]),
        ]
        assert fields[2][:4] == (alone, "null", "k4", "1")
        assert message.keys == [first, "k1", second, "k2", "k3", alone, "k4"]


@in_loop(simulated)
async def test_messages_that_are_batched_by_themselves_are_traced_by_their_ids_and_keys(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        cluster.name_server.route(TRACE_TOPIC, cluster.broker)
        async with producer_of(cluster, trace=True, auto_batch=AutoBatch()) as producer:
            results = await asyncio.gather(
                *[producer.send("orders", b"x", keys=f"key{i}") for i in range(9)]
            )
        found = {record[5]: record[7] for message in traces(cluster) for record in records(message)}
        assert found == {result.msg_id: f"key{i}" for i, result in enumerate(results)}


@in_loop(simulated)
async def test_a_large_batch_takes_no_other_messages_traces_with_it(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        cluster.name_server.route(TRACE_TOPIC, cluster.broker)
        async with producer_of(cluster, trace=True) as producer:
            before = await producer.send("orders", b"x", keys="k")
            batch = await producer.send_batch([Message("orders", b"x") for _ in range(HELD_MAX)])
            after = await producer.send("orders", b"x")
        keys = {key for message in traces(cluster) for key in message.keys}
        assert {before.msg_id, "k", after.msg_id} <= keys
        assert len(keys & set(batch.msg_ids)) == (HELD_MAX - 1) // 2, (
            "half of the room that it finds"
        )


def keys_of(records: list[TraceRecord]) -> list[list[str]]:
    messages = messages_of(records)
    assert all(len(message.properties["KEYS"].encode()) <= KEYS_SIZE_MAX for message in messages)
    return [message.keys for message in messages]


def test_the_keys_of_a_trace_message_fit_its_properties_however_many_or_long() -> None:
    many = keys_of([(TracedMessage("t", f"{i:032}"), "r\x02") for i in range(1500)])
    assert [len(keys) for keys in many] == [727, 727, 46]
    assert [key for keys in many for key in keys] == [f"{i:032}" for i in range(1500)]
    long = " ".join("é" * 100 + str(i) for i in range(150))
    (kept,) = keys_of([(TracedMessage("t", "one", keys=long), "r\x02")])
    assert kept == ["one", *long.split()[:118]]
    assert keys_of([(TracedMessage("t", "an id with spaces"), "r\x02")]) == [
        ["an", "id", "with", "spaces"]
    ]


@in_loop(simulated)
async def test_a_record_that_is_refused_takes_no_others_with_it(
    simulation: Simulation, /, caplog
) -> None:
    async with scripted_cluster(simulation) as cluster:
        cluster.name_server.route(TRACE_TOPIC, cluster.broker)
        async with producer_of(cluster, trace=True) as producer:
            assert producer._tracing is not None
            for i in range(7):
                name = "not\x02text" if i == 3 else f"m{i}"
                producer._tracing.dispatcher.append(TracedMessage("orders", name), f"r{i}\x02")
        assert sorted(key for message in traces(cluster) for key in message.keys) == [
            "m0",
            "m1",
            "m2",
            "m4",
            "m5",
            "m6",
        ]
        cluster.broker.script[RequestCode.SEND_MESSAGE_V2].append(
            refusal(ResponseCode.MESSAGE_ILLEGAL)
        )
        async with producer_of(cluster, trace=True) as producer:
            assert producer._tracing is not None
            for i in range(2):
                producer._tracing.dispatcher.append(TracedMessage("orders", f"n{i}"), f"r{i}\x02")
        assert [message.keys for message in traces(cluster) if message.keys[0].startswith("n")] == [
            ["n0"],
            ["n1"],
        ]
    assert caplog.text.count("traces not sent") == 1


# --- consumers
# -----------------------------------------------------------------------------------------------


@in_loop(simulated)
async def test_a_consumer_leaves_a_record_before_and_after_each_handling(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        cluster.broker.takes_back = True
        cluster.name_server.route(TRACE_TOPIC, cluster.broker)
        store(cluster, b"good", "M1", MSG_REGION="north", TRACE_ON="true", KEYS="k1 k2", TAGS="new")
        store(cluster, b"bad", "M2", MSG_REGION="north")
        store(cluster, b"not now", "M3", MSG_REGION="north")
        store(cluster, b"untraced", "M4", TRACE_ON="false")
        seen: list[bytes] = []

        async def handle(message: Delivery) -> object:
            seen.append(message.body)
            await asyncio.sleep(0.25)
            if message.body == b"bad":
                raise ValueError("no\x01 stock\x02\n at all")
            return Retry(reason="too early") if message.body == b"not now" else None

        async with consumer_of(cluster, handler=handle, trace=True, tags="*"):
            await until_count(seen, 4)
            groups = [data.group_name for data in cluster.broker.heartbeats[-1].producer_data_set]
            assert groups == ["_INNER_TRACE_PRODUCER-readers-CONSUME-1"]
        before, after = by_message(cluster, "M1")
        request = before[4]
        assert before == ["SubBefore", before[1], "north", "readers", request, "M1", "0", "k1 k2"]
        assert after == [
            "SubAfter",
            request,
            "M1",
            "250",
            "true",
            "k1 k2",
            "0",
            after[7],
            "readers",
        ]
        assert int(after[7]) - int(before[1]) == 250
        assert len(request) == 32
        (_, bad), (_, early) = by_message(cluster, "M2"), by_message(cluster, "M3")
        assert (bad[4], bad[6], bad[9]) == ("false", "2", "error=ValueError: no stock at all")
        assert (early[4], early[6], early[9]) == ("false", "4", "error=too early")
        assert by_message(cluster, "M4") == []
        keys = {key for message in traces(cluster) for key in message.keys}
        assert keys == {"M1", "k1", "k2", "M2", "M3"}


@in_loop(simulated)
async def test_ordered_consumers_trace_every_attempt_and_async_for_what_is_settled(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        cluster.name_server.route(TRACE_TOPIC, cluster.broker)
        store(cluster, b"a", "M1")
        async with consumer_of(cluster, ordered=True, suspend_time=0.5, trace=True) as consumer:
            async for message in consumer:
                await asyncio.sleep(0.1)
                if message.attempt == 1:
                    message.retry()
                else:
                    message.done()
                    break
        first, failed, second, done = by_message(cluster, "M1")
        assert [first[0], failed[0], second[0], done[0]] == ["SubBefore", "SubAfter"] * 2
        assert (first[6], second[6]) == ("0", "1"), "retries"
        assert (failed[3:], done[3:]) == (
            ["100", "false", "null", "4", failed[7], "readers"],
            ["100", "true", "null", "0", done[7], "readers"],
        )
        assert first[4] != second[4]


@in_loop(simulated)
async def test_a_lite_pull_consumer_leaves_records_of_what_was_polled(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, queues=1) as cluster:
        cluster.name_server.route("my_traces", cluster.broker)
        for i in range(3):
            store(cluster, b"x", f"M{i}", TRACE_ON="false" if i == 1 else "true")
        settings = {**cluster.settings, "trace": "my_traces", "consume_from": ConsumeFrom.FIRST}
        async with LitePullConsumer(
            cluster.name_server.address, group="readers", topic="orders", **settings
        ) as consumer:  # type: ignore[arg-type]
            assert len(await consumer.poll()) == 3
        (message,) = traces(cluster, "my_traces")
        told = [
            (record[0], record[5 if record[0] == "SubBefore" else 2]) for record in records(message)
        ]
        assert told == [
            ("SubBefore", "M0"),
            ("SubBefore", "M2"),
            ("SubAfter", "M0"),
            ("SubAfter", "M2"),
        ]
        assert (
            len({record[4 if record[0] == "SubBefore" else 1] for record in records(message)}) == 1
        ), "one poll, one request id"
