"""Messages of a server to systemd, if a unit with Type=notify has started it.

A message is one datagram of lines NAME=VALUE to the socket that the variable NOTIFY_SOCKET names.
Source: sd_notify(3), sd_watchdog_enabled(3). The kinds of servers are unknown here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

log = logging.getLogger(__name__)

SEND_S: Final = 0.5
"""Maximum seconds that a message waits for room in the queue of the socket."""
STATUS_S: Final = 1.0
"""Seconds between two checks of the status."""
PROGRESS_S: Final = 90
"""Seconds by which progress extends the time for the start. This is the default of
TimeoutStartSec."""


class ServiceManager:
    """Connection to the service manager. Without NOTIFY_SOCKET nothing is sent.

    - ``environment``: the environment variables of this process.
    - ``reasons``: attribute, a function that returns the reasons why the server is not ready.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self._watchdog_s = 0.0
        if environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
            self._watchdog_s = int(environment.get("WATCHDOG_USEC", "0")) / 1e6
        self._status = ""
        self._failing = False
        self.reasons: Callable[[], list[str]] = list

    def report_progress(self) -> None:
        """Report the progress of a long start, which gets more time for each progress."""
        self._send(f"STATUS={self._new_status()}", f"EXTEND_TIMEOUT_USEC={PROGRESS_S * 10**6}")

    def report_ready(self) -> None:
        """Report that the start has ended. From now on, the running event loop reports the status,
        and feeds the watchdog."""
        self._send("READY=1", f"STATUS={self._new_status()}")
        if self._address:
            self._watch_status()
        if self._address and self._watchdog_s:
            self._feed_watchdog()

    def report_stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=stopping")

    def _watch_status(self) -> None:
        asyncio.get_running_loop().call_later(STATUS_S, self._watch_status)
        before = self._status
        if self._new_status() != before:
            self._send(f"STATUS={self._status}")

    def _feed_watchdog(self) -> None:
        asyncio.get_running_loop().call_later(self._watchdog_s / 2, self._feed_watchdog)
        self._send("WATCHDOG=1")

    def _new_status(self) -> str:
        self._status = " ".join("; ".join(self.reasons()).split()) or "ready"
        return self._status

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(SEND_S)
                sender.sendto("\n".join(lines).encode(), self._address)
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning(
                    "the service manager cannot be notified socket=%s cause=%s",
                    self._address.replace("\0", "@"),
                    error,
                )
            self._failing = True
