"""What can still be read of a JSON text that ends too early: the text up to its last whole member,
with its brackets closed.

It knows brackets, strings and commas, in fastjson's dialect too (``{0:5,1:7}``); whether the rest
means anything is for a decoder to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

TRIES: Final = 64
"""How many members from the end are given up at most: a damage may have left odd bytes before
it."""

_CLOSER: Final = {ord("{"): b"}", ord("["): b"]"}


def before_the_damage(data: bytes) -> Iterator[bytes]:
    """Closed texts that ``data`` begins with, the longest first; none if not even its first member
    is whole."""
    cuts: deque[tuple[int, bytes]] = deque(maxlen=TRIES)
    open_: list[bytes] = []
    in_string = escaped = False
    for at, byte in enumerate(data):
        if byte == 0:  # a power cut leaves zeros
            break
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in b"{[":
            open_.append(_CLOSER[byte])
        elif byte in b"}]":
            if not open_ or open_.pop() != bytes((byte,)):
                break
            cuts.append((at + 1, b"".join(reversed(open_))))
            if not open_:  # the whole of it: odd bytes follow
                break
        elif byte == 0x2C:
            cuts.append((at, b"".join(reversed(open_))))
    for end, closers in reversed(cuts):
        yield data[:end] + closers
