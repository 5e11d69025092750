"""Ordered consumption in one group of Java's, Go's, C++'s and our consumers on our broker, of ours
on Apache's; broadcasting both ways, and the file of offsets that Java's broadcasting client leaves
to ours, and ours to Java's.

Every member says when a handler begins and ends, on the clock of this machine; what they say is
judged together.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.interop.apache import NEWEST, NEWEST_4, ApacheCluster
from tests.interop.foreign import CLIENTS, cpp_client, go_client, java_client
from tests.interop.members import foreign_member, node_program
from tests.interop.our_clients import eventually, make_topics, patient_producer
from tests.interop.our_servers import OurServers, patient_turbopump
from tests.interop.patient_apache import patient_apache
from tests.interop.tools import skipping_without_tools
from tests.loops import in_loop

from turbopump import ConsumeFrom, MessageQueue, PushConsumer
from turbopump.client.consumer.delivery import Delivery, Retry

QUEUES = 4  # as make_topics makes them
Event = tuple[int, int, int, str, str]
"""Milliseconds; 0 for an end, 1 for a beginning; queue; what ("B", "E", "F") with its offset after
it; who."""

JAVA = {
    version: (lambda version=version: java_client(version, program="Ordering"))
    for version in ("5.3.3", "4.9.8")
}
CPP = "cpp-0.4.4"  # of its locks it gives one back when it ends; the others are free a minute later
OTHERS: dict[str, Callable[[], list[str]]] = {
    "go-2.1.2": partial(go_client, "ordering"),
    CPP: lambda: [cpp_client()[0], str(CLIENTS / "cpp" / "ordering.py")],
    "node-2.0.1": partial(node_program, "broadcast.js"),
}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServers]:
    with patient_turbopump(tmp_path_factory.mktemp("turbopump")) as servers:
        yield servers


@pytest.fixture(scope="module", params=[NEWEST, NEWEST_4])
def apache(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheCluster]:
    with patient_apache(request.param, tmp_path_factory.mktemp(request.param)) as cluster:
        yield cluster


class Record:
    """What every member said."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def note(self, what: str, queue: int, offset: int, milliseconds: int, who: str) -> None:
        self.events.append((milliseconds, int(what == "B"), queue, f"{what} {offset}", who))

    def succeeded(self, who: str | None = None) -> set[tuple[int, int]]:
        """Queue and offset of every message that was handled."""
        return {
            (queue, int(what[2:]))
            for _, _, queue, what, name in self.events
            if what[0] == "E" and who in (None, name)
        }

    def members(self) -> set[str]:
        return {who for *_, who in self.events}

    def check_order(self) -> None:
        """Per queue: no handler beside another, none begins before the message ahead has succeeded,
        none is passed over."""
        by_queue: dict[int, list[Event]] = defaultdict(list)
        for event in sorted(self.events, key=lambda event: event[:2]):
            by_queue[event[2]].append(event)
        for queue, events in by_queue.items():
            running: dict[str, str] = {}
            done, last = {-1}, -1
            for _, _, _, what, who in events:
                offset = int(what[2:])
                if what[0] == "B":
                    assert not running, f"queue {queue}: {what} at {who} while {running}"
                    assert offset - 1 in done, (
                        f"queue {queue}: {what} at {who} before the one ahead"
                    )
                    assert offset <= last + 1, f"queue {queue}: {what} at {who} after {last}"
                    running[who], last = what, offset
                else:
                    del running[who]
                    if what[0] == "E":
                        done.add(offset)


def said(name: str, record: Record, words: list[str]) -> None:
    if len(words) == 4 and words[0] in "BEF":
        record.note(words[0], int(words[1]), int(words[2]), int(words[3]), name)


@asynccontextmanager
async def foreign(
    record: Record, name: str, command: Sequence[str], *arguments: str, directory: Path
) -> Iterator[Callable[[], Awaitable[None]]]:
    """A foreign member; what is given stops it, which the end of the block does too."""

    async with foreign_member(
        name, command, *arguments, directory=directory, said=partial(said, name, record)
    ) as stop:
        yield stop


def now() -> int:
    return time.time_ns() // 1_000_000


async def note_and_retry_and_pause(
    failed: set[tuple[int, int]], name: str, record: Record, message: Delivery
) -> Retry | None:
    place = message.queue_id, message.queue_offset
    record.note("B", *place, now(), name)
    await asyncio.sleep(0.005)
    bad = message.queue_offset % 10 == 3 and place not in failed
    if bad:
        failed.add(place)
    record.note("F" if bad else "E", *place, now(), name)
    return Retry() if bad else None


def our_member(record: Record, name: str, namesrv: str, topic: str, group: str) -> PushConsumer:
    failed: set[tuple[int, int]] = set()

    return PushConsumer(
        namesrv,
        group=group,
        topic=topic,
        handler=partial(note_and_retry_and_pause, failed, name, record),
        ordered=True,
        suspend_time=0.05,
        consume_from=ConsumeFrom.FIRST,
        instance_name=f"ordering-{name}",
    )


