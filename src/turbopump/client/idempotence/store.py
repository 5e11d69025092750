"""Stores of idempotent consumers. A store keeps the state of each key: absent, claimed or done.

::

    absent ──claim──► claimed (owner, lease) ──finish──► done (kept for a while) ──► absent
       ▲                    │
       └──release, or the lease expires

One rule: every transition is one atomic operation of the store. Other threads, processes and
machines see the state before or after it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from os import PathLike
from typing import Any, Final, Protocol, TypeVar

from turbopump.client.environment import CLOCK, SYSTEM_CLOCK
from turbopump.client.setting_rules import (
    SECONDS,
    SWITCH,
    SettingRule,
    is_name,
    is_path,
    whole_from,
)
from turbopump.clock import Clock
from turbopump.errors import ConfigError

STORE_METHODS: Final = ("claim", "renew", "finish", "release", "close")
_KEYS: Final = whole_from(1, " of keys")
_PATH: Final = SettingRule(is_path, "must be the path of a file")
_URL: Final = SettingRule(is_name, "must be text, as in 'redis://host:6379/0'")
_PREFIX: Final = SettingRule(is_name, "must be text that is not empty, as in 'turbopump'")


class Claim(Enum):
    """Outcome of the attempt to claim a key.

    - ``YOURS``: the caller has the key now.
    - ``HELD``: another owner has the key.
    - ``DONE``: the key was handled before.
    """

    YOURS = "yours"
    HELD = "held"
    DONE = "done"


class IdempotenceStore(Protocol):
    """Store of business keys. It records each key as claimed or done.

    ``owner`` distinguishes claims. Durations are in seconds. Methods raise the errors of the
    store's library.
    """

    async def claim(self, key: str, owner: str, lease: float) -> Claim:
        """Claim the key for ``lease`` seconds, and return the outcome.

        The claim succeeds if the key is absent, or the lease of another owner is over.
        """

    async def renew(self, key: str, owner: str, lease: float) -> bool:
        """Extend the lease of a claimed key to ``lease`` seconds from now.

        Returns False if the owner no longer has the key.
        """

    async def finish(self, key: str, owner: str, keep: float) -> bool:
        """Mark the key as done. The store forgets the mark after ``keep`` seconds.

        Returns False if the owner no longer had the key. The key is done nevertheless.
        """

    async def release(self, key: str, owner: str) -> None:
        """Remove the key, so that others can claim it. Do nothing if ``owner`` does not have the
        key."""

    async def close(self) -> None:
        """Close files, threads and connections of the store. A second call does nothing."""


MAX_KEYS: Final = 100_000


class MemoryStore:
    """Store of keys in the memory of this process.

    Use it on one event loop only. Raises ConfigError for unusable arguments.

    - ``max_keys``: maximum number of finished keys, of some 200 bytes each.
    """

    def __init__(self, *, max_keys: int = MAX_KEYS, clock: Clock | None = None) -> None:
        _KEYS.check("max_keys", max_keys)
        CLOCK.check("clock", clock)
        self._max_keys = max_keys
        self._clock = clock or SYSTEM_CLOCK
        self._held: dict[str, tuple[str, float]] = {}
        self._done: OrderedDict[str, float] = OrderedDict()
        """Expiry time of each finished key, in the order in which they finished."""

    async def claim(self, key: str, owner: str, lease: float) -> Claim:
        now = self._clock.monotonic()
        self._forget(now)
        if self._done.get(key, now) > now:
            return Claim.DONE
        held = self._held.get(key)
        if held is not None and held[1] > now:
            return Claim.HELD
        self._held[key] = owner, now + lease
        return Claim.YOURS

    async def renew(self, key: str, owner: str, lease: float) -> bool:
        mine = self._is_owners(key, owner)
        if mine:
            self._held[key] = owner, self._clock.monotonic() + lease
        return mine

    async def finish(self, key: str, owner: str, keep: float) -> bool:
        mine = self._is_owners(key, owner)
        if mine:
            del self._held[key]
        self._done.pop(key, None)
        self._done[key] = self._clock.monotonic() + keep
        if len(self._done) > self._max_keys:
            self._done.popitem(last=False)
        return mine

    async def release(self, key: str, owner: str) -> None:
        if self._is_owners(key, owner):
            del self._held[key]

    async def close(self) -> None:
        pass

    def __len__(self) -> int:
        """Return the number of claimed and done keys."""
        return len(self._held) + len(self._done)

    def _is_owners(self, key: str, owner: str) -> bool:
        held = self._held.get(key)
        return held is not None and held[0] == owner

    def _forget(self, now: float) -> None:
        """Remove at most four expired keys, the oldest first."""
        for _ in range(4):
            oldest = next(iter(self._done.items()), None)
            if oldest is None or oldest[1] > now:
                return
            del self._done[oldest[0]]


T = TypeVar("T")

SQLITE_MAX_KEYS: Final = 1_000_000
BUSY_S: Final = 10.0
"""Maximum time in seconds for which an operation waits while another process writes."""
FORGET_EVERY: Final = 256
# ``owner`` is NULL if the key is done. ``until_ms`` is wall time, because other processes read it.
# Each operation is one transaction, in the thread of the store.
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS idempotence \
(key TEXT PRIMARY KEY, owner TEXT, until_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS idempotence_until ON idempotence (until_ms);
"""


