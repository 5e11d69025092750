"""Messages that ask for more than to be stored go where a rule sends them, or are refused;
forwarding keeps what a message is."""

from __future__ import annotations

import msgspec
from tests.loops import in_loop
from tests.stand_ins import does_nothing
from tests.unit.store.looked_up import find_by_key, message_at, message_in_queue

from turbopump.broker.flush_wait import FlushWait
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.interceptors import Destination, Interceptors, kind_in_batch
from turbopump.clock import SystemClock
from turbopump.config.broker_config import FlushDiskType
from turbopump.message.properties import encode_properties
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import SendMessage
from turbopump.remoting.response import Response
from turbopump.testing.broker_in_loop import running_broker

REQUEST = SendMessage(topic="Orders", queue_id=3)


def destination(**properties: str) -> Destination:
    return Destination("Orders", 3, encode_properties(properties), 0)


def test_each_rule_sees_what_the_one_before_has_made_of_the_message() -> None:
    interceptors = Interceptors(
        lambda _request, one: msgspec.structs.replace(one, topic="Half"),
        lambda request, one: msgspec.structs.replace(
            one, queue_id=7, properties=f"{request.topic}>{one.topic}"
        ),
    )
    assert interceptors.find(REQUEST, destination(DELAY="3")) == Destination(
        "Half", 7, "Orders>Half", 0
    )


def test_a_refusal_ends_the_way() -> None:
    interceptors = Interceptors(
        lambda _request, _one: Response(code=ResponseCode.NO_PERMISSION),
        lambda _request, _one: 1 / 0,  # type: ignore[arg-type, return-value]
    )
    answer = interceptors.find(REQUEST, destination())
    assert isinstance(answer, Response)
    assert answer.code == ResponseCode.NO_PERMISSION


def test_a_batch_holds_plain_messages_only() -> None:
    assert kind_in_batch(encode_properties({"TAGS": "a"})) is None
    answer = kind_in_batch(encode_properties({"TRAN_MSG": "true"}))
    assert answer is not None
    assert "in a request of its own" in str(answer.remark)


@in_loop
async def test_a_forwarded_message_keeps_body_birth_keys_and_tags() -> None:
    async with running_broker(flush_disk_type=FlushDiskType.SYNC_FLUSH) as running:
        store = running.broker.store
        flush = FlushWait(store.flusher, flushes=True)
        forwarding = Forwarding(store, SystemClock(), ("10.1.2.3", 10911), flush, does_nothing)
        text = encode_properties({"UNIQ_KEY": "U1", "KEYS": "k1 k2", "TAGS": "paid"})
        first = await forwarding.append("Half", 0, b"body", text)
        await forwarding.confirmed(first)
        half = message_at(store.lookup, first.offset)
        assert half is not None
        again = await forwarding.forward(
            half, "Orders", 3, reconsume_times=2, prepared_transaction_offset=first.offset
        )
        await forwarding.confirmed(again)
        assert store.durable.value >= again.log_end
        message = message_in_queue(store.lookup, "Orders", 3, 0)
        assert message is not None
        assert (message.body, message.tags, message.keys) == (b"body", "paid", ["k1", "k2"])
        assert message.born_timestamp == half.born_timestamp
        assert message.born_host == ("10.1.2.3", 10911)
        assert (message.reconsume_times, message.prepared_transaction_offset) == (2, first.offset)
        assert [
            entry.message.topic for entry in find_by_key(store.lookup, "Orders", "k2", 0, 1 << 50)
        ] == ["Orders"]


@in_loop
async def test_forwarding_waits_while_the_log_makes_its_next_file() -> None:
    async with running_broker(mapped_file_size_commit_log=64 * 1024) as running:
        broker = running.broker
        placed = [
            await broker.parts.delivering.forwarding.append("Orders", 0, b"x" * 20_000, "")
            for _ in range(40)
        ]
        assert [one.queue_offset for one in placed] == list(range(40))
        assert broker.store.max_offset("Orders", 0) == 40
