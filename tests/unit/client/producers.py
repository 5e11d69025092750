"""Producers of a scripted cluster."""

from __future__ import annotations

from tests.unit.client.scripted_cluster import ScriptedBroker, ScriptedCluster

from turbopump.client.producer import Producer
from turbopump.message.codec import decode_entry
from turbopump.message.message import ReceivedMessage


def producer_of(cluster: ScriptedCluster, **settings: object) -> Producer:
    return Producer(cluster.name_server.address, **{**cluster.settings, **settings})  # type: ignore[arg-type]


REQUEST = (
    "CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01somebody\x02TTL\x013000\x02"
    "CLUSTER\x01c\x02UNIQ_KEY\x01REQUEST-1\x02"
)


def a_request(broker_name: str = "broker-a", properties: str = REQUEST) -> ReceivedMessage:
    """As a consumer has it."""
    scripted = ScriptedBroker()
    scripted.store("orders", 0, b"what?", properties)
    message = decode_entry(scripted.entries["orders", 0][0])
    message.broker_name = broker_name
    return message
