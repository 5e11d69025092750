"""The store in this process's memory: for one process, and gone with it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from turbopump.client.idempotence.idempotence_rules import MEMORY_RULES
from turbopump.client.idempotence.store import Claim
from turbopump.client.setting_rules import check
from turbopump.client.surroundings import SYSTEM_CLOCK
from turbopump.clock import Clock

MAX_KEYS: Final = 100_000


class MemoryStore:
    """``max_keys``: so many done keys are kept at most, the latest. Some 200 bytes a key. Belongs
    to one event loop. Raises ConfigError."""

    def __init__(self, *, max_keys: int = MAX_KEYS, clock: Clock | None = None) -> None:
        check(MEMORY_RULES, locals())
        self._max_keys = max_keys
        self._clock = clock or SYSTEM_CLOCK
        self._held: dict[str, tuple[str, float]] = {}
        self._done: OrderedDict[str, float] = OrderedDict()
        """Key → until when; in the order of becoming done."""

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
        """Keys that are remembered."""
        return len(self._held) + len(self._done)

    def _is_owners(self, key: str, owner: str) -> bool:
        held = self._held.get(key)
        return held is not None and held[0] == owner

    def _forget(self, now: float) -> None:
        """A few of those whose time is over, the oldest first."""
        for _ in range(4):
            oldest = next(iter(self._done.items()), None)
            if oldest is None or oldest[1] > now:
                return
            del self._done[oldest[0]]
