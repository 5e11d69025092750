"""Messages whose bodies cannot be read, as a client sends them that sets the wrong flags, between
good ones."""

from __future__ import annotations

import zlib
from typing import Final

from tests.unit.client.stored_batches import InnerBatch

from turbopump.message.batch import encode_item
from turbopump.protocol.requests.send import SendMessage
from turbopump.remoting.client import RemotingClient

POISON: Final = {
    "no zlib": (b'{"n": 1}', 0x001),
    "no zlib by its type": (b"\xff\xfe plain", 0x301),
    "no LZ4": (b"plain", 0x101),
    "no Zstandard": (b"plain", 0x201),
    "an unknown type": (b"plain", 0x701),
    "cut off": (zlib.compress(b"x" * 300)[:-5], 0x301),
}
"""What is stored, and its flags."""
GOOD: Final = b'{"n": 7}'
NESTED: Final = "k\x01a\x01b\x02"
"""The property ``k`` with a value that holds U+0001, as C++ clients nest property texts."""
BAD_BATCHES: Final = [
    InnerBatch(b"no batch at all", 3, 0x3C1),
    InnerBatch(zlib.compress(encode_item(0, b"in", b"") * 2), 3, 0x3C1),
    InnerBatch(zlib.compress(encode_item(0, b"one", b"") + encode_item(0, b"two", b"")), 2, 0x3C1),
]
"""Inner batches: the third one is good."""


async def send_poison(address: str, topic: str, *, properties: str = "") -> None:
    """One message of each kind, and a good one behind each, to queue 0 of the topic."""
    remoting = RemotingClient()
    try:
        for number, (body, flags) in enumerate(POISON.values()):
            text = f"UNIQ_KEY\x01P{number}\x02KEYS\x01key{number}\x02{properties}"
            request = SendMessage(topic=topic, queue_id=0, sys_flag=flags, properties=text)
            assert (await remoting.exchange(address, request, body, timeout=60)).code == 0
            text = f"UNIQ_KEY\x01G{number}\x02{NESTED}{properties}"
            request = SendMessage(topic=topic, queue_id=0, properties=text)
            assert (await remoting.exchange(address, request, GOOD, timeout=60)).code == 0
    finally:
        await remoting.close()
