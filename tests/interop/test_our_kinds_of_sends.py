"""Every kind of send that our producer has, to Apache's brokers, 5.3.3 and 4.9.7, read by Apache's
Java consumer; docs/reference/interop.md has the matrix. All kinds are sent at once, each on a topic
of its own; then one Java program reads them all.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import NEWEST, NEWEST_4, ApacheCluster, fetch_jars
from tests.interop.java_consumer import Arrived, check_read, read_by_java
from tests.interop.mqadmin import traces_by_mqadmin
from tests.interop.our_clients import (
    CALL_SECONDS,
    PATIENCE_SECONDS,
    letter,
    letters,
    numbers,
    read_all,
)
from tests.interop.our_servers import patient_turbopump
from tests.interop.patient_apache import PATIENT
from tests.interop.tools import skipping_without_tools

from turbopump import (
    AutoBatch,
    Message,
    Producer,
    PullConsumer,
    ReceivedMessage,
    SendResult,
    TransactionProducer,
    TransactionState,
)
from turbopump.client.sending.settings import DEFAULT_GROUP

COUNT = 40
LARGEST = (4 << 20) - 1024
EARLY_MS = 20
"""A message's birth is written on one clock and its arrival on another."""
SETTINGS: dict[str, str | int | bool] = {
    **PATIENT,
    "messageDelayLevel": "1s 2s 3s 1s 1s 20s",
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 1000,
    "transactionOpBatchInterval": 200,
    "recallMessageEnable": True,
    "traceTopicEnable": True,
}
SPACE = "their-space"


@dataclass(slots=True)
class Sent:
    """What one kind sent: the messages that must arrive, and the answers to them, if there were
    any."""

    messages: list[Message]
    results: list[SendResult | None]
    due_ms: dict[int, int] = field(default_factory=dict)
    queues: dict[int, int] = field(default_factory=dict)


Kind = Callable[[str, str], Awaitable[Sent]]


def producer(namesrv: str, **settings: Any) -> Producer:
    return Producer(namesrv, send_timeout=CALL_SECONDS, **settings)


async def one_by_one(namesrv: str, messages: list[Message], **settings: Any) -> Sent:
    async with producer(namesrv, **settings) as ours:
        return Sent(messages, [await ours.send(message) for message in messages])


async def in_turn(namesrv: str, topic: str) -> Sent:
    return await one_by_one(namesrv, letters(topic, COUNT))


async def at_once(namesrv: str, topic: str) -> Sent:
    messages = letters(topic, COUNT)
    async with producer(namesrv) as ours:
        futures = [await ours.start_send(message) for message in messages]
        return Sent(messages, list(await asyncio.gather(*futures)))


async def oneway(namesrv: str, topic: str) -> Sent:
    messages = letters(topic, COUNT)
    async with producer(namesrv) as ours:
        for message in messages:
            await ours.send_oneway(message)
    return Sent(messages, [None] * COUNT)


async def to_a_queue(namesrv: str, topic: str) -> Sent:
    messages = letters(topic, COUNT)
    async with producer(namesrv) as ours:
        first = await ours.send(messages[0])
        queue = (await ours.publish_queues(topic))[2]
        rest = [await ours.send(message, queue=queue) for message in messages[1:]]
    assert {result.queue.queue_id for result in rest} == {2}
    return Sent(messages, [first, *rest])


async def by_selector(namesrv: str, topic: str) -> Sent:
    messages = letters(topic, COUNT)
    async with producer(namesrv) as ours:
        results = [
            await ours.send(
                message, selector=lambda queues, chosen: queues[numbers([chosen])[0] % len(queues)]
            )
            for message in messages
        ]
    assert [result.queue.queue_id for result in results] == [number % 4 for number in range(COUNT)]
    return Sent(messages, list(results))


async def send_placed(way: str, namesrv: str, topic: str) -> Sent:
    messages, told = letters(topic, COUNT), []
    async with producer(namesrv) as ours:
        third = (await ours.publish_queues(topic))[2]
        for number, message in enumerate(messages):
            where: dict[str, Any] = {
                "selector": lambda queues, chosen: queues[numbers([chosen])[0] % len(queues)]
            }
            told.append(
                await getattr(ours, way)(message, **(where if number % 2 else {"queue": third}))
            )
        results = await asyncio.gather(*told) if way == "start_send" else told
    return Sent(
        messages,
        list(results),
        queues={number: number % 4 if number % 2 else 2 for number in range(COUNT)},
    )


