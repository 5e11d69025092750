"""Topics on a broker: 17 UPDATE_AND_CREATE_TOPIC, 18 UPDATE_AND_CREATE_TOPIC_LIST, 215
DELETE_TOPIC_IN_BROKER, 351 GET_TOPIC_CONFIG, 21 GET_ALL_TOPIC_CONFIG, 202 GET_TOPIC_STATS_INFO.
Bodies are in ``bodies.topics`` and ``bodies.stats``."""

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


class CreateTopicList(Request[None], kw_only=True):
    """Create or change several; the body is ``bodies.topics.CreateTopicListRequestBody``,
    attributes in it as ``{"+name": "value"}``."""

    code: ClassVar[int] = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST


class DeleteTopic(Request[None], kw_only=True):
    """Forget a topic on one broker: its settings, queues, and how far groups are in it."""

    code: ClassVar[int] = RequestCode.DELETE_TOPIC_IN_BROKER

    topic: str


class GetTopicConfig(Request[None], kw_only=True):
    """One topic of a broker; the body of the answer is
    ``bodies.topics.TopicConfigAndQueueMapping``."""

    code: ClassVar[int] = RequestCode.GET_TOPIC_CONFIG

    topic: str


class GetTopicStatsInfo(Request[None], kw_only=True):
    """Where a topic's queues begin and end on a broker; the body of the answer is
    ``bodies.stats.TopicStatsTable``."""

    code: ClassVar[int] = RequestCode.GET_TOPIC_STATS_INFO

    topic: str


class GetAllTopicConfigReply(Reply, kw_only=True):
    """Paging of 5.3.4 and later; absent before."""

    total_topic_num: Int32 | None = None


class GetAllTopicConfig(Request[GetAllTopicConfigReply], kw_only=True):
    """Every topic of a broker; the body of the answer is
    ``bodies.topics.TopicConfigSerializeWrapper``."""

    code: ClassVar[int] = RequestCode.GET_ALL_TOPIC_CONFIG
    reply: ClassVar[type[GetAllTopicConfigReply]] = GetAllTopicConfigReply

    topic_seq: Int32 | None = None
    max_topic_num: Int32 | None = None
    data_version: str | None = None
