"""`python -m tests.crash.failover_campaign --fault kill --rounds 100`: three replicas under faults.

One fault at a time; the group is whole again before the next one. Producers of ours send all the
time, with their own retries alone. So do direct clients. Each of them knows one replica, and
reaches it also while it is cut off: it would be answered by a second master. An operator makes
topics, groups and users, and commits offsets. All answers go to the ledger of the simulation.

    kill         kill -9 of the master
    freeze       SIGSTOP of the master for --frozen-s, and until sends go on at another one
    cut          the master is cut off from everything for as long, but its process runs
    power-async  power cut of one replica under ASYNC_FLUSH, of the master in every other round
    power-sync   the same under SYNC_FLUSH
    controller   kill -9 of the controller, which comes back after --frozen-s

A round ends when all replicas are in the sync state set again. Then its messages are read at the
master, with everything that the operator made. In the end all is read, and the logs are compared.

The verdict of each round is printed at once. The summary is printed also if the run is ended by
SIGINT or SIGTERM, or fails. Exit status 1: something was lost, or two masters acknowledged.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import signal
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import click
from tests.crash.replica_group import (
    BROKER,
    PASSWORD,
    REPLICAS,
    SUPER_USER,
    ReplicaGroup,
    ReplicaProcess,
)
from tests.simulation.world.group_ledger import Acknowledged, GroupLedger, Read, Write
from tests.simulation.world.ledger import Queue, Send, SendOutcome

from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.client.producer import Producer
from turbopump.client.sending.send_result import SendStatus
from turbopump.errors import TurbopumpError
from turbopump.message.codec import decode_entries
from turbopump.message.ids import decode_offset_msg_id
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.access import CreateUser, GetUser, UpdateUser, UserInfo
from turbopump.protocol.requests.controller import EpochCache, GetEpochCache
from turbopump.protocol.requests.groups import CreateGroup, GetGroup, SubscriptionGroupConfig
from turbopump.protocol.requests.offsets import (
    OffsetReply,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)
from turbopump.protocol.requests.pull import PullMessage, PullMessageReply, PullSysFlag
from turbopump.protocol.requests.send import SendMessageReply, SendMessageV2
from turbopump.protocol.requests.topics import CreateTopic, GetTopicConfig, TopicConfig
from turbopump.remoting.client import RemotingClient

FAULTS: Final = ("kill", "freeze", "cut", "power-async", "power-sync", "controller")
TOPIC, QUEUES, KEEPERS = "failover", 2, "keepers"
LANES: Final = 4
LANE_PAUSE_S, DIRECT_PAUSE_S, OPERATOR_PAUSE_S = 0.02, 0.05, 0.1
ANSWER_S: Final = 2.0
"""Deadline of a request to one replica; a frozen one does not answer."""
PATIENCE_S: Final = 120.0
STEADY_S, STEADY_GAP_S = 1.0, 0.5
"""Sends go on when for so long no gap was longer than this."""
EMPTY_MAX: Final = 20
"""Answers without a message, one after the other, before a queue counts as read."""
NAMES: Final = 6
"""Of each kind of thing that the operator makes and changes."""
SHOWN: Final = 5


def now() -> float:
    return time.monotonic()


class Clients:
    """Producers, clients of single replicas, and an operator."""

    def __init__(
        self, group: ReplicaGroup, ledger: GroupLedger, attempt_timeout: float | None
    ) -> None:
        self.group = group
        self.ledger = ledger
        self.produced: list[float] = []
        """Times of the acknowledgements that producers got."""
        self.all: list[float] = []
        """The same, with those that direct clients got."""
        self.faults: Counter[str] = Counter()
        self.operator = Operator(group, ledger)
        self._stopping = False
        self._producer = Producer(
            group.namesrv, group="failover-producer", attempt_timeout=attempt_timeout
        )
        self._remoting = RemotingClient(connect_timeout=ANSWER_S)
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Clients]:
        await self._producer.start()
        works = [self._produce(f"lane{lane}") for lane in range(LANES)]
        works += [self._send_to(replica) for replica in self.group.replicas]
        works.append(self.operator.run())
        self._tasks = [asyncio.create_task(work) for work in works]
        try:
            yield self
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._producer.close()
            await self._remoting.close()
            await self.operator.close()

    async def stop(self) -> None:
        """Return when every send and change has been answered, or has failed."""
        self._stopping = self.operator.stopping = True
        await asyncio.gather(*self._tasks)

    async def _produce(self, name: str) -> None:
        for number in itertools.count():
            if self._stopping:
                return
            send = self._begin(name, number)
            try:
                result = await self._producer.send(TOPIC, send.body)
            except TurbopumpError as error:
                self.faults[f"send: {cause_of(error)}"] += 1
                send.maybe(now())
            else:
                if result.status is SendStatus.OK:
                    self._acknowledged(
                        send, result.queue.queue_id, result.queue_offset, result.offset_msg_id
                    )
                    self.produced.append(send.ended)
                else:
                    send.maybe(now())
            await asyncio.sleep(LANE_PAUSE_S)

    async def _send_to(self, replica: ReplicaProcess) -> None:
        """Send to one replica without any route, and past its proxies."""
        for number in itertools.count():
            if self._stopping:
                return
            send = self._begin(f"of {replica.host}", number)
            request = SendMessageV2(topic=TOPIC, queue_id=number % QUEUES)
            try:
                answer = await self._remoting.exchange(
                    replica.direct, request, send.body, timeout=ANSWER_S
                )
            except TurbopumpError:
                send.maybe(now())
            else:
                if answer.code == ResponseCode.SUCCESS:
                    reply = answer.header(SendMessageReply)
                    self._acknowledged(send, reply.queue_id, reply.queue_offset, reply.msg_id)
                else:
                    send.maybe(now())
            await asyncio.sleep(DIRECT_PAUSE_S)

    def _begin(self, name: str, number: int) -> Send:
        return self.ledger.messages.send(name, TOPIC, f"{name}/{number}".encode(), now())

    def _acknowledged(self, send: Send, queue_id: int, offset: int, offset_msg_id: str) -> None:
        """The id tells the replica that stored the message, and where in its log."""
        host, _, log_offset = decode_offset_msg_id(offset_msg_id)
        by = Acknowledged(host, 0, log_offset)  # the epoch is known in the end
        self.ledger.acknowledged(send, Queue(TOPIC, BROKER, queue_id), offset, now(), by)
        self.all.append(send.ended)

    async def steady(self, since: float) -> None:
        """Wait until sends have gone on for STEADY_S that began after this moment."""
        async with asyncio.timeout(PATIENCE_S):
            while (
                not self.produced
                or now() < since + STEADY_S
                or longest_gap(self.produced, now() - STEADY_S, now()) > STEADY_GAP_S
            ):
                await asyncio.sleep(0.05)


def cause_of(error: Exception) -> str:
    """The kind of an error and its text, without what differs from send to send."""
    text = re.sub(r"message [0-9A-F]+ |[0-9]+ ms|broker-crash |[(]?127[.0-9:]+[)]?", "", str(error))
    return f"{type(error).__name__}: {text[:130]}"


def longest_gap(times: list[float], since: float, until: float) -> float:
    """The longest time without an acknowledgement that ends after a moment and begins before
    another one. ``times`` are in order."""
    first, behind = bisect_right(times, since), bisect_right(times, until)
    inner = [*times[max(first - 1, 0) : behind], until]
    return max((late - early for early, late in pairwise(inner)), default=0.0)


class Operator:
    """Makes and changes topics, groups, users and offsets at the master, one after the other."""

    def __init__(self, group: ReplicaGroup, ledger: GroupLedger) -> None:
        self.stopping = False
        self._group = group
        self._ledger = ledger
        self._remoting = RemotingClient(
            signer=RequestSigner(Credentials(SUPER_USER, PASSWORD)), connect_timeout=ANSWER_S
        )
        self._numbers = itertools.count(1)
        self._users: set[str] = set()
        self._has_keepers = False
        self.refusals: Counter[str] = Counter()
        """Changes without the answer that they are done, by kind and cause."""

    async def close(self) -> None:
        await self._remoting.close()

    async def run(self) -> None:
        deeds: list[Callable[[ReplicaProcess], Awaitable[object]]] = [
            self._put_topic,
            self._put_group,
            self._put_user,
            self._commit,
        ]
        master: ReplicaProcess | None = None
        for deed in itertools.cycle(deeds):
            if self.stopping:
                return
            master = await self._group.master() or master  # the last one while nobody knows
            if master is not None:
                await deed(master)
            await asyncio.sleep(OPERATOR_PAUSE_S)

    async def _put_topic(self, master: ReplicaProcess) -> None:
        number = next(self._numbers)
        name, queues = f"topic{number % NAMES}", 1 + number % 1000
        request = CreateTopic(topic=name, read_queue_nums=queues, write_queue_nums=queues)
        await self._change(master, f"topic {name}", queues, request)

    async def _put_group(self, master: ReplicaProcess, name: str = "") -> bool:
        number = next(self._numbers)
        name = name or f"group{number % NAMES}"
        body = SubscriptionGroupConfig(group_name=name, retry_max_times=number)
        encoded = fastjson.encode(body)
        return await self._change(master, f"group {name}", number, CreateGroup(), encoded)

    async def _put_user(self, master: ReplicaProcess) -> None:
        number = next(self._numbers)
        name = f"user{number % NAMES}"
        kind = ("Super", "Normal")[number // NAMES % 2]
        info = UserInfo(username=name, user_type=kind)
        request: Request[Any] = UpdateUser(username=name)
        if name not in self._users:
            info.password = PASSWORD
            request = CreateUser(username=name)
        if await self._change(master, f"user {name}", kind, request, fastjson.encode(info)):
            self._users.add(name)

    async def _commit(self, master: ReplicaProcess) -> None:
        """Commit the offset behind the last acknowledged message."""
        if not self._has_keepers:
            self._has_keepers = await self._put_group(master, KEEPERS)
            return
        last = next(
            (
                send
                for send in reversed(self._ledger.messages.sends)
                if send.outcome is SendOutcome.ACKNOWLEDGED
            ),
            None,
        )
        if last is None or last.queue is None:
            return
        queue_id, offset = last.queue.queue_id, last.offset + 1
        request = UpdateConsumerOffset(
            consumer_group=KEEPERS, topic=TOPIC, queue_id=queue_id, commit_offset=offset
        )
        await self._change(master, f"offset {KEEPERS} {queue_id}", offset, request)

    async def _change(
        self,
        master: ReplicaProcess,
        key: str,
        value: object,
        request: Request[Any],
        body: bytes = b"",
    ) -> bool:
        """Ask for a change, and write down the outcome. Return True if it was done."""
        write: Write = self._ledger.facts.write(key, value, now())
        try:
            answer = await self._ask(master, request, body, timeout=10.0)
        except TurbopumpError as error:
            self._refused(write, type(error).__name__)
            return False
        if answer.code != ResponseCode.SUCCESS:
            self._refused(write, f"{answer.code} {(answer.remark or '')[:120]}")
            return False
        write.answered(now())
        return True

    def _refused(self, write: Write, cause: str) -> None:
        """The change may be done nevertheless."""
        write.maybe(now())
        self.refusals[f"{write.key.split()[0]}: {cause}"] += 1

    async def read_all(self, master: ReplicaProcess) -> list[Read]:
        """Everything that was made, as the master has it."""
        found = []
        for key in list(self._ledger.facts.writes):
            begun = now()
            value = await self._value(master, key)
            found.append(Read(key, value, begun, now(), f"at {master.host}"))
        return found

    async def _value(self, master: ReplicaProcess, key: str) -> object:
        """The value of a fact; None if there is no such thing."""
        kind, name, *more = key.split()
        requests: dict[str, Request[Any]] = {
            "topic": GetTopicConfig(topic=name),
            "group": GetGroup(group=name),
            "user": GetUser(username=name),
        }
        if kind == "offset":
            query = QueryConsumerOffset(consumer_group=name, topic=TOPIC, queue_id=int(more[0]))
            answer = await self._ask(master, query)
            if answer.code != ResponseCode.SUCCESS:
                return None
            # RocketMQ: 0 for a group without an offset in a queue that has its first message
            return answer.header(OffsetReply).offset or None
        answer = await self._ask(master, requests[kind])
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return None
        if kind == "topic":
            return fastjson.decode(answer.body, TopicConfig).read_queue_nums
        if kind == "group":
            return fastjson.decode(answer.body, SubscriptionGroupConfig).retry_max_times
        return fastjson.decode(answer.body, UserInfo).user_type

    async def _ask(
        self,
        master: ReplicaProcess,
        request: Request[Any],
        body: bytes = b"",
        timeout: float = ANSWER_S,
    ) -> Command:
        return await self._remoting.exchange(master.direct, request, body, timeout=timeout)


@dataclass(slots=True)
class Outcome:
    """What a campaign found. Times are in seconds."""

    fault: str
    rounds: int = 0
    acknowledged: int = 0
    changes: int = 0
    elections: int = 0
    failed_sends: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    """Causes of failed sends and changes."""
    gaps: list[float] = field(default_factory=list)
    """Longest time without an acknowledged send to any client while a fault lasts, by round."""
    producer_gaps: list[float] = field(default_factory=list)
    """The same to producers, who must find the new master first."""
    later_gaps: list[float] = field(default_factory=list)
    """The same to producers, from the end of the fault until all replicas are in sync."""
    violations: list[str] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    """Load average of the machine at the end of each round."""
    is_judged: bool = False
    """All was read in the end, and the logs were compared."""

    def round_line(self) -> str:
        """The verdict of the last round."""
        shown = ", ".join(
            f"{each[-1]:.3f}" for each in (self.gaps, self.producer_gaps, self.later_gaps)
        )
        return (
            f"round {self.rounds}: {shown} s; {len(self.violations)} violations; "
            f"load {self.loads[-1]:.1f}"
        )

    def __str__(self) -> str:
        found = Counter(text.split(" ", 1)[0] for text in self.violations)
        return (
            f"{self.fault}: {self.rounds} rounds, {self.acknowledged:,} messages and "
            f"{self.changes:,} changes acknowledged, violations {dict(found) or 0}"
            f"{'' if self.is_judged else ' (NO FINAL VERDICT)'}; "
            f"{self.elections} elections; without an acknowledged send {spread(self.gaps)}; "
            f"producers {spread(self.producer_gaps)}, after the end of the fault "
            f"{spread(self.later_gaps)}, {self.failed_sends} of their sends failed; "
            f"load {min(self.loads, default=0.0):.1f} to {max(self.loads, default=0.0):.1f}"
        )


def spread(values: list[float]) -> str:
    half, most = percentile(values, 0.5), percentile(values, 0.99)
    return f"p50 {half:.2f} s, p99 {most:.2f} s, longest {max(values, default=0.0):.2f} s"


def percentile(values: list[float], share: float) -> float:
    """The smallest value that is not below this share of them."""
    ordered = sorted(values) or [0.0]
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Campaign:
    """Faults of one kind on a running group."""

    def __init__(
        self,
        group: ReplicaGroup,
        outcome: Outcome,
        *,
        frozen_s: float,
        rng: random.Random,
        attempt_timeout: float | None = None,
    ) -> None:
        self.ledger = GroupLedger()
        self.outcome = outcome
        self._group = group
        self._frozen_s = frozen_s
        self._rng = rng
        self._clients = Clients(group, self.ledger, attempt_timeout)
        self._reader = RemotingClient(connect_timeout=ANSWER_S)
        self._judged = 0

    async def run(
        self, rounds: int, report: Callable[[str], None], minutes: float | None = None
    ) -> None:
        """So many rounds, or those that begin within the minutes, then the verdict."""
        end = inf if minutes is None else now() + 60 * minutes
        try:
            await self._make_topic()
            async with self._clients.run():
                for number in range(rounds):
                    await self._round(number)
                    report(self.outcome.round_line())
                    for violation in self.outcome.violations[:SHOWN]:
                        report(violation)
                    if self.outcome.violations or now() > end:
                        break
                await self._whole()
                await self._clients.stop()
                await self._judge()
                await self._compare_logs()
            self.outcome.is_judged = True
        finally:
            self._count()
            await self._reader.close()

    def _count(self) -> None:
        """Write down what was done, also in a run that does not get to its end."""
        outcome = self.outcome
        outcome.acknowledged = len(self.ledger.messages.acknowledged)
        outcome.changes = self.ledger.facts.answered
        outcome.failed_sends = sum(self._clients.faults.values())
        outcome.refusals = self._clients.faults + self._clients.operator.refusals

    async def _make_topic(self) -> None:
        request = CreateTopic(topic=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                master = await self._group.master()
                if master is not None:
                    try:
                        answer = await self._reader.exchange(master.direct, request, timeout=10.0)
                    except TurbopumpError:
                        pass
                    else:
                        if answer.code == ResponseCode.SUCCESS:
                            return
                await asyncio.sleep(0.05)

    # --- rounds

    async def _round(self, number: int) -> None:
        deeds: dict[str, Callable[[ReplicaProcess], Awaitable[float]]] = {
            "kill": self._kill,
            "freeze": self._freeze,
            "cut": self._cut,
            "power-async": self._cut_power,
            "power-sync": self._cut_power,
            "controller": self._kill_controller,
        }
        victim = await self._whole()
        await asyncio.sleep(self._rng.uniform(0, 0.3))
        if self.outcome.fault.startswith("power") and number % 2:
            others = [one for one in self._group.replicas if one is not victim]
            victim = self._rng.choice(others)
        begun = now()
        mended = await deeds[self.outcome.fault](victim)
        await self._whole()
        self.outcome.gaps.append(longest_gap(self._clients.all, begun, mended))
        self.outcome.producer_gaps.append(longest_gap(self._clients.produced, begun, mended))
        self.outcome.later_gaps.append(longest_gap(self._clients.produced, mended, now()))
        self.outcome.loads.append(os.getloadavg()[0])
        await self._judge_round()
        self.outcome.rounds += 1

    async def _whole(self, *, sending: bool = True) -> ReplicaProcess:
        """Wait until all replicas are in the sync state set, and sends go on; the master."""
        deadline = now() + PATIENCE_S
        while True:
            try:
                master, in_sync = await self._group.state()
            except TurbopumpError:
                master, in_sync = None, set()
            if master is not None and len(in_sync) == REPLICAS:
                if sending:
                    await self._clients.steady(now() - STEADY_S)
                return master
            assert now() < deadline, f"not whole: master={master and master.host} {in_sync}"
            await asyncio.sleep(0.05)

    async def _continues(self, victim: ReplicaProcess) -> float:
        """Wait until sends go on without the victim; the moment."""
        begun = now()
        async with asyncio.timeout(PATIENCE_S):
            while await self._group.master() in (victim, None):
                await asyncio.sleep(0.05)
        await self._clients.steady(begun)
        return now()

    async def _kill(self, victim: ReplicaProcess) -> float:
        await victim.process.kill()
        mended = await self._continues(victim)
        await victim.process.start()
        return mended

    async def _freeze(self, victim: ReplicaProcess) -> float:
        victim.freeze()
        try:
            await asyncio.sleep(self._frozen_s)
            await self._continues(victim)
        finally:
            victim.thaw()
        return now()

    async def _cut(self, victim: ReplicaProcess) -> float:
        victim.cut_off()
        try:
            await asyncio.sleep(self._frozen_s)
            await self._continues(victim)
        finally:
            victim.mend()
        return now()

    async def _cut_power(self, victim: ReplicaProcess) -> float:
        await victim.cut_power()
        mended = await self._continues(victim)
        await victim.process.start()
        return mended

    async def _kill_controller(self, _: ReplicaProcess) -> float:
        await self._group.controller.kill()
        await asyncio.sleep(self._frozen_s)
        mended = now()
        await self._group.controller.start()
        return mended

    # --- the verdict

    async def _judge_round(self) -> None:
        """Everything that was acknowledged in this round is there, and all that was made."""
        latest = self.ledger.messages.sends[self._judged :]
        self._judged = len(self.ledger.messages.sends) - 10 * LANES
        # of those that are under way now, some are acknowledged while it is read
        sends = [send for send in latest if send.outcome is SendOutcome.ACKNOWLEDGED]
        first: dict[int, int] = {}
        for send in sends:
            assert send.queue is not None
            queue_id = send.queue.queue_id
            first[queue_id] = min(first.get(queue_id, send.offset), send.offset)
        read = len(self.ledger.facts.reads)
        found = await self._read_all(first)
        for send in sends:
            assert send.queue is not None
            instead = found.get((send.queue, send.offset))
            if instead != send.body:
                by = self.ledger.by[send]
                self.outcome.violations.append(f"lost {send} by {by}: there is {instead!r}")
        self.outcome.violations += map(str, self.ledger.facts.violations(read))

    async def _read_all(
        self, begin: dict[int, int], *, sending: bool = True
    ) -> dict[tuple[Queue, int], bytes]:
        """The messages from these offsets on; facts go to the ledger. All is read at one master,
        and again if another was elected meanwhile: a slave may be behind."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                master = await self._whole(sending=sending)
                with suppress(TurbopumpError):
                    found = await self._read(master, begin)
                    reads = await self._clients.operator.read_all(master)
                    if await self._group.master() is master:
                        self.ledger.facts.reads += reads
                        return found

    async def _read(
        self, master: ReplicaProcess, begin: dict[int, int]
    ) -> dict[tuple[Queue, int], bytes]:
        """The messages in each queue, from these offsets on."""
        found: dict[tuple[Queue, int], bytes] = {}
        for queue_id, first in begin.items():
            queue, offset, empty = Queue(TOPIC, BROKER, queue_id), first, 0
            while True:
                request = PullMessage(
                    consumer_group="auditors",
                    topic=TOPIC,
                    queue_id=queue_id,
                    queue_offset=offset,
                    max_msg_nums=1000,
                    sys_flag=PullSysFlag.SUBSCRIPTION,
                    subscription="*",
                    suspend_timeout_millis=0,
                    commit_offset=0,
                )
                answer = await self._reader.exchange(master.direct, request, timeout=10.0)
                for message in decode_entries(answer.body):
                    found[queue, message.queue_offset] = message.body
                reply = answer.header(PullMessageReply)
                # an empty answer before the end: permissions were reduced meanwhile, pull again
                empty = 0 if answer.body else empty + 1
                if reply.next_begin_offset >= reply.max_offset or empty > EMPTY_MAX:
                    break
                offset = reply.next_begin_offset
        return found

    async def _judge(self) -> None:
        """Read all at the master."""
        final = await self._read_all(dict.fromkeys(range(QUEUES), 0), sending=False)
        epochs = (await self._epochs(await self._whole(sending=False))).epoch_list
        for send, by in self.ledger.by.items():
            epoch = max(
                (one.epoch for one in epochs if one.start_offset <= by.log_offset), default=0
            )
            self.ledger.by[send] = by._replace(epoch=epoch)
        self.outcome.violations += map(str, self.ledger.violations(final))
        self.outcome.elections = max((one.epoch for one in epochs), default=0)

    async def _epochs(self, replica: ReplicaProcess) -> EpochCache:
        """The epochs and the log end of a replica, which may be opening its store again."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(TurbopumpError):
                    answer = await self._reader.exchange(
                        replica.direct, GetEpochCache(), timeout=10.0
                    )
                    if answer.code == ResponseCode.SUCCESS:
                        return fastjson.decode(answer.body, EpochCache)
                await asyncio.sleep(0.1)

    async def _compare_logs(self) -> None:
        """Wait until all logs end at one offset, and compare their bytes."""
        replicas = self._group.replicas
        async with asyncio.timeout(PATIENCE_S):
            while True:
                ends = [(await self._epochs(replica)).max_offset for replica in replicas]
                if len(set(ends)) == 1:
                    break
                await asyncio.sleep(0.1)
        for replica in replicas:
            replica.freeze()
        first, *others = replicas
        wanted = first.log_bytes()[: ends[0]]
        assert len(wanted) == ends[0]
        for replica in others:
            own = replica.log_bytes()[: ends[0]]
            if own != wanted:
                at = next(
                    n for n, pair in enumerate(zip(own, wanted, strict=False)) if len(set(pair)) > 1
                )
                self.outcome.violations.append(
                    f"differs: the log of {replica.host} from that of {first.host} at {at}"
                )
        for replica in replicas:
            replica.thaw()


async def campaign(
    home: Path,
    outcome: Outcome,
    rounds: int,
    *,
    frozen_s: float,
    rng: random.Random,
    attempt_timeout: float | None = None,
    settings: Mapping[str, object] = MappingProxyType({}),
    minutes: float | None = None,
    report: Callable[[str], None] = lambda _line: None,
) -> None:
    """Start a group below ``home``, and run a campaign on it. ``outcome`` names the fault, and is
    kept up to date. ``settings`` are further lines of each broker.conf."""
    fault = outcome.fault
    flush = "SYNC_FLUSH" if fault == "power-sync" else "ASYNC_FLUSH"
    lines = {"flushDiskType": flush, **settings}
    async with ReplicaGroup(home, lines, power=fault.startswith("power")) as group:
        faults = Campaign(
            group, outcome, frozen_s=frozen_s, rng=rng, attempt_timeout=attempt_timeout
        )
        await faults.run(rounds, report, minutes)


@click.command(help=__doc__)
@click.option("--fault", type=click.Choice(FAULTS), default="kill", show_default=True)
@click.option("--rounds", type=int, default=20, show_default=True)
@click.option("--minutes", type=float, help="No round begins after so many.")
@click.option("--frozen-s", type=float, default=30.0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--attempt-timeout", type=float, help="Seconds, of the producers' attempts.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Line of broker.conf.")
@click.option("--keep", type=click.Path(path_type=Path), help="Directory that is kept.")
def main(
    fault: str,
    rounds: int,
    minutes: float | None,
    frozen_s: float,
    seed: int,
    attempt_timeout: float | None,
    settings: tuple[str, ...],
    keep: Path | None,
) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    outcome = Outcome(fault)
    with tempfile.TemporaryDirectory(prefix="failover-") as directory:
        home = Path(directory)
        if keep is not None:
            home = keep
            home.mkdir(parents=True)
        try:
            asyncio.run(
                campaign(
                    home,
                    outcome,
                    rounds,
                    frozen_s=frozen_s,
                    rng=random.Random(seed),
                    attempt_timeout=attempt_timeout,
                    minutes=minutes,
                    settings=dict(setting.split("=", 1) for setting in settings),
                    report=lambda line: print(line, flush=True),
                )
            )
        finally:
            print(outcome)
            for cause, count in outcome.refusals.most_common(12):
                print(f"  {count} x {cause}")
            for violation in outcome.violations[:20]:
                print(violation, flush=True)
    sys.exit(1 if outcome.violations else 0)


if __name__ == "__main__":
    main()
