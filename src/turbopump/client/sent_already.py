"""Record of the messages that an earlier run has already sent to a target. The run was killed or
got no answer.

Resent dead letters and keyed rows of Spark are sent once each. Two properties of a message name its
sender and its id there. Before the sender sends again, it reads the target's queues and records the
found messages here. One rule: only the target decides which messages it has. This module must not
know how queues are read: ``dead_letters/target.py`` and ``spark/read_back.py`` do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from turbopump.message.message import MessageQueue


class SenderMark(NamedTuple):
    """Rule that recognises the messages of one sender by their properties.

    - ``sender``: name of the property that names the sender.
    - ``prefix``: beginning of the property's value in messages of this sender.
    - ``id``: name of the property with the message's id.
    """

    sender: str
    prefix: str
    id: str

    def id_of(self, properties: Mapping[str, str]) -> str | None:
        """Return the message's id if this sender sent the message, else None."""
        if not properties.get(self.sender, "").startswith(self.prefix):
            return None
        return properties.get(self.id, "")


@dataclass(eq=False)
class SentAlready:
    """Record of one sender's messages in a target.

    - ``ids``: number of copies by id.
    - ``read_to``: offset up to which each queue was read, so that no message is counted twice.
    """

    ids: Counter[str] = field(default_factory=Counter)
    read_to: dict[MessageQueue, int] = field(default_factory=dict)
