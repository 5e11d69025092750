"""Offsets from outside over the wire: resets (222, 220), clones (314), corrections (308), and what
readers hear of them."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.patient import ANSWER_S
from tests.unit.broker.talking import Client, Talk, converse, talking, watched
from tests.waits import until

from turbopump.message.message import MessageQueue
from turbopump.protocol import fastjson
from turbopump.protocol.codes import LanguageCode, ResponseCode
from turbopump.protocol.command import encode_command, request_command
from turbopump.protocol.requests.clients import Heartbeat
from turbopump.protocol.requests.offsets import (
    CloneGroupOffset,
    ConsumerOffsetTable,
    GetConsumerStatus,
    GetConsumerStatusBody,
    GetConsumerStatusFromClient,
    OffsetReply,
    QueryConsumerOffset,
    QueryCorrectionOffset,
    ResetConsumerOffset,
    ResetOffset,
    ResetOffsetBody,
    ResetOffsetBodyForC,
    UpdateConsumerOffset,
)
from turbopump.protocol.requests.pull import PullSysFlag
from turbopump.protocol.requests.statistics import QueryCorrectionOffsetBody
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.response import Response
from turbopump.remoting.router import HELD, Outcome, RequestContext, Router

END = 10


async def prepare(talk: Talk, *groups: str) -> None:
    """Topic T with two queues of ten messages each; g stands at 8 in both, and so do the other
    groups."""
    await talk.client.create(queues=2)
    for queue_id in (0, 1):
        for _ in range(END):
            await talk.client.send(queue_id=queue_id)
        for group in ("g", *groups):
            await talk.client.pull(8, queue_id=queue_id, consumer_group=group)
            assert await commit(talk.client, 8, queue_id=queue_id, group=group) == ""


async def commit(client: Client, offset: int, *, queue_id: int = 0, group: str = "g") -> str:
    answer = await client.ask(
        UpdateConsumerOffset(
            consumer_group=group, topic="T", queue_id=queue_id, commit_offset=offset
        )
    )
    assert answer.code == ResponseCode.SUCCESS
    return answer.remark or ""


async def committed(client: Client, *, queue_id: int = 0, group: str = "g") -> int:
    answer = await client.ask(
        QueryConsumerOffset(consumer_group=group, topic="T", queue_id=queue_id)
    )
    return answer.header(OffsetReply).offset


async def reset(client: Client, **fields: Any) -> dict[int, int] | tuple[int, str]:
    answer = await client.ask(
        ResetOffset(**{"group": "g", "topic": "T", "timestamp": -1, **fields})
    )
    if answer.code:
        return answer.code, answer.remark or ""
    return {
        queue.queue_id: offset
        for queue, offset in fastjson.decode(answer.body, ResetOffsetBody).offset_table.items()
    }


@in_loop(converse)
async def test_a_reset_sets_all_queues_or_one_to_the_end_a_time_or_an_offset(talk: Talk, /) -> None:
    await prepare(talk)
    assert await reset(talk.client) == {0: END, 1: END}
    assert await reset(talk.client, timestamp=0) == {0: 0, 1: 0}
    assert await reset(talk.client, timestamp=2**60) == {0: END, 1: END}
    assert await reset(talk.client, queue_id=1, offset=3) == {1: 3}
    assert await reset(talk.client, queue_id=1, offset=-1, timestamp=0) == {1: 0}
    assert (await committed(talk.client), await committed(talk.client, queue_id=1)) == (END, 0)


@in_loop(converse)
async def test_without_force_a_place_only_goes_back(talk: Talk, /) -> None:
    await prepare(talk)
    assert await reset(talk.client, force=False) == {0: 8, 1: 8}
    assert await reset(talk.client, force=False, queue_id=0, offset=5) == {0: 5}
    assert (await committed(talk.client), await committed(talk.client, queue_id=1)) == (5, 8)


@in_loop(converse)
async def test_an_offset_that_is_named_needs_no_force(talk: Talk, /) -> None:
    """``mqadmin resetOffsetByTime -q 0 -o 9`` never sends one."""
    await prepare(talk)
    assert await reset(talk.client, force=False, queue_id=0, offset=9) == {0: 9}
    assert await committed(talk.client) == 9


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST, "Topic unknown does not exist"),
        (
            {"group": "unknown"},
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            "Group unknown does not exist",
        ),
        (
            {"queue_id": 0, "offset": 11},
            ResponseCode.SYSTEM_ERROR,
            "Target offset 11 not in consume queue range [0-10]",
        ),
        (
            {"queue_id": 2, "offset": 0},
            ResponseCode.SYSTEM_ERROR,
            "T has 2 readable queues here, none with the id 2",
        ),
    ],
)
@in_loop(converse)
async def test_a_reset_that_cannot_be_is_refused(
    talk: Talk, /, fields: dict[str, Any], code: int, remark: str
) -> None:
    await prepare(talk)
    assert await reset(talk.client, **fields) == (code, remark)
    assert await committed(talk.client) == 8


@in_loop(converse)
async def test_no_commit_undoes_a_reset_that_its_sender_has_not_heard_of(talk: Talk, /) -> None:
    await prepare(talk)
    await reset(talk.client, queue_id=0, offset=3)
    assert await commit(talk.client, 9) == "Offset has been previously reset"
    flags = int(PullSysFlag.COMMIT_OFFSET)
    answer, header = await talk.client.pull(9, flags=flags, commit_offset=9)
    assert (answer.code, header.next_begin_offset) == (ResponseCode.PULL_OFFSET_MOVED, 3)
    assert await commit(talk.client, 9) == "Offset has been previously reset", (
        "it was on its way as the reader was told"
    )
    assert await committed(talk.client) == 3
    answer, _ = await talk.client.pull(3)
    assert answer.code == ResponseCode.SUCCESS
    assert await commit(talk.client, 4) == ""
    assert await committed(talk.client) == 4


async def after(talk: Talk) -> None:
    assert await commit(talk.client, 9) == "Offset has been previously reset"
    answer, header = await talk.client.pull(9)
    assert (answer.code, header.next_begin_offset) == (ResponseCode.PULL_OFFSET_MOVED, 3)
    answer, _ = await talk.client.pull(3)
    assert answer.code == ResponseCode.SUCCESS
    assert await commit(talk.client, 4) == ""


def pending(tmp_path: Path) -> object:
    file = tmp_path / "config" / "consumerOffset.json"
    return file.exists() and fastjson.decode(file.read_bytes(), ConsumerOffsetTable).pending_resets


async def before(tmp_path: Path, talk: Talk) -> None:
    await prepare(talk)
    await reset(talk.client, queue_id=0, offset=3)
    await until(lambda: pending(tmp_path) == {"T@g": [0]})


async def in_the_end(tmp_path: Path, talk: Talk) -> None:
    assert b"pendingResets" not in (tmp_path / "config" / "consumerOffset.json").read_bytes()
    assert await committed(talk.client) == 4
    assert await commit(talk.client, 9) == ""


def test_a_restart_does_not_forget_who_has_not_heard_of_a_reset(tmp_path: Path) -> None:
    for life in (partial(before, tmp_path), after, partial(in_the_end, tmp_path)):
        converse(life, tmp_path)


@in_loop(converse)
async def test_each_reader_is_told_of_a_reset_and_one_that_insists_has_its_way(
    talk: Talk, /
) -> None:
    await prepare(talk)
    other = talk.another()
    await reset(talk.client, queue_id=0, offset=3)
    for client in (talk.client, other):
        answer, header = await client.pull(9)
        assert (answer.code, header.next_begin_offset) == (ResponseCode.PULL_OFFSET_MOVED, 3)
    answer, _ = await other.pull(9)
    assert answer.code == ResponseCode.SUCCESS, "a program that keeps its own places"


@in_loop(converse)
async def test_a_held_pull_hears_of_a_reset_at_once(talk: Talk, /) -> None:
    await prepare(talk)
    other = talk.another()
    await other.remoting.connect(other.address)
    held = asyncio.ensure_future(other.pull(END, suspend_ms=1_000_000))
    while not len(talk.broker.parts.delivering.held_pulls):
        await asyncio.sleep(0.001)
    await reset(talk.client, queue_id=0, offset=3)
    answer, header = await held
    assert (answer.code, header.next_begin_offset) == (ResponseCode.PULL_NOT_FOUND, END)
    answer, header = await other.pull(END, suspend_ms=1_000_000)
    assert (answer.code, header.next_begin_offset) == (ResponseCode.PULL_OFFSET_MOVED, 3)


class Member(Client):
    """A consumer that notes what is pushed to it and answers what it is asked."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.pushed: list[bytes] = []
        router = Router()
        router.add(ResetConsumerOffset, self._reset)
        router.add(GetConsumerStatusFromClient, self._status)
        self.remoting = RemotingClient(router, connect_timeout=ANSWER_S)

    def _reset(self, request: ResetConsumerOffset, context: RequestContext) -> Outcome[None]:
        assert (request.group, request.topic) == ("g", "T")
        self.pushed.append(context.body)
        return HELD

    def _status(self, request: GetConsumerStatusFromClient, context: RequestContext) -> Response:
        return Response(
            body=fastjson.encode(
                GetConsumerStatusBody(message_queue_table={MessageQueue("T", "broker-a", 0): 7})
            )
        )


