"""Check that a slave's log agrees with the log of an Apache master.

Apache's master can return the message at an offset (request 33) and the offset at which its log
begins (28). The slave compares its newest message, older ones at growing distances, and the first
messages of its last files. Two logs that have diverged have different messages at their ends. Only
an equal message proves anything, and the newest one must be equal. Our own masters compare every
byte (``turbopump.replication.comparison``).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from turbopump.broker.reading import ask
from turbopump.errors import CopyError, ProtocolError
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.pull import ViewMessageById
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.turns import Turns
from turbopump.store.log.cold_reads import ReadSteps
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.lookup import StoredEntry

ANSWER_S: Final = 5.0
DOUBLINGS: Final = 16
"""Number of messages compared before the newest one. Each is twice as far back as the one before
it."""
FILES: Final = 8
NOT_FOUND: Final = "can not find message by the offset"


async def compare_with_apache(
    store: MessageStore, turns: Turns, remoting: RemotingClient, master: str, begins: int, ends: int
) -> int:
    """Compare sample messages of this log with the log of an Apache master. Return the number of
    equal messages.

    - ``begins`` and ``ends``: the offsets at which the master's log begins and ends.

    Raises CopyError if the master has another log. Raises ProtocolError if that cannot be
    determined now. Raises RemotingError if the master does not answer.
    """
    end = store.log.end
    if end > ends:
        raise CopyError(
            f"the log here ends at {end}, but that of the master at {master} at {ends}: the "
            "master was restored from an older copy, or lost its tail. Nothing is cut "
            "automatically: make this slave the master, or empty this store so that it is "
            "copied again"
        )
    if end < begins:
        raise CopyError(
            f"the log here ends at {end}, but that of the master at {master} begins at {begins}: "
            "older files were deleted; empty this store so that it is copied again"
        )
    equal = 0
    samples = sorted(await ask(store.cold_reads, _samples(store), turns), reverse=True)
    for offset in samples:
        here = await ask(store.cold_reads, store.lookup.entry_at(offset), turns)
        if here is None or here.fault is not None:
            if offset == samples[0]:  # what is before it may be the same in another log
                raise ProtocolError(
                    f"the newest message here, at offset {offset}, is damaged or not yet "
                    "on the disk, so it cannot be compared with the master's. If this "
                    "error stays, run turbopump store verify, or empty this store to "
                    "copy it again"
                )
            continue
        if offset < begins:
            continue
        answer = await remoting.exchange(master, ViewMessageById(offset=offset), timeout=ANSWER_S)
        other = answer.code == ResponseCode.SUCCESS and answer.body != here.data
        if other or (answer.remark or "").startswith(NOT_FOUND):
            raise CopyError(_another_log(master, here))
        if answer.code != ResponseCode.SUCCESS:
            raise ProtocolError(
                f"the message at offset {offset} cannot be compared with that of the master at "
                f"{master}: code {answer.code} {answer.remark or ''}"
            )
        equal += 1
    if not equal:
        raise ProtocolError(
            f"no message here can be compared with one of the master at {master}, so the "
            "two logs may differ. Empty this store to copy it again"
        )
    return equal


def _samples(store: MessageStore) -> ReadSteps[set[int]]:
    """Return the offsets of the messages to compare.

    These are the newest message, older ones of its queue, and the first messages of the last files.
    """
    found = {file.start for file in store.log.files.files[-FILES:] if file.start < store.log.end}
    newest = -1
    of = None
    for queue in list(store.queues):
        units = yield from _offsets(store, queue.topic, queue.queue_id, queue.end.value - 1)
        for offset in units:
            if offset > newest:
                newest = offset
                of = queue
    found.add(max(newest, store.lookup.index_end[0]))
    if of is not None:
        for index in _back(of.end.value - 1):
            found.update((yield from _offsets(store, of.topic, of.queue_id, index)))
    return found


def _back(index: int) -> Iterator[int]:
    for doubling in range(DOUBLINGS):
        if index - (1 << doubling) < 0:
            return
        yield index - (1 << doubling)


def _offsets(store: MessageStore, topic: str, queue_id: int, index: int) -> ReadSteps[list[int]]:
    if index < 0:
        return []
    found = yield from store.lookup.units(topic, queue_id, index, 1)
    units = found.units if found is not None else None
    return [offset for offset, size, _ in units or () if size > 0 and 0 <= offset < store.log.end]


def _another_log(master: str, here: StoredEntry) -> str:
    stored = datetime.fromtimestamp(here.message.store_timestamp / 1000, UTC)
    return (
        f"the master at {master} has another log: at offset {here.offset} this store has "
        f"a message of topic {here.message.topic}, stored at {stored:%Y-%m-%dT%H:%M:%SZ}, "
        "and the master has another message or none. Either this store has messages that "
        "the master never had, or the master has lost some. This broker deletes nothing: "
        "read the messages with turbopump store dump, then empty this store to copy it "
        "again"
    )
