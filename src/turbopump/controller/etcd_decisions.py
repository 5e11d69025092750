"""Decisions of several controllers, which agree through etcd.

Keys of one group of controllers, below ``turbopump/controller/GROUP/``:

- ``leader``: the address of the leading controller, bound to its lease.
- ``brokers/NAME``: all that is decided about one broker name, as JSON.

**The fence.** A leader knows the revision at which its own ``leader`` key was written. Every
transaction that decides compares this revision, and that of the group that it replaces. A deposed
leader can therefore write nothing, however late it notices: etcd itself refuses.

**Unknown outcomes.** A transaction that no member answered may have been executed, or may be
executed later by a member that was slow. The term ends then: the leader writes its ``leader`` key
again, so that its revision changes and nothing under way can match. Then all groups are loaded
again. The same happens after every other error of a decision, and after a lease that was renewed
too late: an error always ends in a new term, or in another leader.

The clock only decides when this process stops to call itself the leader, and never what is written.
Source: https://etcd.io/docs/v3.4/learning/api.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from turbopump.clock import Clock
from turbopump.controller.decisions import ConflictError, NotLeaderError
from turbopump.controller.etcd_client import EtcdCalls, EtcdError, EtcdUnreachableError, Json
from turbopump.controller.groups import Group

log = logging.getLogger(__name__)

ROOT: Final = "turbopump/controller/"
RENEWALS: Final = 3
"""Renewals of a lease in its time. A follower looks twice as often who leads."""
ATTEMPTS: Final = 4
"""A member may take this part of the lease's time to answer."""
PAUSE_S: Final = 0.1
"""Seconds between two rounds through the members while none of them answers."""
REPORT_S: Final = 10.0
"""Seconds between two log lines while etcd does not answer."""

_decode_group = msgspec.json.Decoder(Group).decode


def attempt_s(lease_s: int) -> float:
    """Return the seconds that one member of etcd may take to answer."""
    return lease_s / ATTEMPTS


class _Stored(NamedTuple):
    """Decision in etcd, and the revision at which it was written."""

    group: Group
    revision: int


