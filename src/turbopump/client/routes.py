"""Cache of topic routes from the name servers.

One rule: a known route is used until a newer one replaces it. A name server that is down or has
lost its data says nothing about the brokers. Name servers are asked one after another until one
knows the topic. This module must not know who uses a route.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from typing import Final

from turbopump import errors
from turbopump.client.topic_route import TopicRoute, inherited_route, topic_route
from turbopump.message.rules import (
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    RETRY_PREFIX,
    did_you_mean,
    is_system_topic,
)
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command, reply_in
from turbopump.protocol.requests.namesrv import (
    MASTER_ID,
    GetAllTopicList,
    GetBrokerClusterInfo,
    GetRouteInfo,
)
from turbopump.remoting.client import RemotingClient, outcome_of, refused_by
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_differ = RepeatedLine(
    log, logging.WARNING, "name servers differ topic=%s knows=%s does_not_know=%s"
)

SHRUNK_S: Final = 5.0
"""Time in seconds after which a route that has lost a broker is fetched again. All brokers register
with a restarted name server within this time."""
DOUBT_S: Final = 1.0
"""Minimum time in seconds between two requests for the same route because of failed calls."""
MASTER_PAUSE_S: Final = 0.4
"""Minimum time in seconds between two requests for the same route while a master is silent. It is
below 0.5 s, the interval at which producers with the default ``send_timeout`` look for such
masters."""
AWAITED_S: Final = 0.2
"""Seconds between two requests for the same route while calls wait for a master."""
_NOT_THE_MASTER: Final = (ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE)
"""Answers of a slave to requests for its master."""


class NameServersSilentError(errors.RouteNotFoundError):
    """Raised if no name server knew the route, and at least one did not answer.

    A repeated request may succeed.
    """


class Routes:
    """Cache of the routes that a client knows.

    - ``on_change``: called with each new or changed route.
    - ``timeout``: maximum time in seconds to ask all name servers once. A caller with more time
      asks again.
    """

    def __init__(
        self,
        remoting: RemotingClient,
        name_servers: tuple[str, ...],
        *,
        random: random.Random,
        on_change: Callable[[TopicRoute], None],
        timeout: float,
    ) -> None:
        self.name_servers = name_servers
        self.name_server_answers = False
        """True if a name server answered the last request."""
        self._remoting = remoting
        self._timeout = timeout
        self._first = random.randrange(len(name_servers))
        self._on_change = on_change
        self.known: dict[str, TopicRoute] = {}
        """Known routes by topic."""
        self._asking: dict[str, asyncio.Task[TopicRoute]] = {}
        self._asked_at: dict[str, float] = {}
        """Loop time of the last request for each known topic."""
        self._shrunk: dict[str, asyncio.TimerHandle] = {}
        self._meant: dict[str, str] = {}
        """Sentence that suggests a similar topic, by topic that does not exist."""

    def addresses(self, *, slaves: bool) -> set[str]:
        """Return the addresses of all masters in the known routes. With ``slaves``, also return
        those of all slaves."""
        each = (route.every_address(slaves=slaves) for route in self.known.values())
        return set().union(*each)

    def address_of(
        self, broker_name: str, broker_id: int = MASTER_ID, *, topic: str | None = None
    ) -> str | None:
        """Return the address of a broker, or None. The route of ``topic`` is searched first, then
        the other known routes."""
        for route in self._routes_from(topic):
            address = route.readable_address(broker_name, broker_id)
            if address is not None:
                return address
        return None

    def require_address(
        self, broker_name: str, broker_id: int = MASTER_ID, *, topic: str | None = None
    ) -> str:
        """Return the broker address that ``address_of`` finds.

        Raises ConnectError if no address is known.
        """
        address = self.address_of(broker_name, broker_id, topic=topic)
        if address is None:
            raise errors.ConnectError(f"no address is known for broker {broker_name}")
        return address

    def require_master(self, broker_name: str, topic: str) -> str:
        """Return the address of a broker's master. The route of ``topic`` is searched first, then
        the other known routes.

        Raises ConnectError if there is no master now.
        """
        for route in self._routes_from(topic):
            address = route.master(broker_name)
            if address is not None:
                return address
        raise errors.ConnectError(f"no master of broker {broker_name} is known")

    def _routes_from(self, topic: str | None) -> Iterator[TopicRoute]:
        """Iterate over all known routes, beginning with that of ``topic``."""
        if topic in self.known:
            yield self.known[topic]
        yield from self.known.values()

    async def get(self, topic: str, *, inherit: bool = False) -> TopicRoute:
        """Return the route of ``topic``. An unknown route is fetched from a name server.

        With ``inherit``, a topic that does not exist has the route that the default topic gives to
        new topics. Raises RouteNotFoundError with the cause and the remedy.
        """
        route = self.known.get(topic)
        if route is not None and (inherit or not route.inherited):
            return route
        return await self.refresh(topic, inherit=inherit)

    async def refresh(self, topic: str, *, inherit: bool = False) -> TopicRoute:
        """Fetch the route of ``topic`` from a name server now, and return it.

        Concurrent callers share one request. Raises the errors of ``get``.
        """
        task = self._question(topic, inherit)
        return await outcome_of(
            task,
            lambda: errors.RouteNotFoundError(
                f"no route to topic {topic!r}: the client was closed"
            ),
        )

    async def renewed(
        self, doubtful: TopicRoute, timeout: float, *, pause: float = DOUBT_S
    ) -> TopicRoute:
        """Replace the route ``doubtful`` after a call with this route has failed. Return the newer
        route.

        If no newer route arrives within ``timeout`` seconds, the result is ``doubtful``. Name
        servers are not asked if they were asked within the last ``pause`` seconds. The request
        continues after the timeout.
        """
        if not self._is_in_doubt(doubtful, pause):
            return self.known.get(doubtful.topic, doubtful)
        try:
            async with asyncio.timeout(timeout):
                return await self.refresh(doubtful.topic, inherit=True)
        except (TimeoutError, errors.RouteNotFoundError):
            return doubtful

    async def next_route(self, old: TopicRoute) -> TopicRoute:
        """Return the route that has replaced ``old``. If there is none yet, pause and return
        ``old``.

        A caller that waits for a master repeats this until its route names one. All callers
        together ask name servers once in ``AWAITED_S``.
        """
        newer = await self.renewed(old, inf, pause=AWAITED_S)
        if newer is old:
            await asyncio.sleep(AWAITED_S)
        return newer

    async def next_master(self, broker_name: str, topic: str) -> str:
        """Fetch the route of ``topic`` again, after its master of the broker was not reached, and
        return the master's address.

        While the broker has no master, the next one is waited for, without a limit. Raises
        ConnectError if the broker or the topic is gone.
        """
        try:
            route = await self.next_route(await self.get(topic))
        except errors.RouteNotFoundError as error:
            raise errors.ConnectError(str(error)) from None
        while route.lacks_master(broker_name):
            route = await self.next_route(route)
        return self.require_master(broker_name, topic)

    def renew_soon(self, doubtful: TopicRoute) -> None:
        """Start to fetch a newer route for later calls, without waiting for the answer."""
        if self._is_in_doubt(doubtful, DOUBT_S):
            self._question(doubtful.topic, inherit=True)

    def broker_at(self, address: str) -> str | None:
        """Return the name of the broker whose master has this address in a known route, or None."""
        for route in self.known.values():
            for broker_name in route.addresses:
                if route.master(broker_name) == address:
                    return broker_name
        return None

    async def ask_for_master(self, broker_name: str) -> str | None:
        """Ask a name server for the address of a broker's writable master.

        Any topic of the broker will do: the route that was asked for longest ago is renewed. Return
        None if there is no such master, if no name server knows the topic, or if the route was
        asked for within the last MASTER_PAUSE_S.
        """
        routes = [route for route in self.known.values() if broker_name in route.addresses]
        if not routes:
            return None
        doubtful = min(routes, key=lambda route: self._asked_at.get(route.topic, -inf))
        if not self._is_in_doubt(doubtful, MASTER_PAUSE_S):
            return None
        try:
            newer = await self.refresh(doubtful.topic, inherit=True)
        except errors.RouteNotFoundError:
            return None
        # an acting master only reads, and its broker has no queues to send to
        writable = any(queue.broker_name == broker_name for queue in newer.publish_queues)
        return newer.master(broker_name) if writable else None

    def renew_after_failure(self, topic: str, error: Exception) -> None:
        """Start to fetch a newer route of ``topic`` if a broker in the known one did not answer, or
        is a slave. Another replica may be its master by now."""
        route = self.known.get(topic)
        if route is None or not isinstance(error, errors.RemotingError):
            return
        if isinstance(error, errors.ResponseError) and error.code not in _NOT_THE_MASTER:
            return
        if self._is_in_doubt(route, DOUBT_S):
            self._question(topic, inherit=route.inherited)

    @contextmanager
    def renewing_after_failure(self, topic: str) -> Iterator[None]:
        """Call ``renew_after_failure`` if a call in this context fails, so that the next call finds
        another master."""
        try:
            yield
        except errors.RemotingError as error:
            self.renew_after_failure(topic, error)
            raise

    def _is_in_doubt(self, doubtful: TopicRoute, pause: float) -> bool:
        # A broker that dies makes thousands of sends fail at once, each with the same route. A
        # limit keeps each of them from asking the name servers. A route that was replaced since
        # needs no request: the caller gets the newer one. A request that is in flight is shared,
        # because its answer is newer than the failure. Otherwise there is one request for each
        # ``pause``.
        topic = doubtful.topic
        if self.known.get(topic, doubtful) is not doubtful:
            return False
        if f"{topic}\nTrue" in self._asking:
            return True  # the request in flight is shared
        return asyncio.get_running_loop().time() - self._asked_at.get(topic, -inf) >= pause

    def _question(self, topic: str, inherit: bool) -> asyncio.Task[TopicRoute]:
        key = f"{topic}\n{inherit}"
        task = self._asking.get(key)
        if task is None:
            loop = asyncio.get_running_loop()
            if topic in self.known:
                self._asked_at[topic] = loop.time()
            task = loop.create_task(self._ask_for_route(topic, inherit), name=f"route of {topic}")
            self._asking[key] = task
            task.add_done_callback(lambda done: self._question_ended(key, done))
        return task

    async def refresh_all(self) -> None:
        """Fetch every known route again. The old route is kept if no name server has a new one."""
        for topic, route in list(self.known.items()):
            try:
                await self.refresh(topic, inherit=route.inherited)
            except errors.RouteNotFoundError as error:
                log.info("route not refreshed, the old one is kept topic=%s cause=%s", topic, error)

    def close(self) -> None:
        for task in self._asking.values():
            task.cancel()
        for timer in self._shrunk.values():
            timer.cancel()

    def _question_ended(self, key: str, task: asyncio.Task[TopicRoute]) -> None:
        del self._asking[key]
        if not task.cancelled():
            task.exception()  # asyncio would warn of an exception that nobody has read

    async def _ask_for_route(self, topic: str, inherit: bool) -> TopicRoute:
        answers = await self._ask_name_servers(topic)
        if isinstance(answers, TopicRoute):
            return self._keep_route(answers)
        default = None
        if inherit and not answers.all_unreachable:
            default = await self._ask_name_servers(DEFAULT_TOPIC)
        if isinstance(default, TopicRoute) and (default.publish_queues or default.masterless):
            return self._keep_route(inherited_route(topic, default))
        if isinstance(default, RouteFailure) and default.all_unreachable:
            answers = default
        text, kind = await self._explain(topic, answers, inherit)
        codes = errors.ClientErrorCode
        code = codes.NO_NAME_SERVER if answers.all_unreachable else codes.NOT_FOUND_TOPIC
        if not (answers.all_unreachable and answers.silent):
            raise kind(text, code=code)
        asked = ",".join(answers.unreachable)
        log.warning("name servers do not answer topic=%s asked=%s", topic, asked)
        raise NameServersSilentError(text, code=code)

    def _keep_route(self, route: TopicRoute) -> TopicRoute:
        before = self.known.get(route.topic)
        if before == route:
            return before
        if before is not None and not before.inherited and route.inherited:
            return before
        self._meant.pop(route.topic, None)
        if before is not None and not before.addresses.keys() <= route.addresses.keys():
            self._ask_again(route)
        self.known[route.topic] = route
        log.debug(
            "route %s topic=%s brokers=%s queues=%d",
            "found" if before is None else "changed",
            route.topic,
            ",".join(sorted(route.addresses)),
            len(route.publish_queues),
        )
        self._on_change(route)
        return route

    def _ask_again(self, shrunk: TopicRoute) -> None:
        loop = asyncio.get_running_loop()
        topic = shrunk.topic
        if topic in self._shrunk:
            self._shrunk[topic].cancel()
        self._shrunk[topic] = loop.call_later(SHRUNK_S, self._ask_now, topic, shrunk.inherited)

    def _ask_now(self, topic: str, inherit: bool) -> None:
        del self._shrunk[topic]
        self._question(topic, inherit)

    async def _ask_name_servers(self, topic: str) -> TopicRoute | RouteFailure:
        unreachable: dict[str, str] = {}
        ignorant: list[str] = []
        silent = answered = False
        loop = asyncio.get_running_loop()
        count = len(self.name_servers)
        timeout = max(
            self._timeout / count, 1.0
        )  # a server that hangs must not use up the time of a send
        request = GetRouteInfo(topic=topic)
        for turn in range(count):
            index = (self._first + turn) % count
            address = self.name_servers[index]
            began = loop.time()
            try:
                command = await self._remoting.exchange(address, request, timeout=timeout)
                if command.code == ResponseCode.TOPIC_NOT_EXIST:
                    ignorant.append(address)
                    if unreachable:  # the next request must not wait for them again
                        self._first = index
                    continue
                refuse_other_than_name_server(address, command)
                if command.code != ResponseCode.SUCCESS:
                    raise refused_by(address, request, command)
                route = topic_route(topic, reply_in(command, request))
            except (errors.RemotingError, errors.BodyError) as error:
                unusable = isinstance(error, errors.BodyError)
                unreachable[address] = f"{address}: {error}" if unusable else str(error)
                answered |= unusable or _is_denial(error)
                silent |= loop.time() - began >= 0.9 * timeout  # in the call or the connect
                if isinstance(error, errors.CallTimeoutError):
                    # the connection may be dead; the next request uses a new one
                    self._remoting.disconnect(address)
                continue
            self._first = index
            self.name_server_answers = True
            if ignorant:
                _differ(topic, address, ",".join(ignorant), kind=topic)
            return route
        self.name_server_answers = bool(ignorant)
        return RouteFailure(unreachable, ignorant, silent, answered)

    async def find_routes(self, topics: Collection[str]) -> None:
        """Fetch the routes of these topics. Topics that do not exist are skipped.

        Raises RouteNotFoundError if no name server answers.
        """
        for topic in topics:
            try:
                await self.get(topic)
            except errors.RouteNotFoundError:
                if not self.name_server_answers:
                    raise

    async def _explain(
        self, topic: str, answers: RouteFailure, inherit: bool
    ) -> tuple[str, type[errors.RouteNotFoundError]]:
        """Return the text and the kind of the error for a topic without a route."""
        head = f"no route to topic {topic!r}"
        unknown = errors.RouteNotFoundError
        missing = errors.TopicNotFoundError
        if answers.all_unreachable:
            tried = "; ".join(answers.unreachable.values())
            if answers.answered:
                return f"{head}: {tried}", unknown
            text = (
                f"{head}: no name server answers ({tried}). Check the name server address, "
                "and that it runs (`turbopump dev` starts one, `turbopump doctor` shows more)"
            )
            return text, unknown
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return f"{head}: no broker has it yet", missing
        asked = ", ".join(answers.ignorant)
        doctor = f"turbopump doctor -n {answers.ignorant[0]} -t {topic}"
        brokers = await self._registered_brokers(answers.ignorant[0])
        if brokers is None:
            text = f"{head}: the name server {asked} does not know it; `{doctor}` shows more"
            return text, unknown
        if not brokers:
            text = (
                f"{head}: no broker is registered at the name server {asked}. "
                f"Start a broker, or check that its namesrvAddr names this name server; `{doctor}` "
                "shows more"
            )
            return text, unknown
        names = ", ".join(sorted(brokers))
        also = ""
        if answers.unreachable:
            also = f" (not asked, for they do not answer: {', '.join(answers.unreachable)})"
        create = f"turbopump topic create {topic} -n {answers.ignorant[0]}"
        if inherit:
            text = (
                f"{head}: it does not exist, and no broker ({names}) creates topics on its own "
                f"(autoCreateTopicEnable=false){also}. Create it: {create} (`{doctor}` shows more)"
            )
            return text, missing
        near = await self._similar_topic(topic, answers.ignorant[0])
        text = (
            f"{head}: it does not exist{near} on the brokers of {asked} ({names}){also}. It comes "
            f"into being with its first message, or by: {create} (`{doctor}` shows more)"
        )
        return text, missing

    async def _similar_topic(self, topic: str, name_server: str) -> str:
        """Return a sentence that suggests an existing topic with a similar name.

        Each missing topic is looked up only once, because the list of all topics may be long, and a
        client that waits for a topic asks every second.
        """
        if topic not in self._meant:
            self._meant[topic] = ""
            namespace, percent, name = topic.rpartition("%")
            within = namespace + percent
            with suppress(errors.RemotingError, errors.BodyError):
                every = await self._remoting.call(
                    name_server, GetAllTopicList(), timeout=self._timeout
                )
                known = [
                    one.removeprefix(within)
                    for one in every.topic_list
                    if one.startswith(within) and not is_system_topic(one)
                ]
                self._meant[topic] = did_you_mean(name, [one for one in known if "%" not in one])
        return self._meant[topic]

    async def _registered_brokers(self, name_server: str) -> set[str] | None:
        try:
            info = await self._remoting.call(
                name_server, GetBrokerClusterInfo(), timeout=self._timeout
            )
            return set(info.broker_addr_table)
        except (errors.RemotingError, errors.BodyError):
            return None


def refuse_other_than_name_server(address: str, answer: Command) -> None:
    """Raise RemotingError if the answer shows that ``address`` is not a name server."""
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        remark = (answer.remark or "").strip()
        raise errors.RemotingError(
            f"{address} is not a name server; it answers like a broker ({remark})"
        )


def _is_denial(error: Exception) -> bool:
    return isinstance(error, errors.ResponseError) and error.code == ResponseCode.NO_PERMISSION


@dataclass(frozen=True, slots=True)
class RouteFailure:
    """Reasons why no name server returned a route.

    - ``unreachable``: reason by address, for name servers that could not answer.
    - ``ignorant``: addresses of name servers that do not know the topic.
    - ``silent``: True if a name server timed out.
    - ``answered``: True if a name server refuses this client, or its answer is unusable.
    """

    unreachable: Mapping[str, str]
    ignorant: list[str]
    silent: bool
    answered: bool

    @property
    def all_unreachable(self) -> bool:
        return not self.ignorant
