"""KV configuration of a name server. Each text has a namespace and a key.

All texts are stored in one JSON file.

The answer to a change waits until the change is on the disk. Source: apache/rocketmq
``KVConfigManager``, ``KVConfigSerializeWrapper``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from turbopump.disk.json_table import JsonTable
from turbopump.protocol import fastjson

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""Namespace of the ordered topics. Each entry maps a topic to ``broker:queues;…``."""


class KvFile(msgspec.Struct, kw_only=True, rename="camel"):
    """Contents of the JSON file at ``kvConfigPath``."""

    config_table: dict[str, dict[str, str]] = {}


class KvTable:
    """Table of the KV configuration, by namespace and key.

    - ``file``: the file that stores the table, or None to keep it in memory only.
    """

    def __init__(self, file: JsonTable | None) -> None:
        self._file = file
        self._texts: dict[str, dict[str, str]] = {}
        self._waiting: list[asyncio.Future[bool]] = []
        if file is not None:
            file.on_settled = self._settled

    def load(self) -> None:
        """Read the table from its file. Raises OSError."""
        if self._file is not None:
            found = self._file.load(lambda data: fastjson.decode(data, KvFile), KvFile)
            self._texts = found.config_table

    def get(self, namespace: str, key: str) -> str | None:
        """Return the text of a key in a namespace, or None."""
        return self._texts.get(namespace, {}).get(key)

    def namespace(self, name: str) -> Mapping[str, str] | None:
        """Return all keys and texts of a namespace. Return None for a namespace that was never
        used."""
        return self._texts.get(name)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set the text of a key. Await ``saved`` to know that the change is on the disk."""
        self._texts.setdefault(namespace, {})[key] = value

    def delete(self, namespace: str, key: str) -> None:
        """Remove a key. Await ``saved`` to know that the change is on the disk.

        As in RocketMQ, the namespace stays even if it is empty.
        """
        self._texts.get(namespace, {}).pop(key, None)

    def entries(self) -> list[tuple[str, str, str]]:
        """Return the namespace, the key and the text of each entry."""
        return [
            (namespace, key, text)
            for namespace, texts in self._texts.items()
            for key, text in texts.items()
        ]

    async def saved(self) -> bool:
        """Save the table. Return True if the save has succeeded.

        A failed save is tried again later.
        """
        if self._file is None:
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._file.save(fastjson.encode(KvFile(config_table=self._texts)))
        return bool(await waiter)

    def save_again(self) -> None:
        """Save the table again if the last save has failed."""
        if self._file is not None:
            self._file.repeat_save()

    def _settled(self, good: bool) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(good)
