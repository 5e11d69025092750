"""What a broker tells a name server about itself, what is kept of it, and the three ways a
registration can end: plain values.

Their one rule: a broker is its cluster, name, id and address together; two that differ in one of
these are two brokers. They must not know the table.
"""

from dataclasses import dataclass, field

from turbopump.protocol.bodies.topics import DataVersion, TopicConfigAndMappingSerializeWrapper

DEFAULT_TIMEOUT_MS = 120_000


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """One broker process: who it says it is and where it is reached (`host:port`)."""

    cluster: str
    name: str
    id: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker registers. `acting_master` is None for brokers of 4.x, which do not send it."""

    broker: BrokerIdentity
    topics: TopicConfigAndMappingSerializeWrapper = field(
        default_factory=TopicConfigAndMappingSerializeWrapper
    )
    filter_servers: list[str] = field(default_factory=list)
    ha_address: str | None = None
    zone: str | None = None
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    acting_master: bool | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """A registration that holds; for a slave, its live master's addresses."""

    master_address: str | None = None
    ha_address: str | None = None


@dataclass(frozen=True, slots=True)
class Superseded:
    """A registration that is ignored: `owner` has the same name and id, and a newer state."""

    owner: str


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A registration that is refused: a broker's first one must carry all its topics, and this one
    has a single topic."""


@dataclass(slots=True)
class LiveBroker:
    """A broker that is believed to be there until `heard_at + timeout_ms`."""

    broker: BrokerIdentity
    connection: object
    data_version: DataVersion
    ha_address: str | None
    filter_servers: list[str]
    timeout_ms: int
    heard_at: float
