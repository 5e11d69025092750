"""Topics of this broker: ``config/topics.json``, Apache's system topics, and creation by Apache's
rules.

Every change increases the data version, is saved, and is sent to the name servers through
``on_change``. Source: apache/rocketmq ``TopicConfigManager``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import msgspec

from turbopump.broker.saved_table import EncodedMap, SavedTable, settled
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.disk.disk import Disk
from turbopump.disk.json_table import JsonTable
from turbopump.errors import TurbopumpError
from turbopump.message.rules import (
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    LMQ_PREFIX,
    NOT_SENDABLE_TOPICS,
    REPLY_TOPIC_END,
    RETRY_PREFIX,
    is_system_topic,
    topic_fault,
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
from turbopump.store.log.cold_reads import finish_now
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.store.queues.consume_queue_table import unserved_text

log = logging.getLogger(__name__)
_topic_made = RepeatedLine(log, logging.INFO, "topic made topic=%s read_queues=%d write_queues=%d")
_not_copied = RepeatedLine(log, logging.WARNING, "topic of the master left out topic=%s cause=%s")

READ_WRITE: Final = PERM_READ | PERM_WRITE
DELAY_LEVELS: Final = 18
BENCHMARK_QUEUES: Final = 1024


class TopicTable(SavedTable[TopicConfigSerializeWrapper]):
    """Settings of topics by name. ``version`` is the data version of the whole table."""

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
        """New topics that are not on the disk yet. A crash would lose them, and so the access to
        their messages."""
        self.watched: set[str] = set()
        """Topics whose sends must each pass ``send_checks.py``: new topics, the broker's own, and
        those with certain attributes."""
        self.deleted: set[str] = set()
        """Topics that were deleted since the start, and not created again."""
        self.loaded_ms = 0
        """Time of the last change of the loaded table (ms); 0 without one."""
        self.system: frozenset[str] = frozenset()
        """Topics that ``add_system_topics`` has created or found, including those named like the
        broker and its cluster."""
        self._in_save: frozenset[str] = frozenset()

    def load(self) -> None:
        """Read the file. Raises OSError."""
        saved = self._load()
        self._topics.update(saved.topic_config_table)
        for name, topic in self._topics.items():
            topic.topic_name = name
            self.entries.add(name)
            self._watch(name)
        self.version = saved.data_version
        self.loaded_ms = self.version.timestamp

    def add_system_topics(self, config: BrokerConfig) -> None:
        """Create the topics that every broker has from its start."""
        cluster, broker = config.broker_cluster_name, config.broker_name
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
            self._changed(name)

    def find(self, topic: str) -> TopicConfig | None:
        return self._topics.get(topic)

    def names(self) -> list[str]:
        return list(self._topics)

    @property
    def count(self) -> int:
        """Number of topics."""
        return len(self._topics)

    def find_or_make(self, name: str, queues: int, sys_flag: int = 0) -> TopicConfig:
        """Return the topic, created if necessary with this number of queues for reading and
        writing, up to the maximum."""
        config = self._topics.get(name)
        if config is None:
            config = plain_topic(name, min(queues, QUEUES_MAX))
            config.topic_sys_flag = sys_flag
            self.put(config)
        return config

    def put(self, config: TopicConfig) -> None:
        """Create or change a topic."""
        assert config.topic_name is not None
        if config.topic_name not in self._topics:
            self.unsaved.add(config.topic_name)
            self.deleted.discard(config.topic_name)
            name, read, write = config.topic_name, config.read_queue_nums, config.write_queue_nums
            _topic_made(name, read, write, kind=name)
        self._topics[config.topic_name] = config
        self._watch(config.topic_name)
        self._changed(config.topic_name)

    def copy(self, topics: Mapping[str, TopicConfig], version: DataVersion) -> None:
        """Copy these topics from a master, and its version of the table. A topic with an invalid
        number of queues stays unchanged."""
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
        """Restore the earlier settings of a topic, or delete it (None), in a master's version of
        the table."""
        if config is not None:
            self.copy({name: config}, self.version)
        elif name in self._topics:
            version = self.version
            self.delete(name)
            self.copy({}, version)

    def delete(self, topic: str) -> bool:
        """Delete a topic. Return False if there is none."""
        if self._topics.pop(topic, None) is None:
            return False
        self.unsaved.discard(topic)
        self.watched.discard(topic)
        self.deleted.add(topic)
        self._changed(topic)
        return True

    def next_version(self) -> None:
        """Increase the data version of the table, as after a change."""
        self.version = self.version.next(self._clock.now_ms())
        self._dirty = True
        self.save()

    def create_by_sending(
        self, topic: str, default_topic: str, queues: int, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Create a topic for a send to an unknown one, as a copy of the default topic. Return None
        if the default topic does not allow that.

        ``queues``: number that the producer requested, limited to that of the default topic.
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
        self.put(config)
        return config

    def new_saving(self) -> asyncio.Future[bool]:
        """Return a future like ``saving``, for new topics only."""
        return self.saving() if self.unsaved else settled(good=True)

    def _content(self) -> TopicConfigSerializeWrapper:
        return TopicConfigSerializeWrapper(data_version=self.version)

    def _taken(self) -> None:
        self._in_save = frozenset(self.unsaved)

    def _kept(self) -> None:
        safe, self._in_save = self._in_save & self.unsaved, frozenset()
        self.unsaved -= safe
        for name in safe:
            self._watch(name)

    def _watch(self, name: str) -> None:
        if (
            name in self.unsaved
            or name in NOT_SENDABLE_TOPICS
            or name[0] == "%"
            or needs_send_checks(self._topics[name])
        ):
            self.watched.add(name)
        else:
            self.watched.discard(name)

    def _changed(self, name: str) -> None:
        if name in self._topics:
            self.entries.add(name)
        else:
            self.entries.remove(name)
        self.next_version()
        self.on_change(name)


def plain_topic(name: str, queues: int, perm: int = READ_WRITE) -> TopicConfig:
    """Return a topic with equal numbers of queues for reading and writing."""
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


# --- Attributes of topics: which there are, how ``+name=value,-name`` changes them, and the type of
# a message.
#
# What cannot be is a sentence that begins as Apache's. Source: apache/rocketmq ``TopicAttributes``,
# ``AttributeParser``, ``AttributeUtil``, ``TopicMessageType``.

MESSAGE_TYPE: Final = "message.type"
QUEUE_TYPE: Final = "queue.type"
CLEANUP_POLICY: Final = "cleanup.policy"
RESERVE_TIME: Final = "reserve.time"

BATCH_CQ: Final = "BatchCQ"
COMPACTION: Final = "COMPACTION"
MIXED: Final = "MIXED"

TRANSFER_FLAG: Final = "TRANSFER_FLAG"
"""Property of a message that is moved between clusters. Its message type is not checked."""


@dataclass(frozen=True, slots=True)
class TopicAttribute:
    """Attribute of a topic. ``values``: all allowed values. ``changeable``: True if it may be
    changed after the creation."""

    values: tuple[str, ...]
    changeable: bool


ATTRIBUTES: Final[Mapping[str, TopicAttribute]] = {
    QUEUE_TYPE: TopicAttribute((BATCH_CQ, "SimpleCQ"), changeable=False),
    CLEANUP_POLICY: TopicAttribute(("DELETE", COMPACTION), changeable=False),
    MESSAGE_TYPE: TopicAttribute(
        ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", MIXED), changeable=True
    ),
}


def parse_changes(text: str | None) -> dict[str, str] | str:
    """Parse ``+name=value,-name`` into signed names with values ("" for a removal). Return the
    fault as a sentence if that fails."""
    changes: dict[str, str] = {}
    given = (text or "").rstrip(",")
    for change in given.split(",") if given else ():
        name, equals, value = change.partition("=")
        if equals and not name.startswith("+"):
            return f"add/alter attribute format is wrong: {name[:64]}; write +name=value"
        if not equals and not name.startswith("-"):
            return f"delete attribute format is wrong: {name[:64]}; write -name, or +name=value"
        if equals and not value:
            return f"kv string format wrong. {change[:64]} has no value; write +name=value"
        if name in changes:
            return f"key duplication: {name[:64]}; name it once"
        changes[name] = value
    return changes


def change_attributes(
    current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str] | str:
    """Return a topic's attributes after ``changes`` (see ``parse_changes``). ``current``: present
    attributes, None for a new topic.

    Return a sentence if a change is not allowed; then nothing is changed.
    """
    changed = dict(current or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        name = signed[1:]
        if not name or "+" in name or "-" in name or signed[0] not in "+-":
            return f"kv string format wrong. {signed[:64]!r} is neither +name nor -name"
        if name in seen:
            return f"alter duplication key. key: {name[:64]}; name it once"
        seen.add(name)
        fault = _fault(current, name, value, added=signed[0] == "+")
        if fault is not None:
            return fault
        if signed[0] == "+":
            changed[name] = value
        else:
            del changed[name]
    return changed


def _fault(current: Mapping[str, str] | None, name: str, value: str, *, added: bool) -> str | None:
    if current is None and not added:
        return (
            f"only add attribute is supported while creating topic. key: {name[:64]}; leave "
            f"-{name[:64]} out"
        )
    if current is not None and not added and name not in current:
        return f"attempt to delete a nonexistent key: {name[:64]}; the topic does not have it"
    # RocketMQ 5.3 without tiered storage means to say this, takes it, and does nothing with it
    if name == RESERVE_TIME:
        return (
            "Update topic reserveTime not supported; a topic is kept as long as the log "
            "(fileReservedTime)"
        )
    attribute = ATTRIBUTES.get(name)
    if attribute is None:
        return f"unsupported key: {name[:64]}; there are {', '.join(ATTRIBUTES)}"
    if current is not None and not attribute.changeable:
        if added and current.get(name) == value:
            return None  # Apache refuses this too; the same request twice should not fail
        return (
            f"attempt to update an unchangeable attribute. key: {name}; it can only be "
            "set when the topic is created"
        )
    if added and (name, value) == (QUEUE_TYPE, BATCH_CQ):
        return (
            "this broker does not serve BatchCQ topics (queue.type=BatchCQ); leave the attribute "
            "out, or make the topic on Apache's broker"
        )
    if added and value not in attribute.values:
        return (
            f"value is not in set: [{', '.join(attribute.values)}]; {name}={value[:64]} cannot be"
        )
    return None


def is_batch_cq(topic: TopicConfig) -> bool:
    """True for a topic of Apache's broker in which a batch is one entry. It is not served."""
    return topic.attributes.get(QUEUE_TYPE) == BATCH_CQ


