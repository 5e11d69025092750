"""Replicas of one broker name, and every decision about them.

Each decision is a function of the stored group, a request, and what is known of the live replicas.
The result has the new group, which must be durable before the answer is sent. The rules:

- Ids 1, 2, 3, … belong to replicas for ever. A cleaned id is not given to another replica.
- Each new master has a higher master epoch, and each change of the sync state set a higher set
  epoch. Neither goes down.
- The master is in the sync state set. A new master is elected from the set alone, and is then its
  only member.
- A new master that confirms nothing alone leaves the former set as its heirs. An heir may be
  elected until the master changes its set for the first time, because all of them have every
  acknowledged message.
- A process that registers as the recorded master has just started, and knows nothing of its
  promises. The registration ends the mastership, and the present logs decide.
- A member of the set that has started a second time may have lost messages, by a power cut for
  example. This member is elected only while all members are alive, so that the longest log is
  known. The rule ends for the member when a master takes it into the set.

Checks and response codes are in the order of apache/rocketmq `ReplicasInfoManager`. Pure: times,
connections and files are unknown here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from turbopump.controller.election import Candidate, Election, elect, elect_first
from turbopump.message.java import parse_long
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import Reply
from turbopump.protocol.requests import controller as requests
from turbopump.protocol.requests.namesrv import BrokerMemberGroup

REPLICAS_MAX: Final = 64
"""Maximum number of replicas of a broker name."""
TEXT_MAX: Final = 255
"""Maximum length of a name or an address."""
EPOCH_MAX: Final = 2**31 - 1
ANYBODY: Final = -1
"""Broker id in an election that lets the controller choose."""


class Replica(msgspec.Struct, frozen=True, rename="camel"):
    """Replica of a broker name.

    - ``check_code``: the text ``address;ms`` with which it claimed its id.
    """

    id: int
    address: str
    check_code: str


class Group(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything durable about one broker name.

    - ``next_id``: the id for the next new replica.
    - ``master``: id of the master, or None.
    - ``sync_state_set``: ids of the replicas with every acknowledged message, in order.
    - ``heirs``: members of the former set, while the present master has confirmed nothing.
    - ``restarted``: the electable replicas that have started since they joined the set.
    - ``confirm_offset``: the highest confirm offset that a master had reported at the time of the
      last decision. -1 means none.
    """

    cluster_name: str
    broker_name: str
    next_id: int = requests.FIRST_REPLICA_ID
    replicas: tuple[Replica, ...] = ()
    master: int | None = None
    master_epoch: int = 0
    sync_state_set: tuple[int, ...] = ()
    sync_state_set_epoch: int = 0
    heirs: tuple[int, ...] = ()
    restarted: tuple[int, ...] = ()
    confirm_offset: int = -1

    def replica(self, id_: int | None) -> Replica | None:
        """Return the replica with an id, or None."""
        for one in self.replicas:
            if one.id == id_:
                return one
        return None

    def address(self, id_: int | None) -> str | None:
        """Return the address of the replica with an id, or None."""
        found = self.replica(id_)
        return None if found is None else found.address

    @property
    def electable(self) -> tuple[int, ...]:
        """Ids of the replicas with every acknowledged message."""
        return self.heirs or self.sync_state_set

    @property
    def set_body(self) -> requests.SyncStateSet:
        """The sync state set as the body of an answer."""
        return requests.SyncStateSet(
            sync_state_set=list(self.sync_state_set), sync_state_set_epoch=self.sync_state_set_epoch
        )


class View(NamedTuple):
    """Present knowledge of the controller about the replicas of a broker name.

    - ``live``: the live replicas by id.
    - ``confirmed``: the highest confirm offset that a master of the group has reported.
    - ``unclean``: True if a replica outside the sync state set may be elected.
    - ``reports_are_new``: True if each live member has sent a heartbeat since a replica started
      last.
    """

    live: Mapping[int, Candidate]
    confirmed: int = -1
    unclean: bool = False
    reports_are_new: bool = True


class Answer(NamedTuple):
    """Answer to a request: a response code, header fields and a JSON body."""

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    reply: Reply | None = None
    body: msgspec.Struct | None = None


class Decision(NamedTuple):
    """Result of a request.

    - ``group``: the group afterwards, or None if it is to be removed. The same object means no
      change.
    - ``election``: the election that took place, or None.
    - ``waits``: True if a later heartbeat may allow what was refused.
    """

    group: Group | None
    answer: Answer
    election: Election | None = None
    waits: bool = False


