"""Dead letters: functions to list the groups with dead letters, to read the letters, and to resend
each letter once."""

from turbopump.client.dead_letters.dead_letter import (
    DeadGroup,
    DeadLetter,
    DeadLetters,
    InDoubt,
    ResendTo,
)
from turbopump.client.dead_letters.resending import ResendReport, resend, would_resend

__all__ = [
    "DeadGroup",
    "DeadLetter",
    "DeadLetters",
    "InDoubt",
    "ResendReport",
    "ResendTo",
    "resend",
    "would_resend",
]
