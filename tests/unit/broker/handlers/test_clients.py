"""Heartbeats and what follows from them: groups, members, notices, retry topics, and their end."""

import asyncio
import json
from typing import Any

import pytest
from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import (
    Client,
    Talk,
    consumer,
    converse,
    in_virtual_time,
    pull,
    subscription,
)
from tests.waits import until, until_count, until_equal

from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.clients import (
    ConsumeType,
    GetConsumerListByGroup,
    Heartbeat,
    MessageModel,
    UnregisterClient,
)


@in_loop(converse)
async def test_members_of_a_group_are_known_and_told_of_each_other(talk: Talk, /) -> None:
    one, two = talk.client, talk.another()
    answer = await one.join("one")
    assert answer.ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "false"}
    await until_equal(one.noticed, ["g"])
    await two.join("two")
    await until(lambda: one.noticed == ["g", "g"] and two.noticed == ["g"])
    assert await one.members() == ["one", "two"]
    for _ in range(3):
        await one.join("one")
        await two.join("two")
    await one.ask(GetConsumerListByGroup(consumer_group="g"))
    assert (len(one.noticed), len(two.noticed)) == (2, 1), (
        "the same heartbeat again changes nothing"
    )

    await two.ask(UnregisterClient(client_id="two", consumer_group="g", producer_group="p"))
    await until_count(one.noticed, 3)
    assert await one.members() == ["one"]
    await one.ask(UnregisterClient(client_id="one", consumer_group="g"))
    answer = await one.ask(GetConsumerListByGroup(consumer_group="g"))
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "no consumer for this group, g",
    )


@in_loop(converse)
async def test_a_lost_connection_leaves_its_groups(talk: Talk, /) -> None:
    staying, leaving = talk.client, talk.another()
    await staying.join("staying")
    await leaving.heartbeat(
        {
            "clientID": "leaving",
            "consumerDataSet": [consumer("g"), consumer("alone")],
            "producerDataSet": [{"groupName": "p"}],
        }
    )
    await until_count(staying.noticed, 2)
    clients = talk.broker.parts.stored.clients
    assert list(clients.producers) == ["p"]
    await leaving.close()
    await until_count(staying.noticed, 3)
    assert await staying.members() == ["staying"]
    assert await staying.members("alone") == []
    assert clients.producers == {}


async def seen(client: Any) -> list[bytes]:
    return [message.body for message in await client.messages(tags=None)]


@in_loop(converse)
async def test_a_changed_subscription_is_noticed_and_only_a_newer_one_counts(talk: Talk, /) -> None:
    client = talk.client
    for tag in "ab":
        await client.send(tag.encode(), properties=f"TAGS\x01{tag}\x02")

    await client.join("c", "g", subscription(expression="a", version=2))
    assert await seen(client) == [b"a"]
    await client.join("c", "g", subscription(expression="b", version=1))
    assert await seen(client) == [b"a"], "older"
    await client.join("c", "g", subscription(expression="b", version=3))
    assert await seen(client) == [b"b"]
    await until_equal(client.noticed, ["g"])
    await client.join("c", "g", subscription(expression="b", version=3), subscription("U"))
    await until_equal(client.noticed, ["g", "g"])
    await client.join("c", "g", subscription("U"))
    await until(lambda: client.noticed == ["g"] * 3)
    answer = await client.ask(pull(0, tags=None))
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST


@pytest.mark.parametrize(
    ("sent", "kind", "model"),
    [
        (
            {"consumeType": "CONSUME_ACTIVELY", "messageModel": "BROADCASTING"},
            "CONSUME_ACTIVELY",
            "BROADCASTING",
        ),
        (
            {"consumeType": 0, "messageModel": 0, "consumeFromWhere": 0},
            "CONSUME_ACTIVELY",
            "BROADCASTING",
        ),
        (
            {"consumeType": 1, "messageModel": 1, "consumeFromWhere": 4},
            "CONSUME_PASSIVELY",
            "CLUSTERING",
        ),
        ({"consumeType": None, "messageModel": None}, "CONSUME_PASSIVELY", "CLUSTERING"),
    ],
)
@in_loop(converse)
async def test_a_heartbeat_may_name_or_number_its_enums(
    talk: Talk, /, sent: dict[str, Any], kind: str, model: str
) -> None:
    body = {"clientID": "c", "consumerDataSet": [{**consumer("g"), **sent}]}
    answer = await talk.client.heartbeat(json.dumps(body).encode())
    assert answer.code == 0, answer.remark
    group = talk.broker.parts.stored.clients.groups["g"]
    assert (group.consume_type, group.message_model) == (ConsumeType(kind), MessageModel(model))


