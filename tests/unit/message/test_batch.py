"""Batch bodies: there and back, and every way in which their lengths can lie."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbopump.errors import MessageError, ProtocolError
from turbopump.message.batch import BatchItem, decode_batch, encode_batch
from turbopump.message.message import Message


def test_a_batch_lies_in_bytes_as_apache_writes_it() -> None:
    batch = encode_batch([Message("T", b"ab", tags="t", flag=9)])
    assert batch == struct.pack(">iiiii", 31, 0, 0, 9, 2) + b"ab" + b"\x00\x07TAGS\x01t\x02"


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=50),
            st.integers(-(2**31), 2**31 - 1),
            st.text("abc", min_size=1, max_size=9),
        )
    )
)
def test_any_batch_survives(parts: list[tuple[bytes, int, str]]) -> None:
    messages = [
        Message("T", body, flag=flag, properties={"p": value}) for body, flag, value in parts
    ]
    assert decode_batch(encode_batch(messages)) == [
        BatchItem(flag, body, f"p\x01{value}\x02".encode()) for body, flag, value in parts
    ]


def test_a_batch_cut_anywhere_but_between_messages_is_refused() -> None:
    one = encode_batch([Message("T", b"first", tags="a")])
    batch = one + encode_batch([Message("T", b"second")])
    for size in range(len(batch)):
        if size in (0, len(one)):
            assert len(decode_batch(batch[:size])) == size // len(one)
            continue
        with pytest.raises(ProtocolError, match="a batch message at byte"):
            decode_batch(batch[:size])


def item(size: int, body_size: int, body: bytes = b"", properties: bytes = b"\x00\x00") -> bytes:
    return struct.pack(">iiiii", size, 0, 0, 0, body_size) + body + properties


@pytest.mark.parametrize(
    "lie",
    [
        item(0, 0),
        item(21, 0),
        item(-1, 0),
        item(-(2**31), 0),
        item(2**31 - 1, 0),
        item(22, -1),
        item(22, 1),
        item(22, 2**31 - 1),
        item(22, -(2**31)),
        item(22, 0, properties=b"\x00\x01"),
        item(22, 0, properties=b"\xff\xff"),
    ],
)
def test_lengths_that_do_not_add_up_are_refused(lie: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_batch(lie)


@given(st.binary(max_size=120))
def test_random_bytes_are_read_or_refused_and_nothing_else(data: bytes) -> None:
    try:
        items = decode_batch(data)
    except ProtocolError:
        return
    assert sum(22 + len(item.body) + len(item.properties) for item in items) <= len(data)


def test_properties_too_long_for_their_length_field_are_refused_before_sending() -> None:
    with pytest.raises(MessageError, match="32767 are allowed"):
        encode_batch([Message("T", b"x", properties={"p": "v" * 32767})])
