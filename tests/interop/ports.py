"""Ports on loopback for servers that come and go in a test."""

from __future__ import annotations

import random
import socket

_GIVEN: set[int] = set()
"""What this process has been given: a server may take its time to bind it, and binds it again after
a stop."""


def free_ports(*offsets: int) -> int:
    """A port p such that p + each offset is free on loopback now, and is not given to anybody else
    in this process.

    Below the ports that the system gives to outgoing connections: one of those would be taken while
    a broker is away.
    """
    while True:
        port = random.randrange(12_000, 32_000)
        wanted = {port + offset for offset in offsets}
        if not wanted & _GIVEN and all(map(is_free, wanted)):
            _GIVEN.update(wanted)
            return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
