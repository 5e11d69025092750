"""`python -m bench.failover --side apache`: for how long three replicas acknowledge no send.

They are under one controller, and of one side or mixed. Each of them is sent a small message each
10 ms, so that a gap shows the servers' part alone: no client's route is involved. A round makes a
fault, waits for the next acknowledged send, mends the fault, and waits until all three are in the
sync state set again. At the end every acknowledged message is looked for on the master.

Faults: `kill` (kill -9 of the master), `freeze` (SIGSTOP of the master for --frozen-s), `slave`
(kill -9 of a slave), `slave-freeze`; `topics` (kill -9 of the master just after it answered that a
topic, a group and an offset were made).

Exit status 1: acknowledged messages were lost, or two masters acknowledged at a time.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

import click
from tests.interop.replica_groups import APACHE, BROKER_NAME, OURS, ReplicaGroup

from bench.table import plain_table

SENDS, PULLS, ELECT, REPLICA_INFO = 310, 11, 1002, 1004
CREATE_TOPIC, CREATE_GROUP, COMMIT, OFFSET = 17, 200, 15, 14
TOPIC_CONFIG, GROUP_CONFIG = 351, 352
TOPIC, GROUP = "failover", "failover-group"
EVERY_S: Final = 0.01
ANSWER_S: Final = 1.0
"""Deadline of a send to one replica; a frozen one does not answer."""
PATIENCE_S: Final = 60.0
FAULTS = ("kill", "freeze", "slave", "slave-freeze", "topics")
Fields = dict[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered."""

    code: int
    remark: str
    fields: Fields
    body: bytes


class Link:
    """A connection to one server, opened again after an error; one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._opaques = count(1)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(
        self, code: int, fields: Fields, body: bytes = b"", timeout: float = ANSWER_S
    ) -> Answer:
        """Raises OSError, also when there is no answer in time."""
        try:
            async with asyncio.timeout(timeout):
                return await self._ask(code, fields, body)
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            raise OSError(str(error) or type(error).__name__) from error

    async def _ask(self, code: int, fields: Fields, body: bytes) -> Answer:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        opaque = next(self._opaques)
        command = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA"}
        header = json.dumps({**command, "opaque": opaque, "version": 479}).encode()
        sizes = struct.pack(">II", 4 + len(header) + len(body), len(header))
        writer.write(sizes + header + body)
        while True:
            size, header_size = struct.unpack(">II", await reader.readexactly(8))
            header_size &= 0xFFFFFF
            reply = json.loads(await reader.readexactly(header_size))
            answered = await reader.readexactly(size - 4 - header_size)
            if reply["flag"] & 1 and reply["opaque"] == opaque:
                remark, extra = reply.get("remark") or "", reply.get("extFields") or {}
                return Answer(reply["code"], remark, extra, answered)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


def send_fields(topic: str) -> Fields:
    """Of a message to the first queue."""
    fields = {"a": "failover-producer", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0"}
    key = f"UNIQ_KEY\x01{time.time_ns():032X}\x02WAIT\x01true\x02"
    more = {"g": str(time.time_ns() // 1_000_000), "h": "0", "i": key, "j": "0"}
    return {**fields, **more, "k": "false", "m": "false"}


@dataclass(slots=True)
class Probes:
    """A sender for each replica, and what was acknowledged: (time, replica, number)."""

    group: ReplicaGroup
    acknowledged: list[tuple[float, int, int]] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    _numbers: count[int] = field(default_factory=lambda: count(1))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for index in range(len(self.group.ports)):
                tasks.create_task(self._send_to(index))

    async def _send_to(self, index: int) -> None:
        link = Link(self.group.ports[index])
        while True:
            number = next(self._numbers)
            try:
                answer = await link.ask(SENDS, send_fields(TOPIC), b"#%d#" % number)
            except OSError:
                await asyncio.sleep(EVERY_S)
                continue
            if answer.code == 0:
                # a slave of ours passes sends on: the id has the port of who stored it
                stored_by = self.group.ports.index(int(answer.fields["msgId"][8:16], 16))
                self.acknowledged.append((time.monotonic(), stored_by, number))
            else:
                self.refusals[f"{answer.code} {answer.remark[:60]}"] += 1
            await asyncio.sleep(EVERY_S)

    async def next_after(self, moment: float) -> float:
        """The time of the first acknowledgement after a moment."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.acknowledged or self.acknowledged[-1][0] <= moment:
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing was acknowledged in {PATIENCE_S} s: {self.refusals}")
            await asyncio.sleep(EVERY_S / 2)
        return next(at for at, _, _ in self.acknowledged if at > moment)

    def gap_over(self, moment: float) -> float:
        """Seconds between the last acknowledgement before a moment and the first one after."""
        before = max(at for at, _, _ in self.acknowledged if at <= moment)
        return next(at for at, _, _ in self.acknowledged if at > moment) - before

    def longest_gap(self, since: float) -> float:
        """The longest time between two acknowledgements since a moment."""
        times = [at for at, _, _ in self.acknowledged if at >= since]
        pairs = zip([since, *times], times, strict=False)
        return max((late - early for early, late in pairs), default=0.0)

    def masters_that_came_back(self) -> int:
        """How often a replica acknowledged a send after another one had, which acknowledged again
        later: two masters at a time."""
        turns = [self.acknowledged[0]]
        for one in self.acknowledged:
            if one[1] != turns[-1][1]:
                turns.append(one)
        return sum(
            1
            for first, second, third in zip(turns, turns[1:], turns[2:], strict=False)
            if first[1] == third[1] and third[0] - second[0] < 1.0
        )


