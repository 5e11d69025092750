"""Record of changes to the tables of a broker, as the body of a message in the log.

::

    topic     rmq_sys_turbopump_table_records, queue 0; it is in no table of topics
    body      [[table, key, value], …]          JSON, at most RECORD_SIZE_MAX bytes
    topics    name        {"version": …, "config": settings or null}
    groups    name        {"version": …, "config": settings or null, "bans": {topic: bits}}
    requestModes  topic   {group: mode}
    offsets   topic@group {"offsets": {queue id: offset}, "isWhole": …, "resets": [queue id, …]}
    queueLocks  queueId@group@topic@brokerName   client id or null
    accounts  ""          base64 of the sealed users and policies that differ (``auth/sealing.py``)

A value is the whole new value of its key, so that a record may be applied twice. To add a table:
add its name and its line above, let it call ``note_change``, and give ``reader.py`` its
``apply_change``. A reader leaves out tables that it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from turbopump.errors import ProtocolError

TOPICS: Final = "topics"
GROUPS: Final = "groups"
MODES: Final = "requestModes"
OFFSETS: Final = "offsets"
LOCKS: Final = "queueLocks"
ACCOUNTS: Final = "accounts"

RECORD_SIZE_MAX: Final = 64 * 1024
"""Maximum bytes of a record with several changes. A larger change has a record of its own."""


class Change(msgspec.Struct, array_like=True, frozen=True):
    """New value of one entry of a table, as JSON."""

    table: str
    key: str
    value: msgspec.Raw


def change_of(table: str, key: str, value: Any) -> Change:
    """Return the change of the entry ``key`` of a table to ``value``."""
    return Change(table, key, msgspec.Raw(msgspec.json.encode(value)))


class Record(NamedTuple):
    """Body of one record, and the number of its changes."""

    body: bytes
    changes: int


def encode_record(changes: Sequence[Change]) -> Record:
    """Encode the first of these changes as one record, as many as fit."""
    size = 2
    count = 0
    for change in changes:
        size += len(change.table) + len(change.key.encode()) + len(change.value) + 16
        if count and size > RECORD_SIZE_MAX:
            break
        count += 1
    return Record(msgspec.json.encode(list(changes[:count])), count)


_decoder: Final = msgspec.json.Decoder(list[Change])


def decode_record(body: bytes) -> list[Change]:
    """Decode the changes in a record.

    Raises ProtocolError if the body is no record.
    """
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"no record of changes to tables: {error}") from None
