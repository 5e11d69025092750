"""Finding messages again: against two brokers of ours over real connections, and against scripted
ones in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.scripted_cluster import HOST, ScriptedCluster, refusal, scripted_cluster

from turbopump.broker.broker import Broker
from turbopump.client.message_finder import FoundMessages, MessageFinder, log_offset_of
from turbopump.client.producer import Producer
from turbopump.client.sending.send_result import SendResult
from turbopump.clock import SystemClock
from turbopump.config.addresses import join_address
from turbopump.config.broker_config import BrokerConfig
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.errors import (
    ConfigError,
    ConnectError,
    MessageNotFoundError,
    NotStartedError,
    RouteNotFoundError,
)
from turbopump.message.ids import offset_msg_id
from turbopump.message.message import Message, MessageQueue
from turbopump.namesrv.server import NameServer
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.requests.pull import QueryMessage, ViewMessageById
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.response import Response
from turbopump.testing.broker_in_loop import SMALL_FILES


class TickingClock(SystemClock):
    """Never the same millisecond twice, so that messages have one order."""

    def __init__(self) -> None:
        self._now = 1_700_000_000_000

    def now_ms(self) -> int:
        self._now += 1
        return self._now


class World:
    """Two brokers, ``one`` and ``other``, with topic T and two queues on each."""

    def __init__(
        self, one: Broker, other: Broker, producer: Producer, finder: MessageFinder
    ) -> None:
        self.one = one
        self.other = other
        self.producer = producer
        self.finder = finder

    async def send(self, number: int, **fields: Any) -> SendResult:
        """Message ``number``, to the queues in turn."""
        queues = await self.producer.publish_queues("T")
        return await self.producer.send(
            Message("T", f"m{number}", **fields), queue=queues[number % len(queues)]
        )


async def create_topic(topic: str, queues: int, *brokers: Broker) -> None:
    client = RemotingClient()
    for broker in brokers:
        await client.call(
            broker.address,
            CreateTopic(topic=topic, read_queue_nums=queues, write_queue_nums=queues),
            timeout=60,
        )
    await client.close()


@asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    clock = TickingClock()
    async with AsyncExitStack() as stack:
        name_server = NameServer(NamesrvConfig(bind_address=HOST, listen_port=0))
        stack.push_async_callback(name_server.close)
        namesrv = join_address(*await name_server.start())
        brokers = []
        for name in ("broker-a", "broker-b"):
            config: dict[str, Any] = {
                "broker_name": name,
                "store_path_root_dir": str(directory / name),
                "listen_port": 0,
                **SMALL_FILES,
            }
            brokers.append(Broker(BrokerConfig(namesrv_addr=namesrv, **config), clock=clock))
            stack.push_async_callback(brokers[-1].close)
            await brokers[-1].start()
        await create_topic("T", 2, *brokers)
        producer = await stack.enter_async_context(Producer(namesrv))
        finder = await stack.enter_async_context(MessageFinder(namesrv))
        yield World(*brokers, producer, finder)


async def main(scene: Callable[[World], Awaitable[None]], tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await scene(here)


def visit(scene: Callable[[World], Awaitable[None]], tmp_path: Path) -> None:
    asyncio.run(main(scene, tmp_path))


def bodies(found: FoundMessages) -> list[str]:
    assert found.missing == {}
    return [message.body.decode() for message in found.messages]


@in_loop(visit)
async def test_a_message_is_found_by_either_of_its_ids_on_whichever_broker_it_is(
    here: World, /
) -> None:
    sent = [await here.send(number) for number in range(8)]
    assert {result.queue.broker_name for result in sent} == {"broker-a", "broker-b"}
    for number, result in enumerate(sent):
        for msg_id in (result.msg_id, result.offset_msg_id):
            message = await here.finder.view("T", msg_id)
            assert message.body == b"m%d" % number
            assert (message.msg_id, message.offset_msg_id) == (result.msg_id, result.offset_msg_id)
            assert message.broker_name == result.queue.broker_name
        assert (await here.finder.at(result.queue, result.queue_offset)).msg_id == result.msg_id


@in_loop(visit)
async def test_messages_with_a_key_come_from_every_broker_sorted_by_their_time(
    here: World, /
) -> None:
    for number in range(12):
        await here.send(number, keys=["all", f"k{number % 3}"])
    finder = here.finder
    assert bodies(await finder.by_key("T", "k1")) == ["m1", "m4", "m7", "m10"]
    assert bodies(await finder.by_key("T", "all", 5)) == ["m7", "m8", "m9", "m10", "m11"], (
        "the newest"
    )
    assert bodies(await finder.by_key("T", "k")) == []
    middle = (await finder.by_key("T", "k0")).messages[2].store_timestamp
    before, after = (
        await finder.by_key("T", "all", end=middle - 1),
        await finder.by_key("T", "all", begin=middle),
    )
    assert bodies(before) + bodies(after) == [f"m{number}" for number in range(12)]
    when = datetime.fromtimestamp(middle / 1000, UTC)
    assert bodies(await finder.by_key("T", "all", begin=when)) == bodies(after)


@in_loop(visit)
async def test_messages_of_a_time_come_from_every_queue(here: World, /) -> None:
    for number in range(80):
        await here.send(number)
    finder = here.finder
    everything = await finder.by_time("T", 0, max_messages=1000)
    assert sorted(bodies(everything)) == sorted(f"m{number}" for number in range(80))
    times = [message.store_timestamp for message in everything.messages]
    assert times == sorted(times)
    for time in (times[0], times[40], times[79]):
        part = await finder.by_time("T", time, time, max_messages=1000)
        assert len(part.messages) == times.count(time)
        assert {message.store_timestamp for message in part.messages} == {time}
    assert [
        message.msg_id for message in (await finder.by_time("T", times[0], max_messages=7)).messages
    ] == [message.msg_id for message in everything.messages[:7]]
    assert bodies(await finder.by_time("T", times[79] + 1)) == []
    assert bodies(await finder.by_time("T", times[5], times[5] - 1)) == []


@in_loop(visit)
async def test_what_is_not_there_is_said_with_where_it_was_looked_for(here: World, /) -> None:
    sent = await here.send(0)
    finder = here.finder
    with pytest.raises(
        MessageNotFoundError,
        match=r"unknown to the brokers of the topic \(broker-a, "
        r"broker-b\).*fileReservedTime",
    ):
        await finder.view("T", "0A0B0C0D0E0F00000000000000000001")
    host, port = here.one.address.rsplit(":", 1)
    with pytest.raises(
        MessageNotFoundError,
        match=r"offset 99999 at .*can not find message "
        r"by the offset, 99999",
    ):
        await finder.view("T", offset_msg_id(host, int(port), 99999))
    await create_topic("U", 1, here.one, here.other)
    with pytest.raises(MessageNotFoundError, match="a message of another topic"):
        await finder.view("U", sent.offset_msg_id)
    with pytest.raises(
        MessageNotFoundError,
        match=r"offset 1 of queue T@broker-.:., which "
        r"has offsets 0 to 0",
    ):
        await finder.at(sent.queue, 1)
    empty = next(queue for queue in await here.producer.publish_queues("T") if queue != sent.queue)
    with pytest.raises(MessageNotFoundError, match="which has no messages"):
        await finder.at(empty, 0)
    with pytest.raises(ConnectError, match="no queue on a broker 'nowhere'"):
        await finder.at(MessageQueue("T", "nowhere", 0), 0)
    with pytest.raises(RouteNotFoundError, match="turbopump topic create"):
        await finder.by_key("missing", "k")
    for key in ("", "two keys"):
        with pytest.raises(ConfigError, match="must be a key"):
            await finder.by_key("T", key)


@in_loop(visit)
async def test_a_broker_that_cannot_be_asked_is_named_and_the_others_answer(here: World, /) -> None:
    sent = [await here.send(number, keys="all") for number in range(4)]
    await here.finder.by_key("T", "all")
    await here.other.parts.listening.server.close()  # type: ignore[union-attr]  # its route stays
    found = await here.finder.by_key("T", "all")
    assert list(found.missing) == ["broker-b"]
    assert {message.broker_name for message in found.messages} == {"broker-a"}
    assert len(found.messages) == 2
    at_a, at_b = (
        next(r for r in sent if r.queue.broker_name == name) for name in ("broker-a", "broker-b")
    )
    assert (await here.finder.view("T", at_a.msg_id)).offset_msg_id == at_a.offset_msg_id
    for msg_id in (at_b.msg_id, at_b.offset_msg_id):
        with pytest.raises(
            ConnectError,
            match=r"not every broker could be asked: .*cannot "
            r"connect",
        ):
            await here.finder.view("T", msg_id)
    assert {name.split(":")[0] for name in (await here.finder.by_time("T", 0)).missing} == {
        "T@broker-b"
    }


# --- scripted
# -----------------------------------------------------------------------------------------------


def finder_of(cluster: ScriptedCluster) -> MessageFinder:
    return MessageFinder(cluster.name_server.address, **cluster.settings)


@in_loop(simulated)
async def test_strangers_of_the_same_hash_and_other_times_are_not_handed_over(
    simulation: Simulation, /
) -> None:
    """Apache's brokers give whatever their index points to."""
    async with scripted_cluster(simulation) as cluster, finder_of(cluster) as finder:
        broker = cluster.broker
        for topic, text in (
            ("orders", "KEYS\x01Aa x"),
            ("orders", "KEYS\x01BB"),
            ("other", "KEYS\x01Aa"),
            ("orders", "UNIQ_KEY\x01Aa"),
        ):
            broker.store(topic, 0, text.encode(), text + "\x02")
        body = b"".join([*broker.entries["orders", 0], *broker.entries["other", 0]])
        broker.script[RequestCode.QUERY_MESSAGE].extend([Response(body=body)] * 4)
        assert bodies(await finder.by_key("orders", "Aa")) == ["KEYS\x01Aa x"]
        assert bodies(await finder.by_key("orders", "Aa", begin=2)) == []
        assert bodies(await finder.by_key("orders", "Aa", end=0)) == []
        assert (await finder.view("orders", "Aa")).body == b"UNIQ_KEY\x01Aa"
        requests = broker.requests(QueryMessage)
        assert [(request.unique_key, request.begin_timestamp) for request in requests] == [
            *((False, 0), (False, 0), (False, 0), (True, 0))
        ]
        assert broker.heartbeats == [], "who only asks joins no group"


