"""Ports on loopback for servers that come and go in a test."""

from __future__ import annotations

import random
import socket


def free_ports(*offsets: int) -> int:
    """A port p such that p + each offset is free on loopback now.

    Below the ports that the system gives to outgoing connections: one of those would be taken while a broker is away.
    """
    while True:
        port = random.randrange(12_000, 32_000)
        if all(is_free(port + offset) for offset in offsets):
            return port


def is_free(port: int) -> bool:
    if not 1024 < port < 65536:
        return False
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