class EtcdDecisions:
    """Decisions in etcd. ``open`` begins to campaign for the leadership, and ``close`` ends it.

    - ``calls``: the connection to etcd.
    - ``group``: name of the group of controllers; others in the same etcd have their own keys.
    - ``lease_s``: seconds after which another controller leads if this one stops to renew.
    """

    def __init__(self, calls: EtcdCalls, group: str, lease_s: int, clock: Clock) -> None:
        self._calls = calls
        self._leader_key = f"{ROOT}{group}/leader"
        self._brokers = f"{ROOT}{group}/brokers/"
        self._lease_s = lease_s
        self._clock = clock
        self._address = ""
        self._on_change: Callable[[], object] = _ignore
        self._campaign: asyncio.Task[None] | None = None
        self._campaign_now = asyncio.Event()
        self._lease = 0
        """Id of the own lease, 0 for none."""
        self._fence = 0
        """Revision of the own leader key, 0 while this process has none."""
        self._is_settled = True
        """False from an unknown outcome until the leader key is written again."""
        self._leads_until = 0.0
        self._lapse: asyncio.TimerHandle | None = None
        self._other = ""
        """Address of another controller that leads."""
        self._other_until = 0.0
        self._stored: dict[str, _Stored] = {}
        self._is_loaded = False
        self._trouble_at: float | None = None
        """Time of the last log line about an etcd that does not answer."""

    async def open(self, address: str, on_change: Callable[[], object]) -> None:
        """Campaign for the leadership from now on.

        - ``address``: the address of this controller, which the others report to brokers while it
          leads.
        - ``on_change``: called when another controller leads or none does, and at the start of each
          term of this one, which must load all groups again.
        """
        self._address = address
        self._on_change = on_change
        loop = asyncio.get_running_loop()
        self._campaign = loop.create_task(self._run(), name="turbopump-etcd")

    async def close(self) -> None:
        """Stop to campaign. A leader gives the leadership back, so that another leads at once."""
        if self._campaign is None:
            return
        self._campaign.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._campaign
        self._campaign = None
        if self._lapse is not None:
            self._lapse.cancel()
        lease, self._lease, self._fence = self._lease, 0, 0
        if lease:
            with contextlib.suppress(EtcdError):
                await self._calls.call("lease/revoke", {"ID": str(lease)})

    @property
    def term(self) -> int:
        """Number of this process's leadership, or 0 while it does not lead. Each is larger than
        all before it."""
        if self._is_settled and self._clock.monotonic() < self._leads_until:
            return self._fence
        return 0

    @property
    def leader(self) -> str | None:
        """Return the address of the leading controller, or None while none is known."""
        if self.term:
            return self._address
        if self._other and self._clock.monotonic() < self._other_until:
            return self._other
        return None

    async def load(self) -> dict[str, Group]:
        """Return all groups.

        Raises NotLeaderError if this process does not lead, and OSError if this version cannot read
        a group.
        """
        fence = self._own_fence()
        everything = {"key": _bytes(self._brokers), "range_end": _bytes(_after(self._brokers))}
        answer = await self._transaction(
            fence, [], [{"request_range": everything}], [], "load the decisions"
        )
        if not answer.get("succeeded"):
            raise self._deposed(fence)
        if fence != self.term:
            self._unsettle(fence)
            raise NotLeaderError("the term ended while the decisions were loaded")
        self._stored = {}
        for found in answer["responses"][0]["response_range"].get("kvs", ()):
            name = _text(found["key"]).removeprefix(self._brokers)
            group = _decoded(found)
            if group is None:
                raise OSError(f"the group {name} in etcd is not one that this version can read")
            self._stored[name] = _Stored(group, int(found["mod_revision"]))
        self._is_loaded = True
        return {name: stored.group for name, stored in self._stored.items()}

    async def replace(self, name: str, old: Group | None, new: Group | None) -> None:
        """Make a decision about one broker name durable in etcd.

        - ``old``: the group that the decision was made from, or None if there was none.
        - ``new``: what replaces it, or None to forget the broker name.

        Raises ConflictError if etcd holds another group than ``old``. Raises NotLeaderError if this
        process does not lead, or if etcd did not answer: the decision may then be there after the
        next ``load``. Either ends the term.
        """
        fence = self._own_fence()
        if not self._is_loaded:
            raise NotLeaderError("the decisions of this term are not loaded")
        stored = self._stored.get(name)
        if old != (None if stored is None else stored.group):
            self._unsettle(fence)
            raise ConflictError(f"broker_name={name}: the group has changed since")
        key = _bytes(self._brokers + name)
        change: Json = {"request_delete_range": {"key": key}}
        if new is not None:
            value = base64.b64encode(msgspec.json.encode(new)).decode()
            change = {"request_put": {"key": key, "value": value}}
        found = [{"request_range": {"key": one}} for one in (key, _bytes(self._leader_key))]
        same = _compare(key, 0 if stored is None else stored.revision)
        try:
            answer = await self._transaction(fence, [same], [change], found, f"decide about {name}")
        except asyncio.CancelledError:
            self._unsettle(fence)  # the request may be under way
            raise
        written = int(answer["header"]["revision"])
        if not answer.get("succeeded"):
            now, leader = (_first(one["response_range"]) for one in answer["responses"])
            if _revision(leader) != fence:
                raise self._deposed(fence)
            if (None if now is None else _decoded(now)) != new:
                self._unsettle(fence)
                raise ConflictError(f"broker_name={name}: etcd holds another group")
            # An earlier attempt of this call was executed, although its answer was lost.
            written = _revision(now)
        if fence != self._fence:
            return  # durable, but of a term that is over: the next load finds it
        if new is None:
            self._stored.pop(name, None)
        else:
            self._stored[name] = _Stored(new, written)

    def _own_fence(self) -> int:
        fence = self.term
        if not fence:
            raise NotLeaderError("this controller does not lead")
        return fence

    def _deposed(self, fence: int) -> NotLeaderError:
        """Note that etcd knows another leader than this process's term ``fence``."""
        if fence == self._fence:
            self._end_term("etcd has another leader")
        return NotLeaderError("another controller leads")

    async def _transaction(
        self,
        fence: int,
        compare: Sequence[Json],
        success: Sequence[Json],
        failure: Sequence[Json],
        what: str,
    ) -> Json:
        """Return the answer to a transaction of the leader of term ``fence``.

        Raises NotLeaderError if etcd does not answer, and ends the term: see *Unknown outcomes*.
        """
        leads = _compare(_bytes(self._leader_key), fence)
        request = {"compare": [leads, *compare], "success": success, "failure": failure}
        try:
            return await self._repeated_call("kv/txn", request)
        except EtcdError as error:
            log.error(
                "cannot %s: etcd cannot be used; the present masters continue with their present "
                "replicas cause=%s",
                what,
                error,
            )
            self._unsettle(fence)
            raise NotLeaderError("etcd cannot be used") from error

    async def _repeated_call(self, method: str, request: Json) -> Json:
        """Make a call until a member answers, at most for the time of a lease.

        Members elect their own leader meanwhile. A repeated transaction changes nothing twice,
        because its conditions hold only once.
        """
        term = self.term
        deadline = self._clock.monotonic() + self._lease_s
        while True:
            try:
                return await self._calls.call(method, request)
            except EtcdUnreachableError:
                if self.term != term or self._clock.monotonic() >= deadline:
                    raise
            await asyncio.sleep(PAUSE_S)

    def _unsettle(self, fence: int) -> None:
        """End the term ``fence``. The next one begins when the leader key is written again."""
        if fence != self._fence or not self._is_settled:
            return
        self._is_settled = False
        self._is_loaded = False
        self._campaign_now.set()
        self._on_change()

    def _lead_until(self, until: float) -> None:
        """Lead until then, unless the lease is renewed before."""
        self._leads_until = until
        if self._lapse is not None:
            self._lapse.cancel()
        left = until - self._clock.monotonic()
        self._lapse = asyncio.get_running_loop().call_later(left, self._note_lapse)

    def _note_lapse(self) -> None:
        if self._fence and not self.term:
            self._unsettle(self._fence)

    async def _run(self) -> None:
        """Campaign, and renew the lease while this process leads."""
        while True:
            began = self._clock.monotonic()
            try:
                await self._campaign_once(began)
            except EtcdError as error:
                self._report_trouble(error)
            except Exception:  # an answer that is not etcd's must not end the campaign
                log.exception("campaign for the leadership failed")
            else:
                self._report_end_of_trouble()
            parts = RENEWALS if self._fence else 2 * RENEWALS
            left = self._lease_s / parts - (self._clock.monotonic() - began)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(left, PAUSE_S)):
                    await self._campaign_now.wait()
            self._campaign_now.clear()

    async def _campaign_once(self, now: float) -> None:
        """Renew the own lease, and look who leads. Without a leader, try to become it.

        ``now`` was read before anything was sent, so the lease lasts at least until ``now`` plus
        its time.
        """
        until = now + self._lease_s
        if self._lease:
            await self._renew()
        answer = await self._calls.call("kv/range", {"key": _bytes(self._leader_key)})
        found = _first(answer)
        if found is None:
            self._end_term("its leader key is gone")
            found = await self._become_leader()
        if found is None:
            return  # gone again
        is_own = self._lease != 0 and int(found.get("lease", 0)) == self._lease
        if not is_own:
            self._end_term("another controller leads")
            self._note_other(_text(found["value"]), until)
            return
        if self.term and _revision(found) == self._fence:
            self._lead_until(until)
        elif fence := await self._write_again(_revision(found)):
            self._begin_term(fence, until)
        else:
            self._end_term("its leader key was written by another")

    async def _renew(self) -> None:
        answer = await self._calls.call("lease/keepalive", {"ID": str(self._lease)})
        if int(answer["result"].get("TTL", 0)) <= 0:
            self._lease = 0
            self._end_term("its lease has expired")

    async def _become_leader(self) -> Json | None:
        """Create the leader key with a lease, unless another controller was faster.

        Returns the key as it is then, or None.
        """
        if not self._lease:
            granted = await self._calls.call("lease/grant", {"TTL": str(self._lease_s), "ID": "0"})
            self._lease = int(granted["ID"])
        key = _bytes(self._leader_key)
        put = {"key": key, "value": _bytes(self._address), "lease": str(self._lease)}
        found = {"request_range": {"key": key}}
        request = {
            "compare": [_compare(key, 0)],
            "success": [{"request_put": put}, found],
            "failure": [found],
        }
        answer = await self._calls.call("kv/txn", request)
        return _first(answer["responses"][-1]["response_range"])

    async def _write_again(self, revision: int) -> int:
        """Write the own leader key again, and return its new revision. 0: it has changed.

        No transaction with an earlier revision of the key can be executed then.
        """
        key = _bytes(self._leader_key)
        put = {"key": key, "value": _bytes(self._address), "lease": str(self._lease)}
        request = {"compare": [_compare(key, revision)], "success": [{"request_put": put}]}
        answer = await self._calls.call("kv/txn", request)
        return int(answer["header"]["revision"]) if answer.get("succeeded") else 0

    def _begin_term(self, fence: int, until: float) -> None:
        again = " again" if self._fence else ""
        self._fence = fence
        self._is_settled = True
        self._is_loaded = False
        self._lead_until(until)
        self._other = ""
        log.info("this controller leads%s term=%d", again, fence)
        self._on_change()

    def _end_term(self, reason: str) -> None:
        self._stored = {}
        self._is_settled = True
        if self._fence:
            log.warning("this controller no longer leads term=%d reason=%s", self._fence, reason)
            self._fence = 0
            self._on_change()

    def _note_other(self, address: str, until: float) -> None:
        """Note who leads. The own address is that of an earlier process, whose lease will end."""
        if address == self._address:
            return
        is_new = address != self._other
        self._other = address
        self._other_until = until
        if is_new:
            log.info("another controller leads leader=%s", address)
            self._on_change()

    def _report_trouble(self, error: EtcdError) -> None:
        now = self._clock.monotonic()
        if self._trouble_at is not None and now - self._trouble_at < REPORT_S:
            return
        self._trouble_at = now
        log.error(
            "etcd cannot be used: this controller cannot lead; while none leads, no master is "
            "elected, and the present masters continue with their present replicas cause=%s",
            error,
        )

    def _report_end_of_trouble(self) -> None:
        if self._trouble_at is not None:
            log.info("etcd can be used again")
        self._trouble_at = None


def _ignore() -> None:
    """Do nothing about a change: nobody has opened the decisions."""


def _bytes(text: str) -> str:
    """Return a text in the form that the gateway has for bytes."""
    return base64.b64encode(text.encode()).decode()


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


def _after(prefix: str) -> str:
    """Return the first key behind all keys with a prefix that ends in an ASCII character."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _compare(key: str, revision: int) -> Json:
    """Return the condition that a key was last written at ``revision``; 0: there is no such key."""
    return {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def _first(answer: Mapping[str, Any]) -> Json | None:
    """Return the first key of an answer to a range request, or None."""
    found: Sequence[Json] = answer.get("kvs", ())
    return found[0] if found else None


def _revision(found: Json | None) -> int:
    return 0 if found is None else int(found["mod_revision"])


def _decoded(found: Json) -> Group | None:
    """Return the group in a key, or None if this version cannot read it."""
    try:
        return _decode_group(base64.b64decode(found["value"]))
    except msgspec.MsgspecError:
        return None