class SqliteStore:
    """Store of keys in an SQLite file, for the processes of one machine.

    Finished keys survive a kill of the process.

    - ``path``: file, created if it does not exist. It must not be on a network file system.
    - ``max_keys``: maximum number of keys; the oldest are removed. The store checks the number
      at the start, and every 256 finished keys.
    - ``durable``: True if finished keys must also survive a power failure. Each operation then
      costs one fsync.

    Raises ConfigError for unusable arguments.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        max_keys: int = SQLITE_MAX_KEYS,
        durable: bool = False,
        clock: Clock | None = None,
    ) -> None:
        _PATH.check("path", path)
        _KEYS.check("max_keys", max_keys)
        SWITCH.check("durable", durable)
        CLOCK.check("clock", clock)
        self._path = path
        self._max_keys = max_keys
        self._durable = durable
        self._clock = clock or SYSTEM_CLOCK
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._finished = 0

    async def claim(self, key: str, owner: str, lease: float) -> Claim:
        def work(connection: sqlite3.Connection, now: int) -> Claim:
            select = "SELECT owner, until_ms FROM idempotence WHERE key = ?"
            row = connection.execute(select, (key,)).fetchone()
            if row is not None and row[1] > now:
                return Claim.DONE if row[0] is None else Claim.HELD
            values = (key, owner, now + int(lease * 1000))
            connection.execute("REPLACE INTO idempotence VALUES (?, ?, ?)", values)
            return Claim.YOURS

        return await self._run(work)

    async def renew(self, key: str, owner: str, lease: float) -> bool:
        def work(connection: sqlite3.Connection, now: int) -> bool:
            update = "UPDATE idempotence SET until_ms = ? WHERE key = ? AND owner = ?"
            renewed = connection.execute(update, (now + int(lease * 1000), key, owner))
            return renewed.rowcount == 1

        return await self._run(work)

    async def finish(self, key: str, owner: str, keep: float) -> bool:
        def work(connection: sqlite3.Connection, now: int) -> bool:
            select = "SELECT 1 FROM idempotence WHERE key = ? AND owner = ?"
            held = connection.execute(select, (key, owner)).fetchone()
            until = now + int(keep * 1000)
            connection.execute("REPLACE INTO idempotence VALUES (?, NULL, ?)", (key, until))
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
        thread = self._thread
        self._thread = None
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


def _forget(connection: sqlite3.Connection, now: int, max_keys: int) -> None:
    """Delete expired keys, and the oldest finished keys above the maximum number."""
    connection.execute("DELETE FROM idempotence WHERE until_ms <= ?", (now,))
    (count,) = connection.execute("SELECT COUNT(*) FROM idempotence").fetchone()
    if count > max_keys:
        connection.execute(
            "DELETE FROM idempotence WHERE key IN (SELECT key FROM idempotence WHERE owner IS "
            "NULL ORDER BY until_ms LIMIT ?)",
            (count - max_keys,),
        )


#     {prefix}:k:KEY   "h" + owner, expires with the lease;  "d" (done), expires with ``keep``
#     {prefix}:done    sorted set: done keys by the server's time, to find the oldest
#
# Each operation is one script, which Redis runs without interruption; times are the server's own.
# The braces keep all of it on one node of a Redis Cluster.

REDIS_MAX_KEYS: Final = 1_000_000
TIMEOUT_S: Final = 5.0
_CLAIM: Final = """
local now = redis.call('GET', KEYS[1])
if now == 'd' then return 'done' end
if now then return 'held' end
redis.call('SET', KEYS[1], 'h' .. ARGV[1], 'PX', ARGV[2])
return 'yours'
"""
_RENEW: Final = """
if redis.call('GET', KEYS[1]) ~= 'h' .. ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
_FINISH: Final = """
local mine = redis.call('GET', KEYS[1]) == 'h' .. ARGV[1]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('SET', KEYS[1], 'd', 'PX', ARGV[2])
redis.call('ZADD', KEYS[2], now + ARGV[2], KEYS[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local over = redis.call('ZCARD', KEYS[2]) - ARGV[3]
if over > 0 then
  for i, key in ipairs(redis.call('ZRANGE', KEYS[2], 0, math.min(over, 64) - 1)) do
    if key ~= KEYS[1] then
      if redis.call('GET', key) == 'd' then redis.call('DEL', key) end
      redis.call('ZREM', KEYS[2], key)
    end
  end
end
return mine and 1 or 0
"""
_RELEASE: Final = """
if redis.call('GET', KEYS[1]) == 'h' .. ARGV[1] then redis.call('DEL', KEYS[1]) end
return 0
"""


