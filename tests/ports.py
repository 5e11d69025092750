"""Ports on loopback for servers that come and go in a test."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress

_CLAIMS = ExitStack()
"""UDP sockets on the ports that this process has been given. No server uses UDP, so they are in
nobody's way, and tell other processes that the port is given while no server listens on it."""


def free_ports(*offsets: int) -> int:
    """A port p such that p + each offset is free on loopback, and is given to no other caller,
    in this process or another, until this process ends.

    Below the ports that the system gives to outgoing connections: one of those would be taken while
    a server is away.
    """
    while True:
        port = random.randrange(12_000, 32_000)
        with suppress(OSError), ExitStack() as claims:
            for offset in offsets:
                claim = claims.enter_context(socket.socket(type=socket.SOCK_DGRAM))
                claim.bind(("127.0.0.1", port + offset))
                with socket.socket() as probe:
                    probe.bind(("0.0.0.0", port + offset))
            _CLAIMS.push(claims.pop_all())
            return port
