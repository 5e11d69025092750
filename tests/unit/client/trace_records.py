"""Records of message traces, as the trace topic has them."""

from __future__ import annotations

from tests.unit.client.scripted_cluster import ScriptedCluster

from turbopump.client.trace import TRACE_TOPIC
from turbopump.message.codec import decode_entry
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import encode_properties


def traces(cluster: ScriptedCluster, topic: str = TRACE_TOPIC) -> list[ReceivedMessage]:
    found = [
        decode_entry(entry)
        for key, entries in cluster.broker.entries.items()
        if key[0] == topic
        for entry in entries
    ]
    return sorted(found, key=lambda message: message.body)


def records(message: ReceivedMessage) -> list[list[str]]:
    return [record.split("\x01") for record in message.body.decode().split("\x02") if record]


def by_message(cluster: ScriptedCluster, msg_id: str) -> list[list[str]]:
    """The records of one message, in the order in which they were made."""
    found = [record for message in traces(cluster) for record in records(message)]
    mine = [record for record in found if msg_id in record]
    return sorted(
        mine,
        key=lambda record: (
            int(record[1] if record[0] == "SubBefore" else record[7]),
            record[0] == "SubAfter",
        ),
    )


def store(cluster: ScriptedCluster, body: bytes, msg_id: str, **properties: str) -> None:
    cluster.broker.store("orders", 0, body, encode_properties({"UNIQ_KEY": msg_id, **properties}))
