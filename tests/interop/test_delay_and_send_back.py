"""Delay levels, messages that are sent back, and dead letters: other people's clients on our
broker, ours on Apache's, and a directory with delayed messages that goes from one broker to the
other.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.interop.apache import NEWEST, NEWEST_4, ApacheCluster, properties_text
from tests.interop.foreign import MESSAGES, ForeignClient, go_client, java_client, run
from tests.interop.our_clients import (
    PATIENCE_SECONDS,
    eventually,
    letter,
    letters,
    numbers,
    once,
    patient_producer,
    read_all,
)
from tests.interop.our_servers import PATIENT_BROKER, OurServers, turbopump_broker
from tests.interop.patient_apache import PATIENT, patient_apache
from tests.interop.shared_directory import SMALL_FILES, SharedDirectory, Who, the_other
from tests.interop.tools import skipping_without_tools
from tests.ports import free_ports

from turbopump import ConsumeFrom, Message, PullConsumer, PushConsumer, ReceivedMessage
from turbopump.client.consumer.delivery import Delivery

SCENARIOS = ("delay_levels", "send_back")
CLIENTS = (
    ForeignClient("java-5.3.3", SCENARIOS, partial(java_client, "5.3.3", program="Delaying")),
    ForeignClient("java-4.9.8", SCENARIOS, partial(java_client, "4.9.8", program="Delaying")),
    ForeignClient("go-2.1.2", SCENARIOS, partial(go_client, "delaying")),
)
LEVELS = "1s 2s 3s 1s 1s 10s"
RETRIES = 2
COUNT = 40
EARLY_MS = 20
"""A message's birth is written on one clock and its delivery judged on another."""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServers]:
    directory = tmp_path_factory.mktemp("turbopump")
    conf = directory / "broker.conf"
    settings = {
        **PATIENT_BROKER,
        "listenPort": free_ports(-2, 0),
        "storePathRootDir": str(directory / "store"),
        "messageDelayLevel": LEVELS,
    }
    conf.write_text(properties_text(settings))
    with turbopump_broker(directory, conf) as servers:
        yield servers


@pytest.fixture(scope="module", params=[NEWEST, NEWEST_4])
def apache(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheCluster]:
    with patient_apache(
        request.param, tmp_path_factory.mktemp(request.param), messageDelayLevel=LEVELS
    ) as cluster:
        yield cluster


