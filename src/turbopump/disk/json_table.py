"""Small table in one JSON file: topics, groups, consumer offsets.

The table is loaded before its first save. A save replaces the file in one step (temporary file,
fsync, rename, directory fsync; the old file stays as ``.bak``), never in the owner's thread. This
module handles bytes; their meaning is the owner's: ``decode`` raises ValueError or a TurbopumpError
for invalid bytes.

A start never fails because of the content of a table. An unreadable file falls back to its
``.bak``, which the first save also makes, so that there always is one. If neither is readable, the
damaged file is kept as ``.damaged``, the part before the damage is used, and a log line reports it.
A failed save is repeated, unlike a failed sync of the log, because each save writes the whole
content.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from turbopump.errors import TurbopumpError

if TYPE_CHECKING:
    from turbopump.disk.disk import Files

T = TypeVar("T")
Content = bytes | Callable[[], bytes]
"""Content to save, or a function that makes it in the writing thread."""

ATTEMPTS_AT_ONCE: Final = 3
"""Number of times that ``save_now`` tries to write the file."""
FAILURES_PER_REPORT: Final = 60
"""Number of failed saves between two reports. The first failure is also reported."""


class JsonTable:
    """Small table that is kept in one JSON file.

    - ``path``: the file.
    - ``log_error``: gets a line for each problem.
    - ``log_info``: gets a line when a problem is over. By default ``log_error`` gets it.
    - ``on_settled``: called when all saves so far have ended. It gets True if everything is on
      the disk.
    """

    def __init__(
        self,
        disk: Files,
        path: Path,
        log_error: Callable[[str], None],
        log_info: Callable[[str], None] | None = None,
        on_settled: Callable[[bool], None] = lambda _good: None,
    ) -> None:
        self._disk = disk
        self._path = path
        self._backup = path.with_name(path.name + ".bak")
        self._log_error = log_error
        self._log_info = log_info or log_error
        self.on_settled = on_settled
        self._saving = False
        self._next: Content | None = None
        self._unsaved: Content | None = None
        self._failures = 0
        self._loaded = False
        self._torn = False

    @property
    def saving(self) -> bool:
        """True while ``save`` is writing the file."""
        return self._saving

    @property
    def damaged(self) -> bool:
        """True if the file was found damaged by ``load``, and no save has replaced it yet."""
        return self._torn

    def load(self, decode: Callable[[bytes], T], empty: Callable[[], T]) -> T:
        """Return the table from its file, or from the backup if the file is damaged.

        If the backup is damaged too, ``load`` returns the readable part of the file or of the
        backup. Without a readable part or a file, it returns ``empty()``. Raises no error but
        OSError.
        """
        self._loaded = True
        faults: list[str] = []
        damaged: list[bytes] = []
        for path in (self._path, self._backup):
            data = self._disk.read_file(path)
            if data is None:
                continue
            try:
                if data.strip():
                    table = decode(data)
                    if faults:
                        self._torn = True
                        self._log_error(f"{faults[0]}; {path.name} is used instead")
                    return table
                faults.append(f"{path} is empty")
            except (ValueError, TurbopumpError) as error:
                faults.append(f"{path} cannot be read ({error})")
                damaged.append(data)
        if faults:
            return self._rescue_content("; ".join(faults), damaged, decode, empty)
        return empty()

    def save(self, data: Content) -> None:
        """Replace the content of the file, in a thread.

        If several saves wait for an earlier save, only the newest is written.
        """
        assert self._loaded, "a table is loaded before it is saved"
        self._unsaved = None
        if self._saving:
            self._next = data
            return
        self._saving = True

        def done(error: OSError | None) -> None:
            self._saving = False
            following, self._next = self._next, None
            if error is not None:
                self._note_failure(error)
                self._unsaved = data
            elif self._failures:
                self._note_success()
            if following is not None:
                self.save(following)
            else:
                self.on_settled(error is None)

        self._disk.start(
            lambda: self._replace_file(data if isinstance(data, bytes) else data()), done
        )

    def repeat_save(self) -> None:
        """Try a failed save again.

        The owner of the table calls it about every second.
        """
        if self._unsaved is not None:
            self.save(self._unsaved)

    def save_now(self, data: bytes) -> None:
        """Replace the content of the file, in this thread.

        Use it at the start or at a clean stop of a server. Raises OSError if all attempts fail.
        """
        assert self._loaded, "a table is loaded before it is saved"
        for _ in range(ATTEMPTS_AT_ONCE - 1):
            try:
                self._replace_file(data)
            except OSError as error:
                self._note_failure(error)
            else:
                break
        else:
            self._replace_file(data)
        self._unsaved = None
        if self._failures:
            self._note_success()

    def _replace_file(self, data: bytes) -> None:
        self._disk.make_directory(self._path.parent)
        if self._torn:  # the good one is the .bak: a torn file must not replace it
            self._disk.remove(self._path)
            self._torn = False
        alone = (
            self._disk.file_size(self._path) is None and self._disk.file_size(self._backup) is None
        )
        self._disk.replace_file(self._path, data)
        if alone:  # once more: now it has a .bak to fall back to
            self._disk.replace_file(self._path, data)

    def _note_failure(self, error: OSError) -> None:
        if self._failures % FAILURES_PER_REPORT == 0:
            self._log_error(
                f"{self._path} could not be saved ({error.strerror or error}): trying "
                "again every second"
            )
        self._failures += 1

    def _note_success(self) -> None:
        self._log_info(f"{self._path} is saved again, after {self._failures} failures")
        self._failures = 0

    def _rescue_content(
        self,
        faults: str,
        damaged: list[bytes],
        decode: Callable[[bytes], T],
        empty: Callable[[], T],
    ) -> T:
        """Keep the damaged file for a later repair, and return the part before the damage."""
        self._torn = True
        aside = self._path.with_name(self._path.name + ".damaged")
        if damaged:
            self._disk.write_file(aside, damaged[0])
            faults += f"; kept as {aside.name}"
        for data in damaged:
            for piece in before_the_damage(data):
                try:
                    table = decode(piece)
                except (ValueError, TurbopumpError):
                    continue
                self._log_error(
                    f"{faults}; the part before the damage is used, and the rest is lost"
                )
                return table
        self._log_error(f"{faults}; the broker starts WITHOUT this table")
        return empty()


# --- Recovery of a JSON text that ends too early: the text up to its last whole member, with its
# brackets closed. Keys may be numbers, as in fastjson's dialect.

TRIES: Final = 64
"""Maximum number of members given up at the end, because the damage may have left invalid bytes
before it."""

_CLOSER: Final = {ord("{"): b"}", ord("["): b"]"}


def before_the_damage(data: bytes) -> Iterator[bytes]:
    """Yield the readable beginnings of a damaged JSON text, the longest first.

    Each beginning is completed with closing brackets. Nothing is yielded if not even the first
    member is whole.
    """
    cuts: deque[tuple[int, bytes]] = deque(maxlen=TRIES)
    open_: list[bytes] = []
    in_string = escaped = False
    for at, byte in enumerate(data):
        if byte == 0:  # a power cut leaves zeros
            break
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in b"{[":
            open_.append(_CLOSER[byte])
        elif byte in b"}]":
            if not open_ or open_.pop() != bytes((byte,)):
                break
            cuts.append((at + 1, b"".join(reversed(open_))))
            if not open_:  # the text is whole, and invalid bytes follow
                break
        elif byte == 0x2C:
            cuts.append((at, b"".join(reversed(open_))))
    for end, closers in reversed(cuts):
        yield data[:end] + closers
