"""Every kind of send that Java's and Go's producers have, and delayed sends of C++'s and Node's, to
our broker, read by our consumer; docs/reference/interop.md has the matrix.

Each client's program sends all its kinds at once, each on a topic of its own; one consumer of ours
then reads them all.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

import pytest
from tests.interop.apache import properties_text
from tests.interop.foreign import CLIENTS as PROGRAMS
from tests.interop.foreign import (
    MESSAGES,
    ClientRun,
    ForeignClient,
    cpp_client,
    go_client,
    java_client,
    run,
)
from tests.interop.members import node_program
from tests.interop.our_clients import (
    PATIENCE_SECONDS,
    check,
    check_queues,
    letter,
    letters,
    numbers,
    once,
)
from tests.interop.our_servers import PATIENT_BROKER, OurServers, turbopump_broker
from tests.interop.tools import skipping_without_tools
from tests.ports import free_ports

from turbopump import ConsumeFrom, Message, MessageQueue, PushConsumer, ReceivedMessage
from turbopump.client.consumer.delivery import Delivery
from turbopump.client.selectors import by_hash
from turbopump.client.trace import FIELD_END, RECORD_END, TRACE_TOPIC

FEW = 24
LEVELS = "1s 2s 3s 1s 1s 20s"
ZLIB, LZ4, ZSTD = 0x300, 0x100, 0x200
"""Bits 8 to 10 of sysFlag: how a body is compressed (``MessageSysFlag``)."""
LATE_MS = 30_000
"""On a machine that stands still at times; the precision, a second, is judged in virtual time:
tests/simulation/test_timers.py."""


def sharded(topic: str) -> list[Message]:
    return [
        message.with_property("order", f"order {number % 5}")
        for number, message in enumerate(letters(topic, MESSAGES))
    ]


def compressible(topic: str) -> list[Message]:
    return [
        letter(topic, number, b"compressible %d " % number * (500 + number))
        for number in range(FEW)
    ]


def largest(topic: str) -> list[Message]:
    """As the programs make it: byte i is 31 i + i / 256, 1 KiB less than 4 MiB."""
    blocks = [bytes((31 * low + high) & 0xFF for low in range(256)) for high in range(256)]
    return [letter(topic, 0, b"".join(blocks[high % 256] for high in range((4 << 20) // 256 - 4)))]


def many(topic: str) -> list[Message]:
    return letters(topic, MESSAGES)


def some(topic: str) -> list[Message]:
    return letters(topic, FEW)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kind sends, and what else must be true of it."""

    sent: Callable[[str], list[Message]]
    in_order: bool = True
    space: str | None = None
    compressed: int = 0
    kept: Callable[[Message], bool] = lambda message: True
    placed: bool = True  # the send result told where it would be read
    # to which each went but the first, which made the topic
    queue: Callable[[int], int] | None = None


def third(_number: int) -> int:
    return 2


def by_number(number: int) -> int:
    return number % 4


KINDS = {
    "send_sync": Kind(many),
    "send_async": Kind(many, in_order=False),
    "send_oneway": Kind(many, in_order=False),
    "send_batch": Kind(many),
    "send_by_selector": Kind(many, queue=by_number),
    "send_to_queue": Kind(many),
    "async_to_queue": Kind(many, in_order=False, queue=third),
    "async_by_selector": Kind(many, in_order=False, queue=by_number),
    "oneway_to_queue": Kind(many, in_order=False, queue=third),
    "oneway_by_selector": Kind(many, in_order=False, queue=by_number),
    "batch_to_queue": Kind(many, queue=third),
    "batch_async": Kind(many, in_order=False),
    "batch_async_to_queue": Kind(many, in_order=False, queue=third),
    "batch_oneway": Kind(many, in_order=False),
    "send_signed": Kind(lambda topic: letters(topic, 8)),
    "sharded": Kind(sharded),
    "zlib": Kind(compressible, compressed=ZLIB),
    "lz4": Kind(compressible, compressed=LZ4),
    "zstd": Kind(compressible, compressed=ZSTD),
    "largest": Kind(largest),
    "auto_batch": Kind(many, in_order=False),
    "levels": Kind(some, in_order=False, placed=False),
    "levels_oneway": Kind(some, in_order=False),
    "timers": Kind(some, in_order=False, placed=False),
    "timers_sec": Kind(some, in_order=False, placed=False),
    "timers_ms": Kind(some, in_order=False, placed=False),
    "timers_oneway": Kind(some, in_order=False),
    "recalled": Kind(
        some,
        in_order=False,
        placed=False,
        kept=lambda message: int(message.properties["n"]) % 2 == 1,
    ),
    "namespace": Kind(some, space="v1"),
    "namespace_v2": Kind(some, space="v2"),
    "namespace_transactions": Kind(
        some,
        in_order=False,
        space="v1",
        placed=False,
        kept=lambda message: int(message.properties["n"]) % 3 != 1,
    ),
    "traced": Kind(some),
}
TIMERS = ("timers", "timers_sec", "timers_ms", "timers_oneway", "recalled")
ONLY_JAVA_5 = {"auto_batch", "namespace_v2", *TIMERS}
ONLY_JAVA = {"lz4", "zstd"}
ONLY_GO = {"batch_oneway"}
ALSO = ("send_large", "send_vip")  # read back by the client itself, and nothing new to our consumer
JAVA_5_KINDS = tuple(kind for kind in KINDS if kind not in ONLY_GO)
JAVA_4_KINDS = tuple(kind for kind in JAVA_5_KINDS if kind not in ONLY_JAVA_5)
GO_KINDS = tuple(kind for kind in KINDS if kind not in ONLY_JAVA_5 | ONLY_JAVA)
CLIENTS = (
    ForeignClient("java-5.3.3", JAVA_5_KINDS, partial(java_client, "5.3.3", program="Producing")),
    ForeignClient("java-4.9.8", JAVA_4_KINDS, partial(java_client, "4.9.8", program="Producing")),
    ForeignClient("go-2.1.2", GO_KINDS, partial(go_client, "producing")),
)
DELAYING = (
    ForeignClient(
        "cpp-0.4.4",
        ("levels", "timers"),
        lambda: [cpp_client()[0], str(PROGRAMS / "cpp" / "delaying.py")],
    ),
    ForeignClient("node-2.0.1", ("levels", "timers"), partial(node_program, "delaying.js")),
)
"""Who has no more than the other kinds that test_foreign_clients.py reads back with their own
consumers."""