def unserved_refusal(topic: TopicConfig | None) -> Refusal | None:
    """Return a refusal of requests for messages or offsets of a BatchCQ topic; None for other
    topics."""
    if topic is None or not is_batch_cq(topic):
        return None
    return refusal(ResponseCode.INVALID_PARAMETER, unserved_text(topic.topic_name or ""))


class NamesTopic(Protocol):
    """A request about one topic."""

    @property
    def topic(self) -> str: ...


RequestT = TypeVar("RequestT", bound=NamesTopic)
ReplyT = TypeVar("ReplyT", bound=msgspec.Struct | None)
TopicRequestHandler = Callable[[RequestT, RequestContext], Outcome[ReplyT]]


def if_served(
    topics: TopicTable, handler: TopicRequestHandler[RequestT, ReplyT]
) -> TopicRequestHandler[RequestT, ReplyT]:
    """Refuse requests about BatchCQ topics; ``handler`` answers the others."""

    def handle(request: RequestT, context: RequestContext) -> Outcome[ReplyT]:
        return unserved_refusal(topics.find(request.topic)) or handler(request, context)

    return handle


def topic_message_type(topic: TopicConfig) -> str:
    """Return the message type of a topic; NORMAL by default."""
    return topic.attributes.get(MESSAGE_TYPE, "NORMAL")


