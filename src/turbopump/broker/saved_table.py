"""A table of the broker that is kept as one JSON file under ``config/``.

The rule: what a change costs does not grow with the table. An entry is encoded again only after it
has changed, and many of them in steps between which the loop serves others. One save is under way
at a time; the next one takes along all that has changed meanwhile. Who has to know that a change is
on the disk waits for the save that holds it (``saved``).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.replication import HELD, PARTIAL, TABLE_VERSION
from turbopump.remoting.response import Refusal, refusal
from turbopump.remoting.turns import Steps, Turns, finished
from turbopump.store.json_table import JsonTable

HELD_S: Final = 0.5
SAVE_WAIT_S: Final = 2.0
"""Longest wait of an answer for the disk: tools wait 3 to 5 s for it."""

ContentT = TypeVar("ContentT", bound=msgspec.Struct)


class TableText(NamedTuple):
    """A table as text, or, ``partial``, the entries that have changed; empty if nothing has.
    ``version`` is to be given with the next question."""

    text: bytes
    version: str
    partial: bool


class SavedTable(ABC, Generic[ContentT]):
    """``content`` is the struct that the file holds. A table is loaded before it is saved.

    A table that may grow large has its large maps in ``_maps``, by their names in the file, and
    ``_content`` leaves those empty. ``turns`` shares the loop with the encoding of them; None:
    there is no loop.
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
        """Grows with a change of what is not in ``_maps``."""
        self.begun_ms = 0
        """When this process began: a version of another one is not taken for one of this."""
        file.on_settled = self._settled

    def _load(self) -> ContentT:
        """What the file holds, or an empty struct. Raises OSError."""
        return self._file.load(lambda data: fastjson.decode(data, self._struct), self._struct)

    @abstractmethod
    def _content(self) -> ContentT:
        """What is to be saved, but for the entries of ``_maps``."""

    def _taken(self) -> None:
        """The content was taken for a save: what changes from now on is not in it."""

    def _kept(self) -> None:
        """What was taken last is on the disk."""

    def save(self) -> None:
        """Write the file, beside the loop, if anything has changed; once more after a save that is
        under way."""
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
        """Write the file in this thread. Raises OSError."""
        self._file.save_now(self._text()())
        self._dirty = False

    def saving(self) -> asyncio.Future[bool]:
        """Is true once everything that has changed so far is on the disk; false if it cannot be
        saved now (then it is tried again, every second). Others wait for it too: not to be
        cancelled."""
        self.save()
        if self._dirty:
            return self._rounds.next()
        if self._writing:
            return self._rounds.current()
        return settled(good=not self._failing)

    async def saved(self) -> bool:
        """Wait for that."""
        return await asyncio.shield(self.saving())

    async def changed_within(self, seconds: float) -> None:
        """Wait until something is saved that has changed, and no longer."""
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._change], timeout=seconds)

    async def text(self) -> bytes:
        """The whole table as its file has it. All of it is as it is when this returns."""
        for entries in self._maps.values():
            await entries.encoded()
        return self._text()()

    async def text_since(self, version: str | None) -> TableText:
        """What has changed since ``text_since`` gave this ``version``, in this process; all of it
        for another version, or None."""
        for entries in self._maps.values():
            await entries.encoded()
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
            keys = entries.since(int(revision))
            if keys is None:
                return TableText(self._text()(), now, partial=False)
            text = fastjson.put_entries(text, name, entries.pieces(keys))
        return TableText(text, now, partial=True)

    def _revisions(self) -> list[int]:
        return [entries.revision for entries in self._maps.values()]

    def _write(self) -> Steps[None]:
        """Encode what has changed, then hand all of it to the file."""
        while stale := [entries for entries in self._maps.values() if entries.stale]:
            yield from stale[0].encode()
        self._encoding = False
        self._rounds.take()
        if not self._dirty:  # ``save_now`` came between
            self._rounds.end(good=True)
            return
        text = self._text()
        self._dirty = False
        self._writing = True
        self._taken()
        self._file.save(text)

    def _text(self) -> Callable[[], bytes]:
        """What makes the text of the table as it is now, in any thread."""
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
            self._kept()
        if self._writing:  # else what could not be saved before was saved again
            self._writing = False
            self._rounds.end(good)
            if good or self._dirty:
                self.save()


