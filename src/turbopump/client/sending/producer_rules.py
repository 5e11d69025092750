"""What the settings of a producer must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from turbopump.client.hooks import SendHook
from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.sending.back_pressure import BackPressure
from turbopump.client.sending.faults import LatencyFaults
from turbopump.client.setting_rules import SWITCH, Rule, is_collection, is_whole
from turbopump.message.compression import DECOMPRESSED_SIZE_MAX


def _are_codes(value: object) -> bool:
    return is_collection(value) and all(map(is_whole, value))


def _are_hooks(value: object) -> bool:
    return is_collection(value) and all(isinstance(hook, SendHook) for hook in value)


def _made_as(kind: type, example: str) -> Rule:
    wants = f"must be made as {kind.__name__}, as in {example}, or None to go without"
    return Rule(lambda value: value is None or isinstance(value, kind), wants)


PRODUCER_RULES: Final[Mapping[str, Rule]] = {
    "retry_codes": Rule(_are_codes, "must be a collection of response codes, as in (2, 14)"),
    "retry_unless_ok": SWITCH,
    "latency_faults": _made_as(LatencyFaults, "LatencyFaults()"),
    "body_size_max": Rule(
        lambda size: is_whole(size) and 0 < size <= DECOMPRESSED_SIZE_MAX,
        f"must be a number of bytes above 0 and at most {DECOMPRESSED_SIZE_MAX}, the longest "
        "body that consumers decompress",
    ),
    "back_pressure": _made_as(BackPressure, "BackPressure(messages=1000)"),
    "auto_batch": _made_as(AutoBatch, "AutoBatch()"),
    "hooks": Rule(
        _are_hooks,
        "must be a list of SendHook objects: write a class of your own that inherits "
        "SendHook, give [YourHook()]",
    ),
}
"""Those that are checked nowhere else: ``SendRules`` and ``Compression`` check theirs."""