def _refused(group: Group | None, code: int, remark: str) -> Decision:
    return Decision(group, Answer(code, remark))


def _changed(group: Group, view: View, **changes: Any) -> Group:
    """Return the group with changes. Every decision also keeps the confirm offset."""
    confirmed = max(group.confirm_offset, view.confirmed)
    return msgspec.structs.replace(group, **{"confirm_offset": confirmed, **changes})


# --- Ids of new replicas.


def next_id(group: Group | None, request: requests.GetNextBrokerId) -> Decision:
    """Return the id that the next new replica would get (1012)."""
    reply = requests.NextBrokerIdReply(
        cluster_name=request.cluster_name,
        broker_name=request.broker_name,
        next_broker_id=requests.FIRST_REPLICA_ID if group is None else group.next_id,
    )
    return Decision(group, Answer(reply=reply))


def apply_id(group: Group | None, request: requests.ApplyBrokerId, view: View) -> Decision:
    """Give an id to a new replica (1013). The same check code gets the same id again.

    A group without a record gets no ids while its replicas run: they have ids of a lost record,
    and two replicas with one id would both take themselves for the same master. RocketMQ: any free
    id is accepted, also a cleaned one, and one that leaves a gap.
    """
    id_, check_code = request.applied_broker_id, request.register_check_code
    fault = _text_fault(request.cluster_name, request.broker_name, check_code)
    if fault is not None:
        return _refused(group, ResponseCode.CONTROLLER_INVALID_REQUEST, fault)
    reply = requests.ApplyBrokerIdReply(
        cluster_name=request.cluster_name, broker_name=request.broker_name
    )
    if group is None and view.live:
        return _refused(
            None,
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"replicas of {request.broker_name} with the ids {sorted(view.live)} are alive, and "
            "this controller has no record of them: it has lost its file, or they were cleaned. "
            "Stop them first",
        )
    if group is None:
        group = Group(cluster_name=request.cluster_name, broker_name=request.broker_name)
        if id_ != group.next_id:
            return _refused(
                None,
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"no replica of {request.broker_name} is registered: the first id is "
                f"{group.next_id}, not {id_}",
            )
    known = group.replica(id_)
    if known is not None and known.check_code == check_code:
        return Decision(group, Answer(reply=reply))
    if id_ != group.next_id:
        return _refused(
            group,
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"id {id_} of {request.broker_name} cannot be given: the next one is {group.next_id}",
        )
    if len(group.replicas) >= REPLICAS_MAX:
        return _refused(
            group,
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"{request.broker_name} has {REPLICAS_MAX} replicas, the limit: clean some of them",
        )
    made = Replica(id_, check_code.split(";")[0], check_code)
    replicas = (*group.replicas, made)
    return Decision(
        msgspec.structs.replace(group, replicas=replicas, next_id=id_ + 1), Answer(reply=reply)
    )


def _text_fault(*texts: str) -> str | None:
    """Return the reason why names or addresses cannot be stored, or None."""
    for text in texts:
        if not text or len(text) > TEXT_MAX or not text.isprintable():
            return f"{text[:80]!r} is neither a name nor an address"
    return None


# --- Registration.


def register(group: Group | None, request: requests.RegisterReplica, view: View) -> Decision:
    """Register the address of a replica that has just started (1003), and name the master.

    ``view`` has no longer what an earlier process of the replica reported. If the replica is the
    recorded master, its mastership ends, and a live member of the set is elected. That may be the
    same replica, by its true offset and in a new epoch.
    """
    if group is None:
        return _refused(
            None,
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"no replica of {request.broker_name} has applied for an id at this controller",
        )
    if group.replica(request.broker_id) is None:
        return _unknown(group, request.broker_id)
    fault = _text_fault(request.broker_address)
    if fault is not None:
        return _refused(group, ResponseCode.CONTROLLER_INVALID_REQUEST, fault)
    if group.address(request.broker_id) != request.broker_address:
        moved = tuple(
            msgspec.structs.replace(one, address=request.broker_address)
            if one.id == request.broker_id
            else one
            for one in group.replicas
        )
        group = _changed(group, view, replicas=moved)
    if request.broker_id in group.electable and request.broker_id not in group.restarted:
        group = _changed(group, view, restarted=(*group.restarted, request.broker_id))
    election = None
    if group.master == request.broker_id:
        decision = elect_after_death(group, view)
        assert decision.group is not None
        group, election = decision.group, decision.election
    reply = requests.RegisterReplicaReply(
        cluster_name=request.cluster_name, broker_name=request.broker_name
    )
    if group.master is not None and group.master in view.live:
        reply.master_broker_id = group.master
        reply.master_address = group.address(group.master)
        reply.master_epoch = group.master_epoch
        reply.sync_state_set_epoch = group.sync_state_set_epoch
    return Decision(group, Answer(reply=reply, body=group.set_body), election)


