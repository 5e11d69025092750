"""Sends that wait to be stored: refused in Apache's words when they wait too long, and never when
they were stored."""

import asyncio
import logging
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.broker.talking import Talk, talking, watched
from tests.unit.remoting.serving import frame, raw_peer

from turbopump.broker.broker import Broker
from turbopump.clock import SystemClock
from turbopump.disk.disk import Segment
from turbopump.disk.system_disk import SystemDisk
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.configuration import UpdateBrokerConfig
from turbopump.protocol.requests.send import SendMessageV2

SEGMENT = 64 * 1024
CONFIG: dict[str, Any] = {"mapped_file_size_commit_log": SEGMENT, "max_message_size": 8000}


class SlowToMake(SystemDisk):
    """A disk on which files made ahead of need take until `gate` opens."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(lambda call: loop.call_soon_threadsafe(call))
        self.gate = threading.Event()

    def create_segment(self, path: Path, size: int) -> Any:
        if threading.current_thread() is not threading.main_thread():
            self.gate.wait(30)
        segment: Segment = super().create_segment(path, size)
        return segment


async def send_until_refused(talk: Talk, sent: list[bytes]) -> tuple[int, str]:
    """Send one after the other; the code and remark of the first refusal. `sent` gets the bodies
    that were stored."""
    for number in range(100):
        body = b"%d " % number + b"x" * 4000
        answer = await talk.client.code(message(), body)
        if answer[0] != ResponseCode.SUCCESS:
            return answer
        sent.append(body)
    raise AssertionError("nothing was refused")


def message() -> SendMessageV2:
    return SendMessageV2(
        producer_group="p",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=0,
        flag=0,
        properties="",
    )


@in_loop(watched)
async def test_sends_that_wait_for_a_new_file_are_refused_in_time_and_stored_once_it_is_there(
    tmp_path: Path,
) -> None:
    disk = SlowToMake()
    settings = {
        **CONFIG,
        "wait_time_mills_in_send_queue": 1000,
        "os_page_cache_busy_time_out_mills": 60_000,
    }
    async with talking(tmp_path, lambda *args: Broker(*args, disk=disk), **settings) as talk:
        await talk.client.create()
        sent: list[bytes] = []
        code, remark = await send_until_refused(talk, sent)
        assert code == ResponseCode.SYSTEM_BUSY
        assert re.fullmatch(
            r"\[TIMEOUT_CLEAN_QUEUE\]broker busy, start flow control for a while, period in "
            r"queue: \d+ms, size of queue: 0; "
            r"a new file of the commit log is being made \(waitTimeMillsInSendQueue=1000\)",
            remark,
        ), remark
        assert await talk.client.all_bodies() == sent, (
            "reading goes on, and what was refused was not stored"
        )
        await talk.client.ask(UpdateBrokerConfig(), b"waitTimeMillsInSendQueue=60000\n")
        waiting = [
            asyncio.create_task(talk.client.code(message(), b"%d waits" % number))
            for number in range(3)
        ]
        while len(talk.broker.parts.stored.sends.backlog) < 3:
            await asyncio.sleep(0)
        disk.gate.set()
        assert [code for code, _ in await asyncio.gather(*waiting)] == [0, 0, 0]
        assert await talk.client.all_bodies() == [*sent, b"0 waits", b"1 waits", b"2 waits"]


@in_loop(watched)
async def test_while_a_new_file_takes_very_long_sends_are_refused_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "turbopump.broker.send_queue"):
        disk = SlowToMake()
        settings = {
            **CONFIG,
            "os_page_cache_busy_time_out_mills": 50,
            "wait_time_mills_in_send_queue": 5000,
        }
        async with talking(tmp_path, lambda *args: Broker(*args, disk=disk), **settings) as talk:
            await talk.client.create()
            cause = (
                r"a new file of the commit log is being made, for over 50 ms "
                r"\(osPageCacheBusyTimeOutMills\)"
            )
            code, remark = await send_until_refused(talk, [])
            assert re.fullmatch(
                r"\[PCBUSY_CLEAN_QUEUE\]broker busy, .*, period in queue: \d+ms, size of queue: 0; "
                + cause,
                remark,
            )
            code, remark = await talk.client.code(message(), b"x")
            assert re.fullmatch(
                r"\[PC_SYNCHRONIZED\]broker busy, start flow control for a while; " + cause, remark
            )
            assert code == ResponseCode.SYSTEM_BUSY
            disk.gate.set()
    assert [
        record.getMessage() for record in caplog.records if "sends refused" in record.getMessage()
    ] == [
        next(
            record.getMessage()
            for record in caplog.records
            if "sends refused count=1 last=[PCBUSY" in record.getMessage()
        )
    ], "one line, not one per send"


@in_loop(watched)
async def test_the_send_queue_is_bounded(tmp_path: Path) -> None:
    disk = SlowToMake()
    settings = {**CONFIG, "send_thread_pool_queue_capacity": 2, "broker_fast_failure_enable": False}
    async with talking(tmp_path, lambda *args: Broker(*args, disk=disk), **settings) as talk:
        await talk.client.create()
        backlog = talk.broker.parts.stored.sends.backlog
        waiting: list[asyncio.Task[tuple[int, str]]] = []
        while len(backlog) < 2:
            waiting.append(asyncio.create_task(talk.client.code(message(), b"x" * 4000)))
            while not waiting[-1].done() and len(backlog) < sum(
                not task.done() for task in waiting
            ):
                await asyncio.sleep(0)
        code, remark = await talk.client.code(message(), b"x")
        assert code == ResponseCode.SYSTEM_BUSY
        assert re.fullmatch(
            r"\[OVERLOAD\]system busy, start flow control for a while; period in queue: "
            r"\d+ms, size of queue: 2 "
            r"\(sendThreadPoolQueueCapacity=2\)",
            remark,
        ), remark
        disk.gate.set()
        assert {code for code, _ in await asyncio.gather(*waiting)} == {0}, (
            "without a longest wait they are all stored"
        )


@in_loop(watched)
async def test_sends_behind_an_append_of_over_a_second_are_refused_and_that_one_is_not(
    tmp_path: Path,
) -> None:
    class Jumping(SystemClock):
        jump = 0.0

        def __init__(self) -> None:
            self.passed = 0.0
            self.monotonic = self._monotonic  # type: ignore[method-assign]

        def _monotonic(self) -> float:
            self.passed += self.jump
            return self.passed

    clock = Jumping()
    settings = {"os_page_cache_busy_time_out_mills": 1000}
    async with talking(tmp_path, lambda *args: Broker(*args, clock=clock), **settings) as talk:
        await talk.client.create()
        clock.jump = 1.25
        async with raw_peer(talk.broker.host, talk.broker.port) as peer:
            # one read of the broker's
            peer.write(*(frame(message(), number, b"%d" % number) for number in range(3)))
            answers = [await peer.read() for _ in range(3)]
        clock.jump = 0.0
        assert [answer and answer.code for answer in answers] == [
            0,
            ResponseCode.SYSTEM_BUSY,
            ResponseCode.SYSTEM_BUSY,
        ]
        remark = (answers[1] and answers[1].remark) or ""
        assert re.fullmatch(
            r"\[PCBUSY_CLEAN_QUEUE\]broker busy, start flow control for a while, period in "
            r"queue: \d+ms, size of queue: \d+; "
            r"an append took 1250 ms: check the latency of the disk and the load of this machine",
            remark,
        ), remark
        assert await talk.client.code(message(), b"later") == (0, "")
        assert await talk.client.all_bodies() == [b"0", b"later"]
        assert talk.broker.store.latency.longest == 1.25