def message_type_of(properties: Mapping[str, str]) -> str:
    """Return the type of a message from its properties: TRANSACTION, DELAY, FIFO or NORMAL."""
    if properties.get("TRAN_MSG") == "true":
        return "TRANSACTION"
    if any(
        name in properties
        for name in ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
    ):
        return "DELAY"
    return "FIFO" if "__SHARDINGKEY" in properties else "NORMAL"


def needs_send_checks(topic: TopicConfig) -> bool:
    """Return True if each send to the topic must be checked against its attributes."""
    return topic.attributes.get(CLEANUP_POLICY) == COMPACTION or is_batch_cq(topic)


_GROUP_TOPICS: Final = (RETRY_PREFIX, DLQ_PREFIX)


def make_lost_topics(store: MessageStore, topics: TopicTable, default_queues: int) -> list[str]:
    """Create topics again that are not in the table but have a newer message than the loaded table.
    Return and log their names. ``default_queues``: least number of queues, except for a group's
    topic.

    A topic is acknowledged with its first message after one second at most, even if ``topics.json``
    is not saved by then (under ASYNC_FLUSH). If the power fails then, the log has the messages, but
    clients get no route to them. So the topic is created again, with as many queues as had
    messages. Its empty queues beyond the default, its permissions and its attributes are lost. A
    deleted topic does not come back: its messages are older than the table, which was saved after
    them.

    A BatchCQ topic comes back if Apache's files of its queues exist.
    """
    ends: dict[str, list[ConsumeQueue]] = {}
    for queue in store.queues:
        name = queue.topic
        if (
            queue.max_index > queue.min_index
            and topics.find(name) is None
            and not name.startswith(LMQ_PREFIX)
        ):
            ends.setdefault(name, []).append(queue)
    made = []
    for name, queues in sorted(ends.items()):
        if is_system_topic(name) or not any(
            _is_newer(store, queue, topics.loaded_ms) for queue in queues
        ):
            continue
        last = max(queue.queue_id for queue in queues)
        _make_again(topics, lost_topic(name, last, default_queues))
        made.append(name)
    for name, count in store.queues.batch_topics.items():
        if topics.find(name) is None:
            topic = plain_topic(name, count)
            topic.attributes = {QUEUE_TYPE: BATCH_CQ}
            _make_again(topics, topic)
            made.append(name)
    return made


