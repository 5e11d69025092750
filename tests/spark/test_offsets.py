"""The checkpoint's JSON: one text for one place, read back as it was, for ever."""

from __future__ import annotations

import json

import pytest

from turbopump.errors import ConfigError
from turbopump.message.message import MessageQueue
from turbopump.spark.offsets import decode_offsets, encode_offsets

PLACES = {
    MessageQueue("U", "b", 0): 7,
    MessageQueue("T", "broker-b", 10): 2,
    MessageQueue("T", "broker-b", 9): 1,
}


def test_version_1_is_this_text() -> None:
    assert json.dumps(encode_offsets(PLACES)) == (
        '{"v": 1, "topics": {"T": {"broker-b": {"9": 1, "10": 2}}, "U": {"b": {"0": 7}}}}'
    )


def test_the_order_in_which_queues_were_seen_does_not_show() -> None:
    assert json.dumps(encode_offsets(PLACES)) == json.dumps(
        encode_offsets(dict(reversed(PLACES.items())))
    )


def test_what_is_written_is_read_back() -> None:
    assert decode_offsets(encode_offsets(PLACES)) == PLACES
    assert decode_offsets(json.dumps(encode_offsets({}))) == {}


def test_a_checkpoint_of_a_later_version_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="the checkpoint has version 2; this turbopump reads version 1"
    ):
        decode_offsets({"v": 2, "queues": []})


def test_earliest_and_latest_never_stand_in_a_checkpoint() -> None:
    with pytest.raises(ConfigError, match="the offset -1"):
        decode_offsets({"v": 1, "topics": {"T": {"b": {"0": -1}}}})