@in_loop(simulated)
async def test_what_comes_damaged_is_not_handed_over(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted_cluster(simulation) as cluster, finder_of(cluster) as finder:
        broker = cluster.broker
        for body in (b"good", b"evil"):
            broker.store("orders", 0, body, "KEYS\x01k\x02")
        one, two = broker.entries["orders", 0]
        broker.script[RequestCode.QUERY_MESSAGE].append(
            Response(body=one + two.replace(b"evil", b"evi1"))
        )
        assert bodies(await finder.by_key("orders", "k")) == ["good"]
        assert "damaged message left out broker=broker-a" in caplog.text
        broker.script[RequestCode.VIEW_MESSAGE_BY_ID].append(
            Response(body=one.replace(b"good", b"g00d"))
        )
        host, port = broker.address.rsplit(":", 1)
        with pytest.raises(MessageNotFoundError, match="the broker returned damaged bytes"):
            await finder.view("orders", offset_msg_id(host, int(port), 0))
        assert [request.offset for request in broker.requests(ViewMessageById)] == [0]


@in_loop(simulated)
async def test_a_refusal_of_a_broker_is_passed_on_with_its_words(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation, brokers=2) as cluster, finder_of(cluster) as finder:
        cluster.brokers[1].script[RequestCode.QUERY_MESSAGE].append(
            refusal(ResponseCode.NO_PERMISSION, "not you")
        )
        found = await finder.by_key("orders", "k")
        assert found.messages == []
        assert list(found.missing) == ["broker-b"]
        assert "not you" in found.missing["broker-b"]


@pytest.mark.parametrize(
    ("msg_id", "place"),
    [
        ("7F00000100002A9F0000000000000123", ("127.0.0.1:10911", 0x123)),
        ("7f00000100002a9f0000000000000123", ("127.0.0.1:10911", 0x123)),
        ("00000000000000000000000000000001" + "00002A9F0000000000000005", ("[::1]:10911", 5)),
        ("7F0000010BB818B4AAC2000000000001", None),  # a unique id of process 3000
        ("7F000001000000000000000000000123", None),  # port 0
        ("order-17", None),
        ("", None),
        ("7F00000100002A9FFFFFFFFFFFFFFFFF", None),  # a negative offset
    ],
)
def test_an_id_is_taken_for_a_place_only_if_it_can_be_one(
    msg_id: str, place: tuple[str, int] | None
) -> None:
    assert log_offset_of(msg_id) == place


@in_loop
async def test_a_finder_that_is_not_started_says_what_to_do() -> None:
    with pytest.raises(NotStartedError, match="async with MessageFinder"):
        await MessageFinder(f"{HOST}:9876").by_key("T", "k")
