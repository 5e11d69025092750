"""Pulls of what was stored before this start: answered by way of a thread, checked, and never in
anyone's way."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from tests.loops import in_loop
from tests.stand_ins import raises
from tests.unit.broker.talking import Talk, pull, talking, watched
from tests.unit.store.segments import Plain, RealSegment, forget_all, replace
from tests.waits import until, until_count, until_none

from turbopump.disk.disk import Found, Piece
from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import ConnectionLostError
from turbopump.message.codec import decode_entries
from turbopump.protocol.codes import ResponseCode
from turbopump.store.log import cold_reads
from turbopump.store.log.cold_reads import ColdReads

COUNT = 10


@pytest.fixture(autouse=True)
def nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_all(monkeypatch)


class Reads:
    """Reads of threads, held until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[Callable[[], None]] = []
        self.open = False
        plain = SystemDisk.start_read

        def start_read(
            disk: SystemDisk, pieces: list[Piece], done: Callable[[list[Found]], None]
        ) -> None:
            if self.open:
                plain(disk, pieces, done)
            else:
                self.held.append(partial(plain, disk, pieces, done))

        monkeypatch.setattr(SystemDisk, "start_read", start_read)

    def let_go(self) -> None:
        self.open = True
        while self.held:
            self.held.pop(0)()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


