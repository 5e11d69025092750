"""Stored entries: what is written is read back, and what is torn is named."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal.isal_zlib import crc32

from turbopump.errors import StoredMessageError
from turbopump.message.codec import (
    body_crc32,
    decode_entries,
    decode_entry,
    decode_host,
    encode_entry,
    encode_host,
)
from turbopump.message.entry import MAGIC_V1, MAGIC_V2
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import SysFlag

V4, V6 = ("10.0.0.1", 10911), ("2001:db8::1", 65535)


def entry(**changes: Any) -> bytes:
    parts: dict[str, Any] = {
        "queue_id": 3,
        "flag": -7,
        "queue_offset": 12,
        "physical_offset": 1 << 40,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_123,
        "born_host": encode_host(*V4),
        "store_timestamp": 1_700_000_000_456,
        "store_host": encode_host("10.0.0.2", 10912),
        "reconsume_times": 2,
        "prepared_transaction_offset": 99,
        "body": b"hello",
        "topic": b"orders",
        "properties": b"TAGS\x01a\x02KEYS\x01k1 k2\x02",
    }
    return encode_entry(**{**parts, **changes})


def test_an_entry_lies_in_bytes_as_apache_writes_it() -> None:
    data = entry()
    assert data == b"".join(
        (
            struct.pack(
                ">IIIiiqqi",
                len(data),
                MAGIC_V1,
                crc32(b"hello") & 0x7FFFFFFF,
                3,
                -7,
                12,
                1 << 40,
                0,
            ),
            struct.pack(">q4si", 1_700_000_000_123, bytes([10, 0, 0, 1]), 10911),
            struct.pack(">q4si", 1_700_000_000_456, bytes([10, 0, 0, 2]), 10912),
            struct.pack(">iqI", 2, 99, 5),
            b"hello\x06orders\x00\x12TAGS\x01a\x02KEYS\x01k1 k2\x02",
        )
    )
    assert len(data) == 91 + len(b"hello") + len(b"orders") + 18


def test_an_entry_is_read_field_by_field() -> None:
    message = decode_entry(entry())
    assert (message.topic, message.queue_id, message.queue_offset, message.commit_log_offset) == (
        "orders",
        3,
        12,
        1 << 40,
    )
    assert (
        message.flag,
        message.sys_flag,
        message.reconsume_times,
        message.prepared_transaction_offset,
    ) == (-7, 0, 2, 99)
    assert (message.born_timestamp, message.store_timestamp) == (
        1_700_000_000_123,
        1_700_000_000_456,
    )
    assert (message.born_host, message.store_host) == (V4, ("10.0.0.2", 10912))
    assert (message.body, message.tags, message.keys) == (b"hello", "a", ["k1", "k2"])
    assert message.body_crc == body_crc32(b"hello")
    assert message.store_size == len(entry())
    assert message.offset_msg_id == "0A00000200002AA00000010000000000"
    assert message.msg_id == message.offset_msg_id, "no unique key"
    assert "orders" in repr(message)


@pytest.mark.parametrize("born", [V4, V6])
@pytest.mark.parametrize("store", [V4, V6])
def test_hosts_of_either_family_are_read_back(
    born: tuple[str, int], store: tuple[str, int]
) -> None:
    flags = (SysFlag.BORN_HOST_V6 if born is V6 else 0) | (
        SysFlag.STORE_HOST_V6 if store is V6 else 0
    )
    message = decode_entry(
        entry(born_host=encode_host(*born), store_host=encode_host(*store), sys_flag=flags)
    )
    assert (message.born_host, message.store_host, message.body) == (born, store, b"hello")


@pytest.mark.parametrize(
    ("size", "magic"), [(1, MAGIC_V1), (127, MAGIC_V1), (128, MAGIC_V2), (255, MAGIC_V2)]
)
def test_a_topic_of_more_than_127_bytes_makes_a_second_version_entry(size: int, magic: int) -> None:
    data = entry(topic=b"t" * size)
    assert int.from_bytes(data[4:8]) == magic
    assert decode_entry(data).topic == "t" * size


@pytest.mark.parametrize("properties", [b"", b"a\x01b", b"a\x01b\x02"])
def test_the_crc_property_covers_all_that_precedes_it(properties: bytes) -> None:
    data = entry(properties=properties, with_crc=True)
    digits = b"%010d" % (crc32(data[:-20]) & 0x7FFFFFFF)
    assert data[-20:] == b"__CRC32#\x01" + digits[::-1] + b"\x02"
    assert decode_entry(data).properties == ({"a": "b"} if properties else {}), (
        "its user does not see it"
    )
    assert decode_entry(data).store_size == len(data)


@given(
    body=st.binary(max_size=200),
    topic=st.text(st.characters(min_codepoint=45, max_codepoint=122), min_size=1, max_size=300),
    properties=st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    numbers=st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 5),
    small=st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 3),
    with_crc=st.booleans(),
)
def test_any_entry_survives(
    body: bytes,
    topic: str,
    properties: str,
    numbers: tuple[int, ...],
    small: tuple[int, ...],
    with_crc: bool,
) -> None:
    data = entry(
        body=body,
        topic=topic.encode(),
        properties=properties.encode(),
        queue_offset=numbers[0],
        physical_offset=numbers[1],
        born_timestamp=numbers[2],
        store_timestamp=numbers[3],
        prepared_transaction_offset=numbers[4],
        queue_id=small[0],
        flag=small[1],
        reconsume_times=small[2],
        with_crc=with_crc,
    )
    message = decode_entry(b"before" + data + b"after", 6)
    assert (message.stored_body, message.topic, message.store_size) == (body, topic, len(data))
    assert (message.queue_offset, message.commit_log_offset, message.queue_id) == (
        numbers[0],
        numbers[1],
        small[0],
    )
    if not with_crc:
        assert message.properties == decode_entry(data).properties


def test_entries_back_to_back_are_read_in_order() -> None:
    data = b"".join(entry(queue_offset=number, body=bytes(number + 1)) for number in range(4))
    assert [message.queue_offset for message in decode_entries(data)] == [0, 1, 2, 3]
    assert [message.queue_offset for message in decode_entries(memoryview(data))] == [0, 1, 2, 3]
    assert list(decode_entries(b"")) == []


@pytest.mark.parametrize("as_", [bytes, memoryview])
@pytest.mark.parametrize("hosts", [V4, V6])
def test_an_entry_cut_at_any_byte_is_refused_with_one_kind_of_error(
    as_: Callable[[bytes], Any], hosts: tuple[str, int]
) -> None:
    flags = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 if hosts is V6 else 0
    whole = entry(born_host=encode_host(*hosts), store_host=encode_host(*hosts), sys_flag=flags)
    for size in range(len(whole)):
        cut = whole[:size]
        with pytest.raises(StoredMessageError):
            decode_entry(as_(cut))
        if size >= 4:  # the same bytes under a size that says they are all
            with pytest.raises(StoredMessageError):
                decode_entry(as_(size.to_bytes(4) + cut[4:]))


def test_messages_before_a_broken_one_are_given() -> None:
    messages = decode_entries(entry() + entry()[:-1])
    assert next(messages).topic == "orders"
    with pytest.raises(StoredMessageError, match="does not fit"):
        next(messages)


@given(at=st.integers(0, len(entry()) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_gives_a_message_or_that_error(at: int, bit: int) -> None:
    data = bytearray(entry())
    data[at] ^= 1 << bit
    try:
        message = decode_entry(bytes(data))
    except StoredMessageError:
        return
    assert message.stored_body == b"hello", "a body that is not what was stored never passes"


def test_a_body_that_fails_its_crc_is_refused_unless_told_not_to_look() -> None:
    broken = entry().replace(b"hello", b"hallo")
    with pytest.raises(StoredMessageError, match="fails its CRC"):
        decode_entry(broken)
    assert decode_entry(broken, check_crc=False).body == b"hallo"


def test_what_is_no_entry_is_named_by_its_magic() -> None:
    with pytest.raises(StoredMessageError, match="magic CBD43194"):
        decode_entry(struct.pack(">II", 200, 0xCBD43194) + bytes(200))


@pytest.mark.parametrize("size", [0, 1, 90, 2**31, 2**32 - 1])
def test_a_size_that_cannot_be_is_refused(size: int) -> None:
    with pytest.raises(StoredMessageError, match="does not fit"):
        decode_entry(size.to_bytes(4) + entry()[4:])


def test_a_body_size_beyond_the_entry_is_refused() -> None:
    data = bytearray(entry())
    data[84:88] = b"\xff\xff\xff\xff"
    with pytest.raises(StoredMessageError, match="a body of 4294967295 bytes"):
        decode_entry(bytes(data))


def test_properties_that_are_no_utf8_do_not_hide_a_message() -> None:
    message = decode_entry(entry(properties=b"a\x01\xff\x02TAGS\x01t\x02"))
    assert (message.body, message.tags, message.properties["a"]) == (b"hello", "t", "\ufffd")


def test_the_kind_of_message_is_the_caller_s() -> None:
    class Mine(ReceivedMessage):
        __slots__ = ()

    assert isinstance(decode_entry(entry(), message_type=Mine), Mine)


def test_hosts_are_ip_and_port_in_eight_or_twenty_bytes() -> None:
    assert encode_host("1.2.3.4", 5) == b"\x01\x02\x03\x04\x00\x00\x00\x05"
    assert len(encode_host(*V6)) == 20
    assert decode_host(encode_host(*V6)) == V6
