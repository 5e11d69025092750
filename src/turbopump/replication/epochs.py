"""Epochs of a log: the offset at which each master began to write. The file is
``epochFileCheckpoint``.

::

    2              number of epochs
    773307083      CRC-32 of the lines below, without its highest bit; 0: not checked
    7-7000         epoch 7 begins at offset 7000 of the log
    8-8000         epoch 8 begins at offset 8000, where epoch 7 ends

The rule that makes it safe: one master writes in an epoch, and it appends (epoch, end of its log)
here, durable, before it stores its first message in it. A slave saves an epoch of its master before
it stores the first byte of this epoch. So if two logs have an epoch that begins at the same offset,
their bytes are the same up to the smaller end of it.

An epoch without a message is forgotten when the next one begins at its start. RocketMQ keeps the
old one and writes the messages of the new epoch below its number. A message that only the old
master had then stays in its log, at the offset of another message.

``.bak`` has the same content, and is read if the file is damaged. An older copy would claim too
much: the bytes of later epochs would count as bytes of the last one that it knows. Source:
apache/rocketmq ``EpochFileCache``, ``CheckpointFile``.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from turbopump.disk.disk import Disk
from turbopump.errors import ProtocolError

EPOCHS_MAX: Final = 1000
"""Maximum number of epochs in a list. The oldest are dropped. Apache's master sends no more."""
NO_COMMON_POINT: Final = -1
_CRC_MASK: Final = 0x7FFFFFFF
_LINE_END: Final = "\n"


class Epoch(NamedTuple):
    """Epoch of a log, and the offset at which it begins. It ends where the next one begins."""

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class EpochList:
    """Epochs of a log, in the order of their numbers and starts."""

    epochs: tuple[Epoch, ...] = ()

    @property
    def last(self) -> Epoch | None:
        """Newest epoch, or None in an empty list."""
        return self.epochs[-1] if self.epochs else None

    @property
    def last_epoch(self) -> int:
        """Number of the newest epoch, or -1 in an empty list."""
        return self.epochs[-1].epoch if self.epochs else -1

    def append(self, epoch: int, start: int) -> EpochList:
        """Return a list in which ``epoch`` begins at ``start``.

        Epochs without a byte before ``start`` are left out. Raises ValueError if ``epoch`` is not
        higher than the last one.
        """
        if epoch <= self.last_epoch:
            raise ValueError(f"epoch {epoch} does not follow epoch {self.last_epoch}")
        kept = [one for one in self.epochs if one.start < start]
        return EpochList((*kept, Epoch(epoch, start))[-EPOCHS_MAX:])

    def cut_to(self, end: int) -> EpochList:
        """Return the list of a log that was cut to ``end``.

        An epoch that begins there is kept. It claims no byte.
        """
        return EpochList(tuple(one for one in self.epochs if one.start <= end))

    def without_before(self, start: int) -> EpochList:
        """Return the list of a log whose bytes before ``start`` were deleted."""
        ends = [one.start for one in self.epochs[1:]]
        gone = sum(1 for end in ends if end <= start)
        return EpochList(self.epochs[gone:])

    def at(self, offset: int) -> Epoch | None:
        """Return the epoch to which the byte at ``offset`` belongs, or None before the first
        one."""
        return next((one for one in reversed(self.epochs) if one.start <= offset), None)

    def end_of(self, epoch: int, log_end: int) -> int:
        """Return the offset at which ``epoch`` ends. The last one ends at ``log_end``."""
        following = (one.start for one in self.epochs if one.epoch > epoch)
        return next(following, log_end)


def common_point(own: EpochList, own_end: int, master: EpochList, master_end: int) -> int:
    """Return the offset up to which two logs have the same bytes.

    It is the smaller end of the newest epoch that both lists have at the same start. Return
    ``NO_COMMON_POINT`` if there is none. A slave's list may have epochs of its master that its log
    has not reached.
    """
    theirs = set(master.epochs)
    for one in reversed(own.epochs):
        if one in theirs:
            ends = own.end_of(one.epoch, own_end), master.end_of(one.epoch, master_end)
            return min(*ends, own_end, master_end)
    return NO_COMMON_POINT


