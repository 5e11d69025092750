"""Base class of the broker's tables. Each table is saved as one JSON file under ``config/``.

The cost of a change does not grow with the table. An entry is encoded again only after it has
changed. Many entries are encoded in small steps, between which the event loop does other work. One
save runs at a time, and the next one includes all changes made meanwhile. A caller that needs a
change on the disk waits for its save (``saved``).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from turbopump.disk.json_table import JsonTable
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.replication import HELD, PARTIAL, TABLE_VERSION
from turbopump.remoting.response import Refusal, refusal
from turbopump.remoting.turns import Steps, Turns, finished

HELD_S: Final = 0.5
SAVE_WAIT_S: Final = 2.0
"""Maximum seconds that the answer to a request waits for the disk. Tools wait 3 to 5 s for an
answer."""

ContentT = TypeVar("ContentT", bound=msgspec.Struct)


class NoteChange(Protocol):
    """Function that records a change of a table in the log (``broker/table_records/``)."""

    def __call__(self, key: str, value: Any, /, *, at_once: bool = False) -> bool:
        """Record that the entry ``key`` of the table has this value now.

        With ``at_once`` the record is in the log before the call returns. Return False if the
        record waits for a new file of the log.
        """


class TableText(NamedTuple):
    """Encoded table, or its changes since an earlier version.

    - ``text``: the JSON text, which is empty if nothing has changed.
    - ``version``: the version of the table, for the next call of ``text_since``.
    - ``partial``: True if the text contains only changed entries.
    """

    text: bytes
    version: str
    partial: bool


class SavedTable(ABC, Generic[ContentT]):
    """Table that is saved as one JSON file.

    Load the table before saving it.

    - ``content``: the struct that the file contains.
    - ``turns``: runs the encoding of large maps with pauses for other work. None without an
      event loop.
    - ``_maps``: the large maps of the table, by their name in the file. ``_content`` leaves
      them empty.
    """

    def __init__(
        self, file: JsonTable, content: type[ContentT], turns: Turns | None = None
    ) -> None:
        self._file = file
        self._struct = content
        self._turns = turns
        self._maps: dict[str, EncodedMap] = {}
        self._dirty = False
        self._encoding = False
        self._writing = False
        self._failing = False
        self._rounds = Rounds()
        self._change: asyncio.Future[None] | None = None
        self.revision = 0
        """Number of changes to the contents outside of ``_maps``."""
        self.begun_ms = 0
        """Start time of this process, in ms. It is part of each version, so that versions of two
        processes differ."""
        self.note_change: NoteChange | None = None
        """Function that records each change in the log. None unless a controller may make another
        replica the master."""
        file.on_settled = self._settled

    def _load(self) -> ContentT:
        """Return the contents of the file, or empty contents if there is no file.

        Raises OSError if the file cannot be read.
        """
        return self._file.load(lambda data: fastjson.decode(data, self._struct), self._struct)

    @abstractmethod
    def _content(self) -> ContentT:
        """Return the present contents of the table, without the entries of ``_maps``."""

    def _save_started(self) -> None:
        """Called when a save starts. The save does not include later changes."""

    def _save_ended(self) -> None:
        """Called when a save has ended, with its contents on the disk."""

    def save(self) -> None:
        """Save the table outside of the event loop if it has changed.

        If a save is already running, another one follows it.
        """
        if self._dirty and self._change is not None:
            self._change.set_result(None)
            self._change = None
        if self._dirty and not self._encoding and not self._writing:
            self._encoding = True
            if self._turns is None:
                finished(self._write())
            else:
                self._turns.run(self, self._write())

    def save_now(self) -> None:
        """Save the table in this thread.

        Raises OSError if the file cannot be written.
        """
        self._file.save_now(self._text()())
        self._dirty = False

    def saving(self) -> asyncio.Future[bool]:
        """Save the table. Return a future that is True once all changes so far are on the disk.

        The future is False if the changes cannot be saved now. The save is then repeated every
        second. Callers share the future, so it must not be cancelled.
        """
        self.save()
        if self._dirty:
            return self._rounds.next_round()
        if self._writing:
            return self._rounds.current_round()
        return settled(good=not self._failing)

    async def saved(self) -> bool:
        """Save the table. Return True once all changes so far are on the disk.

        Return False if the changes cannot be saved now.
        """
        return await asyncio.shield(self.saving())

    async def changed_within(self, seconds: float) -> None:
        """Wait until the table changes, for at most ``seconds``."""
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._change], timeout=seconds)

    async def text(self) -> bytes:
        """Return the whole table as JSON text, with all changes made before the return."""
        for entries in self._maps.values():
            await self.encode_in_turns(entries)
        return self._text()()

    async def text_since(self, version: str | None) -> TableText:
        """Return the changes of the table since an earlier version.

        An earlier call in this process returned ``version``. Return the whole table if ``version``
        is None or unknown.
        """
        for entries in self._maps.values():
            await self.encode_in_turns(entries)
        now = ".".join(map(str, (self.begun_ms, self.revision, *self._revisions())))
        if version == now:
            return TableText(b"", now, partial=False)
        head = f"{self.begun_ms}.{self.revision}."
        if not self._maps or version is None or not version.startswith(head):
            return TableText(self._text()(), now, partial=False)
        text = fastjson.encode_indented(self._content())
        known = version[len(head) :].split(".")
        if len(known) != len(self._maps):  # one has come or gone
            return TableText(self._text()(), now, partial=False)
        for (name, entries), revision in zip(self._maps.items(), known, strict=True):
            keys = entries.keys_since(int(revision))
            if keys is None:
                return TableText(self._text()(), now, partial=False)
            text = fastjson.put_entries(text, name, entries.pieces(keys))
        return TableText(text, now, partial=True)

    async def encode_in_turns(self, entries: EncodedMap) -> None:
        """Encode all changed entries of a map, with pauses in which the event loop does other
        work."""
        turns = self._turns or Turns()
        for _ in entries.encode():
            await turns.pause()

    def _revisions(self) -> list[int]:
        return [entries.revision for entries in self._maps.values()]

    def _write(self) -> Steps[None]:
        """Encode the changed entries, then write the file."""
        # Encoding takes several turns, in which entries may change again. So it goes on until no
        # entry is stale, and the rest happens in one turn: the round that starts here, the text,
        # and ``_dirty`` then belong to the same state. A caller of ``saving`` before this turn
        # waits for this round. A later change sets ``_dirty`` again, and its caller waits for the
        # next round. Clearing ``_dirty`` before the text is made would report a change as saved
        # that is not in the file.
        while stale := [entries for entries in self._maps.values() if entries.stale]:
            yield from stale[0].encode()
        self._encoding = False
        self._rounds.start_round()
        if not self._dirty:  # ``save_now`` came between
            self._rounds.end_round(good=True)
            return
        text = self._text()
        self._dirty = False
        self._writing = True
        self._save_started()
        self._file.save(text)

    def _text(self) -> Callable[[], bytes]:
        """Return a function that makes the JSON text of the present table. It may run in any
        thread."""
        frame = fastjson.encode_indented(self._content())
        if not self._maps:
            return lambda: frame
        maps = [(name, entries.pieces()) for name, entries in self._maps.items()]

        def join() -> bytes:
            text = frame
            for name, pieces in maps:
                text = fastjson.put_entries(text, name, pieces)
            return text

        return join

    def _settled(self, good: bool) -> None:
        self._failing = not good
        if good:
            self._save_ended()
        if self._writing:  # else what could not be saved before was saved again
            self._writing = False
            self._rounds.end_round(good)
            if good or self._dirty:
                self.save()


async def table_answer(
    table: SavedTable[Any], known: str | None, held: bool | None = None
) -> tuple[bytes, dict[str, str]]:
    """Return the body and the header fields of an answer about changes of a table.

    - ``known``: the version of the table that the client has, or None.
    - ``held``: True if the answer waits for a change, for ``HELD_S`` at most.
    """
    text, version, partial = await table.text_since(known)
    if held and not text:
        await table.changed_within(HELD_S)
        text, version, partial = await table.text_since(known)
    ext = {TABLE_VERSION: version}
    if held:
        ext[HELD] = "true"
    if partial:
        ext[PARTIAL] = "true"
    return fastjson.compact(text), ext


class EncodedMap:
    """Encoded entries of one large map. Only a changed entry is encoded again.

    ``value`` is a function that returns the entry for a key. The owner of the map reports each
    change by ``add`` and ``remove``.
    """

    def __init__(self, value: Callable[[str], Any]) -> None:
        self._value = value
        self._pieces: dict[str, bytes] = {}
        self.revision = 0
        """Number of entries encoded or removed so far."""
        self._revised: dict[str, int] = {}
        """Revision at which each entry was encoded, in ascending order."""
        self._removed_at = 0
        self.stale: dict[str, None] = {}
        """Keys of entries that have changed since they were encoded."""

    def add(self, *keys: str) -> None:
        """Mark entries as new or changed, so that they are encoded again."""
        for key in keys:
            self._pieces.setdefault(key, b"")
            self.stale[key] = None

    def remove(self, key: str) -> None:
        self.stale.pop(key, None)
        if self._pieces.pop(key, None) is not None:
            self._revised.pop(key, None)
            self.revision += 1
            self._removed_at = self.revision

    def keys_since(self, revision: int) -> list[str] | None:
        """Return the keys of entries encoded after ``revision``. Return None if an entry was
        removed after it."""
        if revision < self._removed_at:
            return None
        found = []
        # in the order of revisions, so that the cost is that of the changed entries alone
        for key in reversed(self._revised):
            if self._revised[key] <= revision:
                break
            found.append(key)
        return found

    def encode(self) -> Steps[None]:
        """Encode the changed entries, with a yield after each."""
        while self.stale:
            key, _ = self.stale.popitem()
            self._pieces[key] = fastjson.encode_entry(key, self._value(key))
            self.revision += 1
            self._revised.pop(key, None)
            self._revised[key] = self.revision
            yield

    def pieces(self, keys: Iterable[str] | None = None) -> list[bytes]:
        """Return the encoded entries for ``keys``. Without ``keys`` return all entries.

        Entries that have changed are encoded first.
        """
        finished(self.encode())
        if keys is None:
            return list(self._pieces.values())
        return [self._pieces[key] for key in keys]


class Rounds:
    """Shared futures for repeated work such as saves. Each run of the work has one future.

    A run includes every change made before its start. Its future is True if the run succeeded.
    Several callers wait for the same future.
    """

    def __init__(self) -> None:
        self._next: asyncio.Future[bool] | None = None
        self._current: asyncio.Future[bool] | None = None

    def next_round(self) -> asyncio.Future[bool]:
        """Return the future for the next run of the work."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return self._next

    def current_round(self) -> asyncio.Future[bool]:
        """Return the future for the run that is in progress."""
        if self._current is None:
            self._current = asyncio.get_running_loop().create_future()
        return self._current

    def start_round(self) -> None:
        """Start the next run, whose future becomes the current future."""
        self._current = self._next
        self._next = None

    def end_round(self, good: bool) -> None:
        """End the run in progress. Set the result of its future."""
        current = self._current
        self._current = None
        if current is not None and not current.done():
            current.set_result(good)


def settled(*, good: bool) -> asyncio.Future[bool]:
    """Return a future that is already done with the result ``good``."""
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    future.set_result(good)
    return future


async def in_time(seconds: float | None, *rounds: asyncio.Future[bool]) -> None:
    """Wait at most ``seconds`` until all these futures are done."""
    waiting = [each for each in rounds if not each.done()]
    if waiting:
        await asyncio.wait(waiting, timeout=seconds)


async def not_saved(
    *tables: SavedTable[Any], announced: Iterable[asyncio.Future[bool]] = ()
) -> Refusal | None:
    """Wait until the changes that a request has made in tables are on the disk.

    Return None, or a refusal if the changes are not on the disk in time, because they would be lost
    if the broker were killed. The call also waits for the futures ``announced``.
    """
    saving = [table.saving() for table in tables]
    await in_time(SAVE_WAIT_S, *saving, *announced)
    if all(each.done() and each.result() for each in saving):
        return None
    return refusal(
        ResponseCode.SYSTEM_ERROR,
        "the change is made but not on the disk yet, which is full, slow or broken (see "
        "the log of the broker). The broker retries the save until it succeeds; if it is "
        "killed before that, the change is lost",
    )
