"""Saver of the timers' progress. It writes the commit log, then timer log and wheel, then the
checkpoint.

A save starts soon after a change, at most once in ``interval`` seconds. It also deletes files of
the timer log whose messages are no longer in the commit log. Retention asks here from which log
offset on messages are needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from turbopump.broker.background import wait_for
from turbopump.broker.reading import ask
from turbopump.clock import Clock
from turbopump.disk.disk import Disk
from turbopump.errors import StoreError
from turbopump.remoting.turns import Turns, awaited
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.store.timers.pending_timers import PendingTimers
from turbopump.store.timers.timer_checkpoint import TimerCheckpoint

OLDEST_EVERY_S: Final = 5.0
"""Minimum seconds between two searches for the oldest waiting message.

The search runs only when files are to be deleted.
"""

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class TimerSaving:
    """Saver of the timers' progress.

    - ``queue``: the queue of ``rmq_sys_wheel_timer``.
    - ``interval``: the minimum seconds between two saves.
    - ``held_back``: a function that returns the time of the first slot whose messages must be
      delivered again after a restart, or None. An acting slave needs this, because it keeps
      records of delivered slots in memory.
    """

    pending: PendingTimers
    store: MessageStore
    queue: ConsumeQueue
    disk: Disk
    clock: Clock
    interval: float
    turns: Turns
    held_back: Callable[[], int | None]
    _task: asyncio.Task[None] | None = None
    _exists: bool = False
    _changed: bool = False
    _next: float = 0.0
    """Earliest time of the next save, on the clock of the event loop."""
    _failed: bool = False
    _stopped: bool = False
    _holds_copy: bool = False
    """True if the checkpoint file is a copy of the master's."""
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock held while a checkpoint is being written."""
    _oldest: int = 0
    _search: asyncio.Task[None] | None = None
    _searched_at: float = -OLDEST_EVERY_S

    def __post_init__(self) -> None:
        self._exists = self.pending.saved.timestamp > 0

    async def ensure_checkpoint(self) -> None:
        """Write the first checkpoint if it is missing. Call this before the first message is
        accepted.

        Without a checkpoint, a start after a crash could not know which messages were delivered.
        Raises OSError.
        """
        if not self._exists:
            error = await self._write(self.pending.checkpoint(self.clock.now_ms()))
            if error is not None:
                raise error
            self._exists = True

    async def copy(self, checkpoint: TimerCheckpoint) -> None:
        """Save the checkpoint of the master on this slave. From now on the slave saves no
        checkpoint of its own.

        Raises OSError.
        """
        saved = self.pending.saved
        self._holds_copy = True
        if (saved.read_time, saved.redo_before) == (checkpoint.read_time, checkpoint.redo_before):
            return
        error = await self._write(checkpoint)
        if error is not None:
            raise error

    def save_soon(self) -> None:
        """Save the progress soon after a change.

        The save starts at once if the last one is older than ``interval``.
        """
        self._changed = True
        if self._task is None and not self._stopped and not self._failed:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="timer saving")

    def stop(self) -> None:
        self._stopped = True
        for task in (self._task, self._search):
            if task is not None:
                task.cancel()

    def save_now(self) -> None:
        """Save the progress in this thread, and close the files of the timers. Raises OSError."""
        pending = self.pending
        if self._holds_copy:
            pending.close()
            return
        # without a checkpoint: the first messages arrived too late to get slots
        if not self._exists and self.queue.max_index > self.queue.min_index:
            pending.write_checkpoint(pending.checkpoint(self.clock.now_ms()))
        elif pending.moved and self._exists and not self._failed and not pending.rebuilding:
            self.store.flusher.flush_all_now()
            if self.store.durable.error is None:
                for segment in pending.dirty_segments():
                    segment.sync()
                pending.write_checkpoint(self._present_checkpoint())
        pending.close()

    async def finish(self) -> None:
        """Save the progress, and nothing more afterwards. The timers are paused. Raises OSError."""
        self.stop()
        await self.wait_for_write()
        if self._exists and not self._failed and not self.pending.rebuilding:
            await self._save()

    def _present_checkpoint(self) -> TimerCheckpoint:
        """Return the checkpoint of the present positions, or of an earlier slot if one is held
        back."""
        checkpoint = self.pending.checkpoint(self.clock.now_ms())
        held = self.held_back()
        if held is None or held >= checkpoint.read_time:
            return checkpoint
        first = self.pending.config.floor(held)
        return replace(checkpoint, read_time=first, delivered=0, wheel_sum=None)

    async def wait_for_write(self) -> None:
        """Wait until the running write of a checkpoint has ended."""
        async with self._writing:
            pass

    def save_redo(self) -> None:
        """Write a checkpoint to record that a rebuild of the timer log is running.

        The checkpoint is written in this thread. An error is only reported: the next start then
        finds that log and checkpoint contradict each other.
        """
        pending = self.pending
        checkpoint = TimerCheckpoint(
            pending.read_time,
            0,
            pending.queue_offset,
            0,
            pending.redo_before,
            self.clock.now_ms(),
            pending.saved.counter + 1,
            precision_ms=pending.config.precision_ms,
        )
        try:
            pending.write_checkpoint(checkpoint)
        except OSError as error:
            pending.report(
                f"checkpoint of the timers could not be saved ({error.strerror or error})"
            )
        else:
            pending.saved = checkpoint

    def needed_from(self) -> int | None:
        """Return the log offset of the first waiting message. Return None if no message waits.

        Retention keeps the log from this offset on. The call may start a search for the exact
        offset. Until the search ends, the returned offset is smaller.
        """
        pending = self.pending
        unit = self.queue.unit(min(pending.queue_offset, pending.saved.queue_offset))
        waiting = pending.next_time() is not None or pending.rebuilding
        saved = self._task is None and not self._changed and not self._failed
        if unit is None and saved and not waiting:
            return None
        loop = asyncio.get_running_loop()
        due = loop.time() >= self._searched_at + OLDEST_EVERY_S
        if self._search is None and due and not self._stopped:
            self._search = loop.create_task(self._find_oldest(), name="oldest timer")
        return min(self._oldest, unit[0]) if unit is not None else self._oldest

    async def _find_oldest(self) -> None:
        try:
            end = self.store.log.end  # new messages are stored behind it
            found = await ask(self.store.cold_reads, self.pending.oldest(), self.turns)
            self._oldest = end if found is None else found
        except StoreError as error:
            log.warning("oldest timer message cannot be found now cause=%s", error)
        finally:
            self._searched_at = asyncio.get_running_loop().time()
            self._search = None

    async def _run(self) -> None:
        """Save the progress, and repeat this while there are changes."""
        loop = asyncio.get_running_loop()
        while self._changed and not self._failed:
            await asyncio.sleep(self._next - loop.time())
            self._next = loop.time() + self.interval
            if self.pending.rebuilding or not self._exists:
                break
            await self._save()
        self._task = None

    async def _save(self) -> None:
        # The checkpoint is made first, then everything that it names is synced: the commit log,
        # the timer log, the wheel. Changes made meanwhile are on the disk too early, which does no
        # harm: the next start goes back to the positions of the checkpoint. After a failed sync
        # nothing is saved any more: the kernel may have dropped the pages that it could not write,
        # so that a later sync succeeds without them.
        pending = self.pending
        flushed = self.store.durable
        self._changed = False
        pending.log.prepare()
        checkpoint = self._present_checkpoint()
        log_end = self.store.log.end
        if flushed.error is None and flushed.value < log_end:
            self.store.flusher.flush_log()
            await wait_for((flushed, log_end))
        if flushed.error is not None:
            self._failed = True
            return
        segments = pending.dirty_segments()
        synced: asyncio.Future[OSError | None]
        synced, done, _ = awaited()
        self.disk.start_sync(segments, done)
        error = await synced
        if error is not None:
            self._failed = True
            pending.report(
                f"fdatasync of the timer log failed ({error.strerror or error}); after the next "
                "start messages may be delivered again"
            )
            return
        if pending.rebuilding:
            return
        error = await self._write(checkpoint)
        if error is not None:
            self._changed = True
            pending.report(
                "checkpoint of the timers could not be saved, trying again "
                f"({error.strerror or error})"
            )
        self._delete_old_files()

    async def _write(self, checkpoint: TimerCheckpoint) -> OSError | None:
        async with self._writing:
            written: asyncio.Future[OSError | None]
            written, done, _ = awaited()
            self.disk.start(partial(self.pending.write_checkpoint, checkpoint), done)
            error = await written
            if error is None:
                self.pending.saved = checkpoint
        return error

    def _delete_old_files(self) -> None:
        timer_log = self.pending.log
        files = timer_log.files_before(self.pending.saved.log_begin)
        if not files:
            files = timer_log.drop_before(self.store.log.start)
        if not files:
            return

        def removed(gone: int, error: OSError | None) -> None:
            for file in files[:gone]:
                timer_log.files.forget_first(file)
            if error is not None:
                self.pending.report(f"files of the timer log cannot be deleted: {error}")

        self.disk.start_remove([file.segment for file in files], removed)
