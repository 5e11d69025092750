"""Metrics of brokers, topics, groups and clients under the names of rocketmq-exporter.

The module turns the answers of brokers and clients into samples. A series exists only while the
answers have it: a deleted topic and a client that has gone leave with the next collection. Source:
apache/rocketmq-exporter ``RMQMetricsCollector``, ``MetricsCollectTask``.

Rates are per second over the last minute, as in rocketmq-exporter. Only its builds between #108 and
#141 show the sum of the minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from turbopump.admin.broker_figures import FigureTexts
from turbopump.admin.exporter.broker_answers import BrokerAnswers, BrokerName, GroupFigures
from turbopump.admin.exporter.runtime_metrics import RUNTIME_FAMILIES, runtime_samples
from turbopump.message.rules import DLQ_PREFIX, RETRY_PREFIX
from turbopump.metrics.family import Family, Kind
from turbopump.protocol.requests.clients import MessageModel
from turbopump.protocol.requests.consumers import ConsumeStatus
from turbopump.protocol.requests.namesrv import MASTER_ID


def _gauge(name: str, labels: str, text: str) -> Family:
    return Family(f"rocketmq_{name}", Kind.GAUGE, text, tuple(labels.split()))


BROKER: Final = "cluster brokerIP broker"
BROKER_IN: Final = _gauge("broker_tps", BROKER, "Messages a second that were stored.")
BROKER_OUT: Final = _gauge("broker_qps", BROKER, "Messages a second that were delivered.")
SLAVE_BEHIND: Final = _gauge(
    "broker_commitlog_diff", BROKER, "Bytes by which the log of a slave is behind its master's."
)

TOPIC: Final = "cluster broker topic"
TOPIC_END: Final = _gauge(
    "producer_offset", TOPIC, "Messages that the topic ever got on the broker: its next offsets."
)
RETRY_END: Final = _gauge(
    "topic_retry_offset", TOPIC, "Messages that the retry topic ever got on the broker."
)
DLQ_END: Final = _gauge(
    "topic_dlq_offset",
    "cluster broker group",
    "Dead letters that the group ever had on the broker.",
)
TOPIC_IN: Final = _gauge("producer_tps", TOPIC, "Messages a second that were sent to the topic.")
TOPIC_IN_SIZE: Final = _gauge(
    "producer_message_size", TOPIC, "Bytes a second that were sent to the topic."
)
PRODUCERS: Final = _gauge(
    "producer_count", "cluster broker group", "Connected producers of the group."
)

PROGRESS: Final = "cluster broker topic group"
GROUP_OUT: Final = _gauge("consumer_tps", PROGRESS, "Messages a second that the group got.")
GROUP_RATE: Final = _gauge("group_consume_tps", PROGRESS, "Messages a second that the group got.")
GROUP_OUT_SIZE: Final = _gauge(
    "consumer_message_size", PROGRESS, "Bytes a second that the group got."
)
GROUP_OFFSET: Final = _gauge(
    "consumer_offset", PROGRESS, "Sum of the group's offsets in the queues of the topic."
)
GROUP_TOTAL: Final = _gauge(
    "group_consume_total_offset", PROGRESS, "Sum of the group's offsets in the queues of the topic."
)
SENT_BACK: Final = _gauge(
    "send_back_nums", PROGRESS, "Messages that the group sent back in the last minute."
)
LATENCY: Final = _gauge(
    "group_get_latency_by_storetime",
    PROGRESS,
    "Age in ms of the oldest message that the group has not consumed.",
)

BEHIND: Final = "group topic countOfOnlineConsumers msgModel"
GROUP_BEHIND: Final = _gauge(
    "group_diff", BEHIND, "Messages of the topic that the group has not consumed."
)
RETRY_BEHIND: Final = _gauge(
    "group_retrydiff", BEHIND, "Messages of its retry topic that the group has not consumed."
)
DLQ_BEHIND: Final = _gauge(
    "group_dlqdiff", BEHIND, "Dead letters that a group which reads them has not consumed."
)
MEMBERS: Final = _gauge("group_count", "caddr localaddr group", "Connected members of the group.")

CLIENT: Final = "clientAddr clientId group topic"
CLIENT_FAILURES: Final = _gauge(
    "client_consume_fail_msg_count", CLIENT, "Failed messages of the consumer in the last hour."
)
CLIENT_FAILED: Final = _gauge(
    "client_consume_fail_msg_tps", CLIENT, "Messages a second that the consumer failed on."
)
CLIENT_OK: Final = _gauge(
    "client_consume_ok_msg_tps", CLIENT, "Messages a second that the consumer has handled."
)
CLIENT_TIME: Final = _gauge(
    "client_consume_rt", CLIENT, "Milliseconds that the consumer takes for a message."
)
CLIENT_PULL_TIME: Final = _gauge(
    "client_consumer_pull_rt", CLIENT, "Milliseconds that a pull of the consumer takes."
)
CLIENT_PULLS: Final = _gauge(
    "client_consumer_pull_tps", CLIENT, "Messages a second that the consumer pulls."
)

FAMILIES: Final = (
    BROKER_IN,
    BROKER_OUT,
    SLAVE_BEHIND,
    TOPIC_END,
    RETRY_END,
    DLQ_END,
    TOPIC_IN,
    TOPIC_IN_SIZE,
    PRODUCERS,
    GROUP_OUT,
    GROUP_RATE,
    GROUP_OUT_SIZE,
    GROUP_OFFSET,
    GROUP_TOTAL,
    SENT_BACK,
    LATENCY,
    GROUP_BEHIND,
    RETRY_BEHIND,
    DLQ_BEHIND,
    MEMBERS,
    CLIENT_FAILURES,
    CLIENT_FAILED,
    CLIENT_OK,
    CLIENT_TIME,
    CLIENT_PULL_TIME,
    CLIENT_PULLS,
    *RUNTIME_FAMILIES,
)
"""All families with the names of rocketmq-exporter."""

Series = dict[Family, dict[tuple[str, ...], float]]
"""Values of each family, by the values of its labels."""
MODELS: Final = {MessageModel.BROADCASTING: "0", MessageModel.CLUSTERING: "1"}
"""Value of the label ``msgModel``: the ordinal of Apache's enum."""


