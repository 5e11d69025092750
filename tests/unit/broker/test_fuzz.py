"""Nonsense against a running broker: it lives on, and nobody else's messages suffer."""

import asyncio
import contextlib
import logging
import random
import time
from pathlib import Path

import pytest
from tests.fuzzing import seeds
from tests.loops import in_loop
from tests.unit.broker.talking import Talk, pull, talking, watched
from tests.unit.remoting.serving import frame

from turbopump.message.batch import encode_batch
from turbopump.message.message import Message
from turbopump.protocol.request import Request
from turbopump.protocol.requests.clients import GetConsumerListByGroup, Heartbeat, UnregisterClient
from turbopump.protocol.requests.offsets import (
    GetMaxOffset,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from turbopump.protocol.requests.send import SendMessage, SendMessageV2
from turbopump.protocol.requests.topics import CreateTopic, GetAllTopicConfig
from turbopump.store.log.scanner import EntryWalk

SECONDS = 4.0
ROUNDS_MIN, ROUNDS = 60, 1500

BATCH = encode_batch([Message("fuzz", b"x", tags="a")] * 3)
HEARTBEAT = (
    b'{"clientID":"c","consumerDataSet":'
    b'[{"groupName":"fg","subscriptionDataSet":[{"topic":"fuzz","subString":"*"}]}]}'
)
REQUESTS: list[tuple[Request[None] | Request, bytes]] = [  # type: ignore[type-arg]
    (SendMessageV2(topic="fuzz", queue_id=0, properties="TAGS\x01a\x02KEYS\x01k\x02"), b"body"),
    (SendMessage(topic="fuzz", queue_id=-1, sys_flag=0), b"body"),
    (SendMessageV2(topic="fuzz", queue_id=0, batch=True), BATCH),
    (pull(0, topic="fuzz", tags="a || b"), b""),
    (pull(10**6, topic="fuzz", suspend_ms=20), b""),
    (QueryConsumerOffset(consumer_group="g", topic="fuzz", queue_id=0), b""),
    (UpdateConsumerOffset(consumer_group="g", topic="fuzz", queue_id=0, commit_offset=1), b""),
    (GetMaxOffset(topic="fuzz", queue_id=0), b""),
    (SearchOffset(topic="fuzz", queue_id=0, timestamp=1, boundary_type="UPPER"), b""),
    (Heartbeat(), HEARTBEAT),
    (UnregisterClient(client_id="c", consumer_group="fg"), b""),
    (GetConsumerListByGroup(consumer_group="fg"), b""),
    (CreateTopic(topic="fuzz2", read_queue_nums=1, write_queue_nums=1), b""),
    (GetAllTopicConfig(), b""),
]  # fmt: skip
INTERESTING = (0, 1, 2, 0x7F, 0x80, 0xFF, ord('"'), ord("{"), ord("9"), ord("-"))


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, cut out, doubled or put in; often the frame's lengths are made right
    again."""
    mutant = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = rng.randrange(len(mutant))
        kind = rng.randrange(5)
        if kind == 0:
            mutant[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            mutant[at] = rng.choice(INTERESTING)
        elif kind == 2:
            del mutant[at : at + rng.randint(1, 8)]
        elif kind == 3:
            mutant[at:at] = rng.choice(
                (b"9" * 30, b"\xff", b"\\ud800", b"\0\0\0\0", b'"a":"b",', mutant[at : at + 20])
            )
        else:
            mutant[at : at + 4] = rng.choice((2**31 - 1, 2**32 - 1, 0, 5)).to_bytes(4)
        if len(mutant) < 12:
            mutant += bytes(12)
    if rng.random() < 0.6:
        mutant[:4] = (len(mutant) - 4).to_bytes(4)
    return bytes(mutant)


async def torment(talk: Talk, rng: random.Random, until: float) -> int:
    """Send nonsense over one connection after the other; how many rounds there were. At least
    ROUNDS_MIN, however slow the machine is."""
    rounds = 0
    while rounds < ROUNDS and (rounds < ROUNDS_MIN or time.monotonic() < until):
        reader, writer = await asyncio.open_connection("127.0.0.1", talk.broker.port)
        for _ in range(rng.randint(1, 20)):
            rounds += 1
            if rng.random() < 0.1:
                writer.write(rng.randbytes(rng.randint(1, 200)))
                break
            request, body = rng.choice(REQUESTS)
            data = frame(request, rng.randrange(2**31), body, serialize_type=rng.randrange(2))
            writer.write(mutate(data, rng))
        if rng.random() < 0.5:
            writer.write_eof()
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(0.05):
                    while await reader.read(65536):
                        pass
        with contextlib.suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()
    return rounds


@pytest.mark.parametrize("seed", seeds())
@in_loop(watched)
async def test_a_broker_survives_nonsense_and_other_people_s_messages_are_intact(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    rng = random.Random(seed)
    sent: list[bytes] = []

    async with talking(tmp_path) as talk:
        await talk.client.create("mine")
        torments = asyncio.ensure_future(torment(talk, rng, time.monotonic() + SECONDS / 2))
        while not torments.done():
            body = b"%d " % len(sent) + rng.randbytes(50)
            await talk.client.send(body, "mine")
            sent.append(body)
        assert await torments >= ROUNDS_MIN
        assert await talk.client.all_bodies("mine") == sent
        walk = EntryWalk(talk.broker.store.log)
        marks = list(walk.entries())
        assert walk.end == talk.broker.store.log.end, "a recovery would read every entry"
        assert sum(mark.topic == "mine" for mark in marks) == len(sent)
    async with talking(tmp_path) as talk:
        assert await talk.client.all_bodies("mine") == sent
