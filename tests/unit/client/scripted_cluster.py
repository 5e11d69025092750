"""A name server and brokers that answer from lists, and whatever a test scripts instead: the other
side of every client test.

Runs on any loop; the tests here run it in virtual time (``simulate``). It must not know what the
client under test is.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.simulation.world.simulation import Simulation
from tests.stand_ins import does_nothing, returns

from turbopump.message.codec import encode_entry, encode_host
from turbopump.message.message import MessageQueue
from turbopump.message.properties import decode_properties
from turbopump.protocol import fastjson
from turbopump.protocol.codes import LanguageCode, ResponseCode
from turbopump.protocol.command import Command, encode_command, request_command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.assignment import (
    LockBatchMq,
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchMq,
)
from turbopump.protocol.requests.clients import (
    ConsumerIdList,
    GetConsumerListByGroup,
    Heartbeat,
    HeartbeatData,
    NotifyConsumerIdsChanged,
    UnregisterClient,
)
from turbopump.protocol.requests.namesrv import (
    BrokerData,
    ClusterInfo,
    GetAllTopicList,
    GetBrokerClusterInfo,
    GetRouteInfo,
    QueueData,
    TopicRouteData,
)
from turbopump.protocol.requests.offsets import (
    GetMaxOffset,
    GetMinOffset,
    OffsetReply,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from turbopump.protocol.requests.pull import (
    PullMessage,
    PullMessageReply,
    PullSysFlag,
    QueryMessage,
    ViewMessageById,
)
from turbopump.protocol.requests.send import (
    ConsumerSendMsgBack,
    PushReplyMessageToClient,
    SendBatchMessage,
    SendMessageReply,
    SendMessageV2,
    SendReplyMessageV2,
)
from turbopump.protocol.requests.topics import CreateTopic, TopicList
from turbopump.remoting.response import Response
from turbopump.remoting.router import HELD, Outcome, RequestContext, Router
from turbopump.remoting.server import RemotingServer
from turbopump.remoting.wire import Wire

HOST = "127.0.0.1"
NOT_FOUND = Response(code=ResponseCode.QUERY_NOT_FOUND, remark="not found")


class ScriptedNameServer:
    """``routes``: topic -> what 105 answers, as a route or in bytes; ``known_brokers``: what 106
    answers."""

    def __init__(self) -> None:
        self.routes: dict[str, TopicRouteData | bytes] = {}
        self.known_brokers: dict[str, BrokerData] = {}
        self.denied: set[str] = set()
        """Topics whose routes the client may not see."""
        self.asked: list[str] = []
        self.on_asked: Callable[[str], object] = does_nothing
        """Called with a topic after its route was asked for."""
        self.listed = 0
        """How often the list of all topics was asked for."""
        self.address = ""
        self.silent = False
        """Whether it takes questions about routes and answers none: as a process that is stopped,
        or a host that swaps."""
        router = Router()
        router.add(GetRouteInfo, self._route)
        router.add(GetBrokerClusterInfo, self._cluster)
        router.add(GetAllTopicList, self._topics)
        self.server = RemotingServer(router)

    async def start(self) -> None:
        host, port = await self.server.listen(HOST, 0)
        self.address = f"{host}:{port}"

    async def stop(self) -> None:
        await self.server.close()

    def route(self, topic: str, *brokers: ScriptedBroker, queues: int = 4, perm: int = 6) -> None:
        """From now on ``topic`` is on these brokers."""
        self.routes[topic] = TopicRouteData(
            queue_datas=[
                QueueData(
                    broker_name=b.name, read_queue_nums=queues, write_queue_nums=queues, perm=perm
                )
                for b in brokers
            ],
            broker_datas=[b.data for b in brokers],
        )
        self.known_brokers.update({b.name: b.data for b in brokers})

    def name_master(self, broker_name: str, address: str | None) -> None:
        """From now on this broker has two slaves and this master, or none, in all routes."""
        members = {1: "127.0.0.1:101", 2: "127.0.0.1:102"}
        if address is not None:
            members[0] = address
        for route in self.routes.values():
            assert not isinstance(route, bytes)
            for broker in route.broker_datas:
                if broker.broker_name == broker_name:
                    broker.broker_addrs = members

    def _route(self, request: GetRouteInfo, context: RequestContext) -> Outcome:
        self.asked.append(request.topic)
        if self.silent:
            return HELD
        if request.topic in self.denied:
            return Response(code=ResponseCode.NO_PERMISSION, remark="not you")
        data = self.routes.get(request.topic)
        self.on_asked(request.topic)
        if data is None:
            return Response(
                code=ResponseCode.TOPIC_NOT_EXIST,
                remark=f"No topic route info in name server: {request.topic}",
            )
        return Response(body=data if isinstance(data, bytes) else fastjson.encode(data))

    def _topics(self, request: GetAllTopicList, context: RequestContext) -> Response[Any]:
        self.listed += 1
        return Response(body=fastjson.encode(TopicList(topic_list=tuple(self.routes))))

    def _cluster(self, request: GetBrokerClusterInfo, context: RequestContext) -> Response:
        return Response(
            body=fastjson.encode(
                ClusterInfo(broker_addr_table=self.known_brokers, cluster_addr_table={})
            )
        )


class ScriptedBroker:
    """Keeps what it is sent and gives it back. ``script[code]`` is a list of answers (or None:
    silence) that come before its own."""

    def __init__(self, name: str = "broker-a") -> None:
        self.name = name
        self.address = ""
        self.entries: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.min_offset: dict[tuple[str, int], int] = defaultdict(int)
        self.committed: dict[tuple[str, str, int], int] = {}
        self.members: dict[str, dict[str, Wire]] = defaultdict(dict)
        self.producing: dict[str, Wire] = {}
        self.heartbeats: list[HeartbeatData] = []
        self.farewells: list[UnregisterClient] = []
        self.received: list[tuple[Request[Any], bytes]] = []
        self.forms: list[int] = []
        """Of the headers of the requests."""
        self.script: dict[int, deque[Response | None]] = defaultdict(deque)
        self.holders: dict[tuple[str, MessageQueue], str] = {}
        """Group and queue to the client id that has locked it."""
        self.on_create: Callable[[CreateTopic], None] = does_nothing
        self.update_delays: deque[float] = deque()
        """Seconds that the next updates of offsets take, each by itself: a later one may be done
        first, as in Apache's thread pool."""
        self.answers_zero = False
        """Whether a group without a place hears 0, as of a queue whose first message is still in
        the broker's memory."""
        self.language = LanguageCode.PYTHON
        """What a broker of this kind is written in, as its answers to heartbeats say."""
        self.takes_back = False
        """Whether consumers may send messages back; they are not brought again."""
        self.further: list[
            tuple[type[Request[Any]], Callable[[Any, RequestContext], Response | None]]
        ] = []
        """What else it answers, and how; set before ``start``."""
        self.held_pulls: list[tuple[PullMessage, RequestContext]] = []
        self.server: RemotingServer | None = None
        self.port = 0

    async def start(self) -> None:
        router = Router()
        for type_, handler in (
            (SendMessageV2, self.send),
            (SendBatchMessage, self.send),
            (SendReplyMessageV2, self._reply),
            (Heartbeat, self._heartbeat),
            (UnregisterClient, self._unregister),
            (GetConsumerListByGroup, self._list_members),
            (PullMessage, self._pull),
            (QueryConsumerOffset, self._query_offset),
            (UpdateConsumerOffset, self._update_offset),
            (GetMaxOffset, self._max),
            (GetMinOffset, self._min),
            (SearchOffset, self._search),
            (CreateTopic, self._create),
            (LockBatchMq, self._lock),
            (UnlockBatchMq, self._unlock),
            (ConsumerSendMsgBack, self._take_back),
            (QueryMessage, returns(NOT_FOUND)),
            (ViewMessageById, lambda _request, _context: refusal(ResponseCode.SYSTEM_ERROR)),
            *self.further,
        ):
            router.add(type_, self._scripted(handler))
        self.server = RemotingServer(router, on_close=self._gone)
        host, self.port = await self.server.listen(HOST, self.port)
        self.address = f"{host}:{self.port}"

    async def stop(self) -> None:
        """Every connection ends; ``start`` brings it back on the same port with all it had, members
        excepted."""
        if self.server is not None:
            server, self.server = self.server, None
            await server.close()

    def go_deaf(self) -> None:
        """Read nothing more from the connections there are, and send nothing: as a host without
        power. New ones work."""
        assert self.server is not None
        for connection in self.server.connections:
            assert connection.transport is not None
            connection.transport.pause_reading()
        self.held_pulls.clear()

    @property
    def data(self) -> BrokerData:
        return BrokerData(cluster="c", broker_name=self.name, broker_addrs={0: self.address})

    def requests(self, type_: type[Request[Any]]) -> list[Any]:
        """Every request of this type, in order."""
        return [request for request, _ in self.received if type(request) is type_]

    def has_got(self, type_: type[Request[Any]], count: int) -> bool:
        """Return True if exactly so many requests of this type came."""
        return len(self.requests(type_)) == count

    def store(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: str = "",
        *,
        sys_flag: int = 0,
        with_crc: bool = False,
    ) -> None:
        """A message comes from somewhere."""
        entries = self.entries[topic, queue_id]
        entries.append(
            encode_entry(
                queue_id=queue_id,
                flag=0,
                queue_offset=self.min_offset[topic, queue_id] + len(entries),
                physical_offset=sum(map(len, entries)),
                sys_flag=sys_flag,
                born_timestamp=1,
                born_host=encode_host(HOST, 1),
                store_timestamp=1,
                store_host=encode_host(HOST, self.port),
                reconsume_times=0,
                prepared_transaction_offset=0,
                body=body,
                topic=topic.encode(),
                properties=properties.encode(),
                with_crc=with_crc,
            )
        )
        held, self.held_pulls = self.held_pulls, []
        for request, context in held:
            answer = self._look(request)
            if answer is None:
                self.held_pulls.append((request, context))
            else:
                context.answer(answer)

    def notify(self, group: str) -> None:
        """Tell every member that the group has changed (40)."""
        notice = NotifyConsumerIdsChanged(consumer_group=group)
        for connection in list(self.members[group].values()):
            connection.send_frame(encode_command(Command(notice.code, flag=2, ext=notice.to_ext())))

    def _scripted(
        self, handler: Callable[[Any, RequestContext], Response | bytes | None]
    ) -> Callable[..., Outcome]:
        def answer(request: Request[Any], context: RequestContext) -> Outcome:
            self.received.append((request, context.body))
            self.forms.append(context.frame.serialize_type)
            script = self.script[int(request.code)]
            outcome = script.popleft() if script else handler(request, context)
            return HELD if outcome is None else outcome

        return answer

    async def push_reply(
        self,
        client_id: str,
        properties: str,
        body: bytes,
        sys_flag: int = 0,
        host: str = "127.0.0.1:1",
    ) -> Command | None:
        """Push a reply (326) to a producer; its answer, None if there is no such producer here."""
        peer = self.producing.get(client_id)
        if peer is None:
            return None
        opaque = peer.calls.next_opaque
        push = PushReplyMessageToClient(
            producer_group="repliers",
            topic="c_REPLY_TOPIC",
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=0,
            sys_flag=sys_flag,
            born_timestamp=1,
            flag=0,
            properties=properties,
            born_host=host,
            store_host=host,
            store_timestamp=2,
        )
        answer: Command = await peer.start_call(
            opaque, encode_command(request_command(push, body, opaque=opaque)), 10
        )
        return answer

    async def _reply(self, request: SendReplyMessageV2, context: RequestContext) -> Response:
        properties = request.properties or ""
        client_id = decode_properties(properties)["REPLY_TO_CLIENT"]
        answer = await self.push_reply(client_id, properties, context.body, request.sys_flag)
        if answer is None:
            return refusal(
                ResponseCode.SYSTEM_ERROR,
                f"push reply message fail, channel of <{client_id}> not found.",
            )
        return Response(SendMessageReply(msg_id="0", queue_id=0, queue_offset=0), code=answer.code)

    def _gone(self, connection: Wire) -> None:
        self.producing = {
            client_id: peer for client_id, peer in self.producing.items() if peer is not connection
        }
        self.held_pulls = [
            (request, context)
            for request, context in self.held_pulls
            if context.peer is not connection
        ]
        for members in self.members.values():
            for client_id in [
                client_id for client_id, peer in members.items() if peer is connection
            ]:
                del members[client_id]

    def send(self, request: SendMessageV2, context: RequestContext) -> Response:
        entries = self.entries[request.topic, request.queue_id]
        offset = len(entries)
        self.store(request.topic, request.queue_id, context.body, request.properties or "")
        return Response(
            SendMessageReply(
                msg_id="7F00000100002A9F00000000000000FF",
                queue_id=request.queue_id,
                queue_offset=offset,
            )
        )

    def _heartbeat(self, request: Heartbeat, context: RequestContext) -> bytes:
        data = fastjson.decode(context.body, HeartbeatData)
        self.heartbeats.append(data)
        if data.producer_data_set:
            self.producing[data.client_id or ""] = context.peer
        for consumer in data.consumer_data_set:
            group = consumer.group_name or ""
            new = data.client_id not in self.members[group]
            self.members[group][data.client_id or ""] = context.peer
            if new:
                self.notify(group)
        answer = Command(0, opaque=context.opaque, flag=1, language=self.language)
        return encode_command(answer)

    def _unregister(self, request: UnregisterClient, context: RequestContext) -> Response:
        self.farewells.append(request)
        if request.consumer_group and self.members[request.consumer_group].pop(
            request.client_id, None
        ):
            self.notify(request.consumer_group)
        return Response()

    def _list_members(self, request: GetConsumerListByGroup, context: RequestContext) -> Response:
        return Response(
            body=fastjson.encode(
                ConsumerIdList(consumer_id_list=list(self.members[request.consumer_group]))
            )
        )

    def _pull(self, request: PullMessage, context: RequestContext) -> Response | None:
        if (
            not request.sys_flag & PullSysFlag.SUBSCRIPTION
            and not self.members[request.consumer_group]
        ):
            return Response(
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
                remark="the consumer's subscription not exist",
            )
        if request.sys_flag & PullSysFlag.COMMIT_OFFSET:
            self.committed[request.consumer_group, request.topic, request.queue_id] = (
                request.commit_offset
            )
        answer = self._look(request)
        if answer is not None:
            return answer
        if request.sys_flag & PullSysFlag.SUSPEND:
            self.held_pulls.append((request, context))
            asyncio.get_running_loop().call_later(
                request.suspend_timeout_millis / 1000, self._release, context
            )
            return None
        return self.pulled(request, ResponseCode.PULL_NOT_FOUND, request.queue_offset)

    def _release(self, context: RequestContext) -> None:
        for held in [held for held in self.held_pulls if held[1] is context]:
            self.held_pulls.remove(held)
            context.answer(self.pulled(held[0], ResponseCode.PULL_NOT_FOUND, held[0].queue_offset))

    def _look(self, request: PullMessage) -> Response | None:
        entries = self.entries[request.topic, request.queue_id]
        first = self.min_offset[request.topic, request.queue_id]
        end = first + len(entries)
        at = request.queue_offset
        if at == end:
            return None
        if not first <= at < end:
            return self.pulled(
                request, ResponseCode.PULL_OFFSET_MOVED, first if at < first else end
            )
        wanted = entries[at - first : at - first + request.max_msg_nums]
        return self.pulled(request, ResponseCode.SUCCESS, at + len(wanted), b"".join(wanted))

    def pulled(
        self, request: PullMessage, code: int, next_offset: int, body: bytes = b""
    ) -> Response:
        first = self.min_offset[request.topic, request.queue_id]
        end = first + len(self.entries[request.topic, request.queue_id])
        reply = PullMessageReply(next_begin_offset=next_offset, min_offset=first, max_offset=end)
        return Response(reply, code=code, body=body)

    def _query_offset(self, request: QueryConsumerOffset, context: RequestContext) -> Response:
        offset = self.committed.get((request.consumer_group, request.topic, request.queue_id))
        if offset is None and self.answers_zero:
            offset = 0
        return NOT_FOUND if offset is None else Response(OffsetReply(offset=offset))

    async def _update_offset(
        self, request: UpdateConsumerOffset, context: RequestContext
    ) -> Response:
        """As Apache's (``ConsumerOffsetManager.commitOffset``), which does not lock: of a topic's
        first offsets the last replaces all."""
        place = request.consumer_group, request.topic
        is_first = all(key[:2] != place for key in self.committed)
        if self.update_delays:
            await asyncio.sleep(self.update_delays.popleft())
        if is_first:
            self.committed = {
                key: offset for key, offset in self.committed.items() if key[:2] != place
            }
        self.committed[*place, request.queue_id or 0] = request.commit_offset or 0
        return Response()

    def _max(self, request: GetMaxOffset, context: RequestContext) -> Response:
        key = request.topic, request.queue_id
        return Response(OffsetReply(offset=self.min_offset[key] + len(self.entries[key])))

    def _min(self, request: GetMinOffset, context: RequestContext) -> Response:
        return Response(OffsetReply(offset=self.min_offset[request.topic, request.queue_id]))

    def _lock(self, request: LockBatchMq, context: RequestContext) -> Response:
        body = fastjson.decode(context.body, LockBatchRequestBody)
        group, client_id = body.consumer_group or "", body.client_id or ""
        granted = [
            queue
            for queue in body.mq_set
            if self.holders.setdefault((group, queue), client_id) == client_id
        ]
        return Response(body=fastjson.encode(LockBatchResponseBody(locked=tuple(granted))))

    def _unlock(self, request: UnlockBatchMq, context: RequestContext) -> Response:
        body = fastjson.decode(context.body, LockBatchRequestBody)
        for queue in body.mq_set:
            if self.holders.get((body.consumer_group or "", queue)) == body.client_id:
                del self.holders[body.consumer_group or "", queue]
        return Response()

    def _create(self, request: CreateTopic, context: RequestContext) -> Response:
        self.on_create(request)
        return Response()

    def _take_back(self, request: ConsumerSendMsgBack, context: RequestContext) -> Response:
        return Response() if self.takes_back else refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    def _search(self, request: SearchOffset, context: RequestContext) -> Response:
        return Response(OffsetReply(offset=self.min_offset[request.topic, request.queue_id] + 1))