class Failover:
    """A running group, and what a round needs of it."""

    def __init__(self, group: ReplicaGroup, probes: Probes, frozen_s: float) -> None:
        self.group = group
        self.probes = probes
        self.frozen_s = frozen_s
        self.gone: Counter[str] = Counter()
        self._controller = Link(group.controller_ports[0])

    async def state(self) -> tuple[int | None, int, list[int]]:
        """The master's index, its epoch, and the ids in the sync state set."""
        asked: Fields = {"brokerName": BROKER_NAME}
        answer = await self._controller.ask(REPLICA_INFO, asked, timeout=5.0)
        if answer.code != 0:
            raise OSError(answer.remark)
        address = answer.fields.get("masterAddress")
        master = self.group.index_of(address) if address else None
        return master, int(answer.fields["masterEpoch"]), json.loads(answer.body)["syncStateSet"]

    async def whole(self) -> int:
        """Wait until all replicas are in the sync state set and a send is acknowledged; the index
        of the master."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with suppress(OSError):
                master, _, in_sync = await self.state()
                if master is not None and len(in_sync) == len(self.group.ports):
                    await self.probes.next_after(time.monotonic())
                    return master
            await asyncio.sleep(0.05)
        raise TimeoutError(
            f"not all replicas are in sync: {await self.state()}\n{self.group.tails()}"
        )

    async def kill(self) -> float:
        return await self._kill(await self.whole())

    async def slave(self) -> float:
        return await self._kill((await self.whole() + 1) % len(self.group.ports))

    async def _kill(self, index: int) -> float:
        replica = self.group.replicas[index]
        moment = time.monotonic()
        replica.kill()
        await self.probes.next_after(moment + 0.05)
        gap = await self._settled(moment)
        replica.start()
        return gap

    async def _settled(self, moment: float) -> float:
        """The longest gap since a moment, once sends have gone on for three seconds."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            since = time.monotonic()
            await asyncio.sleep(3.0)
            if self.probes.longest_gap(since) < 1.0 and self.probes.acknowledged[-1][0] > since:
                return self.probes.longest_gap(moment)
            assert time.monotonic() < deadline, self.probes.refusals

    async def freeze(self) -> float:
        return await self._freeze(await self.whole())

    async def slave_freeze(self) -> float:
        return await self._freeze((await self.whole() + 1) % len(self.group.ports))

    async def _freeze(self, index: int) -> float:
        replica = self.group.replicas[index]
        moment = time.monotonic()
        replica.freeze()
        try:
            await asyncio.sleep(self.frozen_s)
            gap = self.probes.longest_gap(moment)
            still = time.monotonic() - self.probes.acknowledged[-1][0]
        finally:
            replica.thaw()
        return max(gap, still)

    async def topics(self) -> float:
        """Have a topic, a group and an offset made, and kill the master when it has answered."""
        master = await self.whole()
        name = f"made-{time.time_ns()}"
        link = Link(self.group.ports[master])
        topic = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "1", "order": "false"}
        topic |= {"writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"}
        made = await link.ask(CREATE_TOPIC, {**topic, "topicSysFlag": "0"}, timeout=10.0)
        body = json.dumps({"groupName": name, "consumeEnable": True}).encode()
        grouped = await link.ask(CREATE_GROUP, {}, body, timeout=10.0)
        offset = {"consumerGroup": name, "topic": TOPIC, "queueId": "0"}
        committed = await link.ask(COMMIT, {**offset, "commitOffset": "7"}, timeout=10.0)
        gap = await self._kill(master)
        now, _, _ = await self.state()
        assert now is not None
        asked = Link(self.group.ports[now])
        if made.code == 0 and (await asked.ask(TOPIC_CONFIG, {"topic": name})).code != 0:
            self.gone["topics"] += 1
        if grouped.code == 0 and (await asked.ask(GROUP_CONFIG, {"group": name})).code != 0:
            self.gone["groups"] += 1
        kept = await asked.ask(OFFSET, offset)
        if committed.code == 0 and kept.fields.get("offset") != "7":
            self.gone["offsets"] += 1
        return gap

    async def lost(self) -> list[int]:
        """Numbers that were acknowledged and are not on the master."""
        link = Link(self.group.ports[await self.whole()])
        wanted = {number for _, _, number in list(self.probes.acknowledged)}
        found: set[int] = set()
        offset = 0
        while True:
            fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "sysFlag": "4"}
            fields |= {"queueOffset": str(offset), "maxMsgNums": "1024", "commitOffset": "0"}
            fields |= {"suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
            answer = await link.ask(PULLS, fields, timeout=10.0)
            found |= {int(number) for number in re.findall(rb"#(\d+)#", answer.body)}
            following = int(answer.fields["nextBeginOffset"])
            if following <= offset or wanted <= found:
                return sorted(wanted - found)
            offset = following


async def measure(
    group: ReplicaGroup, fault: str, rounds: int, frozen_s: float
) -> tuple[Failover, list[float], list[int]]:
    """The group, the gap of each round, and the lost numbers."""
    probes = Probes(group)
    failover = Failover(group, probes, frozen_s)
    make: Callable[[], Awaitable[float]] = getattr(failover, fault.replace("-", "_"))
    sending = asyncio.create_task(probes.run())
    gaps: list[float] = []
    for number in range(rounds):
        gaps.append(await make())
        print(f"round {number + 1}: {gaps[-1]:.3f} s  {dict(failover.gone)}", flush=True)
    lost = await failover.lost()
    sending.cancel()
    return failover, gaps, lost


def percentile(values: list[float], share: float) -> float:
    """The nearest value at or above this share of them."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


@click.command(help=__doc__)
@click.option("--side", type=click.Choice([APACHE, OURS]), default=OURS, show_default=True)
@click.option("--controller", type=click.Choice([APACHE, OURS]), help="Another side's controller.")
@click.option("--guests", type=int, default=0, help="So many brokers of the other side, from 3.")
@click.option("--fault", type=click.Choice(FAULTS), default="kill", show_default=True)
@click.option("--rounds", type=int, default=20, show_default=True)
@click.option("--frozen-s", type=float, default=30.0, show_default=True)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Line of broker.conf.")
def main(
    side: str,
    controller: str | None,
    guests: int,
    fault: str,
    rounds: int,
    frozen_s: float,
    settings: tuple[str, ...],
) -> None:
    other = {APACHE: OURS, OURS: APACHE}[side]
    brokers = [side] * (3 - guests) + [other] * guests
    more = dict(setting.split("=", 1) for setting in settings)
    with (
        tempfile.TemporaryDirectory(prefix="failover-") as directory,
        ReplicaGroup(
            Path(directory), brokers, controller=controller or side, settings=more
        ) as group,
    ):
        failover, gaps, lost = asyncio.run(measure(group, fault, rounds, frozen_s))
    probes = failover.probes
    doubles = probes.masters_that_came_back()
    row = {
        "side": side,
        "fault": fault,
        "rounds": str(rounds),
        "p50": f"{statistics.median(gaps):.2f} s",
        "p99": f"{percentile(gaps, 0.99):.2f} s",
        "max": f"{max(gaps):.2f} s",
        "acknowledged": str(len(probes.acknowledged)),
        "lost": str(len(lost)),
        "double": str(doubles),
        **{f"{what} gone": str(number) for what, number in failover.gone.items()},
    }
    print(plain_table(list(row), [list(row.values())]))
    print("refused:", dict(probes.refusals.most_common(6)))
    if lost:
        print("lost:", lost[:20])
    sys.exit(1 if lost or doubles else 0)


if __name__ == "__main__":
    main()
