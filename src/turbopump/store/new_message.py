"""What goes into a store, and where it then is."""

from __future__ import annotations

import msgspec


class NewMessage(msgspec.Struct, frozen=True, gc=False):
    """A message to append. ``properties`` is UTF-8 property text that ends with its separator, or
    empty; ``tags_code`` as ``java_hash.tags_code`` makes it; ``unique`` and ``keys`` are what it is
    indexed by."""

    body: bytes
    properties: bytes
    tags_code: int
    flag: int = 0
    unique: str | None = None
    keys: str | None = None


class Placed(msgspec.Struct, frozen=True, gc=False):
    """Where a message, or the first of a batch, now is; ``log_end`` is what the flush must pass."""

    queue_offset: int
    offset: int
    log_end: int