@pytest.mark.parametrize("client", CLIENTS, ids=[client.name for client in CLIENTS])
def test_a_foreign_client_s_delayed_and_returned_messages(
    client: ForeignClient, ours: OurServers, tmp_path: Path, summary: list[str]
) -> None:
    prefix = client.name.replace(".", "-")
    with skipping_without_tools():
        outcome = run(client, ours.namesrv, prefix, tmp_path)
    for scenario in SCENARIOS:
        report = outcome.reports.get(scenario)
        assert report, (
            f"{client.name} {outcome.ending()} before {scenario} was through\n{outcome.stderr}"
        )
        summary.append(
            f"{client.name:26} {scenario:20} {report['seconds']:>6} s  {report['detail']}"
        )
        assert report["ok"], f"{report['detail']}\n{outcome.stderr}"
    sent = letters(f"{prefix}-send_back", MESSAGES // 10)
    asyncio.run(
        check_dead_letters(ours.namesrv, f"{prefix}-send_back-group", sent, same_text=False)
    )


def test_our_delayed_messages_come_when_they_are_due_from_our_broker(ours: OurServers) -> None:
    asyncio.run(delayed_story(ours.namesrv))


def test_our_delayed_messages_come_when_they_are_due_from_apaches_broker(
    apache: ApacheCluster,
) -> None:
    asyncio.run(delayed_story(apache.namesrv))


def test_what_our_consumer_sends_back_to_our_broker_comes_again_and_is_a_dead_letter(
    ours: OurServers,
) -> None:
    asyncio.run(returned_story(ours.namesrv))


def test_what_our_consumer_sends_back_to_apaches_broker_comes_again_and_is_a_dead_letter(
    apache: ApacheCluster,
) -> None:
    asyncio.run(returned_story(apache.namesrv))


async def note_arrival(arrived: dict[int, tuple[int, Delivery]], message: Delivery) -> None:
    assert (
        arrived.setdefault(numbers([message])[0], (time.time_ns() // 1_000_000, message))[1]
        is message
    )


async def delayed_story(namesrv: str) -> None:
    """Message n goes by level n mod 4, of which 0 is none."""
    sent = [delayed("delayed", number, number % 4) for number in range(COUNT)]
    arrived: dict[int, tuple[int, Delivery]] = {}

    async with patient_producer(namesrv) as producer:
        results = [await producer.send(message) for message in sent]
        async with PushConsumer(
            namesrv,
            group="waiting",
            topic="delayed",
            handler=partial(note_arrival, arrived),
            consume_from=ConsumeFrom.FIRST,
        ):
            await eventually("all came", lambda: len(arrived) == COUNT)
    for number, (message, result) in enumerate(zip(sent, results, strict=True)):
        at, got = arrived[number]
        assert at - got.born_timestamp >= 1000 * (number % 4) - EARLY_MS
        assert (got.topic, got.body, got.tags, got.keys) == (
            "delayed",
            message.body,
            message.tags,
            message.keys,
        )
        assert (got.msg_id, got.queue_id) == (result.msg_id, result.queue.queue_id)
        assert {name: got.properties.get(name) for name in message.properties} == message.properties
        if number % 4:
            assert (got.properties["REAL_TOPIC"], got.properties["REAL_QID"]) == (
                "delayed",
                str(got.queue_id),
            )


async def handle(attempts: dict[int, list[tuple[int, str, str]]], message: Delivery) -> None:
    attempts[numbers([message])[0]].append((message.attempt, message.topic, message.msg_id))
    raise ValueError("not today")


async def returned_story(namesrv: str) -> None:
    sent = letters("returned", 8)
    attempts: dict[int, list[tuple[int, str, str]]] = defaultdict(list)

    async with patient_producer(namesrv) as producer:
        ids = [(await producer.send(message)).msg_id for message in sent]
        async with PushConsumer(
            namesrv,
            group="returning",
            topic="returned",
            handler=partial(handle, attempts),
            consume_from=ConsumeFrom.FIRST,
            max_reconsume_times=RETRIES,
        ):
            await eventually(
                "all came for the last time",
                lambda: len(attempts) == 8 and all(len(one) > RETRIES for one in attempts.values()),
            )
        dead = await check_dead_letters(namesrv, "returning", sent)
    assert [attempts[number] for number in range(8)] == [
        [(attempt, "returned", msg_id) for attempt in range(1, RETRIES + 2)] for msg_id in ids
    ]
    assert sorted(message.msg_id for message in dead) == sorted(ids)


async def check_dead_letters(
    namesrv: str, group: str, sent: list[Message], *, same_text: bool = True
) -> list[ReceivedMessage]:
    """Each message is there once, after one attempt more than it was to be tried again."""
    async with PullConsumer(namesrv, group="undertaker") as reader:
        dead = await read_all(reader, f"%DLQ%{group}", len(sent))
    assert sorted(numbers(dead)) == sorted(numbers(sent))
    for message in dead:
        wanted = sent[numbers([message])[0]]
        assert (message.reconsume_times, message.properties["RETRY_TOPIC"]) == (
            RETRIES + 1,
            wanted.topic,
        )
        assert message.properties["ORIGIN_MESSAGE_ID"]
        assert (message.tags, message.keys) == (wanted.tags, wanted.keys)
        if same_text:
            assert message.body == wanted.body
    return dead


def delayed(topic: str, number: int, level: int) -> Message:
    return letter(topic, number, delay_level=level)


# --- a directory with messages that wait
# ----------------------------------------------------------------------------------------


async def send(born: dict[int, int], namesrv: str, start: int, level: int) -> None:
    async with patient_producer(namesrv) as producer:
        for number in range(start, start + COUNT):
            born[number] = time.time_ns() // 1_000_000
            await producer.send(delayed("handed-over", number, level))


async def receive(born: dict[int, int], namesrv: str, wanted: int, *, repeats: bool) -> None:
    async with PullConsumer(namesrv, group="reader") as reader:
        deadline = time.monotonic() + PATIENCE_SECONDS
        received = await read_all(reader, "handed-over", wanted)
        while len(set(numbers(received))) < wanted and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            received = await read_all(reader, "handed-over", wanted)
    assert set(numbers(received)) == set(range(wanted))
    assert repeats or len(received) == wanted, "delivered twice although nobody was killed"
    for message in once(received):
        number = numbers([message])[0]
        level = int(message.properties["DELAY"])
        delay = int(LEVELS.split()[level - 1][:-1]) * 1000
        assert message.store_timestamp - born[number] >= delay - EARLY_MS
        assert message.body == letter("handed-over", number).body


async def begin(born: dict[int, int], namesrv: str) -> None:
    await send(born, namesrv, 0, 1)
    await receive(born, namesrv, COUNT, repeats=False)
    await send(born, namesrv, COUNT, 6)


async def finish(born: dict[int, int], end: signal.Signals, namesrv: str) -> None:
    await receive(born, namesrv, 2 * COUNT, repeats=end is signal.SIGKILL)
    await send(born, namesrv, 2 * COUNT, 2)
    await receive(born, namesrv, 3 * COUNT, repeats=end is signal.SIGKILL)


@pytest.mark.parametrize(
    ("version", "first", "end"),
    [
        (NEWEST, "ours", signal.SIGTERM),
        (NEWEST, "apache", signal.SIGKILL),
        (NEWEST_4, "apache", signal.SIGTERM),
        (NEWEST_4, "ours", signal.SIGKILL),
    ],
)
def test_delayed_messages_of_a_directory_are_delivered_by_whoever_has_it_when_they_are_due(
    version: str, first: Who, end: signal.Signals, tmp_path: Path, summary: list[str]
) -> None:
    started = time.monotonic()
    settings = {
        **PATIENT,
        **SMALL_FILES,
        "messageDelayLevel": LEVELS,
        "flushDelayOffsetInterval": 500,
    }
    born: dict[int, int] = {}

    shared = SharedDirectory(version, tmp_path, settings, only_ours={"enabledAppendPropCRC": True})
    with skipping_without_tools(), shared:
        shared.turn(first, partial(begin, born), end)
        shared.turn(the_other(first), partial(finish, born, end), end)
    summary.append(
        f"apache-{version:10} {time.monotonic() - started:6.2f} s  delayed messages, "
        f"{first} first, {end.name}"
    )
