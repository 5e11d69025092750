"""Topics as brokers keep and announce them: one topic's settings, the versioned table, and lists of
names.

One rule: a table travels with its `DataVersion`, and whoever changes the table takes the next
version. It must not know where a table is stored or sent.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from turbopump.message.integers import Int32, Int64
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.static_topics import TopicQueueMappingDetail, TopicQueueMappingInfo

PERM_PRIORITY = 8
PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1


class DataVersion(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """How new a table is. Equal only if all three agree, as in Apache's."""

    counter: Int64 = 0
    state_version: Int64 = 0
    timestamp: Int64 = 0

    def next(self, now_ms: int, state_version: int = 0) -> DataVersion:
        """The version after one change at `now_ms` (epoch milliseconds)."""
        return DataVersion(counter=self.counter + 1, state_version=state_version, timestamp=now_ms)


class TopicFilterType(StrEnum):
    """A left-over of the 3.x filter; every topic is SINGLE_TAG."""

    SINGLE_TAG = "SINGLE_TAG"
    MULTI_TAG = "MULTI_TAG"


class TopicConfig(msgspec.Struct, kw_only=True, rename="camel"):
    """One topic on one broker. `perm` is a sum of the PERM bits above; `attributes` hold
    `message.type`, `queue.type`, `cleanup.policy` and the like (5.x)."""

    topic_name: str | None = None
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = PERM_READ | PERM_WRITE
    topic_filter_type: TopicFilterType = TopicFilterType.SINGLE_TAG
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def readable(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)

    def encode_line(self) -> str:
        """The six words of a compressed registration (a 4.x broker writes five). `order` and
        `topic_sys_flag` are not among them: RocketMQ loses them there."""
        words = (
            self.topic_name,
            self.read_queue_nums,
            self.write_queue_nums,
            self.perm,
            self.topic_filter_type,
        )
        return f"{' '.join(map(str, words))} {fastjson.encode(self.attributes).decode()}"

    @classmethod
    def decode_line(cls, line: str) -> TopicConfig:
        """Read those words. FastjsonError if there are fewer than five or they are no numbers;
        attributes with a space in them are dropped, as in Apache's reader."""
        words = line.split(" ")
        if len(words) < 5:
            raise fastjson.FastjsonError(
                f"a topic line of {len(words)} words, 5 are needed: {line[:80]!r}"
            )
        values = dict(
            zip(("topicName", "readQueueNums", "writeQueueNums", "perm"), words, strict=False)
        )
        values["topicFilterType"] = words[4]
        try:
            topic = msgspec.convert(values, cls, strict=False)
        except msgspec.ValidationError as error:
            raise fastjson.FastjsonError(f"an unusable topic line {line[:80]!r}: {error}") from None
        if len(words) > 5:
            try:
                topic.attributes = fastjson.decode(words[5].encode(), dict[str, str])
            except fastjson.FastjsonError:
                topic.attributes = {}
        return topic


class TopicConfigSerializeWrapper(msgspec.Struct, kw_only=True, rename="camel"):
    """All topics of a broker: the file `topics.json` and the answer to 21."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = msgspec.field(default_factory=dict)


class TopicConfigAndMappingSerializeWrapper(
    TopicConfigSerializeWrapper, kw_only=True, rename="camel"
):
    """The same with static topics, as a 5.x broker registers it."""

    mapping_data_version: DataVersion = DataVersion()
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] = msgspec.field(
        default_factory=dict
    )
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] = msgspec.field(
        default_factory=dict
    )


class TopicList(msgspec.Struct, kw_only=True, rename="camel"):
    """Names of topics (206, 224, 304, …); `broker_addr` only where one broker was asked."""

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


class TopicConfigAndQueueMapping(TopicConfig, kw_only=True, rename="camel"):
    """One topic with its static mapping, if it has one (351)."""

    mapping_detail: TopicQueueMappingDetail | None = None


class CreateTopicListRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Topics to create or change at once (18)."""

    topic_config_list: list[TopicConfig] = msgspec.field(default_factory=list)