async def table_answer(
    table: SavedTable[Any], known: str | None, held: bool | None = None
) -> tuple[bytes, dict[str, str]]:
    """Body and header fields of an answer with a table: what a slave that knows the version
    ``known`` lacks. ``held``: an answer without news waits for some, for ``HELD_S`` at most."""
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
    """The entries of one large map as text, in the map's order. ``value`` gives the entry of a key;
    whoever changes one says so."""

    def __init__(self, value: Callable[[str], Any]) -> None:
        self._value = value
        self._pieces: dict[str, bytes] = {}
        self.revision = 0
        """Grows with every entry that is encoded, or removed."""
        self._revised: dict[str, int] = {}
        """The revision of each entry, the newest last."""
        self._removed_at = 0
        self.stale: dict[str, None] = {}
        """Keys of entries that have changed since they were encoded."""

    def add(self, *keys: str) -> None:
        """Entries are new, or may be."""
        for key in keys:
            self._pieces.setdefault(key, b"")
            self.stale[key] = None

    def remove(self, key: str) -> None:
        self.stale.pop(key, None)
        if self._pieces.pop(key, None) is not None:
            self._revised.pop(key, None)
            self.revision += 1
            self._removed_at = self.revision

    def since(self, revision: int) -> list[str] | None:
        """The keys of the entries that were encoded since; None: some were removed."""
        if revision < self._removed_at:
            return None
        found = []
        for key in reversed(self._revised):
            if self._revised[key] <= revision:
                break
            found.append(key)
        return found

    def encode(self) -> Steps[None]:
        """Encode what has changed, an entry a step."""
        while self.stale:
            key, _ = self.stale.popitem()
            self._pieces[key] = fastjson.encode_entry(key, self._value(key))
            self.revision += 1
            self._revised.pop(key, None)
            self._revised[key] = self.revision
            yield

    async def encoded(self) -> None:
        """Encode what has changed; others have their turn. All is encoded when this returns."""
        turns = Turns()
        for _ in self.encode():
            await turns.pause()

    def pieces(self, keys: Iterable[str] | None = None) -> list[bytes]:
        """Of all entries, or of those of ``keys``; what is still stale is encoded now."""
        finished(self.encode())
        if keys is None:
            return list(self._pieces.values())
        return [self._pieces[key] for key in keys]


class Rounds:
    """Futures for work that is done in rounds, such as saves. A round includes every change made
    before it began to take them. The futures are shared, and true if their round went well."""

    def __init__(self) -> None:
        self._next: asyncio.Future[bool] | None = None
        self._current: asyncio.Future[bool] | None = None

    def next(self) -> asyncio.Future[bool]:
        """The round that takes next."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return self._next

    def current(self) -> asyncio.Future[bool]:
        """The round that has taken and is not over."""
        if self._current is None:
            self._current = asyncio.get_running_loop().create_future()
        return self._current

    def take(self) -> None:
        """The next round takes what is there, and is the current one."""
        self._current, self._next = self._next, None

    def end(self, good: bool) -> None:
        """The current round is over."""
        current, self._current = self._current, None
        if current is not None and not current.done():
            current.set_result(good)


def settled(*, good: bool) -> asyncio.Future[bool]:
    """A round that is over."""
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    future.set_result(good)
    return future


async def in_time(seconds: float | None, *rounds: asyncio.Future[bool]) -> None:
    """Wait until these are over, and no longer."""
    waiting = [each for each in rounds if not each.done()]
    if waiting:
        await asyncio.wait(waiting, timeout=seconds)


async def not_saved(
    *tables: SavedTable[Any], told: Iterable[asyncio.Future[bool]] = ()
) -> Refusal | None:
    """Wait until what a request has changed is on the disk, and those are told who need to know.
    None; or the answer that says that it is not on the disk, for then a kill would take it back."""
    saving = [table.saving() for table in tables]
    await in_time(SAVE_WAIT_S, *saving, *told)
    if all(each.done() and each.result() for each in saving):
        return None
    return refusal(
        ResponseCode.SYSTEM_ERROR,
        "the change is made but not on the disk yet, which is full, slow or broken (the broker's "
        "log says which): saving is tried again until it works; if the broker is killed before "
        "that, the change is lost",
    )