@pytest.mark.parametrize(
    ("model", "config", "fenced"),
    [("BROADCASTING", {}, False), ("CLUSTERING", {"use_server_side_reset_offset": False}, True)],
)
@in_loop(watched)
async def test_readers_that_would_not_hear_of_it_are_pushed_the_new_places(
    tmp_path: Path, model: str, config: dict[str, Any], fenced: bool
) -> None:
    async with talking(tmp_path, **config) as talk:
        await prepare(talk)
        java, cpp = Member(talk.broker.address), Member(talk.broker.address)
        talk.clients += [java, cpp]
        await java.join("java", "g", messageModel=model)
        heartbeat = {
            "clientID": "cpp",
            "consumerDataSet": [{"groupName": "g", "messageModel": model}],
        }
        connection = await cpp.remoting.connect(cpp.address)
        command = request_command(
            Heartbeat(), fastjson.encode(heartbeat), opaque=connection.calls.next_opaque
        )
        command.language = LanguageCode.CPP
        await connection.start_call(command.opaque, encode_command(command), 10)
        await reset(talk.client, queue_id=0, offset=3)
        while not (java.pushed and cpp.pushed):
            await asyncio.sleep(0.001)
        assert fastjson.decode(java.pushed[0], ResetOffsetBody).offset_table == {
            MessageQueue("T", "broker-a", 0): 3
        }
        assert [
            one.offset for one in fastjson.decode(cpp.pushed[0], ResetOffsetBodyForC).offset_table
        ] == [3]
        assert await committed(talk.client) == (3 if fenced else 8)


