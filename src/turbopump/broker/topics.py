"""Table of the topics of a broker.

Apache's rules say when a send creates a topic.

The table is saved in ``config/topics.json``. Every change increases its data version, is saved, and
is sent to the name servers through ``on_change``. Source: apache/rocketmq ``TopicConfigManager``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

import msgspec

from turbopump.broker.saved_table import EncodedMap, SavedTable, settled
from turbopump.broker.topic_attributes import is_batch_cq, needs_send_checks
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.disk.disk import Disk
from turbopump.disk.json_table import JsonTable
from turbopump.errors import TurbopumpError
from turbopump.message.rules import (
    DEFAULT_TOPIC,
    MEMBERS_PREFIX,
    NOT_SENDABLE_TOPICS,
    REPLY_TOPIC_END,
)
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.topics import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    QUEUES_MAX,
    DataVersion,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from turbopump.remoting.response import Refusal, refusal
from turbopump.remoting.router import Outcome, RequestContext
from turbopump.remoting.turns import Turns
from turbopump.repeated_line import RepeatedLine
from turbopump.store.files import StorePaths
from turbopump.store.queues.consume_queue_table import unserved_text

log = logging.getLogger(__name__)
_topic_made = RepeatedLine(log, logging.INFO, "topic made topic=%s read_queues=%d write_queues=%d")
_not_copied = RepeatedLine(log, logging.WARNING, "topic of the master left out topic=%s cause=%s")

READ_WRITE: Final = PERM_READ | PERM_WRITE
DELAY_LEVELS: Final = 18
BENCHMARK_QUEUES: Final = 1024


class TopicChange(msgspec.Struct, kw_only=True, rename="camel"):
    """Settings of one topic after a change, and the version of the table.

    ``config`` is None if the topic was deleted.
    """

    version: DataVersion
    config: TopicConfig | None = None


class TopicTable(SavedTable[TopicConfigSerializeWrapper]):
    """Table of the settings of topics, by name.

    ``version`` is the data version of the whole table.
    """

    def __init__(
        self, file: JsonTable, clock: Clock, *, auto_create: bool, turns: Turns | None = None
    ) -> None:
        super().__init__(file, TopicConfigSerializeWrapper, turns)
        self._clock = clock
        self.auto_create = auto_create
        self._topics: dict[str, TopicConfig] = {}
        self.entries = EncodedMap(self._topics.__getitem__)
        self._maps = {"topicConfigTable": self.entries}
        self.version = DataVersion()
        self.on_change: Callable[[str], None] = lambda _name: None
        self.unsaved: set[str] = set()
        """New topics that are not on the disk yet. A crash would lose them, and with them the
        access to their messages."""
        self.watched: set[str] = set()
        """Topics for which each send must pass the checks of ``send_checks.py``: new topics, topics
        of the broker itself, and topics with certain attributes."""
        self.unrecorded: set[str] = set()
        """New topics whose records wait for a new file of the log. The record must be in the
        log before their first message."""
        self.deleted: set[str] = set()
        """Topics that were deleted since the start and not created again."""
        self.loaded_ms = 0
        """Time of the last change of the loaded table, in ms. 0 if no table was loaded."""
        self.system: frozenset[str] = frozenset()
        """Topics that every broker has from its start, including those named like the broker and
        its cluster."""
        self._in_save: frozenset[str] = frozenset()

    def load(self) -> None:
        """Read the topics from the file.

        Raises OSError if the file cannot be read.
        """
        saved = self._load()
        self._topics.update(saved.topic_config_table)
        for name, topic in self._topics.items():
            topic.topic_name = name
            self.entries.add(name)
            self._watch(name)
        self.version = saved.data_version
        self.loaded_ms = self.version.timestamp

    def add_system_topics(self, config: BrokerConfig) -> None:
        """Create the system topics if they do not exist. Every broker has these topics from its
        start."""
        cluster = config.broker_cluster_name
        broker = config.broker_name
        cluster_perm = READ_WRITE if config.cluster_topic_enable else 0
        wanted = [
            ("SELF_TEST_TOPIC", 1, READ_WRITE),
            ("BenchmarkTest", BENCHMARK_QUEUES, READ_WRITE),
            (cluster, 16, cluster_perm | PERM_INHERIT),
            (broker, 1, READ_WRITE if config.broker_topic_enable else PERM_INHERIT),
            ("OFFSET_MOVED_EVENT", 1, READ_WRITE),
            ("SCHEDULE_TOPIC_XXXX", DELAY_LEVELS, READ_WRITE),
            (f"{cluster}{REPLY_TOPIC_END}", 1, READ_WRITE),
            ("RMQ_SYS_TRANS_HALF_TOPIC", 1, READ_WRITE),
            ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, READ_WRITE),
            ("rmq_sys_wheel_timer", 1, READ_WRITE),
        ]
        if config.enable_slave_acting_master:
            wanted.append((f"{MEMBERS_PREFIX}{broker}", 1, PERM_INHERIT))
        if config.trace_topic_enable:
            wanted.append((config.msg_trace_topic_name, 1, READ_WRITE))
        if self.auto_create:
            model = (DEFAULT_TOPIC, config.default_topic_queue_nums, READ_WRITE | PERM_INHERIT)
            wanted.insert(1, model)
        self.system = frozenset(name for name, _, _ in wanted)
        missing = [topic for topic in wanted if topic[0] not in self._topics]
        for name, queues, perm in missing:
            self._topics[name] = plain_topic(name, queues, perm)
            self._watch(name)
            self._changed(name, at_once=False)

    def find(self, topic: str) -> TopicConfig | None:
        return self._topics.get(topic)

    def names(self) -> list[str]:
        return list(self._topics)

    @property
    def count(self) -> int:
        """Number of topics."""
        return len(self._topics)

    def find_or_make(self, name: str, queues: int, sys_flag: int = 0) -> TopicConfig:
        """Return a topic. Create the topic if it does not exist.

        A new topic gets this number of ``queues`` for reading and for writing, or the maximum
        number.
        """
        config = self._topics.get(name)
        if config is None:
            config = plain_topic(name, min(queues, QUEUES_MAX))
            config.topic_sys_flag = sys_flag
            self.put(config, at_once=True)
        return config

    def put(self, config: TopicConfig, *, at_once: bool = False) -> None:
        """Create a topic or replace its settings, and save the table.

        With ``at_once`` the record of the change is in the log before the messages that the caller
        stores next.
        """
        assert config.topic_name is not None
        if config.topic_name not in self._topics:
            self.unsaved.add(config.topic_name)
            self.deleted.discard(config.topic_name)
            name = config.topic_name
            read = config.read_queue_nums
            write = config.write_queue_nums
            _topic_made(name, read, write, kind=name)
        self._topics[config.topic_name] = config
        self._watch(config.topic_name)
        self._changed(config.topic_name, at_once=at_once)

    def apply_change(self, name: str, change: TopicChange) -> None:
        """Apply a change of the master's table that the log has brought."""
        if change.config is not None:
            self.copy({name: change.config}, change.version)
        else:
            self.restore(name, None)
            self.copy({}, change.version)

    def copy(self, topics: Mapping[str, TopicConfig], version: DataVersion) -> None:
        """Copy topics of a master, and the version of its table.

        A topic with an invalid number of queues is left out, so that it stays unchanged here.
        """
        for name, config in topics.items():
            if (fault := config.queues_fault()) is not None:
                _not_copied(name, fault, kind=name)
                continue
            config.topic_name = name
            if self._topics.get(name) != config:
                self._topics[name] = config
                self._watch(name)
                self.entries.add(name)
                self.on_change(name)
                self._dirty = True
        if self.version != version:
            self.version = version
            self._dirty = True
        self.save()

    def restore(self, name: str, config: TopicConfig | None) -> None:
        """Replace or delete a topic without a new version of the table.

        None deletes the topic. A slave calls this method, because its table has the version of its
        master's table.
        """
        if config is not None:
            self.copy({name: config}, self.version)
        elif name in self._topics:
            version = self.version
            self.delete(name)
            self.copy({}, version)

    def delete(self, topic: str) -> bool:
        """Delete a topic. Return False if the topic does not exist."""
        if self._topics.pop(topic, None) is None:
            return False
        self.unsaved.discard(topic)
        self.watched.discard(topic)
        self.deleted.add(topic)
        self._changed(topic, at_once=False)
        return True

    def next_version(self, state_version: int | None = None) -> None:
        """Increase the data version of the table, and save the table.

        ``state_version`` is the epoch of a new master, or None for a change within one epoch.
        """
        self.version = self.version.next(self._clock.now_ms(), state_version)
        self._dirty = True
        self.save()

    def create_by_sending(
        self, topic: str, default_topic: str, queues: int, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Create a topic because of a send. The new topic is a copy of the default topic.

        ``queues`` is the number of queues that the producer requested. The default topic limits the
        number. Return None if the default topic or the settings do not allow the creation.
        """
        model = self._topics.get(default_topic)
        if model is None or not model.perm & PERM_INHERIT:
            return None
        if default_topic == DEFAULT_TOPIC and not self.auto_create:
            return None
        count = max(min(queues, model.write_queue_nums), 0)
        config = plain_topic(topic, count, model.perm & ~PERM_INHERIT)
        config.topic_sys_flag = sys_flag
        config.topic_filter_type = model.topic_filter_type
        self.put(config, at_once=True)
        return config

    def new_saving(self) -> asyncio.Future[bool]:
        """Return a future that is True once all new topics are on the disk.

        The future is False if they cannot be saved now. It is shared, as that of ``saving``.
        """
        if self.unsaved:
            return self.saving()
        return settled(good=True)

    def note_recorded(self) -> None:
        """Note that the records of all changes are in the log."""
        recorded, self.unrecorded = self.unrecorded, set()
        for name in recorded.intersection(self._topics):
            self._watch(name)

    def _content(self) -> TopicConfigSerializeWrapper:
        return TopicConfigSerializeWrapper(data_version=self.version)

    def _save_started(self) -> None:
        self._in_save = frozenset(self.unsaved)

    def _save_ended(self) -> None:
        # a topic that was created during the save is not in the file
        safe = self._in_save & self.unsaved
        self._in_save = frozenset()
        self.unsaved -= safe
        for name in safe:
            self._watch(name)

    def _watch(self, name: str) -> None:
        if (
            name in self.unsaved
            or name in self.unrecorded
            or name in NOT_SENDABLE_TOPICS
            or name[0] == "%"
            or needs_send_checks(self._topics[name])
        ):
            self.watched.add(name)
        else:
            self.watched.discard(name)

    def _changed(self, name: str, *, at_once: bool) -> None:
        if name in self._topics:
            self.entries.add(name)
        else:
            self.entries.remove(name)
        self.next_version()
        if self.note_change is not None:
            change = TopicChange(version=self.version, config=self._topics.get(name))
            if not self.note_change(name, change, at_once=at_once) and at_once:
                self.unrecorded.add(name)
                self._watch(name)
        self.on_change(name)


def plain_topic(name: str, queues: int, perm: int = READ_WRITE) -> TopicConfig:
    """Return settings of a topic with ``queues`` queues for reading, and as many for writing."""
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


def unserved_refusal(topic: TopicConfig | None) -> Refusal | None:
    """Return the refusal for a request about a BatchCQ topic. Return None for any other topic.

    This broker does not serve messages and offsets of BatchCQ topics.
    """
    if topic is None or not is_batch_cq(topic):
        return None
    return refusal(ResponseCode.INVALID_PARAMETER, unserved_text(topic.topic_name or ""))


class NamesTopic(Protocol):
    """Request about one topic."""

    @property
    def topic(self) -> str: ...


RequestT = TypeVar("RequestT", bound=NamesTopic)
ReplyT = TypeVar("ReplyT", bound=msgspec.Struct | None)
TopicRequestHandler = Callable[[RequestT, RequestContext], Outcome[ReplyT]]


def if_served(
    topics: TopicTable, handler: TopicRequestHandler[RequestT, ReplyT]
) -> TopicRequestHandler[RequestT, ReplyT]:
    """Wrap a handler so that requests about BatchCQ topics are refused."""

    def handle(request: RequestT, context: RequestContext) -> Outcome[ReplyT]:
        return unserved_refusal(topics.find(request.topic)) or handler(request, context)

    return handle


class QueueKinds:
    """Source from which the store learns the kind of a topic's queues.

    During recovery no table is loaded yet, so the file of the topics below ``paths`` is read. Later
    ``table`` is used.
    """

    def __init__(self, disk: Disk, paths: StorePaths) -> None:
        self._disk = disk
        self._path = paths.table("topics")
        self._saved: dict[str, TopicConfig] | None = None
        self.table: TopicTable | None = None

    def is_batch(self, topic: str) -> bool | None:
        """Return True for a BatchCQ topic, whose queue entries are batches.

        Return None if the topic is unknown.
        """
        if self.table is not None:
            config = self.table.find(topic)
        else:
            self._saved = self._load() if self._saved is None else self._saved
            config = self._saved.get(topic)
        if config is None:
            return None
        return is_batch_cq(config)

    def _load(self) -> dict[str, TopicConfig]:
        for path in (self._path, self._path.with_name(self._path.name + ".bak")):
            try:
                data = self._disk.read_file(path)
                if data is not None:
                    return dict(
                        fastjson.decode(data, TopicConfigSerializeWrapper).topic_config_table
                    )
            except (OSError, ValueError, TurbopumpError):
                continue  # the load of the table reports it
        return {}
