"""Proofs of the image and of compose.yaml: one name server and one broker in containers."""

from __future__ import annotations

import time
from collections.abc import Iterator

from deploy.engine import (
    ADDRESS,
    BASE,
    IMAGE,
    ProofError,
    Row,
    check,
    compose,
    docker,
    megabytes,
    run,
    turbopump,
    until_healthy,
)

ADDED_MAX_MB = 40.0
FILE = ("-f", "deploy/docker/compose.yaml")
BROKER, NAME_SERVER = "turbopump-broker-1", "turbopump-namesrv-1"
MESSAGES = 1000
MEMORY_LIMIT_MIB = 256
MEMORY = "from turbopump.broker.store_settings import memory_size; print(memory_size())"
BIG_MESSAGES, BIG_SIZE = 8000, 100_000
"""Together three times as large as the memory limit."""


def rows() -> Iterator[Row]:
    added = megabytes(IMAGE) - megabytes(BASE)
    check(added <= ADDED_MAX_MB, f"the image adds {added:.1f} MB to its base")
    yield "docker build", f"{added:.1f} MB more than {BASE}"
    yield from _one_broker()
    yield from _early_stop()
    yield from _little_memory()


def _one_broker() -> Iterator[Row]:
    outside = {"TURBOPUMP_ADVERTISE": ADDRESS, "TURBOPUMP_PUBLISH": ADDRESS}
    try:
        compose(*FILE, "up", "--detach", **outside)
        healthy = until_healthy(NAME_SERVER, BROKER)
        yield "compose.yaml: both health checks pass", f"after {healthy:.0f} s"

        lines = "".join(f'{{"body": "order {number}"}}\n' for number in range(MESSAGES))
        turbopump("produce", "orders", "-n", f"{ADDRESS}:9876", given=lines)
        read = _consume("orders", "readers", MESSAGES)
        check(read == MESSAGES, f"{read} of {MESSAGES} messages came back")
        yield "clients outside of the containers", f"{read} messages sent and read"

        user = docker("exec", BROKER, "id", "-u")
        check(user == "10001", f"the broker runs as user {user}")
        run("docker", "exec", BROKER, "touch", "/opt/a", fails=True)
        yield "user and files", "user 10001, root file system read-only, no capabilities"

        began = time.monotonic()
        docker("stop", "--time", "60", BROKER)
        code = docker("inspect", "-f", "{{.State.ExitCode}}", BROKER)
        check(code == "0", f"the broker stopped with exit code {code}")
        yield "SIGTERM", f"exit code 0 after {time.monotonic() - began:.1f} s"

        compose(*FILE, "down")
        compose(*FILE, "up", "--detach", **outside)
        until_healthy(NAME_SERVER, BROKER)
        log = run("sh", "-c", f"docker logs {BROKER} 2>&1")
        check("clean=true" in log, "the store was not closed cleanly")
        read = _consume("orders", "other-readers", MESSAGES)
        check(read == MESSAGES, f"{read} of {MESSAGES} messages are left on the volume")
        yield "new containers on the old volumes", f"{read} messages read, store closed cleanly"
    finally:
        compose(*FILE, "down", "--volumes")


def _consume(topic: str, group: str, messages: int) -> int:
    count = ("--count", str(messages), "--idle", "30")
    return len(
        turbopump("consume", topic, "--group", group, *count, "-n", f"{ADDRESS}:9876").splitlines()
    )


def _early_stop() -> Iterator[Row]:
    """Stop a server while Python is still importing: process 1 of a container ignores signals that
    it does not handle."""
    began = time.monotonic()
    name = docker("run", "--detach", IMAGE, "namesrv", "--host", "0.0.0.0", "--insecure")
    try:
        docker("stop", "--time", "60", name)
        seconds = time.monotonic() - began
        check(seconds < 10, f"a stop during the start took {seconds:.0f} s")
        yield "SIGTERM during the start", f"stopped after {seconds:.1f} s"
    finally:
        docker("rm", "--force", "--volumes", name)


def _little_memory() -> Iterator[Row]:
    limit = f"{MEMORY_LIMIT_MIB}m"
    ports = ("--publish", f"{ADDRESS}:9876:9876", "--publish", f"{ADDRESS}:10911:10911")
    name = docker(
        *("run", "--detach", "--memory", limit, "--memory-swap", limit, *ports, IMAGE),
        *("dev", "--host", "0.0.0.0", "--insecure", "--advertise", ADDRESS, "--data", "dev"),
    )
    try:
        until_healthy(name)
        counted = int(docker("exec", name, "/opt/turbopump/bin/python", "-c", MEMORY))
        check(counted == MEMORY_LIMIT_MIB << 20, f"the broker counts on {counted} bytes of memory")
        line = '{"body": "' + "x" * BIG_SIZE + '"}\n'
        turbopump("produce", "big", "-n", f"{ADDRESS}:9876", given=line * BIG_MESSAGES)
        read = _consume("big", "readers", BIG_MESSAGES)
        check(read == BIG_MESSAGES, f"{read} of {BIG_MESSAGES} messages came back")
        if docker("inspect", "-f", "{{.State.OOMKilled}}", name) != "false":
            raise ProofError("the system killed the broker: out of memory")
        yield (
            f"a limit of {MEMORY_LIMIT_MIB} MiB of memory",
            f"{BIG_MESSAGES * BIG_SIZE / 1e6:.0f} MB sent, read",
        )
    finally:
        docker("rm", "--force", "--volumes", name)
