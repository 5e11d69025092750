"""The texts of POP as Apache's ``ExtraInfoUtil`` writes them, both ways."""

import pytest

from turbopump.errors import MessageError
from turbopump.message.handles import (
    PopHandle,
    QueueKind,
    decode_numbers,
    decode_offsets,
    encode_numbers,
    encode_offsets,
    message_key,
    original_topic,
    pop_retry_topic,
    queue_key,
    queue_kind_of,
)


def test_a_handle_is_apaches_eight_fields_and_comes_back_whole() -> None:
    handle = PopHandle(
        start_offset=3,
        pop_time_ms=1_700_000_000_000,
        invisible_ms=60_000,
        revive_queue_id=5,
        kind=QueueKind.RETRY,
        broker_name="broker-a",
        queue_id=2,
        queue_offset=7,
    )
    assert handle.encode() == "3 1700000000000 60000 5 1 broker-a 2 7"
    assert PopHandle.decode(handle.encode()) == handle
    assert handle.visible_at_ms == 1_700_000_060_000
    assert handle.real_topic("orders", "billing") == "%RETRY%billing_orders"


def test_a_handle_of_a_whole_queue_has_seven_fields() -> None:
    handle = PopHandle.decode("0 1 2 999 0 b 4")
    assert handle.queue_offset is None
    assert handle.ordered
    assert handle.encode() == "0 1 2 999 0 b 4"


@pytest.mark.parametrize(
    "text", ["", "1 2 3", "a 1 2 3 0 b 4 5", "0 1 2 3 0 b 4 x", "0 1 2 3 0 b ٣ 4"]
)
def test_text_that_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(MessageError):
        PopHandle.decode(text)


def test_start_offsets_name_each_queue_with_its_kind() -> None:
    starts = {queue_key(QueueKind.NORMAL, 0): 10, queue_key(QueueKind.RETRY_V2, 0): 4}
    assert encode_numbers(starts.items()) == "0 0 10;2 0 4"
    assert decode_numbers("0 0 10;2 0 4") == starts
    assert decode_numbers("") == decode_numbers(None) == {}


def test_message_offsets_come_in_the_order_of_the_body() -> None:
    offsets = {queue_key(QueueKind.NORMAL, 3): [10, 11, 15]}
    assert encode_offsets(offsets.items()) == "0 3 10,11,15"
    assert decode_offsets("0 3 10,11,15") == offsets


def test_order_counts_name_a_queue_or_one_message() -> None:
    counts = {message_key(QueueKind.NORMAL, 3, 10): 2, queue_key(QueueKind.NORMAL, 3): 1}
    assert encode_numbers(counts.items()) == "0 qo3%10 2;0 3 1"
    assert decode_numbers("0 qo3%10 2;0 3 1") == counts


def test_a_queue_named_twice_is_refused() -> None:
    with pytest.raises(MessageError, match="two entries"):
        decode_numbers("0 0 10;0 0 11")


def test_retry_topics_of_both_versions_lead_back_to_their_topic() -> None:
    assert pop_retry_topic("orders", "billing") == "%RETRY%billing_orders"
    assert pop_retry_topic("orders", "billing", v2=True) == "%RETRY%billing+orders"
    assert [
        queue_kind_of(topic)
        for topic in ("orders", "%RETRY%billing_orders", "%RETRY%billing+orders")
    ] == list(QueueKind)
    assert (
        original_topic("%RETRY%billing_orders", "billing")
        == original_topic("%RETRY%billing+orders", "billing")
        == "orders"
    )
    assert original_topic("orders", "billing") == "orders"
