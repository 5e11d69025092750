"""Three members of a real etcd on loopback, each a process that a test may kill or stop.

The one rule: a member that is started again has the port and the data that it had.
"""

from __future__ import annotations

import json
import shutil
import signal
import ssl
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.interop.apache import ToolMissingError
from tests.ports import free_ports
from tests.unit.remoting.certificates import Pair
from tests.waits import until

MEMBERS = 3


class EtcdMembers:
    """Members of one cluster. ``addresses`` are those for clients.

    - ``tls``: the certificate of the members.
    - ``client_certificates``: they ask their clients for the same.
    """

    def __init__(
        self, directory: Path, tls: Pair | None = None, *, client_certificates: bool = False
    ) -> None:
        self._directory = directory
        self._tls = tls
        self._client_certificates = client_certificates
        self.addresses = [f"127.0.0.1:{free_ports(0)}" for _ in range(MEMBERS)]
        self._peers = [f"127.0.0.1:{free_ports(0)}" for _ in range(MEMBERS)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def urls(self) -> list[str]:
        scheme = "http" if self._tls is None else "https"
        return [f"{scheme}://{address}" for address in self.addresses]

    @property
    def settings(self) -> dict[str, str]:
        """Those of a controller, in its keys."""
        settings = {"etcdEndpoints": ";".join(self.urls)}
        if self._tls is not None:
            settings["etcdTrustCertPath"] = self._tls.certificate
            if self._client_certificates:
                settings["etcdCertPath"] = self._tls.certificate
                settings["etcdKeyPath"] = self._tls.key
        return settings

    def start(self, number: int) -> None:
        """Start a member, for the first time or again."""
        peers = enumerate(self._peers)
        options = {
            "name": f"m{number}",
            "data-dir": self._directory / f"etcd{number}",
            "listen-client-urls": self.urls[number],
            "advertise-client-urls": self.urls[number],
            "listen-peer-urls": f"http://{self._peers[number]}",
            "initial-advertise-peer-urls": f"http://{self._peers[number]}",
            "initial-cluster": ",".join(f"m{other}=http://{peer}" for other, peer in peers),
        }
        if self._tls is not None:
            options["cert-file"] = self._tls.certificate
            options["key-file"] = self._tls.key
        if self._tls is not None and self._client_certificates:
            options["trusted-ca-file"] = self._tls.certificate
            options["client-cert-auth"] = "true"
        with (self._directory / f"etcd{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                [program(), *(f"--{key}={value}" for key, value in options.items())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def freeze(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGCONT)

    def leading(self) -> int:
        """Number of the member that leads the others."""
        for number in self._processes:
            status = self.ask(number, "maintenance/status")
            if status.get("leader") == status["header"]["member_id"]:
                return number
        raise AssertionError("no member leads")

    def has_leader(self) -> bool:
        """True if every running member knows a leader."""
        try:
            return all(
                self.ask(number, "maintenance/status").get("leader", "0") != "0"
                for number in self._processes
            )
        except OSError:
            return False

    def ask(self, number: int, method: str, **request: object) -> Any:
        """The answer of a member to an operator's call."""
        context = None
        if self._tls is not None:
            context = ssl.create_default_context(cafile=self._tls.certificate)
            context.load_cert_chain(self._tls.certificate, self._tls.key)
        url = f"{self.urls[number]}/v3/{method}"
        body = json.dumps(request).encode()
        with urllib.request.urlopen(url, data=body, timeout=10, context=context) as answer:
            return json.load(answer)

    def close(self) -> None:
        for number in list(self._processes):
            self.kill(number)


def program() -> str:
    """Path of Debian's etcd. Raises ToolMissingError."""
    found = shutil.which("etcd")
    if found is None:
        raise ToolMissingError("etcd is not installed (apt-get install etcd-server)")
    return found


@asynccontextmanager
async def etcd_members(
    directory: Path, tls: Pair | None = None, *, client_certificates: bool = False
) -> AsyncIterator[EtcdMembers]:
    """Three members that have a leader."""
    directory.mkdir()
    members = EtcdMembers(directory, tls, client_certificates=client_certificates)
    try:
        for number in range(MEMBERS):
            members.start(number)
        await until(members.has_leader)
        yield members
    finally:
        members.close()
