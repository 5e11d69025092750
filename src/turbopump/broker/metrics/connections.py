"""Metrics of the connected producers and consumers, by language and version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from turbopump.broker.client_table import ClientTable, Member
from turbopump.broker.counters.labels import SystemLabel
from turbopump.metrics.family import Family, Kind, Metrics, Sample
from turbopump.protocol.codes import LanguageCode, version_name
from turbopump.protocol.requests.clients import ConsumeType
from turbopump.remoting.wire import Wire

PRODUCERS: Final = Family(
    "rocketmq_producer_connections",
    Kind.GAUGE,
    "Connections of producers. A connection counts once for each of its producer groups.",
    ("language", "version", "protocol_type"),
)
CONSUMERS: Final = Family(
    "rocketmq_consumer_connections",
    Kind.GAUGE,
    "Connections of consumers, by group.",
    ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
)
_MODES: Final = {
    ConsumeType.CONSUME_ACTIVELY: "pull",
    ConsumeType.CONSUME_PASSIVELY: "push",
    ConsumeType.CONSUME_POP: "pop",
}
_REMOTING: Final = "remoting"


def add_connections(metrics: Metrics, clients: ClientTable[Wire], is_system: SystemLabel) -> None:
    """Add the metrics of connected clients."""

    def read_producers() -> Iterator[Sample | None]:
        counts: Counter[tuple[str, str]] = Counter()
        for members in list(clients.producers.values()):
            counts.update(_software(member) for member in list(members.values()))
            yield None
        for (language, version), count in counts.items():
            yield (language, version, _REMOTING), count

    def read_consumers() -> Iterator[Sample | None]:
        for group in list(clients.groups.values()):
            mode = _MODES[group.consume_type]
            system = is_system("", group.name)
            counts = Counter(_software(member) for member in list(group.members.values()))
            for (language, version), count in counts.items():
                yield (group.name, language, version, mode, _REMOTING, system), count

    metrics.add(PRODUCERS, read_producers)
    metrics.add(CONSUMERS, read_consumers)


def _software(member: Member) -> tuple[str, str]:
    """Return the language and the version of a client."""
    known = member.language in set(LanguageCode)
    language = LanguageCode(member.language) if known else LanguageCode.OTHER
    return language.name.lower(), version_name(member.version).lower()
