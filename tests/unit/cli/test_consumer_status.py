"""What `turbopump consumer status` makes of what consumers say of themselves, as Java's, Go's and
C++'s say it, of a broker that compares nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turbopump.cli.consumer import consumer_status
from turbopump.message.message import MessageQueue
from turbopump.protocol import fastjson
from turbopump.protocol.command import Command
from turbopump.protocol.requests.clients import MessageModel, SubscriptionData
from turbopump.protocol.requests.consumers import (
    Connection,
    ConsumerConnection,
    ConsumerRunningInfo,
    GetConsumerRunningInfo,
    PopProcessQueueInfo,
    ProcessQueueInfo,
)
from turbopump.remoting.client import RemotingClient

PUSH = {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"}
PULL = {"PROP_CONSUME_TYPE": "CONSUME_ACTIVELY"}
ORDERED = PUSH | {"PROP_CONSUMEORDERLY": "true"}
UNORDERED = PUSH | {"PROP_CONSUMEORDERLY": "false"}
CLUSTERING = {"messageModel": "CLUSTERING"}
BROADCASTING = {"messageModel": "BROADCASTING"}


def told(
    *said: dict[str, str], group: MessageModel = MessageModel.CLUSTERING, pops: bool = False
) -> list[str]:
    """The conflicts of a group whose members, ``a`` and so on, say this; the last of them pops if
    ``pops``."""
    members = dict(zip("abc", said, strict=False))
    last = list(members)[-1]

    class Broker(RemotingClient):
        async def exchange(self, _address: str, request: object, *_: object, **__: object) -> Any:
            if not isinstance(request, GetConsumerRunningInfo):
                clients = tuple(Connection(client_id=name) for name in members)
                body: object = ConsumerConnection(connection_set=clients, message_model=group)
            else:
                name = request.client_id or ""
                queue = MessageQueue("T", "b", 0)
                body = ConsumerRunningInfo(
                    properties=members[name],
                    subscription_set=(SubscriptionData(topic="T", sub_string="*"),),
                    mq_table={} if pops and name == last else {queue: ProcessQueueInfo()},
                    mq_pop_table={queue: PopProcessQueueInfo()} if pops and name == last else {},
                )
            return Command(0, body=fastjson.encode(body))

    status = asyncio.run(consumer_status(Broker(), ["b:1"], "g"))
    found: list[str] = status["conflicts"]
    return [
        sentence.removeprefix("consumers of group g ").split(";")[0].split(",")[0]
        for sentence in found
    ]


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ((ORDERED, UNORDERED), ["are ordered and not"]),
        ((ORDERED, PUSH), []),
        ((PUSH, PULL), ["fetch messages in different ways"]),
        ((PUSH | CLUSTERING, PUSH | BROADCASTING), ["are broadcasting and clustering"]),
        (
            (
                PUSH | {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
                PUSH | {"consumeFromWhere": "CONSUME_FROM_TIMESTAMP"},
            ),
            ["begin at different offsets"],
        ),
        (
            (
                {
                    "PROP_CONSUME_TYPE": "?",
                    "messageModel": "",
                    "consumeFromWhere": "x",
                    "PROP_CONSUMEORDERLY": "yes",
                },
                ORDERED,
            ),
            [],
        ),
    ],
)
def test_what_consumers_say_of_themselves_is_compared(
    said: tuple[dict[str, str], ...], wanted: list[str]
) -> None:
    assert told(*said) == wanted


def test_who_does_not_say_whether_it_broadcasts_is_taken_to_do_what_the_group_does() -> None:
    assert told(ORDERED, UNORDERED, group=MessageModel.BROADCASTING) == [], (
        "each keeps its own order"
    )
    assert told(ORDERED, UNORDERED | CLUSTERING, group=MessageModel.BROADCASTING) == [
        "are broadcasting and clustering"
    ]


def test_a_push_consumer_that_pops_does_not_pull() -> None:
    pop = {"PROP_CONSUME_TYPE": "CONSUME_POP"}
    assert told(pop, PUSH) == ["fetch messages in different ways"]
    assert told(pop, PUSH, pops=True) == []
