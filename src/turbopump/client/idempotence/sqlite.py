"""The store in an SQLite file: for the processes of one machine, and there after a kill.

::

    idempotence(key TEXT PRIMARY KEY, owner TEXT or NULL if done, until_ms INTEGER)

Each operation is one transaction, in a thread of the store's own. One rule: times are wall times,
for other processes read them.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from typing import Final, TypeVar

from turbopump.client.idempotence.idempotence_rules import SQLITE_RULES
from turbopump.client.idempotence.store import Claim
from turbopump.client.setting_rules import check
from turbopump.client.surroundings import SYSTEM_CLOCK
from turbopump.clock import Clock

T = TypeVar("T")

MAX_KEYS: Final = 1_000_000
BUSY_S: Final = 10.0
"""So long an operation waits while another process writes."""
FORGET_EVERY: Final = 256
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS idempotence (key TEXT PRIMARY KEY, owner TEXT, until_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS idempotence_until ON idempotence (until_ms);
"""


class SqliteStore:
    """``path``: the file, made if it is not there; not on a network file system. ``max_keys``: so
    many keys are kept at most, the latest (checked when it is opened, and every 256 finished ones).
    ``durable``: what is done stays so after a power cut too (one fsync per operation); without,
    only after a kill. Raises ConfigError."""

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        max_keys: int = MAX_KEYS,
        durable: bool = False,
        clock: Clock | None = None,
    ) -> None:
        check(SQLITE_RULES, locals())
        self._path = path
        self._max_keys = max_keys
        self._durable = durable
        self._clock = clock or SYSTEM_CLOCK
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._finished = 0

    async def claim(self, key: str, owner: str, lease: float) -> Claim:
        return await self._run(
            lambda connection, now: _claim(connection, now, key, owner, int(lease * 1000))
        )

    async def renew(self, key: str, owner: str, lease: float) -> bool:
        def work(connection: sqlite3.Connection, now: int) -> bool:
            until = now + int(lease * 1000)
            renewed = connection.execute(
                "UPDATE idempotence SET until_ms = ? WHERE key = ? AND owner = ?",
                (until, key, owner),
            )
            return renewed.rowcount == 1

        return await self._run(work)

    async def finish(self, key: str, owner: str, keep: float) -> bool:
        def work(connection: sqlite3.Connection, now: int) -> bool:
            held = connection.execute(
                "SELECT 1 FROM idempotence WHERE key = ? AND owner = ?", (key, owner)
            ).fetchone()
            connection.execute(
                "REPLACE INTO idempotence VALUES (?, NULL, ?)", (key, now + int(keep * 1000))
            )
            self._finished += 1
            if self._finished % FORGET_EVERY == 0:
                _forget(connection, now, self._max_keys)
            return held is not None

        return await self._run(work)

    async def release(self, key: str, owner: str) -> None:
        def work(connection: sqlite3.Connection, _now: int) -> None:
            connection.execute("DELETE FROM idempotence WHERE key = ? AND owner = ?", (key, owner))

        await self._run(work)

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._close)
            thread.shutdown(wait=False)

    async def _run(self, work: Callable[[sqlite3.Connection, int], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="turbopump-idempotence")

        def transaction() -> T:
            begins = self._connection is None
            connection = self._connection or self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                if begins:
                    _forget(connection, self._clock.now_ms(), self._max_keys)
                result = work(connection, self._clock.now_ms())
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            return result

        return await asyncio.get_running_loop().run_in_executor(self._thread, transaction)

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
            connection.executescript(_SCHEMA)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _claim(connection: sqlite3.Connection, now: int, key: str, owner: str, lease_ms: int) -> Claim:
    row = connection.execute(
        "SELECT owner, until_ms FROM idempotence WHERE key = ?", (key,)
    ).fetchone()
    if row is not None and row[1] > now:
        return Claim.DONE if row[0] is None else Claim.HELD
    connection.execute("REPLACE INTO idempotence VALUES (?, ?, ?)", (key, owner, now + lease_ms))
    return Claim.YOURS


def _forget(connection: sqlite3.Connection, now: int, max_keys: int) -> None:
    """Those whose time is over, and the oldest done ones above the maximum."""
    connection.execute("DELETE FROM idempotence WHERE until_ms <= ?", (now,))
    (count,) = connection.execute("SELECT COUNT(*) FROM idempotence").fetchone()
    if count > max_keys:
        connection.execute(
            "DELETE FROM idempotence WHERE key IN (SELECT key FROM idempotence WHERE owner IS "
            "NULL ORDER BY until_ms LIMIT ?)",
            (count - max_keys,),
        )
