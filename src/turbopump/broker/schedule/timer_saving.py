"""When and in which order the timers go to the disk: the commit log first, then timer log and
wheel, then the checkpoint that says so.

At most once in ``flush_interval`` seconds, and only after something has changed. Files of the timer
log whose messages are no longer in the commit log are deleted on the way. It also answers
retention, which must keep what waits.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from turbopump.broker.reading import ask
from turbopump.clock import Clock
from turbopump.errors import StoreError
from turbopump.store.disk import Disk
from turbopump.store.message_store import MessageStore
from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.store.timers.pending_timers import PendingTimers
from turbopump.store.timers.timer_log import TimerCheckpoint
from turbopump.store.watermark import Waiter

OLDEST_EVERY_S: Final = 5.0
"""The oldest message that waits is looked for so often at most, and only when somebody wants to
delete."""

log = logging.getLogger(__name__)


class TimerSaving:
    """Saves ``pending``."""

    def __init__(
        self,
        pending: PendingTimers,
        store: MessageStore,
        queue: ConsumeQueue,
        disk: Disk,
        clock: Clock,
        flush_interval: float,
    ) -> None:
        self._pending = pending
        self._store = store
        self._queue = queue
        self._disk = disk
        self._clock = clock
        self._interval = flush_interval
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: Waiter | None = None
        self._under_way = self._changed = self._failed = self._stopped = False
        self._written_out = asyncio.Event()
        self._written_out.set()
        self._exists = pending.saved.timestamp > 0
        self._oldest = 0
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = -OLDEST_EVERY_S

    async def begin(self) -> None:
        """To be called before a message is taken in: without a checkpoint nobody would know, after
        a crash, what was delivered. Raises OSError."""
        if self._exists:
            return
        checkpoint = self._pending.checkpoint(self._clock.now_ms())
        written: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()

        def done(error: OSError | None) -> None:
            if not written.done():
                written.set_result(error)

        self._disk.start(lambda: self._pending.write_checkpoint(checkpoint), done)
        error = await written
        if error is not None:
            raise error
        self._pending.saved = checkpoint
        self._exists = True

    def touch(self) -> None:
        """Something has changed: it is saved within the interval."""
        self._changed = True
        if self._timer is None and not self._under_way and not self._stopped:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._begin)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._waiter is not None:
            self._waiter.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def save_now(self) -> None:
        """Save in this thread. Raises OSError."""
        pending = self._pending
        # the first ones came too late to be taken in
        if not self._exists and self._queue.max_index > self._queue.min_index:
            pending.write_checkpoint(pending.checkpoint(self._clock.now_ms()))
        elif pending.moved and self._exists and not self._failed and not pending.rebuilding:
            self._store.flusher.flush_all_now()
            if self._store.durable.error is None:
                for segment in pending.dirty_segments():
                    segment.sync()
                pending.write_checkpoint(pending.checkpoint(self._clock.now_ms()))
        pending.close()

    async def settled(self) -> None:
        """Wait until no checkpoint is on its way to the disk."""
        await self._written_out.wait()

    def save_redo(self) -> None:
        """Note, in this thread, that everything is made anew; should the note fail, the next start
        finds log and checkpoint at odds."""
        pending = self._pending
        checkpoint = TimerCheckpoint(
            pending.read_time,
            0,
            pending.queue_offset,
            0,
            pending.redo_before,
            self._clock.now_ms(),
            pending.saved.counter + 1,
            precision_ms=pending.config.precision_ms,
        )
        try:
            pending.write_checkpoint(checkpoint)
        except OSError as error:
            pending.report(
                f"the checkpoint of the timers could not be saved ({error.strerror or error})"
            )
        else:
            pending.saved = checkpoint

    # --- what the commit log must keep
    # ---------------------------------------------------------------------------------------

    def needed_from(self) -> int | None:
        """The offset of the log from which on messages wait here, or a smaller one while that is
        being looked up; None: none waits."""
        pending, queue = self._pending, self._queue
        unit = queue.unit(min(pending.queue_offset, pending.saved.queue_offset))
        still = (
            pending.next_time() is None
            and not pending.rebuilding
            and not self._changed
            and not self._under_way
        )
        if still and unit is None:
            return None
        loop = asyncio.get_running_loop()
        if (
            self._looking is None
            and not self._stopped
            and loop.time() >= self._looked_at + OLDEST_EVERY_S
        ):
            self._looking = loop.create_task(self._look(), name="oldest timer")
        return min(self._oldest, unit[0]) if unit is not None else self._oldest

    async def _look(self) -> None:
        try:
            end = self._store.log.end  # what comes meanwhile lies behind it
            found = await ask(self._store.cold_reads, self._pending.oldest())
            self._oldest = end if found is None else found
        except StoreError as error:
            log.warning("the oldest timer message cannot be looked for now cause=%s", error)
        finally:
            self._looked_at = asyncio.get_running_loop().time()
            self._looking = None

    # --- the steps
    # ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._timer = None
        if self._failed or self._stopped or self._pending.rebuilding or not self._exists:
            return
        self._under_way, self._changed = True, False
        self._pending.log.prepare()
        checkpoint, log_end = self._pending.checkpoint(self._clock.now_ms()), self._store.log.end
        flushed = self._store.durable

        def logged() -> None:
            self._waiter = None
            if self._stopped or flushed.error is not None:
                return
            self._disk.start_sync(
                self._pending.dirty_segments(), lambda error: self._synced(error, checkpoint)
            )

        if flushed.value >= log_end or flushed.error is not None:
            logged()
        else:
            self._waiter = flushed.when(log_end, logged)

    def _synced(self, error: OSError | None, checkpoint: TimerCheckpoint) -> None:
        # the pages may be gone from memory: what is written from now on proves nothing
        if error is not None:
            self._failed = True
            self._pending.report(
                f"fdatasync of the timer log failed ({error.strerror or error}); after the next "
                "start messages may be delivered again"
            )
            return
        if self._stopped or self._pending.rebuilding:
            self._under_way = False
            return
        self._written_out.clear()
        self._disk.start(
            lambda: self._pending.write_checkpoint(checkpoint),
            lambda error: self._written(error, checkpoint),
        )

    def _written(self, error: OSError | None, checkpoint: TimerCheckpoint) -> None:
        self._written_out.set()
        self._under_way = False
        if error is not None:
            self._pending.report(
                f"the checkpoint of the timers could not be saved ({error.strerror or error}); "
                "it is tried again"
            )
            self._changed = True
        else:
            self._pending.saved = checkpoint
        self._trim()
        if self._changed:
            self.touch()

    def _trim(self) -> None:
        timer_log = self._pending.log
        files = timer_log.files_before(self._pending.saved.log_begin) or timer_log.drop_before(
            self._store.log.start
        )
        if not files or self._stopped:
            return

        def removed(gone: int, error: OSError | None) -> None:
            for file in files[:gone]:
                timer_log.forget_first(file)
            if error is not None:
                self._pending.report(f"files of the timer log cannot be deleted: {error}")

        self._disk.start_remove([file.segment for file in files], removed)