def _unknown(group: Group, id_: int) -> Decision:
    return _refused(
        group,
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        f"id {id_} of {group.broker_name} was not given by this controller, or was cleaned",
    )


def replica_info(group: Group | None, request: requests.GetReplicaInfo) -> Decision:
    """Return the recorded master and the sync state set (1004).

    A replica that names its id learns here that it was cleaned.
    """
    if group is None:
        return _refused(
            None,
            ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
            "no replica of this broker name is registered at this controller",
        )
    if request.broker_id is not None and group.replica(request.broker_id) is None:
        return _unknown(group, request.broker_id)
    reply = requests.MasterReply(
        master_broker_id=group.master,
        master_address=group.address(group.master),
        master_epoch=group.master_epoch,
    )
    return Decision(group, Answer(reply=reply, body=group.set_body))


# --- The sync state set.


def alter_set(
    group: Group | None,
    request: requests.AlterSyncStateSet,
    body: requests.SyncStateSet,
    view: View,
) -> Decision:
    """Replace the sync state set, as its master asks (1001).

    A request for the present set with the present epochs is granted, and gets the next number: an
    earlier request of the master, whose answer was lost, can then no longer take effect. RocketMQ
    refuses it.
    """
    if group is None:
        return _refused(
            None,
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"no replica of {request.broker_name} is registered",
        )
    wanted = tuple(sorted(set(body.sync_state_set)))
    fault = _set_fault(group, request, wanted, body.sync_state_set_epoch, view)
    if fault is not None:
        return Decision(group, fault)
    heirs: tuple[int, ...] = ()
    if wanted == group.sync_state_set:
        heirs = group.heirs  # the set is not larger yet
    kept = {*heirs, *(set(wanted) & set(group.sync_state_set))}  # the others are taken in now
    changed = _changed(
        group,
        view,
        sync_state_set=wanted,
        sync_state_set_epoch=group.sync_state_set_epoch + 1,
        heirs=heirs,
        restarted=tuple(one for one in group.restarted if one in kept),
    )
    reply = requests.AlterSyncStateSetReply(new_sync_state_set_epoch=changed.sync_state_set_epoch)
    return Decision(changed, Answer(reply=reply, body=changed.set_body))


def _set_fault(
    group: Group,
    request: requests.AlterSyncStateSet,
    wanted: tuple[int, ...],
    set_epoch: int,
    view: View,
) -> Answer | None:
    failed = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    is_present = (request.master_epoch, set_epoch) == (
        group.master_epoch,
        group.sync_state_set_epoch,
    )
    if wanted == group.sync_state_set and not is_present:
        return Answer(failed, f"the sync state set is {list(wanted)} already")
    if group.master is None or group.master != request.master_broker_id:
        return Answer(
            ResponseCode.CONTROLLER_INVALID_MASTER,
            f"replica {request.master_broker_id} is not the master: that is {group.master}",
        )
    if request.master_epoch != group.master_epoch:
        return Answer(
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            f"the master epoch is {group.master_epoch}, not {request.master_epoch}",
        )
    if set_epoch != group.sync_state_set_epoch:
        return Answer(
            ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"the epoch of the sync state set is {group.sync_state_set_epoch}, not {set_epoch}",
        )
    for id_ in wanted:
        if group.replica(id_) is None:
            return Answer(
                ResponseCode.CONTROLLER_INVALID_REPLICAS, f"there is no replica with the id {id_}"
            )
        if id_ not in view.live:
            return Answer(
                ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, f"replica {id_} sends no heartbeats"
            )
    if group.master not in wanted:
        return Answer(failed, f"the master {group.master} is not in the wanted set {list(wanted)}")
    return None


# --- Elections.


