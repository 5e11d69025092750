"""Differences to Apache's broker that foreign clients stumbled over; `tests/interop` has the
clients."""

from __future__ import annotations

from tests.loops import in_loop
from tests.patient import ANSWER_S

from turbopump import Message
from turbopump.message.batch import encode_batch
from turbopump.protocol import fastjson
from turbopump.protocol.requests.namesrv import GetRouteInfo, TopicRouteData
from turbopump.protocol.requests.send import SendBatchMessage, SendMessageV2
from turbopump.remoting.client import RemotingClient
from turbopump.testing import running_broker


def first_send(topic: str) -> SendMessageV2:
    return SendMessageV2(
        producer_group="p",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=0,
        flag=0,
    )


@in_loop
async def test_whoever_is_told_of_a_first_message_finds_its_topic_at_the_name_server() -> None:
    async with running_broker() as servers:
        client = RemotingClient(connect_timeout=ANSWER_S)
        try:
            for number in range(20):
                await client.call(
                    servers.broker.address, first_send(f"new-{number}"), b"first", timeout=ANSWER_S
                )
                command = await client.exchange(
                    servers.namesrv, GetRouteInfo(topic=f"new-{number}"), timeout=ANSWER_S
                )
                assert command.code == 0, command.remark
                assert len(fastjson.decode(command.body, TopicRouteData).queue_datas) == 1
        finally:
            await client.close()


@in_loop
async def test_the_vip_port_answers_beside_a_picked_port() -> None:
    async with running_broker() as servers:
        host, port = servers.broker.address.rsplit(":", 1)
        client = RemotingClient(connect_timeout=ANSWER_S)
        try:
            reply = await client.call(
                f"{host}:{int(port) - 2}", first_send("vip"), b"first", timeout=ANSWER_S
            )
            assert reply.queue_offset == 0
        finally:
            await client.close()


@in_loop
async def test_a_plain_batch_is_answered_without_the_id_of_an_inner_batch() -> None:
    async with running_broker() as servers:
        client = RemotingClient(connect_timeout=ANSWER_S)
        try:
            request = SendBatchMessage(
                producer_group="p",
                topic="batch",
                default_topic="TBW102",
                default_topic_queue_nums=4,
                queue_id=0,
                sys_flag=0,
                born_timestamp=0,
                flag=0,
                batch=True,
                properties="UNIQ_KEY\x01U\x02",
            )
            body = encode_batch([Message("batch", f"{number}") for number in range(3)])
            command = await client.exchange(servers.broker.address, request, body, timeout=ANSWER_S)
        finally:
            await client.close()
    assert command.code == 0, command.remark
    assert command.ext is not None
    assert len(command.ext["msgId"].split(",")) == 3
    assert "batchUniqId" not in command.ext
