"""Idempotent handling: each business key is handled once. The package has ``IdempotentConsumer``
and the stores of its keys."""

from turbopump.client.idempotence.consumer import IdempotentConsumer, TwinWaitError
from turbopump.client.idempotence.store import (
    Claim,
    IdempotenceStore,
    MemoryStore,
    RedisStore,
    SqliteStore,
)

__all__ = [
    "Claim",
    "IdempotenceStore",
    "IdempotentConsumer",
    "MemoryStore",
    "RedisStore",
    "SqliteStore",
    "TwinWaitError",
]