def elect_master(group: Group | None, request: requests.ElectMaster, view: View) -> Decision:
    """Elect a master because a replica or an operator asks (1002)."""
    if group is None:
        return _refused(
            None,
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"no replica of {request.broker_name} is registered",
        )
    asker = None if request.broker_id == ANYBODY else request.broker_id
    if asker is not None and group.replica(asker) is None:
        return _refused(
            group,
            ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
            f"there is no replica of {request.broker_name} with the id {asker}",
        )
    only = asker if request.designate_elect else None
    if group.master_epoch == 0:
        election = _first_election(group, view, asker, only)
    elif group.master is not None and group.master in view.live and only in (None, group.master):
        return _keeping(group)
    else:
        election = _election(group, view, only)
    if election.elected is not None:
        return _elected(group, view, election)
    remark = reason(group, election, only)
    if asker is None:
        return Decision(
            _without_master(group, view),
            Answer(ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, remark),
            election,
        )
    answer = Answer(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, remark)
    return Decision(group, answer, election, waits=_may_catch_up(election, only))


def elect_after_death(group: Group, view: View) -> Decision:
    """Elect a master after the death of the recorded one, or without one.

    If nobody can be elected, the recorded master is removed, so that it can change nothing after it
    returns. The next heartbeat of a member of the set may allow an election.
    """
    election = _election(group, view, None)
    if election.elected is not None:
        return _elected(group, view, election)
    answer = Answer(ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, reason(group, election, None))
    return Decision(_without_master(group, view), answer, election, waits=True)


def reason(group: Group, election: Election, only: int | None = None) -> str:
    """Return the reason why an election has elected nobody."""
    members = list(group.electable)
    if not members:
        return "the sync state set is empty: all its members were cleaned"
    if only is not None and only not in members:
        return f"replica {only} is not in the sync state set {members}"
    live = [one.id for one in election.candidates]
    if only is not None and only in group.restarted:
        return (
            f"replica {only} has started again, and may have lost messages: the master must take "
            "it into the sync state set anew"
        )
    if only is not None and only not in live:
        return f"replica {only} sends no heartbeats"
    if election.behind:
        ends = ", ".join(f"{one.id} at {one.max_offset}" for one in election.behind)
        return (
            f"the logs of live members of the sync state set {members} end before the confirmed "
            f"offset {group.confirm_offset}: {ends}"
        )
    if group.restarted:
        return (
            f"of the sync state set {members} the replicas {sorted(group.restarted)} have started "
            "again, and may have lost messages: one of them is elected when all members are alive"
        )
    return f"no member of the sync state set {members} sends heartbeats"


def _first_election(group: Group, view: View, asker: int | None, only: int | None) -> Election:
    live = [one for one in view.live.values() if group.replica(one.id) is not None]
    if only is None:
        return elect_first(live, asker)
    return Election(only, tuple(live))


def _election(group: Group, view: View, only: int | None) -> Election:
    """Elect from the group.

    A replica whose epoch is beyond the last one of this controller is no candidate: either its
    files are damaged, or the controller's file is an old one. A restarted member is a candidate
    only beside all other members, and never in place of a better one. By reports from before its
    start the others may seem to be worse: they have copied what it has lost since then.
    """
    live = [
        one
        for one in view.live.values()
        if group.replica(one.id) is not None and (one.epoch <= group.master_epoch or view.unclean)
    ]
    members = [one for one in live if one.id in group.electable]
    if len(members) < len(group.electable) or only is not None or not view.reports_are_new:
        members = [one for one in members if one.id not in group.restarted]
    return elect(
        members,
        live,
        confirmed=max(group.confirm_offset, view.confirmed),
        unclean=view.unclean,
        only=only,
    )


def _may_catch_up(election: Election, only: int | None) -> bool:
    """Return True if a candidate's next heartbeat may show that it has what was confirmed."""
    return any(only in (None, one.id) for one in election.behind)


def _keeping(group: Group) -> Decision:
    reply = _master_reply(group)
    body = requests.ElectMasterBody(sync_state_set=list(group.sync_state_set))
    remark = f"the master {group.master} is alive: name another replica, which then takes its place"
    return Decision(group, Answer(ResponseCode.CONTROLLER_MASTER_STILL_EXIST, remark, reply, body))


def _elected(group: Group, view: View, election: Election) -> Decision:
    """Return the decision for a new master. It is alone in its sync state set.

    Its epoch is higher than all that were given. In a first or an unclean election it is also
    higher than all that live replicas report, which counts if the controller's file was lost.
    """
    elected = election.elected
    assert elected is not None
    highest = group.master_epoch
    if group.master_epoch == 0 or election.unclean:
        reported = (one.epoch for one in view.live.values() if one.epoch < EPOCH_MAX)
        highest = max(highest, *reported, 0)
    heirs = _heirs(group, view, election)
    changes: dict[str, Any] = {
        "master": elected,
        "master_epoch": highest + 1,
        "sync_state_set": (elected,),
        "sync_state_set_epoch": group.sync_state_set_epoch + 1,
        "heirs": heirs,
        "restarted": tuple(i for i in group.restarted if i in heirs and i != elected),
    }
    if election.unclean:  # what was confirmed is given up
        changes["confirm_offset"] = view.live[elected].max_offset
    changed = _changed(group, view, **changes)
    body = requests.ElectMasterBody(
        broker_member_group=_members(changed), sync_state_set=list(changed.sync_state_set)
    )
    return Decision(changed, Answer(reply=_master_reply(changed), body=body), election)


