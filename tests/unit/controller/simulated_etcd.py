"""An etcd in memory: the keys, leases and transactions that ``etcd_decisions.py`` needs, over HTTP.

Each member listens on its host and executes at once, as if all members were one: consensus is not
what is tested here. Faults are made between the peers by the simulated network, and by ``hold``,
which makes a member execute transactions later. tests/interop/test_etcd.py has the real one.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

Json = dict[str, Any]


class SimulatedEtcd:
    """All keys. Times are those of the running loop."""

    def __init__(self) -> None:
        self.revision = 1
        self.keys: dict[bytes, Json] = {}
        self.leases: dict[int, tuple[float, float]] = {}
        """Time and end of each lease."""
        self.majority = True
        """False: no member answers anything."""
        self.requests: list[str] = []
        self._next_lease = 7000

    def execute(self, method: str, request: Json) -> Json:
        self._expire()
        self.requests.append(method)
        answer = {
            "kv/range": self._range,
            "kv/txn": self._transaction,
            "lease/grant": self._grant,
            "lease/keepalive": self._keep_alive,
            "lease/revoke": self._revoke,
        }[method](request)
        return {"header": {"revision": str(self.revision)}, **answer}

    def value(self, key: str) -> bytes | None:
        self._expire()
        found = self.keys.get(key.encode())
        return None if found is None else base64.b64decode(found["value"])

    def _expire(self) -> None:
        now = asyncio.get_running_loop().time()
        for lease, (_, end) in list(self.leases.items()):
            if end <= now:
                self._drop(lease)

    def _drop(self, lease: int) -> None:
        del self.leases[lease]
        for key, found in list(self.keys.items()):
            if found.get("lease") == str(lease):
                self.revision += 1
                del self.keys[key]

    def _range(self, request: Json) -> Json:
        key = base64.b64decode(request["key"])
        end = base64.b64decode(request.get("range_end", "")) or key + b"\0"
        found = [self.keys[name] for name in sorted(self.keys) if key <= name < end]
        return {"kvs": found, "count": str(len(found))} if found else {}

    def _transaction(self, request: Json) -> Json:
        holds = True
        for condition in request["compare"]:
            assert (condition["target"], condition["result"]) == ("MOD", "EQUAL")
            found = self.keys.get(base64.b64decode(condition["key"]), {"mod_revision": "0"})
            holds &= found["mod_revision"] == condition["mod_revision"]
        actions = request.get("success" if holds else "failure", ())
        if any("request_range" not in action for action in actions):
            self.revision += 1
        responses = [self._act(action) for action in actions]
        return {"responses": responses} | ({"succeeded": True} if holds else {})

    def _act(self, action: Json) -> Json:
        ((kind, request),) = action.items()
        if kind == "request_range":
            return {"response_range": self._range(request)}
        key = base64.b64decode(request["key"])
        if kind == "request_delete_range":
            self.keys.pop(key, None)
            return {"response_delete_range": {}}
        before = self.keys.get(key, {"create_revision": str(self.revision)})
        self.keys[key] = {
            "key": request["key"],
            "value": request["value"],
            "create_revision": before["create_revision"],
            "mod_revision": str(self.revision),
            **({"lease": request["lease"]} if "lease" in request else {}),
        }
        return {"response_put": {}}

    def _grant(self, request: Json) -> Json:
        self._next_lease += 1
        ttl = float(request["TTL"])
        self.leases[self._next_lease] = ttl, asyncio.get_running_loop().time() + ttl
        return {"ID": str(self._next_lease), "TTL": request["TTL"]}

    def _keep_alive(self, request: Json) -> Json:
        lease = int(request["ID"])
        if lease not in self.leases:
            return {"result": {"ID": request["ID"]}}
        ttl, _ = self.leases[lease]
        self.leases[lease] = ttl, asyncio.get_running_loop().time() + ttl
        return {"result": {"ID": request["ID"], "TTL": str(int(ttl))}}

    def _revoke(self, request: Json) -> Json:
        if int(request["ID"]) in self.leases:
            self._drop(int(request["ID"]))
        return {}


class SimulatedMember:
    """A member on its host, for as long as the process that started it lives."""

    def __init__(self, etcd: SimulatedEtcd) -> None:
        self._etcd = etcd
        self._is_holding = False
        self._held: list[asyncio.Event] = []

    async def listen(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Request(self._execute), host, port)

    def hold(self) -> None:
        """Hold each transaction from now on, as a slow disk does, also if its peer is gone."""
        self._is_holding = True

    def go_on(self) -> None:
        """Execute new transactions at once. Those that are held stay so."""
        self._is_holding = False

    def execute_held(self) -> int:
        """Execute the transactions that were held. Returns their number."""
        held, self._held = self._held, []
        for gate in held:
            gate.set()
        return len(held)

    async def _execute(self, method: str, body: bytes, transport: asyncio.Transport) -> None:
        if self._is_holding and method == "kv/txn":
            gate = asyncio.Event()
            self._held.append(gate)
            await gate.wait()
        if not self._etcd.majority:
            transport.close()
            return
        answer = msgspec.json.encode(self._etcd.execute(method, msgspec.json.decode(body)))
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        transport.write(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(answer), answer))
        transport.close()


class _Request(asyncio.Protocol):
    """Connection that brings one request."""

    def __init__(self, execute: Callable[..., Coroutine[Any, Any, None]]) -> None:
        self._execute = execute
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, _, body = self._received.partition(b"\r\n\r\n")
        if len(body) == int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0] or -1):
            method = head.decode().split(" ")[1].removeprefix("/v3/")
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._execute(method, body, self._transport))
