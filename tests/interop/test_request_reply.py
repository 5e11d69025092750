"""Our requests answered by other people's clients, and theirs by ours: over our broker and over
Apache's."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from tests.interop.either_servers import Servers
from tests.interop.either_servers import servers as servers
from tests.interop.foreign import MESSAGES, REQUEST_TABLE, ForeignClient, run
from tests.interop.our_clients import (
    CALL_SECONDS,
    PATIENCE_SECONDS,
    eventually,
    make_topics,
    patient_producer,
)
from tests.interop.tools import skipping_without_tools
from tests.loops import in_loop

from turbopump import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage
from turbopump.client.consumer.delivery import Delivery, Retry
from turbopump.errors import ReplyError


@pytest.mark.parametrize("client", REQUEST_TABLE, ids=[client.name for client in REQUEST_TABLE])
@in_loop
async def test_request_reply_works_both_ways_with_a_foreign_client(
    client: ForeignClient, servers: Servers, tmp_path: Path, summary: list[str]
) -> None:
    with skipping_without_tools():
        client.command()  # built before anybody waits
    prefix = client.name.replace(".", "-")
    started = time.monotonic()
    await make_topics(servers.namesrv, servers.broker, f"{prefix}-asks", f"{prefix}-answers")
    answered: set[str] = set()

    async def answer(request: Delivery) -> Retry | None:
        number = request.properties["n"]
        try:
            await replier.reply(
                request, b"re:" + request.body, properties={"n": number}, timeout=CALL_SECONDS
            )
        except ReplyError:
            # Go's client asks before it has introduced itself to the broker, which then cannot
            # find it
            return Retry(level=1)
        answered.add(number)
        return None

    replier = PushConsumer(
        servers.namesrv,
        group=f"{prefix}-ours",
        topic=f"{prefix}-asks",
        consume_from=ConsumeFrom.FIRST,
        handler=answer,
    )
    stdin, their_stay = map(open, os.pipe(), ("rb", "wb"))
    with stdin, their_stay:
        async with replier, patient_producer(servers.namesrv) as producer:
            theirs = asyncio.create_task(
                asyncio.to_thread(
                    run, client, servers.namesrv, prefix, tmp_path, stdin=stdin.fileno()
                )
            )
            for number in range(MESSAGES // 2):
                await ask(producer, f"{prefix}-answers", number)
            await asyncio.gather(
                *(
                    ask(producer, f"{prefix}-answers", number)
                    for number in range(MESSAGES // 2, MESSAGES)
                )
            )
            await eventually("all answered", lambda: len(answered) == MESSAGES or theirs.done())
            their_stay.close()
            outcome = await theirs
            assert producer.late_replies == 0
    assert {name: report["ok"] for name, report in outcome.reports.items()} == {
        "asks": True,
        "answers": True,
    }, (outcome.reports, outcome.stderr)
    assert answered == {str(number) for number in range(MESSAGES)}
    summary.append(
        f"{servers.name:14} {client.name:12} {time.monotonic() - started:6.2f} s  request_reply, "
        f"{MESSAGES} each way"
    )


async def ask(producer: Producer, topic: str, number: int) -> None:
    """Every tenth request, and so its reply, is long enough to be compressed."""
    request = Message(
        topic,
        f"ask {number} é 漢字 " * (500 if number % 10 == 9 else 1),
        properties={"n": str(number)},
    )
    reply: ReceivedMessage = await producer.request(request, timeout=PATIENCE_SECONDS)
    assert reply.body == b"re:" + request.body
    assert reply.properties["n"] == str(number)
    assert reply.properties["REPLY_TO_CLIENT"] == producer.client_id
