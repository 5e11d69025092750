"""Requests to a controller by three replicas that exist only in words, and by Apache's mqadmin: the
same to Apache's controller and to ours.

The one rule: an answer is compared by its code, header fields and body. Remarks are words.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.unit.broker.talking import Client

from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.controller import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    ElectMaster,
    GetNextBrokerId,
    GetReplicaInfo,
    GetSyncStateData,
    RegisterReplica,
    SyncStateSet,
)
from turbopump.protocol.requests.namesrv import BrokerHeartbeat

CLUSTER: Final = "DefaultCluster"
NAME: Final = "words"
NOWHERE: Final = "127.0.0.1:{}"
"""Address of a replica. Nobody listens there, so that notices end at once."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request, and a word for what it is about."""

    about: str
    request: Request[Any]
    body: bytes = b""


def address(id_: int) -> str:
    return NOWHERE.format(id_)


def _beat(id_: int, epoch: int, max_offset: int) -> Question:
    request = BrokerHeartbeat(
        cluster_name=CLUSTER,
        broker_addr=address(id_),
        broker_name=NAME,
        broker_id=id_,
        epoch=epoch,
        max_offset=max_offset,
        confirm_offset=0,
        heartbeat_timeout_mills=600_000,
        election_priority=id_,
    )
    return Question(f"heartbeat of {id_}", request)


def _applied(about: str, id_: int, code: str) -> Question:
    request = ApplyBrokerId(
        cluster_name=CLUSTER, broker_name=NAME, applied_broker_id=id_, register_check_code=code
    )
    return Question(about, request)


def _registered(about: str, id_: int) -> Question:
    return Question(
        about,
        RegisterReplica(
            cluster_name=CLUSTER, broker_name=NAME, broker_id=id_, broker_address=address(id_)
        ),
    )


def _elect(about: str, id_: int, *, designate: bool) -> Question:
    request = ElectMaster(
        cluster_name=CLUSTER, broker_name=NAME, broker_id=id_, designate_elect=designate
    )
    return Question(about, request)


def _alter(about: str, ids: list[int], *, master: int, epoch: int, set_epoch: int) -> Question:
    request = AlterSyncStateSet(broker_name=NAME, master_broker_id=master, master_epoch=epoch)
    body = SyncStateSet(sync_state_set=ids, sync_state_set_epoch=set_epoch)
    return Question(about, request, fastjson.encode(body))


def questions() -> Iterator[Question]:
    """The life of a group, with what is refused in between."""
    info = Question("who is the master", GetReplicaInfo(broker_name=NAME))
    next_id = Question("next id", GetNextBrokerId(cluster_name=CLUSTER, broker_name=NAME))
    data = Question("replicas", GetSyncStateData(), json.dumps([NAME, "none"]).encode())
    yield info
    yield next_id
    yield _registered("a registration without an id", 1)
    yield _applied("a first id that is not 1", 2, "a;1")
    yield _elect("an election of nobody", 1, designate=False)
    for id_ in (1, 2, 3):
        yield _applied(f"id {id_}", id_, f"{address(id_)};17")
    yield _applied("the same id again", 3, f"{address(3)};17")
    yield _applied("an id of another one", 3, "127.0.0.9:1;17")
    yield next_id
    yield _registered("a registration without a master", 2)
    for id_ in (1, 2, 3):
        yield _beat(id_, 0, 0)
    yield _elect("the first master", 1, designate=False)
    yield _elect("a master that lives", 2, designate=False)
    yield _registered("a registration of a slave", 2)
    yield info
    yield _alter("a set of nobody's", [1, 2], master=2, epoch=1, set_epoch=1)
    yield _alter("a set of another epoch", [1, 2], master=1, epoch=7, set_epoch=1)
    yield _alter("a set after another", [1, 2], master=1, epoch=1, set_epoch=7)
    yield _alter("a set with a stranger", [1, 9], master=1, epoch=1, set_epoch=1)
    yield _alter("a set without the master", [2], master=1, epoch=1, set_epoch=1)
    yield _alter("the same set", [1], master=1, epoch=1, set_epoch=7)
    yield _alter("a larger set", [1, 2], master=1, epoch=1, set_epoch=1)
    yield _elect("a designated replica outside of the set", 3, designate=True)
    yield _elect("the master, designated", 1, designate=True)
    yield _elect("a designated replica", 2, designate=True)
    yield info
    yield _alter("the former master's set", [1, 2], master=1, epoch=1, set_epoch=3)
    yield _alter("the new master's set", [2, 1, 3], master=2, epoch=2, set_epoch=3)
    yield data
    clean = {"cluster_name": CLUSTER, "broker_name": NAME}
    yield Question(
        "clean a living one", CleanBrokerData(**clean, broker_controller_ids_to_clean="1")
    )
    yield Question("clean all, one lives", CleanBrokerData(**clean))
    yield Question(
        "clean what is unknown", CleanBrokerData(cluster_name=CLUSTER, broker_name="none")
    )
    yield Question("clean nonsense", CleanBrokerData(**clean, broker_controller_ids_to_clean="x"))
    yield data


def shown(answer: Command) -> tuple[int, dict[str, Any], Any]:
    """What is compared of an answer. Lists of ids and of replicas have no order. Header fields of
    a refusal mean nothing: Apache's has zeros there."""
    body = fastjson.parse(answer.body) if answer.body else None
    means = answer.code in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
    return answer.code, (answer.ext or {}) if means else {}, _sorted(body)


def _sorted(value: Any) -> Any:
    if isinstance(value, list):
        return sorted(map(_sorted, value), key=str)
    if isinstance(value, dict):
        return {name: _sorted(item) for name, item in value.items()}
    return value


async def all_answers(controller: str) -> dict[str, tuple[int, dict[str, Any], Any]]:
    """The answers of one controller, by number and word of the question."""
    client = Client(controller)
    try:
        await _until_it_leads(client)
        return {
            f"{number}: {one.about}": shown(await client.ask(one.request, one.body, timeout=10.0))
            for number, one in enumerate(questions())
        }
    finally:
        await client.remoting.close()


async def _until_it_leads(client: Client) -> None:
    async with asyncio.timeout(60.0):
        while (await client.ask(GetReplicaInfo(broker_name="none"), timeout=10.0)).code == 2007:
            await asyncio.sleep(0.1)
