"""Tables of the broker and their files under ``config/``.

Tables are loaded at the start and saved after changes. A failed save is repeated until it succeeds.
After the start the tables agree with the store: no group's offset is beyond the end of its
recovered queue, and no topic with messages is unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from turbopump.broker.groups import GroupTable
from turbopump.broker.lost_topics import make_lost_topics
from turbopump.broker.offsets import ConsumerOffsets
from turbopump.broker.pop.records import REVIVE_TOPIC_PREFIX
from turbopump.broker.queue_locks import SavedLocks
from turbopump.broker.topics import TopicTable
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.config.setting import LONG_MAX
from turbopump.disk.disk import Disk
from turbopump.disk.json_table import JsonTable
from turbopump.errors import ConfigError
from turbopump.message.rules import REPLY_TOPIC_END, topic_fault
from turbopump.remoting.turns import Turns
from turbopump.store.files import StorePaths
from turbopump.store.message_store import MessageStore

log = logging.getLogger(__name__)

SAVE_AGAIN_S: Final = 1.0
"""Seconds between a failed save and the next one."""
MOVES_LOGGED: Final = 100
"""Maximum number of corrected offsets that are logged. The others are only counted."""


def name_faults(config: BrokerConfig) -> Iterator[tuple[str, str, str]]:
    """Yield each configured name that some part of the broker cannot use.

    Each item is the key of the setting, the name, and the reason.
    """
    cluster = config.broker_cluster_name
    if any(char.isspace() or not char.isprintable() for char in config.broker_name):
        yield (
            "brokerName",
            config.broker_name,
            "it has a blank or control character in it; blanks separate the fields of the handles "
            "of POP and recall, so nothing that was popped could be acknowledged",
        )
    fault = topic_fault(f"{cluster}{REPLY_TOPIC_END}") or topic_fault(REVIVE_TOPIC_PREFIX + cluster)
    if fault is not None:
        yield (
            "brokerClusterName",
            cluster,
            f"topics are named after it, those of replies and of POP, and {fault.split(';')[0]}",
        )


class SavedAtStop(Protocol):
    """Table that is saved when the broker stops."""

    def save_now(self) -> None: ...


class Tables:
    """Topics, groups, offsets and locks of a broker. They are loaded, then corrected to agree with
    the store.

    - ``delay_offsets``, ``order_info`` and ``request_modes``: files of tables that other
      parts load.
    - ``turns``: runs the encoding of large tables with pauses for other work.

    Raises OSError if a file cannot be read.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        paths: StorePaths,
        disk: Disk,
        clock: Clock,
        log_error: Callable[[str], None],
        log_info: Callable[[str], None],
        turns: Turns,
    ) -> None:
        self._log_error = log_error
        self.files: list[JsonTable] = []

        def file(name: str) -> JsonTable:
            table = JsonTable(disk, paths.table(name), log_error, log_info)
            self.files.append(table)
            return table

        self.delay_offsets = file("delayOffset")
        self.order_info = file("consumerOrderInfo")
        self.request_modes = file("messageRequestMode")
        used = store.log.end > 0 or disk.file_size(paths.table("topics")) is not None
        self.topics = TopicTable(
            file("topics"), clock, auto_create=config.auto_create_topic_enable, turns=turns
        )
        self.groups = GroupTable(
            file("subscriptionGroup"),
            clock,
            auto_create=config.auto_create_subscription_group,
            turns=turns,
        )
        self.offsets = ConsumerOffsets(file("consumerOffset"), clock, turns)
        self.locks = SavedLocks(file("queueLocks"), clock, turns, used=used)
        if config.is_slave:
            self.offsets.follow_master()
            # A controller elects no replica that has nothing of a master. So a new store has no
            # holders, until it has copied them.
            if used or not config.enable_controller_mode:
                self.locks.follow_master()
        self.begun_ms = clock.now_ms()
        for table in (self.topics, self.groups, self.offsets, self.locks):
            table.begun_ms = self.begun_ms
            table.load()
        self._saved: list[SavedAtStop] = [self.topics, self.groups, self.offsets, self.locks]
        self.set_back_offsets(store)
        self._check_names(config)
        self.topics.add_system_topics(config)
        make_lost_topics(store, self.topics, config.default_topic_queue_nums)

    def _check_names(self, config: BrokerConfig) -> None:
        """Refuse a broker name or a cluster name that some part of the broker cannot use.

        Raises ConfigError for such a name. If the store already has topics of that name, or belongs
        to a slave, which must have its master's names, the name is only logged.
        """
        for key, name, fault in name_faults(config):
            if not config.is_slave and self.topics.find(name) is None:
                raise ConfigError(f"{key}={name:.200}: {fault}; choose another name")
            log.warning(
                "name is invalid, but this store has it already key=%s name=%s cause=%s",
                key,
                name,
                fault,
            )

    def save_too(self, table: SavedAtStop) -> None:
        """Add another table that is saved when the broker stops."""
        self._saved.append(table)

    def save_now(self) -> None:
        """Save all tables in this thread.

        Raises OSError if a file cannot be written.
        """
        for table in self._saved:
            table.save_now()

    def set_back_offsets(self, store: MessageStore) -> None:
        """Set each offset beyond the end of its recovered queue back to that end.

        Otherwise the group would miss the messages that reuse the lost offsets.
        """

        def end_of(topic: str, queue_id: int) -> int:
            if store.queues.is_unserved(topic):
                return LONG_MAX  # where its queues end, Apache's broker knows
            queue = store.queues.find(topic, queue_id)
            if queue is not None:
                return queue.max_index
            return 0

        moved = self.offsets.set_back(end_of)
        for one in moved[:MOVES_LOGGED]:
            log.warning(
                "offset set back to the end of its recovered queue group=%s topic=%s "
                "queue=%d offset=%d end=%d",
                *one,
            )
        if not moved:
            return
        log.warning("offsets set back to the ends of their recovered queues count=%d", len(moved))
        try:
            self.offsets.save_now()
        except OSError as error:  # the repeating save goes on trying
            self._log_error(
                f"the offsets that were set back could not be saved ({error.strerror or error})"
            )
