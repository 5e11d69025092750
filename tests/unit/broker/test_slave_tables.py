"""What a slave has of its master beside the log, and what it goes on with as the master."""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.broker.popping import Popper
from tests.unit.broker.replicas import (
    MASTER,
    SLAVE,
    SYNC,
    Replicas,
    a_round_later,
    eventually,
    same_logs,
    until_joined,
    until_offset,
    until_same_end,
    until_stored,
    until_topic,
    with_replicas,
)
from tests.unit.broker.talking import Client

from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerRole
from turbopump.errors import TurbopumpError
from turbopump.message.codec import decode_entries
from turbopump.message.message import MessageQueue
from turbopump.protocol import fastjson
from turbopump.protocol.requests.assignment import (
    LockBatchMq,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageRequestMode,
    SetMessageRequestMode,
    SetMessageRequestModeRequestBody,
)
from turbopump.protocol.requests.groups import DeleteGroup
from turbopump.protocol.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.protocol.requests.topics import DeleteTopic

READER: dict[str, Any] = {"consumer_group": "g", "topic": "T", "queue_id": 0}


def commit(offset: int, queue_id: int = 0, **fields: Any) -> UpdateConsumerOffset:
    values = {**READER, "queue_id": queue_id, **fields}
    return UpdateConsumerOffset(commit_offset=offset, **values)


@in_loop(with_replicas)
async def test_topics_groups_and_offsets_come_and_go_as_at_the_master(
    replicas: Replicas, /
) -> None:
    master = await replicas.master()
    slave = await replicas.slave()
    client = replicas.client_of(MASTER)
    await client.create("T", queues=3)
    await client.create("gone")
    await client.send(b"1", topic="gone")
    await client.join("c1")
    for number in range(5):
        await client.send(b"%d" % number)
    assert (await client.code(commit(3)))[0] == 0
    mode = SetMessageRequestModeRequestBody(
        topic="T", consumer_group="g", mode=MessageRequestMode.POP
    )
    assert (await client.code(SetMessageRequestMode(), fastjson.encode(mode)))[0] == 0
    await until_offset(slave, "g", "T", 3, seconds=2.5)
    topic = slave.tables.topics.find("T")
    assert topic is not None
    assert topic.read_queue_nums == 3
    assert slave.tables.topics.version == master.tables.topics.version
    assert slave.tables.groups.get("g")
    assert await replicas.client_of(SLAVE).all_bodies() == [b"0", b"1", b"2", b"3", b"4"]
    statistics = slave.parts.stored.statistics
    assert [(got.group, got.messages) for got in statistics.gets()] == [("g", 5)]

    assert (await client.code(DeleteTopic(topic="gone")))[0] == 0
    assert (await client.code(DeleteGroup(group_name="g")))[0] == 0
    await a_round_later(slave)
    assert slave.tables.topics.find("gone") is None
    assert slave.store.max_offset("gone", 0) == 0
    assert slave.tables.groups.get("g") is None
    assert list(statistics.gets()) == []


@in_loop(with_replicas)
async def test_a_slave_that_starts_knows_the_topics_of_its_log_at_once(
    replicas: Replicas, /
) -> None:
    master = await replicas.master()
    client = replicas.client_of(MASTER)
    await client.create()
    await client.send(b"1")
    slave = await replicas.slave()
    await until_same_end(slave, master)
    await until_topic(slave, "T", seconds=0.2)


@in_loop(with_replicas)
async def test_only_what_has_changed_is_sent_again(replicas: Replicas, /) -> None:
    master = await replicas.master()
    client = replicas.client_of(MASTER)
    await client.join("c1")
    for number in range(20):
        await client.create(f"T{number}")
        await client.code(commit(number, topic=f"T{number}"))
    everything, version, partial = await master.tables.offsets.text_since(None)
    assert (everything.count(b"@g"), partial) == (20, False)
    assert await master.tables.offsets.text_since(version) == (b"", version, False)
    await client.code(commit(99, topic="T7"))
    some, later, partial = await master.tables.offsets.text_since(version)
    assert (some.count(b"@g"), b"T7@g" in some, partial) == (1, True, True)
    assert (await master.tables.offsets.text_since(later)).text == b""
    assert b"T7@g" in (await master.tables.offsets.text_since(version)).text
    await client.code(DeleteTopic(topic="T3"))
    whole, _, partial = await master.tables.offsets.text_since(later)
    assert (whole.count(b"@g"), partial) == (19, False), "who knows what is gone needs all of it"


@in_loop(with_replicas)
async def test_an_offset_committed_at_the_slave_does_not_go_back(replicas: Replicas, /) -> None:
    await replicas.master()
    slave = await replicas.slave()
    client = replicas.client_of(MASTER)
    await client.join("c1")
    await client.create()
    for number in range(10):
        await client.send(b"%d" % number)
    await client.code(commit(3))
    offsets = slave.tables.offsets
    await until_offset(slave, "g", "T", 3)
    await replicas.client_of(SLAVE).code(commit(7))
    await client.code(commit(4))
    await a_round_later(slave)
    assert offsets.find("g", "T", 0) == 7
    await client.code(commit(8))
    await until_offset(slave, "g", "T", 8)
    await client.code(commit(2))  # a client goes back, at the master
    await until_offset(slave, "g", "T", 2)