def placed(way: str) -> Kind:
    """By the producer's method of that name: even numbers to queue 2, odd ones by a selector."""

    return partial(send_placed, way)


async def batch_to_a_queue(namesrv: str, topic: str) -> Sent:
    messages = letters(topic, COUNT)
    async with producer(namesrv) as ours:
        third = (await ours.publish_queues(topic))[2]
        for start in range(0, COUNT, 10):
            await ours.send_batch(messages[start : start + 10], queue=third)
    return Sent(messages, [None] * COUNT, queues=dict.fromkeys(range(COUNT), 2))


async def sharded(namesrv: str, topic: str) -> Sent:
    messages = letters(topic, COUNT)
    queues: defaultdict[int, set[int]] = defaultdict(set)
    async with producer(namesrv) as ours:
        results = []
        for number, message in enumerate(messages):
            results.append(await ours.send(message, sharding_key=f"order {number % 5}"))
            queues[number % 5].add(results[-1].queue.queue_id)
    assert {len(ids) for ids in queues.values()} == {1}
    return Sent(
        [
            message.with_property("__SHARDINGKEY", f"order {number % 5}")
            for number, message in enumerate(messages)
        ],
        list(results),
    )


async def batch(namesrv: str, topic: str) -> Sent:
    messages = letters(topic, COUNT)
    async with producer(namesrv) as ours:
        for start in range(0, COUNT, 10):
            await ours.send_batch(messages[start : start + 10])
    return Sent(messages, [None] * COUNT)


async def auto_batch(namesrv: str, topic: str) -> Sent:
    messages = letters(topic, COUNT)
    async with producer(namesrv, auto_batch=AutoBatch()) as ours:
        return Sent(messages, list(await asyncio.gather(*map(ours.send, messages))))


async def send_kind(kind: str, namesrv: str, topic: str) -> Sent:
    messages = [
        letter(topic, number, b"compressible %d " % number * (500 + number))
        for number in range(COUNT)
    ]
    return await one_by_one(namesrv, messages, compression=kind)


def compressed(kind: str) -> Kind:
    return partial(send_kind, kind)


async def largest(namesrv: str, topic: str) -> Sent:
    return await one_by_one(
        namesrv, [letter(topic, 0, random.Random(3).randbytes(LARGEST))], compress_from=None
    )


async def levels(namesrv: str, topic: str, *, oneway: bool = False) -> Sent:
    messages = [letter(topic, number, delay_level=number % 4) for number in range(COUNT)]
    born = time.time_ns() // 1_000_000
    if oneway:
        async with producer(namesrv) as ours:
            for message in messages:
                await ours.send_oneway(message)
        sent = Sent(messages, [None] * COUNT)
    else:
        sent = await one_by_one(namesrv, messages)
    sent.due_ms = {number: born + 1000 * (number % 4) for number in range(COUNT)}
    return sent


