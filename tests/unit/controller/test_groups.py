"""Decisions about the replicas of one broker name, in the order of Apache's checks."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from turbopump.controller.election import Candidate
from turbopump.controller.groups import (
    Decision,
    Group,
    View,
    alter_set,
    apply_id,
    clean,
    elect_after_death,
    elect_master,
    next_id,
    register,
    replica_info,
    replicas_info,
)
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests import controller as requests

NOBODY = View({})
GIB = 1 << 30


def address(id_: int) -> str:
    return f"10.0.0.{id_}:10911"


def applied(
    group: Group | None, id_: int, code: str | None = None, view: View = NOBODY
) -> Decision:
    request = requests.ApplyBrokerId(
        cluster_name="c",
        broker_name="a",
        applied_broker_id=id_,
        register_check_code=code or f"{address(id_)};17",
    )
    return apply_id(group, request, view)


def of_replicas(*ids: int, **changes: Any) -> Group:
    """A group with replicas, and with the fields that a story begins with."""
    group: Group | None = None
    for id_ in ids:
        group = applied(group, id_).group
    assert group is not None
    return msgspec.structs.replace(group, **changes)


def led(**changes: Any) -> Group:
    """Three replicas, all in sync, of which 1 is the master."""
    fields = {"master": 1, "master_epoch": 4, "sync_state_set": (1, 2, 3)}
    return of_replicas(1, 2, 3, **{**fields, "sync_state_set_epoch": 7, **changes})


def seen(*candidates: Candidate, confirmed: int = -1, unclean: bool = False) -> View:
    return View({one.id: one for one in candidates}, confirmed, unclean)


def alive(*ids: int, **more: Any) -> View:
    return seen(*(Candidate(id_, 4, 100) for id_ in ids), **more)


def altered(group: Group | None, ids: list[int], view: View, **fields: Any) -> Decision:
    given = {"master": 1, "epoch": 4, "set_epoch": 7, **fields}
    request = requests.AlterSyncStateSet(
        broker_name="a", master_broker_id=given["master"], master_epoch=given["epoch"]
    )
    body = requests.SyncStateSet(sync_state_set=ids, sync_state_set_epoch=given["set_epoch"])
    return alter_set(group, request, body, view)


def asked(group: Group | None, id_: int, view: View, *, designate: bool = False) -> Decision:
    request = requests.ElectMaster(
        cluster_name="c", broker_name="a", broker_id=id_, designate_elect=designate
    )
    return elect_master(group, request, view)


def registered(group: Group | None, id_: int, view: View, at: str | None = None) -> Decision:
    request = requests.RegisterReplica(
        cluster_name="c", broker_name="a", broker_id=id_, broker_address=at or address(id_)
    )
    return register(group, request, view)


def cleaned(group: Group | None, view: View = NOBODY, **fields: Any) -> Decision:
    return clean(group, requests.CleanBrokerData(broker_name="a", **fields), view)


# --- Ids.


def test_ids_begin_with_one_and_the_same_check_code_gets_the_same_id_again() -> None:
    request = requests.GetNextBrokerId(cluster_name="c", broker_name="a")
    answer = next_id(None, request).answer.reply
    assert isinstance(answer, requests.NextBrokerIdReply)
    assert (answer.next_broker_id, answer.cluster_name) == (1, "c")
    first = applied(None, 1, "10.0.0.1:10911;17")
    assert first.group is not None
    assert first.group.address(1) == "10.0.0.1:10911"
    assert next_id(first.group, request).answer.reply == requests.NextBrokerIdReply(
        cluster_name="c", broker_name="a", next_broker_id=2
    )
    again = applied(first.group, 1, "10.0.0.1:10911;17")
    assert again.answer.code == 0
    assert again.group is first.group


def test_an_id_of_another_replica_a_gap_and_a_cleaned_id_are_refused() -> None:
    invalid = ResponseCode.CONTROLLER_BROKER_ID_INVALID
    assert applied(None, 2).answer.code == invalid
    group = of_replicas(1, 2)
    assert applied(group, 2, "10.0.0.9:10911;1").answer.code == invalid
    assert applied(group, 4).answer.code == invalid
    without = cleaned(group, broker_controller_ids_to_clean="2", cluster_name="c").group
    assert applied(without, 2).answer.code == invalid
    assert applied(without, 3).answer.code == 0


# --- Registration.


def test_an_unknown_group_whose_replicas_run_gets_no_ids() -> None:
    refused = applied(None, 1, view=alive(1, 2))
    assert (refused.group, refused.answer.code) == (None, 2014)
    assert "ids [1, 2] are alive" in str(refused.answer.remark)
    assert applied(None, 1).answer.code == 0  # they are stopped


def test_a_replica_without_an_id_of_this_controller_must_apply_first() -> None:
    wanted = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    assert registered(None, 1, NOBODY).answer.code == wanted
    assert registered(of_replicas(1), 2, NOBODY).answer.code == wanted


def test_a_registration_names_a_live_master_and_keeps_a_new_address() -> None:
    found = registered(led(), 2, alive(1, 3), at="10.0.0.99:1")
    assert found.answer.reply == requests.RegisterReplicaReply(
        cluster_name="c",
        broker_name="a",
        master_broker_id=1,
        master_address=address(1),
        master_epoch=4,
        sync_state_set_epoch=7,
    )
    assert found.answer.body == requests.SyncStateSet(
        sync_state_set=[1, 2, 3], sync_state_set_epoch=7
    )
    assert found.group is not None
    assert found.group.address(2) == "10.0.0.99:1"
    assert found.election is None


def test_a_registration_names_no_master_that_is_dead() -> None:
    reply = registered(led(), 2, alive(3)).answer.reply
    assert reply == requests.RegisterReplicaReply(cluster_name="c", broker_name="a")


def test_a_process_that_registers_as_the_master_is_master_no_longer() -> None:
    found = registered(led(), 1, alive(2, 3))
    assert found.group is not None
    assert (found.group.master, found.group.master_epoch) == (2, 5)
    assert isinstance(found.answer.reply, requests.RegisterReplicaReply)
    assert found.answer.reply.master_broker_id == 2
    assert found.election is not None
    again = registered(led(), 1, alive(1, 2, 3)).group
    assert again is not None
    assert (again.master, again.master_epoch) == (1, 5)


def test_a_master_that_registers_alone_is_elected_again_by_its_true_offset() -> None:
    group = led(sync_state_set=(1,), confirm_offset=5 * GIB)
    found = registered(group, 1, NOBODY)
    assert found.group is not None
    assert (found.group.master, found.group.master_epoch) == (None, 5)
    short = seen(Candidate(1, 4, 2 * GIB))
    assert elect_after_death(found.group, short).group is found.group
    whole = elect_after_death(found.group, seen(Candidate(1, 4, 5 * GIB))).group
    assert whole is not None
    assert (whole.master, whole.master_epoch) == (1, 6)


def test_a_restarted_member_is_elected_only_beside_all_other_members() -> None:
    group = registered(led(sync_state_set=(2, 3), master=2), 2, alive(2)).group
    assert group is not None
    assert (group.master, group.restarted) == (None, (2,))
    found = elect_after_death(group, seen(Candidate(2, 4, 900)))
    assert found.group is group
    assert "[2] have started again, and may have lost messages" in str(found.answer.remark)
    assert elect_after_death(group, alive(1, 2)).group is group
    never_stopped = elect_after_death(group, seen(Candidate(3, 4, 950))).group
    assert never_stopped is not None
    assert (never_stopped.master, never_stopped.restarted) == (3, ())
    view = seen(Candidate(2, 4, 900), Candidate(3, 4, 800))
    both = elect_after_death(group, view).group
    assert both is not None
    assert both.master == 2  # the longer log
    by_old_reports = elect_after_death(group, view._replace(reports_are_new=False)).group
    assert by_old_reports is not None
    assert by_old_reports.master == 3  # it may have more by now


def test_a_restarted_member_is_trusted_when_the_master_takes_it_in_anew() -> None:
    group = registered(led(), 2, alive(1, 3)).group
    assert group is not None
    assert (group.master, group.restarted) == (1, (2,))
    assert "may have lost" in str(asked(group, 2, alive(1, 2, 3), designate=True).answer.remark)
    without = altered(group, [1, 3], alive(1, 3)).group
    assert without is not None
    assert without.restarted == ()
    anew = altered(without, [1, 2, 3], alive(1, 2, 3), set_epoch=8).group
    assert anew is not None
    assert asked(anew, 2, alive(1, 2, 3), designate=True).answer.code == 0
    cleaned_away = cleaned(
        group, broker_controller_ids_to_clean="2", is_clean_living_broker=True
    ).group
    assert cleaned_away is not None
    assert cleaned_away.restarted == ()


def modest(*ids: int) -> View:
    """Live replicas that confirm nothing alone."""
    return seen(*(Candidate(id_, 4, 100, acknowledges_alone=False) for id_ in ids))


def test_the_former_set_may_elect_until_the_new_master_has_changed_its_own() -> None:
    second = elect_after_death(led(), modest(2, 3)).group
    assert second is not None
    assert (second.master, second.sync_state_set, second.heirs) == (2, (2,), (1, 2, 3))
    again = altered(second, [2], modest(2), master=2, epoch=5, set_epoch=8).group
    assert again is not None
    assert (again.sync_state_set_epoch, again.heirs) == (9, (1, 2, 3))
    third = elect_after_death(second, modest(3)).group
    assert third is not None
    assert (third.master, third.master_epoch, third.heirs) == (3, 6, (1, 2, 3))
    changed = altered(third, [2, 3], modest(2, 3), master=3, epoch=6, set_epoch=9).group
    assert changed is not None
    assert (changed.sync_state_set, changed.heirs) == ((2, 3), ())
    nobody = elect_after_death(changed, modest(1)).group
    assert nobody is not None
    assert nobody.master is None


def test_a_master_that_may_acknowledge_alone_leaves_no_heirs() -> None:
    second = elect_after_death(led(), alive(2, 3)).group
    assert second is not None
    assert second.heirs == ()
    nobody = elect_after_death(second, alive(3)).group
    assert nobody is not None
    assert nobody.master is None


def test_a_restarted_heir_is_not_trusted_until_it_is_taken_in() -> None:
    second = elect_after_death(led(), modest(2, 3)).group
    again = registered(second, 3, modest(2)).group
    assert again is not None
    assert again.restarted == (3,)
    gone = elect_after_death(again, modest(3)).group
    assert gone is not None
    assert gone.master is None
    taken_in = altered(again, [2, 3], modest(2, 3), master=2, epoch=5, set_epoch=8).group
    assert taken_in is not None
    assert (taken_in.sync_state_set, taken_in.restarted) == ((2, 3), ())


# --- The sync state set.


def test_the_checks_of_a_set_come_in_the_order_of_apaches() -> None:
    everyone = alive(1, 2, 3)
    codes = [
        altered(None, [1], everyone, master=9, epoch=9, set_epoch=9),
        altered(led(), [3, 2, 1], everyone, master=9, epoch=9, set_epoch=9),
        altered(led(), [8], everyone, master=9, epoch=9, set_epoch=9),
        altered(led(), [8], everyone, epoch=9, set_epoch=9),
        altered(led(), [8], everyone, set_epoch=9),
        altered(led(), [8], everyone),
        altered(led(), [1, 3], alive(1, 2)),
        altered(led(), [2, 3], everyone),
        altered(led(), [1, 2], everyone),
    ]
    assert [one.answer.code for one in codes] == [2013, 2013, 2002, 2000, 2001, 2003, 2006, 2013, 0]


def test_the_present_set_gets_a_new_number_so_that_a_lost_request_cannot_take_effect() -> None:
    found = altered(led(), [3, 2, 1], alive(1, 2, 3)).group
    assert found is not None
    assert found.sync_state_set == (1, 2, 3)
    assert found.sync_state_set_epoch == led().sync_state_set_epoch + 1


def test_a_new_set_raises_its_epoch_and_keeps_what_was_confirmed() -> None:
    found = altered(led(), [2, 1, 2], alive(1, 2, confirmed=77))
    assert found.group == led(sync_state_set=(1, 2), sync_state_set_epoch=8, confirm_offset=77)
    assert found.answer.reply == requests.AlterSyncStateSetReply(new_sync_state_set_epoch=8)
    assert found.answer.body == requests.SyncStateSet(sync_state_set=[1, 2], sync_state_set_epoch=8)


# --- Elections.


def test_the_first_master_is_the_replica_that_asks() -> None:
    found = asked(of_replicas(1, 2), 2, NOBODY)
    assert found.group is not None
    assert (found.group.master, found.group.master_epoch) == (2, 1)
    assert (found.group.sync_state_set, found.group.sync_state_set_epoch) == ((2,), 1)
    assert found.answer.reply == requests.ElectMasterReply(
        master_broker_id=2, master_address=address(2), master_epoch=1, sync_state_set_epoch=1
    )
    body = found.answer.body
    assert isinstance(body, requests.ElectMasterBody)
    assert body.sync_state_set == [2]
    assert body.broker_member_group is not None
    assert body.broker_member_group.broker_addrs == {1: address(1), 2: address(2)}


def test_the_first_epoch_is_beyond_those_in_the_logs_of_replicas() -> None:
    found = asked(of_replicas(1, 2), 2, seen(Candidate(1, 6, 50), Candidate(2, 6, 90)))
    assert found.group is not None
    assert (found.group.master, found.group.master_epoch) == (2, 7)


def test_a_first_election_without_anybody_changes_nothing() -> None:
    group = of_replicas(1)
    found = asked(group, -1, NOBODY)
    assert found.answer.code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
    assert found.group is group


def test_a_live_master_stays_unless_another_replica_is_designated() -> None:
    for id_, designate in ((-1, False), (2, False), (1, True), (-1, True)):
        found = asked(led(), id_, alive(1, 2, 3), designate=designate)
        assert found.answer.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
        assert found.group == led()
        assert found.answer.reply == requests.ElectMasterReply(
            master_broker_id=1, master_address=address(1), master_epoch=4, sync_state_set_epoch=7
        )
        assert isinstance(found.answer.body, requests.ElectMasterBody)
    found = asked(led(), 2, alive(1, 2, 3), designate=True)
    assert found.group is not None
    assert (found.group.master, found.group.sync_state_set) == (2, (2,))


def test_a_designated_replica_may_catch_up_but_an_unknown_one_is_refused_at_once() -> None:
    found = asked(led(), 2, alive(1, 2, 3, confirmed=200), designate=True)
    assert (found.answer.code, found.waits) == (2012, True)
    assert "2 at 100" in str(found.answer.remark)
    found = asked(led(sync_state_set=(1, 2)), 3, alive(1, 2, 3), designate=True)
    assert (found.answer.code, found.waits) == (2012, False)
    found = asked(led(), 9, alive(1, 2, 3), designate=True)
    assert (found.answer.code, found.waits) == (2012, False)


def test_after_a_death_the_best_member_is_elected_and_is_alone_in_the_set() -> None:
    view = seen(Candidate(2, 4, 2 * GIB), Candidate(3, 4, 5 * GIB))
    found = elect_after_death(led(), view)
    assert found.group == led(master=3, master_epoch=5, sync_state_set=(3,), sync_state_set_epoch=8)


def test_a_dead_master_is_removed_once_if_nobody_can_be_elected() -> None:
    found = elect_after_death(led(sync_state_set=(1,)), alive(2, 3))
    assert found.group == led(sync_state_set=(1,), master=None, master_epoch=5)
    assert found.group is not None
    again = elect_after_death(found.group, alive(2, 3))
    assert again.group is found.group


def test_a_replica_that_lost_confirmed_messages_is_elected_only_uncleanly() -> None:
    view = alive(2, 3, confirmed=101)
    found = elect_after_death(led(), view)
    assert found.group is not None
    assert found.group.master is None
    assert found.group.confirm_offset == 101
    assert "end before the confirmed offset" in str(found.answer.remark)
    found = elect_after_death(found.group, view._replace(unclean=True))
    assert found.group is not None
    assert (found.group.master, found.group.confirm_offset) == (2, 100)


def test_a_replica_without_an_id_is_no_candidate() -> None:
    assert elect_after_death(led(), seen(Candidate(9, 4, 900))).group == led(
        master=None, master_epoch=5
    )
    assert asked(of_replicas(1), -1, seen(Candidate(9, 4, 900))).answer.code == 2004


def test_a_replica_with_an_epoch_that_was_never_given_is_no_candidate() -> None:
    found = elect_after_death(led(), seen(Candidate(2, 9, 900), Candidate(3, 4, 100)))
    assert found.group is not None
    assert found.group.master == 3


# --- What operators ask.


def test_operators_see_who_is_in_sync_and_who_is_alive() -> None:
    info = replicas_info(led(sync_state_set=(1, 3)), alive(1, 2).live)
    assert [(one.broker_id, one.alive) for one in info.in_sync_replicas] == [(1, True), (3, False)]
    assert [(one.broker_id, one.alive) for one in info.not_in_sync_replicas] == [(2, True)]
    assert (info.master_broker_id, info.master_address, info.master_epoch) == (1, address(1), 4)


def test_a_replica_learns_from_its_questions_that_it_was_cleaned() -> None:
    unnamed = requests.GetReplicaInfo(broker_name="a")
    assert replica_info(None, unnamed).answer.code == 2008
    assert replica_info(led(), unnamed).answer.code == 0
    named = requests.GetReplicaInfo(broker_name="a", broker_id=3)
    assert replica_info(led(), named).answer.code == 0
    left = cleaned(led(), alive(1), broker_controller_ids_to_clean="3").group
    assert replica_info(left, named).answer.code == 2010


def test_living_replicas_are_cleaned_only_if_told() -> None:
    assert cleaned(None).answer.code == 2009
    assert cleaned(led(), broker_controller_ids_to_clean="x").answer.code == 2009
    assert cleaned(led(), alive(2), broker_controller_ids_to_clean="2;3").answer.code == 2009
    assert cleaned(led()).answer.code == 2009  # it has a master
    found = cleaned(led(), alive(2), broker_controller_ids_to_clean="3").group
    assert found is not None
    assert ([one.id for one in found.replicas], found.sync_state_set) == ([1, 2], (1, 2))
    assert (found.sync_state_set_epoch, found.next_id) == (8, 4)
    assert cleaned(led(), alive(2), is_clean_living_broker=True).group is None
    found = cleaned(
        led(), alive(1), is_clean_living_broker=True, broker_controller_ids_to_clean="1"
    ).group
    assert found is not None  # RocketMQ: forgets the whole broker name
    assert (found.master, found.master_epoch, found.sync_state_set) == (None, 5, (2, 3))


# --- Any history.


class AnyHistory(RuleBasedStateMachine):
    """Requests in any order, from replicas whose logs grow and are cut."""

    def __init__(self) -> None:
        super().__init__()
        self.group: Group | None = None
        self.live: dict[int, Candidate] = {}
        self.confirmed = -1
        self.masters: dict[int, int] = {}
        self.highest = (0, 0)

    def take(self, decision: Decision) -> None:
        self.group = decision.group
        group = decision.group
        if group is None:
            self.masters, self.highest, self.confirmed = {}, (0, 0), -1
            return
        if decision.election is not None and decision.election.elected is not None:
            assert group.confirm_offset >= self.confirmed

    def view(self) -> View:
        return View(self.live, self.confirmed)

    @rule()
    def apply_next(self) -> None:
        self.take(applied(self.group, 1 if self.group is None else self.group.next_id))

    @rule(
        id_=st.integers(1, 4),
        max_offset=st.integers(0, 20),
        epoch=st.integers(-1, 6),
        alone=st.booleans(),
    )
    def beat(self, id_: int, max_offset: int, epoch: int, alone: bool) -> None:
        self.live[id_] = Candidate(id_, epoch, max_offset, acknowledges_alone=alone)
        if self.group is not None and self.group.master == id_:
            self.confirmed = max(self.confirmed, max_offset // 2)

    @rule(id_=st.integers(1, 4))
    def die(self, id_: int) -> None:
        self.live.pop(id_, None)

    @rule(id_=st.integers(1, 4))
    def start(self, id_: int) -> None:
        self.live.pop(id_, None)
        self.take(registered(self.group, id_, self.view()))

    @rule(id_=st.sampled_from([-1, 1, 2, 3, 4]), designate=st.booleans())
    def ask(self, id_: int, designate: bool) -> None:
        self.take(asked(self.group, id_, self.view(), designate=designate))

    @rule()
    def note_death(self) -> None:
        group = self.group
        if group is not None and group.master_epoch and group.master not in self.live:
            self.take(elect_after_death(group, self.view()))

    @rule(ids=st.sets(st.integers(1, 4)), stale=st.integers(0, 1))
    def alter(self, ids: set[int], stale: int) -> None:
        if self.group is not None:
            fields = {
                "master": self.group.master or 0,
                "epoch": self.group.master_epoch - stale,
                "set_epoch": self.group.sync_state_set_epoch,
            }
            self.take(altered(self.group, sorted(ids), self.view(), **fields))

    @rule(ids=st.sets(st.integers(1, 4), min_size=1, max_size=2), living=st.booleans())
    def clean(self, ids: set[int], living: bool) -> None:
        text = ";".join(map(str, ids))
        self.take(
            cleaned(
                self.group,
                self.view(),
                broker_controller_ids_to_clean=text,
                is_clean_living_broker=living,
            )
        )

    @invariant()
    def epochs_never_go_down_and_one_epoch_has_one_master(self) -> None:
        group = self.group
        if group is None:
            return
        epochs = (group.master_epoch, group.sync_state_set_epoch)
        assert epochs >= self.highest
        assert epochs[1] >= self.highest[1]
        self.highest = epochs
        if group.master is not None:
            assert self.masters.setdefault(group.master_epoch, group.master) == group.master

    @invariant()
    def the_master_is_in_the_set_and_all_members_are_known(self) -> None:
        group = self.group
        if group is None:
            return
        ids = [one.id for one in group.replicas]
        assert ids == sorted(set(ids))
        assert not ids or ids[-1] < group.next_id
        assert set(group.sync_state_set) <= set(ids)
        assert set(group.restarted) <= set(group.electable) <= set(ids)
        assert not group.heirs or set(group.sync_state_set) <= set(group.heirs)
        if group.master is not None:
            assert group.master in group.sync_state_set


AnyHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyHistory = AnyHistory.TestCase
