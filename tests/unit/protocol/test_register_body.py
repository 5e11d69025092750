"""Registrations in the compressed form: what is lost there, and what is refused."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loops import outcome_of
from tests.unit.protocol.compressed_registration import encode_compressed, sized

from turbopump.message.codec import body_crc32
from turbopump.protocol.fastjson import FastjsonError
from turbopump.protocol.requests.namesrv import MAX_INFLATED, RegisterBrokerBody
from turbopump.protocol.requests.topics import DataVersion, TopicConfig, TopicQueueMappingInfo


def read_compressed(data: bytes, *, with_mappings: bool) -> RegisterBrokerBody:
    return outcome_of(RegisterBrokerBody.decode_compressed(data, with_mappings=with_mappings))


def body(*topics: TopicConfig) -> RegisterBrokerBody:
    made = RegisterBrokerBody(filter_server_list=["127.0.0.1:1"])
    wrapper = made.topic_config_serialize_wrapper
    wrapper.data_version = DataVersion(counter=2, state_version=1, timestamp=1700000000000)
    for topic in topics:
        wrapper.topic_config_table[topic.topic_name or ""] = topic
    wrapper.topic_queue_mapping_info_map["s"] = TopicQueueMappingInfo(topic="s", curr_id_map={0: 1})
    return made


def test_a_registration_comes_back_from_its_compressed_form() -> None:
    made = body(
        TopicConfig(topic_name="a", attributes={"+message.type": "FIFO"}),
        TopicConfig(topic_name="b", perm=4),
    )
    assert (
        outcome_of(
            RegisterBrokerBody.decode_compressed(encode_compressed(made), with_mappings=True)
        )
        == made
    )
    assert RegisterBrokerBody.decode(made.encode()) == made


def test_order_and_sys_flag_are_lost_in_the_compressed_form() -> None:
    made = body(TopicConfig(topic_name="a", order=True, topic_sys_flag=3))
    read = outcome_of(
        RegisterBrokerBody.decode_compressed(encode_compressed(made), with_mappings=True)
    )
    assert read.topic_config_serialize_wrapper.topic_config_table["a"] == TopicConfig(
        topic_name="a"
    )


def test_attributes_with_a_space_are_dropped_as_apache_drops_them() -> None:
    assert TopicConfig.decode_line('a 1 2 6 SINGLE_TAG {"k":"x y"}') == TopicConfig(
        topic_name="a", read_queue_nums=1, write_queue_nums=2
    )


def test_a_line_of_a_4_x_broker_has_five_words() -> None:
    assert TopicConfig.decode_line("a 1 2 4 MULTI_TAG").perm == 4
    assert TopicConfig.decode_line("a 1 2 4 MULTI_TAG").attributes == {}


@pytest.mark.parametrize(
    "line",
    ["", "a", "a 1 2 6", "a x 2 6 SINGLE_TAG", "a 1 2 6 OTHER", "a 1 99999999999 6 SINGLE_TAG"],
)
def test_a_topic_line_that_is_none_is_refused(line: str) -> None:
    with pytest.raises(FastjsonError, match="topic line"):
        TopicConfig.decode_line(line)


def test_the_mapping_section_may_be_missing_only_for_old_versions() -> None:
    content = sized(b'{"counter":1}') + (0).to_bytes(4) + sized(b"[]")
    old = outcome_of(
        RegisterBrokerBody.decode_compressed(zlib.compress(content), with_mappings=False)
    )
    assert old.topic_config_serialize_wrapper.data_version == DataVersion(counter=1)
    with pytest.raises(FastjsonError, match="inside a part"):
        read_compressed(zlib.compress(content), with_mappings=True)


def test_a_bomb_is_not_inflated() -> None:
    bomb = zlib.compress(b"\0" * (MAX_INFLATED + 1), 9)
    assert len(bomb) < 64 * 1024
    with pytest.raises(FastjsonError, match="inflates to more"):
        read_compressed(bomb, with_mappings=True)


@pytest.mark.parametrize("count", [1, 2**31 - 1, -1])
def test_a_count_without_its_topics_is_refused(count: int) -> None:
    content = sized(b"{}") + count.to_bytes(4, signed=True) + b"\xff\xff\xff\xff"
    with pytest.raises(FastjsonError):
        outcome_of(
            RegisterBrokerBody.decode_compressed(zlib.compress(content), with_mappings=False)
        )


@given(st.binary(max_size=200), st.integers(0, 400), st.booleans())
def test_a_damaged_stream_is_read_or_refused_with_the_one_error(
    damage: bytes, at: int, deflate: bool
) -> None:
    whole = bytearray(encode_compressed(body(TopicConfig(topic_name="a"))))
    whole[at : at + len(damage)] = damage
    data = zlib.compress(bytes(damage)) if deflate else bytes(whole)
    try:
        read = read_compressed(data, with_mappings=True)
    except FastjsonError:
        return
    assert isinstance(read, RegisterBrokerBody)


def test_the_checksum_has_no_top_bit() -> None:
    assert body_crc32(b"a") == zlib.crc32(b"a") & 0x7FFFFFFF
    assert body_crc32(b"a") != zlib.crc32(b"a")


def test_a_data_version_equals_another_only_in_all_three_parts() -> None:
    first = DataVersion(counter=1, state_version=2, timestamp=3)
    later = first.next(now_ms=9, state_version=2)
    assert later == DataVersion(counter=2, state_version=2, timestamp=9)
    assert first != DataVersion(counter=1, state_version=0, timestamp=3)
