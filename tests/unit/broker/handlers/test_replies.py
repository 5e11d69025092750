"""Replies on their way through the broker: pushed to the producer that asked, kept as a record, or
refused with the cause."""

import asyncio
from typing import Any

import pytest
from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import Client, Talk, converse, in_virtual_time, take_nothing
from tests.waits import until_count, until_none, until_some

from turbopump.broker.handlers import replies
from turbopump.message.compression import compress
from turbopump.message.ids import decode_offset_msg_id
from turbopump.message.properties import decode_properties
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests.clients import UnregisterClient
from turbopump.protocol.requests.send import (
    PushReplyMessageToClient,
    SendMessageReply,
    SendReplyMessage,
    SendReplyMessageV2,
)
from turbopump.remoting.response import Response
from turbopump.remoting.router import HELD, Outcome, RequestContext

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
TO_ASKER = "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01asker\x02TTL\x013000"


class Asker:
    """A client that takes pushed replies and answers each with ``answer``."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.pushed: list[tuple[PushReplyMessageToClient, bytes]] = []
        self.answer: Outcome[None] = Response()
        client.remoting.router.add(PushReplyMessageToClient, self._take)

    async def produce(self, client_id: str = "asker", *groups: str) -> None:
        data = {
            "clientID": client_id,
            "producerDataSet": [{"groupName": group} for group in groups or ("p",)],
        }
        assert (await self.client.heartbeat(data)).code == ResponseCode.SUCCESS

    def _take(self, push: PushReplyMessageToClient, context: RequestContext) -> Outcome[None]:
        self.pushed.append((push, context.body))
        return self.answer


def reply(properties: str = TO_ASKER, **fields: Any) -> SendReplyMessageV2:
    values: dict[str, Any] = {
        "producer_group": "r",
        "topic": REPLY_TOPIC,
        "queue_id": 0,
        "born_timestamp": 5,
        **fields,
    }
    return SendReplyMessageV2(properties=properties, **values)


@in_loop(converse)
async def test_a_reply_is_pushed_to_the_producer_it_names_and_kept_in_the_reply_topic(
    talk: Talk, /
) -> None:
    asker, replier = Asker(talk.another()), talk.client
    await asker.produce()
    answer = await replier.ask(reply(flag=7, reconsume_times=2), b"here")
    assert answer.code == ResponseCode.SUCCESS
    ((push, body),) = asker.pushed
    assert body == b"here"
    assert (push.producer_group, push.topic, push.queue_id, push.flag, push.reconsume_times) == (
        "r",
        REPLY_TOPIC,
        0,
        7,
        2,
    )
    assert (push.born_timestamp, push.sys_flag, push.unit_mode) == (5, 0, False)
    assert push.store_host == talk.broker.address
    assert push.born_host.startswith("127.0.0.1:")
    properties = decode_properties(push.properties or "")
    assert properties.pop("PUSH_REPLY_TIME") == str(push.store_timestamp)
    assert properties == decode_properties(TO_ASKER)

    (kept,) = await replier.messages(topic=REPLY_TOPIC)
    assert (kept.body, kept.flag, kept.properties["CORRELATION_ID"]) == (b"here", 7, "c-1")
    told = answer.header(SendMessageReply)
    assert (told.queue_id, told.queue_offset) == (0, 0)
    assert decode_offset_msg_id(told.msg_id)[2] == kept.commit_log_offset


@in_loop(converse)
async def test_the_form_with_long_names_is_understood_too(talk: Talk, /) -> None:
    asker = Asker(talk.another())
    await asker.produce()
    request = SendReplyMessage(
        producer_group="r", topic=REPLY_TOPIC, queue_id=-1, properties=TO_ASKER
    )
    answer = await talk.client.ask(request, b"x")
    assert (answer.code, answer.header(SendMessageReply).queue_id) == (ResponseCode.SUCCESS, 0)
    assert [body for _, body in asker.pushed] == [b"x"]


@in_loop(converse, store_reply_message_enable=False)
async def test_a_reply_is_not_kept_where_the_configuration_says_so(talk: Talk, /) -> None:
    asker = Asker(talk.another())
    await asker.produce()
    answer = await talk.client.ask(reply(), b"x")
    assert (answer.code, answer.header(SendMessageReply).msg_id) == (ResponseCode.SUCCESS, "0")
    assert len(asker.pushed) == 1
    assert await talk.client.all_bodies(REPLY_TOPIC) == []


@in_loop(converse)
async def test_a_compressed_reply_is_passed_on_as_it_is_and_can_be_read_where_it_is_kept(
    talk: Talk, /
) -> None:
    asker = Asker(talk.another())
    await asker.produce()
    packed, sys_flag = compress(b"long " * 100)
    await talk.client.ask(reply(sys_flag=sys_flag), packed)
    assert [(push.sys_flag, body) for push, body in asker.pushed] == [(sys_flag, packed)]
    (kept,) = await talk.client.messages(topic=REPLY_TOPIC)
    assert kept.body == b"long " * 100


@in_loop(converse)
async def test_a_reply_to_nobody_is_refused_with_the_cause(talk: Talk, /) -> None:
    code, remark = await talk.client.code(reply(), b"x")
    assert code == ResponseCode.SYSTEM_ERROR
    assert remark.startswith("push reply message fail, channel of <asker> not found")
    code, remark = await talk.client.code(reply("CORRELATION_ID\x01c-1\x02"), b"x")
    assert code == ResponseCode.SYSTEM_ERROR
    assert remark.startswith("reply message properties[REPLY_TO_CLIENT] is null")


@in_loop(converse)
async def test_a_producer_that_left_or_lost_its_connection_is_not_found_any_more(
    talk: Talk, /
) -> None:
    asker = Asker(talk.another())
    await asker.produce("asker", "p", "q")
    await asker.client.ask(UnregisterClient(client_id="asker", producer_group="p"))
    assert (await talk.client.ask(reply(), b"x")).code == ResponseCode.SUCCESS, (
        "it still produces in q"
    )
    await asker.client.ask(UnregisterClient(client_id="asker", producer_group="q"))
    assert (await talk.client.ask(reply(), b"x")).code == ResponseCode.SYSTEM_ERROR

    await asker.produce()
    again = Asker(talk.another())
    await again.produce()
    await asker.client.close()
    clients = talk.broker.parts.stored.clients
    await until_count(clients.producers["p"], 1)
    assert (await talk.client.ask(reply(), b"new")).code == ResponseCode.SUCCESS
    assert [body for _, body in again.pushed] == [b"new"], "the newer connection of the same client"
    await again.client.close()
    await until_none(clients.producers)
    assert (await talk.client.ask(reply(), b"x")).code == ResponseCode.SYSTEM_ERROR


@in_loop(converse)
async def test_a_connection_that_takes_another_client_id_answers_to_that_one_alone(
    talk: Talk, /
) -> None:
    asker = Asker(talk.another())
    clients = talk.broker.parts.stored.clients
    for number in range(5):
        await asker.produce(f"asker-{number}")
    assert list(clients.producing) == ["asker-4"]
    await asker.produce("asker", "q")
    await asker.client.ask(UnregisterClient(client_id="asker", producer_group="q"))
    assert list(clients.producing) == ["asker-4"], "the other group's"


@in_loop(converse)
async def test_what_the_producer_says_against_it_is_told_to_the_replier(talk: Talk, /) -> None:
    asker = Asker(talk.another())
    await asker.produce()
    asker.answer = Response(code=ResponseCode.SYSTEM_ERROR, remark="process reply message fail")
    code, remark = await talk.client.code(reply(), b"x")
    assert code == ResponseCode.SYSTEM_ERROR
    assert remark == (
        "push reply message to asker fail: it answered code 1, process reply message fail"
    )


@in_loop(converse)
async def test_a_connection_that_ends_while_the_reply_is_under_way_refuses_it(
    talk: Talk, /
) -> None:
    asker = Asker(talk.another())
    await asker.produce()
    asker.answer = HELD  # a client that never answers
    asked = asyncio.create_task(talk.client.code(reply(), b"x"))
    await until_some(asker.pushed)
    await asker.client.close()
    code, remark = await asked
    assert code == ResponseCode.SYSTEM_ERROR
    assert "ended before the answer came" in remark


@in_loop(in_virtual_time)
async def test_a_producer_that_does_not_take_its_reply_within_ten_seconds_has_not_got_it(
    talk: Talk, simulation: Simulation, /
) -> None:
    asker = Asker(talk.client)
    await asker.produce()
    asker.answer = HELD
    began = simulation.loop.time()
    answer = await talk.client.ask(reply(), b"x", timeout=20)
    assert simulation.loop.time() - began == pytest.approx(10, abs=0.1)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("push reply message to asker fail: no answer from ")


@pytest.mark.parametrize("bound", ["PUSHES_MAX", "PUSHED_BYTES_MAX"])
@in_loop(converse)
async def test_more_replies_than_slow_producers_take_are_refused(
    talk: Talk, /, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker = Asker(talk.another())
    await asker.produce()
    asker.answer = HELD
    monkeypatch.setattr(replies, bound, 2)
    waiting = [asyncio.create_task(talk.client.code(reply(), b"x")) for _ in range(2)]
    await until_count(asker.pushed, 2)
    code, remark = await talk.client.code(reply(), b"x")
    assert code == ResponseCode.SYSTEM_BUSY
    assert "2 replies of 2 bytes wait for slow producers" in remark
    await asker.client.close()
    assert [code for code, _ in await asyncio.gather(*waiting)] == [ResponseCode.SYSTEM_ERROR] * 2
    again = Asker(talk.another())
    await again.produce()
    assert (await talk.client.ask(reply(), b"x")).code == ResponseCode.SUCCESS, (
        "there is room again"
    )


@in_loop(converse, max_message_size=100)
async def test_replies_are_checked_as_sends_are(talk: Talk, /) -> None:
    asker = Asker(talk.another())
    await asker.produce()

    async def code(request: Request[Any], body: bytes = b"x") -> int:
        return (await talk.client.code(request, body))[0]

    assert await code(reply(topic="no good")) == ResponseCode.INVALID_PARAMETER
    assert await code(reply(topic="SCHEDULE_TOPIC_XXXX")) == ResponseCode.NO_PERMISSION
    assert await code(reply(topic="unknown", default_topic="none")) == ResponseCode.TOPIC_NOT_EXIST
    assert await code(reply(queue_id=1)) == ResponseCode.INVALID_PARAMETER
    assert await code(reply(), b"x" * 101) == ResponseCode.MESSAGE_ILLEGAL
    assert asker.pushed == []


@in_loop(converse)
async def test_an_empty_reply_is_passed_on_and_not_kept(talk: Talk, /) -> None:
    asker = Asker(talk.another())
    await asker.produce()
    assert (await talk.client.ask(reply(), b"")).code == ResponseCode.SUCCESS
    assert [body for _, body in asker.pushed] == [b""]
    assert await talk.client.all_bodies(REPLY_TOPIC) == []


@in_loop(converse)
async def test_a_reply_that_the_store_refuses_is_pushed_all_the_same(talk: Talk, /) -> None:
    asker = Asker(talk.another())
    await asker.produce()
    take_nothing(talk.broker, "the disk is full")
    answer = await talk.client.ask(reply(), b"x")
    assert (answer.code, answer.header(SendMessageReply).msg_id) == (ResponseCode.SUCCESS, "0")
    assert len(asker.pushed) == 1
