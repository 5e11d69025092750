"""Topics on a broker: 17 UPDATE_AND_CREATE_TOPIC, 21 GET_ALL_TOPIC_CONFIG."""

from __future__ import annotations

from typing import ClassVar

from turbopump.message.integers import Int32
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Reply, Request


class CreateTopic(Request[None], kw_only=True):
    """Create a topic on one broker, or change it. ``perm`` bits: 4 read, 2 write, 1 inherit.

    ``attributes`` is text of the form ``+key=value,-key``.
    """

    code: ClassVar[int] = RequestCode.UPDATE_AND_CREATE_TOPIC

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


class GetAllTopicConfigReply(Reply, kw_only=True):
    """Paging of 5.3.4 and later; absent before."""

    total_topic_num: Int32 | None = None


class GetAllTopicConfig(Request[GetAllTopicConfigReply], kw_only=True):
    """Every topic of a broker; the body of the answer is ``bodies.topics.TopicConfigSerializeWrapper``."""

    code: ClassVar[int] = RequestCode.GET_ALL_TOPIC_CONFIG
    reply: ClassVar[type[GetAllTopicConfigReply]] = GetAllTopicConfigReply

    topic_seq: Int32 | None = None
    max_topic_num: Int32 | None = None
    data_version: str | None = None