def list_of(epochs: Iterable[tuple[int, int]]) -> EpochList:
    """Return a list of epochs that a peer has sent.

    Raises ProtocolError if the epochs or their starts do not grow. Equal starts are allowed,
    because Apache's brokers may have them.
    """
    found = tuple(Epoch(epoch, start) for epoch, start in epochs)
    for one, following in itertools.pairwise(found):
        if one.epoch >= following.epoch or one.start > following.start:
            raise ProtocolError(f"epochs are not in order: {one} before {following}")
    if any(one.epoch < 0 or one.start < 0 for one in found):
        raise ProtocolError(f"an epoch is negative: {found}")
    return EpochList(found)


def encode(epochs: EpochList) -> bytes:
    """Encode a list as the content of ``epochFileCheckpoint``."""
    lines = "".join(f"{one.epoch}-{one.start}{_LINE_END}" for one in epochs.epochs)
    crc = zlib.crc32(lines.encode()) & _CRC_MASK
    return f"{len(epochs.epochs)}{_LINE_END}{crc}{_LINE_END}{lines}".encode()


def decode(data: bytes) -> EpochList:
    """Decode the content of ``epochFileCheckpoint``. Raises ProtocolError if it is damaged."""
    try:
        count, crc, *lines = data.decode("ascii").splitlines()
        found = list_of(tuple(map(int, line.split("-", 1))) for line in lines)  # type: ignore[misc]
        wanted_count, wanted_crc = int(count), int(crc)
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"epochFileCheckpoint is damaged: {error}") from None
    if len(found.epochs) != wanted_count:
        raise ProtocolError(
            f"epochFileCheckpoint is damaged: {len(found.epochs)} epochs of {wanted_count}"
        )
    after_head = data.split(b"\n", 2)[2]
    if wanted_crc and zlib.crc32(after_head) & _CRC_MASK != wanted_crc:
        raise ProtocolError("epochFileCheckpoint is damaged: its CRC is wrong")
    return found


class EpochFile:
    """Epochs of an open log, and their file.

    - ``path``: the file. Its ``.bak`` lies beside it.
    - ``start``, ``end``: the first and the last offset of the log. Epochs outside are dropped.
    - ``epochs``: the list. It changes only when a save begins.
    """

    def __init__(self, disk: Disk, path: Path, start: int, end: int) -> None:
        self._disk = disk
        self._path = path
        self._saving = False
        self._waiting: list[Callable[[], None]] = []
        saved = read_epochs(disk, path)
        self.epochs = saved.cut_to(end).without_before(start)

    def reached(self, end: int) -> EpochList:
        """Return the epochs of a log that ends at ``end``.

        A slave has all epochs of its master before it has their bytes.
        """
        return self.epochs.cut_to(end)

    def save_now(self, epochs: EpochList) -> None:
        """Replace the list and its file in this thread. Raises OSError."""
        _write(self._disk, self._path, epochs)
        self.epochs = epochs

    def save(self, epochs: EpochList, done: Callable[[OSError | None], None]) -> None:
        """Replace the list, and its file in another thread. Call ``done`` with the error or None.

        Saves run one after the other.
        """
        if self._saving:
            self._waiting.append(lambda: self.save(epochs, done))
            return

        def saved(error: OSError | None) -> None:
            self._saving = False
            if error is None:
                self.epochs = epochs
            done(error)
            waiting = self._waiting
            self._waiting = []
            for begin in waiting:
                begin()

        self._saving = True
        self._disk.start(lambda: _write(self._disk, self._path, epochs), saved)


def read_epochs(disk: Disk, path: Path) -> EpochList:
    """Read the epochs of a log from its file, or from ``.bak`` if the file is damaged.

    Return an empty list if neither can be read.
    """
    for one in (path, backup_of(path)):
        data = disk.read_file(one)
        if not data:
            continue
        try:
            return decode(data)
        except ProtocolError:
            continue
    return EpochList()


def backup_of(path: Path) -> Path:
    """Return the name of the copy of an epoch file."""
    return path.with_name(f"{path.name}.bak")


def _write(disk: Disk, path: Path, epochs: EpochList) -> None:
    data = encode(epochs)
    disk.replace_file(path, data)  # this leaves the old content as .bak
    disk.write_file(backup_of(path), data)