class ClientName(NamedTuple):
    """Member of a consumer group. ``address`` is that of its connection to one broker."""

    group: str
    client_id: str
    address: str


ClientStatus = Mapping[ClientName, Mapping[str, ConsumeStatus]]
"""Times and rates of each consumer, by topic."""


@dataclass(slots=True)
class WholeGroup:
    """Consumer group on all masters."""

    members: dict[str, str] = field(default_factory=dict)
    model: MessageModel = MessageModel.CLUSTERING
    behind: dict[str, int] = field(default_factory=dict)

    def add(self, figures: GroupFigures) -> None:
        """Add the figures of the group on one master."""
        self.members = figures.members | self.members
        if figures.members:
            self.model = figures.model
        for topic, progress in figures.topics.items():
            self.behind[topic] = self.behind.get(topic, 0) + progress.behind


def whole_groups(brokers: Iterable[BrokerAnswers]) -> dict[str, WholeGroup]:
    """Return each consumer group with the sums of all masters."""
    groups: dict[str, WholeGroup] = {}
    for broker in brokers:
        for group, figures in broker.groups.items():
            groups.setdefault(group, WholeGroup()).add(figures)
    return groups


def cluster_series(brokers: Sequence[BrokerAnswers], clients: ClientStatus) -> Series:
    """Return all series of the cluster, from the answers of its brokers and consumers."""
    series: Series = {family: {} for family in FAMILIES}
    masters = [broker for broker in brokers if broker.name.is_master]
    for broker in masters:
        for family, values, value in runtime_samples(broker):
            series[family][values] = value
        _add_broker(series, broker)
        for group, figures in broker.groups.items():
            _add_progress(series, broker, group, figures)
    for family, values, value in _slave_samples(brokers):
        series[family][values] = value
    for group, whole in whole_groups(masters).items():
        _add_group(series, group, whole)
    for client, topics in clients.items():
        for topic, status in topics.items():
            _add_client(series, client, topic, status)
    return series