async def serve_story(story: Callable[[Talk], Awaitable[None]], tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        for number in range(COUNT):
            await talk.client.send(b"%d" % number, properties=f"TAGS\x01{'ab'[number % 2]}\x02")
    async with talking(tmp_path) as talk:
        await story(talk)


def after_a_restart(story: Callable[[Talk], Awaitable[None]], tmp_path: Path) -> None:
    """A broker gets ten messages and stops; the scene has the next one."""

    watched(partial(serve_story, story, tmp_path))


def reads_wait(talk: Talk, count: int) -> bool:
    return talk.broker.store.cold_reads.waiting == count


@in_loop(after_a_restart)
async def test_a_cold_pull_is_answered_when_the_thread_has_read_and_holds_up_nobody(
    talk: Talk, /, reads: Reads
) -> None:
    pulling = asyncio.ensure_future(talk.client.pull(0))
    await until(lambda: talk.broker.store.cold_reads.under_way == 1)
    sent = await talk.client.send(b"meanwhile")
    assert sent.queue_offset == COUNT
    hot = await talk.client.messages(COUNT)
    assert [message.body for message in hot] == [b"meanwhile"], (
        "on the same connection, before the cold one"
    )
    assert not pulling.done()
    reads.let_go()
    answer, header = await pulling
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert [message.body for message in decode_entries(answer.body)] == [
        b"%d" % number for number in range(COUNT)
    ]
    assert (header.next_begin_offset, header.min_offset, header.max_offset) == (COUNT, 0, COUNT + 1)


async def main(story: Callable[[Talk], Awaitable[None]], tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        for number in range(600):
            await talk.client.send(b"%8192d" % (number // 2), queue_id=number % 2)
    async with talking(tmp_path) as talk:
        await story(talk)


def after_a_restart_with_many(story: Callable[[Talk], Awaitable[None]], tmp_path: Path) -> None:
    """Two queues, turn by turn, of 300 messages of 8 KiB each: pieces of the log are smaller."""

    watched(partial(main, story, tmp_path))


@in_loop(after_a_restart_with_many)
async def test_a_large_pull_of_cold_messages_gives_what_fits_and_goes_on_behind_it(
    talk: Talk, /, reads: Reads
) -> None:
    reads.let_go()
    found, offset, pulls = list[int](), 0, 0
    while offset < 300:
        answer, header = await talk.client.pull(offset, max_msg_nums=1000, max_msg_bytes=1 << 20)
        found += [int(message.body) for message in decode_entries(answer.body)]
        assert header.next_begin_offset == len(found) > offset
        offset, pulls = header.next_begin_offset, pulls + 1
    assert found == list(range(300))
    assert pulls < 12


@in_loop(after_a_restart)
async def test_a_tag_filter_works_on_cold_messages(talk: Talk, /, reads: Reads) -> None:
    reads.let_go()
    assert [message.body for message in await talk.client.messages(tags="b")] == [
        b"1",
        b"3",
        b"5",
        b"7",
        b"9",
    ]
    nothing, header = await talk.client.pull(0, tags="c")
    assert (nothing.code, header.next_begin_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, COUNT)


@in_loop(after_a_restart)
async def test_a_pull_held_behind_cold_messages_of_other_tags_is_woken_by_one_of_its_own(
    talk: Talk, /, reads: Reads
) -> None:
    reads.let_go()
    pulling = asyncio.ensure_future(talk.client.pull(COUNT, tags="c", suspend_ms=60_000))
    await until_count(talk.broker.parts.delivering.held_pulls, 1)
    await talk.client.send(b"no", properties="TAGS\x01a\x02")
    await talk.client.send(b"yes", properties="TAGS\x01c\x02")
    answer, header = await pulling
    assert [message.body for message in decode_entries(answer.body)] == [b"yes"]
    assert header.next_begin_offset == COUNT + 2


@in_loop(after_a_restart)
async def test_a_client_that_left_is_not_read_for(talk: Talk, /, reads: Reads) -> None:
    leaving = talk.another()
    pulls = [asyncio.ensure_future(leaving.ask(pull(number))) for number in range(COUNT)]
    await until(reads_wait, talk, COUNT)
    await leaving.close()
    await asyncio.gather(*pulls, return_exceptions=True)
    server = talk.broker.parts.listening.server
    assert server is not None
    await until_none(server.connections)
    before = talk.broker.store.cold_reads.numbers.pieces_from_disk
    reads.let_go()
    await until(reads_wait, talk, 0)
    assert talk.broker.store.cold_reads.numbers.pieces_from_disk - before == cold_reads.AT_ONCE
    assert len(await talk.client.messages()) == COUNT


@in_loop(after_a_restart)
async def test_a_broker_stops_while_threads_read_and_others_wait(
    talk: Talk, /, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = threading.Event()
    plain_close = ColdReads.close

    def read(plain: Plain, segment: RealSegment, at: int, size: int) -> bytes:
        assert stopping.wait(30)
        data: bytes = plain(segment, at, size)
        return data

    def close(reads: ColdReads) -> None:
        plain_close(reads)
        stopping.set()

    with monkeypatch.context() as patched:
        replace(patched, "read_cold", read)
        patched.setattr(ColdReads, "close", close)
        pulls = [asyncio.ensure_future(talk.client.ask(pull(number))) for number in range(COUNT)]
        await until(reads_wait, talk, COUNT)
        await talk.broker.close()
        answers = await asyncio.gather(*pulls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [ConnectionLostError] * COUNT
    assert not (tmp_path / "abort").exists()


@in_loop(after_a_restart)
async def test_more_pulls_than_may_wait_are_told_to_come_again(
    talk: Talk, /, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reads, "WAITING_MAX", 0)

    pulls = [
        asyncio.ensure_future(talk.client.ask(pull(number))) for number in range(cold_reads.AT_ONCE)
    ]
    await until(lambda: talk.broker.store.cold_reads.under_way == cold_reads.AT_ONCE)
    code, remark = await talk.client.code(pull(9))
    assert code == ResponseCode.FLOW_CONTROL
    assert "ask again" in remark
    reads.let_go()
    assert [answer.code for answer in await asyncio.gather(*pulls)] == [0] * cold_reads.AT_ONCE


@in_loop(after_a_restart)
async def test_damaged_messages_are_passed_over_with_a_line_in_the_log(
    talk: Talk, /, reads: Reads, caplog: pytest.LogCaptureFixture
) -> None:
    reads.let_go()
    store = talk.broker.store
    queue = store.queue("T", 0)
    assert queue is not None
    offset, size, _ = queue.unit(4) or (0, 0, 0)
    log_file = next(iter(store.log.files))
    log_file.buffer[offset + size - 30] ^= 1
    answer, header = await talk.client.pull(0)
    assert [message.queue_offset for message in decode_entries(answer.body)] == [
        0,
        1,
        2,
        3,
        5,
        6,
        7,
        8,
        9,
    ]
    assert header.next_begin_offset == COUNT
    (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert error.getMessage() == (
        f"damaged message topic=T queue=0 offset=4 log_offset={offset} cause=its CRC "
        "(property __CRC32#) does not fit its bytes"
    )
    assert (
        "damaged messages passed over group=g topic=T queue=0 from=0 to=10 count=1" in caplog.text
    )
    alone, header = await talk.client.pull(4, max_msg_nums=1)
    assert (alone.code, header.next_begin_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 5)


@in_loop(after_a_restart)
async def test_what_cannot_be_read_is_an_error_and_the_place_stays(
    talk: Talk, /, reads: Reads, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reads.let_go()

    with monkeypatch.context() as patched:
        replace(patched, "read_cold", raises(OSError(5, "Input/output error")))
        for _ in range(3):
            code, remark = await talk.client.code(pull(0, suspend_ms=60_000))
            assert code == ResponseCode.SYSTEM_ERROR
            assert "cannot be read now (Input/output error)" in remark
    assert "pull cannot be answered group=g topic=T queue=0 offset=0" in caplog.text
    assert len(await talk.client.messages()) == COUNT


@in_loop(after_a_restart)
async def test_an_answer_that_cannot_be_made_is_an_error_and_not_silence(
    talk: Talk, /, reads: Reads, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reads.let_go()
    with monkeypatch.context() as patched:
        patched.setattr("turbopump.broker.handlers.pull._found", lambda *_facts: 1 // 0)
        code, remark = await talk.client.code(pull(0))
    assert code == ResponseCode.SYSTEM_ERROR
    assert "internal error ZeroDivisionError" in remark
    assert "Traceback" in caplog.text
