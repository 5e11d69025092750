"""Our client and our command find messages on Apache's own brokers, 5.3.3 and 4.9.7: by id, by key,
by place, by time; and Apache's mqadmin finds them on ours."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import NEWEST, NEWEST_4, QUICK_START, ApacheCluster, fetch_jars, java
from tests.interop.our_clients import (
    PATIENCE_SECONDS,
    check,
    letters,
    numbers,
    patient_producer,
    read_all,
    send_all,
)
from tests.interop.our_servers import patient_turbopump
from tests.interop.patient_apache import PATIENT
from tests.interop.tools import skipping_without_tools
from tests.loops import in_loop

from turbopump import Message, MessageFinder, PullConsumer, ReceivedMessage, SendResult
from turbopump.cli.message import INCOMPLETE
from turbopump.client.message_finder import FoundMessages
from turbopump.errors import MessageNotFoundError

VERSIONS = (NEWEST, NEWEST_4)
COUNT = 100


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ApacheCluster]]:
    """One name server and broker of each version, started side by side and killed at the end:
    nobody reads their stores."""
    made = {
        version: ApacheCluster(
            version, directory=tmp_path_factory.mktemp("apache"), heap="384m", broker_config=PATIENT
        )
        for version in VERSIONS
    }
    with ExitStack() as stack, skipping_without_tools():
        for cluster in made.values():
            stack.callback(cluster.kill)
        with ThreadPoolExecutor() as pool:
            for future in [pool.submit(cluster.start) for cluster in made.values()]:
                future.result()
        yield made


class Sent:
    """What was sent to topic ``letters``, and how it arrived."""

    def __init__(self, cluster: ApacheCluster, messages: list[Message]) -> None:
        self.cluster = cluster
        self.messages = messages
        self.results: list[SendResult] = []
        self.received: list[ReceivedMessage] = []


@pytest.fixture(scope="module", params=VERSIONS)
def sent(request: pytest.FixtureRequest, clusters: dict[str, ApacheCluster]) -> Sent:
    sent = Sent(clusters[request.param], letters("letters", COUNT))
    asyncio.run(send(sent))
    return sent


async def send(sent: Sent) -> None:
    namesrv = sent.cluster.namesrv
    async with (
        patient_producer(namesrv) as producer,
        PullConsumer(namesrv, group="reader") as reader,
    ):
        sent.results = await send_all(producer, sent.messages)
        sent.received = await read_all(reader, "letters", COUNT)


async def main(sent: Sent, story: Callable[[MessageFinder], Awaitable[None]]) -> None:
    async with MessageFinder(sent.cluster.namesrv) as finder:
        await story(finder)


def asking(story: Callable[[MessageFinder], Awaitable[None]], sent: Sent) -> None:
    asyncio.run(main(sent, story))


async def indexed(
    find: Callable[[], Awaitable[FoundMessages]], count: int
) -> list[ReceivedMessage]:
    """What is found once it is so many: Apache's broker indexes behind its answers."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = await find()
        assert found.missing == {}
        if len(found.messages) >= count or time.monotonic() > deadline:
            return list(found.messages)


@in_loop(asking)
async def test_every_message_is_found_by_both_of_its_ids_and_at_its_place(
    finder: MessageFinder, /, sent: Sent
) -> None:
    await indexed(lambda: finder.by_unique_id("letters", sent.results[-1].msg_id), 1)
    by_id = [await finder.view("letters", result.msg_id) for result in sent.results]
    by_offset_id = [await finder.view("letters", result.offset_msg_id) for result in sent.results]
    by_place = [await finder.at(result.queue, result.queue_offset) for result in sent.results]
    for found in (by_id, by_offset_id, by_place):
        check(sent.messages, found, sent.results)
        assert {message.broker_name for message in found} == {"broker-a"}


@in_loop(asking)
async def test_messages_are_found_by_their_keys_the_newest_first_chosen(
    finder: MessageFinder, /
) -> None:
    await indexed(partial(finder.by_key, "letters", f"key-{COUNT - 1}"), 1)
    for number in range(COUNT):
        (message,) = (await finder.by_key("letters", f"key-{number}")).messages
        assert numbers([message]) == [number]
    newest = await finder.by_key("letters", "shared", 64)
    assert numbers(newest.messages) == list(range(COUNT - 64, COUNT))
    assert numbers((await finder.by_key("letters", "shared", 3)).messages) == list(
        range(COUNT - 3, COUNT)
    )
    assert (await finder.by_key("letters", "key-1 ".strip() + "x")).messages == []


