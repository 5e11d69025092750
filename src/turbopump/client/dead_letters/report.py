"""What became of dead letters that were to be resent. A value; it must not know how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from turbopump.client.dead_letters.dead_letter import DeadLetter

FAILURES_SHOWN: Final = 100


@dataclass(slots=True)
class ResendReport:
    """What became of the chosen letters.

    ``sent``: in this run. ``already``: resent before, as the journal says. ``recovered``: sent by a
    run that was killed, and found in the target when this one began; those of them that are chosen
    count as ``already``. ``elsewhere``: resent by somebody with another journal. ``failed``: place
    → why it was not sent (100 of them; ``failures`` counts). ``in_doubt``: may or may not be in the
    target; the next run finds out, if it can read the queues ``out_of_sight`` (queue → why this one
    could not). ``stopped``: why it did not go on to the end. In a dry run nothing is sent, and
    ``sent`` is what would be.
    """

    group: str
    dry_run: bool = False
    sent: int = 0
    already: int = 0
    recovered: int = 0
    elsewhere: int = 0
    failures: int = 0
    in_doubt: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    targets: dict[str, int] = field(default_factory=dict)
    out_of_sight: dict[str, str] = field(default_factory=dict)
    stopped: str | None = None

    @property
    def complete(self) -> bool:
        """Whether every chosen letter is in its target."""
        return not (self.failures or self.in_doubt or self.stopped)

    @property
    def handled(self) -> int:
        return self.sent + self.already + self.elsewhere + self.failures + self.in_doubt

    def fail(self, letter: DeadLetter, why: str) -> None:
        self.failures += 1
        if len(self.failed) < FAILURES_SHOWN:
            self.failed[letter.place] = why
