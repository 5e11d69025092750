"""Messages that a target has already, of a sender that was killed or got no answer.

Resent dead letters and keyed rows of Spark are sent once each. Two properties of a message say who
sent it, and which of that sender's messages it is. Before the sender sends again, it reads the
target's queues and counts here what it finds. One rule: only the target says what it has. It must
not know how queues are read: ``dead_letters/target.py`` and ``spark/read_back.py`` do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from turbopump.message.message import MessageQueue


class SenderMark(NamedTuple):
    """Rule by which one sender's messages are recognised: the property ``sender`` begins with
    ``prefix``, and the property ``id`` tells them apart."""

    sender: str
    prefix: str
    id: str

    def id_of(self, properties: Mapping[str, str]) -> str | None:
        """Return the id of a message of this sender; None for a message of another."""
        if not properties.get(self.sender, "").startswith(self.prefix):
            return None
        return properties.get(self.id, "")


@dataclass(eq=False)
class SentAlready:
    """Messages found in a target. ``ids``: how often each is there. ``read_to``: the offset up to
    which each queue was read, so that no message is counted twice."""

    ids: Counter[str] = field(default_factory=Counter)
    read_to: dict[MessageQueue, int] = field(default_factory=dict)
