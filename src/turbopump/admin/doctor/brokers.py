"""Checks of a broker: its advertised address, its answers, its runtime figures, its slaves."""

from __future__ import annotations

from typing import Final

from turbopump.admin.broker_figures import BrokerFigures
from turbopump.admin.doctor.diagnosis import Examination, Findings
from turbopump.admin.doctor.runtime_figures import judge_runtime, summary_of
from turbopump.admin.doctor.servers import (
    check_security,
    fix_for_refusal,
    fix_for_tls,
    refuse_failure,
)
from turbopump.admin.replication import ask_replicas, open_ha_port, replication_problems
from turbopump.config.addresses import host_of, is_loopback
from turbopump.errors import ConnectError, ProtocolError, RemotingError, ResponseError
from turbopump.plural import counted
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import reply_in
from turbopump.protocol.requests.namesrv import MASTER_ID, BrokerData
from turbopump.protocol.requests.statistics import GetBrokerRuntimeInfo
from turbopump.protocol.requests.topics import GetTopicConfig

SLOW_MS: Final = 1_000
"""Milliseconds above which the answer to a small request is reported as slow."""


async def check_broker(examination: Examination, name: str, broker: BrokerData) -> None:
    """Check the master and the slaves of one broker name, and their replication."""
    for number, address in sorted(broker.broker_addrs.items()):
        subject = f"broker {name}"
        if number != MASTER_ID:
            subject += f", slave {number}"
        found = examination.about(subject)
        _check_address(examination, found, address)
        answers = await _check_member(examination, found, name, address)
        if answers and number == MASTER_ID:
            examination.masters.append(address)
    await _check_replication(examination, name, broker)


def _check_address(examination: Examination, found: Findings, address: str) -> None:
    remote = [one for one in examination.servers.name_servers if not is_loopback(host_of(one))]
    if remote and is_loopback(host_of(address)):
        found.wrong(
            f"it advertises {address}, which every client takes for its own machine, while "
            f"other machines can reach the name server {remote[0]}",
            _advertise(address),
        )


async def _check_member(examination: Examination, found: Findings, name: str, address: str) -> bool:
    """Check one broker. Return True if the server at the address is the broker of this name."""
    request = GetBrokerRuntimeInfo()
    asked = examination.clock.now_ms()
    began = examination.clock.monotonic()
    try:
        answer = await examination.servers.exchange(address, request)
        took_ms = (examination.clock.monotonic() - began) * 1000
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            found.wrong(
                f"{address} is answered by another server, which is not a broker",
                _advertise(address),
            )
            return False
        refuse_failure(answer, request, address)
        figures = BrokerFigures.read(reply_in(answer, request).table)
        # every broker has a topic under its own name
        own = await examination.servers.exchange(address, GetTopicConfig(topic=name))
    except (RemotingError, ProtocolError) as error:
        found.wrong(*_problem(address, error))
        return False
    if own.code == ResponseCode.TOPIC_NOT_EXIST:
        found.wrong(
            f"{address} is answered by a different broker: two brokers advertise the same address",
            _advertise(address),
        )
        return False
    judge_runtime(found, figures, asked + took_ms / 2)
    message = f"{address} answers in {took_ms:.0f} ms; {summary_of(figures, asked)}"
    if took_ms > SLOW_MS:
        found.note(message, "check the load of its machine and the network")
    else:
        found.ok(message)
    await check_security(examination, found, address)
    return True


async def _check_replication(examination: Examination, name: str, broker: BrokerData) -> None:
    found = examination.about(f"broker {name}")
    replicas = await ask_replicas(examination.servers, name, broker)
    for problem in replication_problems(replicas, examination.n_option):
        found.wrong(*problem)
    masters = [one.status for one in replicas if one.status is not None and one.status.master]
    in_sync = sum(one.in_sync for status in masters for one in status.ha_connection_info)
    if in_sync and found.healthy:
        found.ok(f"{counted(in_sync, 'slave')} in sync")
    for note in filter(None, map(open_ha_port, replicas)):
        found.note(*note)


def _problem(address: str, error: Exception) -> tuple[str, str]:
    """Explain why a broker does not answer. Return the reason and the fix."""
    if isinstance(error, ConnectError):
        start = f"start it if it has stopped; otherwise {_advertise(address)}"
        return f"it advertises {address}: {error}", fix_for_tls(error) or start
    if isinstance(error, ResponseError):
        return str(error), fix_for_refusal(error)
    return f"{address} does not answer: {error}", "check its load, its disk and its log"


def _advertise(address: str) -> str:
    return (
        "give it an address that clients can reach instead of "
        f"{address}: turbopump broker --advertise HOST[:PORT], or brokerIP1 in its broker.conf"
    )
