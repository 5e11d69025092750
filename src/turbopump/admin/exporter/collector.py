"""Collection of a whole cluster's metrics, again and again, for a page that shows the last one.

Name servers say which brokers there are, and each broker is asked in parallel. A broker that does
not answer is a series with the value 0, not an error. Its last answers are shown for a while. The
page itself is unknown here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from turbopump.admin.cluster import Servers
from turbopump.admin.exporter.broker_answers import (
    BrokerAnswers,
    BrokerName,
    BrokerQuestions,
    for_each,
)
from turbopump.admin.exporter.cluster_metrics import FAMILIES, ClientName, Series, cluster_series
from turbopump.admin.groups import running_info
from turbopump.clock import Clock
from turbopump.errors import ProtocolError, RemotingError
from turbopump.metrics.family import Family, Kind, Metrics, Read, Sample
from turbopump.protocol.requests.consumers import ConsumeStatus
from turbopump.protocol.requests.namesrv import ClusterInfo, GetBrokerClusterInfo
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_no_answer = RepeatedLine(log, logging.WARNING, "no answer from a %s address=%s reason=%s")

BROKERS_AT_ONCE: Final = 16
CLIENTS_AT_ONCE: Final = 16
BROKER_S: Final = 60.0
"""Seconds after which a broker that has not answered all questions counts as down."""
CLIENTS_S: Final = 15.0
"""Seconds for the questions to all consumers together. Brokers pass them on."""
KEPT_S: Final = 60.0
"""Seconds for which the answers of a silent broker are shown. With a long interval between two
collections it is three intervals. Source: ``outOfTimeSeconds`` of rocketmq-exporter."""
REMEMBERED_S: Final = 24 * 3600.0
"""A day: an alert about a broker must not end because name servers have forgotten it."""

WHICH: Final = ("cluster", "broker", "broker_id")
UP: Final = Family(
    "turbopump_exporter_up",
    Kind.GAUGE,
    "1 if the broker answered all questions of the last collection, else 0.",
    WHICH,
)
AGE: Final = Family(
    "turbopump_exporter_age_seconds",
    Kind.GAUGE,
    "Seconds since the broker last answered all questions.",
    WHICH,
)
NAMESRV_UP: Final = Family(
    "turbopump_exporter_namesrv_up",
    Kind.GAUGE,
    "1 if the name server answered in the last collection, else 0.",
    ("namesrv",),
)
NAMESRV_BROKERS: Final = Family(
    "turbopump_exporter_namesrv_brokers",
    Kind.GAUGE,
    "Brokers, masters and slaves, that the name server lists.",
    ("namesrv",),
)
DURATION: Final = Family(
    "turbopump_exporter_collection_seconds", Kind.GAUGE, "Seconds that the last collection took."
)


@dataclass(slots=True)
class KnownBroker:
    """Broker that a name server has listed.

    - ``listed_at``, ``answered_at``: times in monotonic seconds.
    """

    questions: BrokerQuestions
    address: str
    listed_at: float
    is_up: bool = False
    answers: BrokerAnswers | None = None
    answered_at: float = 0.0


class Collector:
    """Collects the metrics of a cluster. ``metrics`` has those of the last collection.

    - ``servers``: the connections, which the caller closes.
    - ``interval_s``: seconds between the beginnings of two collections.
    - ``remembered_s``: seconds for which a broker that no name server lists is shown as down.
    """

    def __init__(
        self, servers: Servers, clock: Clock, interval_s: float, remembered_s: float = REMEMBERED_S
    ) -> None:
        self._servers = servers
        self._clock = clock
        self._interval_s = interval_s
        self._remembered_s = remembered_s
        self._brokers: dict[BrokerName, KnownBroker] = {}
        self._lists: dict[str, ClusterInfo | None] = dict.fromkeys(servers.name_servers)
        self._silent: set[ClientName] = set()
        """Consumers that did not answer last time. The next collection asks them last, because each
        may take seconds."""
        self._series: Series = {}
        self._took_s = 0.0
        self.metrics = Metrics()
        for family in FAMILIES:
            self.metrics.add(family, self._read_of(family))
        self.metrics.add(UP, self._up)
        self.metrics.add(AGE, self._ages)
        self.metrics.add(NAMESRV_UP, self._name_servers_up)
        self.metrics.add(NAMESRV_BROKERS, self._brokers_listed)
        self.metrics.add_value(DURATION, lambda: self._took_s)

    async def run(self) -> None:
        """Collect after every interval, until the task is cancelled. An error is only logged: the
        next collection may succeed."""
        while True:
            await asyncio.sleep(max(self._interval_s - self._took_s, 0))
            try:
                await self.collect()
            except Exception:
                log.exception("collection failed")

    async def collect(self) -> None:
        """Ask all name servers, brokers and consumers once."""
        began = self._clock.monotonic()
        await for_each(self._lists, self._ask_name_server, BROKERS_AT_ONCE)
        self._take_lists()
        await for_each(list(self._brokers.values()), self._ask_broker, BROKERS_AT_ONCE)
        now = self._clock.monotonic()
        kept_s = max(KEPT_S, 3 * self._interval_s)
        shown = [
            broker.answers
            for broker in self._brokers.values()
            if broker.answers is not None and now - broker.answered_at <= kept_s
        ]
        self._series = cluster_series(shown, await self._ask_clients())
        self._took_s = self._clock.monotonic() - began
        log.debug("collected brokers=%d seconds=%.3f", len(shown), self._took_s)

    async def _ask_name_server(self, address: str) -> None:
        try:
            self._lists[address] = await self._servers.call(address, GetBrokerClusterInfo())
        except (RemotingError, ProtocolError) as error:
            self._lists[address] = None
            _no_answer("name server", address, error, kind=address)

    def _take_lists(self) -> None:
        """Take over the brokers that at least one name server lists."""
        now = self._clock.monotonic()
        for listed in self._lists.values():
            if listed is None:
                continue
            for broker, data in listed.broker_addr_table.items():
                for number, address in data.broker_addrs.items():
                    name = BrokerName(data.cluster or "", broker, number)
                    known = self._brokers.get(name)
                    if known is None:
                        questions = BrokerQuestions(self._servers, self._clock, name)
                        known = self._brokers[name] = KnownBroker(questions, address, now)
                    known.address = address
                    known.listed_at = now
        for name, known in list(self._brokers.items()):
            if now - known.listed_at > self._remembered_s:
                del self._brokers[name]

    async def _ask_broker(self, broker: KnownBroker) -> None:
        try:
            async with asyncio.timeout(BROKER_S):
                broker.answers = await broker.questions.ask(broker.address)
        except (RemotingError, ProtocolError, TimeoutError) as error:
            broker.is_up = False
            reason = str(error) or f"not all answers came within {BROKER_S:.0f} s"
            _no_answer("broker", broker.address, reason, kind=broker.address)
            return
        broker.is_up = True
        broker.answered_at = self._clock.monotonic()

    async def _ask_clients(self) -> dict[ClientName, dict[str, ConsumeStatus]]:
        """Ask each consumer for its status, through one broker to which it is connected."""
        through: dict[tuple[str, str], tuple[ClientName, str]] = {}
        for broker in self._brokers.values():
            if broker.is_up and broker.answers is not None:
                for group, figures in broker.answers.groups.items():
                    for client_id, address in figures.members.items():
                        client = ClientName(group, client_id, address)
                        through.setdefault((group, client_id), (client, broker.address))
        found: dict[ClientName, dict[str, ConsumeStatus]] = {}

        async def ask(client_and_broker: tuple[ClientName, str]) -> None:
            client, address = client_and_broker
            status = await running_info(self._servers, address, client.group, client.client_id)
            if not isinstance(status, str):  # else the client is gone, or has no answer
                found[client] = status.status_table

        try:
            async with asyncio.timeout(CLIENTS_S):
                clients = sorted(through.values(), key=lambda one: one[0] in self._silent)
                await for_each(clients, ask, CLIENTS_AT_ONCE)
        except TimeoutError:
            log.warning(
                "not all consumers answered in time asked=%d answered=%d", len(through), len(found)
            )
        self._silent = {client for client, _ in through.values()} - found.keys()
        return found

    def _read_of(self, family: Family) -> Read:
        def read() -> Iterator[Sample]:
            return iter(self._series.get(family, {}).items())

        return read

    def _up(self) -> Iterator[Sample]:
        for (cluster, name, number), broker in self._brokers.items():
            yield (cluster, name, str(number)), int(broker.is_up)

    def _ages(self) -> Iterator[Sample]:
        now = self._clock.monotonic()
        for (cluster, name, number), broker in self._brokers.items():
            if broker.answers is not None:
                yield (cluster, name, str(number)), now - broker.answered_at

    def _name_servers_up(self) -> Iterator[Sample]:
        for address, listed in self._lists.items():
            yield (address,), int(listed is not None)

    def _brokers_listed(self) -> Iterator[Sample]:
        for address, listed in self._lists.items():
            if listed is not None:
                brokers = listed.broker_addr_table.values()
                yield (address,), sum(len(broker.broker_addrs) for broker in brokers)