@dataclass(slots=True)
class Story:
    """One client's run, and what our consumer got, by topic."""

    outcome: ClientRun
    places: dict[tuple[str, int], tuple[int, int, str]] = field(default_factory=dict)
    received: defaultdict[str, list[ReceivedMessage]] = field(
        default_factory=partial(defaultdict, list)
    )
    arrived_ms: dict[tuple[str, int], int] = field(default_factory=dict)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServers]:
    directory = tmp_path_factory.mktemp("turbopump")
    conf = directory / "broker.conf"
    settings = {
        **PATIENT_BROKER,
        "listenPort": free_ports(-2, 0),
        "storePathRootDir": str(directory / "store"),
        "messageDelayLevel": LEVELS,
        "transactionTimeOut": 1000,
        "transactionCheckInterval": 1000,
    }
    conf.write_text(properties_text(settings))
    with turbopump_broker(directory, conf) as servers:
        yield servers
    assert " ERROR " not in servers.log(), servers.log()[-3000:]


@pytest.fixture(scope="module")
def stories(servers: OurServers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Story]:
    """All programs at once, then all that they have sent is read."""
    directory = tmp_path_factory.mktemp("clients")
    with skipping_without_tools(), ThreadPoolExecutor() as pool:
        runs = {
            client.name: pool.submit(
                run, client, servers.namesrv, prefix(client), directory / client.name
            )
            for client in (*CLIENTS, *DELAYING)
        }
        made = {name: Story(future.result()) for name, future in runs.items()}
    for name, story in made.items():
        for line in (directory / name / "places").read_text().splitlines():
            topic, number, queue, offset, msg_id = line.split("\t")
            story.places[topic, int(number)] = int(queue), int(offset), msg_id
    asyncio.run(read(servers.namesrv, made))
    return made


def prefix(client: ForeignClient) -> str:
    return client.name.replace(".", "-")


async def handle(owner: dict[str, Story], message: Delivery) -> None:
    story = owner[message.topic]
    story.received[message.topic].append(message)
    if message.topic != TRACE_TOPIC:
        story.arrived_ms[message.topic, numbers([message])[0]] = time.time_ns() // 1_000_000


async def read(namesrv: str, stories: dict[str, Story]) -> None:
    """One consumer for all plain topics, and one for each namespace."""
    wanted: dict[str, int] = {TRACE_TOPIC: 0}
    spaces: dict[tuple[str, str], list[str]] = {("", ""): [TRACE_TOPIC]}
    owner: dict[str, Story] = {TRACE_TOPIC: stories["java-5.3.3"]}
    for client in (*CLIENTS, *DELAYING):
        for name in client.scenarios:
            topic, kind = f"{prefix(client)}-{name}", KINDS[name]
            wanted[topic] = sum(map(kind.kept, kind.sent(topic)))
            owner[topic] = stories[client.name]
            spaces.setdefault(
                (kind.space or "", f"{prefix(client)}-space" if kind.space else ""), []
            ).append(topic)

    async with AsyncExitStack() as stack:
        for (space, name), topics in spaces.items():
            consumer = PushConsumer(
                namesrv,
                group=f"reading{space}{name}",
                topic=topics[0],
                namespace=name if space == "v1" else None,
                namespace_v2=name if space == "v2" else None,
                consume_from=ConsumeFrom.FIRST,
                handler=partial(handle, owner),
            )
            await stack.enter_async_context(consumer)
            for topic in topics[1:]:
                await consumer.subscribe(topic)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            traced = published(owner[TRACE_TOPIC].received[TRACE_TOPIC])
            if all(
                len(owner[topic].received[topic]) >= count for topic, count in wanted.items()
            ) and all(len(traced[f"{prefix(client)}-traced"]) >= FEW for client in CLIENTS):
                break
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.5)  # for what should not come


