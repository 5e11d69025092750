"""Handling each business key once: ``IdempotentConsumer`` and the stores that remember for it."""

from turbopump.client.idempotence.consumer import IdempotentConsumer, TwinWaitError
from turbopump.client.idempotence.memory import MemoryStore
from turbopump.client.idempotence.redis import RedisStore
from turbopump.client.idempotence.sqlite import SqliteStore
from turbopump.client.idempotence.store import Claim, IdempotenceStore

__all__ = [
    "Claim",
    "IdempotenceStore",
    "IdempotentConsumer",
    "MemoryStore",
    "RedisStore",
    "SqliteStore",
    "TwinWaitError",
]
