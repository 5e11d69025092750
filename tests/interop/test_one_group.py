"""Java's, Go's, C++'s and Node's push consumers, each in one group together with ours: they divide
the queues, every message is handled, what one fails comes again at the other, and what fails again
is a dead letter.

All peers at once, each in a group of its own. Messages go out in rounds until a round shows what is
waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.interop.apache import properties_text
from tests.interop.members import BESIDE, Deliveries, foreign_member, our_member
from tests.interop.our_clients import (
    PATIENCE_SECONDS,
    eventually,
    letter,
    make_groups,
    make_topics,
    numbers,
    patient_producer,
    read_all,
)
from tests.interop.our_servers import PATIENT_BROKER, turbopump_broker
from tests.interop.tools import skipping_without_tools
from tests.ports import free_ports
from tests.stand_ins import returns

from turbopump import Message, Producer, PullConsumer
from turbopump.protocol.requests.groups import SubscriptionGroupConfig

QUEUES = 4  # as make_topics makes them
# of which every fifth fails once, every fifth twice, every fifth is delayed, in each of the queues
ROUND = 20
LEVELS = "1s 1s 1s 1s 1s 1s"
NODE = "node-2.0.1"
CPP = "cpp-0.4.4"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[str]]]:
    """Peer -> its run."""
    directory = tmp_path_factory.mktemp("one-group")
    conf = directory / "broker.conf"
    settings = {
        "listenPort": free_ports(-2, 0),
        "storePathRootDir": str(directory / "store"),
        "messageDelayLevel": LEVELS,
    }
    conf.write_text(properties_text({**PATIENT_BROKER, **settings}))
    with turbopump_broker(directory, conf) as ours, ThreadPoolExecutor(len(BESIDE)) as pool:
        yield {
            peer: pool.submit(run, peer, ours.namesrv, ours.broker, directory / peer)
            for peer in BESIDE
        }
        pool.shutdown()
    assert " ERROR " not in ours.log(), ours.log()[-3000:]


@pytest.mark.parametrize("peer", BESIDE)
def test_a_group_of_theirs_and_ours_divides_the_queues_and_retries_one_another_s_failures(
    peer: str, runs: dict[str, Future[str]], summary: list[str]
) -> None:
    with skipping_without_tools():
        detail = runs[peer].result()
    summary.append(f"{peer:26} {'beside ours':20} {detail}")


def run(peer: str, namesrv: str, broker: str, directory: Path) -> str:
    directory.mkdir(parents=True)
    command = BESIDE[peer]()
    started = time.monotonic()
    detail = asyncio.run(story(peer, command, namesrv, broker, directory))
    return f"{time.monotonic() - started:6.1f} s  {detail}"


async def story(peer: str, command: list[str], namesrv: str, broker: str, directory: Path) -> str:
    topic = group = f"beside-{peer.replace('.', '-')}"
    deliveries = Deliveries()
    await make_topics(namesrv, broker, topic)
    await make_groups(broker, SubscriptionGroupConfig(group_name=group, retry_max_times=1))
    # The one queue of the group's retry topic goes to the member with the first id. Node's client
    # gets it, too, and does not read it.
    early, late = "0.0.0.1", "0.0.0.2" if peer == NODE else "99.0.0.1"
    async with patient_producer(namesrv) as producer:
        rounds = Rounds(producer, topic, deliveries, failures_alone=peer == CPP)
        async with our_member(deliveries, early, namesrv, topic, group) as first:
            await rounds.until(returns(True), plain=True)
            said = lambda words: deliveries.read(peer, words)  # noqa: E731
            async with foreign_member(
                peer, command, namesrv, topic, group, directory=directory, said=said
            ) as stop_theirs:
                both = (early, peer)
                await rounds.until(
                    lambda last: (
                        deliveries.shared(last, both)
                        and (peer == NODE or deliveries.crossed(peer, early))
                    )
                )
                async with our_member(deliveries, late, namesrv, topic, group):
                    await first.close()
                    others = (peer, late)
                    await rounds.until(
                        lambda last: (
                            deliveries.shared(last, others)
                            and (peer == NODE or deliveries.crossed(late, peer))
                        )
                    )
                    await stop_theirs()
                    await rounds.until(lambda last: deliveries.shared(last, (late,)), plain=True)
    assert {one.topic for one in deliveries.all} == {topic}, (
        "what comes again has the topic that it was sent to"
    )
    wanted = deliveries.dead()
    async with PullConsumer(namesrv, group="undertaker") as reader:
        dead = await read_all(reader, f"%DLQ%{group}", len(wanted))
    assert set(numbers(dead)) == wanted
    for message in dead:
        sent = rounds.sent[numbers([message])[0]]
        assert (message.body, message.tags, message.keys) == (sent.body, sent.tags, sent.keys)
        assert message.properties["RETRY_TOPIC"] == topic
    theirs = sum(one.who == peer for one in deliveries.all)
    return (
        f"{len(rounds.sent)} messages, {theirs} of {len(deliveries.all)} deliveries theirs, "
        f"{len(wanted)} dead letters"
    )


class Rounds:
    """Messages numbered from 0, ``ROUND`` at a time. ``failures_alone``: one that is to fail is
    sent when all before it has been handled, and is waited for: the C++ client sends back with it
    whatever it pulled together with it, and may make that a dead letter which no handler saw.
    """

    def __init__(
        self, producer: Producer, topic: str, deliveries: Deliveries, *, failures_alone: bool
    ) -> None:
        self.sent: list[Message] = []
        self._producer = producer
        self._topic = topic
        self._deliveries = deliveries
        self._failures_alone = failures_alone

    async def until(self, shown: Callable[[range], bool], *, plain: bool = False) -> None:
        """Send rounds, each when all before has been handled, until ``shown`` is true of the
        numbers of the last one. ``plain``: none fails or is delayed.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        queues = await self._producer.publish_queues(self._topic)
        assert len(queues) == QUEUES
        while True:
            last = range(len(self.sent), len(self.sent) + ROUND)
            for number in last:
                fails = 0 if plain else self._failures_of(number)
                if fails and self._failures_alone:
                    await self._all_handled()
                self.sent.append(
                    special_letter(
                        self._topic, number, fails, delayed=number % 5 == 4 and not plain
                    )
                )
                await self._producer.send(self.sent[-1], queue=queues[number % QUEUES])
                if fails and self._failures_alone:
                    await self._all_handled()
            await self._all_handled()
            if shown(last):
                return
            assert time.monotonic() < deadline, (
                f"in no round was it so; the last deliveries: {self._deliveries.all[-30:]}"
            )

    def _failures_of(self, number: int) -> int:
        if self._failures_alone:
            return {1: 1, 11: 2}.get(number % ROUND, 0)
        return {1: 1, 3: 2}.get(number % 5, 0)

    async def _all_handled(self) -> None:
        await eventually(
            lambda: (
                f"also handled are {sorted(set(range(len(self.sent))) - self._deliveries.done())}"
            ),
            lambda: len(self._deliveries.done()) == len(self.sent),
        )


def special_letter(topic: str, number: int, fails: int, *, delayed: bool) -> Message:
    special = letter(topic, number, delay_level=int(delayed))
    return special.with_property("fails", str(fails)) if fails else special
