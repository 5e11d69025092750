"""What a message may be made of: what would be sent as something else, or fail deep inside, is
refused where it is made."""

import enum
from typing import Any

import pytest

from turbopump.errors import MessageError
from turbopump.message.message import Message


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"flag": 2**31},
            "flag=2147483648 does not fit: expected a whole number from -2147483648 to 2147483647",
        ),
        ({"flag": -(2**31) - 1}, "does not fit"),
        ({"flag": 2**40}, "does not fit"),
        ({"flag": 1.5}, "flag=1.5 does not fit"),
        ({"flag": 0.0}, "flag=0.0 does not fit"),
        ({"flag": "7"}, "flag='7' does not fit"),
        ({"flag": True}, "flag=True does not fit"),
        ({"flag": None}, "flag=None does not fit"),
        (
            {"properties": {"a": 1}},
            r"property 'a' has the value 1; names and values are text: "
            r"give str\(1\)",
        ),
        ({"properties": {"a": ["b"]}}, "property 'a' has the value"),
        ({"properties": {1: "a"}}, "property 1 has the value 'a'"),
        ({"properties": 5}, "properties=5 is not a mapping"),
        ({"properties": "ab"}, "properties='ab' is not a mapping"),
        ({"keys": 42}, "keys=42 are not keys: expected one str, or several"),
        ({"keys": [1, 2]}, r"keys=\[1, 2\] are not keys"),
        ({"keys": b"k"}, "keys=b'k' are not keys"),
        ({"tags": 5}, "tags=5 is not a tag: expected one str"),
        ({"tags": ["a", "b"]}, "is not a tag"),
        ({"tags": 0}, "tags=0 is not a tag: expected one str"),
        ({"tags": False}, "tags=False is not a tag"),
        ({"keys": 0}, "keys=0 are not keys"),
        ({"properties": 0}, "properties=0 is not a mapping"),
        ({"wait_store_ok": "no"}, "wait_store_ok='no' must be True or False"),
        ({"wait_store_ok": None}, "wait_store_ok=None must be True or False"),
    ],
)
def test_what_no_message_can_be_made_of_is_refused_in_a_sentence(
    settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(MessageError, match=told):
        Message("orders", b"x", **settings)


@pytest.mark.parametrize("body", [3, 0, 1.5, None, [65, 66], {"a": 1}, True])
def test_a_body_that_is_neither_bytes_nor_text_is_refused(body: Any) -> None:
    with pytest.raises(
        MessageError, match=f"a body is bytes or a str, not {type(body).__name__}; encode it first"
    ):
        Message("orders", body)


def test_a_body_that_cannot_be_written_as_unicode_says_where_it_cannot() -> None:
    with pytest.raises(
        MessageError,
        match=r"body='tea\\ud83c' has a lone surrogate at 3, which is not text; "
        r"give valid Unicode",
    ):
        Message("orders", "tea\ud83c")


@pytest.mark.parametrize("topic", [5, None, b"orders", ["orders"]])
def test_a_topic_that_is_no_text_is_refused_where_the_message_is_made(topic: Any) -> None:
    with pytest.raises(
        MessageError,
        match=r"topic=.* is not a topic: expected its name, such as "
        r"'orders'",
    ):
        Message(topic, b"x")


@pytest.mark.parametrize("body", [b"abc", "abc", bytearray(b"abc"), memoryview(b"abc")])
def test_a_body_is_bytes_text_or_a_buffer(body: Any) -> None:
    made = Message("orders", body).body
    assert (made, type(made)) == (b"abc", bytes)


def test_every_flag_of_32_bits_is_taken() -> None:
    class Kind(enum.IntEnum):
        PAID = 7

    made = [
        Message("orders", b"x", flag=flag).flag for flag in (0, 5, -(2**31), 2**31 - 1, Kind.PAID)
    ]
    assert made == [0, 5, -(2**31), 2**31 - 1, 7]
    assert all(type(flag) is int for flag in made)


def test_keys_are_one_or_several_and_empty_ones_are_none() -> None:
    assert Message("orders", b"x", keys="a").keys == ["a"]
    assert Message("orders", b"x", keys=(key for key in "ab")).keys == ["a", "b"]
    assert Message("orders", b"x", keys=[], tags="", properties={}).properties == {}
