"""Decisions of a single controller in one JSON file.

::

    {"format": 1, "checksum": CRC-32 of the groups, "groups": {"broker-a": {…}, …}}

Each decision replaces the whole file, so that a crash leaves the file before or after it. One write
includes every decision made before it started. A decision that cannot be written is tried again
until it is durable: it must neither be refused nor be answered before, because nobody knows whether
a failed write will be there after a crash.

A damaged file stops the start. An older copy is not used in its place, because it may name a
replica as up to date that has since missed acknowledged messages.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turbopump.controller.decisions import ConflictError, NotLeaderError
from turbopump.controller.groups import Group
from turbopump.documentation import page_url
from turbopump.errors import ConfigError, StoreLockedError
from turbopump.protocol import fastjson
from turbopump.repeated_line import RepeatedLine

if TYPE_CHECKING:
    from turbopump.disk.disk import Disk, Lock

log = logging.getLogger(__name__)
_not_written = RepeatedLine(
    log,
    logging.ERROR,
    "decision cannot be written, and no replica changes its role until it is file=%s cause=%s",
)

FORMAT: Final = 1
FILE_NAME: Final = "decisions.json"
RETRY_S: Final = 0.5
"""Seconds between two attempts to write the file."""
WAITING_MAX: Final = 10_000
"""Maximum number of decisions that wait for the disk."""


class DecisionFileContent(msgspec.Struct, kw_only=True):
    """Content of the file. ``checksum`` is that of the groups in compact JSON."""

    format: int
    checksum: int
    groups: dict[str, Group]


def encode(groups: dict[str, Group]) -> bytes:
    """Return the file with these groups."""
    checksum = zlib.crc32(fastjson.encode(groups))
    content = DecisionFileContent(format=FORMAT, checksum=checksum, groups=groups)
    return fastjson.encode_indented(content)


def decode(data: bytes) -> dict[str, Group]:
    """Return the groups in a file. Raises ValueError with the damage."""
    try:
        content = fastjson.decode(data, DecisionFileContent)
    except fastjson.FastjsonError as error:
        raise ValueError(str(error)) from None
    if content.format != FORMAT:
        raise ValueError(f"format {content.format} is not known to this version")
    if zlib.crc32(fastjson.encode(content.groups)) != content.checksum:
        raise ValueError("the checksum does not fit the content")
    return content.groups


class DecisionFile:
    """Decisions in a file. The controller that has opened the file leads.

    - ``disk``: the storage, or None to keep the decisions in memory only.
    - ``directory``: directory of the file.
    """

    def __init__(self, disk: Disk | None, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self._disk = disk
        self._lock: Lock | None = None
        self._address: str | None = None
        self._groups: dict[str, Group] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._writing = False
        self._retry: asyncio.TimerHandle | None = None

    @property
    def leader(self) -> str | None:
        """Address of this controller while the file is open."""
        return self._address

    async def open(self, address: str, on_change: Callable[[], None]) -> None:
        """Lock and read the file. This controller then leads.

        Raises ConfigError if the file is damaged or in use, and OSError if it cannot be read.
        """
        if self._disk is not None:
            self._disk.make_directory(self.path.parent)
            try:
                self._lock = self._disk.lock(self.path.with_name(f"{FILE_NAME}.lock"))
            except StoreLockedError:
                raise ConfigError(
                    f"{self.path} is in use by another controller: each one needs a "
                    "controllerStorePath of its own"
                ) from None
            try:
                self._groups = self._read(self._disk)
            except BaseException:
                self._lock.release()
                raise
        self._address = address
        on_change()

    async def load(self) -> dict[str, Group]:
        """Return the groups by broker name."""
        return dict(self._groups)

    async def replace(self, name: str, old: Group | None, new: Group | None) -> None:
        """Write a decision. The call returns when the decision is on the disk."""
        if self._address is None:
            raise NotLeaderError("the controller is stopping")
        if self._groups.get(name) != old:
            raise ConflictError(f"the group {name} has changed meanwhile")
        if len(self._waiting) >= WAITING_MAX:
            raise NotLeaderError(f"{WAITING_MAX} decisions wait for the disk")
        if new is None:
            self._groups.pop(name, None)
        else:
            self._groups[name] = new
        if self._disk is None:
            return
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(written)
        if not self._writing:
            self._write(self._disk)
        await asyncio.shield(written)

    async def close(self) -> None:
        """Release the file. Decisions that are not on the disk yet may or may not be there."""
        self._address = None
        if self._retry is not None:
            self._retry.cancel()
            self._end_waiting(self._waiting)
        elif self._writing:
            await asyncio.wait(self._waiting)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _read(self, disk: Disk) -> dict[str, Group]:
        data = disk.read_file(self.path)
        older = self.path.with_name(f"{FILE_NAME}.bak")
        if data is None and disk.read_file(older) is None:
            log.info("no decisions yet, the controller begins anew file=%s", self.path)
            return {}
        try:
            if data is None:
                raise ValueError("it is gone, and only its older copy is there")
            groups = decode(data)
        except ValueError as error:
            raise ConfigError(
                f"{self.path} is damaged ({error}). It records which replicas have every "
                f"acknowledged message, and {older.name} beside it may lack the last change of "
                "that. No broker changes its role meanwhile. "
                f'{page_url("docs/guide/controller.md")} ("When the file is lost") says how to '
                "go on"
            ) from None
        log.info("decisions read file=%s groups=%d", self.path, len(groups))
        return groups

    def _write(self, disk: Disk) -> None:
        """Write all groups, and then resolve the waiting decisions that the write includes."""
        self._writing = True
        self._retry = None
        included, data = len(self._waiting), encode(self._groups)

        def done(error: OSError | None) -> None:
            if error is not None:
                _not_written(self.path, error.strerror or error, kind=str(self.path))
                if self._address is None:
                    self._end_waiting(self._waiting)
                    return
                loop = asyncio.get_running_loop()
                self._retry = loop.call_later(RETRY_S, self._write, disk)
                return
            ended, self._waiting = self._waiting[:included], self._waiting[included:]
            self._writing = bool(self._waiting)
            for written in ended:
                written.set_result(None)
            if self._waiting:
                self._write(disk)

        disk.start(lambda: disk.replace_file(self.path, data), done)

    def _end_waiting(self, waiting: list[asyncio.Future[None]]) -> None:
        self._writing = False
        self._waiting = []
        for written in waiting:
            if not written.done():
                written.set_exception(NotLeaderError("the controller has stopped"))
                written.exception()  # its caller may be gone
