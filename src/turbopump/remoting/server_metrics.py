"""Metrics that every server has: its event loop, its connections, its certificate, its process.

Apache's servers have none of these, so that all names are ours or those of Prometheus' clients.
The meaning of requests is unknown here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from turbopump.metrics.family import Family, Kind, Metrics, Sample
from turbopump.metrics.process import CollectorPauses, add_process
from turbopump.remoting.loop_watch import DELAY_BOUNDS, LoopWatch
from turbopump.remoting.server import RemotingServer

LOOP_DELAY: Final = Family(
    "turbopump_event_loop_delay_seconds",
    Kind.HISTOGRAM,
    "Delay of a timer of the event loop that fires every 10 ms, in seconds.",
    bounds=DELAY_BOUNDS,
)
LONG_TURNS: Final = Family(
    "turbopump_event_loop_long_turns_total",
    Kind.COUNTER,
    "Turns of the event loop that delayed a timer by over 20 ms.",
)
CONNECTIONS: Final = Family("turbopump_connections", Kind.GAUGE, "Open connections of clients.")
CONNECTIONS_MAX: Final = Family(
    "turbopump_connections_max",
    Kind.GAUGE,
    "Maximum number of open connections. More wait to be accepted.",
)
MEMORY: Final = Family(
    "turbopump_connection_memory_bytes",
    Kind.GAUGE,
    "Memory of unread answers, waiting requests and unfinished frames of all connections.",
)
MEMORY_MAX: Final = Family(
    "turbopump_connection_memory_max_bytes",
    Kind.GAUGE,
    "Limit of the memory of all connections (connectionMemoryMax).",
)
CERTIFICATE_EXPIRY: Final = Family(
    "turbopump_certificate_expiry_timestamp_seconds",
    Kind.GAUGE,
    "End of validity of the server's TLS certificate, in seconds since 1970.",
)


class ServerMetrics:
    """Metrics of one server. The event loop and the collector are measured from the first read on,
    until ``stop``."""

    def __init__(self, server: RemotingServer) -> None:
        self._server = server
        self._watch = LoopWatch()
        self._pauses = CollectorPauses()

    def stop(self) -> None:
        """Stop measuring. The method may be called twice."""
        self._watch.stop()
        self._pauses.stop()

    def add_to(self, metrics: Metrics) -> None:
        """Add the metrics of this server and of its process."""
        server = self._server
        memory = server.memory
        watch = self._watch
        metrics.add(LOOP_DELAY, self._read_delays)
        metrics.add_value(LONG_TURNS, lambda: watch.long_turns)
        metrics.add_value(CONNECTIONS, lambda: len(server.connections))
        metrics.add_value(CONNECTIONS_MAX, lambda: server.connections_max)
        metrics.add_value(MEMORY, lambda: memory.total)
        metrics.add_value(MEMORY_MAX, lambda: memory.size_max)
        metrics.add(CERTIFICATE_EXPIRY, self._read_certificate)
        add_process(metrics, self._pauses)

    def _read_delays(self) -> Iterator[Sample]:
        self._watch.start()
        self._pauses.start()
        yield (), self._watch.delays

    def _read_certificate(self) -> Iterator[Sample]:
        end = self._server.certificate_end
        if end is not None:
            yield (), end.timestamp()
