"""Sends whose route is old, the broker being elsewhere by now or the topic smaller: name servers
are asked, and nothing is stored twice.

In virtual time; the route is polled every 30 s, and each story ends long before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import does_nothing, returns
from tests.unit.client.producers import producer_of
from tests.unit.client.push_consumers import consumer_of as reader_of
from tests.unit.client.scripted_cluster import (
    ScriptedBroker,
    ScriptedCluster,
    refusal,
    scripted_cluster,
)
from tests.unit.client.simple_consumers import bodies, popping
from tests.unit.client.simple_consumers import consumer_of as popper_of
from tests.waits import until, until_count

from turbopump.client.producer import Producer
from turbopump.client.pull_consumer import PullConsumer
from turbopump.client.routes import AWAITED_S, SHRUNK_S
from turbopump.client.selectors import by_hash
from turbopump.client.transaction_producer import TransactionProducer, TransactionState
from turbopump.errors import ConnectError, RouteNotFoundError, SendError
from turbopump.message.handles import RecallHandle
from turbopump.message.message import Message, MessageQueue
from turbopump.protocol.codes import LanguageCode, RequestCode, ResponseCode
from turbopump.protocol.requests.send import (
    EndTransaction,
    RecallMessage,
    RecallMessageReply,
    SendMessageV2,
)
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.response import Response
from turbopump.remoting.router import RequestContext

SEND = RequestCode.SEND_MESSAGE_V2
QUEUE = MessageQueue("orders", "broker-a", 1)
ELSEWHERE = MessageQueue("orders", "broker-b", 1)


async def move(cluster: ScriptedCluster) -> str:
    """The first broker restarts on another port, and the name server knows; its new address."""
    broker, before = cluster.broker, cluster.broker.address
    await broker.stop()
    broker.port = 0
    await broker.start()
    assert broker.address != before
    cluster.name_server.route("orders", *cluster.brokers)
    return broker.address


def stored(*brokers: ScriptedBroker) -> int:
    return sum(len(entries) for broker in brokers for entries in broker.entries.values())


async def to_a_queue(producer: Producer) -> None:
    assert (await producer.send("orders", b"x", queue=QUEUE)).queue == QUEUE


async def by_selector(producer: Producer) -> None:
    await producer.send("orders", b"x", selector=by_hash("k"))


async def by_sharding_key(producer: Producer) -> None:
    await producer.send("orders", b"x", sharding_key="k")


async def plainly(producer: Producer) -> None:
    await producer.send("orders", b"x")


async def as_a_batch(producer: Producer) -> None:
    await producer.send_batch([Message("orders", b"x")], queue=QUEUE)


async def oneway(producer: Producer) -> None:
    await producer.send_oneway("orders", b"x", queue=QUEUE)


@pytest.mark.parametrize(
    "send", [to_a_queue, by_selector, by_sharding_key, plainly, as_a_batch, oneway]
)
@in_loop(simulated)
async def test_a_broker_that_has_moved_is_found_by_the_send_that_it_refuses(
    simulation: Simulation, /, send: Callable[[Producer], Any]
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster, retries=0) as producer:
        await producer.send("orders", b"before")
        await move(cluster)
        await asyncio.sleep(1)
        began = simulation.loop.time()
        await asyncio.gather(*(send(producer) for _ in range(20)))
        await until(lambda: stored(cluster.broker) == 21)
        assert simulation.loop.time() - began < 1
        assert cluster.name_server.asked == ["orders"] * 2, "all of them share one question"


@in_loop(simulated)
async def test_a_queue_of_a_broker_that_the_route_does_not_know_yet_is_sent_to(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, brokers=2) as cluster, producer_of(cluster) as producer:
        cluster.name_server.route("orders", cluster.broker)
        await producer.send("orders", b"x")
        with pytest.raises(
            SendError,
            match=r"1 attempt in .*broker-b has no master at the "
            r"moment\. Check that the broker",
        ):
            await producer.send("orders", b"x", queue=ELSEWHERE)
        cluster.name_server.route("orders", *cluster.brokers)
        await asyncio.sleep(1)
        assert (await producer.send("orders", b"x", queue=ELSEWHERE)).queue == ELSEWHERE


@in_loop(simulated)
async def test_a_broker_that_does_not_know_the_topic_is_asked_for_at_the_name_server(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        await producer.send("orders", b"x", queue=QUEUE)
        heir = ScriptedBroker("broker-a")
        await heir.start()
        cluster.name_server.route("orders", heir)
        cluster.broker.script[SEND].append(refusal(ResponseCode.TOPIC_NOT_EXIST))
        await asyncio.sleep(1)
        await producer.send("orders", b"x", queue=QUEUE)
        assert (stored(cluster.broker), stored(heir)) == (1, 1)
        await heir.stop()


@in_loop(simulated)
async def test_a_broker_that_is_down_does_not_flood_the_name_server(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster, retries=0) as producer:
        await producer.send("orders", b"x")
        await cluster.broker.stop()
        await asyncio.sleep(1)
        began, errors = simulation.loop.time(), 0
        while simulation.loop.time() < began + 5:
            sends = [send(producer) for send in (plainly, to_a_queue, oneway) for _ in range(100)]
            for error in await asyncio.gather(*sends, return_exceptions=True):
                assert isinstance(error, SendError)
                assert "Connection refused (16 times). Check that the broker runs" in str(error)
                errors += 1
        assert errors == 600
        assert 20 <= len(cluster.name_server.asked) <= 6 / AWAITED_S + 2


@in_loop(simulated)
async def test_name_servers_that_keep_silent_do_not_keep_sends_from_a_broker_that_restarts(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        await producer.send("orders", b"x")
        await cluster.broker.stop()
        cluster.name_server.silent = True
        await asyncio.sleep(1)
        sends = asyncio.gather(to_a_queue(producer), oneway(producer), by_sharding_key(producer))
        await asyncio.sleep(1)
        await cluster.broker.start()
        restarted = simulation.loop.time()
        await sends
        assert simulation.loop.time() - restarted < 0.5 + 2 * AWAITED_S


@pytest.mark.parametrize("lost", [False, True])
@in_loop(simulated)
async def test_what_may_be_stored_is_not_sent_again_but_the_next_send_finds_the_new_broker(
    simulation: Simulation, /, lost: bool
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, send_timeout=1.5) as producer,
    ):
        await producer.send("orders", b"x", queue=QUEUE)
        heir = ScriptedBroker("broker-a")
        await heir.start()
        cluster.name_server.route("orders", heir)
        cluster.broker.script[SEND].append(None)
        sending = asyncio.create_task(to_a_queue(producer))
        await asyncio.sleep(1)
        if lost:
            for connection in list(cluster.broker.server.connections):  # type: ignore[union-attr]
                connection.abort()
        with pytest.raises(SendError, match=r"1 attempt in .*may be stored nevertheless"):
            await sending
        failed = simulation.loop.time()
        await until_count(cluster.name_server.asked, 2)
        assert simulation.loop.time() - failed < 1
        await asyncio.sleep(0.1)
        await to_a_queue(producer)
        assert (len(cluster.broker.requests(SendMessageV2)), stored(heir)) == (2, 1)
        await heir.stop()


# --- fewer queues
# -----------------------------------------------------------------------------------------------

OURS = (29, "request queueId[7] is illegal, topic orders has 2 queues (0 to 1)")
APACHE_5 = (
    29,
    "request queueId[7] is illegal, TopicConfig [topicName=orders, readQueueNums=2, "
    "writeQueueNums=2] Producer: 1.2.3.4",
)
APACHE_4 = (1, APACHE_5[1])


def refuse_or_send(
    answer: tuple[int, str],
    usual: Callable[..., Any],
    request: SendMessageV2,
    context: RequestContext,
) -> Response:
    return refusal(*answer) if request.queue_id >= 2 else usual(request, context)


def prepare(answer: tuple[int, str], broker: ScriptedBroker) -> None:
    usual = broker.send

    broker.send = partial(refuse_or_send, answer, usual)  # type: ignore[method-assign]


def shrunk(answer: tuple[int, str]) -> Callable[[ScriptedBroker], None]:
    """Brokers that have two queues of each topic."""

    return partial(prepare, answer)


@pytest.mark.parametrize("answer", [OURS, APACHE_5, APACHE_4])
@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("send", [plainly, by_sharding_key])
@in_loop(simulated)
async def test_a_topic_with_fewer_queues_costs_no_send(
    simulation: Simulation,
    /,
    send: Callable[[Producer], Any],
    retries: int,
    answer: tuple[int, str],
) -> None:
    async with (
        scripted_cluster(simulation, queues=8, prepare=shrunk(answer)) as cluster,
        producer_of(cluster, retries=retries) as producer,
    ):
        await producer.publish_queues("orders")
        cluster.name_server.route("orders", cluster.broker, queues=2)
        await asyncio.sleep(1)
        for _ in range(2):
            await asyncio.gather(*(send(producer) for _ in range(16)))
        assert stored(cluster.broker) == 32
        assert len(cluster.name_server.asked) == 2


@pytest.mark.parametrize("answer", [OURS, APACHE_5, APACHE_4])
@pytest.mark.parametrize(("left", "said"), [(2, "2 queues"), (1, "1 queue")])
@in_loop(simulated)
async def test_a_chosen_queue_that_is_gone_is_told_with_what_there_is(
    simulation: Simulation, /, left: int, said: str, answer: tuple[int, str]
) -> None:
    async with (
        scripted_cluster(simulation, queues=8, prepare=shrunk(answer)) as cluster,
        producer_of(cluster) as producer,
    ):
        gone = (await producer.publish_queues("orders"))[7]
        with pytest.raises(
            SendError,
            match=r"1 attempt in .*is illegal.*name servers say: "
            r"try again in a moment",
        ):
            await producer.send("orders", b"x", queue=gone)
        cluster.name_server.route("orders", cluster.broker, queues=left)
        await asyncio.sleep(1)
        remedy = (
            rf"only {said} on broker-a now: take one of `await "
            r"producer\.publish_queues\('orders'\)`"
        )
        with pytest.raises(SendError, match=remedy) as caught:
            await producer.send("orders", b"x", queue=gone)
        assert caught.value.code == answer[0]
        assert stored(cluster.broker) == 0


@in_loop(simulated)
async def test_the_same_code_for_another_reason_stays_final(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, brokers=2) as cluster, producer_of(cluster) as producer:
        for broker in cluster.brokers:
            broker.script[SEND].append(
                refusal(ResponseCode.INVALID_PARAMETER, "a batch must have one wait flag")
            )
        with pytest.raises(
            SendError,
            match=r"1 attempt in .*wait flag\. The broker's log "
            r"has the details",
        ):
            await producer.send("orders", b"x")
        assert cluster.name_server.asked == ["orders"]


# --- recalls, transactions, and the first message of a topic
# -------------------------------------------------------------------


def recalls(broker: ScriptedBroker) -> None:
    def answer(request: RecallMessage, context: RequestContext) -> Response:
        return Response(
            RecallMessageReply(msg_id=RecallHandle.decode(request.recall_handle).unique_id)
        )

    broker.further.append((RecallMessage, answer))


@in_loop(simulated)
async def test_a_recall_finds_a_broker_that_has_moved_or_is_new(simulation: Simulation, /) -> None:
    async with (
        scripted_cluster(simulation, brokers=2, prepare=recalls) as cluster,
        producer_of(cluster) as producer,
    ):
        first, new = (
            RecallHandle("orders", name, "1795318199001", "U1").encode()
            for name in ("broker-a", "broker-b")
        )
        cluster.name_server.route("orders", cluster.broker)
        assert await producer.recall("orders", first) == "U1"
        with pytest.raises(
            RouteNotFoundError, match="broker-b that the recall handle names is not among those"
        ):
            await producer.recall("orders", new)
        cluster.name_server.route("orders", *cluster.brokers)
        await asyncio.sleep(1)
        assert await producer.recall("orders", new) == "U1"
        await move(cluster)
        await asyncio.sleep(1)
        assert await producer.recall("orders", first) == "U1"
        await cluster.broker.stop()
        await asyncio.sleep(1)
        with pytest.raises(ConnectError, match="Connection refused"):
            await producer.recall("orders", first)


@in_loop(simulated)
async def test_a_recall_that_the_broker_of_the_old_route_cannot_know_goes_to_the_new_one(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation, prepare=recalls) as cluster,
        producer_of(cluster) as producer,
    ):
        handle = RecallHandle("orders", "broker-a", "1795318199001", "U1").encode()
        await producer.publish_queues("orders")
        heir = ScriptedBroker("broker-a")
        recalls(heir)
        await heir.start()
        cluster.name_server.route("orders", heir)
        cluster.broker.script[RecallMessage.code].append(refusal(ResponseCode.TOPIC_NOT_EXIST))
        await asyncio.sleep(1)
        assert await producer.recall("orders", handle) == "U1"
        assert len(heir.requests(RecallMessage)) == 1
        await heir.stop()


def ends(broker: ScriptedBroker) -> None:
    broker.further.append((EndTransaction, does_nothing))


async def work(cluster: ScriptedCluster, message: Message, arg: object) -> TransactionState:
    await (move(cluster) if arg == "moves" else cluster.broker.stop())
    await asyncio.sleep(1)
    return TransactionState.COMMIT


@in_loop(simulated)
async def test_the_end_of_a_transaction_reaches_a_broker_that_has_moved(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        scripted_cluster(simulation, prepare=ends) as cluster,
        TransactionProducer(
            cluster.name_server.address,
            group="sellers",
            checker=returns(TransactionState.UNKNOWN),
            **cluster.settings,
        ) as producer,
    ):
        assert (
            await producer.send_in_transaction(
                Message("orders", b"x"), "moves", executor=partial(work, cluster)
            )
        ).told
        await until(cluster.broker.has_got, EndTransaction, 1)
        assert not (
            await producer.send_in_transaction(
                Message("orders", b"x"), "stops", executor=partial(work, cluster)
            )
        ).told
    assert "transaction state not reported, the broker will ask" in caplog.text
    assert "Connection refused" in caplog.text


@in_loop(simulated)
async def test_the_warning_of_a_topic_not_made_names_the_broker_of_its_first_oneway_message(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "turbopump.client"):
        async with (
            scripted_cluster(simulation, brokers=2, topic=None) as cluster,
            producer_of(cluster) as producer,
        ):
            cluster.name_server.route("TBW102", *cluster.brokers, perm=7)
            for broker in cluster.brokers:
                broker.script[RequestCode.UPDATE_AND_CREATE_TOPIC].append(
                    refusal(ResponseCode.NO_PERMISSION, "not you")
                )
            await producer.send_oneway(
                "fresh", b"first", queue=MessageQueue("fresh", "broker-b", 0)
            )
            await until(lambda: stored(*cluster.brokers) == 1)
            await producer.send("fresh", b"second", queue=MessageQueue("fresh", "broker-a", 0))
            assert [len(broker.requests(CreateTopic)) for broker in cluster.brokers] == [1, 1]
    (warning,) = [
        record.getMessage() for record in caplog.records if "topic" in record.getMessage()
    ]
    assert " broker=broker-b " in warning


@in_loop(simulated)
async def test_a_broker_of_apaches_is_not_asked_to_make_a_topic_which_could_be_an_operators(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        scripted_cluster(simulation, brokers=2, topic=None) as cluster,
        producer_of(cluster) as producer,
    ):
        cluster.name_server.route("TBW102", *cluster.brokers, perm=7)
        cluster.brokers[0].language = LanguageCode.JAVA
        await producer.send("fresh", b"x")
        assert [len(broker.requests(CreateTopic)) for broker in cluster.brokers] == [0, 1]
        (wish,) = cluster.brokers[1].requests(CreateTopic)
        assert wish.if_absent
    assert caplog.messages == []


@in_loop(simulated)
async def test_a_broker_that_a_name_server_has_not_heard_of_yet_is_back_within_seconds(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation, brokers=2) as cluster, producer_of(cluster) as producer:
        name_server, (first, _) = cluster.name_server, cluster.brokers
        both = await producer.publish_queues("orders")
        name_server.route("orders", first)  # as after its start
        asked = len(name_server.asked)
        await until(lambda: len(name_server.asked) > asked)
        name_server.route("orders", *cluster.brokers)
        await asyncio.sleep(1)
        assert {queue.broker_name for queue in await producer.publish_queues("orders")} == {
            first.name
        }
        await asyncio.sleep(SHRUNK_S)
        assert await producer.publish_queues("orders") == both
        name_server.route("orders", first)  # and for good
        asked = len(name_server.asked)
        await asyncio.sleep(59)
        assert len(name_server.asked) - asked == 3


@in_loop(simulated)
async def test_a_push_consumer_finds_a_broker_that_has_moved(simulation: Simulation, /) -> None:
    """Another replica may be the master after a kill."""
    async with scripted_cluster(simulation, queues=1) as cluster, reader_of(cluster) as consumer:
        cluster.broker.store("orders", 0, b"before")
        stream = aiter(consumer)
        assert (await anext(stream)).body == b"before"
        await move(cluster)
        moved = simulation.loop.time()
        cluster.broker.store("orders", 0, b"after")
        assert (await anext(stream)).body == b"after"
        assert simulation.loop.time() - moved < 5


@in_loop(simulated)
async def test_a_simple_consumer_finds_a_broker_that_has_moved(simulation: Simulation, /) -> None:
    async with popping(simulation) as (cluster, (pops,)), popper_of(cluster) as consumer:
        pops.store("orders", 0, b"before")
        assert bodies(await consumer.receive()) == [b"before"]
        await move(cluster)
        pops.store("orders", 0, b"after")
        assert bodies(await consumer.receive(timeout=5)) == [b"after"]


@in_loop(simulated)
async def test_acknowledgements_wait_for_the_next_master_within_their_timeout(
    simulation: Simulation, /
) -> None:
    async with popping(simulation) as (cluster, (pops,)), popper_of(cluster) as consumer:
        broker = cluster.broker
        for body in (b"a", b"b", b"c", b"d", b"e"):
            pops.store("orders", 0, body)
        one, two, three, late, last = await consumer.receive(5)
        cluster.name_server.name_master(broker.name, None)
        await broker.stop()
        await asyncio.sleep(1)  # virtual: the client has heard of it
        with pytest.raises(ConnectError, match="Connection refused"):
            await consumer.ack(last, timeout=0.5)
        asked = len(cluster.name_server.asked)
        acknowledged = asyncio.gather(
            consumer.ack(one), consumer.ack([two, three]), consumer.change_invisible_time(late, 100)
        )
        await asyncio.sleep(1.2)
        broker.port = 0
        await broker.start()
        cluster.name_server.name_master(broker.name, broker.address)
        elected = simulation.loop.time()
        await acknowledged
        assert simulation.loop.time() - elected < 2 * AWAITED_S
        assert sorted(offset for _, _, offset in pops.acked) == [0, 1, 2]
        assert [place[2] for place, _ in pops.changed] == [3]
        assert len(cluster.name_server.asked) - asked <= 2 + 1.2 / AWAITED_S


@pytest.mark.parametrize("call", ["pull", "commit"])
@in_loop(simulated)
async def test_the_next_call_of_a_pull_consumer_finds_a_broker_that_has_moved(
    simulation: Simulation, /, call: str
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        PullConsumer(cluster.name_server.address, group="g", **cluster.settings) as consumer,
    ):
        calls = {"pull": consumer.pull, "commit": consumer.commit}
        await calls[call](QUEUE, 0)
        await move(cluster)
        await asyncio.sleep(1)
        with pytest.raises(ConnectError):
            await calls[call](QUEUE, 0)
        await until_count(cluster.name_server.asked, 2)
        await asyncio.sleep(0.1)
        await calls[call](QUEUE, 0)
