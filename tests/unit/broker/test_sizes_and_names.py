"""Sizes at their limits, and names that nothing can have: Apache's codes, and no file outside the
store."""

from __future__ import annotations

import asyncio
import itertools
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.broker.talking import Talk, converse, pull, subscription, talking, watched

from turbopump.message.rules import group_fault, topic_fault
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.assignment import (
    SetMessageRequestMode,
    SetMessageRequestModeRequestBody,
)
from turbopump.protocol.requests.groups import CreateGroup, SubscriptionGroupConfig
from turbopump.protocol.requests.offsets import UpdateConsumerOffset
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.protocol.requests.statistics import UpdateColdFlow
from turbopump.protocol.requests.topics import CreateTopic

MIB_4 = 4 << 20
DONE, ILLEGAL, INVALID = (
    ResponseCode.SUCCESS,
    ResponseCode.MESSAGE_ILLEGAL,
    ResponseCode.INVALID_PARAMETER,
)


@pytest.mark.parametrize(
    ("fields", "body", "code"),
    [
        ({}, bytes(MIB_4), DONE),
        ({}, bytes(MIB_4 + 1), ILLEGAL),
        ({"topic": "t" * 127}, b"x", DONE),
        ({"topic": "t" * 128}, b"x", INVALID),
        ({"topic": "%RETRY%" + "g" * 120}, b"x", DONE),
        ({"properties": "p\x01" + "v" * 32_600}, b"x", DONE),
        ({"properties": "p\x01" + "v" * 32_765}, b"x", ILLEGAL),  # 32,767; the broker adds some
        ({"properties": "p\x01" + "v" * 32_766}, b"x", ILLEGAL),
        ({"properties": "p\x01" + "v" * 1_000_000}, b"x", ILLEGAL),
    ],
)
@in_loop(converse, mapped_file_size_commit_log=8 << 20)
async def test_a_message_at_a_limit_is_taken_and_one_beyond_it_refused(
    talk: Talk, /, fields: dict[str, Any], body: bytes, code: ResponseCode
) -> None:
    request = SendMessageV2(**{"topic": "T", "queue_id": 0, **fields})
    assert (await talk.client.code(request, body))[0] == code
    stored = talk.broker.store.max_offset(request.topic, 0)
    assert stored == (1 if code == DONE else 0)


PIECES = (
    "..", "/", "\\", "~", ".", "\0", "\n", "\r", "\t", "\x7f", " ", ";", "|", "%", "%n", "%2e",
    "$(x)", "`x`", "'", '"', "*", "?", "<", ">", ":", "&", "#", "!", "@", "T", "a-b_9", "CON",
    "NUL", "\u20ac", "\u202e", "\ufeff", "\U0001f600", "%RETRY%", "%DLQ%", "rmq_sys_", "@g",
)  # fmt: skip


def nasty_names(outside: Path) -> list[str]:
    """A thousand of them; ``outside`` is a directory that some of them point at."""
    rng = random.Random(15)
    names = {"", "../../outside", str(outside / "x"), f"../../../..{outside}/x", "t" * 128}
    names |= {first + second for first, second in itertools.product(PIECES[:18], PIECES[:18])}
    while len(names) < 1000:
        names.add("".join(rng.choices(PIECES, k=rng.randint(1, 6))))
    return sorted(names)


async def try_as_topic(client: Any, name: str) -> None:
    send, create = SendMessageV2(topic=name, queue_id=0), CreateTopic(topic=name)
    codes = {(await client.code(send, b"x"))[0], (await client.code(create))[0]}
    if topic_fault(name) is not None:
        assert codes == {INVALID}, name
    await client.ask(pull(0, topic=name))
    await client.ask(
        UpdateConsumerOffset(consumer_group="g", topic=name, queue_id=0, commit_offset=1)
    )


async def try_as_group(client: Any, name: str) -> None:
    config = fastjson.encode(SubscriptionGroupConfig(group_name=name))
    code, _ = await client.code(CreateGroup(), config)
    assert (code == DONE) == (group_fault(name) is None), name
    await client.ask(pull(0, consumer_group=name))
    await client.join("c", name, subscription())
    await client.ask(UpdateColdFlow(), name.encode() + b"=1\n")
    mode = SetMessageRequestModeRequestBody(topic=name, consumer_group=name)
    await client.ask(SetMessageRequestMode(), fastjson.encode(mode))


@in_loop(watched)
async def test_a_thousand_nasty_names_are_refused_or_stay_within_the_store(tmp_path: Path) -> None:
    store = tmp_path / "a" / "b" / "store"
    store.mkdir(parents=True)
    names = nasty_names(tmp_path / "outside")

    async with talking(store) as talk:
        client = talk.client

        await client.create()
        for some in (names[at : at + 50] for at in range(0, len(names), 50)):
            await asyncio.gather(*map(partial(try_as_topic, client), some))
            await asyncio.gather(*map(partial(try_as_group, client), some))
        assert await client.send() is not None
    assert files_outside(tmp_path, store) == []


def files_outside(root: Path, store: Path) -> list[Path]:
    return [
        path
        for path in root.rglob("*")
        if path not in store.parents and path != store and store not in path.parents
    ]
