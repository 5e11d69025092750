"""Clients in C++ and PHP on machines with another character set write tags, keys and properties in
it, GBK for instance. A broker stores those bytes, and no request beside them is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.loops import in_loop
from tests.unit.broker.foreign_frames import (
    GBK,
    PROPERTIES,
    SEND_BATCH,
    SEND_V2,
    answers,
    binary_frame,
    json_frame,
    send_fields,
)
from tests.unit.broker.popping import Popper, popped
from tests.unit.broker.talking import Talk, consumer, converse, subscription
from tests.unit.broker.transacting import Transactor

from turbopump.clock import SystemClock
from turbopump.message.batch import encode_item
from turbopump.message.entry import topic_span
from turbopump.message.ids import decode_offset_msg_id
from turbopump.message.java import tags_code
from turbopump.message.properties import send_properties
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import decode_command
from turbopump.protocol.frame import FrameReader
from turbopump.protocol.requests.send import (
    ConsumerSendMsgBack,
    SendMessageReply,
    TransactionOutcome,
)

FORMS = pytest.mark.parametrize("form", [json_frame, binary_frame])


async def stored_properties(talk: Talk, topic: str = "T", count: int = 1) -> list[bytes]:
    """Of the entries of a queue, as they lie in the log."""
    data = b""
    while not data:
        answer, _ = await talk.client.pull(0, topic=topic, suspend_ms=1000)
        data = answer.body
    found = []
    while data:
        entry, data = data[: int.from_bytes(data[:4])], data[int.from_bytes(data[:4]) :]
        found.append(entry[topic_span(entry)[1] + 2 :])
    assert len(found) == count
    return found


@FORMS
@in_loop(converse)
async def test_they_are_stored_as_they_came_and_others_are_answered(
    talk: Talk, /, form: Any
) -> None:
    await talk.client.create("T")
    frames = [form(SEND_V2, at, send_fields(PROPERTIES), b"body") for at in (1, 2, 3)]
    found = await answers(talk.broker.address, *frames)
    assert [found[number].code for number in (1, 2, 3)] == [0, 0, 0]
    stored = await stored_properties(talk, count=3)
    assert all(text.startswith(PROPERTIES + b"\x02") for text in stored)
    (first, *_) = await talk.client.messages(topic="T")
    assert first.tags == GBK.decode(errors="replace")  # as Java reads it
    assert first.user_properties["who"] == GBK.decode(errors="replace")
    unit = talk.broker.store.queues.find_or_make("T", 0).unit(0)
    assert unit is not None
    assert unit[2] == tags_code(GBK.decode(errors="replace"))


@FORMS
@in_loop(converse)
async def test_other_fields_are_read_with_replacement_characters(talk: Talk, /, form: Any) -> None:
    """The topic is refused by its name, and the connection stays."""
    await talk.client.create("T")
    bad = form(SEND_V2, 1, send_fields(b"", topic=GBK), b"body")
    good = form(SEND_V2, 2, send_fields(b"", a=GBK), b"body")
    odd = form(SEND_V2, 3, {**send_fields(b""), GBK: GBK}, b"body")
    found = await answers(talk.broker.address, bad, good, odd)
    assert found[1].code == ResponseCode.INVALID_PARAMETER
    assert "\ufffd" in (found[1].remark or "")
    assert (found[2].code, found[3].code) == (0, 0)


@in_loop(converse)
async def test_messages_of_a_batch_keep_them_too(talk: Talk, /) -> None:
    await talk.client.create("T")
    body = encode_item(0, b"one", PROPERTIES) + encode_item(0, b"two", b"k\x01v\x02")
    frame = json_frame(SEND_BATCH, 1, send_fields(b"", m=b"true"), body)
    assert (await answers(talk.broker.address, frame))[1].code == 0
    assert (await stored_properties(talk, count=2))[0].startswith(PROPERTIES + b"\x02")


@in_loop(converse, message_delay_level="1s")
async def test_a_delayed_message_still_has_them(talk: Talk, /) -> None:
    await talk.client.create("T")
    frame = binary_frame(SEND_V2, 1, send_fields(PROPERTIES + b"\x02DELAY\x011\x02"), b"body")
    assert (await answers(talk.broker.address, frame))[1].code == 0
    (text,) = await stored_properties(talk)
    assert b"KEYS\x01%b a\x02TAGS\x01%b\x02who\x01%b\x02" % (GBK, GBK, GBK) in text
    assert (await talk.client.messages(topic="T"))[0].body == b"body"


COPIED = b"KEYS\x01%b a\x02TAGS\x01%b\x02who\x01%b\x02" % (GBK, GBK, GBK)


async def send_one(talk: Talk, properties: bytes = PROPERTIES, **more: bytes) -> SendMessageReply:
    await talk.client.create("T")
    frame = binary_frame(SEND_V2, 1, send_fields(properties, **more), b"body")
    answer = (await answers(talk.broker.address, frame))[1]
    assert answer.code == 0, answer
    return answer.header(SendMessageReply)


@in_loop(converse, timer_precision_ms=100)
async def test_a_timer_message_still_has_them(talk: Talk, /) -> None:
    await send_one(talk, PROPERTIES + b"\x02TIMER_DELAY_MS\x01300\x02")
    (text,) = await stored_properties(talk)
    assert COPIED in text


@in_loop(converse)
async def test_a_dead_letter_still_has_them(talk: Talk, /) -> None:
    sent = await send_one(talk)
    await talk.client.heartbeat(consumer("g", subscription()))
    offset = decode_offset_msg_id(sent.msg_id)[2]
    back = ConsumerSendMsgBack(offset=offset, group="g", delay_level=-1, failure="no stock")
    assert (await talk.client.code(back))[0] == 0
    (text,) = await stored_properties(talk, "%DLQ%g")
    assert COPIED in text


@in_loop(converse)
async def test_a_popped_message_that_comes_again_still_has_them(talk: Talk, /) -> None:
    await send_one(talk)
    popper = Popper(talk.client, SystemClock().now_ms)
    assert [one.body for one in await popper.pop(invisible_ms=500)] == [b"body"]
    (again,) = popped(await popper.answer(poll_ms=20_000))
    assert again.message.properties["who"] == GBK.decode(errors="replace")
    (text,) = await stored_properties(talk, "%RETRY%g_T")
    assert COPIED in text


@in_loop(converse)
async def test_a_committed_transaction_still_has_them(talk: Talk, /) -> None:
    half = await send_one(talk, PROPERTIES + b"\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02", f=b"4")
    seller = Transactor(talk.client, SystemClock().now_ms, "g")
    assert (await seller.end(half, TransactionOutcome.COMMIT)).code == 0
    (text,) = await stored_properties(talk)
    assert COPIED in text


@given(
    value=st.binary(min_size=1, max_size=40).filter(lambda one: not set(one) & {1, 2}),
    form=st.sampled_from([json_frame, binary_frame]),
)
@example(value=b"\xed\xa0\xbd", form=json_frame)  # half a surrogate pair
@example(value=b"\x5c\xff\x22", form=json_frame)
def test_any_bytes_of_a_property_come_back_unchanged(value: bytes, form: Any) -> None:
    text = b"TAGS\x01%b\x02" % value
    (frame,) = FrameReader().feed(form(SEND_V2, 1, send_fields(text), b""))
    ext = decode_command(frame).ext
    assert ext is not None
    _, _, tags, _, stored = send_properties(ext["i"], b"")
    assert stored == text
    assert tags == value.decode(errors="replace")
