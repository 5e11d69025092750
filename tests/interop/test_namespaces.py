"""A Java client and ours in one namespace, on our broker: what one sends the other receives, under
names without the namespace."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from tests.interop.foreign import MESSAGES, ForeignClient, java_client, run
from tests.interop.our_clients import CALL_SECONDS, PATIENCE_SECONDS, make_topics
from tests.interop.our_servers import patient_turbopump
from tests.interop.tools import skipping_without_tools

from turbopump import ConsumeFrom, Producer, PushConsumer
from turbopump.client.consumer.delivery import Delivery, Retry

SCENARIOS = ("receives", "sends")


@pytest.mark.parametrize("version", ["5.3.3", "4.9.8"])
def test_java_and_we_meet_in_a_namespace(version: str, tmp_path: Path) -> None:
    client = ForeignClient(
        f"java-{version}", SCENARIOS, partial(java_client, version, program="Namespaces")
    )
    with skipping_without_tools():
        client.command()
    prefix = client.name.replace(".", "-")
    with patient_turbopump(tmp_path / "store") as ours:
        asyncio.run(meet(client, ours.namesrv, ours.broker, prefix, tmp_path / "java"))


async def handle(failed: list[str], received: dict[bytes, str], message: Delivery) -> Retry | None:
    if message.body == b"7" and not failed:
        failed.append(message.topic)
        return Retry(level=1)  # sent back once, to come again by way of the retry topic
    received[message.body] = message.topic
    return None


async def meet(
    client: ForeignClient, namesrv: str, broker: str, prefix: str, directory: Path
) -> None:
    namespace = f"{prefix}-space"
    await make_topics(namesrv, broker, f"{namespace}%{prefix}-ours", f"{namespace}%{prefix}-theirs")
    received: dict[bytes, str] = {}
    failed: list[str] = []

    consumer = PushConsumer(
        namesrv,
        group=f"{prefix}-readers",
        topic=f"{prefix}-theirs",
        namespace=namespace,
        consume_from=ConsumeFrom.FIRST,
        handler=partial(handle, failed, received),
    )
    async with (
        consumer,
        Producer(namesrv, send_timeout=CALL_SECONDS, namespace=namespace) as producer,
    ):
        theirs = asyncio.create_task(asyncio.to_thread(run, client, namesrv, prefix, directory))
        for number in range(MESSAGES):
            assert (
                await producer.send(f"{prefix}-ours", str(number))
            ).queue.topic == f"{prefix}-ours"
        outcome = await theirs
        assert {name: report["ok"] for name, report in outcome.reports.items()} == dict.fromkeys(
            SCENARIOS, True
        ), (outcome.reports, outcome.stderr)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(received) < MESSAGES:
                await asyncio.sleep(0.05)
    assert received == {str(number).encode(): f"{prefix}-theirs" for number in range(MESSAGES)}
    assert failed == [f"{prefix}-theirs"]
