"""Members that are processes join, leave and are killed under load: nothing is lost, what comes
again was in flight, order is kept, and soon every queue has its owner."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.crash.broker_process import NAME, BrokerProcess
from tests.crash.group_member import LATE_S
from tests.crash.group_members import PATIENCE_S, Change, Event, Group, Member
from tests.crash.load import TOPIC, Load
from tests.handlers_in_order import HandlersInOrder
from tests.simulation.world.ledger import Queue

from turbopump.errors import ResponseError
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.offsets import QueryConsumerOffset
from turbopump.remoting.client import RemotingClient

QUEUES = 8
SETTLED_S = 2.0
"""In full; a sample runs beside other tests, and may take ten times as long."""
LOCKED_S = 60.0
"""A lock that nobody gives back or renews: from the last grant, which was before the kill."""
PAUSE_S = 0.08
"""Of each of the lanes after each message, on average: half of what the ordered group could
handle."""


class Broker:
    """A broker's process, asked all the time: how long it, or we, were held up."""

    def __init__(self, process: BrokerProcess) -> None:
        self.process = process
        self.late: list[tuple[float, float]] = []
        self._client = RemotingClient()

    async def told(self, group: str) -> dict[int, int]:
        """Up to where each queue is done for a group."""
        return dict(
            zip(
                range(QUEUES),
                await asyncio.gather(*(self._told(group, queue) for queue in range(QUEUES))),
                strict=True,
            )
        )

    async def _told(self, group: str, queue: int) -> int:
        try:
            reply = await self._client.call(
                self.process.address,
                QueryConsumerOffset(consumer_group=group, topic=TOPIC, queue_id=queue),
                timeout=PATIENCE_S,
            )
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return 0
            raise
        return reply.offset

    async def watch(self) -> None:
        while True:
            asked = time.monotonic()
            await asyncio.sleep(0.02)
            await self._told("nobody", 0)
            if time.monotonic() > asked + 0.02 + LATE_S:
                self.late.append((asked, time.monotonic()))

    async def close(self) -> None:
        await self._client.close()


def draw(rng: random.Random, rounds: int) -> list[str]:
    """What happens to a group that begins with two members and never has fewer, nor more than
    four."""
    members, drawn = 2, list[str]()
    for _ in range(rounds):
        joins = members == 2 or (members < 4 and rng.random() < 0.5)
        drawn.append("join" if joins else rng.choice(("leave", "kill")))
        members += 1 if joins else -1
    return drawn


async def rebalanced(
    home: Path, rng: random.Random, full: bool
) -> tuple[Load, list[Group], list[tuple[float, float]]]:
    """Two groups through their changes, and when the machine was held up."""
    async with AsyncExitStack() as stack:
        process = await stack.enter_async_context(BrokerProcess(home / "home", home / "store", {}))
        await process.start()
        await process.create_topic(TOPIC, QUEUES)
        broker = Broker(process)
        stack.push_async_callback(broker.close)
        groups = [
            Group(name, TOPIC, QUEUES, name == "ordered", process.namesrv, home, broker.told)
            for name in ("concurrent", "ordered")
        ]
        for group in groups:
            stack.push_async_callback(group.end)
        chances = [random.Random(rng.random()) for _ in groups]
        plans = (
            [draw(chance, 20) for chance in chances]
            if full
            else [["join", "kill"], ["join", "leave"]]
        )
        watching = asyncio.create_task(broker.watch())
        load = Load(
            process.namesrv,
            rng,
            producers=2,
            queues=QUEUES,
            groups=(),
            body_size_max=1,
            pause_s=PAUSE_S,
        )
        await load.start()
        stack.push_async_callback(load.stop)
        load.resume()
        await asyncio.gather(*(group.start(2) for group in groups))
        for kinds in zip(*plans, strict=True):
            await load.until(load.acknowledged + (200 if full else 40))
            load.ledger.disturbance()
            await asyncio.gather(
                *(
                    group.change(kind, chance)
                    for group, kind, chance in zip(groups, kinds, chances, strict=True)
                )
            )
        await load.until(load.acknowledged + 40)
        await load.drain()
        wanted = {send.body for send in load.ledger.acknowledged}
        await asyncio.gather(
            *(group.until_seen(wanted, 2 * PATIENCE_S + LOCKED_S) for group in groups)
        )
        watching.cancel()
    return load, groups, [*broker.late, *(late for group in groups for late in group.late())]


