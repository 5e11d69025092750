"""Brokers, and what they register with a route table."""

from turbopump.namesrv.route_table import BrokerIdentity, Registration
from turbopump.protocol.requests.topics import (
    DataVersion,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)

MASTER = BrokerIdentity("c", "broker-a", 0, "10.0.0.1:10911")
SLAVE = BrokerIdentity("c", "broker-a", 1, "10.0.0.2:10911")
SECOND_SLAVE = BrokerIdentity("c", "broker-a", 2, "10.0.0.3:10911")
OTHER = BrokerIdentity("c", "broker-b", 0, "10.0.0.9:10911")


def registration(
    broker: BrokerIdentity,
    topics: dict[str, int] | None = None,
    *,
    version: int = 1,
    state_version: int = 0,
    acting_master: bool | None = False,
    timeout_ms: int = 120_000,
    filter_servers: list[str] | None = None,
    partial: bool = False,
) -> Registration:
    """A registration of topics with so many queues; two topics unless told otherwise."""
    configs = {
        name: TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
        for name, queues in ({"T": 4, "U": 4} if topics is None else topics).items()
    }
    return Registration(
        broker=broker,
        topics=TopicConfigAndMappingSerializeWrapper(
            data_version=DataVersion(counter=version, state_version=state_version),
            topic_config_table=configs,
        ),
        ha_address=broker.address.replace("10911", "10912"),
        acting_master=acting_master,
        timeout_ms=timeout_ms,
        filter_servers=filter_servers or [],
        partial=partial,
    )
