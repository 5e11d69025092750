"""Recovery of a store's timers: log, wheel and queue offset are brought to one consistent state
without loss.

1. Our checkpoint: the log up to its end is on the disk, and so is the wheel of that time or a
   later one. The log is cut there, slots that point behind it are led back along their chains, and
   the messages behind its queue offset are read again. The wheel must then have the sum in the
   checkpoint; otherwise it is damaged.
2. A checkpoint of Apache's broker: its log may be longer, and its wheel older. The log is read from
   one file before the checkpoint on, every good unit becomes the last of its slot, and the log ends
   at the first invalid unit. Messages that have units already are known. RocketMQ:
   ``TimerMessageStore.recover``.
3. The wheel is missing or damaged, or a chain behind the checkpoint is torn: the wheel is rebuilt
   from the whole log.
4. Both were written with another precision: every message gets a new slot once the broker runs.
   Our checkpoint contains the precision; without it, or with Apache's, the wheel shows it. For a
   precision below a second new slots are always needed: a message of Apache's does not always
   contain its time within the second.
5. The log is missing or damaged: both are rebuilt from the queue, message by message, once the
   broker runs. If the checkpoint is missing too, the delivered messages are unknown: all messages
   in the queue are delivered (again), except for recalled ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from turbopump.disk.disk import Disk
from turbopump.errors import StoreError
from turbopump.store.queues.consume_queue import ConsumeQueue
from turbopump.store.timers.pending_timers import PendingTimers, TimerConfig
from turbopump.store.timers.timer_checkpoint import TimerCheckpoint, load_timer_checkpoint
from turbopump.store.timers.timer_log import TIMER_UNIT_SIZE, TimerUnit
from turbopump.store.timers.timer_wheel import Slot, TimerWheel, wheel_size


def open_timers(
    config: TimerConfig,
    disk: Disk,
    queue: ConsumeQueue | None,
    now: int,
    report: Callable[[str], None],
) -> PendingTimers:
    """Open the timers of a store, and repair damage that a crash has left.

    The commit log and the queues must be recovered before. ``queue`` is the queue of
    ``TIMER_TOPIC``, or None. ``report`` gets a line for each damage. Raises OSError.
    """
    checkpoint = load_timer_checkpoint(disk, config.paths.timer_checkpoint)
    timers = PendingTimers(config, disk, checkpoint, report)
    first, end = (queue.min_index, queue.max_index) if queue is not None else (0, 0)
    if checkpoint is None:
        timers.idle_until(now)
        timers.forget()
        timers.queue_offset = first
        if end > first:
            report(
                f"{config.paths.timer_checkpoint} is missing or damaged: timer messages "
                "delivered already will be so again"
            )
        return timers
    if checkpoint.queue_offset > end:
        fault: str | None = (
            f"the queue of timer messages ends at {end}, before the {checkpoint.queue_offset} "
            "that the timers had reached"
        )
    else:
        fault = _load(timers, config, disk, checkpoint, queue, now)
    if fault is not None:
        timers.begin_anew(first, fault, expected=timers.redo_before > 0)
    timers.queue_offset = min(max(timers.queue_offset, first), end)
    timers.redo_before = min(timers.redo_before, end)
    return timers


def _load(
    timers: PendingTimers,
    config: TimerConfig,
    disk: Disk,
    checkpoint: TimerCheckpoint,
    queue: ConsumeQueue | None,
    now: int,
) -> str | None:
    """Bring timer log and wheel to the positions of the checkpoint.

    Return the fault if that is impossible, or None.
    """
    log = timers.log
    if checkpoint.redo_before:
        timers.redo_before = checkpoint.redo_before
        return "this broker was a slave, or stopped during a rebuild of the timer log"
    try:
        log.files.load()
        log.remove_before(checkpoint.log_begin)
    except StoreError as error:
        return f"the timer log is damaged: {error}"
    if not log.capacity:
        timers.forget()
        return None if not checkpoint.log_end else f"{config.paths.timer_log} has no files"
    if not log.start <= checkpoint.log_end <= log.capacity:
        return f"the timer log does not reach position {checkpoint.log_end}"
    whole = disk.file_size(config.paths.timer_wheel) == wheel_size(config.slots)
    precision = checkpoint.precision_ms
    if precision is None:
        precision = _precision(timers, now, whole=whole)
        if not precision:  # read this before the wheel is rewritten and loses it
            timers.saved = replace(checkpoint, precision_ms=0)
            timers.write_checkpoint(timers.saved)
    if precision != config.precision_ms:
        return _reslot(timers, checkpoint, queue)
    if not checkpoint.ours:
        return _replay_apache(timers, checkpoint, queue, whole=whole)
    if not whole or not _rewind_chains(timers, checkpoint):
        if not fill_wheel(timers, checkpoint.log_end):
            return f"the timer log is damaged at position {log.scanned_to}"
        if checkpoint.log_end > log.start:
            timers.report(
                "the timer wheel was missing or damaged; it is rebuilt from the timer log"
            )
    log.cut_at(checkpoint.log_end)
    return None


def _precision(timers: PendingTimers, now: int, *, whole: bool) -> int:
    """Return the configured precision if timer log and wheel have it, or 0.

    A precision below a second always needs new slots, so the result is 0 (case 4 of the module).
    """
    precision = timers.config.precision_ms
    log = timers.log
    if precision < 1000:
        return 0
    if whole:
        return 0 if timers.wheel.has_other_precision(now) else precision
    strange = any(
        unit.time % precision and unit.time >= timers.read_time for unit in log.scan(log.start)
    )
    return 0 if strange else precision


def _reslot(
    timers: PendingTimers, checkpoint: TimerCheckpoint, queue: ConsumeQueue | None
) -> str | None:
    """Prepare new slots for all messages, because the precision has changed.

    This is case 4 of the module. Return the fault if it is impossible, or None.
    """
    end = checkpoint.log_end
    if not checkpoint.ours:
        first_new = _first_new(timers, queue)
        for unit in timers.log.scan(timers.log.start):
            if first_new is not None and unit.offset >= first_new:
                timers.known.add(unit.offset)
        end = timers.log.scanned_to
        if end < checkpoint.log_end:
            return (
                f"the timer log ends at position {end}, before {checkpoint.log_end}, which "
                "was on the disk"
            )
    timers.take_out_old_slots(end, checkpoint.read_time)
    return None


def _first_new(timers: PendingTimers, queue: ConsumeQueue | None) -> int | None:
    """Return the commit-log offset of the first timer message behind the checkpoint, or None."""
    unit = queue.unit(timers.queue_offset) if queue is not None else None
    return unit[0] if unit is not None else None


def fill_wheel(timers: PendingTimers, end: int) -> bool:
    """Rebuild the timer wheel from the timer log up to ``end``.

    Return False if the log is damaged before ``end``. Cost: about 1.5 µs a unit.
    """
    wheel = timers.wheel
    log = timers.log
    wheel.clear()
    first = timers.read_time
    until = timers.read_time + wheel.span_ms
    for unit in log.scan(log.start, end):
        if first <= unit.time < until:
            wheel.add_unit(unit.time, unit.position, -1 if unit.recalls else 1)
    return log.scanned_to >= end


def _rewind_chains(timers: PendingTimers, checkpoint: TimerCheckpoint) -> bool:
    """Remove units newer than the checkpoint from the undelivered slots.

    Return False if the chain of a slot is torn, or if the wheel then differs from the checkpoint.
    """
    # The wheel is a map without a copy: after a kill it has units that the checkpoint does not
    # know. Their messages are read from the queue again, so their units must leave the chains. They
    # are still in the log behind ``end``, which ``cut_at`` removes only afterwards. The sum over
    # the wheel finds any other difference, such as a page that a power cut has lost.
    wheel = timers.wheel
    end = checkpoint.log_end
    timers.log.end = timers.log.capacity
    for slot in wheel.mark_pending(timers.read_time):
        if slot.last < end:
            continue
        found = _before(timers, slot, end)
        if found is None:
            return False
        wheel.set_last(slot.time, *found)
    return checkpoint.wheel_sum in (None, wheel.sum)


def _before(timers: PendingTimers, slot: Slot, end: int) -> tuple[int, int] | None:
    """Find the last unit of a slot before ``end``. Return its position, and the number of units up
    to that unit.

    Return None if the chain of the slot is torn.
    """
    position = slot.last
    count = slot.units
    while position >= end:
        unit = timers.log.unit(position)
        if unit is None or unit.time != slot.time:
            return None
        count += 1 if unit.recalls else -1
        position = unit.previous
    return position, count


def _replay_apache(
    timers: PendingTimers, checkpoint: TimerCheckpoint, queue: ConsumeQueue | None, *, whole: bool
) -> str | None:
    """Recover the timer log and wheel that Apache's broker has written.

    This is case 2 of the module. Return the fault if it is impossible, or None.
    """
    log = timers.log
    wheel = timers.wheel
    begin = log.file_start(max(checkpoint.log_end - log.files.file_size, log.start))
    first_new = _first_new(timers, queue)
    for found in log.scan(begin):
        if first_new is not None and found.offset >= first_new:
            timers.known.add(found.offset)
        _revise(wheel, found)
    end = log.scanned_to
    if end < checkpoint.log_end:
        return (
            f"the timer log ends at position {end}, before {checkpoint.log_end}, which was on "
            "the disk"
        )
    pending = wheel.mark_pending(timers.read_time)
    if not whole or any(slot.last > end - TIMER_UNIT_SIZE for slot in pending):
        fill_wheel(timers, end)
    log.cut_at(end)
    return None


def _revise(wheel: TimerWheel, unit: TimerUnit) -> None:
    """Make a unit the last unit of its slot, if the present last unit is older.

    RocketMQ: ``TimerWheel.reviseSlot``, which does not correct the count either.
    """
    slot = wheel.slot(unit.time)
    if slot is None or slot.last < unit.position:
        wheel.add_unit(unit.time, unit.position, -1 if unit.recalls else 1)