def disorder(group: Group) -> list[str]:
    """What handlers of an ordered group should not have done."""
    watch = HandlersInOrder()
    kills = [(change.gone, change.member) for change in group.changes if change.kind == "kill"]
    for member in group.lives.values():
        member.alive = True
    for event in sorted(group.events):
        for _, name in [kill for kill in kills if kill[0] < event.at]:
            group.lives[name].alive = False
        if event.what == "begin":
            watch.begin(int(event.words[0]), int(event.words[1]), group.lives[event.member])
        elif event.what == "end":
            watch.end(
                int(event.words[0]), int(event.words[1]), group.lives[event.member], good=True
            )
    return watch.wrong


def undisturbed(
    times: list[tuple[float, float]], held_up: list[tuple[float, float]], before: float
) -> list[float]:
    """Those of these durations, each with the time of its end, during which (and ``before`` it, at
    most so long) nobody was held up."""
    return [
        took
        for end, took in times
        if not any(
            until > end - min(took, before) - LATE_S and since < end for since, until in held_up
        )
    ]


def test_nothing_is_lost_and_order_is_kept_while_members_join_leave_and_are_killed(
    tmp_path: Path, rng: random.Random, full: bool, measured: Callable[[str], None]
) -> None:
    """A time during which a process was held up for a quarter of a second, or the broker's answer
    was, is reported and not judged."""
    load, groups, held_up = asyncio.run(rebalanced(tmp_path, rng, full))
    for group in groups:
        for event in sorted(group.events):
            if event.what == "begin":
                place = Queue(TOPIC, NAME, int(event.words[0]))
                load.ledger.delivered(
                    group.name,
                    event.member,
                    place,
                    int(event.words[1]),
                    bytes.fromhex(event.words[2]),
                )
        notices = [event for event in group.events if event.what == "notice"]
        assert len(notices) >= len(group.changes) - 1, "members do not journal the broker's notices"
        settling, inheriting = group.settling(), group.inherited
        judged, inherited = undisturbed(settling, held_up, 60), undisturbed(inheriting, held_up, 3)
        again, wrong = group.repeated()
        kinds = Counter(change.kind for change in group.changes)
        measured(
            f"{group.name}: {kinds['join']} joined, {kinds['leave']} left, {kinds['kill']} "
            f"killed; {load.acknowledged:,} acknowledged, "
            f"{len(load.ledger.missing(group.name))} lost, {again} came again, {len(wrong)} of "
            "them had not been in flight; "
            f"settled {max((took for _, took in settling), default=0):.2f} s after the notice at "
            "most, "
            f"{max(judged, default=0):.2f} s in the {len(judged)} of {len(settling)} cases in "
            "which nothing was held up"
            + (
                f"; {len(inheriting)} locked queues of the killed had an owner again after "
                f"{max(took for _, took in inheriting):.1f} s at most"
                if inheriting
                else ""
            )
        )
        assert wrong == []
        settled_s = SETTLED_S if full else 10 * SETTLED_S
        assert max(judged, default=0.0) <= settled_s
        assert max(inherited, default=0.0) <= LOCKED_S + settled_s
        assert not group.ordered or disorder(group) == []
    assert load.ledger.violations(["concurrent"], ordered=["ordered"]) == []


def make_group(tmp_path: Path, told: Any, kind: str, known: int, *, ordered: bool) -> Group:
    made = Group("g", TOPIC, 1, ordered, "", tmp_path, told)
    made.lives = {name: Member(name, tmp_path / name, []) for name in ("a", "b")}
    made.changes = [
        Change("start", "", 0.0, {}, ["a"]),
        Change(kind, "a", 2.0, {0: known}, ["b"], gone=2.1),
    ]
    made.events = [
        *(
            Event(0.5, "a", "queues", ["0"]),
            Event(1.0, "a", "begin", ["0", "0", "00"]),
            Event(1.1, "a", "end", ["0", "0"]),
        ),
        *(Event(1.2, "a", "begin", ["0", "1", "01"]), Event(3.0, "b", "queues", ["0"])),
        *(Event(3.1, "b", "begin", ["0", "0", "00"]), Event(3.2, "b", "end", ["0", "0"])),
    ]
    return made


def test_what_comes_again_and_was_not_in_flight_is_found_out(tmp_path: Path) -> None:
    """The control: a group's journals, made by hand, in which a message comes again after the
    broker was told that it is done, or although nobody was killed, or at two members at once."""

    async def told(_group: str) -> dict[int, int]:
        return {}

    for kind, known, ordered, again, disordered in (
        ("kill", 0, True, 0, 0),
        ("kill", 1, True, 1, 0),
        ("leave", 0, True, 1, 1),
        ("leave", 0, False, 0, 1),
        ("leave", 1, False, 1, 1),
    ):
        one = make_group(tmp_path, told, kind, known, ordered=ordered)
        count, wrong = one.repeated()
        assert (count, len(wrong), len(disorder(one))) == (1, again, disordered)
