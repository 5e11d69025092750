"""Traces of consumers, on our broker and Apache's: Java's are read by us, ours by Apache's mqadmin
and by us."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tests.interop.apache import NEWEST, NEWEST_4, ApacheCluster, fetch_jars
from tests.interop.foreign import ForeignClient, java_client, run
from tests.interop.mqadmin import traces_by_mqadmin
from tests.interop.our_clients import PATIENCE_SECONDS, patient_producer
from tests.interop.our_servers import patient_turbopump
from tests.interop.patient_apache import patient_apache
from tests.interop.tools import skipping_without_tools

from turbopump import ConsumeFrom, PushConsumer, SendResult
from turbopump.client.consumer.delivery import Delivery, Retry
from turbopump.client.dead_letters import DeadLetters

BODIES = ("content", "raises", "later")


async def send(namesrv: str, topic: str) -> dict[str, SendResult]:
    async with patient_producer(namesrv) as producer:
        return {body: await producer.send(topic, body.encode()) for body in BODIES}


async def reasons(namesrv: str, group: str) -> dict[str, str | None]:
    """Of each dead letter, by its body, when both are known."""
    async with DeadLetters(namesrv) as dead_letters, asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if any(one.group == group and one.count == 2 for one in await dead_letters.groups()):
                found = {
                    letter.message.body.decode(): await dead_letters.reason(letter)
                    async for letter in dead_letters.letters(group)
                }
                if None not in found.values():
                    return found
            await asyncio.sleep(0.2)


@pytest.fixture(scope="module", params=[NEWEST, NEWEST_4])
def apache(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheCluster]:
    with patient_apache(
        request.param, tmp_path_factory.mktemp(request.param), traceTopicEnable=True
    ) as cluster:
        yield cluster


@pytest.mark.parametrize("version", [NEWEST, "4.9.8"])
def test_why_a_java_consumer_failed_is_read_out_of_its_traces(version: str, tmp_path: Path) -> None:
    with patient_turbopump(tmp_path / "ours") as ours:
        check_traces_of_java(version, ours.namesrv, tmp_path)


def test_why_a_java_consumer_failed_is_read_out_of_its_traces_on_apaches_broker(
    apache: ApacheCluster, tmp_path: Path
) -> None:
    check_traces_of_java(NEWEST if apache.version == NEWEST else "4.9.8", apache.namesrv, tmp_path)


def test_mqadmin_reads_the_traces_of_our_consumers(tmp_path: Path) -> None:
    with patient_turbopump(tmp_path / "ours") as ours:
        found = check_our_traces(ours.namesrv, "ours", tmp_path)
    assert found == {"raises": "ValueError: no stock", "later": "too early"}


def test_mqadmin_and_we_read_the_traces_of_our_consumers_on_apaches_broker(
    apache: ApacheCluster, tmp_path: Path
) -> None:
    """Apache's broker keeps no reason with a dead letter, as ours does: here it is out of the
    trace."""
    found = check_our_traces(apache.namesrv, "traced-ours", tmp_path)
    assert found == {
        "raises": "the handler raised an exception (EXCEPTION): ValueError: no stock",
        "later": "the handler asked to have it again (FAILED): too early",
    }


def check_traces_of_java(version: str, namesrv: str, directory: Path) -> None:
    client = ForeignClient(
        f"java-{version}", ("traced",), partial(java_client, version, program="TracedConsumer")
    )
    with skipping_without_tools():
        client.command()
    asyncio.run(send(namesrv, "traced"))
    stdin, its_stay = map(open, os.pipe(), ("rb", "wb"))
    with ThreadPoolExecutor(1) as pool, stdin, its_stay:  # it stays until all is known
        theirs = pool.submit(
            run, client, namesrv, "traced", directory / "java", stdin=stdin.fileno()
        )
        found = asyncio.run(reasons(namesrv, "traced-java"))
    outcome = theirs.result()
    assert outcome.exit_code == 0, outcome.stderr
    assert found == {
        "raises": "the handler raised an exception (EXCEPTION)",
        "later": "the handler asked to have it again (FAILED)",
    }


async def handle(handled: list[str], message: Delivery) -> Retry | None:
    handled.append(message.body.decode())
    if message.body == b"raises":
        raise ValueError("no stock")
    return Retry(reason="too early") if message.body == b"later" else None


async def consume(namesrv: str, topic: str) -> dict[str, SendResult]:
    handled: list[str] = []

    sent = await send(namesrv, topic)
    settings = {"consume_from": ConsumeFrom.FIRST, "max_reconsume_times": 0, "trace": True}
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        PushConsumer(
            namesrv, group="ours", topic=topic, handler=partial(handle, handled), **settings
        ),  # type: ignore[arg-type]
    ):
        while len(set(handled)) < len(BODIES):
            await asyncio.sleep(0.05)
    return sent


def check_our_traces(namesrv: str, topic: str, directory: Path) -> dict[str, str | None]:
    """Our traced consumer takes a success and two failures, and mqadmin finds each; returned are
    the reasons that we find."""

    with skipping_without_tools():
        fetch_jars(NEWEST)
    sent = asyncio.run(consume(namesrv, topic))
    found = asyncio.run(reasons(namesrv, "ours"))
    for body, status in (("content", "success"), ("raises", "failed"), ("later", "failed")):
        deadline = time.monotonic() + PATIENCE_SECONDS / 3
        while True:
            shown = traces_by_mqadmin(namesrv, sent[body].msg_id, directory)
            if re.search(rf"^Sub +ours +.*{status}", shown, re.MULTILINE):
                break
            assert time.monotonic() < deadline, shown
    return found
