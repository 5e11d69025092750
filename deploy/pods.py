"""Proofs of the Kubernetes manifests without a cluster: schemas, and pods as containers.

A container gets from its pod template what matters to a server: arguments, user, read-only root
file system, capabilities, memory limit, volumes, and the name that the headless service gives the
pod. This module asks the probes as the kubelet does.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from deploy.engine import CACHE, IMAGE, ROOT, Row, check, docker, run, until

MANIFESTS = ROOT / "deploy/kubernetes"
NAMESPACE = "mq"
NETWORK = "turbopump-pods"
SECRETS = {"admin": "the admin's secret", "broker": "the brokers' secret"}
ACCESS_CONTROL = f"""
authenticationEnabled=true
authorizationEnabled=true
initAuthenticationUser={{"username":"admin","password":"{SECRETS["admin"]}"}}
innerClientAuthenticationCredentials={{"accessKey":"broker","secretKey":"{SECRETS["broker"]}"}}
"""
MESSAGES = 2000


def rows() -> Iterator[Row]:
    yield from _schemas()
    docker("network", "create", NETWORK)
    with tempfile.TemporaryDirectory(prefix="turbopump-pods-") as directory:
        pods = [Pod(spec, number, Path(directory)) for spec in stateful_sets() for number in (0, 1)]
        try:
            yield from _cluster(Path(directory), {pod.name: pod for pod in pods})
        finally:
            for pod in pods:
                pod.remove()
            docker("network", "rm", NETWORK)


def stateful_sets() -> list[dict[str, Any]]:
    documents = [
        document
        for file in sorted(MANIFESTS.glob("*.yaml"))
        for document in yaml.safe_load_all(file.read_text("utf-8"))
    ]
    found = [document for document in documents if document["kind"] == "StatefulSet"]
    return sorted(found, key=lambda document: document["metadata"]["name"], reverse=True)


def _schemas() -> Iterator[Row]:
    packages = CACHE / "schemas"
    if not packages.exists():
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--target")
        part = CACHE / "schemas.part"
        shutil.rmtree(part, ignore_errors=True)
        run(*pip, part, "kubernetes-validate")
        part.rename(packages)
    validate = ("env", f"PYTHONPATH={packages}", sys.executable, "-m", "kubernetes_validate")
    said = run(*validate, "--strict", *sorted(MANIFESTS.glob("*.yaml")))
    passed = [line for line in said.splitlines() if " passed for resource " in line]
    version = passed[0].rsplit(" ", 1)[1]
    yield (
        "manifests against the schemas",
        f"{len(passed)} resources of Kubernetes {version}, strictly",
    )


def _cluster(directory: Path, pods: Mapping[str, Pod]) -> Iterator[Row]:
    directory.chmod(0o755)
    for file in (MANIFESTS / "config").glob("*.conf"):
        copy = directory / file.name
        copy.write_text(file.read_text("utf-8") + ACCESS_CONTROL)
        os.chown(copy, 0, 10001)
        copy.chmod(0o440)
    for pod in pods.values():
        pod.start()
    seconds = until(
        "readiness of all pods", lambda: all(pod.answer("ready") for pod in pods.values())
    )
    check(all(pod.answer("live") for pod in pods.values()), "a ready pod is not live")
    yield "pods: all readiness and liveness probes pass", f"{len(pods)} after {seconds:.0f} s"

    until("both slaves in sync", _in_sync)
    _client("topic", "create", "orders")
    lines = "".join(f'{{"body": "order {number}"}}\n' for number in range(MESSAGES))
    _client("produce", "orders", given=lines)
    _client("produce", "orders", given=lines, user="nobody", fails=True)
    yield "access control by the Secret", "a client without a user is refused"

    for name in ("broker-a-1", "broker-a-0", "namesrv-0"):
        pods[name].replace()
        until(f"readiness of {name}", partial(pods[name].answer, "ready"))
    until("both slaves in sync again", _in_sync)
    read = _client("consume", "orders", "--count", str(MESSAGES), "--idle", "30").splitlines()
    check(len(read) == MESSAGES, f"{len(read)} of {MESSAGES} messages came back")
    yield "a slave, a master, a name server move to other addresses", f"{MESSAGES} messages read"


def _client(
    *command: str, given: str | None = None, user: str = "admin", fails: bool = False
) -> str:
    servers = ";".join(f"namesrv-{n}.namesrv.{NAMESPACE}.svc:9876" for n in (0, 1))
    variables = {
        "NAMESRV_ADDR": servers,
        "TURBOPUMP_ACCESS_KEY": user,
        "TURBOPUMP_SECRET_KEY": SECRETS.get(user, "guessed"),
    }
    given_variables = [word for pair in variables.items() for word in ("--env", "=".join(pair))]
    return run(
        *("docker", "run", "--rm", "--interactive", "--network", NETWORK),
        *(*given_variables, IMAGE, *command),
        given=given,
        fails=fails,
    )


def _in_sync() -> bool:
    return _client("cluster", "ha").count("in sync") == 2


@dataclass
class Pod:
    """One pod of a StatefulSet, as a container."""

    stateful_set: dict[str, Any]
    number: int
    directory: Path

    @property
    def name(self) -> str:
        return f"{self.stateful_set['metadata']['name']}-{self.number}"

    def start(self) -> None:
        pod = self.stateful_set["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        fields = {"metadata.name": self.name, "metadata.namespace": NAMESPACE}
        arguments = container["args"]
        for variable in container.get("env", ()):
            text = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            arguments = [word.replace(f"$({variable['name']})", text) for word in arguments]
        service = self.stateful_set["spec"]["serviceName"]
        alias = f"{self.name}.{service}.{NAMESPACE}.svc"
        options = ["--hostname", self.name, "--network", NETWORK, "--network-alias", alias]
        user = pod["securityContext"]
        options += ["--user", f"{user['runAsUser']}:{user['runAsGroup']}"]
        options += ["--group-add", str(user["fsGroup"])]
        options += [f"--memory={container['resources']['limits']['memory'].removesuffix('i')}"]
        security = container["securityContext"]
        options += [f"--cap-drop={name}" for name in security["capabilities"]["drop"]]
        options += ["--read-only"] if security["readOnlyRootFilesystem"] else []
        if not security["allowPrivilegeEscalation"]:
            options += ["--security-opt", "no-new-privileges"]
        for mount in container["volumeMounts"]:
            options += ["--volume", self._volume(mount)]
        docker(
            "run", "--detach", "--no-healthcheck", "--name", self.name, *options, IMAGE, *arguments
        )

    def _volume(self, mount: dict[str, Any]) -> str:
        """Return the option for a volume of this pod. A claim belongs to the file system group."""
        if mount["name"] == "config":
            return f"{self.directory}:{mount['mountPath']}:ro"
        data = self.directory / "data" / self.name
        if not data.exists():
            data.mkdir(parents=True)
            os.chown(data, 0, 10001)
            data.chmod(0o2775)
        return f"{data}:{mount['mountPath']}"

    @property
    def address(self) -> str:
        networks = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return docker("inspect", "-f", networks, self.name)

    def answer(self, probe: str) -> bool:
        """Return True if the probe `live` or `ready` of this pod gets an answer of success."""
        (container,) = self.stateful_set["spec"]["template"]["spec"]["containers"]
        request = container[{"live": "livenessProbe", "ready": "readinessProbe"}[probe]]["httpGet"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        url = f"http://{self.address}:{ports[request['port']]}{request['path']}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(200 <= answer.status < 400)
        except OSError:  # refused, or an answer of failure
            return False

    def replace(self) -> None:
        """Stop the container as Kubernetes stops a pod, and start one with another address."""
        before = self.address
        grace = self.stateful_set["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        docker("stop", "--time", str(grace), self.name)
        code = docker("inspect", "-f", "{{.State.ExitCode}}", self.name)
        check(code == "0", f"{self.name} stopped with exit code {code}")
        docker("rm", self.name)
        # A container that takes the free address.
        holder = docker("run", "--detach", "--network", NETWORK, IMAGE, "namesrv")
        self.start()
        check(self.address != before, f"{self.name} has its old address {before}")
        docker("rm", "--force", "--volumes", holder)

    def remove(self) -> None:
        log = CACHE / f"{self.name}.log"
        log.write_text(run("sh", "-c", f"docker logs {self.name} 2>&1 || true"))
        run("sh", "-c", f"docker rm --force --volumes {self.name} || true")
