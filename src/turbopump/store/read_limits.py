"""How much one read of a queue may give."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much one read may give: messages and bytes, while data is hot and when it is cold (more
    than ``hot_size`` bytes back)."""

    count_hot: int = 32
    bytes_hot: int = 256 * 1024
    count_cold: int = 8
    bytes_cold: int = 64 * 1024
    hot_size: int = 1 << 32
