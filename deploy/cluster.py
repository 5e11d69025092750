"""Proofs of compose.cluster.yaml: two name servers, two masters and their slaves in containers."""

from __future__ import annotations

import json
from collections.abc import Iterator

from deploy.engine import (
    ADDRESS,
    IMAGE,
    Row,
    check,
    compose,
    docker,
    run,
    turbopump,
    until,
    until_healthy,
)

FILE = ("-f", "deploy/docker/compose.cluster.yaml")
NETWORK = "turbopump-cluster_default"
BROKERS = ("broker-a", "broker-a-slave", "broker-b", "broker-b-slave")
SERVERS = tuple(f"turbopump-cluster-{name}-1" for name in ("namesrv-1", "namesrv-2", *BROKERS))
MESSAGES = 2000
LINES = "".join(f'{{"body": "order {number}"}}\n' for number in range(MESSAGES))


def rows() -> Iterator[Row]:
    try:
        yield from _inside()
        yield from _outside()
    finally:
        compose(*FILE, "down", "--volumes")


def _inside() -> Iterator[Row]:
    compose(*FILE, "up", "--detach", TURBOPUMP_PUBLISH=ADDRESS)
    healthy = until_healthy(*SERVERS)
    yield "compose.cluster.yaml: all six health checks pass", f"after {healthy:.0f} s"
    until("both slaves in sync", _inside_in_sync)
    _client("topic", "create", "orders")
    _client("produce", "orders", given=LINES)
    master = SERVERS[2]
    docker("kill", master)
    read = _client("consume", "orders", "--count", str(MESSAGES), "--idle", "30").splitlines()
    brokers = {json.loads(line)["broker"] for line in read}
    check(len(read) == MESSAGES, f"{len(read)} of {MESSAGES} messages came back")
    check(brokers == {"a", "b"}, f"they came from {brokers}")
    yield "kill -9 of a master: its slave serves readers", f"{MESSAGES} messages of both brokers"
    docker("start", master)
    seconds = until("both slaves in sync again", _inside_in_sync)
    yield "start of the killed master", f"both slaves in sync after {seconds:.0f} s"


def _outside() -> Iterator[Row]:
    """Advertise one address of this machine for all brokers, and connect from this machine."""
    gateway = "{{(index .IPAM.Config 0).Gateway}}"
    address = docker("network", "inspect", "-f", gateway, NETWORK)
    compose(*FILE, "up", "--detach", TURBOPUMP_ADVERTISE=address, TURBOPUMP_PUBLISH=address)
    until_healthy(*SERVERS)
    servers = ("-n", f"{address}:9876;{address}:9877")
    command = ("cluster", "ha", *servers)
    until("both slaves in sync", lambda: turbopump(*command).count("in sync") == 2)
    read = turbopump(
        "consume", "orders", "--group", "new", "--count", str(MESSAGES), "--idle", "30", *servers
    ).splitlines()
    check(len(read) == MESSAGES, f"{len(read)} of {MESSAGES} messages came back")
    yield "one advertised address for all, clients outside", f"{MESSAGES} messages read"


def _client(*command: str, given: str | None = None) -> str:
    """Run a client command in a container of the network."""
    servers = ("--env", "NAMESRV_ADDR=namesrv-1:9876;namesrv-2:9876")
    return run(
        *("docker", "run", "--rm", "--interactive", "--network", NETWORK, *servers, IMAGE),
        *command,
        given=given,
    )


def _inside_in_sync() -> bool:
    return _client("cluster", "ha").count("in sync") == 2