@in_loop(with_replicas)
async def test_an_empty_master_takes_nothing_from_a_slave_that_is_ahead(
    replicas: Replicas, /
) -> None:
    master = await replicas.master()
    slave = await replicas.slave()
    client = replicas.client_of(MASTER)
    await client.join("c1")
    await client.create()
    await client.send(b"kept")
    await client.code(commit(1))
    await same_logs(master, slave)
    await a_round_later(slave)
    replicas.kill(MASTER)
    await replicas.master(store_path_root_dir="/empty")
    link = slave.parts.listening.replication.slave
    assert link is not None
    await eventually(lambda: link.fault is not None and link.peer is None)
    await asyncio.sleep(30)  # several attempts
    assert link.fault is not None
    assert await replicas.client_of(SLAVE).all_bodies() == [b"kept"]
    assert slave.tables.offsets.find("g", "T", 0) == 1


@in_loop(with_replicas)
async def test_delays_and_timers_go_on_at_the_new_master_neither_early_nor_twice(
    replicas: Replicas, /
) -> None:
    levels = {"message_delay_level": "1s 5s 60s"}
    master = await replicas.master(**levels)
    slave = await replicas.slave(**levels)
    client, clock = replicas.client_of(MASTER), replicas.simulation.clock(MASTER)
    await client.create()
    soon, late = clock.now_ms() + 2000, clock.now_ms() + 60_000
    for text in ("DELAY\x012\x02", "DELAY\x013\x02"):
        await client.send(b"level " + text[-2:-1].encode(), properties=text)
    for name, due in ((b"soon", soon), (b"late", late)):
        await client.send(b"timer " + name, properties=f"TIMER_DELIVER_MS\x01{due}\x02")
    await until_stored(master, "T", 2)
    await a_round_later(slave)
    await same_logs(master, slave)
    replicas.kill(MASTER)
    await replicas.stop(SLAVE)
    promoted = await replicas.broker(SLAVE, BrokerRole.ASYNC_MASTER, **levels)
    reader = replicas.client_of(SLAVE)
    assert sorted(await reader.all_bodies()) == [b"level 2", b"timer soon"]
    began = clock.now_ms()
    await until_stored(promoted, "T", 4, seconds=90)
    assert began < late - 1000 <= clock.now_ms()
    assert sorted(await reader.all_bodies()) == [
        b"level 2",
        b"level 3",
        b"timer late",
        b"timer soon",
    ]
    assert (await reader.code(SendMessageV2(topic="T", queue_id=0), b"x"))[0] == 0


@in_loop(with_replicas)
async def test_a_slave_keeps_what_its_master_keeps(replicas: Replicas, /) -> None:
    """A master keeps old segments for timers that wait; its slave has no timers to ask."""
    master = await replicas.master()
    slave = await replicas.slave()
    client = replicas.client_of(MASTER)
    await client.create()
    for number in range(30):
        await client.send(b"%d" % number * 50_000)
    await same_logs(master, slave)
    await a_round_later(slave)
    wanted = [ask() for ask in slave.store.retention.needed_from]
    assert wanted == [master.store.log.start]


