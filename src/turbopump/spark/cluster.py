"""Blocking client of a RocketMQ cluster for a Spark process.

The client finds the queues of a topic and their first and last offsets, and pulls messages. Only
requests that may be repeated are sent (105, 106, 206, 351, 11, 14, 15, 29, 30, 31). A failed call
is repeated on a new connection, after the name servers were asked for the route again.
``client/topic_route.py`` has the rules of routes. The use of the messages is unknown here.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.client.topic_route import TopicRoute, topic_route
from turbopump.config.tls import ClientTls
from turbopump.errors import (
    BodyError,
    CallTimeoutError,
    ClientError,
    ConnectError,
    ConnectionLostError,
    HeaderError,
    RemotingError,
    ResponseError,
    RouteNotFoundError,
)
from turbopump.message.message import MessageQueue
from turbopump.message.rules import is_system_topic
from turbopump.protocol.codes import TEMPORARY_REFUSALS, ResponseCode
from turbopump.protocol.command import Command, reply_in
from turbopump.protocol.request import ReplyT, Request
from turbopump.protocol.requests import offsets
from turbopump.protocol.requests.namesrv import GetAllTopicList, GetBrokerClusterInfo, GetRouteInfo
from turbopump.protocol.requests.pull import PullMessage, PullSysFlag
from turbopump.protocol.requests.topics import GetTopicConfig
from turbopump.remoting.blocking_connection import BlockingConnection
from turbopump.spark.decode import decode
from turbopump.spark.offsets import Offsets

if TYPE_CHECKING:
    from turbopump.remoting.tls import ClientContext

GROUP: Final = "TURBOPUMP_SPARK"
"""Consumer group that pulls name. Offsets are never stored for this group."""

PULL_SIZE_MAX: Final = 1 << 20
"""Maximum bytes of messages in one answer. Turbopump's broker sends this much on request. Apache's
broker has its own limit of 32 messages."""

OFFLINE_ERRORS: Final = (ConnectError, ConnectionLostError, CallTimeoutError, RouteNotFoundError)
"""Errors of a call to a broker that stays offline for longer than the caller waits."""

PLANNING_PATIENCE_S: Final = 3.0
"""Seconds that planning waits for a broker. This is short, because the user waits for the plan, and
a mistyped address should fail fast."""
READING_PATIENCE_S: Final = 30.0
"""Seconds that a read waits for a broker. This is long enough for the restart of a broker."""

_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8)

T = TypeVar("T")


class PullFilter(NamedTuple):
    """Broker's filter for the messages of a pull.

    ``kind`` is ``TAG`` or ``SQL92``, the type of the expression.
    """

    expression: str = "*"
    kind: str = "TAG"


EVERY_MESSAGE: Final = PullFilter()


class Cluster:
    """Blocking client of a RocketMQ cluster.

    The client opens connections on first use and keeps them until ``close``. Only one call may run
    at a time.

    - ``timeout``: seconds for one call.
    - ``patience``: seconds for which a failed call is repeated.
    - ``broker_patience``: the same for calls to brokers, if different.
    - ``credentials``: keys that sign requests.
    - ``tls``: TLS settings, or None for connections without TLS. Raises ConfigError if its files
      cannot be used.
    """

    def __init__(
        self,
        name_servers: Iterable[str],
        *,
        timeout: float = 3.0,
        patience: float = READING_PATIENCE_S,
        broker_patience: float | None = None,
        credentials: Credentials | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self._tls: ClientContext | None = None
        if tls is not None:
            from turbopump.remoting.tls import ClientContext  # imports asyncio, 30 ms

            self._tls = ClientContext(tls)
        self._name_servers = list(name_servers)
        self._timeout = timeout
        self._patience = patience
        self._broker_patience = patience if broker_patience is None else broker_patience
        self._signer = None if credentials is None else RequestSigner(credentials)
        self._connections: dict[str, BlockingConnection] = {}
        self._routes: dict[str, TopicRoute] = {}

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.close()

    def close(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()

    def forget_routes(self) -> None:
        """Forget the routes of all topics. The next call asks the name servers for new routes."""
        self._routes.clear()

    def topics(self) -> list[str]:
        """Return the sorted names of all topics except the brokers' own topics.

        Retry topics and dead-letter topics are included. Raises RemotingError if no name server
        answers.
        """
        names = self._ask_name_server(GetAllTopicList()).topic_list
        own = self._ask_name_server(GetBrokerClusterInfo()).own_topics()
        return sorted({name for name in names if not is_system_topic(name)} - own)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted.

        Raises RouteNotFoundError if the topic has no route, RemotingError if no name server
        answers, or BodyError for a route with numbers out of range.
        """
        route = self._routes[topic] = self._fetch_route(topic)
        return [
            queue
            for queue in route.subscribe_queues
            if route.readable_address(queue.broker_name) is not None
        ]

    def is_read_from_slave(self, queue: MessageQueue) -> bool:
        """Return True if a queue is read from a slave. A slave may lack messages of its master.

        The answer comes from the last known route of the queue's topic.
        """
        route = self._routes.get(queue.topic)
        return route is not None and route.master(queue.broker_name) is None

    def queues_of_known(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic that certainly exists.

        If the topic has no route, the call waits for one, because the topic's broker may be
        restarting.
        """
        passing = (RemotingError, RouteNotFoundError)
        return self._retry(lambda: self.queues(topic), passing, self._broker_patience)

    def offset_min(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message in the queue."""
        return self.offsets_min([queue])[queue]

    def offsets_min(self, queues: Iterable[MessageQueue]) -> Offsets:
        """For each queue, return the offset of the oldest message.

        The requests to one broker are sent together.
        """
        return self._offsets(queues, offsets.GetMinOffset)

    def offset_max(self, queue: MessageQueue) -> int:
        """Return the end of a queue, which is the offset of its next message."""
        return self.offsets_max([queue])[queue]

    def offsets_max(self, queues: Iterable[MessageQueue]) -> Offsets:
        """For each queue, return its end, which is the offset of its next message.

        The requests to one broker are sent together.
        """
        return self._offsets(queues, offsets.GetMaxOffset)

    def group_offset(self, queue: MessageQueue, group: str) -> int | None:
        """Return the offset that a consumer group has committed for a queue. Return None if
        there is no such offset."""
        request = offsets.QueryConsumerOffset(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False,
        )
        try:
            return self._offset(queue, request)
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise

    def commit_group_offsets(self, group: str, wanted: Mapping[MessageQueue, int]) -> None:
        """For each queue, commit the given offset for a consumer group.

        If a broker does not know the group, a pull creates the group first. The broker must allow
        that (``autoCreateSubscriptionGroup``).
        """
        for queues in _group_by_broker(wanted):
            requests = [
                offsets.UpdateConsumerOffset(
                    consumer_group=group,
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    commit_offset=wanted[queue],
                )
                for queue in queues
            ]
            # RocketMQ: 4.9 creates the table of a group's offsets in a topic without a lock, so
            # the first commits may overwrite each other if several arrive at once.
            for some in filter(None, (requests[:1], requests[1:])):
                try:
                    self._ask_broker(queues[0], some, self._timeout)
                except ResponseError as error:
                    if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                        raise
                    self.start_pull(queues[0], [(wanted[queues[0]], 1)], group=group)()
                    self._ask_broker(queues[0], some, self._timeout)

    def may_hold_inner_batches(self, queue: MessageQueue) -> bool:
        """Return True if the queue's topic may store several messages as one entry.

        Topics with ``queue.type=BatchCQ`` do so, from RocketMQ 5.0 on. Such an entry has no tag of
        its own.
        """
        request = GetTopicConfig(topic=queue.topic)
        try:
            (answer,) = self._ask_broker(queue, [request], self._timeout)
        except ResponseError as error:
            return error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        config = reply_in(answer, request)
        return config.attributes.get("queue.type", "SimpleCQ") != "SimpleCQ"

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message with a store time at or after ``timestamp_ms``.

        If all messages are older, the call returns the end of the queue.

        The broker's answer to request 29 is only a guess. A broker of 4.x returns the *nearest*
        message, or any of several messages stored in the same millisecond. So the neighbouring
        messages are checked, and the queue is searched if the guess is wrong.
        """
        low = self.offset_min(queue)
        high = self.offset_max(queue)
        search = offsets.SearchOffset(
            topic=queue.topic,
            queue_id=queue.queue_id,
            timestamp=timestamp_ms,
            boundary_type="LOWER",
        )
        guess = min(max(self._offset(queue, search), low), high)
        if guess < high and self.stored_ms(queue, guess) < timestamp_ms:
            low = guess + 1
        elif guess > low and self.stored_ms(queue, guess - 1) >= timestamp_ms:
            high = guess - 1
        else:
            return guess
        return low + bisect_left(
            range(low, high), timestamp_ms, key=lambda offset: self.stored_ms(queue, offset)
        )

    def pull(self, queue: MessageQueue, offset: int, rows_max: int) -> Command:
        """Pull up to ``rows_max`` messages from an offset on. Return the broker's answer.

        ``start_pull`` has the possible codes of the answer.
        """
        (answer,) = self.start_pull(queue, [(offset, rows_max)])()
        return answer

    def start_pull(
        self,
        queue: MessageQueue,
        begins: Sequence[tuple[int, int]],
        *,
        hold_ms: int = 0,
        wanted: PullFilter = EVERY_MESSAGE,
        group: str = GROUP,
    ) -> Callable[[], list[Command]]:
        """Send several pulls of one queue at once. Return a function that waits for the answers.

        ``begins`` has an offset and a maximum number of messages for each pull. The function
        returns the answers in the same order. The caller can work in the meantime, but must not
        make other calls before the function has returned.

        Answers have the codes 0, 19, 20 or 21. If an offset has no message yet, the broker may
        delay the answer for ``hold_ms``.
        """
        requests = [
            PullMessage(
                consumer_group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=offset,
                max_msg_nums=rows_max,
                sys_flag=PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if hold_ms else 0),
                suspend_timeout_millis=hold_ms,
                subscription=wanted.expression,
                expression_type=wanted.kind,
                max_msg_bytes=PULL_SIZE_MAX,
            )
            for offset, rows_max in begins
        ]
        timeout = self._timeout + hold_ms / 1000
        connection = self._connections.get(self._known_address(queue) or "")
        if connection is not None:
            try:
                connection.send(requests, timeout=timeout)
            except RemotingError:
                self._drop_connection(queue, connection)
                connection = None

        # If the early send or the answers fail, ``_ask_broker`` sends all pulls again on a new
        # connection. A pull changes nothing at the broker, so a repeated one is harmless.
        def answers() -> list[Command]:
            if connection is not None:
                try:
                    found = connection.receive(timeout=timeout)
                    for answer in found:
                        _check_code(answer, "PullMessage", connection.address)
                    return found
                except RemotingError:
                    self._drop_connection(queue, connection)
            return self._ask_broker(queue, requests, timeout)

        return answers

    def _drop_connection(self, queue: MessageQueue, connection: BlockingConnection) -> None:
        """Close a broken connection, and forget the route of the queue's topic.

        The next request opens a new connection and fetches a new route.
        """
        connection.close()
        self._connections.pop(connection.address, None)
        self._routes.pop(queue.topic, None)

    def _known_address(self, queue: MessageQueue) -> str | None:
        """Return the address of a readable broker with this queue. Return None if no route is
        known."""
        route = self._routes.get(queue.topic)
        return None if route is None else route.readable_address(queue.broker_name)

    def _offsets(
        self,
        queues: Iterable[MessageQueue],
        kind: type[offsets.GetMinOffset] | type[offsets.GetMaxOffset],
    ) -> Offsets:
        found: Offsets = {}
        for some in _group_by_broker(queues):
            requests = [kind(topic=queue.topic, queue_id=queue.queue_id) for queue in some]
            answers = self._ask_broker(some[0], requests, self._timeout)
            for queue, answer in zip(some, answers, strict=True):
                found[queue] = _offset_in(answer, queue)
        return found

    def _offset(self, queue: MessageQueue, request: Request[offsets.OffsetReply]) -> int:
        return _offset_in(self._ask_broker(queue, [request], self._timeout)[0], queue)

    def stored_ms(self, queue: MessageQueue, offset: int) -> int:
        """Return the store time (ms) of the message at an offset.

        Raises ClientError if there is no such message.
        """
        answer = self.pull(queue, offset, 1)
        for batch in decode(answer.body, queue.broker_name, ("storeTimestamp",)):
            return int(batch.column(0)[0].value) // 1000
        raise ClientError(
            f"{queue}: no message at offset {offset} to compare times with (code "
            f"{answer.code}, {answer.remark})"
        )

    def _fetch_route(self, topic: str) -> TopicRoute:
        servers = ";".join(self._name_servers)
        try:
            return topic_route(topic, self._ask_name_server(GetRouteInfo(topic=topic)))
        except ResponseError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            raise RouteNotFoundError(
                f"the name servers {servers} know no topic {topic!r}: it was never written or "
                "created there"
            ) from None
        except BodyError as error:
            raise BodyError(f"{servers}: {error}") from None

    def _ask_name_server(self, request: Request[ReplyT]) -> ReplyT:
        """Ask the name servers in turn, until one answers. Return this answer.

        Raises RemotingError if no name server answers.
        """

        def ask() -> Command:
            failures = []
            for address in self._name_servers:
                try:
                    (answer,) = self._exchange(address, [request], self._timeout)
                except RemotingError as error:
                    failures.append(str(error))
                    continue
                _check_code(answer, type(request).__name__, address)
                return answer
            raise RemotingError(f"no name server answered: {'; '.join(failures)}")

        answer = self._retry(ask, (RemotingError,), self._patience)
        return reply_in(answer, request)

    def _ask_broker(
        self, queue: MessageQueue, requests: Sequence[Request[Any]], timeout: float
    ) -> list[Command]:
        def ask() -> list[Command]:
            address = self._known_address(queue)
            if address is None:
                self.queues(queue.topic)
                address = self._known_address(queue)
            if address is None:
                raise RouteNotFoundError(
                    f"broker {queue.broker_name!r} of {queue} is not in the route of its topic: "
                    "check that the broker runs"
                )
            try:
                answers = self._exchange(address, requests, timeout)
            except RemotingError:
                self._routes.pop(queue.topic, None)
                raise
            for answer in answers:
                _check_code(answer, type(requests[0]).__name__, address)
            return answers

        # A restarting broker is missing in the route for a moment.
        return self._retry(ask, (RemotingError, RouteNotFoundError), self._broker_patience)

    def _exchange(
        self, address: str, requests: Sequence[Request[Any]], timeout: float
    ) -> list[Command]:
        connection = self._connections.pop(address, None) or BlockingConnection(
            address, timeout=self._timeout, signer=self._signer, tls=self._tls
        )
        try:
            answers = connection.exchange_all(requests, timeout=timeout)
        except BaseException:
            connection.close()
            raise
        self._connections[address] = connection
        return answers

    def _retry(
        self, ask: Callable[[], T], passing: tuple[type[Exception], ...], patience: float
    ) -> T:
        """Call ``ask`` until it succeeds, for at most ``patience`` seconds. Return the result of
        ``ask``.

        Only the exceptions in ``passing`` are retried.
        """
        deadline = time.monotonic() + patience
        for pause in chain(_PAUSES_S, repeat(_PAUSES_S[-1])):
            try:
                return ask()
            except passing as error:
                final = isinstance(error, ResponseError) and error.code not in TEMPORARY_REFUSALS
                if final or time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
        raise AssertionError("unreachable")


_TOGETHER_MAX: Final = 64
"""Number of small requests that are sent before their answers are read; this many fit into a
socket's buffer."""


def _group_by_broker(queues: Iterable[MessageQueue]) -> Iterator[list[MessageQueue]]:
    """Group the queues by topic and broker. A large group is split into several lists."""
    by_broker = groupby(sorted(queues), lambda queue: (queue.topic, queue.broker_name))
    for _, group in by_broker:
        same = list(group)
        for begin in range(0, len(same), _TOGETHER_MAX):
            yield same[begin : begin + _TOGETHER_MAX]


_ANSWERS: Final = frozenset(map(ResponseCode, (0, 19, 20, 21)))
"""Accepted response codes: success, and for pulls also no new message, retry at once, and offset
out of range."""


def _offset_in(answer: Command, queue: MessageQueue) -> int:
    """Return the offset in a broker's answer. A negative offset becomes 0.

    Apache's broker answers -1 for a queue that it has not created yet. Raises HeaderError for an
    impossible offset.
    """
    reply = answer.header(offsets.OffsetReply)
    if (fault := reply.fault()) is not None:
        raise HeaderError(f"the broker answered for {queue} with {fault}: see `turbopump doctor`")
    return max(reply.offset, 0)


def _check_code(answer: Command, request: str, address: str) -> None:
    if answer.code not in _ANSWERS:
        raise ResponseError(answer.code, answer.remark, request=request, address=address)
