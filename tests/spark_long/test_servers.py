"""The servers of the long runs: what they stored is there after a kill, on the same address."""

from __future__ import annotations

from tests.spark_long.conftest import Servers

from turbopump.blocking import Producer
from turbopump.message.message import MessageQueue
from turbopump.spark.cluster import Cluster


def test_killed_servers_come_back_on_their_address_with_what_they_had(servers: Servers) -> None:
    with Producer(servers.name_server) as producer:
        place = producer.send("T", b"one")
    address = servers.name_server
    servers.kill()
    servers.start()
    assert servers.name_server == address
    with Cluster([address]) as cluster:
        assert cluster.offset_max(MessageQueue("T", "broker-dev", place.queue.queue_id)) == 1
