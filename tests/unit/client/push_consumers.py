"""Push consumers of a scripted cluster, and what a test looks at: messages that lie there, offsets
that were committed."""

from __future__ import annotations

from pathlib import Path

from tests.simulation.world.simulation import Simulation
from tests.unit.client.scripted_cluster import ScriptedCluster
from tests.waits import until

from turbopump.client.push_consumer import ConsumeFrom, PushConsumer
from turbopump.protocol import fastjson
from turbopump.protocol.requests.assignment import LockBatchMq, LockBatchRequestBody

FIRST = ConsumeFrom.FIRST
DIRECTORY = Path("/home/.rocketmq_offsets")


def consumer_of(cluster: ScriptedCluster, **settings: object) -> PushConsumer:
    defaults = {"group": "readers", "topic": "orders", "consume_from": FIRST}
    return PushConsumer(cluster.name_server.address, **{**defaults, **cluster.settings, **settings})  # type: ignore[arg-type]


def fill(cluster: ScriptedCluster, count: int, *, queue_id: int = 0, topic: str = "orders") -> None:
    for i in range(count):
        cluster.broker.store(topic, queue_id, f"m{i}".encode())


def committed(cluster: ScriptedCluster, queue_id: int = 0) -> int | None:
    return cluster.broker.committed.get(("readers", "orders", queue_id))


async def until_committed(cluster: ScriptedCluster, offset: int) -> None:
    """Wait until the broker has this offset for the first queue."""
    await until(lambda: committed(cluster) == offset)


def broadcasting(
    cluster: ScriptedCluster, simulation: Simulation, **settings: object
) -> PushConsumer:
    disk = simulation.disk("client")
    mount = disk.mounted or disk.mount()
    return consumer_of(cluster, broadcast=True, offsets_directory=DIRECTORY, disk=mount, **settings)


def locked(cluster: ScriptedCluster, type_: type = LockBatchMq) -> list[list[int]]:
    """The queues of the topic that each request named."""
    bodies = [
        fastjson.decode(body, LockBatchRequestBody)
        for request, body in cluster.broker.received
        if type(request) is type_
    ]
    return [
        queues
        for body in bodies
        if (queues := [queue.queue_id for queue in body.mq_set if queue.topic == "orders"])
    ]
