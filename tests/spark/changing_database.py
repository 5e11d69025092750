"""A table that changes at random, and its changes as canal sends them.

As canal does with a hash of the key: a message goes to the queue of its row's new key, so that a
changed key comes in another queue than the row before. Canal sends a part again if it was
interrupted, with the same ``es`` and a new ``ts``. Times of statements run backwards a little,
because a statement may wait for a lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.spark.canal_messages import canal

Row = dict[str, str]


@dataclass
class ChangingDatabase:
    """``messages`` has the queue and body of each message; ``rows`` is the table at the end."""

    seed: int
    changes: int
    keys: int = 12
    queues: int = 3
    ties: bool = True
    """True if canal reads a whole transaction in the same millisecond."""
    rows: dict[str, Row] = field(default_factory=dict)
    messages: list[tuple[int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._clock = 1_700_000_000_000
        self._sent: list[list[tuple[int, dict[str, Any]]]] = []
        self._value = 0
        while sum(map(len, self._sent)) < self.changes:
            self._sent.append([])
            for _ in range(self._random.choice([1, 1, 2, 4])):  # statements of a transaction
                self._change()
            self._clock += self._random.choice([1, 5, 700])
            if self._random.random() < 0.03:
                self._send_again()

    def _change(self) -> None:
        random = self._random
        key = str(random.randrange(self.keys))
        self._value += 1
        row = self.rows.get(key)
        if row is None:
            self._put({"id": key, "name": f"v{self._value}", "amount": "1.00"}, "INSERT")
        elif random.random() < 0.2:
            del self.rows[key]
            self._send("DELETE", row, None)
        elif random.random() < 0.4:
            other = str(random.randrange(self.keys))
            if other not in self.rows:
                del self.rows[key]
                self._put({**row, "id": other}, "UPDATE", {"id": key})
        else:
            waited = random.choice([0, 0, 0, 2_000, 50_000])
            self._put({**row, "name": f"v{self._value}"}, "UPDATE", {"name": row["name"]}, waited)

    def _put(self, row: Row, kind: str, old: Row | None = None, waited_ms: int = 0) -> None:
        self.rows[row["id"]] = row
        self._send(kind, row, old, waited_ms)

    def _send(self, kind: str, row: Row, old: Row | None, waited_ms: int = 0) -> None:
        es = (self._clock - waited_ms) // 1000 * 1000
        message = {"kind": kind, "row": row, "old": [old] if old else None, "es": es}
        self._sent[-1].append((int(row["id"]) % self.queues, message))
        self._post(*self._sent[-1][-1])

    def _post(self, queue: int, message: dict[str, Any]) -> None:
        body = canal(
            message["kind"], message["row"], old=message["old"], es=message["es"], ts=self._clock
        )
        self.messages.append((queue, body))
        self._clock += not self.ties

    def _send_again(self) -> None:
        """Send the newest part again, as if canal was interrupted several times."""
        part = self._sent[-self._random.randrange(1, 30) :]
        for count in (*self._random.sample(range(len(part)), min(2, len(part))), len(part)):
            self._clock += 1000
            for transaction in part[:count]:
                for queue, message in transaction:
                    self._post(queue, message)
                self._clock += 1

    def by_queue(self) -> list[list[bytes]]:
        """Return the bodies of each queue."""
        found: list[list[bytes]] = [[] for _ in range(self.queues)]
        for queue, body in self.messages:
            found[queue].append(body)
        return found
