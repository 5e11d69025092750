"""Runtime figures of a broker (request 28), as evidence of its clock, disk and load.

Apache's brokers report fewer of them than ours.
"""

from __future__ import annotations

from typing import Final

from turbopump.admin.broker_figures import BrokerFigures
from turbopump.admin.doctor.diagnosis import LOG_OF_BROKER, Findings

CLOCK_TOLERANCE_MS: Final = 5_000
DISK_DELETES: Final = 0.75
DISK_REFUSES: Final = 0.90
"""Values of Apache's ``diskMaxUsedSpaceRatio`` and ``diskSpaceWarningLevelRatio``, as fractions."""
UNFLUSHED_MAX: Final = 256 << 20
UNDISPATCHED_MAX: Final = 64 << 20
"""Number of bytes by which the queues may be behind the log before a broker is reported.

A healthy disk never falls this far behind.
"""
SENDS_WAIT_MS: Final = 200
"""Milliseconds for which a send may wait before a broker refuses it.

This is Apache's ``waitTimeMillsInSendQueue``.
"""
MORE_ROOM: Final = "free space, lower fileReservedTime, or move storePathCommitLog to a larger disk"


def summary_of(figures: BrokerFigures, now_ms: float) -> str:
    """Return the version, the clock error and the used disk space as one phrase.

    - ``now_ms``: the time of the request, in ms since 1970.
    """
    clock = "clock unknown"
    if figures.time_ms is not None:
        clock = f"clock {round((figures.time_ms - now_ms) / 1000)} s off"
    disk = "disk unknown"
    if figures.log_disk_used is not None:
        disk = f"disk {figures.log_disk_used * 100:.0f} % used"
    return f"RocketMQ {figures.version or 'of an unknown version'}, {clock}, {disk}"


def judge_runtime(found: Findings, figures: BrokerFigures, now_ms: float) -> None:
    """Judge a broker by its runtime figures, and report problems.

    - ``now_ms``: the time of the answer by this machine's clock, in ms since 1970.
    """
    its_ms = figures.time_ms
    if its_ms is not None and abs(its_ms - now_ms) > CLOCK_TOLERANCE_MS:
        ahead_s = (its_ms - now_ms) / 1000
        direction = "ahead of" if ahead_s > 0 else "behind"
        found.wrong(
            f"its clock is {abs(ahead_s):.0f} s {direction} this machine's: delays, delivery "
            "times and searches by time are off by as much",
            "synchronise both by NTP: timedatectl set-ntp true, or chronyc makestep",
        )
    _judge_disk(found, figures)
    until = figures.sends_accepted_from_ms
    if until > now_ms:
        found.wrong(
            f"it accepts no sends for another {(until - now_ms) / 1000:.0f} s",
            "wait, or change startAcceptSendRequestTimeStamp in its broker.conf",
        )
    unflushed = figures.unflushed_bytes
    if unflushed > UNFLUSHED_MAX:
        found.wrong(
            f"{unflushed >> 20} MiB are not flushed yet: the disk does not keep up",
            f"check the disk (iostat -x 1); {LOG_OF_BROKER}",
        )
    behind = figures.dispatch_behind_bytes
    if behind > UNDISPATCHED_MAX:
        found.wrong(
            f"{behind >> 20} MiB of its log are not visible to consumers yet", LOG_OF_BROKER
        )
    waits_ms = figures.send_wait_ms
    if waits_ms > SENDS_WAIT_MS:
        found.wrong(
            f"sends wait {waits_ms} ms in its queue; from {SENDS_WAIT_MS} ms on it refuses them",
            "the load is too high for its disk or processor: send less, or add a broker",
        )


def _judge_disk(found: Findings, figures: BrokerFigures) -> None:
    refusal = figures.refuses_sends_because or ""
    used = figures.log_disk_used or 0.0
    if "disk" in refusal:
        found.wrong(f"it refuses sends: {refusal}", MORE_ROOM)
    elif refusal:
        found.wrong(f"it refuses sends: {refusal}", LOG_OF_BROKER)
    elif used > DISK_REFUSES:
        found.wrong(
            f"its disk is {used * 100:.0f} % full: from 90 % on the broker refuses sends", MORE_ROOM
        )
    elif used > DISK_DELETES:
        found.note(
            f"its disk is {used * 100:.0f} % full: from 75 % on the broker deletes old messages "
            "early",
            MORE_ROOM,
        )
