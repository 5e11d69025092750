"""Checks of the name servers: each answers, and all know the same brokers."""

from __future__ import annotations

from collections.abc import Mapping

from turbopump.admin.doctor.diagnosis import LOG_OF_BROKER, Examination
from turbopump.admin.doctor.servers import (
    check_security,
    fix_for_refusal,
    fix_for_tls,
    refuse_failure,
)
from turbopump.client.routes import refuse_other_than_name_server
from turbopump.errors import ConnectError, ProtocolError, RemotingError, ResponseError
from turbopump.plural import counted
from turbopump.protocol.codes import LanguageCode
from turbopump.protocol.command import Command, reply_in
from turbopump.protocol.requests.namesrv import MASTER_ID, ClusterInfo, GetBrokerClusterInfo


async def check_name_servers(examination: Examination) -> ClusterInfo | None:
    """Check each name server. Return the brokers of all name servers, or None if no broker is
    registered."""
    known: dict[str, ClusterInfo] = {}
    for address in examination.servers.name_servers:
        found = examination.about(f"name server {address}")
        request = GetBrokerClusterInfo()
        try:
            answer = await examination.servers.exchange(address, request)
            refuse_other_than_name_server(address, answer)
            refuse_failure(answer, request, address)
            known[address] = reply_in(answer, request)
        except (RemotingError, ProtocolError) as error:
            found.wrong(*_problem(error))
            continue
        brokers = counted(len(known[address].broker_addr_table), "broker")
        found.ok(f"{_software(answer)}, knows {brokers}")
        await check_security(examination, found, address)
    _compare_brokers(examination, known)
    _find_rival_masters(examination, known)
    everything = ClusterInfo()
    for info in reversed(known.values()):
        everything.broker_addr_table |= info.broker_addr_table
    for info in known.values():
        everything.cluster_addr_table |= info.cluster_addr_table
    if everything.broker_addr_table:
        return everything
    if known:
        examination.about("brokers").wrong(
            "no broker is registered",
            f"start one: turbopump broker {examination.n_option} --data DIR; one that runs must "
            "name these name servers in namesrvAddr, and its log has the reason of a failed "
            "registration",
        )
    return None


def _compare_brokers(examination: Examination, known: Mapping[str, ClusterInfo]) -> None:
    """For each name server, report the brokers that only other name servers know."""
    members = {
        address: {
            (name, at)
            for name, broker in info.broker_addr_table.items()
            for at in broker.broker_addrs.values()
        }
        for address, info in known.items()
    }
    everything = set().union(*members.values())
    for address, its in members.items():
        found = examination.about(f"name server {address}")
        for name, at in sorted(everything - its):
            found.wrong(
                f"it does not know the broker {name} ({at}), which others know",
                f"that broker's namesrvAddr must name {address} too; {LOG_OF_BROKER}",
            )


def _find_rival_masters(examination: Examination, known: Mapping[str, ClusterInfo]) -> None:
    """Report each broker name that has more than one master, according to the name servers."""
    masters: dict[str, dict[str, str]] = {}
    for server, info in known.items():
        for name, broker in info.broker_addr_table.items():
            if MASTER_ID in broker.broker_addrs:
                masters.setdefault(name, {}).setdefault(broker.broker_addrs[MASTER_ID], server)
    for name, rivals in sorted(masters.items()):
        if len(rivals) > 1:
            each = [f"{at} (according to {server})" for at, server in sorted(rivals.items())]
            examination.about(f"broker {name}").wrong(
                f"it has two masters: {' and '.join(each)}",
                "each accepts messages that the other lacks: stop one, save its messages "
                "(turbopump store dump), and start it as the other's slave: brokerRole=SLAVE, "
                "brokerId=1, an empty store",
            )


def _software(answer: Command) -> str:
    """Return the version of a server, for example ``RocketMQ 5.3.3 (JAVA)``.

    From 4.5.0 on, the number of Apache's version rises by two with each release.
    """
    languages = {code.value: code.name for code in LanguageCode}
    language = languages.get(answer.language, "of an unknown language")
    since_450 = answer.version - 312
    if since_450 < 0:
        return f"RocketMQ before 4.5.0 ({language})"
    version = ".".join(str(450 + since_450 // 2))
    return f"RocketMQ {version} ({language})"


def _problem(error: Exception) -> tuple[str, str]:
    """Explain why a name server does not answer. Return the reason and the fix."""
    if isinstance(error, ConnectError):
        start = "start it (turbopump namesrv), or check -n, NAMESRV_ADDR and the network"
        return str(error), fix_for_tls(error) or start
    if "is not a name server" in str(error):
        return str(error), "give the name server's address with -n; its usual port is 9876"
    if isinstance(error, ResponseError):
        return str(error), fix_for_refusal(error)
    return (
        f"{error}: the server there may not be a name server, or accepts only TLS",
        "check -n; for TLS use --tls-trust FILE or --tls",
    )
