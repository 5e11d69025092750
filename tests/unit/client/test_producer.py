"""The producer against a scripted cluster, in virtual time."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import pytest
from tests.forks import in_a_fork
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import (
    ScriptedNameServer,
    deaf_to_sends,
    refusal,
    scripted_cluster,
)
from tests.waits import until

from turbopump.client.producer import Producer
from turbopump.client.sending.send_result import SendStatus
from turbopump.errors import (
    CallTimeoutError,
    ConfigError,
    MessageError,
    NotStartedError,
    RouteNotFoundError,
    SendError,
)
from turbopump.message.batch import decode_batch
from turbopump.message.codec import decode_entry
from turbopump.message.message import Message, MessageQueue
from turbopump.message.properties import SysFlag, decode_properties
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests.send import SendBatchMessage, SendMessageV2


@in_loop(simulated)
async def test_five_lines_send_a_message_that_is_stored_as_given(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        result = await producer.send(
            "orders", "body", tags="new", keys=["k1", "k2"], properties={"colour": "grün"}
        )
        assert result.status is SendStatus.OK
        stored = decode_entry(
            cluster.broker.entries["orders", result.queue.queue_id][result.queue_offset]
        )
        assert (stored.body, stored.tags, stored.keys, stored.properties["colour"]) == (
            b"body",
            "new",
            ["k1", "k2"],
            "grün",
        )
        assert stored.msg_id == result.msg_id


@in_loop(simulated)
async def test_a_message_object_can_be_sent_twice_and_gets_two_ids(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        message = Message("orders", b"x")
        first, second = await producer.send(message), await producer.send(message)
        assert first.msg_id != second.msg_id
        assert message.properties == {}


@in_loop(simulated)
async def test_messages_go_round_all_queues_of_all_brokers(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation, brokers=2, queues=3) as cluster,
        producer_of(cluster) as producer,
    ):
        results = [await producer.send("orders", b"x") for _ in range(12)]
        queues = [result.queue for result in results]
        assert len(set(queues[:6])) == 6
        assert queues[:6] == queues[6:]


@in_loop(simulated)
async def test_a_chosen_queue_is_kept_and_not_replaced_on_failure(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, brokers=2) as cluster, producer_of(cluster) as producer:
        queue = MessageQueue("orders", "broker-b", 2)
        assert (await producer.send("orders", b"x", queue=queue)).queue == queue
        cluster.brokers[1].script[RequestCode.SEND_MESSAGE_V2].append(
            refusal(ResponseCode.SYSTEM_BUSY)
        )
        with pytest.raises(SendError, match="1 attempt"):
            await producer.send("orders", b"x", queue=queue)
        with pytest.raises(MessageError, match="topic 'other'"):
            await producer.send("other", b"x", queue=queue)


@pytest.mark.parametrize("code", [17, 14, 1, 2, 16, 204, 205, 1500])
@in_loop(simulated)
async def test_a_retryable_answer_sends_the_message_to_another_broker(
    simulation: Simulation, /, code: int
) -> None:
    async with scripted_cluster(simulation, brokers=2) as cluster, producer_of(cluster) as producer:
        for broker in cluster.brokers:
            broker.script[RequestCode.SEND_MESSAGE_V2].append(refusal(code))
        cluster.brokers[1].script[RequestCode.SEND_MESSAGE_V2].clear()
        for _ in range(8):  # once round: broker-a has one refusal to give
            await producer.send("orders", b"x")
        sent = [len(broker.requests(SendMessageV2)) for broker in cluster.brokers]
        stored = [
            sum(len(entries) for entries in broker.entries.values()) for broker in cluster.brokers
        ]
        assert sum(sent) == 9
        assert sum(stored) == 8


@in_loop(simulated)
async def test_another_answer_is_final_and_its_code_is_in_the_error(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, brokers=2) as cluster, producer_of(cluster) as producer:
        for broker in cluster.brokers:
            broker.script[RequestCode.SEND_MESSAGE_V2].append(
                refusal(ResponseCode.MESSAGE_ILLEGAL, "too odd")
            )
        with pytest.raises(SendError, match=r"1 attempt .*code 13 .*too odd") as caught:
            await producer.send("orders", b"x")
        assert "Check the message's size" in str(caught.value)


@in_loop(simulated)
async def test_the_error_lists_everything_that_was_tried(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation, brokers=2) as cluster,
        producer_of(cluster, retries=2) as producer,
    ):
        for broker in cluster.brokers:
            broker.script[RequestCode.SEND_MESSAGE_V2].extend([refusal(2, "busy")] * 3)
        with pytest.raises(SendError) as caught:
            await producer.send("orders", b"x")
        text = str(caught.value)
        assert "3 attempts" in text
        assert "broker-a" in text
        assert "broker-b" in text
        assert cluster.broker.address in text
        assert "overloaded" in text


@in_loop(simulated)
async def test_a_broker_that_says_the_same_at_every_attempt_is_quoted_once(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster, retries=2) as producer:
        refusals = [refusal(14, f"the disk is full, {free} bytes free") for free in (30, 20, 10)]
        cluster.broker.script[RequestCode.SEND_MESSAGE_V2].extend(refusals)
        with pytest.raises(SendError, match="3 attempts") as caught:
            await producer.send("orders", b"x")
        text = str(caught.value)
        assert text.count("the disk is full") == 1
        assert "10 bytes free (3 times)" in text


@in_loop(simulated)
async def test_a_broker_that_is_gone_costs_one_attempt_and_no_message(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, brokers=2) as cluster, producer_of(cluster) as producer:
        await asyncio.gather(*(producer.send("orders", b"x") for _ in range(8)))
        await cluster.brokers[0].stop()
        results = await asyncio.gather(*(producer.send("orders", b"y") for _ in range(8)))
        assert {result.queue.broker_name for result in results} == {"broker-b"}


@in_loop(simulated)
async def test_the_only_broker_is_waited_for_while_it_restarts(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        await producer.send("orders", b"x")
        await cluster.broker.stop()
        send = asyncio.create_task(producer.send("orders", b"y"))
        await asyncio.sleep(0.15)
        await cluster.broker.start()
        assert (await send).status is SendStatus.OK


@in_loop(simulated)
async def test_the_deadline_covers_every_retry(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation, brokers=2) as cluster,
        producer_of(cluster, send_timeout=2.0) as producer,
    ):
        await producer.send("orders", b"x")
        for broker in cluster.brokers:
            broker.script[RequestCode.SEND_MESSAGE_V2].extend([None] * 5)
        before = simulation.loop.time()
        with pytest.raises(SendError, match="may be stored nevertheless"):
            await producer.send("orders", b"x")
        assert 1.9 < simulation.loop.time() - before < 2.2


@in_loop(simulated)
async def test_a_connection_whose_peer_is_silent_is_given_up(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, send_timeout=2.0) as producer,
    ):
        await producer.send("orders", b"x")
        await asyncio.sleep(1)  # virtual: until the heartbeat, too, is answered
        cluster.broker.go_deaf()
        with pytest.raises(SendError, match="may be stored nevertheless"):
            await producer.send("orders", b"x")
        before = simulation.loop.time()
        await producer.send("orders", b"x")
        # one retry, if it came before the connection was seen to end
        assert simulation.loop.time() - before < 0.2


@in_loop(simulated)
async def test_a_send_without_time_does_not_end_the_connection_of_the_others(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, send_timeout=2.0) as producer,
    ):
        await producer.send("orders", b"x")
        await asyncio.sleep(1)
        cluster.broker.script[RequestCode.SEND_MESSAGE_V2].extend([None] * 2)
        slow = asyncio.ensure_future(producer.send("orders", b"slow"))
        with pytest.raises(SendError):
            await producer.send("orders", b"hasty", timeout=0.01)
        await producer.send("orders", b"y")
        await asyncio.sleep(0.5)
        assert not slow.done()
        assert [body for _, body in cluster.broker.received].count(b"slow") == 1
        slow.cancel()


@pytest.mark.parametrize("timeout", [0, -1.5])
@in_loop(simulated)
async def test_a_send_whose_time_is_over_is_not_begun(
    simulation: Simulation, /, timeout: float
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        await producer.send("orders", b"x")
        with pytest.raises(SendError, match="leaves no time for it"):
            await producer.send("orders", b"late", timeout=timeout)
        await producer.send("orders", b"y")
        assert b"late" not in [body for _, body in cluster.broker.received]


@in_loop(simulated)
async def test_sends_with_little_time_find_out_that_the_broker_is_silent_too(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, send_timeout=0.2) as producer,
    ):
        await producer.send("orders", b"x")
        await asyncio.sleep(1)
        cluster.broker.go_deaf()
        sent = [
            await asyncio.gather(producer.send("orders", b"x"), return_exceptions=True)
            for _ in range(10)
        ]
        failed = [isinstance(one, SendError) for (one,) in sent]
        assert failed == sorted(failed, reverse=True)
        assert 4 <= sum(failed) <= 6  # a second


@in_loop(simulated)
async def test_codes_that_mean_stored_but_become_a_status(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        stored = await producer.send("orders", b"x")
        for code, status in [
            (ResponseCode.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_DISK_TIMEOUT),
            (ResponseCode.FLUSH_SLAVE_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT),
            (ResponseCode.SLAVE_NOT_AVAILABLE, SendStatus.SLAVE_NOT_AVAILABLE),
        ]:
            answer = refusal(code)
            answer.ext = {"msgId": "AB", "queueId": "3", "queueOffset": "7", "recallHandle": "h"}
            cluster.broker.script[RequestCode.SEND_MESSAGE_V2].append(answer)
            result = await producer.send("orders", b"x")
            assert (result.status, result.queue.queue_id, result.queue_offset) == (status, 3, 7)
            assert result.recall_handle == "h", "a timer message can be recalled all the same"
        assert stored.status is SendStatus.OK


@in_loop(simulated)
async def test_a_new_topic_takes_four_default_queues_and_its_own_once_it_exists(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation, topic="TBW102", queues=8) as cluster,
        producer_of(cluster) as producer,
    ):
        results = [await producer.send("fresh", b"x") for _ in range(8)]
        assert {result.queue.queue_id for result in results} == {0, 1, 2, 3}
        request = cluster.broker.requests(SendMessageV2)[0]
        assert (request.default_topic, request.default_topic_queue_nums) == ("TBW102", 4)
        cluster.name_server.route("fresh", cluster.broker, queues=2)
        await asyncio.sleep(31)
        results = [await producer.send("fresh", b"x") for _ in range(4)]
        assert {result.queue.queue_id for result in results} == {0, 1}


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
@in_loop(simulated)
async def test_a_body_that_does_not_shrink_travels_as_it_is(
    simulation: Simulation, /, kind: str
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, compression=kind) as producer,
    ):
        noise = random.Random(1).randbytes(4 << 20)
        await producer.send("orders", noise)
        ((request, body),) = [
            one for one in cluster.broker.received if isinstance(one[0], SendMessageV2)
        ]
        assert body == noise
        assert not request.sys_flag & SysFlag.COMPRESSED


@in_loop(simulated)
async def test_a_large_body_travels_compressed_and_arrives_as_it_was(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        await producer.send("orders", b"x" * 4095)
        await producer.send("orders", b"y" * 4096)
        (plain, plain_body), (packed, packed_body) = [
            r for r in cluster.broker.received if isinstance(r[0], SendMessageV2)
        ]
        assert (plain.sys_flag, len(plain_body)) == (0, 4095)
        assert packed.sys_flag & SysFlag.COMPRESSED
        assert len(packed_body) < 100


@in_loop(simulated)
async def test_a_batch_is_one_request_with_an_id_for_each_message(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        result = await producer.send_batch([Message("orders", f"m{i}", tags="t") for i in range(3)])
        ((request, body),) = [
            r for r in cluster.broker.received if isinstance(r[0], SendBatchMessage)
        ]
        items = decode_batch(body)
        ids = [decode_properties(item.properties.decode())["UNIQ_KEY"] for item in items]
        assert request.batch
        # Apache's brokers would give it to every message
        assert "UNIQ_KEY" not in request.properties
        assert [item.body for item in items] == [b"m0", b"m1", b"m2"]
        assert result.msg_id.split(",") == ids
        assert len(set(ids)) == 3


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "empty batch"),
        ([Message("a", "x"), Message("b", "x")], "one topic"),
        ([Message("a", "x"), Message("a", "x", wait_store_ok=False)], "wait_store_ok"),
        ([Message("a", "x", delay_level=3)], "delayed"),
        ([Message("%RETRY%g", "x")], "retry topic"),
        ([Message("a", b"x" * 3_000_000), Message("a", b"x" * 3_000_000)], "split it"),
    ],
)
@in_loop(simulated)
async def test_a_batch_that_cannot_go_together_is_refused_before_anything_is_sent(
    simulation: Simulation, /, messages: list[Message], fault: str
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        with pytest.raises(MessageError, match=fault):
            await producer.send_batch(messages)
        assert cluster.broker.received == []


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (Message("", "x"), "name is empty"),
        (Message("../../x", "x"), "outside a-z"),
        (Message("t" * 128, "x"), "at most 127"),
        (Message("SCHEDULE_TOPIC_XXXX", "x"), "belongs to the broker"),
        (Message("t", b""), "body is empty"),
        (Message("t", b"x" * (4 * 1024 * 1024 + 1)), "at most 4194304"),
        (Message("t", b"x", properties={"p": "v" * 32768}), "at most 32767"),
        (
            Message("t", b"x", properties={"p": "\ud800"}),
            r"property 'p'='\\ud800' contains a lone "
            r"surrogate",
        ),
        (
            Message("t", b"x", properties={"\ud800": "v"}),
            r"property '\\ud800'='v' contains a lone "
            r"surrogate",
        ),
        (Message("t", b"x", tags="\ud800"), r"property 'TAGS'='\\ud800' contains a lone surrogate"),
        (
            Message("t", b"x", keys=["k", "\ud800"]),
            r"property 'KEYS'='k \\ud800' contains a lone "
            r"surrogate",
        ),
    ],
)
@in_loop(simulated)
async def test_a_message_that_no_broker_takes_is_refused_in_a_sentence(
    simulation: Simulation, /, message: Message, fault: str
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        with pytest.raises(MessageError, match=fault):
            await producer.send(message)
        assert cluster.broker.received == []


@in_loop(simulated)
async def test_oneway_wants_no_answer(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        await producer.send_oneway("orders", b"x")
        await until(cluster.broker.requests, SendMessageV2)
        await cluster.broker.stop()
        await asyncio.sleep(1)  # virtual: until the client has heard of it
        with pytest.raises(
            SendError,
            match=r"16 attempts in 2904 ms: broker-a .* cannot connect .* Check that "
            r"the broker runs",
        ) as told:
            await producer.send_oneway("orders", b"x")
        assert (told.value.topic, set(told.value.brokers)) == ("orders", {"broker-a"})


@in_loop(simulated)
async def test_the_missing_route_is_explained(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation, topic=None) as cluster,
        producer_of(cluster) as producer,
    ):
        with pytest.raises(RouteNotFoundError, match="no broker is registered at the name server"):
            await producer.send("orders", b"x")
        cluster.name_server.known_brokers["broker-a"] = cluster.broker.data
        with pytest.raises(
            RouteNotFoundError,
            match=r"autoCreateTopicEnable=false.*turbopump "
            r"topic create orders",
        ):
            await producer.send("orders", b"x")
        cluster.name_server.route("orders", cluster.broker, perm=4)
        with pytest.raises(RouteNotFoundError, match="no writable queue"):
            await producer.send("orders", b"x")
        await cluster.name_server.stop()
        with pytest.raises(RouteNotFoundError, match=r"no name server answers.*`turbopump dev`"):
            await producer.send("other", b"x")


@in_loop(simulated)
async def test_a_send_waits_for_a_silent_name_server_as_long_as_it_may_take(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, send_timeout=60.0) as producer,
    ):
        cluster.name_server.silent = True
        begun = simulation.loop.time()
        sent = asyncio.ensure_future(producer.send("orders", b"patient"))
        brief = asyncio.ensure_future(producer.send("orders", b"hasty", timeout=5.0))
        await asyncio.sleep(20)
        assert not sent.done()
        with pytest.raises(
            RouteNotFoundError,
            match=r"no name server answered in 5\.0 s .asked: 127.*Check "
            r"the name server",
        ):
            await brief
        cluster.name_server.silent = False
        await sent
        assert simulation.loop.time() - begun < 25
        sends = [
            body for request, body in cluster.broker.received if isinstance(request, SendMessageV2)
        ]
        assert sends == [b"patient"]
        assert cluster.name_server.asked.count("orders") < 10


@in_loop(simulated)
async def test_a_silent_name_server_costs_a_send_no_more_than_its_time(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, send_timeout=10.0) as producer,
    ):
        cluster.name_server.silent = True
        begun = simulation.loop.time()
        with pytest.raises(RouteNotFoundError, match=r"no name server answered in 10\.0 s"):
            await producer.send("orders", b"x")
        assert simulation.loop.time() - begun == pytest.approx(10.0, abs=0.1)


@in_loop(simulated)
async def test_of_two_name_servers_the_one_that_answers_is_asked_when_the_other_is_silent(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        other = ScriptedNameServer()
        await other.start()
        other.route("orders", cluster.broker)
        both = [cluster.name_server.address, other.address]
        for silent, answering in ((cluster.name_server, other), (other, cluster.name_server)):
            silent.silent, answering.silent = True, False
            async with Producer(both, **cluster.settings) as producer:
                await producer.send("orders", b"x")
        cluster.name_server.silent = other.silent = True
        async with Producer(both, send_timeout=30.0, **cluster.settings) as producer:
            sent = asyncio.ensure_future(producer.send("orders", b"x"))
            await asyncio.sleep(10)
            other.silent = False
            await sent
        await other.stop()


@in_loop(simulated)
async def test_a_name_server_that_refuses_is_told_of_at_once(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, send_timeout=60.0) as producer,
    ):
        await cluster.name_server.stop()
        begun = simulation.loop.time()
        with pytest.raises(RouteNotFoundError, match="no name server answers"):
            await producer.send("orders", b"x")
        assert simulation.loop.time() - begun < 1


@in_loop(simulated)
async def test_a_dead_name_server_is_passed_over(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster:
        addresses = f"127.0.0.1:1;{cluster.name_server.address};127.0.0.1:2"
        async with Producer(addresses, **cluster.settings) as producer:
            assert (await producer.send("orders", b"x")).status is SendStatus.OK


@in_loop(simulated)
async def test_many_sends_at_once_ask_for_the_route_once(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        await asyncio.gather(*(producer.send("orders", b"x") for _ in range(64)))
        assert cluster.name_server.asked == ["orders"]


@in_loop(simulated)
async def test_brokers_hear_of_the_producer_each_30_s_and_when_it_leaves(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        async with producer_of(cluster, group="sellers") as producer:
            await producer.send("orders", b"x")
            await asyncio.sleep(95)
            client_id = producer.client_id
        assert len(cluster.broker.heartbeats) == 4
        heartbeat = cluster.broker.heartbeats[0]
        assert heartbeat.client_id == client_id
        assert [p.group_name for p in heartbeat.producer_data_set] == ["sellers"]
        assert [(f.client_id, f.producer_group) for f in cluster.broker.farewells] == [
            (client_id, "sellers")
        ]


@in_loop(simulated)
async def test_closing_waits_for_what_is_in_flight(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster:
        producer = producer_of(cluster)
        await producer.start()
        sends = [asyncio.create_task(producer.send("orders", b"x")) for _ in range(10)]
        await asyncio.sleep(0)
        await producer.close()
        assert [send.result().status for send in sends] == [SendStatus.OK] * 10
        with pytest.raises(NotStartedError, match="is closed"):
            await producer.send("orders", b"x")


@in_loop(simulated)
async def test_use_before_start_or_in_a_fork_is_refused_in_one_sentence(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        producer = producer_of(cluster)
        with pytest.raises(NotStartedError, match="async with Producer"):
            await producer.send("orders", b"x")
        async with producer:
            await producer.send("orders", b"x")
            said = in_a_fork(lambda: str(producer.send("orders", b"x").send(None)))
            assert re.fullmatch(
                r"NotStartedError: .* is used in its fork \d+, .* start a "
                r"new one after the fork",
                said,
            ), said
            await producer.send("orders", b"x")


async def start() -> Producer:
    producer = Producer("127.0.0.1:1")
    await producer.start()
    return producer


async def use(producer: Producer) -> None:
    with pytest.raises(NotStartedError, match="another event loop"):
        await producer.send("orders", b"x")


def test_use_on_another_loop_is_refused_in_one_sentence() -> None:
    producer = asyncio.run(start())
    asyncio.run(use(producer))


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"namesrv": ""}, "no name server given"),
        ({"namesrv": "localhost"}, "no port"),
        ({"namesrv": []}, "no name server given"),
        ({"group": ""}, "group name is empty"),
        ({"group": "a b"}, "outside a-z"),
        ({"namespace": "a b"}, "outside a-z"),
        ({"instance_name": " "}, "instance_name=' ' must be text that is not empty"),
        ({"unit_name": ""}, "unit_name='' must be text that is not empty"),
        ({"attempt_timeout": 0}, "attempt_timeout"),
        ({"compression": "gzip"}, "gzip"),
        ({"send_timeout": 0}, "send_timeout"),
        ({"retries": -1}, "retries"),
        ({"body_size_max": 0}, "body_size_max=0 must be a number of bytes above 0"),
        (
            {"body_size_max": 64 * 1024 * 1024 + 1},
            "at most 67108864, the longest body that consumers decompress",
        ),
        ({"body_size_max": True}, "body_size_max=True must be a number of bytes"),
    ],
)
def test_unusable_settings_are_refused_when_the_producer_is_made(
    settings: dict[str, object], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        Producer(**{"namesrv": "127.0.0.1:9876", **settings})  # type: ignore[arg-type]


@in_loop(simulated)
async def test_a_topic_and_a_message_cannot_be_mixed(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        with pytest.raises(TypeError, match="brings its own"):
            await producer.send(Message("orders", "x"), b"y")  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="without a body"):
            await producer.send("orders")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "given",
    [
        {"tags": "a"},
        {"keys": "a"},
        {"properties": {"a": "b"}},
        {"delay_level": 1},
        {"deliver_at": 1795318200001},
        {"delay": 5},
    ],
)
@in_loop(simulated)
async def test_what_a_message_brings_itself_is_not_dropped_beside_it(
    simulation: Simulation, /, given: dict[str, Any]
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        with pytest.raises(TypeError, match="brings its own"):
            await producer.send(Message("orders", "x"), **given)
        with pytest.raises(TypeError, match="brings its own"):
            await producer.send_oneway(Message("orders", "x"), **given)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"delay_level": 3}, "DELAY"),
        ({"deliver_at": 1795318200001}, "TIMER_DELIVER_MS"),
        ({"delay": 5}, "TIMER_DELAY_SEC"),
    ],
)
@in_loop(simulated)
async def test_a_send_takes_the_times_that_a_message_takes(
    simulation: Simulation, /, given: dict[str, Any], name: str
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        await producer.send("orders", "x", **given)
        await producer.send_oneway("orders", "x", **given)
        await until(cluster.broker.has_got, SendMessageV2, 2)
        for sent in cluster.broker.requests(SendMessageV2):
            assert decode_properties(sent.properties or "")[name] == str(*given.values())


@in_loop(simulated)
async def test_oneway_sends_wait_for_a_broker_that_does_not_read(simulation: Simulation, /) -> None:
    made = simulation.loop.create_future()

    class Silent(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.set_result(transport)

    server = await simulation.loop.create_server(Silent, "127.0.0.1", 4242)
    async with scripted_cluster(simulation) as cluster:
        cluster.broker.address = "127.0.0.1:4242"
        cluster.name_server.route("orders", cluster.broker)
        async with producer_of(cluster, compress_from=None) as producer:
            sent = []

            async def send() -> None:
                for number in range(1000):
                    await producer.send_oneway("orders", b"x" * 100_000)
                    sent.append(number)

            sending = asyncio.create_task(send())
            transport = await made
            transport.pause_reading()
            await asyncio.sleep(1)
            assert 0 < len(sent) < 200  # what fits into the buffers of both sides
            transport.resume_reading()
            await sending
    server.close()


@in_loop(simulated)
async def test_a_oneway_send_to_a_broker_that_does_not_read_gives_up_at_its_deadline(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        deaf_to_sends(cluster) as made,
        producer_of(cluster, compress_from=None, send_timeout=2) as producer,
    ):
        began = 0.0

        async def send_on_and_on() -> None:
            nonlocal began
            while True:
                began = simulation.loop.time()
                await producer.send_oneway("orders", b"x" * 100_000)

        with pytest.raises(
            SendError,
            match=r"has not read the earlier data for 2.0 s.* Nothing was stored.* "
            r"longer send_timeout",
        ) as told:
            await asyncio.wait_for(send_on_and_on(), 30)
        assert simulation.loop.time() - began == pytest.approx(2, abs=0.01)
        assert isinstance(told.value.__cause__, CallTimeoutError)
        (await made).abort()
