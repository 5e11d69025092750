"""Answers that a call reads with a decoder of its own, and what that decoder cannot read."""

from __future__ import annotations

import msgspec
import pytest
from tests.loops import in_loop
from tests.unit.remoting.transports import KeptTransport

from turbopump.client.sending.send_result import SEND_ANSWER, SendAnswer
from turbopump.errors import CallTimeoutError, ConnectionLostError
from turbopump.protocol.codes import FLAG_RESPONSE
from turbopump.protocol.command import Command, TypedJsonHeader, encode_command
from turbopump.protocol.frame import ROCKETMQ, frame_head
from turbopump.remoting.router import Router
from turbopump.remoting.served_requests import ServedRequests
from turbopump.remoting.wire import Wire

GOOD = {"msgId": "AB", "queueId": "3", "queueOffset": "7", "MSG_REGION": "north"}


def connection() -> Wire:
    made = ServedRequests(Router()).wire
    made.connection_made(KeptTransport())
    return made


def answer(opaque: int, **changes: object) -> bytes:
    fields = {"code": 0, "opaque": opaque, "flag": FLAG_RESPONSE, "ext": GOOD, **changes}
    return encode_command(Command(**fields))  # type: ignore[arg-type]


async def asked(frame: bytes, opaque: int = 5) -> TypedJsonHeader[SendAnswer] | Command:
    open_connection = connection()
    call = open_connection.start_call(opaque, b"", 3.0, SEND_ANSWER)
    open_connection.data_received(frame)
    assert not open_connection.calls.typed
    return call.result()


@in_loop
async def test_a_good_answer_is_read_in_one_pass() -> None:
    read = await asked(answer(5))
    assert isinstance(read, TypedJsonHeader)
    assert (read.code, read.ext.msg_id, read.ext.queue_id, read.ext.queue_offset) == (0, "AB", 3, 7)
    assert (read.ext.region_id, read.ext.trace_on) == ("north", None)


@pytest.mark.parametrize(
    "frame",
    [
        answer(5, code=2, ext=None, remark='busy, "opaque":6,'),
        answer(5, ext={"msgId": "AB"}),
        answer(5, remark="\u2028 is escaped"),
    ],
)
@in_loop
async def test_what_the_decoder_cannot_read_is_read_the_tolerant_way(frame: bytes) -> None:
    read = await asked(frame)
    assert (read.code if isinstance(read, Command) else 0) in (0, 2)
    assert read.opaque == 5


@in_loop
async def test_a_binary_header_and_one_that_begins_with_another_opaque_are_read_too() -> None:
    open_connection = connection()
    binary = open_connection.start_call(5, b"", 3.0, SEND_ANSWER)
    open_connection.data_received(answer(5, serialize_type=ROCKETMQ))
    assert isinstance(binary.result(), Command)
    first = open_connection.start_call(6, b"", 3.0, SEND_ANSWER)
    second = open_connection.start_call(7, b"", 3.0, SEND_ANSWER)
    header = (
        b'{"code":0,"extFields":{"opaque":6,"msgId":"AB","queueId":"1","queueOffset":"2"},'
        b'"flag":1,"opaque":7,"version":1}'
    )
    open_connection.data_received(frame_head(len(header), 0) + header)
    assert (first.done(), second.result().opaque) == (False, 7)
    open_connection.data_received(answer(6))
    assert first.result().opaque == 6


@in_loop
async def test_nothing_is_kept_of_a_call_that_ends_without_an_answer() -> None:
    open_connection = connection()
    late = open_connection.start_call(5, b"", 0.001, SEND_ANSWER)
    with pytest.raises(CallTimeoutError):
        await late
    assert not open_connection.calls.typed
    open_connection.data_received(answer(5))  # nobody waits any more
    lost = open_connection.start_call(6, b"", 3.0, SEND_ANSWER)
    open_connection.connection_lost(None)
    with pytest.raises(ConnectionLostError):
        await lost
    refused = open_connection.start_call(7, b"", 3.0, SEND_ANSWER)
    with pytest.raises(ConnectionLostError):
        await refused
    assert not open_connection.calls.typed


@in_loop
async def test_calls_of_two_kinds_that_wait_together_each_get_their_own() -> None:
    class Other(msgspec.Struct, kw_only=True):
        queue_offset: int = msgspec.field(name="queueOffset")

    other = msgspec.json.Decoder(TypedJsonHeader[Other], strict=False)
    open_connection = connection()
    kinds = {1: SEND_ANSWER, 2: other, 3: SEND_ANSWER, 4: other}
    calls = {
        opaque: open_connection.start_call(opaque, b"", 3.0, kind) for opaque, kind in kinds.items()
    }  # type: ignore[type-var]
    open_connection.data_received(b"".join(answer(opaque) for opaque in (3, 2, 4, 1, 1, 9)))
    read = [calls[opaque].result().ext for opaque in (1, 2, 3, 4)]
    assert [type(ext) for ext in read] == [SendAnswer, Other, SendAnswer, Other]
    assert [ext.queue_offset for ext in read] == [7, 7, 7, 7]
    assert not open_connection.calls.typed
    assert not open_connection.calls.waiting
