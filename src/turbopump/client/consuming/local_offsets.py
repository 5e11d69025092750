"""Where a broadcasting consumer stands in each queue, in a file of its own machine:
``<directory>/<clientId>/<group>/offsets.json``.

One rule: the file is replaced in one step, and read from its ``.bak`` if it is damaged. The format
is Apache's (``LocalFileOffsetStore``), so that a Java client under the same client id goes on where
this one was. It must not know who consumes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

from turbopump.client.consuming.offset_store import ConsumeFrom, OffsetStore, Start
from turbopump.errors import ConfigError
from turbopump.message.message_queue import MessageQueue
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.offsets import OffsetSerializeWrapper
from turbopump.store.disk import Disk, SystemDisk
from turbopump.store.json_table import JsonTable

log = logging.getLogger(__name__)

SAVE_PATIENCE_S: Final = 3.0
"""Longest wait for the disk when a consumer closes."""


def default_directory() -> Path:
    """``~/.rocketmq_offsets``, as Java's clients have it."""
    return Path.home() / ".rocketmq_offsets"


class LocalOffsets:
    """The offsets of one broadcasting consumer. ``brokers`` knows where queues begin and end.
    ``disk`` is the system's unless given.

    Raises ConfigError if the client id or the group cannot be the name of a directory, or the file
    cannot be read (OSError).
    """

    def __init__(
        self,
        brokers: OffsetStore,
        directory: Path,
        client_id: str,
        group: str,
        disk: Disk | None = None,
    ) -> None:
        for name in (client_id, group):
            if "/" in name or "\0" in name or name in (".", ".."):
                raise ConfigError(
                    f"{name!r} is to be the name of a directory for offsets and "
                    "cannot be; choose another name"
                )
        self.path = directory / client_id / group / "offsets.json"
        self._brokers = brokers
        self._own_disk = disk is None
        self._disk = disk or SystemDisk(asyncio.get_running_loop().call_soon_threadsafe)
        self._table = JsonTable(
            self._disk, self.path, lambda text: log.warning("offsets: %s", text)
        )
        self._table.on_settled = self._saved
        self._settled: asyncio.Future[None] | None = None
        self._dirty = False
        try:
            read = self._table.load(
                lambda data: fastjson.decode(data, OffsetSerializeWrapper), OffsetSerializeWrapper
            )
        except OSError as error:
            raise ConfigError(
                f"the offsets in {self.path} cannot be read ({error.strerror or error})"
            ) from None
        self._offsets = dict(read.offset_table)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Note our place; ``flush`` writes it down."""
        if self._offsets.get(queue) != offset:
            self._offsets[queue] = offset
            self._dirty = True

    def told_nothing(self, queues: Iterable[MessageQueue]) -> None:
        """The file forgets nothing."""

    async def flush(self, *, acknowledged: bool = False) -> None:
        """Write the file, if anything has changed. ``acknowledged``: wait until it is written, or
        until the disk has failed."""
        if self._dirty:
            self._dirty = False
            self._table.save(
                fastjson.encode_indented(OffsetSerializeWrapper(offset_table=self._offsets))
            )
        if acknowledged and self._table.saving:
            self._settled = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._settled], timeout=SAVE_PATIENCE_S)

    async def starting_offset(
        self, queue: MessageQueue, consume_from: ConsumeFrom | datetime
    ) -> Start:
        """Where to begin: as the file says, or where a queue without a place is begun."""
        offset = self._offsets.get(queue)
        if offset is not None and offset >= 0:
            return Start(offset, answered=True, stored=True)
        return Start(
            await self._brokers.first_offset(queue, consume_from), answered=False, stored=False
        )

    async def close(self) -> None:
        """Write what has changed and let go of the disk."""
        await self.flush(acknowledged=True)
        if self._own_disk:
            self._disk.close()

    def _saved(self, good: bool) -> None:
        self._dirty = self._dirty or not good  # the next flush tries again
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
