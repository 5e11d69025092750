"""Offsets of a broadcasting consumer, in ``<directory>/<clientId>/<group>/offsets.json``. The
format is Apache's (``LocalFileOffsetStore``), so a Java client with the same id can read the file.

One rule: offsets that could not be written are written at the next flush.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from turbopump.client.consumer.offsets import ConsumeFrom, OffsetStore, StartOffset
from turbopump.config.setting import below_home
from turbopump.disk.json_table import JsonTable
from turbopump.disk.whole_files import WholeFiles
from turbopump.errors import ConfigError
from turbopump.message.message import MessageQueue
from turbopump.protocol import fastjson
from turbopump.protocol.requests import offsets as requests

if TYPE_CHECKING:
    from turbopump.disk.disk import Files

log = logging.getLogger(__name__)

NOT_IN_NAMES: Final = '/<>:"\\|?*' if sys.platform == "win32" else "/"
"""Characters that the name of a directory cannot have on this system."""
SAVE_PATIENCE_S: Final = 3.0
"""Maximum seconds for which a closing consumer waits for the disk."""


def default_directory() -> Path:
    """Return ``~/.rocketmq_offsets``, the default of Java's clients."""
    return below_home(".rocketmq_offsets", instead="offsets_directory")


class LocalOffsets:
    """Offsets of one broadcasting consumer, in a file.

    - ``brokers``: offsets at the brokers, to look up the first and last offset of a queue.
    - ``disk``: disk with the file, by default that of the system.

    Raises ConfigError if the client id or the group cannot be a directory's name, or if the file
    cannot be read.
    """

    def __init__(
        self,
        brokers: OffsetStore,
        directory: Path,
        client_id: str,
        group: str,
        disk: Files | None = None,
    ) -> None:
        for name in (client_id, group):
            if name in (".", "..") or any(each in name for each in NOT_IN_NAMES + "\0"):
                raise ConfigError(
                    f"{name!r} cannot be the name of the directory for offsets; choose a group, "
                    f"instance_name and local_ip without {' '.join(NOT_IN_NAMES)}"
                )
        self.path = directory / client_id / group / "offsets.json"
        self._brokers = brokers
        self._own_disk = disk is None
        self._disk = disk or WholeFiles(asyncio.get_running_loop().call_soon_threadsafe)
        self._table = JsonTable(
            self._disk,
            self.path,
            lambda text: log.warning("offsets: %s", text),
            on_settled=self._saved,
        )
        self._settled: asyncio.Future[None] | None = None
        self._dirty = False
        try:
            read = self._table.load(
                lambda data: fastjson.decode(data, requests.OffsetSerializeWrapper),
                requests.OffsetSerializeWrapper,
            )
        except OSError as error:
            raise ConfigError(
                f"the offsets in {self.path} cannot be read ({error.strerror or error})"
            ) from None
        self._offsets = dict(read.offset_table)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset in memory. ``flush`` writes it to the file."""
        if self._offsets.get(queue) != offset:
            self._offsets[queue] = offset
            self._dirty = True

    def forget(self, queues: Iterable[MessageQueue]) -> None:
        """Do nothing after a broker was lost, because the file has the offsets."""

    async def flush(self, *, acknowledged: bool = False) -> None:
        """Write the file if an offset has changed.

        ``acknowledged``: True waits until the file is written or the disk has failed, for at most
        ``SAVE_PATIENCE_S`` seconds.
        """
        if self._dirty:
            self._dirty = False
            self._table.save(
                fastjson.encode_indented(
                    requests.OffsetSerializeWrapper(offset_table=self._offsets)
                )
            )
        if acknowledged and self._table.saving:
            self._settled = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._settled], timeout=SAVE_PATIENCE_S)

    async def starting_offset(
        self, queue: MessageQueue, consume_from: ConsumeFrom | datetime
    ) -> StartOffset:
        """Return the offset at which to start reading a queue.

        It is the offset in the file. For a queue without one, it is the position that
        ``consume_from`` describes.
        """
        offset = self._offsets.get(queue)
        if offset is not None and offset >= 0:
            return StartOffset(offset, answered=True, stored=True)
        return StartOffset(
            await self._brokers.first_offset(queue, consume_from), answered=False, stored=False
        )

    async def close(self) -> None:
        """Write changed offsets to the file, and close the disk."""
        await self.flush(acknowledged=True)
        if self._own_disk:
            self._disk.close()

    def _saved(self, good: bool) -> None:
        self._dirty = self._dirty or not good  # the next flush tries again
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
