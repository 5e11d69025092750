"""Generator of `docs/reference/metrics.md`, from the declared metrics:
`python -m tests.unit.metrics.metrics_page > docs/reference/metrics.md`."""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Final

import turbopump.admin.exporter.collector
import turbopump.broker.counters
import turbopump.broker.metrics
import turbopump.controller.metrics
import turbopump.metrics.process
import turbopump.namesrv.metrics
import turbopump.remoting.server_metrics
import turbopump.spark.job_metrics
from turbopump.admin.exporter.cluster_metrics import FAMILIES
from turbopump.metrics.family import Family

BROKER: Final[tuple[ModuleType, ...]] = (turbopump.broker.counters, turbopump.broker.metrics)
NAMESRV: Final[tuple[ModuleType, ...]] = (turbopump.namesrv.metrics,)
CONTROLLER: Final[tuple[ModuleType, ...]] = (turbopump.controller.metrics,)
EVERY_SERVER: Final[tuple[ModuleType, ...]] = (
    turbopump.remoting.server_metrics,
    turbopump.metrics.process,
)
JOB: Final[tuple[ModuleType, ...]] = (turbopump.spark.job_metrics,)
"""Modules, or packages of modules, with the metrics of each program."""

EXPORTER_TITLE: Final = """## `turbopump exporter`

Names and labels are those of Apache's rocketmq-exporter. There are
[differences](../guide/monitoring.md#a-whole-cluster).
"""

_PREFACE = """# Metrics

Written by `python -m tests.unit.metrics.metrics_page > docs/reference/metrics.md`; a test checks
that it is up to date. [Monitoring](../guide/monitoring.md#metrics) tells how to read metrics.

Names, types and labels are those of Apache's 5.3.3 broker, as Prometheus reads them. Names that
begin with `turbopump_` are ours. A counter begins at 0 with the process. The series of a deleted
topic or group leave with the next scrape.

Each metric of a broker also has the labels `cluster`, `node_type` (`broker`), `node_id` (the name
of the broker), `otel_scope_name` (`broker-meter`), and those of the setting `metricsLabel`. A
metric of a name server has `node_type` (`namesrv`) and those of `metricsLabel`. A metric of a
controller has Apache's name, `node_type` (`controller`), `group`, `peer_id` and those of
`metricsLabel`.
"""

_LABELS = {
    "topic`, `consumer_group": "a name",
    "is_system": "`true` if the topic or the group belongs to the system",
    "is_retry": "`true` for messages in the retry topic of a group that pops",
    "message_type": "the first that applies: `transaction`, `fifo` (the message has a sharding "
    "key), `delay` or `normal`",
    "consume_mode": "`push`, `pull` or `pop`",
    "invocation_status": "`success` or `failure`",
    "language`, `version": "those of the client's library",
    "protocol_type": "`remoting`",
    "storage_type`, `storage_medium": "`local` and `disk`",
}
"""Meanings of the labels."""

_DIFFERENCES = """
## What counts, and what does not

Messages count as with Apache's broker:

- A half message counts in `RMQ_SYS_TRANS_HALF_TOPIC` when it is sent. Its commit does not count in
  `rocketmq_messages_in_total`.
- A delayed message counts in `SCHEDULE_TOPIC_XXXX` when it is sent, and in its own topic when it is
  delivered. A timer message counts in `rmq_sys_wheel_timer`, and not again.
- Sends to retry topics and dead-letter topics do not count. A delayed delivery to a retry topic
  does.
- Pulls from retry topics and dead-letter topics do not count. A pop counts for the topic that was
  asked for, with `is_retry`.
- The metrics of consumer groups show groups that are connected. With `useStaticSubscription` they
  show the topics in the settings of all groups.
- The lag of a group with a tag filter counts the messages that it wants. Of more than 2,000
  messages in a queue, the rest is estimated.

There are these differences:

- Each message of a batch is an observation of `rocketmq_message_size`. With Apache's broker a batch
  is one observation of its mean size.
- A stored entry has a CRC here unless `enabledAppendPropCRC=false`, so that it is 20 bytes longer.
- The reads that the broker itself makes for transactions and POP do not count in
  `rocketmq_messages_out_total`.
- Deleted topics and groups leave. With Apache's broker they stay until a restart.
- Plain messages are counted by a walk over the queues at the scrape, so that a send costs nothing.
"""


def page() -> str:
    """Return the text of the page."""
    lines = [_PREFACE, "| label | value |", "|---|---|"]
    lines += [f"| `{names}` | {meaning} |" for names, meaning in _LABELS.items()]
    lines.append("")
    for title, modules in (
        ("A broker", BROKER),
        ("A name server", NAMESRV),
        ("A controller", CONTROLLER),
        ("A broker, a name server or a controller", EVERY_SERVER),
        ("A pipeline or a streaming query", JOB),
    ):
        lines += [f"## {title}\n", *_table(families_of(modules)), ""]
    lines += [EXPORTER_TITLE, *_table(exporter_families()), ""]
    lines[-1] = _DIFFERENCES.rstrip("\n")
    return "\n".join(lines)


def exporter_families() -> list[Family]:
    """Return the metrics of `turbopump exporter`, by name."""
    found = {*FAMILIES, *families_of((turbopump.admin.exporter.collector,))}
    return sorted(found, key=lambda family: family.name)


def families_of(modules: tuple[ModuleType, ...]) -> list[Family]:
    """Return the metrics that the modules declare, by name."""
    found = {
        value.name: value
        for module in modules
        for part in _parts(module)
        for value in vars(part).values()
        if isinstance(value, Family)
    }
    return [found[name] for name in sorted(found)]


def _parts(module: ModuleType) -> Iterator[ModuleType]:
    yield module
    for one in pkgutil.iter_modules(getattr(module, "__path__", [])):
        yield importlib.import_module(f"{module.__name__}.{one.name}")


def _table(families: list[Family]) -> Iterator[str]:
    yield "| name | type | labels | meaning |"
    yield "|---|---|---|---|"
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels) or "–"
        kind = str(family.kind)
        if family.bounds:
            kind += f": {', '.join(str(bound) for bound in family.bounds)}"
        yield f"| `{family.name}` | {kind} | {labels} | {family.help} |"


if __name__ == "__main__":
    print(page())
