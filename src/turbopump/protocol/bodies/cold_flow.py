"""How much groups read of what may not be in memory (2003). One rule: the field names are Apache's.
It must not know what cold is."""

from __future__ import annotations

import msgspec

from turbopump.message.integers import Int64


class ColdReading(msgspec.Struct, kw_only=True, rename="camel"):
    """One group: bytes of the five seconds that run; when it read first and last (ms)."""

    cold_acc: Int64 = 0
    last_cold_read_time_mills: Int64 = 0
    create_time_mills: Int64 = 0


class ColdFlowInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """All of it; `config_table` has the thresholds of single groups."""

    runtime_table: dict[str, ColdReading] = msgspec.field(default_factory=dict)
    config_table: dict[str, Int64] = msgspec.field(default_factory=dict)
    cg_cold_read_threshold: Int64 = 0
    global_cold_read_threshold: Int64 = 0
    global_acc: Int64 = 0