async def send(
    namesrv: str,
    topic: str,
    record: Record,
    *,
    first: int = 0,
    count: int = 60,
    pause: float = 0.05,
) -> None:
    """``count`` messages to each queue, one after the other; returns when all have been handled."""
    async with patient_producer(namesrv) as producer:
        queues = await producer.publish_queues(topic)
        assert len(queues) == QUEUES
        for number in range(first, first + count):
            for queue in queues:
                await producer.send(topic, f"{queue.queue_id}-{number}", queue=queue)
            await asyncio.sleep(pause)
    wanted = {(queue, n) for queue in range(QUEUES) for n in range(first + count)}
    await eventually(
        lambda: f"{len(wanted - record.succeeded())} more messages are handled",
        lambda: record.succeeded() >= wanted,
    )


async def take_over_and_give_back(
    servers: OurServers,
    peer: str,
    command: list[str],
    topic: str,
    group: str,
    record: Record,
    directory: Path,
) -> None:
    await make_topics(servers.namesrv, servers.broker, topic)
    arguments = (servers.namesrv, topic, group, "ordered")
    async with foreign(record, peer, command, *arguments, directory=directory) as stop_theirs:
        await send(servers.namesrv, topic, record, count=20)
        assert record.members() == {peer}
        # queues go over to us
        async with our_member(record, "ours", servers.namesrv, topic, group) as member:
            await eventually("our share of the queues", lambda: len(member.queues) == QUEUES // 2)
            await send(servers.namesrv, topic, record, first=20, count=40)
            if peer == CPP:
                await member.close()
                await send(servers.namesrv, topic, record, first=60, count=40)
                return
            await stop_theirs()  # and all of them
            await send(servers.namesrv, topic, record, first=60, count=20)
            assert len(member.queues) == QUEUES
            async with foreign(record, f"{peer}-again", command, *arguments, directory=directory):
                await eventually(
                    "their share of the queues", lambda: len(member.queues) == QUEUES // 2
                )
                await member.close()
                await send(servers.namesrv, topic, record, first=80, count=20)


@pytest.mark.parametrize("peer", ["java-5.3.3", "java-4.9.8", "go-2.1.2", CPP])
def test_an_ordered_group_of_theirs_and_ours_on_our_broker(
    peer: str, ours: OurServers, tmp_path: Path, summary: list[str]
) -> None:
    with skipping_without_tools():
        command = OTHERS[peer]() if peer in OTHERS else JAVA[peer.removeprefix("java-")]()
    topic, group = f"ordered-{peer.replace('.', '-')}", f"ordering-{peer.replace('.', '-')}"
    record = Record()
    began = time.monotonic()

    arguments = (ours, peer, command, topic, group, record, tmp_path)
    asyncio.run(take_over_and_give_back(*arguments))
    record.check_order()
    assert record.members() == {peer, "ours"} | (set() if peer == CPP else {f"{peer}-again"})
    again = sum(what[0] == "E" for _, _, _, what, _ in record.events) - len(record.succeeded())
    summary.append(
        f"{peer:26} {'ordered, with ours':20} {time.monotonic() - began:6.1f} s  "
        f"{again} handled twice"
    )


@in_loop
async def test_an_ordered_group_of_ours_on_apaches_broker(apache: ApacheCluster) -> None:
    record = Record()
    topic, group = "ordered-by-us", "ordering-by-us"
    await make_topics(apache.namesrv, apache.broker, topic)
    async with our_member(record, "one", apache.namesrv, topic, group) as one:
        await send(apache.namesrv, topic, record, count=20)
        async with our_member(record, "two", apache.namesrv, topic, group) as two:
            await eventually(
                "both have their share", lambda: len(one.queues) == len(two.queues) == QUEUES // 2
            )
            await send(apache.namesrv, topic, record, first=20, count=40)
        await send(apache.namesrv, topic, record, first=60, count=20)
    record.check_order()
    assert record.members() == {"one", "two"}


@in_loop
async def test_an_ordered_group_of_java_s_and_ours_on_apaches_broker(
    apache: ApacheCluster, tmp_path: Path
) -> None:
    record = Record()
    topic, group = "ordered-by-both", "ordering-by-both"
    with skipping_without_tools():
        command = JAVA["5.3.3"]()
    await make_topics(apache.namesrv, apache.broker, topic)
    arguments = (apache.namesrv, topic, group, "ordered")
    async with (
        foreign(record, "java", command, *arguments, directory=tmp_path) as stop_theirs,
        our_member(record, "ours", apache.namesrv, topic, group) as member,
    ):
        await eventually("our share of the queues", lambda: len(member.queues) == QUEUES // 2)
        await send(apache.namesrv, topic, record, count=40)
        await stop_theirs()
        await send(apache.namesrv, topic, record, first=40, count=20)
    record.check_order()
    assert record.members() == {"java", "ours"}


# --- broadcasting
# -----------------------------------------------------------------------------------------------


async def handle(name: str, record: Record, message: Delivery) -> None:
    record.note("E", message.queue_id, message.queue_offset, 0, name)


def broadcasting(
    record: Record, name: str, namesrv: str, topic: str, group: str, directory: Path, **more: str
) -> PushConsumer:
    return PushConsumer(
        namesrv,
        group=group,
        topic=topic,
        handler=partial(handle, name, record),
        broadcast=True,
        offsets_directory=directory,
        consume_from=ConsumeFrom.FIRST,
        **more,  # type: ignore[arg-type]
    )


async def send_to_all(namesrv: str, topic: str, numbers: range) -> set[tuple[int, int]]:
    async with patient_producer(namesrv) as producer:
        results = [await producer.send(topic, str(number)) for number in numbers]
    return {(result.queue.queue_id, result.queue_offset) for result in results}


@pytest.mark.parametrize("version", ["5.3.3", "4.9.8"])
def test_everybody_gets_what_is_broadcast_and_java_s_file_of_offsets_is_ours(
    version: str, ours: OurServers, tmp_path: Path
) -> None:
    asyncio.run(broadcast_story(version, ours.namesrv, ours.broker, tmp_path))


def test_everybody_gets_what_is_broadcast_by_apaches_broker(
    apache: ApacheCluster, tmp_path: Path
) -> None:
    asyncio.run(broadcast_story("5.3.3", apache.namesrv, apache.broker, tmp_path))


@pytest.mark.parametrize("peer", list(OTHERS))
@in_loop
async def test_everybody_gets_what_is_broadcast_whoever_else_is_there(
    peer: str, ours: OurServers, tmp_path: Path, summary: list[str]
) -> None:
    with skipping_without_tools():
        command = ["env", f"HOME={tmp_path}", *OTHERS[peer]()]  # where it keeps its offsets
    topic = group = f"broadcast-{peer.replace('.', '-')}"
    record = Record()
    began = time.monotonic()
    await make_topics(ours.namesrv, ours.broker, topic)
    async with (
        foreign(record, peer, command, ours.namesrv, topic, group, "broadcast", directory=tmp_path),
        foreign(
            record, "twin", command, ours.namesrv, topic, group, "broadcast", directory=tmp_path
        ),
        broadcasting(record, "ours", ours.namesrv, topic, group, tmp_path / "ours"),
    ):
        sent = await send_to_all(ours.namesrv, topic, range(100))
        for name in (peer, "twin", "ours"):
            await eventually(f"{name} has all", lambda name=name: record.succeeded(name) >= sent)
    summary.append(f"{peer:26} {'broadcast, with ours':20} {time.monotonic() - began:6.1f} s")


async def broadcast_story(version: str, namesrv: str, broker: str, directory: Path) -> None:
    with skipping_without_tools():
        java = java_client(
            version,
            f"-Drocketmq.client.localOffsetStoreDir={directory / 'shared'}",
            program="Ordering",
        )
    topic = group = f"broadcast-{version.replace('.', '-')}"
    record = Record()
    await make_topics(namesrv, broker, topic)
    arguments = (namesrv, topic, group, "broadcast")
    async with (
        foreign(record, "java", java, *arguments, directory=directory),
        broadcasting(
            record, "one", namesrv, topic, group, directory / "apart", instance_name="one"
        ),
        broadcasting(
            record, "two", namesrv, topic, group, directory / "apart", instance_name="two"
        ),
    ):
        first = await send_to_all(namesrv, topic, range(100))
        for name in ("java", "one", "two"):
            await eventually(f"{name} has all", lambda name=name: record.succeeded(name) >= first)
    # One after the other under the same client id, each with its file of offsets where the one
    # before left it.
    second = await send_to_all(namesrv, topic, range(100, 150))
    (file,) = (directory / "shared").glob("*/*/offsets.json")
    ip = file.parent.parent.name.removesuffix("@DEFAULT")
    async with broadcasting(
        record, "heir", namesrv, topic, group, directory / "shared", local_ip=ip
    ) as heir:
        assert heir.client_id == f"{ip}@DEFAULT"
        assert heir.queues == [
            MessageQueue(topic, heir.queues[0].broker_name, queue) for queue in range(QUEUES)
        ]
        await eventually("the heir has all", lambda: record.succeeded("heir") >= second)
    third = await send_to_all(namesrv, topic, range(150, 200))
    async with foreign(record, "java-again", java, *arguments, directory=directory):
        await eventually("java has all", lambda: record.succeeded("java-again") >= third)
    assert record.succeeded("heir") == second
    assert record.succeeded("java-again") == third
