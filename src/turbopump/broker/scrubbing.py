"""The clock of the store's scrub (``store/repair/scrub.py``), and its words in the log: each finding once,
each pass in one line."""

from __future__ import annotations

import logging
from collections.abc import Callable

from turbopump.store.disk import Disk
from turbopump.store.message_store import MessageStore
from turbopump.store.repair.scrub import Scrub, ScrubNumbers

log = logging.getLogger(__name__)


class Scrubbing:
    """``step`` is to be called again and again, each time after the seconds that it returned.
    ``now`` in monotonic seconds."""

    def __init__(
        self, store: MessageStore, disk: Disk, bytes_per_second: int, now: Callable[[], float]
    ) -> None:
        self._scrub = Scrub(
            disk,
            store.log,
            store.queues,
            lambda: store.flushed.value,
            bytes_per_second,
            lambda text: log.error("store: %s", text),
            store.unit_repair,
            store.index,
        )
        if self._scrub.indexes is not None:
            self._scrub.indexes.on_filled = lambda text: log.info("store: %s", text)
        self._now = now
        self._passes = 0

    @property
    def numbers(self) -> ScrubNumbers:
        return self._scrub.numbers

    def step(self) -> float:
        pause = self._scrub.step(self._now())
        numbers = self._scrub.numbers
        if numbers.passes > self._passes:
            self._passes = numbers.passes
            log.info(
                "scrub passed through the commit log passes=%d bytes=%d entries=%d "
                "damaged_ranges=%d damaged_bytes=%d "
                "wrong_units=%d damaged_indexes=%d",
                *(
                    numbers.passes,
                    numbers.bytes_checked,
                    numbers.entries_checked,
                    numbers.damaged_ranges,
                    numbers.damaged_bytes,
                ),
                *(numbers.wrong_units, numbers.damaged_indexes),
            )
        return pause
