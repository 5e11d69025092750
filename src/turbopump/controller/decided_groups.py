"""Groups of the leading controller. Each change is durable before its request is answered.

Changes of one group happen one after the other. A change that has begun is finished, also if the
request that caused it is cancelled, so that memory and storage do not differ. Elections without a
request begin here: after a death, and when a heartbeat shows that a member of the sync state set
has every confirmed message. Sockets are unknown here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from turbopump.clock import Clock
from turbopump.controller.decisions import ConflictError, Decisions, NotLeaderError
from turbopump.controller.election import Candidate
from turbopump.controller.groups import Answer, Decision, Group, View, elect_after_death, reason
from turbopump.controller.liveness import Liveness, ReplicaKey
from turbopump.protocol.codes import ResponseCode
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_no_record = RepeatedLine(
    log,
    logging.ERROR,
    "replicas are alive that this controller has no record of: it has lost its file, or they were "
    "cleaned; stop them broker=%s id=%d",
)
_no_master = RepeatedLine(log, logging.ERROR, "no master can be elected broker=%s epoch=%d why=%s")

Make = Callable[[Group | None, View], Decision]
"""Function that decides: it gets the group, and what is known of its live replicas."""

REPORTS_S: Final = 0.3
"""Maximum seconds for which an election waits for the ends of the logs after the death of a master.
Replicas of ours report them at once when their connection to the master ends."""
WAITING_MAX: Final = 100
"""Maximum number of requests that wait for one group."""


class BusyError(Exception):
    """Raised when too many requests wait for one group."""


class _Line:
    """Requests that wait for one group."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting = 0


