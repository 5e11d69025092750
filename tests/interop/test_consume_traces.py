"""Traces of consumers, on our broker: Java's are read by us, ours by Apache's mqadmin."""

from __future__ import annotations

import asyncio
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.interop.apache import NEWEST, fetch_jars
from tests.interop.conftest import skipping_without_tools
from tests.interop.foreign import ForeignClient, java_client, run
from tests.interop.our_clients import PATIENCE_SECONDS, patient_producer
from tests.interop.our_servers import OurServers, patient_turbopump
from tests.interop.test_our_kinds_of_sends import traces_by_mqadmin

from turbopump import ConsumeFrom, PushConsumer, SendResult
from turbopump.client.consuming.delivery import Delivery, Retry
from turbopump.client.dead_letters import DeadLetters

BODIES = ("content", "raises", "later")


async def send(ours: OurServers, topic: str) -> dict[str, SendResult]:
    async with patient_producer(ours.namesrv) as producer:
        return {body: await producer.send(topic, body.encode()) for body in BODIES}


async def reasons(ours: OurServers, group: str) -> dict[str, str | None]:
    """Of each dead letter, by its body, when both are known."""
    async with DeadLetters(ours.namesrv) as dead_letters, asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if any(one.group == group and one.count == 2 for one in await dead_letters.groups()):
                found = {
                    letter.message.body.decode(): await dead_letters.reason(letter)
                    async for letter in dead_letters.letters(group)
                }
                if None not in found.values():
                    return found
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("version", [NEWEST, "4.9.8"])
def test_why_a_java_consumer_failed_is_read_out_of_its_traces(version: str, tmp_path: Path) -> None:
    client = ForeignClient(f"java-{version}", ("traced",), lambda: java_client(version, program="TracedConsumer"))
    with skipping_without_tools():
        client.command()
    with patient_turbopump(tmp_path / "ours") as ours:
        asyncio.run(send(ours, "traced"))
        stdin, its_stay = map(open, os.pipe(), ("rb", "wb"))
        with ThreadPoolExecutor(1) as pool, stdin, its_stay:  # it stays until all is known
            theirs = pool.submit(run, client, ours.namesrv, "traced", tmp_path / "java", stdin=stdin.fileno())
            found = asyncio.run(reasons(ours, "traced-java"))
        outcome = theirs.result()
        assert outcome.exit_code == 0, outcome.stderr
        assert found == {
            "raises": "the handler raised an exception (EXCEPTION)",
            "later": "the handler asked to have it again (FAILED)",
        }


def test_mqadmin_reads_the_traces_of_our_consumers(tmp_path: Path) -> None:
    async def consume(ours: OurServers) -> dict[str, SendResult]:
        handled: list[str] = []

        async def handle(message: Delivery) -> Retry | None:
            handled.append(message.body.decode())
            if message.body == b"raises":
                raise ValueError("no stock")
            return Retry(reason="too early") if message.body == b"later" else None

        sent = await send(ours, "traced")
        settings = {"consume_from": ConsumeFrom.FIRST, "max_reconsume_times": 0, "trace": True}
        async with (
            asyncio.timeout(PATIENCE_SECONDS),
            PushConsumer(ours.namesrv, group="ours", topic="traced", handler=handle, **settings),  # type: ignore[arg-type]
        ):
            while len(handled) < len(BODIES):
                await asyncio.sleep(0.05)
        return sent

    with skipping_without_tools():
        fetch_jars(NEWEST)
    with patient_turbopump(tmp_path / "ours") as ours:
        sent = asyncio.run(consume(ours))
        assert asyncio.run(reasons(ours, "ours")) == {"raises": "ValueError: no stock", "later": "too early"}
        for body, status in (("content", "success"), ("raises", "failed"), ("later", "failed")):
            deadline = time.monotonic() + PATIENCE_SECONDS / 3
            while True:
                shown = traces_by_mqadmin(ours.namesrv, sent[body].msg_id, tmp_path)
                if re.search(rf"^Sub +ours +.*{status}", shown, re.MULTILINE):
                    break
                assert time.monotonic() < deadline, shown