def lost_topic(name: str, last: int, default_queues: int) -> TopicConfig:
    """Return the settings of a lost topic, derived from its messages. ``last``: its last queue with
    a message."""
    count = 1 if name.startswith(_GROUP_TOPICS) else default_queues
    return plain_topic(name, max(last + 1, count))


def make_topic_of_waiting(
    topics: TopicTable, default_queues: int, name: str, queue_id: int, stored_ms: int
) -> None:
    """Create the topic of a message that has waited since ``stored_ms``, if the topic's table entry
    was lost. A deleted topic stays deleted."""
    if (
        topics.find(name) is None
        and name not in topics.deleted
        and stored_ms > topics.loaded_ms
        and not is_system_topic(name)
        and topic_fault(name) is None
        and queue_id < QUEUES_MAX
    ):
        _make_again(topics, lost_topic(name, queue_id, default_queues))


def _make_again(topics: TopicTable, topic: TopicConfig) -> None:
    topics.put(topic)
    log.warning(
        "topic with messages was missing in topics.json and is restored "
        f"topic={topic.topic_name} queues={topic.read_queue_nums}"
    )


def _is_newer(store: MessageStore, queue: ConsumeQueue, saved_ms: int) -> bool:
    """Return True if the queue's last message is not older than ``saved_ms``, or unreadable."""
    entry = finish_now(
        store.lookup.entry_in_queue(queue.topic, queue.queue_id, queue.max_index - 1)
    )
    return entry is None or entry.fault is not None or entry.message.store_timestamp >= saved_ms


class QueueKinds:
    """Kind of each topic's queues, for the store. During recovery no table is loaded yet, so the
    file below ``paths`` is read; later the ``table`` is used."""

    def __init__(self, disk: Disk, paths: StorePaths) -> None:
        self._disk = disk
        self._path = paths.table("topics")
        self._saved: dict[str, TopicConfig] | None = None
        self.table: TopicTable | None = None

    def is_batch(self, topic: str) -> bool | None:
        """Return True for a topic with ``queue.type=BatchCQ``, None for an unknown topic."""
        if self.table is not None:
            config = self.table.find(topic)
        else:
            self._saved = self._load() if self._saved is None else self._saved
            config = self._saved.get(topic)
        return None if config is None else is_batch_cq(config)

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