class RedisStore:
    """Store of keys in Redis, for consumers on many machines. Needs the extra ``turbopump[redis]``.

    - ``url``: for example ``redis://host:6379/0``.
    - ``prefix``: prefix of the store's keys in Redis.
    - ``max_keys``: maximum number of finished keys.
    - ``timeout``: seconds after which a Redis that does not answer counts as failed.

    If Redis loses a key, by a failover before replication or by ``maxmemory-policy``, the key is no
    longer done. Use the store on one event loop only. Raises ConfigError for unusable settings, and
    if the package ``redis`` is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "turbopump",
        max_keys: int = REDIS_MAX_KEYS,
        timeout: float = TIMEOUT_S,
    ) -> None:
        _URL.check("url", url)
        _PREFIX.check("prefix", prefix)
        _KEYS.check("max_keys", max_keys)
        SECONDS.check("timeout", timeout)
        try:
            from redis import asyncio as redis
        except ImportError:
            raise ConfigError("RedisStore needs the package redis: pip install redis") from None
        self._prefix = f"{{{prefix}}}"
        self._max_keys = max_keys
        try:
            self._redis: Any = redis.Redis.from_url(
                url, decode_responses=True, socket_timeout=timeout, socket_connect_timeout=timeout
            )
        except ValueError as error:
            raise ConfigError(
                f"url={url!r:.80} must be the address of a Redis, as in "
                f"redis://host:6379/0: {error}"
            ) from None
        self._claim = self._redis.register_script(_CLAIM)
        self._renew = self._redis.register_script(_RENEW)
        self._finish = self._redis.register_script(_FINISH)
        self._release = self._redis.register_script(_RELEASE)

    async def claim(self, key: str, owner: str, lease: float) -> Claim:
        return Claim(await self._claim(keys=[self._key(key)], args=[owner, _ms(lease)]))

    async def renew(self, key: str, owner: str, lease: float) -> bool:
        return bool(await self._renew(keys=[self._key(key)], args=[owner, _ms(lease)]))

    async def finish(self, key: str, owner: str, keep: float) -> bool:
        keys = [self._key(key), f"{self._prefix}:done"]
        return bool(await self._finish(keys=keys, args=[owner, _ms(keep), self._max_keys]))

    async def release(self, key: str, owner: str) -> None:
        await self._release(keys=[self._key(key)], args=[owner])

    async def close(self) -> None:
        await self._redis.aclose()

    def _key(self, key: str) -> str:
        return f"{self._prefix}:k:{key}"


def _ms(seconds: float) -> int:
    return max(int(seconds * 1000), 1)
