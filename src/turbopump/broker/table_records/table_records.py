"""Changes of a broker's tables as records in its log, in controller mode.

RocketMQ copies tables to slaves every ten seconds, so a topic that a client has made vanishes if
the master dies before that. Here the log carries each change. The rules:

- A master appends a record of each change. The answer waits until the record is confirmed, so every
  replica that may be elected has it (``held_changes.py``).
- A slave takes a snapshot of the master's tables before it copies the log (``slave_tables.py``).
  Then it applies records alone, as the log brings them. The snapshot also removes changes whose
  records were cut from the log.
- A start applies the records since the last save. ``config/tableRecords.json`` has the log offset
  up to which the saved tables have all records. The file is saved after the tables. Its offset is
  never beyond the end of the log, because another master may append other records there.

Not recorded: what belongs to one broker (its settings), and the progress of delays, timers and
ordered pops, which slaves copy as before.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
from functools import partial
from typing import Final

import msgspec

from turbopump.auth.accounts import Accounts
from turbopump.auth.sealing import NONCE_SIZE, seal
from turbopump.auth.server_access import ServerAccess
from turbopump.broker.background import stop_task
from turbopump.broker.forwarding import Forwarding
from turbopump.broker.handlers.topics import TopicRecords
from turbopump.broker.held_answers import confirm_wait_s
from turbopump.broker.store_opening import log_error, log_info
from turbopump.broker.stored import Stored
from turbopump.broker.table_records.held_changes import HeldChanges, refuse_changes
from turbopump.broker.table_records.reader import SEAL_TEXT, RecordReader
from turbopump.broker.table_records.record import ACCOUNTS, GROUPS, LOCKS, MODES, TOPICS
from turbopump.broker.table_records.writer import RecordWriter
from turbopump.disk.json_table import JsonTable
from turbopump.message.rules import TABLE_RECORDS_TOPIC
from turbopump.protocol import fastjson
from turbopump.protocol.requests.replication import RECORDS
from turbopump.remoting.router import Router

log = logging.getLogger(__name__)

FILE: Final = "tableRecords"


class RecordPosition(msgspec.Struct, kw_only=True, rename="camel"):
    """Contents of the file: log offset up to which the saved tables have all records."""

    applied_to: int = 0


class TableRecords:
    """Changes of a broker's tables as records in its log.

    ``writer`` is None at a slave. Call ``open`` before the broker serves clients, ``save`` every
    few seconds, and ``stop`` at the end.
    """

    def __init__(
        self,
        stored: Stored,
        forwarding: Forwarding,
        records: TopicRecords,
        access: ServerAccess | None,
    ) -> None:
        config = stored.config
        inner = config.inner_user
        self._stored = stored
        self._access = access
        self._secret = None if inner is None else inner[1]
        self._forwarding = forwarding
        self._file = JsonTable(stored.disk, stored.settings.paths.table(FILE), log_error, log_info)
        self._saved_to = 0
        self._saving: asyncio.Task[None] | None = None
        self.reader = RecordReader(stored, records, access, self._secret)
        self.writer: RecordWriter | None = None

    def open(self) -> None:
        """Apply the records since the last save. Then record changes, or apply copied ones.

        Raises OSError if the file of the position cannot be read or written.
        """
        stored = self._stored
        tables = stored.tables
        store = stored.store
        saved = self._file.load(partial(fastjson.decode, type=RecordPosition), RecordPosition)
        self._saved_to = min(saved.applied_to, store.log.end)
        if self._saved_to < saved.applied_to:  # the log was cut, and gets other records there
            for _ in range(2):  # the second save replaces the backup, too
                self._save_position(self._saved_to)
        tables.files.append(self._file)
        count = self.reader.replay(self._saved_to)
        if count:
            log.info("changes of tables applied from the log records=%d", count)
            tables.set_back_offsets(store)
        tables.save_too(self)
        if store.copied is not None:
            store.copied.watch(TABLE_RECORDS_TOPIC, self.reader.apply_entry)
        else:
            self._begin_writing()

    def _begin_writing(self) -> None:
        stored = self._stored
        tables = stored.tables
        writer = self.writer = RecordWriter(
            self._append, tables.offsets, tables.topics.note_recorded
        )
        tables.topics.note_change = partial(writer.note, TOPICS)
        tables.groups.note_change = partial(writer.note, GROUPS)
        tables.locks.note_change = partial(writer.note, LOCKS)
        tables.offsets.on_change = writer.note_offsets
        stored.request_modes.note_change = partial(writer.note, MODES)
        if self._access is not None and self._secret is not None:
            self._access.on_change = partial(self._note_accounts, writer, self._secret)
        elif self._access is not None:
            log.warning(
                "users and policies are not copied to other replicas: set "
                "innerClientAuthenticationCredentials to the same account on all brokers"
            )

    def hold_answers(self, *routers: Router) -> None:
        """Let these routers hold the answers to requests that change tables. A slave refuses the
        requests."""
        if self.writer is None:
            for router in routers:
                refuse_changes(router)
            return
        stored = self._stored
        seconds = confirm_wait_s(stored.config)
        held = HeldChanges(self.writer, stored.store.confirmed, seconds)
        for router in routers:
            held.add_to(router)

    def write(self) -> None:
        """Write all changes into the log now. Also call this when the log has a new file."""
        if self.writer is not None:
            self.writer.write()

    def _append(self, body: bytes) -> int:
        now = self._stored.clock.now_ms()
        host = self._forwarding.store_host
        put = self._forwarding.put_now
        return put(TABLE_RECORDS_TOPIC, 0, body, "", 0, now, host, own=True).log_end

    @staticmethod
    def _note_accounts(writer: RecordWriter, secret: str, old: Accounts, new: Accounts) -> None:
        content = msgspec.json.encode(old.change_to(new))
        sealed = seal(content, secret, SEAL_TEXT, secrets.token_bytes(NONCE_SIZE))
        writer.note(ACCOUNTS, "", base64.b64encode(sealed).decode())

    def figures(self) -> dict[str, str]:
        """Return figures for the runtime information of the broker.

        A slave learns from the key ``RECORDS`` that the log of this master has changes of tables.
        """
        return {} if self.writer is None else {RECORDS: "true"}

    # --- the position

    @property
    def _applied_to(self) -> int:
        written = 0 if self.writer is None else self.writer.end
        return max(written, self.reader.applied_to)

    def save(self) -> None:
        """Save the tables, and then the position, if there are new records."""
        self.write()  # also what could not be written before
        if self._applied_to > self._saved_to and (self._saving is None or self._saving.done()):
            self._saving = asyncio.create_task(self._save())

    async def _save(self) -> None:
        position = self._applied_to
        if await self._stored.save_recorded(None):
            self._saved_to = position
            self._file.save(fastjson.encode(RecordPosition(applied_to=position)))

    def save_now(self) -> None:
        """Save the position in this thread. The tables are saved before."""
        if self._applied_to > self._saved_to:
            self._save_position(self._applied_to)

    def _save_position(self, position: int) -> None:
        self._file.save_now(fastjson.encode(RecordPosition(applied_to=position)))
        self._saved_to = position

    async def stop(self) -> None:
        """Write the last changes, and stop. The method may be called twice."""
        if self.writer is not None:
            self.writer.close()
        await self.reader.stop()
        await stop_task(self._saving)
