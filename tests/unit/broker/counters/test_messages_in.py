"""Messages that clients send: what counts, under which topic and kind, and what does not."""

import asyncio

import pytest
from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.metrics.scraping import scrape
from tests.unit.broker.talking import Talk, in_virtual_time
from tests.unit.broker.transacting import World, in_a_world

from turbopump.broker.counters.messages_in import FIFO, NORMAL, MessagesIn, message_kind
from turbopump.message.batch import encode_batch
from turbopump.message.message import Message
from turbopump.message.properties import encode_properties
from turbopump.protocol.requests.send import SendBatchMessage, TransactionOutcome
from turbopump.protocol.requests.topics import DeleteTopic

IN = "messages_in_total"


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, "normal"),
        ({"TRAN_MSG": "false", "KEYS": "DELAY"}, "normal"),
        ({"__SHARDINGKEY": "s", "DELAY": "1"}, "fifo"),
        ({"DELAY": "0"}, "delay"),
        ({"TIMER_DELAY_MS": "1"}, "delay"),
        ({"__STARTDELIVERTIME": "1"}, "delay"),
        ({"TRAN_MSG": "TRUE", "__SHARDINGKEY": "s"}, "transaction"),
    ],
)
def test_a_kind_is_transaction_then_fifo_then_delay(properties: dict[str, str], kind: str) -> None:
    assert message_kind(encode_properties(properties)) == kind


def series(messages: MessagesIn) -> dict[str, tuple[int, int]]:
    return {" ".join(values[:2]): (flow.count, flow.size) for values, flow in messages.flows()}


def test_plain_messages_are_what_the_walk_finds_without_the_others() -> None:
    messages = MessagesIn()
    messages.count_sent("T", FIFO, 200)
    messages.count_sent("T", NORMAL, 100)
    messages.count_own("T", 50)
    messages.add_walked("T", [100, 200, 50], 350)
    assert series(messages) == {"T normal": (1, 100), "T fifo": (1, 200)}


def test_a_count_never_falls_while_the_walk_is_behind() -> None:
    messages = MessagesIn()
    messages.add_walked("T", [100, 100], 200)
    assert series(messages) == {"T normal": (2, 200)}
    messages.count_sent("T", FIFO, 200)
    assert series(messages) == {"T normal": (2, 200), "T fifo": (1, 200)}
    messages.add_walked("T", [200, 100], 300)
    assert series(messages) == {"T normal": (3, 300), "T fifo": (1, 200)}


def test_the_walk_puts_each_size_into_its_bucket() -> None:
    messages = MessagesIn()
    sizes = [1, 1024, 1025, 4096, 5000, 600_000, 4_194_304, 4_194_305]
    messages.add_walked("T", sizes, sum(sizes))
    ((_, flow),) = messages.flows()
    assert flow.buckets == [2, 2, 1, 1, 0, 1, 1]
    one_by_one = MessagesIn()
    for size in sizes:
        one_by_one.count_sent("T", FIFO, size)
    ((_, same),) = one_by_one.flows()
    assert (same.count, same.size, same.buckets) == (flow.count, flow.size, flow.buckets)


def test_ordered_messages_count_again_after_their_topic_was_deleted() -> None:
    messages = MessagesIn()
    messages.count_fifo("T", 200)
    messages.count_fifo("%RETRY%g", 200)
    assert series(messages) == {"T fifo": (1, 200)}
    messages.forget_topic("T")
    assert series(messages) == {}
    messages.count_fifo("T", 300)
    assert series(messages) == {"T fifo": (1, 300)}


def test_a_slave_counts_nothing_that_it_copies() -> None:
    messages = MessagesIn(walked=False)
    messages.add_walked("T", [100], 100)
    assert series(messages) == {}


@in_loop(in_virtual_time, message_delay_level="1s 2s")
async def test_sent_messages_count_by_topic_and_kind(talk: Talk, simulation: Simulation, /) -> None:
    await talk.client.create(queues=4)
    for queue_id in range(3):
        await talk.client.send(b"plain", queue_id=queue_id)
    await talk.client.send(b"x" * 5000)
    await talk.client.send(b"ordered", properties="__SHARDINGKEY\x01s\x02")
    body = encode_batch([Message(topic="T", body=b"one"), Message(topic="T", body=b"two")])
    batch = SendBatchMessage(topic="T", queue_id=0, producer_group="p", batch=True)
    assert (await talk.client.code(batch, body))[0] == 0
    await talk.client.send(b"later", properties="DELAY\x011\x02")
    waiting = {
        f"{IN} topic=T message_type=normal is_system=false": 6,
        f"{IN} topic=T message_type=fifo is_system=false": 1,
        f"{IN} topic=SCHEDULE_TOPIC_XXXX message_type=delay is_system=true": 1,
    }
    assert scrape(talk.broker, IN) == waiting
    await asyncio.sleep(3)
    delivered = f"{IN} topic=T message_type=delay is_system=false"
    assert scrape(talk.broker, IN) == waiting | {delivered: 1}
    sizes = scrape(talk.broker, "message_size_count", "message_size_bucket", "message_size_sum")
    plain = "topic=T message_type=normal is_system=false"
    assert [
        sizes[f"message_size_bucket {plain} le={bound}.0"] for bound in (1024, 4096, 524288)
    ] == [5, 5, 6]
    through = scrape(talk.broker, "throughput_in_total")
    assert sizes[f"message_size_sum {plain}"] == through[f"throughput_in_total {plain}"] > 5000
    assert (await talk.client.code(DeleteTopic(topic="T")))[0] == 0
    assert [one for one in scrape(talk.broker, IN) if "topic=T " in one] == []


@in_loop(in_virtual_time, message_delay_level="1s 2s")
async def test_a_delayed_message_of_a_deleted_topic_leaves_no_series(
    talk: Talk, simulation: Simulation, /
) -> None:
    await talk.client.create()
    await talk.client.send(b"later", properties="DELAY\x012\x02")
    assert (await talk.client.code(DeleteTopic(topic="T")))[0] == 0
    await asyncio.sleep(10)
    assert talk.broker.parts.stored.statistics.events.delayed.count == 1
    assert [one for one in scrape(talk.broker, IN) if "topic=T " in one] == []


@in_loop(in_virtual_time)
async def test_due_timers_and_retries_do_not_count(talk: Talk, simulation: Simulation, /) -> None:
    await talk.client.create()
    await talk.client.create("%RETRY%g")
    await talk.client.send(b"timed", properties="TIMER_DELAY_MS\x012000\x02")
    await talk.client.send(b"retried", topic="%RETRY%g")
    await asyncio.sleep(10)
    assert await talk.client.all_bodies() == [b"timed"]
    assert scrape(talk.broker, IN) == {
        f"{IN} topic=rmq_sys_wheel_timer message_type=delay is_system=true": 1
    }


@in_loop(in_a_world)
async def test_a_transaction_counts_as_a_half_message(world: World, /) -> None:
    transactor = world.transactor()
    await transactor.announce()
    await transactor.client.create()
    half = await transactor.prepare()
    assert (await transactor.end(half, TransactionOutcome.COMMIT)).code == 0
    assert await transactor.client.all_bodies() == [b"x"]
    assert scrape(world.broker, IN) == {
        f"{IN} topic=RMQ_SYS_TRANS_HALF_TOPIC message_type=transaction is_system=true": 1
    }
