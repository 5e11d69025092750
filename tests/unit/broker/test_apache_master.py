"""A slave of a master of Apache's: which answers prove the same log, which prove another one, and
which say nothing. The master is ours, and passes for Apache's."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.loops import in_loop
from tests.stand_ins import returns
from tests.unit.broker.replicas import (
    MASTER,
    SLAVE,
    Replicas,
    log_of,
    same_logs,
    until_fault,
    with_replicas,
)

from turbopump.broker import slave_tables
from turbopump.broker.apache_master import compare_with_apache
from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerRole
from turbopump.errors import CopyError, ProtocolError
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.requests.pull import ViewMessageById
from turbopump.protocol.requests.replication import NOT_PROVED
from turbopump.remoting.turns import Turns
from turbopump.store.log.cold_reads import ReadSteps
from turbopump.store.queues.lookup import Lookup, StoredEntry


@pytest.fixture(autouse=True)
def _all_masters_pass_for_apache_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_tables, "COMPARES", "no such key")


async def pair(replicas: Replicas, sizes: list[int]) -> tuple[Broker, Broker]:
    """A master and a slave with the same messages, of these sizes."""
    master, slave = await replicas.master(), await replicas.slave()
    client = replicas.client_of(MASTER)
    await client.create()
    for number, size in enumerate(sizes):
        await client.send(b"%d " % number + b"b" * size, topic="T")
    await same_logs(master, slave)
    return master, slave


@pytest.mark.parametrize("indexed", [True, False])
@in_loop(with_replicas)
async def test_a_slave_that_comes_back_with_the_same_log_copies_and_has_not_proved_it(
    replicas: Replicas, /, indexed: bool
) -> None:
    master, _ = await pair(replicas, [10, 1000, 200])
    await replicas.stop(SLAVE)
    await replicas.client_of(MASTER).send(b"more")
    await same_logs(master, await replicas.slave(message_index_enable=indexed))
    assert master.parts.listening.replication.status(0.0).ha_connection_info[0].proof == NOT_PROVED


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("seed", range(6))
@in_loop(with_replicas)
async def test_a_slave_with_messages_of_its_own_is_refused_whatever_their_sizes(
    replicas: Replicas, /, seed: int, indexed: bool
) -> None:
    rng = random.Random(seed)
    await pair(replicas, [100] * 5)
    await replicas.stop(SLAVE)
    sizes = [rng.randrange(1, 3000) for _ in range(20)]
    old, new = replicas.client_of(MASTER), replicas.client_of(SLAVE)
    for size in sizes:
        await old.send(b"o" * size)
    replicas.kill(MASTER)
    await replicas.broker(SLAVE, BrokerRole.ASYNC_MASTER)
    rng.shuffle(sizes)
    for size in [*sizes, 100, 100]:
        await new.send(b"n" * size)
    back = await replicas.broker(
        MASTER, BrokerRole.SLAVE, broker_id=1, message_index_enable=indexed
    )
    kept = log_of(back.store)
    link = back.parts.listening.replication.slave
    assert link is not None
    await until_fault(link, "another log")
    assert log_of(back.store) == kept


Answer = Callable[[ViewMessageById], Command]


class Master:
    """Answers to 33; ``asked`` are the offsets."""

    def __init__(self, store: Any, other: Answer | None = None) -> None:
        self._store = store
        self._other = other
        self.asked: list[int] = []

    async def exchange(self, _address: str, request: ViewMessageById, **_: Any) -> Command:
        self.asked.append(request.offset)
        if self._other is not None:
            return self._other(request)
        size = int.from_bytes(self._store.log.read(request.offset, 4))
        return Command(0, body=self._store.log.read(request.offset, size))


def failing(code: int, remark: str) -> Answer:
    return returns(Command(code, remark=remark))


@in_loop(with_replicas)
async def test_the_newest_message_and_some_before_it_are_compared(replicas: Replicas, /) -> None:
    _, slave = await pair(replicas, [10] * 300)
    store, master = slave.store, Master(slave.store)
    end = store.log.end
    equal = await compare_with_apache(store, Turns(), master, "h:1", 0, end)  # type: ignore[arg-type]
    queue = store.queues.find("T", 0)
    assert queue is not None
    assert len(master.asked) == equal == 11
    assert master.asked[-1] == 0, "the first of the file"
    assert master.asked[0] == max(master.asked)
    here = store.log.read(master.asked[0], end - master.asked[0])
    assert here is not None
    assert b"299 b" in here


@pytest.mark.parametrize(
    ("other", "begins", "further", "error", "words"),
    [
        (failing(ResponseCode.SYSTEM_ERROR, "can not find message by the offset, 7"), 0, 0,
         CopyError, "another log"),
        (failing(ResponseCode.SUCCESS, ""), 0, 0, CopyError, "another log"),
        (failing(ResponseCode.NO_PERMISSION, "no"), 0, 0, ProtocolError, "cannot be compared"),
        (failing(ResponseCode.SYSTEM_BUSY, "later"), 0, 0, ProtocolError, "cannot be compared"),
        (failing(ResponseCode.SYSTEM_ERROR, "x"), 0, 0, ProtocolError, "cannot be compared"),
        (None, 0, -1, CopyError, "but that of the master at"),
        (None, 1 << 40, 1 << 41, CopyError, "older files were deleted"),
    ],
)  # fmt: skip
@in_loop(with_replicas)
async def test_no_answer_but_the_same_message_is_taken_for_the_same_log(
    replicas: Replicas,
    /,
    other: Answer | None,
    begins: int,
    further: int,
    error: type[Exception],
    words: str,
) -> None:
    _, slave = await pair(replicas, [10, 20])
    master = Master(slave.store, other)
    ends = slave.store.log.end + further
    with pytest.raises(error, match=words):
        await compare_with_apache(slave.store, Turns(), master, "h:1", begins, ends)  # type: ignore[arg-type]


@in_loop(with_replicas)
async def test_a_log_of_which_the_master_has_deleted_every_message_proves_nothing(
    replicas: Replicas, /
) -> None:
    _, slave = await pair(replicas, [10, 20])
    end = slave.store.log.end
    with pytest.raises(ProtocolError, match="the two logs may differ"):
        await compare_with_apache(slave.store, Turns(), Master(slave.store), "h:1", end, end + 5)  # type: ignore[arg-type]


@in_loop(with_replicas)
async def test_a_newest_message_that_cannot_be_read_here_proves_nothing(
    replicas: Replicas, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, slave = await pair(replicas, [10] * 20)
    store = slave.store
    asked = Master(store)
    await compare_with_apache(store, Turns(), asked, "h:1", 0, store.log.end)  # type: ignore[arg-type]
    newest = asked.asked[0]
    entry_at = Lookup.entry_at

    def damaged(lookup: Lookup, offset: int) -> ReadSteps[StoredEntry | None]:
        entry = yield from entry_at(lookup, offset)
        if entry is not None and offset == newest:
            return entry._replace(fault="its CRC is another one")
        return entry

    monkeypatch.setattr(Lookup, "entry_at", damaged)
    with pytest.raises(ProtocolError, match="newest message"):
        await compare_with_apache(store, Turns(), Master(store), "h:1", 0, store.log.end)  # type: ignore[arg-type]
