"""Progress of a slave in copying, by its reports to the master.

Values in, values out: offsets and times (monotonic seconds). Sockets are unknown here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NEVER: Final = float("-inf")


@dataclass(slots=True)
class SlaveProgress:
    """Offset up to which a slave has the log, and the time at which it was caught up.

    - ``acked``: this offset, or -1 if it is unknown since the slave connected.
    - ``caught_up``: the time at which the slave last had the whole log.
    - ``report``: the time of its last report, or of its connection.
    - ``end_at_report``: the end of the master's log at that time, or 0 if unknown.
    """

    acked: int = -1
    caught_up: float = NEVER
    report: float = 0.0
    end_at_report: int = 0

    def acknowledge(self, acked: int, end: int, now: float) -> None:
        """Record a report of the slave.

        - ``acked``: the offset up to which the slave has the log.
        - ``end``: the end of the master's log.
        """
        # Under load a slave never has the whole log. So a slave counts as caught up when it has
        # everything that existed at its previous report, as in Apache Kafka.
        if acked >= end:
            self.caught_up = now
        elif acked >= self.end_at_report and self.acked >= 0:
            self.caught_up = max(self.caught_up, self.report)
        self.acked = max(self.acked, acked)
        self.report = now
        self.end_at_report = end
