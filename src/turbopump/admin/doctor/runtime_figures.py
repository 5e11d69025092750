"""Runtime figures of a broker (request 28), as evidence of its clock, disk and load.

A broker reports its figures as texts. Apache's brokers report fewer of them than ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

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

_RUNTIME: Final = re.compile(r"\[ ([\d,. ]+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")
_SIZE: Final = re.compile(r"([\d.]+) ?([KMGTPE]?)i?B")


class RuntimeFigures:
    """Runtime figures of a broker, by name. The texts are read as numbers."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self._table = table

    def text(self, name: str) -> str:
        return self._table.get(name, "")

    def number(self, name: str) -> float | None:
        try:
            return float(self.text(name))
        except ValueError:
            return None

    def size(self, name: str) -> int:
        """Return a size such as ``1.5 MiB`` in bytes, or 0 if the text is not a size."""
        found = _SIZE.fullmatch(self.text(name))
        if found is None:
            return 0
        return int(float(found[1]) * 1024 ** "_KMGTPE".index(found[2] or "_"))

    @property
    def time_ms(self) -> float | None:
        """Time of the broker's clock in ms since 1970, or None if the figures do not show the time.

        Apache's broker reports its start and its uptime, to the second.
        """
        now = self.number("currentTimeMillis")
        boot = self.number("bootTimestamp")
        uptime = _RUNTIME.search(self.text("runtime"))
        if now is not None or boot is None or uptime is None:
            return now
        days, hours, minutes, seconds = (int(re.sub(r"\D", "", part)) for part in uptime.groups())
        return boot + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + 500

    def summary(self, now_ms: float) -> str:
        """Return the version, the clock error and the used disk space as one phrase.

        - ``now_ms``: the time of the request, in ms since 1970.
        """
        version = self._table.get("brokerVersionDesc", "of an unknown version")
        version = version.removeprefix("V").replace("_", ".").lower()
        clock = "clock unknown"
        if self.time_ms is not None:
            clock = f"clock {round((self.time_ms - now_ms) / 1000)} s off"
        disk = "disk unknown"
        used = self.number("commitLogDiskRatio")
        if used is not None:
            disk = f"disk {used * 100:.0f} % used"
        return f"RocketMQ {version}, {clock}, {disk}"


def judge_runtime(found: Findings, figures: RuntimeFigures, now_ms: float) -> None:
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
    until = figures.number("startAcceptSendRequestTimeStamp") or 0
    if until > now_ms:
        found.wrong(
            f"it accepts no sends for another {(until - now_ms) / 1000:.0f} s",
            "wait, or change startAcceptSendRequestTimeStamp in its broker.conf",
        )
    unflushed = figures.size("remainHowManyDataToFlush")
    if unflushed > UNFLUSHED_MAX:
        found.wrong(
            f"{unflushed >> 20} MiB are not flushed yet: the disk does not keep up",
            f"check the disk (iostat -x 1); {LOG_OF_BROKER}",
        )
    behind = int(figures.number("dispatchBehindBytes") or 0)
    if behind > UNDISPATCHED_MAX:
        found.wrong(
            f"{behind >> 20} MiB of its log are not visible to consumers yet", LOG_OF_BROKER
        )
    waits_ms = figures.number("sendThreadPoolQueueHeadWaitTimeMills") or 0
    if waits_ms > SENDS_WAIT_MS:
        found.wrong(
            f"sends wait {waits_ms:.0f} ms in its queue; from {SENDS_WAIT_MS} ms on it refuses "
            "them",
            "the load is too high for its disk or processor: send less, or add a broker",
        )


def _judge_disk(found: Findings, figures: RuntimeFigures) -> None:
    refusal = figures.text("writeRefusal")
    used = figures.number("commitLogDiskRatio") or 0.0
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
