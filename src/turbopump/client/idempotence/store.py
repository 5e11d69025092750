"""What an idempotent consumer asks of a store: three states of a key, and who may change them.

::

    absent ──claim──► in hand (owner, lease) ──finish──► done (kept for a while) ──► absent
       ▲                    │
       └──release, or the lease expires

One rule: every step is one atomic operation of the store, so that twins in other threads, processes
and machines see either side of it.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class Claim(Enum):
    """What became of a claim: the key is yours; another has it in hand; it is done."""

    YOURS = "yours"
    HELD = "held"
    DONE = "done"


class IdempotenceStore(Protocol):
    """Where it is written down which keys are in hand and which are done. ``owner`` tells claims
    apart. Durations in seconds.

    Methods raise what the store's library raises when it cannot be asked.
    """

    async def claim(self, key: str, owner: str, lease: float) -> Claim:
        """Take the key in hand for ``lease`` seconds, if it is absent or another's lease is
        over."""

    async def renew(self, key: str, owner: str, lease: float) -> bool:
        """Have it for ``lease`` seconds from now; False if it is no longer the owner's."""

    async def finish(self, key: str, owner: str, keep: float) -> bool:
        """It is done, and stays so for ``keep`` seconds; False if it was no longer the owner's (it
        is done all the same)."""

    async def release(self, key: str, owner: str) -> None:
        """It is absent again, if it is the owner's."""

    async def close(self) -> None:
        """Let go of files, threads and connections. May be called twice."""
