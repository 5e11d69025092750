"""Replicas copy their master's log, confirm by the sync state set, and take turns as the master."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.loops import in_loop
from tests.unit.replication.linked_replicas import Group
from tests.waits import until, until_count, until_some

from turbopump.replication.copying_link import CONNECT_S


@in_loop
async def test_a_new_replica_copies_the_log_and_is_asked_for(tmp_path: Path) -> None:
    async with Group(tmp_path) as (a, b):
        link = await a.lead(1)
        for number in range(30):
            a.put(b"%d" % number * 100)  # over several files
        b.follow(a, 1)
        await until(b.has, a.end)
        await until_some(a.asked)
        assert a.asked == [frozenset({1, 2})]
        assert not link.is_writable
        a.grant()
        assert link.is_writable
        await until(b.confirms, a.end)
        assert b.visible() == a.visible()
        assert b.epochs() == a.epochs() == [(1, 0)]


@in_loop
async def test_readers_see_a_message_when_the_set_has_it(tmp_path: Path) -> None:
    async with Group(tmp_path) as (a, b):
        await a.lead(1)
        b.follow(a, 1)
        await until_some(a.asked)
        a.grant()
        end = a.put(b"one")
        assert a.visible() == []
        await until(a.confirms, end)
        assert a.visible() == [b"one"]
        await until(b.confirms, end)
        assert b.visible() == [b"one"]


@in_loop
async def test_a_master_confirms_nothing_alone_after_its_slave_has_left(tmp_path: Path) -> None:
    async with Group(tmp_path) as (a, b):
        link = await a.lead(1)
        b.follow(a, 1)
        await until_some(a.asked)
        a.grant()
        await b.close()
        await until_count(a.asked, 2)
        assert a.asked[-1] == frozenset({1})
        end = a.put(b"one")
        assert a.visible() == []
        a.grant()
        assert not link.is_writable
        assert a.confirmed < end
        b.follow(a, 1)
        await until_count(a.asked, 3)
        a.grant()
        await until(a.confirms, end)


@in_loop
async def test_a_slave_that_returns_joins_again(tmp_path: Path) -> None:
    async with Group(tmp_path) as (a, b):
        await a.lead(1, size_min=1)
        b.follow(a, 1)
        await until_some(a.asked)
        a.grant()
        await b.close()
        await until_count(a.asked, 2)
        a.grant()
        end = a.put(b"while it was away")
        b.follow(a, 1)
        await until_count(a.asked, 3)
        a.grant()
        assert b.has(end)


@in_loop
async def test_a_new_master_begins_an_epoch_and_the_old_one_is_cut_to_it(tmp_path: Path) -> None:
    async with Group(tmp_path) as (a, b):
        await a.lead(1)
        b.follow(a, 1)
        await until_some(a.asked)
        a.grant()
        shared = a.put(b"one")
        await until(b.has, shared)
        await b.close()
        a.put(b"only A has this")
        a.put(b"and this")
        await a.close()
        await b.lead(2)
        assert b.epochs() == [(1, 0), (2, shared)]
        end = b.put(b"two")
        a.follow(b, 2)
        assert a.slave is not None
        cuts = list[int]()
        a.slave.on_cut_needed = cuts.append
        await until_some(cuts)
        assert cuts == [shared]
        await a.close()
        a.cut(shared)
        a.follow(b, 2)
        await until(a.has, end)
        await until_some(b.asked)
        b.grant()
        await until(a.confirms, end)
        assert a.visible() == b.visible() == [b"one", b"two"]
        assert a.epochs() == b.epochs()


@in_loop
async def test_a_master_elected_twice_without_messages_shows_what_the_old_one_wrote(
    tmp_path: Path,
) -> None:
    """RocketMQ keeps the number of the epoch without messages, and both logs seem equal."""
    async with Group(tmp_path) as (a, b):
        await a.lead(1)
        b.follow(a, 1)
        await until_some(a.asked)
        shared = a.put(b"one")
        await until(b.has, shared)
        await a.close()
        await b.close()
        await a.lead(2)
        b.follow(a, 2)
        await until(lambda: b.epochs() == [(1, 0), (2, shared)])
        await b.close()
        a.put(b"only A")
        await a.close()
        await b.lead(3)
        assert b.epochs() == [(1, 0), (3, shared)]
        b.put(b"only B")
        a.follow(b, 3)
        await until(lambda: a.slave is not None and a.slave.cut_to == shared)


@in_loop
async def test_what_was_confirmed_is_visible_after_a_restart_and_nothing_else(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path) as (a, b):
        await a.lead(1)
        b.follow(a, 1)
        await until_some(a.asked)
        a.grant()
        end = a.put(b"one")
        await until(a.confirms, end)
        await b.close()
        a.put(b"two")
        await a.close()
        a.open(is_copy=False)
        assert (a.confirmed, a.visible()) == (end, [b"one"])
        assert a.store is not None
        a.store.confirmed.note_replicas(end, sole=True)
        assert a.visible() == [b"one", b"two"]


@in_loop
async def test_a_replica_acknowledges_only_what_is_on_its_disk_under_sync_flush(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path, synchronous=True) as (a, b):
        await a.lead(1)
        b.follow(a, 1)
        await until_some(a.asked)
        a.grant()
        end = a.put(b"one")
        await until(a.confirms, end)
        assert b.store is not None
        assert b.store.durable.value == end


@in_loop
async def test_fewer_acknowledgements_answer_sends_but_show_nothing(tmp_path: Path) -> None:
    async with Group(tmp_path) as (a, b):
        await a.lead(1, acks=1)
        b.follow(a, 1)
        await until_some(a.asked)
        a.grant()
        await b.close()
        end = a.put(b"one")
        assert a.store is not None
        assert (a.store.confirmed.acknowledged, a.visible()) == (end, [])


@in_loop
async def test_a_learner_copies_and_is_never_asked_for(tmp_path: Path) -> None:
    async with Group(tmp_path) as (a, b):
        await a.lead(1)
        b.follow(a, 1, learner=True)
        end = a.put(b"one")
        await until(b.has, end)
        assert a.asked == []


@in_loop
async def test_a_log_without_epochs_is_not_continued(tmp_path: Path) -> None:
    async with Group(tmp_path) as (a, b):
        await a.lead(1)
        a.put(b"one")
        b.open(is_copy=False)
        b.put(b"other")
        await b.close()
        b.follow(a, 1)
        assert b.slave is not None
        await until(lambda: b.slave is not None and b.slave.refusal)
        assert "has no epochs" in str(b.slave.refusal)
        assert "empty it" in str(b.slave.refusal)


@in_loop
async def test_logs_of_two_groups_are_not_mixed(tmp_path: Path) -> None:
    async with Group(tmp_path) as (a, b):
        await b.lead(5)
        b.put(b"other")
        await b.close()
        await a.lead(1)
        a.put(b"one")
        b.follow(a, 1)
        assert b.slave is not None
        await until(lambda: b.slave is not None and b.slave.refusal)
        assert "shares no epoch with the master's: here 5-0, there 1-0" in str(b.slave.refusal)


@in_loop
async def test_a_store_that_was_no_replica_becomes_the_first_master_with_all_it_has(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path) as (a, b):
        a.open(is_copy=False)
        end = a.put(b"before")
        await a.close()
        await a.lead(1)
        assert a.epochs() == [(1, 0)]
        b.follow(a, 1)
        await until(b.has, end)


@in_loop
async def test_an_epoch_is_used_once(tmp_path: Path) -> None:
    async with Group(tmp_path) as (a, _):
        await a.lead(2)
        await a.close()
        with pytest.raises(ValueError, match="epoch 2 does not follow epoch 2"):
            await a.lead(2)


@in_loop
async def test_a_new_master_is_connected_at_once_while_the_old_one_does_not_answer(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path) as (a, b), silent_port() as silent:
        await a.lead(1)
        end = a.put(b"one")
        b.follow(a, 1)
        await until(b.has, end)
        link = b.slave
        assert link is not None
        link.follow(silent, 1)
        await until(lambda: link.peer is not None)
        began = asyncio.get_running_loop().time()
        link.follow(a.address, 2)
        more = a.put(b"two")
        await until(b.has, more)
        assert asyncio.get_running_loop().time() - began < CONNECT_S


@asynccontextmanager
async def silent_port() -> AsyncIterator[str]:
    """A server that accepts connections and says nothing, as a frozen process does."""
    server = socket.create_server(("127.0.0.1", 0))
    yield f"127.0.0.1:{server.getsockname()[1]}"
    server.close()