@in_loop(asking)
async def test_times_count_to_the_millisecond_though_apaches_index_has_seconds(
    finder: MessageFinder, /, sent: Sent
) -> None:
    await indexed(partial(finder.by_key, "letters", f"key-{COUNT - 1}"), 1)
    by_number = dict(zip(numbers(sent.received), sent.received, strict=True))
    for number in (0, COUNT // 2, COUNT - 1):
        at = by_number[number].store_timestamp
        (message,) = (await finder.by_key("letters", f"key-{number}", begin=at, end=at)).messages
        assert numbers([message]) == [number]
        assert (await finder.by_key("letters", f"key-{number}", begin=at + 1)).messages == []
        assert (await finder.by_key("letters", f"key-{number}", end=at - 1)).messages == []
    times = sorted(message.store_timestamp for message in sent.received)
    for first, last in (
        (times[0], times[-1]),
        (times[10], times[80]),
        (times[50] + 1, times[50] + 1),
        (times[-1] + 1, 2**62),
    ):
        found = await finder.by_time("letters", first, last, max_messages=1000)
        wanted = [message for message in sent.received if first <= message.store_timestamp <= last]
        assert sorted(numbers(found.messages)) == sorted(numbers(wanted))
        assert [message.store_timestamp for message in found.messages] == sorted(
            m.store_timestamp for m in wanted
        )
    assert numbers((await finder.by_time("letters", 0, max_messages=5)).messages) == [0, 1, 2, 3, 4]


@in_loop(asking)
async def test_what_is_not_there_is_told_so(finder: MessageFinder, /, sent: Sent) -> None:
    place = sent.results[0].offset_msg_id
    for msg_id in ("nobody", "7F00000100010000000000000000FFFF", place[:16] + "0000000FFFFFFFFF"):
        with pytest.raises(MessageNotFoundError):
            await finder.view("letters", msg_id)
    queue = sent.results[0].queue
    with pytest.raises(MessageNotFoundError, match="which has offsets 0 to"):
        await finder.at(queue, COUNT * 10)


def test_our_message_command_finds_and_tells_by_its_exit_code(sent: Sent) -> None:
    def turbopump(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
        """Again while it says that not everybody could be asked: it has three seconds for a name
        server's answer."""
        command = [
            sys.executable,
            "-m",
            "turbopump",
            "message",
            *arguments,
            "-n",
            sent.cluster.namesrv,
            "--output",
            "json",
        ]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
            )
            if done.returncode != INCOMPLETE or time.monotonic() > deadline:
                return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    code, (line,) = turbopump("by-id", "letters", sent.results[7].offset_msg_id)
    assert (code, line["msg_id"], line["properties"]["n"]) == (0, sent.results[7].msg_id, "7")
    code, (line,) = turbopump(
        "by-offset",
        "letters",
        str(sent.results[7].queue.queue_id),
        str(sent.results[7].queue_offset),
    )
    assert (code, line["offset_msg_id"]) == (0, sent.results[7].offset_msg_id)
    assert turbopump("by-key", "letters", "unknown") == (3, [])


def test_apaches_mqadmin_finds_messages_on_our_broker(tmp_path: Path) -> None:
    async def send(namesrv: str) -> SendResult:
        async with patient_producer(namesrv) as producer:
            return (await send_all(producer, letters("admin", 3)))[1]

    with patient_turbopump(tmp_path) as servers:
        result = asyncio.run(send(servers.namesrv))
        place = [
            "-i",
            str(result.queue.queue_id),
            "-o",
            str(result.queue_offset),
            "-b",
            result.queue.broker_name,
        ]
        with skipping_without_tools():
            library = fetch_jars(NEWEST)
            machine = [java(), *QUICK_START, f"-Duser.home={tmp_path}", "-cp", f"{library}/*"]

        def mqadmin(*arguments: str) -> str:
            """Again while it shows nothing of the message: it has three seconds for a call, and
            ends well without an answer."""
            command = [
                *machine,
                "org.apache.rocketmq.tools.command.MQAdminStartup",
                *arguments,
                "-t",
                "admin",
            ]
            environment = {**os.environ, "ROCKETMQ_HOME": str(tmp_path)}
            deadline = time.monotonic() + PATIENCE_SECONDS
            while True:
                done = subprocess.run(
                    [*command, "-n", servers.namesrv],
                    capture_output=True,
                    text=True,
                    timeout=PATIENCE_SECONDS,
                    check=False,
                    cwd=tmp_path,
                    env=environment,
                )
                if result.msg_id in done.stdout or time.monotonic() > deadline:
                    return done.stdout + done.stderr

        asked = {
            "queryMsgByKey": ["-k", "key-1"],
            "queryMsgByUniqueKey": ["-i", result.msg_id],
            "queryMsgById": ["-i", result.offset_msg_id],
            "queryMsgByOffset": place,
        }
        with ThreadPoolExecutor(2) as pool:
            shown = dict(
                zip(asked, pool.map(lambda name: mqadmin(name, *asked[name]), asked), strict=True)
            )
    assert re.search(
        rf"^{result.msg_id} +{result.queue.queue_id} +{result.queue_offset}$",
        shown["queryMsgByKey"],
        re.MULTILINE,
    )
    for name in ("queryMsgByUniqueKey", "queryMsgById", "queryMsgByOffset"):
        facts = dict(re.findall(r"^(\w[\w ]*): +(.*?) *$", shown[name], re.MULTILINE))
        found = facts["Topic"], facts["Keys"], int(facts["Queue ID"]), int(facts["Queue Offset"])
        assert found == ("admin", "[key-1 shared]", result.queue.queue_id, result.queue_offset), (
            shown[name]
        )