class DecidedGroups:
    """Groups by broker name, while this controller leads.

    - ``liveness``: the live replicas.
    - ``allows_unclean``: returns True if unclean elections are allowed now.
    - ``on_elected``: called after each election with the new group.
    - ``on_lost``: called when a decision has failed, so that memory and storage may differ. The
      groups must be loaded again if this controller still leads.
    """

    def __init__(
        self,
        decisions: Decisions,
        liveness: Liveness,
        clock: Clock,
        allows_unclean: Callable[[], bool],
        on_elected: Callable[[Group], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._decisions = decisions
        self._liveness = liveness
        self._clock = clock
        self._allows_unclean = allows_unclean
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._groups: dict[str, Group] = {}
        self._confirmed: dict[str, int] = {}
        """Highest confirm offset that a master has reported, by broker name."""
        self._started: dict[str, float] = {}
        """Time when a replica started last, by broker name."""
        self._lines: dict[str, _Line] = {}
        self._electing: set[str] = set()
        self._waiting: dict[str, asyncio.TimerHandle] = {}
        """End of the wait for reports, by broker name."""
        self._beats: dict[str, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._leads_since: float | None = None
        self.elections: Counter[str] = Counter()
        """Number of elections by result, in Apache's words."""

    @property
    def leads(self) -> bool:
        """True while this controller leads and knows the groups."""
        return self._leads_since is not None

    def begin(self, groups: dict[str, Group]) -> None:
        """Begin to lead, with the stored groups."""
        self._groups = dict(groups)
        self._confirmed = {name: group.confirm_offset for name, group in groups.items()}
        self._leads_since = self._clock.monotonic()
        # Another controller may have seen later starts.
        self._started = dict.fromkeys(groups, self._leads_since)
        for name in groups:
            self.consider(name, "a controller begins to lead")

    def end(self) -> None:
        """Lead no longer. Requests that wait raise NotLeaderError."""
        self._leads_since = None
        self._groups = {}
        self._confirmed = {}
        self._started = {}

    async def close(self) -> None:
        """End all elections."""
        self.end()
        for timer in self._waiting.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def get(self, name: str) -> Group | None:
        """Return a group. Raises NotLeaderError."""
        if not self.leads:
            raise NotLeaderError("this controller does not lead")
        return self._groups.get(name)

    def cluster(self, name: str) -> str:
        """Return the cluster of a broker name, or an empty text for an unknown one."""
        group = self._groups.get(name)
        return "" if group is None else group.cluster_name

    def clusters(self) -> set[str]:
        """Return the names of all clusters."""
        return {group.cluster_name for group in self._groups.values()}

    def view(self, name: str) -> View:
        """Return what is known of the live replicas of a broker name."""
        group = self._groups.get(name)
        members = () if group is None else group.electable
        started = self._started.get(name, -inf)
        return View(
            self._liveness.candidates(name),
            self._confirmed.get(name, -1),
            self._allows_unclean(),
            self._liveness.all_heard_since(name, members, started),
        )

    # --- changes

    async def decide(self, name: str, make: Make, cause: str) -> Decision:
        """Decide about a group, and make a change durable before returning.

        ``cause`` is for the log. Raises NotLeaderError if the outcome is unknown, and BusyError.
        """
        task = self._start(self._decide(name, make, cause))
        return await asyncio.shield(task)

    async def _decide(self, name: str, make: Make, cause: str) -> Decision:
        line = self._lines.setdefault(name, _Line())
        if line.waiting >= WAITING_MAX:
            raise BusyError
        line.waiting += 1
        try:
            async with line.lock:
                return await self._decide_now(name, make, cause)
        finally:
            line.waiting -= 1
            if not line.waiting and self._lines.get(name) is line:
                del self._lines[name]

    async def _decide_now(self, name: str, make: Make, cause: str) -> Decision:
        group, term = self.get(name), self._leads_since
        decision = make(group, self.view(name))
        if decision.group is group:
            self._count(decision)
            return decision
        try:
            await self._decisions.replace(name, group, decision.group)
        except Exception as error:
            expected = isinstance(error, ConflictError | NotLeaderError)
            log.warning("decision failed cause=%s", error, exc_info=not expected)
            if self._leads_since == term:
                self.end()
                self._on_lost()
            raise NotLeaderError(str(error)) from None
        if self._leads_since != term:
            raise NotLeaderError("this controller leads no longer")
        self._note(name, group, decision, cause)
        return decision

    def _note(self, name: str, before: Group | None, decision: Decision, cause: str) -> None:
        """Apply a durable decision to memory, log it, and call ``on_elected`` for a new master."""
        after, election = decision.group, decision.election
        self._count(decision)
        if after is None:
            del self._groups[name]
            self._confirmed.pop(name, None)
            self._started.pop(name, None)
            log.warning("broker name forgotten broker=%s cause=%s", name, cause)
            return
        self._groups[name] = after
        unclean = election is not None and election.elected is not None and election.unclean
        if unclean:
            self._confirmed[name] = after.confirm_offset
        if before is None or before.master_epoch == after.master_epoch:
            _log_change(name, before, after, cause)
        elif election is not None and election.elected is not None:
            log.log(
                logging.WARNING if before.master_epoch else logging.INFO,  # the first is expected
                "master elected broker=%s master=%d address=%s epoch=%d before=%s cause=%s%s "
                "candidates=%s",
                name,
                election.elected,
                after.address(election.elected),
                after.master_epoch,
                before.master,
                cause,
                " unclean=true" if unclean else "",
                shown(election.candidates),
            )
            self._on_elected(after)
        else:
            log.error(
                "master gone, and no other can be elected broker=%s before=%s epoch=%d cause=%s "
                "why=%s",
                name,
                before.master,
                after.master_epoch,
                cause,
                decision.answer.remark or "-",
            )

    def _count(self, decision: Decision) -> None:
        if decision.answer.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
            self.elections["keep_current_master"] += 1
        elif decision.election is None:
            return
        elif decision.election.elected is None:
            self.elections["no_master_elected"] += 1
        else:
            self.elections["new_master_elected"] += 1

    # --- starts, heartbeats and deaths

    def note_start(self, name: str) -> None:
        """Note that a replica of a broker name has started, and registers."""
        if name in self._groups:
            self._started[name] = self._clock.monotonic()

    def note_heartbeat(self, key: ReplicaKey, confirm_offset: int | None) -> None:
        """Note that a heartbeat of a replica has arrived.

        ``confirm_offset`` counts if the replica is the master.
        """
        name = key.broker_name
        group = self._groups.get(name)
        if group is None:
            if self.leads:
                _no_record(name, key.id, kind=name)
            return
        if confirm_offset is not None and group.master == key.id:
            self._confirmed[name] = max(self._confirmed.get(name, -1), confirm_offset)
        waiting = self._beats.pop(name, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
        self.consider(name, f"heartbeat of replica {key.id}")

    def note_deaths(self, keys: Iterable[ReplicaKey], cause: str) -> None:
        """Note that replicas have died."""
        for key in keys:
            if not self.leads:
                continue
            group = self._groups.get(key.broker_name)
            is_master = group is not None and group.master == key.id
            log.warning(
                "replica lost broker=%s id=%d master=%s cause=%s",
                key.broker_name,
                key.id,
                "true" if is_master else "false",
                cause,
            )
            self.consider(key.broker_name, f"replica {key.id} is lost ({cause})")

    async def next_heartbeat(self, name: str, timeout: float) -> None:
        """Wait for a heartbeat of any replica of a broker name, for at most ``timeout`` s."""
        waiting = self._beats.get(name)
        if waiting is None:
            waiting = self._beats[name] = asyncio.get_running_loop().create_future()
        await asyncio.wait([waiting], timeout=timeout)

    def consider(self, name: str, cause: str) -> None:
        """Begin an election if the group has no live master and an election changes something."""
        group = self._groups.get(name)
        if group is None or name in self._electing or not self._lacks_master(group):
            return
        view = self.view(name)
        decision = elect_after_death(group, view)
        if decision.group is group:
            if view.live and decision.election is not None:
                why = reason(group, decision.election)
                _no_master(name, group.master_epoch, why, kind=name)
            return
        if self._awaits_reports(group, cause):
            return
        self._electing.add(name)
        task = self._start(self._decide(name, self._elect_if_needed, cause))
        task.add_done_callback(lambda done: self._election_ended(name, done))

    def _awaits_reports(self, group: Group, cause: str) -> bool:
        """Return True while members may report a longer log than before the death of the master.

        They have copied from it until it died. By older reports a shorter log may win, and the
        longer one must then be cut.
        """
        if group.master is None:
            return False
        name = group.broker_name
        lost_at = self._liveness.lost_at(ReplicaKey(name, group.master))
        if lost_at is None or self._liveness.all_heard_since(name, group.electable, lost_at):
            return False
        left = lost_at + REPORTS_S - self._clock.monotonic()
        if left <= 0:
            return False
        if name not in self._waiting:
            loop = asyncio.get_running_loop()
            self._waiting[name] = loop.call_later(left, self._end_wait, name, cause)
        return True

    def _end_wait(self, name: str, cause: str) -> None:
        del self._waiting[name]
        self.consider(name, cause)

    def _elect_if_needed(self, group: Group | None, view: View) -> Decision:
        if group is None or not self._lacks_master(group):
            return Decision(group, Answer())
        return elect_after_death(group, view)

    def _election_ended(self, name: str, task: asyncio.Task[Decision]) -> None:
        self._electing.discard(name)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, NotLeaderError | BusyError):
            log.error("election failed broker=%s", name, exc_info=error)
        elif error is None and task.result().group is not None:
            self.consider(name, "a change during the last election")

    def _lacks_master(self, group: Group) -> bool:
        """Return True if a group had a master and has none that lives.

        A master that this controller has not heard yet gets as much time as a silent one.
        """
        if group.master_epoch == 0 or self._leads_since is None:
            return False
        name, master = group.broker_name, group.master
        if master is None:
            return True
        if master in self._liveness.candidates(name):
            return False
        if self._liveness.lost_at(ReplicaKey(name, master)) is not None:
            return True
        allowed = self._leads_since + self._liveness.timeout(name)
        return self._clock.monotonic() >= allowed

    def _start(self, work: object) -> asyncio.Task[Decision]:
        task: asyncio.Task[Decision] = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def shown(candidates: Iterable[Candidate]) -> str:
    """Return candidates for a log line: id, epoch and end of the log of each."""
    texts = [f"{one.id}:epoch={one.epoch}:end={one.max_offset}" for one in candidates]
    return ",".join(texts) or "-"


def _log_change(name: str, before: Group | None, after: Group, cause: str) -> None:
    if before is None or before.replicas != after.replicas:
        replicas = ",".join(f"{one.id}@{one.address}" for one in after.replicas)
        log.info("replicas changed broker=%s replicas=%s cause=%s", name, replicas, cause)
    if before is not None and before.sync_state_set != after.sync_state_set:
        log.info(
            "sync state set changed broker=%s before=%s after=%s set_epoch=%d cause=%s",
            name,
            list(before.sync_state_set),
            list(after.sync_state_set),
            after.sync_state_set_epoch,
            cause,
        )
