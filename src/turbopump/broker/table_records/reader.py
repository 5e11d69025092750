"""Reader of table changes in the log. It applies them to the tables of this broker.

A slave applies each record as it copies it, and every start applies those since the last save of
the tables. Records are applied in the order of the log. They replace the old values. Queues of a
deleted topic and users are changed in the background; ``applied_to`` does not pass such a record
before its change is on the disk.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from turbopump.auth.accounts import Accounts, AccountsChange
from turbopump.auth.sealing import unseal
from turbopump.auth.server_access import ServerAccess
from turbopump.broker.background import stop_task
from turbopump.broker.groups import GroupChange
from turbopump.broker.handlers.topics import TopicRecords
from turbopump.broker.offsets import OffsetChange
from turbopump.broker.stored import Stored
from turbopump.broker.table_records.record import (
    ACCOUNTS,
    GROUPS,
    LOCKS,
    MODES,
    OFFSETS,
    TOPICS,
    Change,
    decode_record,
)
from turbopump.broker.topics import TopicChange
from turbopump.errors import TurbopumpError
from turbopump.message.codec import decode_entry
from turbopump.message.rules import TABLE_RECORDS_TOPIC
from turbopump.protocol import fastjson
from turbopump.protocol.requests.assignment import SetMessageRequestModeRequestBody
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_not_applied = RepeatedLine(
    log, logging.ERROR, "change of a table in the log is left out offset=%d table=%s cause=%s"
)
_not_saved = RepeatedLine(
    log, logging.ERROR, "users and policies of the master cannot be saved, tried again cause=%s"
)

SEAL_TEXT: Final = "table record"
"""Text that takes the place of an asker's nonce in the seal of accounts."""
AGAIN_S: Final = 1.0
"""Seconds between a failed change of the accounts and the next attempt."""


class RecordReader:
    """Reader of table changes in the log. It applies them to the tables of this broker.

    - ``access``: the access control, or None without one. Records of accounts are then left out.
    - ``secret``: the secret that all brokers of the cluster share, or None without one.
    """

    def __init__(
        self, stored: Stored, records: TopicRecords, access: ServerAccess | None, secret: str | None
    ) -> None:
        self._store = stored.store
        self._records = records
        self._tables = stored.tables
        self._modes = stored.request_modes
        self._statistics = stored.statistics
        self._access = access
        self._secret = secret
        self._end = 0
        self._unfinished: dict[int, int] = {}
        """Number of unfinished changes by the log offset of their record."""
        self._accounts: list[tuple[int, AccountsChange]] = []
        self._is_replaying = False
        self._task: asyncio.Task[None] | None = None
        self._apply: dict[str, Callable[[int, Change], None]] = {
            TOPICS: self._apply_topic,
            GROUPS: self._apply_group,
            MODES: self._apply_modes,
            OFFSETS: self._apply_offsets,
            LOCKS: self._apply_lock,
            ACCOUNTS: self._apply_accounts,
        }

    @property
    def applied_to(self) -> int:
        """Log offset up to which all records are applied."""
        return min(self._unfinished, default=self._end)

    def replay(self, start: int) -> int:
        """Apply the records of the log from offset ``start`` on. Return their number.

        Raises OSError or ConfigError if the accounts cannot be changed.
        """
        self._end = start
        queue = self._store.queues.find(TABLE_RECORDS_TOPIC, 0)
        if queue is None:
            return 0
        first = queue.first_at(start)
        self._is_replaying = True
        for index in range(first, queue.max_index):
            unit = queue.unit(index)
            if unit is not None:
                self.apply_entry(unit[0], unit[1])
        self._is_replaying = False
        if self._access is not None and self._accounts:
            self._access.change_now(self._changed, lost=self._access.control.accounts)
            self._end_accounts(len(self._accounts))
        return queue.max_index - first

    def apply_entry(self, offset: int, size: int) -> None:
        """Apply the record in the entry at ``offset`` of the log.

        A change that cannot be applied is logged and left out, because later entries must be
        copied.
        """
        self._end = offset + size
        try:
            entry = self._store.log.read(offset, size)
            changes = decode_record(decode_entry(entry or b"").body)
        except TurbopumpError as error:
            _not_applied(offset, "?", error, kind="?")
            return
        for change in changes:
            try:
                self._apply[change.table](offset, change)
            except Exception as error:
                _not_applied(offset, change.table, error, kind=change.table, exc_info=True)

    async def stop(self) -> None:
        """Stop changing accounts. The method may be called twice."""
        await stop_task(self._task)

    # --- one table each

    def _apply_topic(self, offset: int, change: Change) -> None:
        name = change.key
        value = fastjson.decode(change.value, TopicChange)
        self._tables.topics.apply_change(name, value)
        if value.config is None:
            # The queues go, but for messages behind the record: those belong to a newer topic of
            # this name.
            self._statistics.forget_topic(name)
            self._records.held.expire_topic(name)
            self._begin(offset)
            self._store.delete_queues(name, lambda queues: self._deleted(offset, queues), offset)

    def _deleted(self, offset: int, queues: int | OSError) -> None:
        if isinstance(queues, OSError):
            _not_applied(offset, TOPICS, queues, kind=TOPICS)
        self._end_one(offset)

    def _apply_group(self, _offset: int, change: Change) -> None:
        value = fastjson.decode(change.value, GroupChange)
        self._tables.groups.apply_change(change.key, value)
        if value.config is None:
            self._statistics.forget_group(change.key)

    def _apply_modes(self, _offset: int, change: Change) -> None:
        modes = fastjson.decode(change.value, dict[str, SetMessageRequestModeRequestBody])
        self._modes.apply_change(change.key, modes)

    def _apply_offsets(self, _offset: int, change: Change) -> None:
        value = fastjson.decode(change.value, OffsetChange)
        self._tables.offsets.apply_change(change.key, value)

    def _apply_lock(self, _offset: int, change: Change) -> None:
        client_id: Any = msgspec.json.decode(change.value, type=str | None)
        self._tables.locks.apply_change(change.key, client_id)

    def _apply_accounts(self, offset: int, change: Change) -> None:
        if self._access is None or self._secret is None:
            return
        sealed = base64.b64decode(msgspec.json.decode(change.value, type=str))
        content = unseal(sealed, self._secret, SEAL_TEXT)
        self._accounts.append((offset, msgspec.json.decode(content, type=AccountsChange)))
        self._begin(offset)
        if not self._is_replaying and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._change_accounts(self._access))

    async def _change_accounts(self, access: ServerAccess) -> None:
        """Apply the waiting changes of accounts, in the thread of the disk."""
        while self._accounts:
            count = len(self._accounts)
            try:
                await access.change(partial(self._changed, count=count), access.control.accounts)
            except (TurbopumpError, OSError) as error:
                _not_saved(error, kind=str(error))
                await asyncio.sleep(AGAIN_S)
            else:
                self._end_accounts(count)

    def _changed(self, accounts: Accounts, count: int | None = None) -> Accounts:
        """Return the accounts after the first ``count`` waiting changes."""
        for _, change in self._accounts[:count]:
            accounts = accounts.with_change(change)
        return accounts

    def _end_accounts(self, count: int) -> None:
        for offset, _ in self._accounts[:count]:
            self._end_one(offset)
        del self._accounts[:count]

    # --- changes that end later

    def _begin(self, offset: int) -> None:
        self._unfinished[offset] = self._unfinished.get(offset, 0) + 1

    def _end_one(self, offset: int) -> None:
        self._unfinished[offset] -= 1
        if not self._unfinished[offset]:
            del self._unfinished[offset]
