"""A broker's registration (103): its topics, as JSON or in the compressed binary form, and the
checksum over both.

    compressed = one zlib stream of
    ┌──────────────┬───────────┬───────────────────────┬─────────────────┬──────────────────────────────┐
    │ 4 length     │ 4 count   │ count × (4 length,    │ 4 length        │ 4 count, count × (4 length,  │
    │ DataVersion  │ of topics │ line of 5 or 6 words) │ filter servers  │ TopicQueueMappingInfo JSON)  │
    │ as JSON      │           │                       │ as a JSON array │ from version 5.0.0 on        │
    └──────────────┴───────────┴───────────────────────┴─────────────────┴──────────────────────────────┘

One rule: nothing is inflated or read beyond the bounds. It must not know what a name server does
with it. Source: apache/rocketmq `RegisterBrokerBody`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from turbopump.protocol import fastjson
from turbopump.protocol.bodies.static_topics import TopicQueueMappingInfo
from turbopump.protocol.bodies.topics import (
    DataVersion,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)
from turbopump.protocol.fastjson import FastjsonError

MAX_INFLATED = 32 << 20
"""Most bytes a compressed registration may inflate to: room for a quarter of a million topics."""

T = TypeVar("T")


class KVTable(msgspec.Struct, kw_only=True, rename="camel"):
    """A table of texts: the order-topic configuration in the answer to 103, 219, and the runtime
    figures of 28."""

    table: dict[str, str] = msgspec.field(default_factory=dict)


class RegisterBrokerBody(msgspec.Struct, kw_only=True, rename="camel"):
    """What a broker announces: all its topics (or, right after a change, the changed ones
    alone)."""

    topic_config_serialize_wrapper: TopicConfigAndMappingSerializeWrapper = msgspec.field(
        default_factory=TopicConfigAndMappingSerializeWrapper
    )
    filter_server_list: list[str] = msgspec.field(default_factory=list)

    def encode(self) -> bytes:
        """The JSON form."""
        return fastjson.encode(self)

    def encode_compressed(self) -> bytes:
        """The compressed form, as a 5.x broker writes it."""
        wrapper = self.topic_config_serialize_wrapper
        topics = list(wrapper.topic_config_table.values())
        mappings = list(wrapper.topic_queue_mapping_info_map.values())
        pieces = [_sized(fastjson.encode(wrapper.data_version)), _int(len(topics))]
        pieces += [_sized(topic.encode_line().encode()) for topic in topics]
        pieces += [_sized(fastjson.encode(self.filter_server_list)), _int(len(mappings))]
        pieces += [_sized(fastjson.encode(mapping)) for mapping in mappings]
        return zlib.compress(b"".join(pieces), zlib.Z_BEST_COMPRESSION)

    @classmethod
    def decode(cls, data: bytes) -> RegisterBrokerBody:
        """Read the JSON form; FastjsonError if it is none."""
        return fastjson.decode(data, cls)

    @classmethod
    def decode_compressed(cls, data: bytes, *, with_mappings: bool) -> RegisterBrokerBody:
        """Read the compressed form; `with_mappings` if the sender's version is 5.0.0 or later.
        FastjsonError for a stream that is damaged, too short or too long."""
        pieces = _Pieces(inflate(data))
        wrapper = TopicConfigAndMappingSerializeWrapper()
        wrapper.data_version = fastjson.decode(pieces.sized(), DataVersion)
        for line in pieces.counted():
            topic = TopicConfig.decode_line(line.decode("utf-8", "replace"))
            assert topic.topic_name is not None, "decode_line always finds one"
            wrapper.topic_config_table[topic.topic_name] = topic
        filter_servers = _list_or_empty(pieces.sized())
        if with_mappings:
            for text in pieces.counted():
                mapping = fastjson.decode(text, TopicQueueMappingInfo)
                wrapper.topic_queue_mapping_info_map[mapping.topic or ""] = mapping
        return cls(topic_config_serialize_wrapper=wrapper, filter_server_list=filter_servers)


def inflate(data: bytes) -> bytes:
    """The content of a compressed registration; FastjsonError if it is damaged or beyond
    MAX_INFLATED."""
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(data, MAX_INFLATED)
    except zlib.error as error:
        raise FastjsonError(f"a compressed registration that does not inflate: {error}") from None
    if stream.unconsumed_tail:
        raise FastjsonError(
            f"a compressed registration that inflates to more than {MAX_INFLATED} bytes"
        )
    return inflated


def _list_or_empty(text: bytes) -> list[str]:
    try:
        return fastjson.decode(text, list[str])
    except FastjsonError:  # RocketMQ: an unreadable list is logged and left empty
        return []


class _Pieces:
    """Reads counts and length-prefixed texts off one buffer."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise FastjsonError(
                f"a compressed registration ends at byte {len(self.data)}, inside a part"
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def int(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def sized(self) -> bytes:
        return self.take(self.int())

    def counted(self) -> Iterator[bytes]:
        for _ in range(self.int()):
            yield self.sized()


def _int(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _sized(data: bytes) -> bytes:
    return _int(len(data)) + data
