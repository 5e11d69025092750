"""Metrics of a controller, under the names of Apache's. Metrics of DLedger do not exist here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from turbopump.config.controller_config import ControllerConfig
from turbopump.controller.decided_groups import DecidedGroups
from turbopump.controller.liveness import Liveness
from turbopump.metrics.family import Family, Kind, Metrics, Sample
from turbopump.protocol.codes import ResponseCode, request_name
from turbopump.remoting.answer_times import AnswerTimes

ROLE: Final = Family(
    "role", Kind.GAUGE, "Role of this controller: 3 leads, 2 follows, 1 knows no leader."
)
ACTIVE_BROKERS: Final = Family(
    "active_broker_num",
    Kind.GAUGE,
    "Replicas that send heartbeats, by cluster and broker name.",
    ("cluster", "broker_set"),
)
REQUESTS: Final = Family(
    "request_total", Kind.COUNTER, "Answered requests.", ("request_type", "request_handle_status")
)
ELECTIONS: Final = Family(
    "election_total",
    Kind.COUNTER,
    "Elections by result: new_master_elected, keep_current_master or no_master_elected.",
    ("election_result",),
)
LEADS, FOLLOWS, KNOWS_NONE = 3, 2, 1


def metrics_of(
    config: ControllerConfig,
    groups: DecidedGroups,
    liveness: Liveness,
    times: AnswerTimes,
    leader: Callable[[], str | None],
) -> Metrics:
    """Return the metrics of a controller.

    - ``times``: the times of its answers.
    - ``leader``: returns the address of the leading controller.
    """
    metrics = Metrics(
        {
            **config.metrics_labels,
            "node_type": "controller",
            "group": config.controller_d_leger_group,
            "peer_id": config.controller_d_leger_self_id,
        }
    )

    def read_role() -> int:
        if groups.leads:
            return LEADS
        return FOLLOWS if leader() is not None else KNOWS_NONE

    def read_active() -> Iterator[Sample]:
        for name, count in liveness.counts().items():
            yield (groups.cluster(name), name), count

    def read_requests() -> Iterator[Sample]:
        counts: Counter[tuple[str, ...]] = Counter()
        for kind, distribution in times.read():
            failed = kind.response_code == ResponseCode.SYSTEM_ERROR
            status = "failed" if failed else "success"
            counts[request_name(kind.request_code), status] += sum(distribution.counts)
        return iter(counts.items())

    metrics.add_value(ROLE, read_role)
    metrics.add(ACTIVE_BROKERS, read_active)
    metrics.add(REQUESTS, read_requests)
    metrics.add(
        ELECTIONS, lambda: iter([((name,), count) for name, count in groups.elections.items()])
    )
    return metrics
