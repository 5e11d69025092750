"""Connections of operators to the servers of a cluster.

The module knows which addresses to ask, and how to collect the answers. The requests, and the
display of answers, are unknown here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.client.routes import refuse_other_than_name_server
from turbopump.config.addresses import is_ip_address
from turbopump.config.tls import ClientTls, meant
from turbopump.errors import ClientError, NotFoundError, ProtocolError, RemotingError
from turbopump.message.rules import did_you_mean
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Body, Command, reply_in
from turbopump.protocol.request import ReplyT, Request
from turbopump.protocol.requests.namesrv import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    GetBrokerClusterInfo,
)
from turbopump.protocol.requests.statistics import GetBrokerRuntimeInfo
from turbopump.remoting.client import RemotingClient, refused_by

BodyT = TypeVar("BodyT")
T = TypeVar("T")

PORT_MIN: Final = 1024
"""Lowest number that is a port behind a host name. A lower one is a brokerId."""

ANSWER_S: Final = 5.0
"""Seconds to wait for the answer of a server, as mqadmin does."""


class Servers(RemotingClient):
    """Connections to the servers of a cluster. The end of an `async with` closes them.

    - ``credentials``: the credentials that sign the requests, or None.
    """

    def __init__(
        self,
        name_servers: list[str],
        credentials: Credentials | None = None,
        tls: ClientTls | bool = False,
    ) -> None:
        signer = None if credentials is None else RequestSigner(credentials)
        super().__init__(signer=signer, tls=meant(tls))
        self.name_servers = name_servers
        self.credentials = credentials

    @property
    def n_option(self) -> str:
        """Option -n for suggested commands, with the addresses of the name servers."""
        return f"-n '{';'.join(self.name_servers)}'"

    async def __aenter__(self) -> Servers:
        return self

    async def __aexit__(self, *_failure: object) -> None:
        await self.close()

    async def ask_name_servers(self, request: Request[ReplyT]) -> ReplyT:
        """Ask the name servers in turn. Return the answer of the first one that can be reached.

        Raises RemotingError if no name server can be reached, and ResponseError if the name server
        refuses.
        """
        failures: list[str] = []
        for address in self.name_servers:
            try:
                answer = await self.exchange(address, request)
            except RemotingError as error:
                failures.append(str(error))
                continue
            try:
                refuse_other_than_name_server(address, answer)
            except RemotingError as error:
                raise RemotingError(f"{error}; check -n and NAMESRV_ADDR") from None
            if answer.code != ResponseCode.SUCCESS:
                raise refused_by(address, request, answer)
            return reply_in(answer, request)
        raise RemotingError(
            f"cannot reach a name server: {'; '.join(failures)}. Check -n, NAMESRV_ADDR, "
            "and that a name server is running (`turbopump dev` starts one, `turbopump "
            "doctor` shows more)"
        )

    async def brokers(self) -> ClusterInfo:
        """Ask a name server for all clusters and brokers.

        Raises RemotingError.
        """
        return await self.ask_name_servers(GetBrokerClusterInfo())

    async def members(self) -> list[str]:
        """Return the addresses of all brokers, masters before slaves. Raises RemotingError."""
        found = {
            (number != MASTER_ID, address)
            for broker in (await self.brokers()).broker_addr_table.values()
            for number, address in broker.broker_addrs.items()
        }
        return [address for _, address in sorted(found)]

    async def masters(self, cluster: str | None = None) -> list[str]:
        """Return the addresses of the masters in one cluster, or in all clusters.

        Raises ClientError if there are none, and NotFoundError if the cluster is unknown.
        """
        info = await self.brokers()
        if cluster is not None:
            refuse_unknown_cluster(info, cluster)
        found = [
            broker.broker_addrs[MASTER_ID]
            for broker in info.broker_addr_table.values()
            if MASTER_ID in broker.broker_addrs and cluster in (None, broker.cluster)
        ]
        if not found:
            raise ClientError(
                "no broker is registered with the name server: start one with this address in its "
                "namesrvAddr"
            )
        return sorted(found)

    async def brokers_at(self, broker: str | None = None, cluster: str | None = None) -> list[str]:
        """Return the addresses of the brokers that an operation is meant for.

        - ``broker``: the name of a broker, which means its master; ``NAME:ID`` for a slave, or with
          the id from a controller for any replica; or an address.
        - ``cluster``: all masters of this cluster. Without both, all masters.

        A name server is asked, unless ``broker`` is an IP address with a port. Raises ClientError
        if the broker or the cluster does not exist, and RemotingError.
        """
        if broker is None:
            return await self.masters(cluster)
        name, colon, number = broker.rpartition(":")
        if not colon:
            name, number = broker, str(MASTER_ID)
        elif not number.isdecimal() or int(number) >= PORT_MIN or is_ip_address(name):
            return [broker]
        addresses = broker_named(await self.brokers(), name).broker_addrs
        if int(number) in addresses:
            return [addresses[int(number)]]
        if colon:
            master = addresses.get(MASTER_ID)
            if master is not None and await self._replica_id(master) == number:
                return [master]
            known = ", ".join(map(str, sorted(addresses)))
            raise NotFoundError(f"broker {name} has no replica {number} now; there are: {known}")
        raise ClientError(f"broker {name} has no master now")

    async def _replica_id(self, address: str) -> str | None:
        """Return the id that a controller gave to a broker. Return None for other brokers."""
        try:
            figures = await self.ask(address, GetBrokerRuntimeInfo())
        except (RemotingError, ProtocolError):
            return None
        return figures.table.get("replicaId")

    async def ask(
        self, address: str, request: Request[ReplyT], body: Body = b"", *, timeout: float = ANSWER_S
    ) -> ReplyT:
        """Send a request to one server and return the decoded reply.

        Raises ResponseError if the server refuses, and RemotingError or BodyError for any other
        failure. The error of a server that does not know the request says so.
        """
        answer = await self.exchange(address, request, body, timeout=timeout)
        refuse_other_server(address, answer)
        if answer.code != ResponseCode.SUCCESS:
            raise refused_by(address, request, answer)
        return reply_in(answer, request)

    async def change_each(
        self, addresses: Iterable[str], request: Request[Any], body: Body = b""
    ) -> list[str]:
        """Send the same change to each server, and return the addresses.

        A failure does not keep the change from the other servers. Raises the errors of the function
        ``change_each``.
        """
        return list(await change_each(addresses, lambda at: self.ask(at, request, body)))


def broker_named(info: ClusterInfo, name: str) -> BrokerData:
    """Return the master and the slaves of a brokerName. Raise NotFoundError if there is no such
    broker; the error suggests a similar name."""
    table = info.broker_addr_table
    if name not in table:
        known = ", ".join(sorted(table)) or "none"
        near = did_you_mean(name, list(table))
        raise NotFoundError(f"no broker {name} is registered{near}; there are: {known}")
    return table[name]


def refuse_unknown_cluster(info: ClusterInfo, cluster: str) -> None:
    """Raise NotFoundError if a cluster does not exist. The error lists the known clusters."""
    if cluster not in info.cluster_addr_table:
        known = ", ".join(sorted(info.cluster_addr_table)) or "none"
        raise NotFoundError(f"cluster {cluster} does not exist; the name server knows: {known}")


async def ask_each(
    client: RemotingClient,
    addresses: list[str],
    request: Request[Any],
    body: type[BodyT],
    *without: int,
) -> dict[str, BodyT]:
    """Send a request to each broker. Return the decoded body of each answer, by broker address.

    - ``without``: answer codes whose brokers are left out.

    Raises ResponseError for any other refusal, and RemotingError if a broker cannot be asked.
    """
    found: dict[str, BodyT] = {}
    for address in addresses:
        answer = await client.exchange(address, request)
        refuse_other_server(address, answer)
        if answer.code == ResponseCode.SUCCESS:
            found[address] = fastjson.decode(answer.body, body)
        elif answer.code not in without:
            raise refused_by(address, request, answer)
    return found


async def ask_body(
    client: RemotingClient, address: str, request: Request[Any], body: type[BodyT]
) -> BodyT:
    """Send a request to one broker and return the decoded body of the answer.

    Use it for a request whose reply type does not have the body. Raises the errors of ``ask_each``.
    """
    return (await ask_each(client, [address], request, body))[address]


async def change_each(
    addresses: Iterable[str], change: Callable[[str], Awaitable[T]]
) -> dict[str, T]:
    """Make the same change on each server, also after a failure. Return the results by address.

    Raises the error of the server if there is only one, else ClientError, which lists all outcomes.
    """
    done: dict[str, T] = {}
    faults: dict[str, RemotingError | ProtocolError] = {}
    for address in addresses:
        try:
            done[address] = await change(address)
        except (RemotingError, ProtocolError) as error:
            faults[address] = error
    if faults and not done and len(faults) == 1:
        (fault,) = faults.values()
        raise fault
    changed_servers({**dict.fromkeys(done), **{at: str(one) for at, one in faults.items()}})
    return done


def changed_servers(faults: Mapping[str, str | None]) -> list[str]:
    """Return the servers that made a change. Raise ClientError if one of them did not.

    - ``faults``: the reason of each failure, or None, by address.
    """
    failed = {address: fault for address, fault in faults.items() if fault is not None}
    done = [address for address in faults if address not in failed]
    if failed:
        reasons = "; ".join(f"{address}: {fault}" for address, fault in failed.items())
        raise ClientError(f"not changed: {reasons}. Changed: {', '.join(done) or 'none'}")
    return done


def refuse_other_server(address: str, answer: Command) -> None:
    """Raise RemotingError if the answer comes from a server that does not know the request."""
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise RemotingError(
            f"{address} does not know this request ({(answer.remark or '').strip()}): is it a "
            "name server's address, or an older broker?"
        )
