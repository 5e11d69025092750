"""A good request of every code that a server answers, for servers that have what it names; how it
is spoiled; and what is answered to each.

One rule: whatever a request needs (a message, a receipt, a member that answers) is made here, so
that a good one is answered with success.
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from tests.stand_ins import returns
from tests.unit.broker.popping import pop_request, popped
from tests.unit.broker.talking import Talk, batch_of, consumer, talking
from tests.unit.namesrv.world import registered
from tests.waits import until

from turbopump.broker.broker import Broker
from turbopump.config.controller_config import ControllerConfig
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.controller import Controller
from turbopump.disk.system_disk import SystemDisk
from turbopump.message.ids import decode_offset_msg_id
from turbopump.message.message import MessageQueue
from turbopump.namesrv.server import NameServer
from turbopump.protocol import fastjson, requests
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.command import Command, encode_command, request_command
from turbopump.protocol.request import Request
from turbopump.protocol.requests import (
    assignment,
    cleaning,
    clients,
    configuration,
    consumers,
    controller,
    groups,
    namesrv,
    offsets,
    pop,
    pull,
    replication,
    send,
    statistics,
    topics,
)
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.response import Response
from turbopump.remoting.router import HELD, Router

GROUP, TOPIC, MEMBER, PRODUCERS = "g", "T", "c@1", "p"
REPLY: Final = "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01c@1\x02TTL\x013000"


@dataclass(frozen=True, slots=True)
class Trial:
    """A request as it travels: header fields as text."""

    code: int
    fields: Mapping[str, str]
    body: bytes = b""

    @classmethod
    def of(cls, request: Request[Any], body: Any = b"") -> Trial:
        command = request_command(request, body, opaque=0)
        return cls(command.code, command.ext or {}, command.body)


def declared() -> dict[int, type[Request[Any]]]:
    """The class of every request that is declared."""
    found = {}
    for module in pkgutil.iter_modules(requests.__path__):
        for value in vars(importlib.import_module(f"{requests.__name__}.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, Request) and value is not Request:
                found[int(value.code)] = value
    return found


DECLARED: Final = declared()


class Peer:
    """A connection to a server, on which anything may be asked. Its router is a consumer's, who
    answers what a broker passes on."""

    def __init__(self, address: str) -> None:
        self.address = address
        router = Router()
        router.add(clients.NotifyConsumerIdsChanged, returns(HELD))
        router.add_with_body(offsets.ResetConsumerOffset, lambda *_: Response())
        router.add(offsets.GetConsumerStatusFromClient, self._status)
        router.add(consumers.GetConsumerRunningInfo, self._running)
        router.add(consumers.ConsumeMessageDirectly, self._consumed)
        router.add(send.PushReplyMessageToClient, lambda _request, _context: Response())
        router.add(send.CheckTransactionState, returns(HELD))
        self.remoting = RemotingClient(router)

    async def ask(self, trial: Trial) -> Command:
        connection = await self.remoting.connect(self.address)
        command = Command(
            trial.code,
            opaque=connection.calls.next_opaque,
            ext=dict(trial.fields) or None,
            body=trial.body,
        )
        return await connection.start_call(command.opaque, encode_command(command), 60.0)

    def _status(self, _request: Any, _context: Any) -> Response[offsets.GetConsumerStatusBody]:
        return Response(offsets.GetConsumerStatusBody())

    def _running(self, _request: Any, _context: Any) -> Response[consumers.ConsumerRunningInfo]:
        return Response(consumers.ConsumerRunningInfo())

    def _consumed(
        self, _request: Any, _context: Any
    ) -> Response[consumers.ConsumeMessageDirectlyResult]:
        return Response(consumers.ConsumeMessageDirectlyResult())


def _without_own_offsets(body: bytes) -> bytes:
    """A table; of offsets, those of users' groups, for a broker's own move by themselves."""
    if b'"groupTopicMap"' not in body:
        return body
    table = fastjson.decode(body, offsets.ConsumerOffsetTable).offset_table
    return repr([item for item in table.items() if REVIVE_GROUP not in item[0]]).encode()


REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"


@dataclass(slots=True)
class Prepared:
    """A server that has what good requests name. ``codes``: all that it answers; ``tables``:
    requests for all that it keeps."""

    peer: Peer
    codes: frozenset[int]
    good: dict[int, Trial]
    tables: tuple[Request[Any], ...]

    async def state(self) -> list[tuple[int, bytes]]:
        """All that the server keeps."""
        answers = [await self.peer.ask(Trial.of(request)) for request in self.tables]
        return [(answer.code, _without_own_offsets(answer.body)) for answer in answers]


def by_code(*trials: Trial) -> dict[int, Trial]:
    found = {trial.code: trial for trial in trials}
    assert len(found) == len(trials)
    return found


# --- A broker.

BROKER_TABLES: Final = (
    topics.GetAllTopicConfig(),
    groups.GetAllGroups(),
    replication.GetAllConsumerOffset(),
    replication.GetAllMessageRequestMode(),
    configuration.GetBrokerConfig(),
    statistics.GetColdFlow(),
    topics.GetTopicStatsInfo(topic=TOPIC),
)


SETTINGS: Final[dict[str, Any]] = {"recall_message_enable": True, "max_message_size": 1 << 16}


def make(conf: Any, config: Any) -> Broker:
    return Broker(config, file=conf)


@asynccontextmanager
async def prepared_broker(directory: Path) -> AsyncIterator[Prepared]:
    """A broker with a topic, a group with a member, and messages of each kind."""
    conf = directory / "broker.conf"
    conf.write_text("")

    async with talking(directory / "store", make=partial(make, conf), **SETTINGS) as talk:
        peer = Peer(talk.broker.address)
        try:
            good = await _broker_trials(talk, peer)
            yield Prepared(
                peer, talk.broker.parts.listening.server.router.codes, good, BROKER_TABLES
            )
        finally:
            await peer.remoting.close()


async def _broker_trials(talk: Talk, peer: Peer) -> dict[int, Trial]:
    """Make what good requests name; and the requests."""
    client, now_ms = talk.client, talk.broker.clock.now_ms()
    await client.create(queues=2)
    beat = {
        "clientID": MEMBER,
        "consumerDataSet": [consumer(GROUP)],
        "producerDataSet": [{"groupName": PRODUCERS}],
    }
    heartbeat = Trial.of(clients.Heartbeat(), fastjson.encode(beat))
    assert (await peer.ask(heartbeat)).code == 0
    sent = await client.send(properties="KEYS\x01k\x02UNIQ_KEY\x01U1\x02TAGS\x01a\x02")
    half = await client.send(
        sys_flag=4, properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U2\x02"
    )
    timed = await client.send(properties=f"TIMER_DELIVER_MS\x01{now_ms + 3_600_000}\x02")
    pop_all = pop_request(now_ms, poll_ms=5000, invisible_ms=600_000)
    (received,) = popped(await client.ask(pop_all))
    await until(lambda: talk.broker.tables.offsets.find(GROUP, TOPIC, 0) == 1)
    receipt = {"consumer_group": GROUP, "topic": TOPIC, "queue_id": 0, "offset": 0}
    receipt["extra_info"] = received.handle.encode()
    await client.send(queue_id=1)
    talk.broker.parts.stored.statistics.add("TOPIC_PUT_NUMS", TOPIC, 2)  # as the next sample will
    handle = received.handle
    acked = pop.BatchAck(
        consumer_group=GROUP,
        topic=TOPIC,
        retry="0",
        start_offset=handle.start_offset,
        revive_queue_id=handle.revive_queue_id,
        pop_time=handle.pop_time_ms,
        invisible_time=handle.invisible_ms,
        bits=pop.pack_bits([0]),
    )
    stored = decode_offset_msg_id(sent.msg_id)[2]
    message: dict[str, Any] = {
        "producer_group": PRODUCERS,
        "topic": TOPIC,
        "queue_id": 0,
        "born_timestamp": now_ms,
    }
    reply = {**message, "topic": "DefaultCluster_REPLY_TOPIC", "properties": REPLY}
    of_group: dict[str, Any] = {"consumer_group": GROUP}
    on_topic: dict[str, Any] = {"topic": TOPIC, "queue_id": 0}
    in_group: dict[str, Any] = {"group": GROUP, "topic": TOPIC}
    wanted: dict[str, Any] = {**of_group, **on_topic}
    pulled = {**wanted, "queue_offset": 0, "max_msg_nums": 1, "sys_flag": 4, "subscription": "*"}
    locked = assignment.LockBatchRequestBody(
        consumer_group=GROUP,
        client_id=MEMBER,
        mq_set=(MessageQueue(topic=TOPIC, broker_name="broker-a", queue_id=0),),
    )
    t = Trial.of
    return by_code(
        heartbeat,
        # messages
        t(send.SendMessage(**message), b"x"),
        t(send.SendMessageV2(**message), b"x"),
        t(send.SendBatchMessage(**message, batch=True), batch_of(b"1", b"2")),
        t(send.SendReplyMessage(**reply), b"x"),
        t(send.SendReplyMessageV2(**reply), b"x"),
        t(send.ConsumerSendMsgBack(offset=stored, group=GROUP, delay_level=0)),
        t(
            send.EndTransaction(
                producer_group=PRODUCERS,
                tran_state_table_offset=half.queue_offset,
                commit_log_offset=decode_offset_msg_id(half.msg_id)[2],
                commit_or_rollback=8,
            )
        ),
        t(send.ResumeCheckHalfMessage(topic=TOPIC, msg_id=half.msg_id)),
        t(send.RecallMessage(topic=TOPIC, recall_handle=timed.recall_handle)),
        t(pull.PullMessage(**pulled)),
        t(pull.LitePullMessage(**pulled)),
        t(
            pull.QueryMessage(
                topic=TOPIC, key="k", max_num=1, begin_timestamp=0, end_timestamp=2**62
            )
        ),
        t(pull.ViewMessageById(offset=stored)),
        t(
            pop.PopMessage(
                **{**wanted, "queue_id": -1},
                max_msg_nums=1,
                invisible_time=60_000,
                poll_time=600_000,
                born_time=now_ms,
                init_mode=0,
            )
        ),
        t(pop.PeekMessage(**{**wanted, "queue_id": 1}, max_msg_nums=1)),
        t(pop.AckMessage(**receipt)),
        t(pop.ChangeInvisibleTime(**receipt, invisible_time=1000)),
        t(pop.BatchAckMessage(), pop.BatchAckBody(broker_name="broker-a", acks=(acked,))),
        t(pop.Notification(**wanted, poll_time=0, born_time=0)),
        t(pop.PollingInfo(**wanted)),
        # clients
        t(clients.UnregisterClient(client_id=MEMBER, consumer_group=GROUP)),
        t(clients.GetConsumerListByGroup(**of_group)),
        t(clients.CheckClientConfig(), b"{}"),
        t(assignment.LockBatchMq(), locked),
        t(assignment.UnlockBatchMq(), locked),
        t(
            assignment.QueryAssignment(),
            assignment.QueryAssignmentRequestBody(
                topic=TOPIC,
                consumer_group=GROUP,
                client_id=MEMBER,
                strategy_name="AVG",
                message_model=clients.MessageModel.CLUSTERING,
            ),
        ),
        t(
            assignment.SetMessageRequestMode(),
            assignment.SetMessageRequestModeRequestBody(
                topic=TOPIC, consumer_group=GROUP, mode=assignment.MessageRequestMode.POP
            ),
        ),
        # offsets
        t(offsets.QueryConsumerOffset(**wanted, set_zero_if_not_found=True)),
        t(offsets.UpdateConsumerOffset(**wanted, commit_offset=1)),
        t(offsets.SearchOffset(**on_topic, timestamp=now_ms)),
        t(offsets.GetMaxOffset(**on_topic)),
        t(offsets.GetMinOffset(**on_topic)),
        t(pull.GetEarliestMsgStoreTime(**on_topic)),
        t(offsets.ResetOffset(**in_group, timestamp=-1)),
        t(offsets.GetConsumerStatus(**in_group, client_addr=MEMBER)),
        t(offsets.CloneGroupOffset(src_group=GROUP, dest_group="h", topic=TOPIC)),
        t(offsets.QueryCorrectionOffset(topic=TOPIC, compare_group=GROUP)),
        # topics and groups
        t(topics.CreateTopic(topic="N")),
        t(
            topics.CreateTopicList(),
            topics.CreateTopicListRequestBody(
                topic_config_list=[topics.TopicConfig(topic_name="N")]
            ),
        ),
        t(topics.DeleteTopic(topic=TOPIC)),
        t(topics.GetTopicConfig(topic=TOPIC)),
        t(topics.GetAllTopicConfig()),
        t(topics.GetSystemTopicsOfBroker()),
        t(topics.GetTopicStatsInfo(topic=TOPIC)),
        t(groups.CreateGroup(), groups.SubscriptionGroupConfig(group_name="n")),
        t(
            groups.CreateGroupList(),
            groups.SubscriptionGroupList(
                group_config_list=[groups.SubscriptionGroupConfig(group_name="n")]
            ),
        ),
        t(groups.DeleteGroup(group_name=GROUP)),
        t(groups.GetAllGroups()),
        t(groups.GetGroup(group=GROUP)),
        t(groups.UpdateGroupForbidden(**in_group, readable=False)),
        # who consumes what
        t(consumers.GetConsumeStats(**of_group)),
        t(consumers.GetBrokerConsumeStats()),
        t(consumers.QueryTopicConsumeByWho(topic=TOPIC)),
        t(consumers.QueryTopicsByConsumer(group=GROUP)),
        t(consumers.QueryConsumeTimeSpan(**in_group)),
        t(consumers.GetConsumerConnectionList(**of_group)),
        t(consumers.GetProducerConnectionList(producer_group=PRODUCERS)),
        t(consumers.GetAllProducerInfo()),
        t(consumers.QuerySubscriptionByConsumer(**in_group)),
        t(consumers.GetConsumerRunningInfo(**of_group, client_id=MEMBER)),
        t(consumers.ConsumeMessageDirectly(**of_group, client_id=MEMBER, msg_id=sent.msg_id)),
        # the broker as a whole
        t(configuration.UpdateBrokerConfig(), b"fileReservedTime=48\n"),
        t(configuration.GetBrokerConfig()),
        t(statistics.GetBrokerRuntimeInfo()),
        t(statistics.ViewBrokerStatsData(stats_name="TOPIC_PUT_NUMS", stats_key=TOPIC)),
        t(statistics.QueryConsumeQueue(**on_topic, index=0, count=1)),
        t(statistics.UpdateColdFlow(), b"g=1000\n"),
        t(statistics.RemoveColdFlow(), b"g"),
        t(statistics.GetColdFlow()),
        t(statistics.SetCommitLogReadMode(mode="1")),
        t(cleaning.CleanExpiredConsumeQueue()),
        t(cleaning.CleanUnusedTopic()),
        t(cleaning.DeleteExpiredCommitLog()),
        t(replication.GetAllConsumerOffset()),
        t(replication.GetAllDelayOffset()),
        t(replication.GetAllMessageRequestMode()),
        t(replication.GetBrokerHaStatus()),
        t(replication.NotifyMinBrokerIdChange()),
        t(replication.ExchangeHAInfo()),
        t(replication.ResetMasterFlushOffset(master_flush_offset=1)),
        t(replication.GetTimerCheckpoint()),
        t(replication.GetTimerMetrics()),
    )


# --- A name server.

NAMESRV_TABLES: Final = (
    namesrv.GetAllTopicList(),
    namesrv.GetRouteInfo(topic=TOPIC),
    namesrv.GetBrokerClusterInfo(),
    namesrv.GetKvListByNamespace(kv_namespace="NS"),
    namesrv.GetNamesrvConfig(),
)


@asynccontextmanager
async def prepared_namesrv(directory: Path) -> AsyncIterator[Prepared]:
    """A name server with a broker, a topic and a key."""
    server = NameServer(
        NamesrvConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            kv_config_path=str(directory / "kvConfig.json"),
            config_store_path=str(directory / "namesrv.properties"),
        ),
        disk=SystemDisk(asyncio.get_running_loop().call_soon_threadsafe),
    )
    host, port = await server.start()
    peer = Peer(f"{host}:{port}")
    try:
        good = _namesrv_trials()
        for code in (RequestCode.REGISTER_BROKER, RequestCode.PUT_KV_CONFIG):
            answer = await peer.ask(good[code])
            assert answer.code == 0, answer
        yield Prepared(peer, server.router.codes, good, NAMESRV_TABLES)
    finally:
        await peer.remoting.close()
        await server.close()


def _namesrv_trials() -> dict[int, Trial]:
    cluster = {"cluster_name": "c"}
    broker = {"broker_name": "broker-a", "broker_addr": "127.0.0.1:10911", **cluster}
    key = {"kv_namespace": "NS", "key": "k"}
    t = Trial.of
    return by_code(
        t(namesrv.RegisterBroker(**broker, broker_id=0), registered((TOPIC, "U")).encode()),
        t(namesrv.UnregisterBroker(**broker, broker_id=0)),
        t(namesrv.BrokerHeartbeat(**broker)),
        t(namesrv.QueryDataVersion(**broker, broker_id=0), topics.DataVersion()),
        t(namesrv.GetRouteInfo(topic=TOPIC)),
        t(namesrv.GetBrokerClusterInfo()),
        t(namesrv.GetBrokerMemberGroup(**cluster, broker_name="broker-a")),
        t(namesrv.GetAllTopicList()),
        t(namesrv.GetTopicsByCluster(cluster="c")),
        t(namesrv.GetSystemTopicList()),
        t(namesrv.GetUnitTopicList()),
        t(namesrv.GetHasUnitSubTopicList()),
        t(namesrv.GetHasUnitSubUnunitTopicList()),
        t(namesrv.WipeWritePerm(broker_name="broker-a")),
        t(namesrv.AddWritePerm(broker_name="broker-a")),
        t(namesrv.DeleteTopicInNamesrv(topic=TOPIC)),
        t(
            namesrv.RegisterTopicInNamesrv(topic="N"),
            namesrv.TopicRouteData(queue_datas=(namesrv.QueueData(broker_name="broker-a"),)),
        ),
        t(namesrv.PutKvConfig(**key, value="v")),
        t(namesrv.GetKvConfig(**key)),
        t(namesrv.DeleteKvConfig(**key)),
        t(namesrv.GetKvListByNamespace(kv_namespace="NS")),
        t(namesrv.UpdateNamesrvConfig(), b"enableTopicList=false\n"),
        t(namesrv.GetNamesrvConfig()),
    )


CONTROLLER_TABLES: Final = (
    controller.GetReplicaInfo(broker_name="broker-a"),
    controller.GetControllerConfig(),
)


@asynccontextmanager
async def prepared_controller(directory: Path) -> AsyncIterator[Prepared]:
    """A controller with two replicas, of which the first is the master."""
    server = Controller(
        ControllerConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            controller_store_path=str(directory / "store"),
            config_store_path=str(directory / "controller.properties"),
        ),
        disk=SystemDisk(asyncio.get_running_loop().call_soon_threadsafe),
    )
    host, port = await server.start()
    peer = Peer(f"{host}:{port}")
    good = _controller_trials()
    second = {**_APPLIED, "applied_broker_id": 2, "register_check_code": "127.0.0.1:10921;1"}
    try:
        for trial in (
            good[RequestCode.CONTROLLER_APPLY_BROKER_ID],
            Trial.of(controller.ApplyBrokerId(**second)),
            good[RequestCode.BROKER_HEARTBEAT],
            Trial.of(namesrv.BrokerHeartbeat(**{**_BEATING, "broker_id": 2})),
            Trial.of(controller.ElectMaster(**{**_ELECTING, "broker_id": 1})),
        ):
            answer = await peer.ask(trial)
            assert answer.code == 0, answer
        yield Prepared(peer, server.router.codes, good, CONTROLLER_TABLES)
    finally:
        await peer.remoting.close()
        await server.close()


_BEATING: Final[dict[str, Any]] = {
    "cluster_name": "c",
    "broker_name": "broker-a",
    "broker_addr": "127.0.0.1:10911",
    "broker_id": 1,
}
_APPLIED: Final[dict[str, Any]] = {
    "cluster_name": "c",
    "broker_name": "broker-a",
    "applied_broker_id": 1,
    "register_check_code": "127.0.0.1:10911;1",
}
_ELECTING: Final[dict[str, Any]] = {
    "cluster_name": "c",
    "broker_name": "broker-a",
    "broker_id": 2,
    "designate_elect": True,
}


def _controller_trials() -> dict[int, Trial]:
    name = {"broker_name": "broker-a"}
    t = Trial.of
    return by_code(
        t(namesrv.BrokerHeartbeat(**_BEATING)),
        t(
            controller.AlterSyncStateSet(**name, master_broker_id=1, master_epoch=1),
            controller.SyncStateSet(sync_state_set=[1, 2], sync_state_set_epoch=1),
        ),
        t(controller.ElectMaster(**_ELECTING)),
        t(
            controller.RegisterReplica(
                cluster_name="c", **name, broker_id=2, broker_address="127.0.0.1:10921"
            )
        ),
        t(controller.GetReplicaInfo(**name)),
        t(controller.GetControllerMetadata()),
        t(controller.GetSyncStateData(), b'["broker-a"]'),
        t(controller.UpdateControllerConfig(), b"enableElectUncleanMaster=false\n"),
        t(controller.GetControllerConfig()),
        t(
            controller.CleanBrokerData(
                cluster_name="c",
                **name,
                broker_controller_ids_to_clean="2",
                is_clean_living_broker=True,
            )
        ),
        t(controller.GetNextBrokerId(cluster_name="c", **name)),
        t(controller.ApplyBrokerId(**_APPLIED)),
    )


# --- How a request is spoiled.


def incomplete(trial: Trial) -> Iterator[Trial]:
    """Without each of the fields that it must have; without its body, if it must have one."""
    for field in msgspec.structs.fields(DECLARED[trial.code]):
        if field.required:
            left = {name: text for name, text in trial.fields.items() if name != field.encode_name}
            yield replace(trial, fields=left)


def unreadable(trial: Trial) -> Iterator[Trial]:
    """With a word for each number; with half of its JSON."""
    type_ = DECLARED[trial.code]
    for field in msgspec.structs.fields(type_):
        if field.encode_name in trial.fields and is_number(field):
            yield replace(trial, fields={**trial.fields, field.encode_name: "seven"})
    if type_.body is not None:
        yield replace(trial, body=trial.body[: len(trial.body) // 2] or b"{")


NASTY: Final = "../../%n\x00\x01\x02\u20ac'\"; DROP *"


def bad_names(trial: Trial) -> Iterator[Trial]:
    """With names that nothing can have."""
    names = {field.encode_name: NASTY for field in _given(trial) if is_text(field)}
    if names:
        yield replace(trial, fields={**trial.fields, **names})


def low_numbers(trial: Trial, number: int = -(2**31)) -> Iterator[Trial]:
    """With numbers that nothing can have."""
    numbers = {field.encode_name: str(number) for field in _given(trial) if is_number(field)}
    if numbers:
        yield replace(trial, fields={**trial.fields, **numbers})


def high_numbers(trial: Trial) -> Iterator[Trial]:
    """The same, at the other end."""
    return low_numbers(trial, 2**31 - 1)


def bad_body(trial: Trial) -> Iterator[Trial]:
    """With a body of noise, if it has one."""
    if trial.body:
        yield replace(trial, body=b"\x00\xff" * 20)


def _given(trial: Trial) -> list[msgspec.structs.FieldInfo]:
    declared = msgspec.structs.fields(DECLARED[trial.code])
    return [field for field in declared if field.encode_name in trial.fields]


def of_no_server(code: int) -> Iterator[Trial]:
    """A request of a code that is to be refused whatever comes with it: bare, with fields, and
    with noise."""
    declared = msgspec.structs.fields(DECLARED[code]) if code in DECLARED else ()
    names = [field.encode_name for field in declared] or ["topic", "group"]
    yield Trial(code, {})
    yield Trial(code, dict.fromkeys(names, "1"), b"{}")
    yield Trial(code, dict.fromkeys(names, NASTY), b"\x00\xff" * 20)


SPOILT: Final = (incomplete, unreadable, bad_names, low_numbers, high_numbers, bad_body)
"""The columns of the answers after the first."""


EXTREMES: Final = (-(2**63), -(2**31), -1, 0, 65_536, 2**31 - 1, 2**31, 2**62, 2**63 - 1)


def with_extremes(trial: Trial) -> Iterator[Trial]:
    """The same request, with each of its numbers in turn at each extreme."""
    for field in msgspec.structs.fields(DECLARED[trial.code]):
        if is_number(field):
            for number in EXTREMES:
                yield replace(trial, fields={**trial.fields, field.encode_name: str(number)})
    if DECLARED[trial.code].body is None:
        return
    for number in EXTREMES:
        for body in bodies_with(fastjson.parse(trial.body), number):
            yield replace(trial, body=fastjson.encode(body))


def bodies_with(value: Any, number: int) -> Iterator[Any]:
    """A value, with each of the numbers in it replaced in turn."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield number
    elif isinstance(value, dict):
        for key, item in value.items():
            for changed in bodies_with(item, number):
                yield {**value, key: changed}
    elif isinstance(value, list):
        for at, item in enumerate(value):
            for changed in bodies_with(item, number):
                yield [*value[:at], changed, *value[at + 1 :]]