def _add_broker(series: Series, broker: BrokerAnswers) -> None:
    cluster, name, _ = broker.name
    values = (cluster, broker.address, name)
    series[BROKER_IN][values] = broker.put_rate
    series[BROKER_OUT][values] = broker.get_rate
    for group, count in broker.producers.items():
        series[PRODUCERS][cluster, name, group] = count
    for topic, figures in broker.topics.items():
        if topic.startswith(DLQ_PREFIX):
            series[DLQ_END][cluster, name, topic.removeprefix(DLQ_PREFIX)] = figures.end
            continue
        end = TOPIC_END
        if topic.startswith(RETRY_PREFIX):
            end = RETRY_END
        series[end][cluster, name, topic] = figures.end
        if figures.put_rate is not None and figures.put_size_rate is not None:
            series[TOPIC_IN][cluster, name, topic] = figures.put_rate
            series[TOPIC_IN_SIZE][cluster, name, topic] = figures.put_size_rate


def _add_progress(series: Series, broker: BrokerAnswers, group: str, figures: GroupFigures) -> None:
    cluster, name, _ = broker.name
    for topic, progress in figures.topics.items():
        values = (cluster, name, topic, group)
        series[GROUP_OFFSET][values] = series[GROUP_TOTAL][values] = progress.offset
        if figures.model is MessageModel.CLUSTERING:
            series[LATENCY][values] = progress.latency_ms
        if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            series[GROUP_OUT][values] = series[GROUP_RATE][values] = progress.get_rate
            series[GROUP_OUT_SIZE][values] = progress.get_size_rate
            series[SENT_BACK][values] = progress.sent_back


def _slave_samples(
    brokers: Sequence[BrokerAnswers],
) -> Iterator[tuple[Family, tuple[str, ...], float]]:
    ends = {one.name: FigureTexts(one.figures).number("commitLogMaxOffset") for one in brokers}
    for broker in brokers:
        cluster, name, _ = broker.name
        end = ends[broker.name]
        master_end = ends.get(BrokerName(cluster, name, MASTER_ID))
        if not broker.name.is_master and end is not None and master_end is not None:
            yield SLAVE_BEHIND, (cluster, broker.address, name), master_end - end


def _add_group(series: Series, group: str, whole: WholeGroup) -> None:
    if not whole.members and not whole.behind:
        return  # Apache's brokers have eight groups that nobody uses
    members = sorted(whole.members.items())
    addresses = ",".join(address for _, address in members)
    ids = ",".join(client_id for client_id, _ in members)
    series[MEMBERS][addresses, ids, group] = len(members)
    if whole.model is not MessageModel.CLUSTERING:
        return
    for topic, behind in whole.behind.items():
        family = GROUP_BEHIND
        if topic.startswith(RETRY_PREFIX):
            family = RETRY_BEHIND
        elif topic.startswith(DLQ_PREFIX):
            family = DLQ_BEHIND
        series[family][group, topic, str(len(members)), MODELS[whole.model]] = behind


def _add_client(series: Series, client: ClientName, topic: str, status: ConsumeStatus) -> None:
    values = (client.address, client.client_id, client.group, topic)
    series[CLIENT_FAILURES][values] = status.consume_failed_msgs
    series[CLIENT_FAILED][values] = status.consume_failed_tps
    series[CLIENT_OK][values] = status.consume_ok_tps
    series[CLIENT_TIME][values] = status.consume_rt
    series[CLIENT_PULL_TIME][values] = status.pull_rt
    series[CLIENT_PULLS][values] = status.pull_tps
