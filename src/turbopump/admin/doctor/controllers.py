"""Checks of controllers, and of the broker names whose masters they elect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from turbopump.admin.controllers import Controllers, ControllerState, GroupState, ReplicaLog
from turbopump.admin.doctor.diagnosis import LOG_OF_BROKER, Examination, Findings
from turbopump.admin.doctor.servers import fix_for_tls
from turbopump.admin.replication import Problem
from turbopump.admin.settings import read_settings
from turbopump.errors import ClientError, ConnectError, ProtocolError, RemotingError
from turbopump.plural import counted
from turbopump.protocol.requests.configuration import GetBrokerConfig
from turbopump.protocol.requests.replication import GetBrokerHaStatus

SHOW = "turbopump controller replicas"
REPLICAS_OF_PROMISE = 3
"""Number of replicas with which one may be lost: sends continue, and no message is lost."""


async def check_controllers(examination: Examination) -> None:
    """Check the controllers that the brokers use, and each broker name that they know.

    A cluster without controllers has no finding.
    """
    facet = Controllers(examination.servers)
    try:
        addresses = await facet.addresses()
    except ClientError:
        return
    found = examination.about("controllers")
    together = ";".join(addresses)
    states = await facet.states(together)
    _judge_leader(found, states)
    if not found.healthy and not any(one.leader for one in states):
        return
    try:
        groups = await facet.replicas(controller=together)
    except (RemotingError, ProtocolError, ClientError) as error:
        found.wrong(f"they do not show the replicas: {error}", "read the log of the leader")
        return
    await _judge_settings(found, facet, together)
    for name, group in groups.items():
        await _check_group(examination, facet, name, group)


def _judge_leader(found: Findings, states: Sequence[ControllerState]) -> None:
    is_alone = len(states) == 1
    for one in states:
        if one.fault is not None:
            fix = "start it, or take it out of controllerAddr of the brokers"
            if is_alone:
                fix = "start it; if it ends again, its last line of output says why"
            found.wrong(f"{one.address} does not answer: {one.fault}", fix)
    leaders = sorted({one.leader for one in states if one.leader is not None})
    if not leaders:
        found.wrong(
            "none leads: no master can be elected; the present masters continue with their present "
            "replicas",
            "start the controller, or read its log"
            if is_alone
            else "read the log of a controller: several of them need a majority of etcd's members, "
            "Apache's a majority of themselves",
        )
    elif len(leaders) > 1:
        found.wrong(
            f"they know {len(leaders)} leaders: {', '.join(leaders)}",
            "if this stays so, two groups of controllers are mixed in controllerAddr: give all "
            "brokers the same controllers, and all controllers the same etcdEndpoints",
        )
    else:
        found.ok(f"{leaders[0]} leads {counted(len(states), 'controller')}")


async def _judge_settings(found: Findings, facet: Controllers, together: str) -> None:
    try:
        settings = await facet.settings(together)
    except (RemotingError, ProtocolError):
        return  # access control may forbid it
    unclean = sorted(
        address
        for address, its in settings.items()
        if its.get("enableElectUncleanMaster") == "true"
    )
    if unclean:
        found.note(
            f"enableElectUncleanMaster=true at {', '.join(unclean)}: a replica that lacks "
            "acknowledged messages may become the master, and they are lost then",
            "turbopump controller config set enableElectUncleanMaster=false",
        )


async def _check_group(
    examination: Examination, facet: Controllers, name: str, group: GroupState
) -> None:
    found = examination.about(f"broker {name}, replicas")
    logs = await facet.logs(group)
    await _check_forgotten(examination, found, name, group)
    masters = []
    settings: Mapping[str, str] = {}
    for one in group.replicas:
        if not one.alive:
            continue
        try:
            status = await examination.servers.ask(one.address, GetBrokerHaStatus())
            if status.master:
                masters.append(one.address)
            if one.is_master:
                settings = await read_settings(examination.servers, one.address, GetBrokerConfig())
        except (RemotingError, ProtocolError) as error:
            fix = fix_for_tls(error) if isinstance(error, ConnectError) else None
            found.wrong(f"replica {one.id} does not answer: {error}", fix or LOG_OF_BROKER)
    for problem in group_problems(group, logs, masters, settings, examination.n_option):
        found.wrong(*problem)
    for note in weaker_promises(group, settings):
        found.note(*note)
    if found.healthy:
        found.ok(
            f"replica {group.master_id} is the master of epoch {group.master_epoch}; "
            f"{len(group.in_sync)} of {counted(len(group.replicas), 'replica')} in sync"
        )


async def _check_forgotten(
    examination: Examination, found: Findings, name: str, group: GroupState
) -> None:
    """Find replicas that run, and that the controller has forgotten."""
    brokers = (await examination.servers.brokers()).broker_addr_table
    registered = brokers[name].broker_addrs if name in brokers else {}
    for address in sorted(set(registered.values()) - {one.address for one in group.replicas}):
        try:
            await examination.servers.ask(address, GetBrokerHaStatus())
        except (RemotingError, ProtocolError):
            continue  # its registration at the name servers ends soon
        found.wrong(
            f"{address} is no replica of the controller: it was cleaned while it ran, and can "
            "never be in sync",
            "stop it, remove brokerIdentity from its store, and start it again: it gets a new id",
        )


def group_problems(
    group: GroupState,
    logs: Sequence[ReplicaLog],
    masters: Sequence[str],
    settings: Mapping[str, str],
    n: str,
) -> Iterator[Problem]:
    """Yield the problems of one broker name.

    - ``masters``: the addresses of the replicas that call themselves master.
    - ``settings``: those of the master, or nothing if it did not show them.
    - ``n``: the option -n for suggested commands.
    """
    if group.master_id is None:
        yield Problem(
            "it has no master: sends fail",
            "start a replica in sync again (of "
            f"{', '.join(map(str, group.in_sync)) or 'none'}); the log of the leading controller "
            "says why none was elected",
        )
    if len(masters) > 1:
        yield Problem(
            f"{', '.join(masters)} call themselves master",
            "if this stays so, one of them reaches no controller: it acknowledges nothing, and "
            "becomes a slave when it reaches one",
        )
    alive = [one for one in group.replicas if one.in_sync and one.alive]
    wanted = settings.get("minInSyncReplicas", "")
    if group.master_id is not None and wanted.isdecimal() and len(alive) < int(wanted):
        fix = f"start the others; see how far they are behind with {SHOW} {n}"
        if len(group.replicas) < int(wanted):
            fix = f"run {wanted} replicas, or set a lower minInSyncReplicas in their files"
        yield Problem(
            f"sends are refused: {len(alive)} of {counted(len(group.replicas), 'replica')} in "
            f"sync, and minInSyncReplicas={wanted}",
            fix,
        )
    for one in group.replicas:
        if not one.alive:
            yield Problem(
                f"replica {one.id} ({one.address}) is away",
                "start it; if it does not come back: turbopump controller clean -b "
                f"{group.broker} --id {one.id} {n}",
            )
    yield from _log_problems(group, logs, n)


def _log_problems(group: GroupState, logs: Sequence[ReplicaLog], n: str) -> Iterator[Problem]:
    """Yield replicas that do not have the log of the master."""
    master = next((one for one in logs if one.replica.is_master), None)
    if master is None or master.epochs is None:
        return
    starts = {one.epoch: one.start_offset for one in master.epochs.epoch_list}
    for log in logs:
        if log is master or log.epochs is None:
            continue
        differing = [
            one.epoch
            for one in log.epochs.epoch_list
            if starts.get(one.epoch, one.start_offset) != one.start_offset
            or (one.epoch not in starts and one.epoch > min(starts, default=one.epoch))
        ]
        if differing:
            yield Problem(
                f"the log of replica {log.replica.id} is not the master's from epoch "
                f"{differing[0]} on",
                f"wait, it is cut when the replica connects to the master; then {SHOW} {n}; "
                f"{LOG_OF_BROKER}",
            )
        elif log.replica.alive and not log.replica.in_sync:
            yield Problem(
                f"replica {log.replica.id} is not in sync, {log.behind_bytes or 0:,} bytes behind",
                f"check its disk and the network; see the progress with {SHOW} --watch 2 {n}",
            )


def weaker_promises(group: GroupState, settings: Mapping[str, str]) -> Iterator[Problem]:
    """Yield settings with which acknowledged messages can be lost, or sends stop early."""
    if not settings:
        return
    if settings.get("allAckInSyncStateSet") == "false":
        yield Problem(
            "allAckInSyncStateSet=false: a message may be acknowledged before all replicas in sync "
            "have it, and be lost with the master",
            "set allAckInSyncStateSet=true in the files of its replicas",
        )
    if settings.get("minInSyncReplicas") in ("0", "1"):
        yield Problem(
            f"minInSyncReplicas={settings['minInSyncReplicas']}: the master acknowledges messages "
            "that it alone has",
            "set minInSyncReplicas=2 in the files of its replicas",
        )
    if len(group.replicas) < REPLICAS_OF_PROMISE:
        yield Problem(
            f"it has {counted(len(group.replicas), 'replica')}: with minInSyncReplicas=2, our "
            "default, sends are refused while one is away",
            f"run {REPLICAS_OF_PROMISE} replicas",
        )
