"""What slaves and tools ask of a master (43, 45, 402, 905 to 908), and what is refused in words
until it comes or for good."""

from __future__ import annotations

import pytest
from tests.loops import in_loop
from tests.unit.broker.talking import Talk, converse

from turbopump.broker.handlers.unserved import UNSERVED
from turbopump.protocol import fastjson
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.assignment import (
    MessageRequestMode,
    MessageRequestModeTable,
    SetMessageRequestMode,
    SetMessageRequestModeRequestBody,
)
from turbopump.protocol.requests.offsets import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    UpdateConsumerOffset,
)
from turbopump.protocol.requests.replication import (
    ExchangeHAInfo,
    ExchangeHAInfoReply,
    GetAllConsumerOffset,
    GetAllDelayOffset,
    GetAllMessageRequestMode,
    GetBrokerHaStatus,
    HARuntimeInfo,
    NotifyMinBrokerIdChange,
    ResetMasterFlushOffset,
)


@in_loop(converse)
async def test_tables_are_given_as_their_files_have_them(talk: Talk, /) -> None:
    await talk.client.create()
    await talk.client.send()
    await talk.client.pull(consumer_group="g")
    commit = UpdateConsumerOffset(consumer_group="g", topic="T", queue_id=0, commit_offset=1)
    assert (await talk.client.ask(commit)).code == ResponseCode.SUCCESS
    mode = SetMessageRequestModeRequestBody(
        topic="T", consumer_group="g", mode=MessageRequestMode.POP, pop_share_queue_num=1
    )
    await talk.client.ask(SetMessageRequestMode(), fastjson.encode(mode))
    answer = await talk.client.ask(GetAllConsumerOffset())
    offsets = fastjson.decode(answer.body, ConsumerOffsetTable)
    assert offsets.offset_table == {"T@g": {0: 1}}
    answer = await talk.client.ask(GetAllDelayOffset())
    assert len(fastjson.decode(answer.body, DelayOffsetTable).offset_table) <= 18
    answer = await talk.client.ask(GetAllMessageRequestMode())
    modes = fastjson.decode(answer.body, MessageRequestModeTable).message_request_mode_map
    assert modes == {"T": {"g": mode}}


@in_loop(converse)
async def test_a_master_without_slaves_says_how_far_it_is(talk: Talk, /) -> None:
    await talk.client.create()
    await talk.client.send()
    answer = await talk.client.ask(GetBrokerHaStatus())
    status = fastjson.decode(answer.body, HARuntimeInfo)
    assert status.master
    assert status.master_commit_log_max_offset == talk.broker.store.log.end > 0
    assert (status.in_sync_slave_nums, status.ha_connection_info) == (0, [])
    for request in (ResetMasterFlushOffset(master_flush_offset=10), NotifyMinBrokerIdChange()):
        assert await talk.client.code(request) == (0, "")


@in_loop(converse)
async def test_a_master_says_where_its_ha_port_is(talk: Talk, /) -> None:
    broker = talk.broker
    given = (await talk.client.ask(ExchangeHAInfo())).header(ExchangeHAInfoReply)
    assert (given.master_address, given.master_ha_address) == (
        broker.address,
        broker.parts.listening.ha_address,
    )
    assert given.master_flush_offset == broker.store.durable.value
    told = ExchangeHAInfo(master_address="127.0.0.1:1", master_ha_address="127.0.0.1:2")
    assert await talk.client.code(told) == (0, "")


class Unserved(Request[None], kw_only=True):
    """A request of whatever code."""

    code = 0


@pytest.mark.parametrize("code", UNSERVED)
@in_loop(converse)
async def test_what_is_not_served_is_refused_in_words(talk: Talk, /, code: RequestCode) -> None:
    answer = await ask(talk, code)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, UNSERVED[code])


@in_loop(converse)
async def test_what_apaches_does_not_know_is_refused_as_by_apaches(talk: Talk, /) -> None:
    for code in (RequestCode.ADD_BROKER, RequestCode.TRIGGER_DELETE_FILES, 31415):
        answer = await ask(talk, code)
        remark = f" request type {int(code)} not supported"
        assert (answer.code, answer.remark) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)


async def ask(talk: Talk, code: int) -> Command:
    """Without any field or body."""
    request = type("Unserved", (Unserved,), {"code": code})()
    return await talk.client.ask(request)
