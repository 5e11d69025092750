"""Handlers of a name server for requests by brokers: registrations and heartbeats.

One handler waits: if a live broker at another address has the name and id of the new one, that
broker is asked first. Sockets are unknown here.

Codes and remarks follow apache/rocketmq `DefaultRequestProcessor` and `ClientRequestProcessor`.
Where Apache's remark is empty, ours explains.
"""

import logging
from collections.abc import Awaitable
from typing import Final

from turbopump.clock import Clock
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.errors import RemotingError
from turbopump.message.codec import body_crc32
from turbopump.namesrv.kv_table import ORDER_TOPIC_CONFIG, KvTable
from turbopump.namesrv.route_table import (
    DEFAULT_TIMEOUT_MS,
    BrokerIdentity,
    Incomplete,
    Occupied,
    Registration,
    RouteTable,
    SmallestIdChange,
    Superseded,
)
from turbopump.protocol import fastjson
from turbopump.protocol.codes import V3_0_11, V5_0_0, ResponseCode
from turbopump.protocol.command import encode_command, request_command
from turbopump.protocol.requests.namesrv import (
    BrokerHeartbeat,
    KVTable,
    QueryDataVersion,
    QueryDataVersionReply,
    RegisterBroker,
    RegisterBrokerBody,
    RegisterBrokerReply,
    UnregisterBroker,
)
from turbopump.protocol.requests.replication import NotifyMinBrokerIdChange
from turbopump.protocol.requests.statistics import GetBrokerRuntimeInfo
from turbopump.protocol.requests.topics import (
    DataVersion,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)
from turbopump.remoting.response import Refusal, Response, refusal
from turbopump.remoting.router import Outcome, RequestContext, Router
from turbopump.remoting.turns import Steps
from turbopump.remoting.wire import Wire
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_registered = RepeatedLine(log, logging.INFO, "broker registered %s cluster=%s topics=%d")
_left = RepeatedLine(log, logging.INFO, "broker left %s")
_superseded = RepeatedLine(
    log,
    logging.WARNING,
    "registration ignored, a broker with a newer state has this name and id %s owner=%s",
)
_refused_name = RepeatedLine(
    log, logging.WARNING, "registration refused, a live broker has this name and id %s owner=%s"
)
_left_out = RepeatedLine(
    log, logging.WARNING, "topic of a registration ignored %s topic=%s cause=%s"
)
_not_its_own = RepeatedLine(
    log,
    logging.WARNING,
    "unregistration ignored, the broker registered on another connection %s peer=%s",
)

ZONE_FIELD: Final = "__ZONE_NAME"
OWNER_ANSWER_S: Final = 3.0
"""Seconds to wait until the present owner of a broker's name and id answers."""