def timer(topic: str, number: int, ahead_ms: int) -> Message:
    return letter(topic, number, deliver_at=time.time_ns() // 1_000_000 + ahead_ms)


async def timers(namesrv: str, topic: str) -> Sent:
    messages = [timer(topic, number, 2000 + 50 * number) for number in range(COUNT)]
    due = {
        number: int(message.properties["TIMER_DELIVER_MS"])
        for number, message in enumerate(messages)
    }
    sent = await one_by_one(namesrv, messages)
    # TIMER_DELIVER_MS does not come out of the broker's wheel
    sent.messages = letters(topic, COUNT)
    sent.due_ms = due
    return sent


async def recalled(namesrv: str, topic: str) -> Sent:
    """Those with an even number are called back."""
    messages = letters(topic, COUNT)
    results: list[SendResult | None] = []
    async with producer(namesrv) as ours:
        await ours.publish_queues(topic)
        for number in range(COUNT):
            results.append(await ours.send(timer(topic, number, 15_000)))
            if number % 2 == 0:
                handle = results[-1].recall_handle  # type: ignore[union-attr]
                assert handle is not None
                assert await ours.recall(topic, handle) == results[-1].msg_id  # type: ignore[union-attr]
    return Sent(messages[1::2], results[1::2])


async def execute(_message: Message, number: object) -> TransactionState:
    states = (
        TransactionState.COMMIT,
        TransactionState.ROLLBACK,
        TransactionState.UNKNOWN,
        TransactionState.UNKNOWN,
    )
    assert isinstance(number, int)
    return states[number % 4]


async def look_up(asked: Any, topic: str, message: ReceivedMessage) -> TransactionState:
    (number,) = numbers([message])
    assert message.topic == topic
    asked.add(number)
    return TransactionState.ROLLBACK if number % 2 else TransactionState.COMMIT


async def transactions(namesrv: str, topic: str, **space: Any) -> Sent:
    """Numbers by four: committed, rolled back, undecided and then committed, undecided and then
    rolled back."""
    messages, asked = letters(topic, COUNT), set[int]()

    async with TransactionProducer(
        namesrv,
        group=f"{topic}-group",
        executor=execute,
        checker=partial(look_up, asked, topic),
        topics=[topic],
        send_timeout=CALL_SECONDS,
        **space,
    ) as ours:
        results = [
            (await ours.send_in_transaction(message, number)).sent
            for number, message in enumerate(messages)
        ]
        wanted = {number for number in range(COUNT) if number % 4 > 1}
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not asked >= wanted:
                await asyncio.sleep(0.05)
            async with PullConsumer(
                namesrv, group="looker", **space
            ) as looker:  # answers go one-way: it leaves when they have arrived
                while len(set(numbers(await read_all(looker, topic, COUNT // 2)))) < COUNT // 2:
                    await asyncio.sleep(0.05)
    return Sent(messages[::2], list(results[::2]))


async def namespaced(namesrv: str, topic: str) -> Sent:
    return await one_by_one(namesrv, letters(topic, COUNT), namespace=SPACE)


async def namespaced_v2(namesrv: str, topic: str) -> Sent:
    return await one_by_one(namesrv, letters(topic, COUNT), namespace_v2=SPACE)


async def traced(namesrv: str, topic: str) -> Sent:
    return await one_by_one(namesrv, letters(topic, 12), trace=True)


KINDS: dict[str, Kind] = {
    "sync": in_turn,
    "async": at_once,
    "oneway": oneway,
    "to_queue": to_a_queue,
    "by_selector": by_selector,
    "async_placed": placed("start_send"),
    "oneway_placed": placed("send_oneway"),
    "batch_to_queue": batch_to_a_queue,
    "sharded": sharded,
    "batch": batch,
    "auto_batch": auto_batch,
    "zlib": compressed("zlib"),
    "lz4": compressed("lz4"),
    "zstd": compressed("zstd"),
    "largest": largest,
    "levels": levels,
    "levels_oneway": partial(levels, oneway=True),
    "timers": timers,
    "recalled": recalled,
    "transactions": transactions,
    "namespace_transactions": partial(transactions, namespace=SPACE),
    "namespace": namespaced,
    "namespace_v2": namespaced_v2,
    "traced": traced,
}
TRANSACTIONS = {"transactions", "namespace_transactions"}
# stored elsewhere first
UNPLACED = {"levels", "levels_oneway", "timers", "recalled"} | TRANSACTIONS
UNORDERED = {"async", "async_placed", "oneway", "oneway_placed", "auto_batch"} | UNPLACED
ONLY_5 = {"timers", "recalled", "namespace_v2"}
VERSIONS = (NEWEST, NEWEST_4)
CASES = [
    (version, kind)
    for version in VERSIONS
    for kind in KINDS
    if version == NEWEST or kind not in ONLY_5
]
JAVA = {NEWEST: "5.3.3", NEWEST_4: "4.9.8"}


@dataclass(slots=True)
class Story:
    """One cluster: what was sent to it, and what Java's consumer got."""

    cluster: ApacheCluster
    directory: Path
    sent: dict[str, Sent | BaseException] = field(default_factory=dict)
    received: defaultdict[str, list[Arrived]] = field(default_factory=partial(defaultdict, list))
    said: str = ""


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Story]]:
    """Both clusters side by side."""
    with ExitStack() as stack, skipping_without_tools(), ThreadPoolExecutor() as pool:
        made = {}
        for version in VERSIONS:
            directory = tmp_path_factory.mktemp("apache")
            cluster = ApacheCluster(
                version, directory=directory, heap="384m", broker_config=SETTINGS
            )
            stack.callback(cluster.kill)
            made[version] = Story(cluster, directory)
        for future in [
            pool.submit(send_all_kinds, story, version) for version, story in made.items()
        ]:
            future.result()
        yield made


async def send(kinds: Any, story: Story) -> None:
    told = await asyncio.gather(
        *(KINDS[kind](story.cluster.namesrv, kind) for kind in kinds), return_exceptions=True
    )
    story.sent = dict(zip(kinds, told, strict=True))


def send_all_kinds(story: Story, version: str) -> None:
    story.cluster.start()
    kinds = [kind for of, kind in CASES if of == version]

    asyncio.run(send(kinds, story))
    spaces = {
        "namespace": f"v1:{SPACE}",
        "namespace_transactions": f"v1:{SPACE}",
        "namespace_v2": f"v2:{SPACE}",
    }
    wanted = {
        (spaces.get(kind, "-"), kind): len(sent.messages)
        for kind, sent in story.sent.items()
        if isinstance(sent, Sent)
    }
    outcome, story.received = read_by_java(
        JAVA[version], story.cluster.namesrv, wanted, story.directory / "java"
    )
    story.said = f"{outcome.reports} {outcome.ending()} {outcome.stderr[-1500:]}"


@pytest.mark.parametrize(("version", "kind"), CASES)
def test_javas_consumer_reads_every_kind_of_our_sends_right(
    version: str, kind: str, stories: dict[str, Story], summary: list[str]
) -> None:
    story = stories[version]
    sent = story.sent[kind]
    if isinstance(sent, BaseException):
        raise sent

    received = story.received[kind]
    where = {one.number: one.queue_id for one in received}
    # Apache's broker may ask about what has ended a moment ago, and deliver that twice
    if kind in TRANSACTIONS:
        assert [one.queue_offset for one in received if one.queue_id == 0] == list(
            range(sum(one.queue_id == 0 for one in received))
        )
        received = list({one.number: one for one in received}.values())
        assert sorted(one.number for one in received) == list(range(0, COUNT, 2)), story.said
        assert [one.body for one in sorted(received, key=lambda one: one.number)] == [
            one.body for one in sent.messages
        ]
    else:
        assert len(received) >= len(sent.messages), story.said
        check_read(
            sent.messages,
            received,
            sent.results,
            in_order=kind not in UNORDERED,
            placed=kind not in UNPLACED,
        )

    assert {number: sent.queues.get(number, queue) for number, queue in where.items()} == where
    for number, due in sent.due_ms.items():
        (at,) = [one.arrived_ms for one in received if one.number == number]
        assert at >= due - EARLY_MS
    summary.append(
        f"apache-{version:8} {kind:14} {len(received)} messages of ours, read by Java "
        f"{JAVA[version]}"
    )


# --- traces: ours, read by Apache's tools
# ----------------------------------------------------------------------------------------


def check_traces(namesrv: str, sent: Sent, group: str, directory: Path) -> None:
    result = sent.results[3]
    assert result is not None
    deadline = time.monotonic() + PATIENCE_SECONDS / 3
    while True:  # Apache's broker indexes behind its answers
        shown = traces_by_mqadmin(namesrv, result.msg_id, directory)
        line = re.search(
            rf"^Pub +{group} +\S+ +\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d +\d+ms +success",
            shown,
            re.MULTILINE,
        )
        if line is not None:
            return
        assert time.monotonic() < deadline, shown


@pytest.mark.parametrize("version", VERSIONS)
def test_apaches_mqadmin_finds_our_traces_on_apaches_broker(
    version: str, stories: dict[str, Story]
) -> None:
    story = stories[version]
    sent = story.sent["traced"]
    assert isinstance(sent, Sent)
    check_traces(story.cluster.namesrv, sent, DEFAULT_GROUP, story.directory)


def test_apaches_mqadmin_finds_our_traces_on_our_broker(tmp_path: Path) -> None:
    with skipping_without_tools():
        fetch_jars(NEWEST)
    with patient_turbopump(tmp_path / "store") as ours:
        sent = asyncio.run(traced(ours.namesrv, "traced"))
        check_traces(ours.namesrv, sent, DEFAULT_GROUP, tmp_path)