def published(traces: list[ReceivedMessage]) -> defaultdict[str, dict[str, list[str]]]:
    """The records of messages that were sent, as fields, by topic and message id; each is found by
    that id as its key."""
    records: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
    for message in traces:
        for record in message.body.decode().split(RECORD_END)[:-1]:
            fields = record.split(FIELD_END)
            if fields[0] == "Pub":
                assert fields[5] in message.keys
                records[fields[4]][fields[5]] = fields
    return records


CASES = [(client, kind) for client in (*CLIENTS, *DELAYING) for kind in client.scenarios]
LEVELLED = [case for case in CASES if case[1].startswith("levels")]
TIMED = [case for case in CASES if case[1] in TIMERS]


@pytest.mark.parametrize(("client", "name"), CASES, ids=[f"{c.name}-{k}" for c, k in CASES])
def test_our_consumer_reads_every_kind_of_send_right(
    client: ForeignClient, name: str, stories: dict[str, Story], summary: list[str]
) -> None:
    story, kind, topic = stories[client.name], KINDS[name], f"{prefix(client)}-{name}"
    report = story.outcome.reports.get(name)
    assert report, (
        f"{client.name} {story.outcome.ending()} before {name} was through\n{story.outcome.stderr}"
    )
    assert report["ok"], f"{report['detail']}\n{story.outcome.stderr}"

    received = story.received[topic]

    check([message for message in kind.sent(topic) if kind.kept(message)], once(received))
    assert len(once(received)) == len(received), "delivered twice although no queue changed hands"
    check_queues(received, in_order=kind.in_order)
    compressed = kind.compressed and kind.compressed | 1
    if client.name == "go-2.1.2" and compressed:
        compressed = 1  # it names no type: zlib, as before there were others
    assert {message.sys_flag & 0x701 for message in received} == {compressed}
    for message in received:
        place = story.places.get((topic, numbers([message])[0]))
        if place is not None and kind.placed:
            assert (message.queue_id, message.queue_offset, message.msg_id) == place
        elif place is not None:
            assert message.msg_id == place[2]
        if kind.queue is not None and numbers([message]) != [0]:
            assert message.queue_id == kind.queue(numbers([message])[0])
    summary.append(
        f"{client.name:14} {name:18} {report['seconds']:>6} s  {len(received)} "
        "messages, read by ours"
    )


@pytest.mark.parametrize("client", CLIENTS, ids=[client.name for client in CLIENTS])
def test_messages_of_one_key_are_in_one_queue(
    client: ForeignClient, stories: dict[str, Story]
) -> None:
    topic = f"{prefix(client)}-sharded"
    queues: defaultdict[str, set[int]] = defaultdict(set)
    for message in stories[client.name].received[topic]:
        queues[message.properties["order"]].add(message.queue_id)
    all_queues = [MessageQueue(topic, "broker-a", number) for number in range(4)]
    for key, ids in queues.items():
        assert len(ids) == 1
        if client.name != "go-2.1.2":  # Go has another hash than Java
            assert ids == {by_hash(key)(all_queues, Message(topic, b"")).queue_id}


@pytest.mark.parametrize(("client", "name"), LEVELLED, ids=[f"{c.name}-{k}" for c, k in LEVELLED])
def test_no_level_comes_early(client: ForeignClient, name: str, stories: dict[str, Story]) -> None:
    for message in stories[client.name].received[f"{prefix(client)}-{name}"]:
        level = numbers([message])[0] % 4
        assert message.store_timestamp - message.born_timestamp >= 1000 * level
        assert message.properties.get("DELAY", "0") == str(level)


@pytest.mark.parametrize(("client", "name"), TIMED, ids=[f"{c.name}-{k}" for c, k in TIMED])
def test_timer_messages_come_at_their_time(
    client: ForeignClient, name: str, stories: dict[str, Story], summary: list[str]
) -> None:
    received = stories[client.name].received[f"{prefix(client)}-{name}"]
    late = [message.store_timestamp - int(message.properties["due"]) for message in received]
    # on a busy machine one or the other may come to the broker when it is due already
    assert any("TIMER_OUT_MS" in message.properties for message in received)
    assert min(late) >= 0
    assert max(late) <= LATE_MS
    summary.append(
        f"{client.name:14} {name:18} {len(late)} timer messages, late by {min(late)} "
        f"to {max(late)} ms"
    )


@pytest.mark.parametrize("client", CLIENTS, ids=[client.name for client in CLIENTS])
def test_traces_of_a_foreign_producer_are_in_the_trace_topic_as_ours_are(
    client: ForeignClient, stories: dict[str, Story]
) -> None:
    story, topic = stories[client.name], f"{prefix(client)}-traced"
    records = published(stories["java-5.3.3"].received[TRACE_TOPIC])[topic]
    assert records.keys() == {message.msg_id for message in story.received[topic]}
    for message in story.received[topic]:
        fields = records[message.msg_id]
        assert fields[2] == "DefaultRegion"
        assert (fields[6], fields[7].split()) == (message.tags, message.keys)
        assert fields[12] == message.offset_msg_id
        assert fields[13] == "true"
