"""The topics of this broker: ``config/topics.json``, Apache's system topics, and creation by
Apache's rules.

Every change takes the next data version, is saved, and is announced to the name servers through
``on_change``. Source: apache/rocketmq ``TopicConfigManager``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from turbopump.broker.topic_attributes import needs_a_look
from turbopump.clock import Clock
from turbopump.message.rules import DEFAULT_TOPIC, NOT_SENDABLE_TOPICS, RETRY_PREFIX
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.topics import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    DataVersion,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from turbopump.store.json_table import JsonTable

READ_WRITE: Final = PERM_READ | PERM_WRITE
DELAY_LEVELS: Final = 18
BENCHMARK_QUEUES: Final = 1024


class TopicTable:
    """Topic name to settings. ``version`` is the data version of the whole table."""

    def __init__(self, table: JsonTable, clock: Clock, *, auto_create: bool) -> None:
        self._table = table
        self._clock = clock
        self._auto_create = auto_create
        self._topics: dict[str, TopicConfig] = {}
        self.version = DataVersion()
        self.on_change: Callable[[], None] = lambda: None
        self.unsaved: set[str] = set()
        """New topics that a crash could still take, and with them the way to their messages."""
        self.watched: set[str] = set()
        """Topics whose sends must pass ``send_checks.py`` one by one: new ones, those of the
        broker, those with certain attributes."""
        self.system: frozenset[str] = frozenset()
        """The topics that ``add_system_topics`` has made or found: those named as the broker and
        its cluster too."""
        self._waiting: list[asyncio.Future[bool]] = []
        table.on_settled = self._settled

    def load(self) -> None:
        """Read the file. Raises OSError."""
        saved = self._table.load(
            lambda data: fastjson.decode(data, TopicConfigSerializeWrapper),
            TopicConfigSerializeWrapper,
        )
        self._topics = dict(saved.topic_config_table)
        for name, topic in self._topics.items():
            topic.topic_name = name
            self._watch(name)
        self.version = saved.data_version

    def add_system_topics(
        self,
        *,
        cluster: str,
        broker: str,
        default_queues: int,
        cluster_perm: int,
        broker_perm: int,
        trace: str | None,
    ) -> None:
        """The topics that every broker has from its start; ``trace`` is that of traces, if it is
        one of them."""
        wanted = [
            ("SELF_TEST_TOPIC", 1, READ_WRITE),
            ("BenchmarkTest", BENCHMARK_QUEUES, READ_WRITE),
            (cluster, 16, cluster_perm),
            (broker, 1, broker_perm),
            ("OFFSET_MOVED_EVENT", 1, READ_WRITE),
            ("SCHEDULE_TOPIC_XXXX", DELAY_LEVELS, READ_WRITE),
            (f"{cluster}_REPLY_TOPIC", 1, READ_WRITE),
            ("RMQ_SYS_TRANS_HALF_TOPIC", 1, READ_WRITE),
            ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, READ_WRITE),
            ("rmq_sys_wheel_timer", 1, READ_WRITE),
        ]
        if trace is not None:
            wanted.append((trace, 1, READ_WRITE))
        if self._auto_create:
            wanted.insert(1, (DEFAULT_TOPIC, default_queues, READ_WRITE | PERM_INHERIT))
        self.system = frozenset(name for name, _, _ in wanted)
        changed = False
        for name, queues, perm in wanted:
            if name not in self._topics:
                self._topics[name] = TopicConfig(
                    topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm
                )
                self._watch(name)
                changed = True
        if changed:
            self._changed()

    def find(self, topic: str) -> TopicConfig | None:
        return self._topics.get(topic)

    def wrapper(self) -> TopicConfigSerializeWrapper:
        """The whole table with its version."""
        return TopicConfigSerializeWrapper(
            data_version=self.version, topic_config_table=self._topics
        )

    def put(self, config: TopicConfig) -> None:
        """Create or change a topic."""
        assert config.topic_name is not None
        if config.topic_name not in self._topics:
            self.unsaved.add(config.topic_name)
        self._topics[config.topic_name] = config
        self._watch(config.topic_name)
        self._changed()

    def delete(self, topic: str) -> bool:
        """Forget a topic; False if there is none."""
        if self._topics.pop(topic, None) is None:
            return False
        self.unsaved.discard(topic)
        self.watched.discard(topic)
        self._changed()
        return True

    def create_by_sending(self, topic: str, default_topic: str, queues: int) -> TopicConfig | None:
        """What a send to an unknown topic makes of it: a copy of the default topic, if that lets
        itself be inherited.

        ``queues`` is what the producer asked for; the default topic's number is the most it gets.
        None: not allowed.
        """
        model = self._topics.get(default_topic)
        if model is None or not model.perm & PERM_INHERIT:
            return None
        if default_topic == DEFAULT_TOPIC and not self._auto_create:
            return None
        count = max(min(queues, model.write_queue_nums), 0)
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=count,
            write_queue_nums=count,
            perm=model.perm & ~PERM_INHERIT,
            topic_sys_flag=model.topic_sys_flag,
            topic_filter_type=model.topic_filter_type,
        )
        self.put(config)
        return config

    def create_retry_topic(self, group: str, queues: int) -> TopicConfig:
        """The topic to which a group's failed messages come back; made at its first heartbeat."""
        name = RETRY_PREFIX + group
        config = self._topics.get(name)
        if config is None:
            config = TopicConfig(
                topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=READ_WRITE
            )
            self.put(config)
        return config

    async def saved(self) -> bool:
        """Wait until every topic is on the disk; False if they cannot be saved now."""
        if not self.unsaved or not self._table.saving:
            return not self.unsaved
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        return await waiter

    def _settled(self, good: bool) -> None:
        if good:
            saved = list(self.unsaved)
            self.unsaved.clear()
            for name in saved:
                self._watch(name)
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(good)

    def _watch(self, name: str) -> None:
        if (
            name in self.unsaved
            or name in NOT_SENDABLE_TOPICS
            or name[0] == "%"
            or needs_a_look(self._topics[name])
        ):
            self.watched.add(name)
        else:
            self.watched.discard(name)

    def save_now(self) -> None:
        self._table.save_now(self._encode())

    def _changed(self) -> None:
        self.version = self.version.next(self._clock.now_ms())
        self._table.save(self._encode())
        self.on_change()

    def _encode(self) -> bytes:
        return fastjson.encode_indented(self.wrapper())