def _heirs(group: Group, view: View, election: Election) -> tuple[int, ...]:
    """Return the replicas that may be elected after the new master, before it changes its set."""
    elected = None if election.elected is None else view.live.get(election.elected)
    if elected is None or elected.acknowledges_alone or election.unclean:
        return ()
    return group.electable if len(group.electable) > 1 else ()


def _without_master(group: Group, view: View) -> Group:
    if group.master is None:
        return group
    return _changed(group, view, master=None, master_epoch=group.master_epoch + 1)


def _master_reply(group: Group) -> requests.ElectMasterReply:
    return requests.ElectMasterReply(
        master_broker_id=group.master,
        master_address=group.address(group.master),
        master_epoch=group.master_epoch,
        sync_state_set_epoch=group.sync_state_set_epoch,
    )


def _members(group: Group) -> BrokerMemberGroup:
    return BrokerMemberGroup(
        cluster=group.cluster_name,
        broker_name=group.broker_name,
        broker_addrs={one.id: one.address for one in group.replicas},
    )


# --- What operators ask.


def replicas_info(group: Group, live: Mapping[int, Candidate]) -> requests.ReplicasInfo:
    """Return the replicas of a broker name for operators (1006)."""
    info = requests.ReplicasInfo(
        master_broker_id=group.master,
        master_address=group.address(group.master),
        master_epoch=group.master_epoch,
        sync_state_set_epoch=group.sync_state_set_epoch,
        in_sync_replicas=[],
        not_in_sync_replicas=[],
    )
    for one in group.replicas:
        identity = requests.ReplicaIdentity(
            broker_name=group.broker_name,
            broker_id=one.id,
            broker_address=one.address,
            alive=one.id in live,
        )
        if one.id in group.sync_state_set:
            info.in_sync_replicas.append(identity)
        else:
            info.not_in_sync_replicas.append(identity)
    return info


def clean(group: Group | None, request: requests.CleanBrokerData, view: View) -> Decision:
    """Forget replicas, or the whole broker name (1011).

    RocketMQ: with ``isCleanLivingBroker`` the ids are ignored, and the whole broker name is
    forgotten.
    """
    invalid = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    ids = _ids_to_clean(request.broker_controller_ids_to_clean)
    if ids is None:
        return _refused(
            group,
            invalid,
            f"brokerControllerIdsToClean={request.broker_controller_ids_to_clean!r:.80}: expected "
            "ids separated by semicolons",
        )
    if group is None:
        return _refused(group, invalid, f"there is no broker name {request.broker_name}")
    cleaned = ids or {one.id for one in group.replicas}
    if not request.is_clean_living_broker:
        alive = sorted(cleaned & view.live.keys())
        if alive:
            return _refused(group, invalid, f"replicas {alive} of {request.broker_name} are alive")
        if not ids and group.master is not None:
            return _refused(
                group, invalid, f"replica {group.master} of {request.broker_name} is the master"
            )
    left = tuple(one for one in group.replicas if one.id not in cleaned)
    if not left:
        return Decision(None, Answer())
    changes: dict[str, Any] = {
        "replicas": left,
        "heirs": tuple(i for i in group.heirs if i not in cleaned),
        "restarted": tuple(i for i in group.restarted if i not in cleaned),
    }
    if cleaned & set(group.sync_state_set):
        changes["sync_state_set"] = tuple(i for i in group.sync_state_set if i not in cleaned)
        changes["sync_state_set_epoch"] = group.sync_state_set_epoch + 1
    if group.master in cleaned:
        changes |= {"master": None, "master_epoch": group.master_epoch + 1}
    if len(left) == len(group.replicas):
        return Decision(group, Answer())
    return Decision(_changed(group, view, **changes), Answer())


def _ids_to_clean(text: str | None) -> set[int] | None:
    """Return the ids in the text of a request, or None if the text is invalid."""
    ids = [parse_long(part.strip()) for part in (text or "").split(";") if part.strip()]
    return None if None in ids else {one for one in ids if one is not None}
