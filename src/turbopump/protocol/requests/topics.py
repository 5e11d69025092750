"""Requests about the topics of a broker.

- 17 UPDATE_AND_CREATE_TOPIC, 18 UPDATE_AND_CREATE_TOPIC_LIST, 215 DELETE_TOPIC_IN_BROKER
- 351 GET_TOPIC_CONFIG, 21 GET_ALL_TOPIC_CONFIG, 305 GET_SYSTEM_TOPIC_LIST_FROM_BROKER
- 202 GET_TOPIC_STATS_INFO
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from turbopump.message.java import Int32, Int64
from turbopump.message.message import MessageQueue
from turbopump.protocol import fastjson
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request
from turbopump.struct_decoders import convert


class CreateTopic(Request[None], kw_only=True):
    """Create a topic on one broker, or change its settings.

    - ``perm``: sum of bits, 4 read, 2 write, 1 inherit.
    - ``attributes``: text of the form ``+key=value,-key``.
    - ``if_absent``: ours. It creates the topic as a send to it would, and leaves an existing topic
      unchanged. Apache's brokers ignore this field.
    """

    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    topic: str
    default_topic: str = "TBW102"
    read_queue_nums: Int32 = 8
    write_queue_nums: Int32 = 8
    perm: Int32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None
    if_absent: bool | None = None


class DeleteTopic(Request[None], kw_only=True):
    """Delete a topic on one broker, with its settings, its queues and the offsets of groups."""

    code = RequestCode.DELETE_TOPIC_IN_BROKER
    topic: str


class GetAllTopicConfigReply(Reply, kw_only=True):
    """Reply to GET_ALL_TOPIC_CONFIG (21). The topics are in the body.

    Brokers before 5.3.4 do not send the header field.
    """

    total_topic_num: Int32 | None = None


class GetAllTopicConfig(Request[GetAllTopicConfigReply], kw_only=True):
    """Ask a broker for the settings of all topics."""

    code = RequestCode.GET_ALL_TOPIC_CONFIG
    topic_seq: Int32 | None = None
    max_topic_num: Int32 | None = None
    data_version: str | None = None
    known_version: str | None = None
    held: bool | None = None
    """``known_version`` and ``held`` are ours: see ``replication.py``."""


# Topics as brokers store and register them: the settings of one topic, the versioned table, and
# lists of names. A table travels with its `DataVersion`, and every change of the table takes the
# next version.
PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1
QUEUES_MAX = 65_535
"""Maximum number of a topic's read queues, or write queues, on one broker. Apache's brokers have no
maximum. One large number in a small body would then make a reader count to two billion."""
FLAG_UNIT = 1
FLAG_UNIT_SUB = 2
"""``FLAG_UNIT`` and ``FLAG_UNIT_SUB`` are bits of `topicSysFlag`: the topic was created in unit
mode by a producer, or for a consumer (apache/rocketmq `TopicSysFlag`)."""


class DataVersion(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Version of a table of a broker. Two versions are equal only if all three fields are equal.

    ``state_version`` is the epoch of the master, 0 without a controller. Name servers prefer the
    broker with the larger one.
    """

    counter: Int64 = 0
    state_version: Int64 = 0
    timestamp: Int64 = 0

    def next(self, now_ms: int, state_version: int | None = None) -> DataVersion:
        """Return the version of the table after one change at `now_ms`, in ms since 1970.

        None keeps the state version.
        """
        if state_version is None:
            state_version = self.state_version
        return DataVersion(counter=self.counter + 1, state_version=state_version, timestamp=now_ms)


class TopicFilterType(StrEnum):
    """Filter type of a topic, left over from RocketMQ 3.x. Every topic is SINGLE_TAG."""

    SINGLE_TAG = "SINGLE_TAG"
    MULTI_TAG = "MULTI_TAG"


class TopicConfig(msgspec.Struct, kw_only=True, rename="camel", gc=False):
    """Settings of one topic on one broker.

    `perm` is a sum of the PERM bits above. `attributes` contains `message.type`, `queue.type`,
    `cleanup.policy` and others (5.x).
    """

    topic_name: str | None = None
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = PERM_READ | PERM_WRITE
    topic_filter_type: TopicFilterType = TopicFilterType.SINGLE_TAG
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] = {}

    @property
    def readable(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)

    def queues_fault(self) -> str | None:
        """Return a text if a number of queues is out of range, else None."""
        return queues_fault(self.read_queue_nums, self.write_queue_nums)

    @classmethod
    def decode_line(cls, line: str) -> TopicConfig:
        """Decode a topic from its line of five or six words in a compressed registration.

        Attributes that contain a space are dropped, as in Apache's reader. Raises FastjsonError if
        there are fewer than five words, or if a number is invalid.
        """
        words = line.split(" ")
        if len(words) < 5:
            raise fastjson.FastjsonError(
                f"a topic line of {len(words)} words, 5 are needed: {line[:80]!r}"
            )
        names = ("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType")
        values = dict(zip(names, words, strict=False))
        try:
            topic = convert(values, cls)
        except msgspec.ValidationError as error:
            raise fastjson.FastjsonError(f"an unusable topic line {line[:80]!r}: {error}") from None
        if len(words) > 5 and words[5] != "{}":
            try:
                topic.attributes = fastjson.decode(words[5].encode(), dict[str, str])
            except fastjson.FastjsonError:
                topic.attributes = {}
        return topic


