"""What the name server says about whole clusters (106) and about one broker's replicas (901).

One rule: both always go out in the `{0:"host:port"}` form, never as standard JSON. It must not know
the route table.
"""

from __future__ import annotations

import msgspec

from turbopump.protocol.bodies.route import BrokerData


class ClusterInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Brokers by name, and the broker names of each cluster."""

    broker_addr_table: dict[str, BrokerData] = msgspec.field(default_factory=dict)
    cluster_addr_table: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class BrokerMemberGroup(msgspec.Struct, kw_only=True, rename="camel"):
    """The live members of one broker name: broker id -> `host:port`."""

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[int, str] = msgspec.field(default_factory=dict)


class BrokerMemberGroupBody(msgspec.Struct, kw_only=True, rename="camel"):
    """The answer to 901 (apache/rocketmq `GetBrokerMemberGroupResponseBody`)."""

    broker_member_group: BrokerMemberGroup | None = None