@in_loop(converse)
async def test_the_places_of_consumers_are_asked_of_them(talk: Talk, /) -> None:
    await prepare(talk)
    assert (await talk.client.code(GetConsumerStatus(topic="T", group="g")))[
        0
    ] == ResponseCode.SYSTEM_ERROR
    member = Member(talk.broker.address)
    deaf = talk.another()
    talk.clients.append(member)
    await member.join("one")
    await deaf.join("deaf")
    answer = await talk.client.ask(GetConsumerStatus(topic="T", group="g"))
    table = fastjson.decode(answer.body, GetConsumerStatusBody).consumer_table
    assert table == {"one": {MessageQueue("T", "broker-a", 0): 7}}, (
        "who does not answer is left out"
    )


@in_loop(converse)
async def test_a_clone_stands_where_its_source_does_and_wins_as_a_reset_does(talk: Talk, /) -> None:
    await prepare(talk, "other")
    await commit(talk.client, 2, group="other")
    code, _ = await talk.client.code(
        CloneGroupOffset(src_group="other", dest_group="g", topic="T", offline=True)
    )
    assert code == ResponseCode.SUCCESS
    assert await committed(talk.client) == 2
    assert await commit(talk.client, 9) == "Offset has been previously reset"
    code, _ = await talk.client.code(CloneGroupOffset(src_group="other", dest_group="no/good"))
    assert code == ResponseCode.INVALID_PARAMETER


@in_loop(converse)
async def test_a_clone_may_be_of_a_group_that_comes_later(talk: Talk, /) -> None:
    await prepare(talk)
    assert await talk.client.code(CloneGroupOffset(src_group="g", dest_group="later")) == (0, "")
    assert await committed(talk.client, group="later") == 8


async def ask(talk: Talk, **fields: Any) -> dict[int, int]:
    answer = await talk.client.ask(QueryCorrectionOffset(topic="T", **fields))
    return dict(fastjson.decode(answer.body, QueryCorrectionOffsetBody).correction_offsets)


@in_loop(converse)
async def test_a_correction_names_the_lowest_place_of_the_others(talk: Talk, /) -> None:
    await prepare(talk, "other", "third")
    await commit(talk.client, 2, group="other")
    await commit(talk.client, 9, group="g")

    assert await ask(talk, compare_group="g", filter_groups="g") == {0: 2, 1: 8}
    assert await ask(talk, compare_group="other", filter_groups="other") == {0: 2**63 - 1, 1: 8}
