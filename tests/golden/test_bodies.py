"""JSON bodies, compressed registrations and config files as Apache's own classes wrote them."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from tests.golden.recorded import FIVE, FOUR, Recorded, described, of_kind
from tests.loops import outcome_of
from tests.unit.protocol.compressed_registration import encode_compressed

from turbopump.message.codec import body_crc32
from turbopump.protocol import fastjson
from turbopump.protocol.codes import V5_0_0
from turbopump.protocol.requests import (
    assignment,
    clients,
    consumers,
    groups,
    namesrv,
    offsets,
    replication,
    statistics,
    topics,
)

MODULES = (
    assignment,
    clients,
    consumers,
    groups,
    namesrv,
    offsets,
    replication,
    statistics,
    topics,
)
APACHES_NAMES = {
    "ConsumerOffsetSerializeWrapper": "ConsumerOffsetTable",
    "DelayOffsetSerializeWrapper": "DelayOffsetTable",
    "GetBrokerMemberGroupResponseBody": "BrokerMemberGroupBody",
    "GetConsumerListByGroupResponseBody": "ConsumerIdList",
    "UnlockBatchRequestBody": "LockBatchRequestBody",
}
"""Where ours has another name than Apache's."""
WRITERS = {
    "body": fastjson.encode,
    "body-standard": fastjson.encode_standard,
    "config": fastjson.encode_indented,
}


def body_type(recorded: Recorded) -> Any:
    name = APACHES_NAMES.get(recorded["type"], recorded["type"])
    (found,) = {vars(module)[name] for module in MODULES if name in vars(module)}
    return found


@pytest.mark.parametrize("recorded", of_kind("body", "body-standard", "config", apache=FIVE))
def test_a_body_of_apaches_is_read_and_written_back_to_the_same_bytes(recorded: Recorded) -> None:
    value = fastjson.decode(recorded.bytes, body_type(recorded))
    assert described(value) == recorded["value"]
    assert WRITERS[recorded.kind](value) == recorded.bytes


@pytest.mark.parametrize("recorded", of_kind("body", "config", apache=FOUR))
def test_a_body_of_a_4_9_peer_is_read_with_defaults_for_what_it_lacks(recorded: Recorded) -> None:
    wanted = body_type(recorded)
    value = fastjson.decode(recorded.bytes, wanted)
    assert_holds(described(value), recorded["value"])
    again = fastjson.decode(WRITERS[recorded.kind](value), wanted)
    assert again == value


@pytest.mark.parametrize("recorded", of_kind("register-compressed"))
def test_a_compressed_registration_is_read_as_apaches_name_server_reads_it(
    recorded: Recorded,
) -> None:
    with_mappings = recorded["version"] >= V5_0_0
    body = outcome_of(
        namesrv.RegisterBrokerBody.decode_compressed(recorded.bytes, with_mappings=with_mappings)
    )
    assert_holds(described(body), recorded["value"])
    assert body_crc32(recorded.bytes) == recorded["bodyCrc32"]


@pytest.mark.parametrize("recorded", of_kind("register-compressed", apache=FIVE))
def test_a_compressed_registration_is_written_back_to_the_same_content(recorded: Recorded) -> None:
    """The content, not the zlib stream: two releases of zlib may deflate the same bytes
    differently."""
    body = outcome_of(
        namesrv.RegisterBrokerBody.decode_compressed(recorded.bytes, with_mappings=True)
    )
    again = encode_compressed(body)
    assert namesrv.inflate(again) == namesrv.inflate(recorded.bytes)


@pytest.mark.parametrize("recorded", of_kind("fastjson", "fastjson-standard"))
def test_texts_are_escaped_as_fastjson_escapes_them(recorded: Recorded) -> None:
    writer = fastjson.encode if recorded.kind == "fastjson" else fastjson.encode_standard
    assert writer(recorded["value"]) == recorded.bytes
    assert fastjson.parse(recorded.bytes) == recorded["value"]


@pytest.mark.parametrize("recorded", of_kind("double"))
def test_doubles_are_written_as_java_writes_them(recorded: Recorded) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(recorded["bits"].rjust(16, "0")))
    assert fastjson.encode(value).decode() == recorded["text"]
    assert fastjson.parse(recorded["text"].encode()) == value


def assert_holds(ours: Any, theirs: Any) -> None:
    """Everything in `theirs` is in `ours`; ours may have more members in its objects."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict)
        for name, item in theirs.items():
            assert_holds(ours.get(name), item)
    elif isinstance(theirs, list):
        assert isinstance(ours, list)
        assert len(ours) == len(theirs)
        for mine, item in zip(ours, theirs, strict=True):
            assert_holds(mine, item)
    else:
        assert ours == theirs