@in_loop(converse)
async def test_a_heartbeat_as_the_cpp_client_sends_it(talk: Talk, /) -> None:
    body = (
        b'{"clientID":"10.0.0.9@7","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"g","messageModel":1,'
        b'"subscriptionDataSet":[{"classFilterMode":false,"codeSet":["97"],"subString":"a","subVersion":"1","tagsSet":["a"],'
        b'"topic":"T"}],"unitMode":false}],"producerDataSet":[{"groupName":"p"}]}'
    )
    for tag in "ab":
        await talk.client.send(tag.encode(), properties=f"TAGS\x01{tag}\x02")
    answer = await talk.client.heartbeat(body)
    assert answer.code == 0, answer.remark
    assert await talk.client.members() == ["10.0.0.9@7"]
    assert [message.body for message in await talk.client.messages(tags=None)] == [b"a"]


@pytest.mark.parametrize(
    ("body", "code", "remark"),
    [
        (b"", 1, "the heartbeat has no clientID"),
        (b"{", 1, "the body cannot be read as HeartbeatData"),
        (b"[]", 1, "the body cannot be read as HeartbeatData"),
        (b'{"clientID":"c","consumerDataSet":7}', 1, "the body cannot be read as HeartbeatData"),
        (b"[" * 100_000, 1, "the body cannot be read as HeartbeatData"),
        (b"{}", 1, "the heartbeat has no clientID"),
        (
            json.dumps({"clientID": "c", "consumerDataSet": [consumer("a b")]}).encode(),
            1,
            "holds a character outside",
        ),
        (
            json.dumps({"clientID": "c", "consumerDataSet": [consumer("../x")]}).encode(),
            1,
            "holds a character outside",
        ),
        (
            json.dumps({"clientID": "c", "consumerDataSet": [consumer("")]}).encode(),
            1,
            "the group name is empty",
        ),
        (
            json.dumps(
                {"clientID": "c", "consumerDataSet": [consumer("g", subscription(expression="||"))]}
            ).encode(),
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            "names no tag",
        ),
    ],
)
@in_loop(converse)
async def test_a_heartbeat_that_cannot_be_is_answered_and_the_connection_lives(
    talk: Talk, /, body: bytes, code: int, remark: str
) -> None:
    answer = await talk.client.code(Heartbeat(), body)
    assert answer[0] == code
    assert remark in answer[1]
    assert "Traceback" not in answer[1]
    await talk.client.join("c")
    assert await talk.client.members() == ["c"]


@in_loop(converse)
async def test_a_group_s_first_heartbeat_makes_its_retry_topic(talk: Talk, /) -> None:
    await talk.client.join("c")
    retry = talk.broker.tables.topics.find("%RETRY%g")
    assert retry is not None
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)
    assert talk.broker.tables.groups.get("g")


@in_loop(converse, auto_create_subscription_group=False)
async def test_unknown_groups_are_passed_over_where_none_may_be_made(talk: Talk, /) -> None:
    answer = await talk.client.join("c")
    assert answer.code == 0
    assert await talk.client.members() == []
    assert talk.broker.tables.topics.find("%RETRY%g") is None


@in_loop(converse, notify_consumer_ids_changed_enable=False)
async def test_no_notices_where_they_are_off(talk: Talk, /) -> None:
    await talk.client.join("c")
    await talk.another().join("d")
    assert len(await talk.client.members()) == 2
    assert talk.client.noticed == []


@in_loop(converse)
async def test_a_heartbeat_without_subscriptions_counts_if_its_fingerprint_is_known(
    talk: Talk, /
) -> None:
    short = {
        "clientID": "c",
        "heartbeatFingerprint": 5,
        "withoutSub": True,
        "consumerDataSet": [{"groupName": "g"}],
    }
    answer = await talk.client.heartbeat(short)
    assert answer.ext is not None
    assert answer.ext["IS_SUB_CHANGE"] == "true", "send it in full"
    assert await talk.client.members() == []
    full = {"clientID": "c", "heartbeatFingerprint": 5, "consumerDataSet": [consumer("g")]}
    await talk.client.heartbeat(full)
    answer = await talk.client.heartbeat(short)
    assert answer.ext is not None
    assert answer.ext["IS_SUB_CHANGE"] == "false"
    assert await talk.client.members() == ["c"]
    other = talk.another()
    await other.heartbeat({**short, "clientID": "d"})
    assert await talk.client.members() == ["c", "d"]
    await until_count(talk.client.noticed, 2)


@in_loop(in_virtual_time)
async def test_a_client_that_sends_no_heartbeat_is_forgotten(
    talk: Talk, simulation: Simulation, /
) -> None:
    silent = Client(talk.broker.address)
    await talk.client.join("c")
    await silent.join("silent")
    for _ in range(5):
        await asyncio.sleep(30)
        await talk.client.join("c")
        await silent.members()  # it speaks, so the connection is not idle
    assert await talk.client.members() == ["c"]
    await silent.close()
