"""Writer of registrations in the compressed form, as a broker of Apache's writes them."""

from __future__ import annotations

import zlib

from turbopump.protocol import fastjson
from turbopump.protocol.requests.namesrv import RegisterBrokerBody
from turbopump.protocol.requests.topics import TopicConfig


def encode_compressed(body: RegisterBrokerBody) -> bytes:
    """Return the compressed form of a registration, as a 5.x broker writes it."""
    wrapper = body.topic_config_serialize_wrapper
    topics = list(wrapper.topic_config_table.values())
    mappings = list(wrapper.topic_queue_mapping_info_map.values())
    pieces = [sized(fastjson.encode(wrapper.data_version)), len(topics).to_bytes(4)]
    pieces += [sized(_line(topic).encode()) for topic in topics]
    pieces += [sized(fastjson.encode(body.filter_server_list)), len(mappings).to_bytes(4)]
    pieces += [sized(fastjson.encode(mapping)) for mapping in mappings]
    return zlib.compress(b"".join(pieces), zlib.Z_BEST_COMPRESSION)


def sized(data: bytes) -> bytes:
    """Return the data behind its length."""
    return len(data).to_bytes(4) + data


def _line(topic: TopicConfig) -> str:
    """Return the six words of a topic (a 4.x broker writes five). `order` and `topic_sys_flag` are
    lost here, as with Apache's."""
    queues = f"{topic.read_queue_nums} {topic.write_queue_nums} {topic.perm}"
    attributes = fastjson.encode(topic.attributes).decode()
    return f"{topic.topic_name} {queues} {topic.topic_filter_type} {attributes}"