class RegistrationHandlers:
    """Handlers of one name server for registrations.

    - ``clock``: the clock, of which only the monotonic time is used.
    """

    def __init__(self, config: NamesrvConfig, table: RouteTable, kv: KvTable, clock: Clock) -> None:
        self._config = config
        self._table = table
        self._kv = kv
        self._clock = clock
        table.on_smallest_id = self._notify_smallest_id

    def add_to(self, router: Router) -> None:
        """Register these handlers with a router."""
        router.add(RegisterBroker, self.register_broker)
        router.add(UnregisterBroker, self.unregister_broker)
        router.add(BrokerHeartbeat, self.broker_heartbeat)
        router.add_with_body(QueryDataVersion, self.query_data_version)

    def register_broker(
        self, request: RegisterBroker, context: RequestContext
    ) -> Outcome[RegisterBrokerReply]:
        if request.body_crc32 and body_crc32(context.body) != request.body_crc32:
            return _refused(
                "crc32 not match: the body differs from what the broker sent; register again"
            )
        if not _is_address(request.broker_addr):
            return _refused(
                f"brokerAddr {request.broker_addr[:80]!r} is not HOST:PORT; set "
                "brokerIP1 and listenPort"
            )
        return self._take_registration(request, context)

    def _take_registration(
        self, request: RegisterBroker, context: RequestContext
    ) -> Steps[Response[RegisterBrokerReply] | Awaitable[Response[RegisterBrokerReply]]]:
        try:
            body = yield from _read_registration(request, context)
        except fastjson.FastjsonError as error:
            return _refused(f"Failed to decode RegisterBrokerBody: {error}")
        broker = BrokerIdentity(
            request.cluster_name, request.broker_name, request.broker_id, request.broker_addr
        )
        _leave_unusable_out(broker, body.topic_config_serialize_wrapper.topic_config_table)
        registration = Registration(
            broker=broker,
            topics=body.topic_config_serialize_wrapper,
            filter_servers=body.filter_server_list,
            ha_address=request.ha_server_addr,
            zone=(context.command.ext or {}).get(ZONE_FIELD),
            timeout_ms=request.heartbeat_timeout_millis or DEFAULT_TIMEOUT_MS,
            acting_master=request.enable_acting_master,
            partial=bool(request.partial),
        )
        outcome = self._register(registration, context.peer)
        if isinstance(outcome, Occupied):
            return self._register_if_gone(outcome, registration, context.peer)
        return outcome

    def _register(
        self, registration: Registration, peer: Wire
    ) -> Response[RegisterBrokerReply] | Occupied:
        broker = registration.broker
        topics = registration.topics.topic_config_table
        known = self._table.data_version(broker.cluster, broker.address) is not None
        outcome = self._table.register(registration, peer, self._clock.monotonic())
        self._table.registrations[type(outcome).__name__.lower()] += 1
        if isinstance(outcome, Occupied):
            return outcome
        if isinstance(outcome, Incomplete):
            return _refused(
                "register broker failed: the first registration of a broker must "
                "carry all of its topics"
            )
        if isinstance(outcome, Superseded):
            _superseded(broker.keys, outcome.owner, kind=broker)
            return Response(RegisterBrokerReply())
        if not known:
            _registered(broker.keys, broker.cluster, len(topics), kind=broker)
        master = outcome.master_address
        ha_server = outcome.ha_address
        return Response(
            RegisterBrokerReply(ha_server_addr=ha_server, master_addr=master),
            body=self._ordered_topics(),
        )

    async def _register_if_gone(
        self, occupied: Occupied, registration: Registration, peer: Wire
    ) -> Response[RegisterBrokerReply]:
        """Ask the present owner of a broker's name and id. Register the new broker if the owner
        does not answer.

        Any answer of the owner counts, also a refusal, because a broker serves no requests on this
        connection.
        """
        owner = occupied.owner
        connection = occupied.connection
        broker = registration.broker
        assert isinstance(connection, Wire)
        try:
            question = request_command(GetBrokerRuntimeInfo(), opaque=connection.calls.next_opaque)
            await connection.start_call(question.opaque, encode_command(question), OWNER_ANSWER_S)
        except RemotingError as error:
            log.warning("broker removed, it does not answer %s cause=%s", owner.keys, error)
            self._table.unregister(owner, connection)
            connection.close()
            outcome = self._register(registration, peer)
            if isinstance(outcome, Response):
                return outcome
        _refused_name(broker.keys, owner.address, kind=broker)
        return _refused(
            f"a live broker at {owner.address} has the name {broker.name} and id "
            f"{broker.id}: stop it, or set another brokerName or brokerId here"
        )

    def unregister_broker(
        self, request: UnregisterBroker, context: RequestContext
    ) -> Response[None]:
        broker = BrokerIdentity(
            request.cluster_name, request.broker_name, request.broker_id, request.broker_addr
        )
        if self._table.unregister(broker, context.peer):
            _left(broker.keys, kind=broker)
        else:
            _not_its_own(broker.keys, context.peer.peer, kind=broker)
        return Response()

    def broker_heartbeat(self, request: BrokerHeartbeat, context: RequestContext) -> Response[None]:
        self._table.heartbeat(request.cluster_name, request.broker_addr, self._clock.monotonic())
        return Response()

    def _notify_smallest_id(self, change: SmallestIdChange) -> None:
        """Tell brokers of a name which of them has the smallest id now.

        The request goes over the connection on which a broker has registered. RocketMQ: the name
        server connects to the broker's port. Apache's brokers ignore a request that comes this way,
        and ask for the members of their name every second.
        """
        if not self._config.notify_min_broker_id_changed:
            return
        notice = NotifyMinBrokerIdChange(
            min_broker_id=change.id,
            broker_name=change.name,
            min_broker_addr=change.address,
            offline_broker_addr=change.offline,
            ha_broker_addr=change.ha_address,
        )
        for connection in change.connections:
            assert isinstance(connection, Wire)
            opaque = connection.calls.next_opaque
            connection.send_frame(
                encode_command(request_command(notice, opaque=opaque, oneway=True))
            )

    def query_data_version(
        self, request: QueryDataVersion, version: DataVersion, _context: RequestContext
    ) -> Response[QueryDataVersionReply]:
        registered = self._table.data_version(request.cluster_name, request.broker_addr)
        self._table.heartbeat(request.cluster_name, request.broker_addr, self._clock.monotonic())
        body = b"" if registered is None else fastjson.encode(registered)
        return Response(QueryDataVersionReply(changed=registered != version), body=body)

    def _ordered_topics(self) -> bytes:
        """Return the encoded configuration of ordered topics. It is the body of the answer to a
        registration."""
        if not self._config.return_order_topic_config_to_broker:
            return b""
        texts = self._kv.namespace(ORDER_TOPIC_CONFIG)
        return b"" if texts is None else fastjson.encode(KVTable(table=dict(texts)))


def _read_registration(
    request: RegisterBroker, context: RequestContext
) -> Steps[RegisterBrokerBody]:
    yield  # the body may have thousands of topics
    if not context.body:
        return RegisterBrokerBody()
    if context.version < V3_0_11:  # RocketMQ: then the body was the topics alone
        topics = fastjson.decode(context.body, TopicConfigAndMappingSerializeWrapper)
        return RegisterBrokerBody(topic_config_serialize_wrapper=topics)
    if request.compressed:
        return (
            yield from RegisterBrokerBody.decode_compressed(
                context.body, with_mappings=context.version >= V5_0_0
            )
        )
    return RegisterBrokerBody.decode(context.body)


def _leave_unusable_out(broker: BrokerIdentity, topics: dict[str, TopicConfig]) -> None:
    """Remove topics with an invalid number of queues from a registration.

    To refuse the whole registration would also remove the broker's valid topics.
    """
    faults = [(key, config.queues_fault()) for key, config in topics.items()]
    for key, fault in faults:
        if fault is not None:
            name = (topics.pop(key).topic_name or key)[:128]
            _left_out(broker.keys, name, fault, kind=(broker, name))


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65535


def _refused(remark: str) -> Refusal:
    return refusal(ResponseCode.SYSTEM_ERROR, remark)
