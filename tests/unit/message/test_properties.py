"""Property texts: pairs to text and back, and one value out of a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbopump.errors import MessageError
from turbopump.message.message import Message
from turbopump.message.properties import decode_properties, encode_properties, property_value

PIECES = st.text("aA\x01\x02", max_size=24)


def test_pairs_are_separated_by_one_and_two() -> None:
    assert encode_properties({"a": "1", "b": ""}) == "a\x011\x02b\x01\x02"


@given(st.dictionaries(st.text("abc é", min_size=1), st.text("abc é", min_size=1)))
def test_properties_survive(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


def test_the_last_pair_may_lack_its_end_and_a_name_given_twice_counts_last() -> None:
    assert decode_properties("a\x011\x02b\x012\x02a\x013") == {"a": "3", "b": "2"}


@pytest.mark.parametrize(
    "text", ["", "\x02", "\x02\x02", "no pair", "no pair\x02", "\x01value\x02", "name\x01\x02"]
)
def test_pieces_that_are_no_pairs_are_passed_over(text: str) -> None:
    assert decode_properties(text) == {}


@given(PIECES, st.text("aA", min_size=1, max_size=3))
def test_one_value_is_found_without_decoding_as_it_would_be_with(text: str, name: str) -> None:
    assert property_value(text, name) == decode_properties(text).get(name)


@given(PIECES)
def test_what_was_read_can_be_written_again(text: str) -> None:
    """A value may hold U+0001, as clients in C++ nest property texts."""
    properties = decode_properties(text)
    assert decode_properties(encode_properties(properties)) == properties


def test_a_new_value_with_the_end_of_a_name_is_refused() -> None:
    with pytest.raises(MessageError, match="which separate properties"):
        Message("T", b"x", properties={"a": "b\x01c"})


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a\x02": "b"}, {"a": "b\x02"}])
def test_separators_inside_a_property_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(MessageError, match="which separate properties"):
        encode_properties(properties)
