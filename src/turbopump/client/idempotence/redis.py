"""The store in Redis: for consumers on many machines. Needs the extra ``turbopump[redis]``.

::

    {prefix}:k:KEY      "h" + owner, expires with the lease;  "d", expires when it need no longer be known that it is done
    {prefix}:done       sorted set: done keys by the server's time, to keep so many at most

Each operation is one script, which Redis runs without interruption; times are the server's own. The
braces keep all of it on one node of a Redis Cluster.
"""

from __future__ import annotations

from typing import Any, Final

from turbopump.client.idempotence.idempotence_rules import REDIS_RULES
from turbopump.client.idempotence.store import Claim
from turbopump.client.setting_rules import check
from turbopump.errors import ConfigError

MAX_KEYS: Final = 1_000_000
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
    """``url``: as ``redis://host:6379/0``. ``prefix``: what its keys begin with. ``max_keys``: so
    many done keys are kept at most. ``timeout``: seconds after which a Redis that does not answer
    counts as failed.

    What Redis forgets, by a failover before it was replicated or by ``maxmemory-policy``, is not
    done for this store. Belongs to one event loop. Raises ConfigError for unusable settings, and if
    the package ``redis`` is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "turbopump",
        max_keys: int = MAX_KEYS,
        timeout: float = TIMEOUT_S,
    ) -> None:
        check(REDIS_RULES, locals())
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
                f"url={url!r:.80} is no address of a Redis, as redis://host:6379/0 is: {error}"
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