def queues_fault(read: int, write: int) -> str | None:
    """Check both numbers of queues. Return a text about a number out of range, or None.

    This takes 0.2 µs.
    """
    if 0 <= read <= QUEUES_MAX and 0 <= write <= QUEUES_MAX:
        return None
    name, value = "readQueueNums", read
    if 0 <= read <= QUEUES_MAX:
        name, value = "writeQueueNums", write
    return f"{name} is {value}; give a number from 0 to {QUEUES_MAX}"


class TopicConfigSerializeWrapper(msgspec.Struct, kw_only=True, rename="camel"):
    """All topics of a broker, as in the file `topics.json` and the reply to 21."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}


class TopicConfigAndMappingSerializeWrapper(
    TopicConfigSerializeWrapper, kw_only=True, rename="camel"
):
    """All topics of a broker and the mappings of static topics, as a 5.x broker registers them."""

    mapping_data_version: DataVersion = DataVersion()
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] = {}
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] = {}


class TopicList(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply with names of topics (206, 224, 304, …).

    `broker_addr` is the address of one broker, in the reply to 304 only.
    """

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


class TopicConfigAndQueueMapping(TopicConfig, kw_only=True, rename="camel"):
    """Reply to GET_TOPIC_CONFIG (351) with one topic, and its mapping if the topic is static."""

    mapping_detail: TopicQueueMappingDetail | None = None


class GetSystemTopicsOfBroker(Request[TopicList], kw_only=True):
    """Ask a broker for the names of its system topics."""

    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER


class GetTopicConfig(Request[TopicConfigAndQueueMapping], kw_only=True):
    """Ask a broker for the settings of one topic."""

    code = RequestCode.GET_TOPIC_CONFIG
    topic: str


class CreateTopicListRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Body of UPDATE_AND_CREATE_TOPIC_LIST (18) with the topics to create or change."""

    topic_config_list: list[TopicConfig] = []


class CreateTopicList(Request[None], kw_only=True):
    """Create several topics on one broker, or change their settings.

    Attributes have the form ``{"+name": "value"}``.
    """

    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    body = CreateTopicListRequestBody


# Mapping of a static topic's logical queues to physical queues of brokers, a part of routes and
# registrations.
class TopicQueueMappingInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Part of a static topic on one broker.

    `curr_id_map` is logical queue id -> physical queue id.
    """

    topic: str | None = None
    scope: str | None = "__global__"
    total_queues: Int32 = 0
    bname: str | None = None
    epoch: Int64 = 0
    dirty: bool = False
    curr_id_map: dict[int, int] | None = {}


class LogicQueueMappingItem(msgspec.Struct, kw_only=True, rename="camel"):
    """Physical queue for a part of a logical queue: the messages from one offset on.

    Each move of the logical queue begins a new generation, ``gen``. `logic_offset` is −1 until it
    is decided. `end_offset` is exclusive, and −1 while the generation is open.
    """

    gen: Int32 = 0
    queue_id: Int32 = 0
    bname: str | None = None
    logic_offset: Int64 = 0
    start_offset: Int64 = 0
    end_offset: Int64 = -1
    time_of_start: Int64 = -1
    time_of_end: Int64 = -1


class TopicQueueMappingDetail(TopicQueueMappingInfo, kw_only=True, rename="camel"):
    """Part of a static topic on one broker, with the whole history of its queues."""

    hosted_queues: dict[int, list[LogicQueueMappingItem]] | None = {}


class TopicOffset(msgspec.Struct, kw_only=True, rename="camel"):
    """State of a queue: the offsets of the first and the next message, and the store time of the
    last message."""

    min_offset: Int64 = 0
    max_offset: Int64 = 0
    last_update_timestamp: Int64 = 0


class TopicStatsTable(msgspec.Struct, kw_only=True, rename="camel"):
    """Reply to GET_TOPIC_STATS_INFO (202) with the offsets of all queues of a topic."""

    topic_put_tps: float = 0.0
    offset_table: dict[MessageQueue, TopicOffset] = {}


class GetTopicStatsInfo(Request[TopicStatsTable], kw_only=True):
    """Ask a broker for the offsets of all queues of a topic."""

    code = RequestCode.GET_TOPIC_STATS_INFO
    topic: str