class OneReader:
    """Reads a queue message by message and commits each, at the master or at who has become it;
    when it read what."""

    def __init__(self, replicas: Replicas, slave: Broker) -> None:
        self._replicas = replicas
        self._slave = slave
        self._clock = replicas.simulation.clock(SLAVE)
        self.read: list[tuple[bytes, int]] = []
        """Body, and epoch milliseconds."""
        self.copied_ms: list[int] = []
        """How long each commit took to come to the slave."""

    async def read_on(self, host: str) -> None:
        """Read from where the group stands, until the broker is gone."""
        client = self._replicas.client_of(host)
        with suppress(TurbopumpError):
            at = await client.remoting.call(client.address, QueryConsumerOffset(**READER))
            offset = at.offset or 0
            while True:
                answer, header = await client.pull(offset, suspend_ms=5000, consumer_group="g")
                for message in decode_entries(answer.body):
                    self.read.append((message.body, self._clock.now_ms()))
                    offset = message.queue_offset + 1
                    await client.code(commit(offset))
                    await asyncio.sleep(0.05)
                offset = header.next_begin_offset

    async def watch_the_slave(self) -> None:
        """Until cancelled."""
        offsets, loop = self._slave.tables.offsets, asyncio.get_running_loop()
        master = self._replicas.brokers[MASTER].tables.offsets
        while True:
            wanted, began = master.find("g", "T", 0) or 0, loop.time()
            while (offsets.find("g", "T", 0) or 0) < wanted:
                await asyncio.sleep(0.01)
            self.copied_ms.append(round((loop.time() - began) * 1000))
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("killed_after_s", [4.0, 4.3])
@in_loop(with_replicas)
async def test_a_takeover_by_hand_repeats_two_seconds_at_most_and_delivers_nothing_early(
    replicas: Replicas, /, killed_after_s: float
) -> None:
    levels = {"message_delay_level": "1s 2s 60s"}
    await replicas.master(**SYNC, **levels)
    slave = await replicas.slave(**levels)
    sender, clock = replicas.client_of(MASTER), replicas.simulation.clock(MASTER)
    await sender.create()
    await sender.join("c1")
    await a_round_later(slave)
    reader = OneReader(replicas, slave)
    work = [
        asyncio.ensure_future(reader.read_on(MASTER)),
        asyncio.ensure_future(reader.watch_the_slave()),
    ]
    due: dict[bytes, int] = {}
    began = clock.now_ms()
    number = 0
    while clock.now_ms() < began + killed_after_s * 1000:
        number += 1
        kind = ("", "DELAY\x011\x02", "DELAY\x012\x02", "timer")[number % 4]
        body, now = b"%s %d" % (kind[:5].encode(), number), clock.now_ms()
        due[body] = now + {0: 0, 1: 1000, 2: 2000, 3: 1500}[number % 4]
        if kind == "timer":
            kind = f"TIMER_DELIVER_MS\x01{due[body]}\x02"
        await sender.send(body, properties=kind)
        await asyncio.sleep(0.05)
    killed_ms = clock.now_ms()
    replicas.kill(MASTER)
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    before = len(reader.read)
    await replicas.stop(SLAVE)
    await replicas.broker(SLAVE, BrokerRole.ASYNC_MASTER, **levels)
    going_on = asyncio.ensure_future(reader.read_on(SLAVE))
    await eventually(lambda: {body for body, _ in reader.read} == due.keys())
    await asyncio.sleep(5)
    going_on.cancel()
    await asyncio.gather(going_on, return_exceptions=True)

    assert before > 20
    first = dict(reversed(reader.read))
    again = [body for body, count in Counter(body for body, _ in reader.read).items() if count > 1]
    assert all(first[body] >= killed_ms - 2000 for body in again)
    assert all(at >= due[body] for body, at in reader.read), "nothing comes early"
    assert len(reader.copied_ms) > 5
    assert max(reader.copied_ms) <= 1000


@in_loop(with_replicas)
async def test_what_was_popped_stays_popped_at_the_new_master_until_it_is_visible_again(
    replicas: Replicas, /
) -> None:
    await replicas.master(**SYNC)
    slave = await replicas.slave()
    client, now_ms = replicas.client_of(MASTER), replicas.simulation.clock(SLAVE).now_ms
    for topic in ("T", "ordered"):
        await client.create(topic)
    await until_joined(replicas.brokers[MASTER])
    for topic in ("T", "ordered"):
        for body in (b"a", b"b", b"c"):
            await client.send(body, topic=topic)
    popper, in_order = Popper(client, now_ms), Popper(client, now_ms, "ordered", "o")
    a, _b = await popper.pop(max_msg_nums=2)
    first, _second = await in_order.pop(max_msg_nums=2, order=True)
    for one, its in ((a, popper), (first, in_order)):
        assert await its.ack(one) == 0
    visible_ms = now_ms() + 10_000
    await a_round_later(slave)
    replicas.kill(MASTER)
    await replicas.stop(SLAVE)
    await replicas.broker(SLAVE, BrokerRole.ASYNC_MASTER)
    popper.client = in_order.client = replicas.client_of(SLAVE)
    assert [one.body for one in await popper.pop()] == [b"c"]
    assert await in_order.pop(order=True) == []
    assert now_ms() < visible_ms - 1000
    (again,) = await popper.until(1, 30)
    assert (again.body, again.attempt) == (b"b", 1)
    assert now_ms() >= visible_ms - 1000
    assert [one.body for one in await in_order.until(2, 30, order=True)] == [b"b", b"c"]


async def lock(client: Client, client_id: str) -> bool:
    """Whether the client holds the queue now."""
    queue = MessageQueue("T", "broker-a", 0)
    body = LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=(queue,))
    answer = await client.ask(LockBatchMq(), fastjson.encode(body))
    return bool(fastjson.decode(answer.body, LockBatchResponseBody).locked)


@in_loop(with_replicas)
async def test_who_holds_a_queue_holds_it_at_the_new_master_and_nobody_else(
    replicas: Replicas, /
) -> None:
    await replicas.master(**SYNC)
    slave = await replicas.slave()
    client = replicas.client_of(MASTER)
    await client.create()
    await a_round_later(slave)
    assert await lock(client, "c1")
    replicas.kill(MASTER)
    await replicas.stop(SLAVE)
    await replicas.broker(SLAVE, BrokerRole.ASYNC_MASTER)
    client = replicas.client_of(SLAVE)
    assert not await lock(client, "c2")
    assert await lock(client, "c1")


@in_loop(with_replicas)
async def test_a_new_master_that_never_knew_who_holds_a_queue_waits_until_nobody_can(
    replicas: Replicas, /
) -> None:
    await replicas.slave()
    await replicas.stop(SLAVE)
    await replicas.broker(SLAVE, BrokerRole.ASYNC_MASTER)
    client = replicas.client_of(SLAVE)
    await client.create()
    assert not await lock(client, "c2")
    await asyncio.sleep(30)
    assert await lock(client, "c2")
