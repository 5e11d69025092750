"""Of which kind the queues of a topic are, for the store: it asks while it recovers, before any
table is loaded, and ever after.

One rule: it looks, and decides nothing. What ``topics.json`` does not tell, the store sees from its
files and messages.
"""

from __future__ import annotations

from turbopump.broker.topic_attributes import is_batch_cq
from turbopump.broker.topics import TopicTable
from turbopump.errors import TurbopumpError
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.topics import TopicConfig, TopicConfigSerializeWrapper
from turbopump.store.disk import Disk
from turbopump.store.files import StorePaths


class QueueKinds:
    """By the file below ``paths`` until there is a ``table``."""

    def __init__(self, disk: Disk, paths: StorePaths) -> None:
        self._disk = disk
        self._path = paths.table("topics")
        self._saved: dict[str, TopicConfig] | None = None
        self.table: TopicTable | None = None

    def is_batch(self, topic: str) -> bool | None:
        """Whether the topic has ``queue.type=BatchCQ``; None: it is not known."""
        if self.table is not None:
            config = self.table.find(topic)
        else:
            if self._saved is None:
                self._saved = self._load()
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
                continue  # whoever loads the table tells of it
        return {}