def is_text(field: msgspec.structs.FieldInfo) -> bool:
    return field.type in (str, str | None)


def is_number(field: msgspec.structs.FieldInfo) -> bool:
    """RocketMQ: whatever is not "true" is false, so no flag is unreadable."""
    return not is_text(field) and field.type not in (bool, bool | None)


# --- What is answered.

Answers = Mapping[int, tuple[str, ...]]
"""Request code to response codes: to the good request, and to each of ``SPOILT``."""


def answers(text: str) -> Answers:
    """One line for each: request code, then the columns; - where nothing can be spoilt so, / where
    it depends on the field."""
    return {int(code): tuple(columns) for code, *columns in map(str.split, text.splitlines())}


BROKER_ANSWERS: Final = answers(
    """\
    10 0 1 1 29 0 29 0
    11 0 1 1 26 29 29 -
    12 0 1 1 22 22 22 -
    14 0 1 1 0 0 0 -
    15 0 1 29 26 29 29 -
    17 0 1 1 1 29 29 -
    18 0 - 1 - - - 1
    21 0 - - - - - -
    25 0 - - - - - 1
    26 0 - - - - - -
    28 0 - - - - - -
    29 0 1 1 0 0 0 -
    30 0 1 1 0 0 0 -
    31 0 1 1 0 0 0 -
    32 0 1 1 0 0 0 -
    33 0 1 1 - 1 1 -
    34 0 - 1 - - - 1
    35 0 1 - 0 - - -
    36 0 1 1 26 1 1 -
    37 0 1 1 1 1 1 -
    38 0 1 - 1 - - -
    41 0 - 1 - - - 1
    42 0 - 1 - - - 1
    43 0 - - - - - -
    45 0 - - - - - -
    46 0 - 1 - - - 1
    60 0 - - - - - -
    61 0 - - - - - -
    200 0 - 1 - - - 1
    201 0 - - - - - -
    202 0 1 - 17 - - -
    203 0 1 - 206 - - -
    204 0 1 - 1 - - -
    207 0 1 - 0 - - -
    208 0 1 - 0 - - -
    215 0 1 - 29 - - -
    222 0 1 1 17 0 1 -
    223 0 1 - 1 - - -
    225 0 - 1 - - - 1
    300 0 1 - 0 - - -
    303 0 1 - 17 - - -
    305 0 - - - - - -
    306 0 - - - - - -
    307 0 1 - 1 - - -
    308 0 1 - 0 - - -
    309 0 1 - 1 - - -
    310 0 1 1 29 0 29 0
    314 0 1 - 29 - - -
    315 0 1 - 1 - - -
    316 0 - - - - - -
    317 0 - - - - - -
    320 0 1 1 29 0 29 13
    321 0 1 1 1 1 1 -
    323 0 - - 1 - - -
    324 0 1 1 29 0 29 0
    325 0 1 1 29 0 29 0
    328 0 - - - - - -
    329 0 - - - - - -
    343 0 1 - 0 - - -
    345 0 1 - 0 - - -
    351 0 1 - 17 - - -
    352 0 1 - 26 - - -
    353 0 1 - 29 - - -
    361 0 1 1 26 29 29 -
    370 0 1 - 17 - - -
    400 0 - 1 - - - 1
    401 0 - 1 - - - 1
    402 0 - - - - - -
    905 0 - - - - - -
    906 0 - - - - - -
    907 0 - - - - - -
    908 0 1 1 - 0 0 -
    2001 0 - - - - - 1
    2002 0 - - - - - 0
    2003 0 - - - - - -
    2004 0 - - 1 - - -
    200050 0 1 1 17 210 210 -
    200051 0 1 1 17 13 13 -
    200052 0 1 1 17 0 29 -
    200053 0 1 1 17 13 13 -
    200054 0 1 1 17 0 29 -
    200055 0 1 1 17 0 29 -
    200151 0 - 1 - - - 1
"""
)
NAMESRV_ANSWERS: Final = answers(
    """\
    100 0 1 - 0 - - -
    101 0 1 - 22 - - -
    102 0 1 - 0 - - -
    103 0 1 1 1 0 0 1
    104 0 1 1 0 0 0 -
    105 0 1 - 17 - - -
    106 0 - - - - - -
    205 0 1 - 0 - - -
    206 0 - - - - - -
    216 0 1 - 0 - - -
    217 0 1 1 0 - - 1
    219 0 1 - 22 - - -
    224 0 1 - 0 - - -
    304 0 - - - - - -
    311 0 - - - - - -
    312 0 - - - - - -
    313 0 - - - - - -
    318 0 - - - - - 1
    319 0 - - - - - -
    322 0 1 0/1 0 0 0 1
    327 0 1 - 0 - - -
    901 0 1 - 0 - - -
    904 0 1 - 0 - - -
"""
)
CONTROLLER_ANSWERS: Final = answers(
    """\
    904 0 1 2005 0 0 0 -
    1001 0 1 1 2013 2002 2002 1
    1002 0 1 1 2010 2012 2012 -
    1003 0 1 1 2010 2010 2010 -
    1004 0 1 - 2008 - - -
    1005 0 - - - - - -
    1006 0 - - - - - 1
    1009 0 - - - - - 1
    1010 0 - - - - - -
    1011 0 1 - 2009 - - -
    1012 0 1 - 0 - - -
    1013 0 1 1 2005 2014 2014 -
"""
)
