"""Groups that read a backlog are slowed down if the broker is told so (coldDataFlowControlEnable);
2001 to 2004."""

from __future__ import annotations

import asyncio

from tests.loops import in_loop
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.talking import Client, Talk, in_virtual_time, pull

from turbopump.broker.cold_flow import FORGET_S, WINDOW_S, ColdFlow
from turbopump.message.codec import decode_entries
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.statistics import (
    ColdFlowInfo,
    GetColdFlow,
    RemoveColdFlow,
    SetCommitLogReadMode,
    UpdateColdFlow,
)

BUSY = "This consumer group is reading cold data. It has been flow control"
ALL_COLD = {
    "cold_data_flow_control_enable": True,
    "access_message_in_memory_max_ratio": 0,
    "cg_cold_read_threshold": 3000,
}


class Hands:
    """A clock that is moved by hand."""

    seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000)


async def outcome(client: Client, offset: int) -> tuple[int, str | None]:
    answer = await client.ask(pull(offset))
    return answer.code, answer.remark


async def fill(client: Client) -> None:
    await client.create()
    for _ in range(20):
        await client.send(b"x" * 1000)


def test_a_group_waits_when_it_has_read_enough_until_the_five_seconds_are_over() -> None:
    clock = Hands()
    cold = ColdFlow(clock, enabled=True, group_max=100, total_max=250)
    cold.note_read("g", 99)
    assert not cold.must_wait("g")
    cold.note_read("g", 1)
    assert (cold.must_wait("g"), cold.must_wait("h")) == (True, False)
    cold.note_read("h", 90)
    cold.note_read("TOOLS_CONSUMER", 1000)
    assert not cold.must_wait("h")
    cold.note_read("i", 60)
    assert cold.must_wait("h"), "all together have read too much"
    assert not cold.must_wait("nobody"), "who has read nothing cold does not wait"
    clock.seconds += WINDOW_S
    assert not cold.must_wait("g")
    assert set(cold.info().runtime_table) == {"g", "h", "i"}
    clock.seconds += FORGET_S
    assert cold.info().runtime_table == {}
    off = ColdFlow(clock, enabled=False, group_max=0, total_max=0)
    off.note_read("g", 1)
    assert not off.must_wait("g")


@in_loop(in_virtual_time, **ALL_COLD)
async def test_a_push_consumer_that_has_read_too_much_is_told_to_come_later(
    talk: Talk, simulation: Simulation, /
) -> None:
    client = talk.client
    await fill(client)
    await client.join("c")
    answer, header = await client.pull(0, max_msg_nums=4)
    assert answer.code == 0
    assert await outcome(client, header.next_begin_offset) == (ResponseCode.SYSTEM_BUSY, BUSY)
    assert (await client.pull(20))[0].code == ResponseCode.PULL_NOT_FOUND, (
        "what is new is given at once"
    )
    await asyncio.sleep(5)
    assert await outcome(client, header.next_begin_offset) == (0, "FOUND")


@in_loop(in_virtual_time, **ALL_COLD)
async def test_who_pulls_by_himself_gets_one_message_after_three_seconds(
    talk: Talk, simulation: Simulation, /
) -> None:
    client, loop = talk.client, asyncio.get_running_loop()
    await fill(client)
    answer, _ = await client.pull(0, max_msg_nums=4)
    assert len(list(decode_entries(answer.body))) == 4
    began = loop.time()
    answer, _ = await client.pull(4, max_msg_nums=4)
    assert 3 <= loop.time() - began < 3.1
    assert len(list(decode_entries(answer.body))) == 1


@in_loop(in_virtual_time, **ALL_COLD)
async def test_thresholds_of_groups_are_set_removed_and_shown(
    talk: Talk, simulation: Simulation, /
) -> None:
    client = talk.client
    await fill(client)
    await client.join("c")
    assert await client.code(UpdateColdFlow(), b"g=100000\nother=1\n") == (0, "")
    code, remark = await client.code(UpdateColdFlow(), b"g=much")
    assert (code, "expected lines such as" in remark) == (ResponseCode.SYSTEM_ERROR, True)
    code, remark = await client.code(UpdateColdFlow(), b"g=-1")
    assert (code, remark) == (ResponseCode.SYSTEM_ERROR, "no threshold of a group: g=-1")
    await client.pull(0)
    assert await outcome(client, 4) == (0, "FOUND")
    info = fastjson.decode((await client.ask(GetColdFlow())).body, ColdFlowInfo)
    assert info.config_table == {"g": 100000, "other": 1}
    assert (info.cg_cold_read_threshold, info.global_cold_read_threshold) == (
        3000,
        100 * 1024 * 1024,
    )
    assert info.global_acc == info.runtime_table["g"].cold_acc > 3000
    assert await client.code(RemoveColdFlow(), b"g") == (0, "")
    assert await outcome(client, 4) == (ResponseCode.SYSTEM_BUSY, BUSY)


def modes(talk: Talk) -> set[bool]:
    return {file.segment.reads_ahead for file in talk.broker.store.log.files}  # type: ignore[attr-defined]


@in_loop(in_virtual_time, data_read_ahead_enable=False)
async def test_an_operator_says_whether_the_system_reads_ahead_in_the_log(
    talk: Talk, simulation: Simulation, /
) -> None:
    client = talk.client
    await fill(client)

    assert modes(talk) == {False}
    assert (await client.ask(SetCommitLogReadMode(mode="0"))).code == ResponseCode.SUCCESS
    assert modes(talk) == {True}
    answer = await client.ask(SetCommitLogReadMode(mode="1"))
    assert (answer.code, answer.remark) == (
        ResponseCode.SUCCESS,
        "set commitlog readahead mode success, mode: 1",
    )
    before = len(talk.broker.store.log.files.files)
    while len(talk.broker.store.log.files.files) < before + 2:
        await client.send(b"x" * 60_000)
    assert modes(talk) == {False}, "files to come, too"
    assert (await client.ask(SetCommitLogReadMode(mode="4"))).code == ResponseCode.INVALID_PARAMETER
    assert (await client.ask(SetCommitLogReadMode(mode="random"))).code == ResponseCode.SYSTEM_ERROR
    assert (await client.ask(SetCommitLogReadMode())).code == ResponseCode.SYSTEM_ERROR
