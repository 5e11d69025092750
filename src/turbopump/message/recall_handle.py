"""What a producer needs to call a timer message back: where it waits, for when, and its unique id.

::

    URL-safe Base64 of:   v1 <topic> <broker> <time in ms> <unique id>        separated by single spaces

The time is that of the message's slot, plus 1. The unique id is the rest, spaces and all; RocketMQ
reads it up to its first space. Source: apache/rocketmq ``RecallMessageHandle``.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from turbopump.errors import MessageError


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """``time_text`` as it stands in the handle."""

    topic: str
    broker_name: str
    time_text: str
    unique_id: str

    @property
    def time_ms(self) -> int:
        """−1 if it is no number."""
        text = self.time_text
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1

    def encode(self) -> str:
        raw = f"v1 {self.topic} {self.broker_name} {self.time_text} {self.unique_id}"
        return base64.urlsafe_b64encode(raw.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """Raises MessageError for text that is none."""
        try:
            padded = text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)
            raw = base64.b64decode(padded.encode(), altchars=b"-_", validate=True).decode()
        except (binascii.Error, ValueError):
            raw = ""
        parts = raw.split(" ", 4)
        if len(parts) < 5 or parts[0] != "v1" or not all(parts):
            raise MessageError(
                "recall handle is invalid: give the recall_handle of the SendResult that the "
                "timer message was answered with"
            )
        return cls(*parts[1:])


def delete_key(topic: str, unique_id: str) -> str:
    """What names the message that a recall is for. RocketMQ:
    ``TimerMessageStore.buildDeleteKey``."""
    return f"{topic}+{unique_id}"
