"""What the handlers of an ordered group do, written down as it happens, and what is wrong with it.

Its one rule: of each queue one handler at a time, and none begins with a message before the one
ahead of it succeeded. It must not know whether the handlers are simulated or run in processes of
their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Protocol


class ConsumerRun(Protocol):
    """A consumer from its start to its end."""

    @property
    def name(self) -> str: ...

    @property
    def alive(self) -> bool: ...


class HandlersInOrder:
    """Tell it ``begin`` and ``end`` of every handler; ``wrong`` has a sentence for each that should
    not have begun."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.starts: dict[int, list[int]] = defaultdict(list)
        """Of each queue, the offsets in the order in which their handlers began."""
        self.succeeded: dict[int, set[int]] = defaultdict(set)
        self.failed = 0
        self._running: dict[int, list[tuple[int, ConsumerRun]]] = defaultdict(list)
        self._paused: set[ConsumerRun] = set()

    def paused(self, run: ConsumerRun) -> None:
        """A process that is stopped for minutes cannot know that its lock has gone: its handlers
        are not held against it."""
        self._paused.add(run)

    def begin(self, queue: int, offset: int, run: ConsumerRun) -> None:
        starts = self.starts[queue]
        before = starts[-1] if starts else -1
        if offset > before + 1:
            self.wrong.append(f"queue {queue}: {offset} after {before}")
        if offset and offset - 1 not in self.succeeded[queue]:
            self.wrong.append(f"queue {queue}: {offset} began before {offset - 1} succeeded")
        for other, its in self._running[queue]:
            if its.alive and its not in self._paused:
                self.wrong.append(
                    f"queue {queue}: {offset} at {run.name} began while {other} ran at {its.name}"
                )
        starts.append(offset)
        self._running[queue].append((offset, run))

    def end(self, queue: int, offset: int, run: ConsumerRun, *, good: bool) -> None:
        self._running[queue].remove((offset, run))
        if good:
            self.succeeded[queue].add(offset)
        else:
            self.failed += 1

    @property
    def repeated(self) -> int:
        """How often a message began again that had succeeded."""
        count = 0
        for queue, starts in self.starts.items():
            again = Counter(starts)
            count += sum(again.values()) - len(again)
            assert set(starts) >= self.succeeded[queue]
        return count - self.failed