def refusal(code: int, remark: str = "no") -> Response:
    """A scripted answer."""
    return Response(code=code, remark=remark)


@dataclass
class ScriptedCluster:
    """A name server and brokers, and what a client in the simulated world is given."""

    name_server: ScriptedNameServer
    brokers: list[ScriptedBroker]
    settings: dict[str, Any]

    @property
    def broker(self) -> ScriptedBroker:
        return self.brokers[0]


@asynccontextmanager
async def scripted_cluster(
    simulation: Simulation,
    *,
    brokers: int = 1,
    topic: str | None = "orders",
    queues: int = 4,
    prepare: Callable[[ScriptedBroker], object] = does_nothing,
) -> AsyncIterator[ScriptedCluster]:
    """Up for as long as the block lasts, with ``topic`` on every broker. ``prepare`` sees each
    broker before it starts."""
    name_server = ScriptedNameServer()
    names = [ScriptedBroker(f"broker-{letter}") for letter in "abcdef"[:brokers]]
    await name_server.start()
    for broker in names:
        broker.on_create = partial(_register, name_server, broker)
        prepare(broker)
        await broker.start()
    if topic is not None:
        name_server.route(topic, *names, queues=queues)
    settings = {
        "clock": simulation.clock(HOST),
        "random": simulation.source("client"),
        "local_ip": HOST,
    }
    try:
        yield ScriptedCluster(name_server, names, settings)
    finally:
        for broker in names:
            await broker.stop()
        await name_server.stop()


def _register(
    name_server: ScriptedNameServer, broker: ScriptedBroker, request: CreateTopic
) -> None:
    """The name server knows a new topic of this broker too."""
    before = name_server.routes.get(request.topic)
    name_server.route(request.topic, broker, queues=request.write_queue_nums)
    if before is not None:
        name_server.routes[request.topic].queue_datas[:0] = before.queue_datas
        name_server.routes[request.topic].broker_datas[:0] = before.broker_datas


@asynccontextmanager
async def deaf_to_sends(
    cluster: ScriptedCluster,
) -> AsyncIterator[asyncio.Future[asyncio.Transport]]:
    """The route of ``orders`` leads to a peer that reads nothing; its end of the first connection,
    once there is one."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[asyncio.Transport] = loop.create_future()

    class Deaf(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.pause_reading()
            made.set_result(transport)

    server = await loop.create_server(Deaf, "127.0.0.1", 4242)
    cluster.broker.address = "127.0.0.1:4242"
    cluster.name_server.route("orders", cluster.broker)
    yield made
    server.close()
