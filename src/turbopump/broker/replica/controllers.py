"""Connections of a replica to its controllers.

Heartbeats go to every controller, all other requests to the one that leads. The leader is found by
asking any controller (1005), and again after a refusal (2007) or a lost connection. The answers
mean nothing here. Source: apache/rocketmq ``ReplicasManager``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from turbopump.errors import ConnectError, ProtocolError, RemotingError
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command, reply_in
from turbopump.protocol.request import Request
from turbopump.protocol.requests.controller import ControllerMetadata, GetControllerMetadata
from turbopump.remoting.client import RemotingClient

log = logging.getLogger(__name__)

ANSWER_S: Final = 1.0
"""Maximum seconds to wait for an answer of a controller. A decision takes one disk sync, or one
round among etcd's members."""
CONNECT_S: Final = 0.5
"""Maximum seconds to connect to a controller, before another one is asked."""


class NoLeaderError(RemotingError):
    """Raised if no controller that can be reached leads."""


class Controllers:
    """Connections to the controllers.

    - ``addresses``: the controllers, each ``host:port``.
    - ``remoting``: the connections, for this object alone.
    """

    def __init__(self, addresses: Sequence[str], remoting: RemotingClient) -> None:
        self._addresses = list(addresses)
        self._remoting = remoting
        self._finding: asyncio.Task[str] | None = None
        self._beats: list[asyncio.Task[None]] = []
        self._beats_due: list[asyncio.Event] = []
        """For each controller, the event that sends its next heartbeat at once."""
        self.leader: str | None = None
        """Address of the controller that leads, or None while unknown."""

    async def ask(
        self, request: Request[Any], body: bytes = b"", *, timeout: float = ANSWER_S
    ) -> Command:
        """Send a request to the controller that leads, and return its answer.

        The answer may be an error, but not CONTROLLER_NOT_LEADER. Raises RemotingError if no
        controller leads, or the leader does not answer. The request may then have been served.
        """
        for is_last in (False, True):
            leader = self.leader or await self.find_leader()
            try:
                answer = await self._remoting.exchange(leader, request, body, timeout=timeout)
            except RemotingError:
                self._forget(leader)
                raise
            if answer.code != ResponseCode.CONTROLLER_NOT_LEADER:
                return answer
            self._forget(leader)
            if is_last:
                break
        raise NoLeaderError("no controller leads now: each has named another one")

    async def tell(self, request: Request[None]) -> None:
        """Send a one-way request to the controller that leads.

        A later request of ``ask`` arrives after it. Raises RemotingError if no controller leads.
        """
        leader = self.leader or await self.find_leader()
        await self._remoting.send_oneway(leader, request, timeout=ANSWER_S)

    async def find_leader(self) -> str:
        """Ask the controllers which of them leads, and return its address.

        Raises NoLeaderError if none does.
        """
        if self._finding is None or self._finding.done():
            self._finding = asyncio.create_task(self._find(), name="search for the controller")
        return await asyncio.shield(self._finding)

    async def _find(self) -> str:
        questions = [asyncio.create_task(self._leader_by(one)) for one in self._addresses]
        faults = list[str]()
        try:
            for answer in asyncio.as_completed(questions):
                found = await answer
                if isinstance(found, str):
                    self._note_leader(found)
                    return found
                faults.append(str(found))
        finally:
            for question in questions:
                question.cancel()
            await asyncio.gather(*questions, return_exceptions=True)
        raise NoLeaderError(f"no controller leads now: {'; '.join(faults)}")

    async def _leader_by(self, address: str) -> str | Exception:
        """Return the leader that one controller names, or the reason why there is none."""
        try:
            answer = await self._remoting.exchange(
                address, GetControllerMetadata(), timeout=ANSWER_S
            )
            reply: ControllerMetadata = reply_in(answer, GetControllerMetadata())
        except (RemotingError, ProtocolError) as error:
            return error
        if answer.code == ResponseCode.SUCCESS and reply.controller_leader_address:
            return reply.controller_leader_address
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return NoLeaderError(f"{address} is no controller: correct controllerAddr")
        return NoLeaderError(f"{address} knows no leader")

    def _note_leader(self, address: str) -> None:
        if address != self.leader:
            log.info("controller leads address=%s", address)
        self.leader = address

    def _forget(self, leader: str) -> None:
        if self.leader == leader:
            self.leader = None

    # --- heartbeats

    def start_heartbeats(
        self, interval: float, heartbeat: Callable[[], Request[None] | None]
    ) -> None:
        """Send a heartbeat to each controller now, and again every ``interval`` seconds.

        ``heartbeat`` returns the next one, or None to stay silent this time.
        """
        for address in self._addresses:
            due_now = asyncio.Event()
            self._beats_due.append(due_now)
            beating = self._send_heartbeats(address, interval, heartbeat, due_now)
            self._beats.append(asyncio.create_task(beating, name=f"heartbeats to {address}"))

    async def _send_heartbeats(
        self,
        address: str,
        interval: float,
        heartbeat: Callable[[], Request[None] | None],
        due_now: asyncio.Event,
    ) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        fault = ""
        while True:
            due_now.clear()
            request = heartbeat()
            if request is not None:
                try:
                    await self._remoting.send_oneway(address, request, timeout=CONNECT_S)
                    if fault:
                        log.info("controller gets heartbeats again address=%s", address)
                    fault = ""
                except ConnectError as error:
                    if not fault:
                        log.warning(
                            "controller gets no heartbeats address=%s cause=%s", address, error
                        )
                    fault = str(error)
            due = max(due + interval, loop.time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await due_now.wait()

    def send_heartbeats_now(self) -> None:
        """Send the next heartbeat to each controller at once, because of news."""
        for due_now in self._beats_due:
            due_now.set()

    async def stop_heartbeats(self) -> None:
        """Stop the heartbeats. The method may be called twice."""
        for beating in self._beats:
            beating.cancel()
        await asyncio.gather(*self._beats, return_exceptions=True)
        self._beats.clear()
        self._beats_due.clear()

    async def close(self) -> None:
        """Stop the heartbeats and close the connections. Controllers take that for a death at once.

        The method may be called twice.
        """
        await self.stop_heartbeats()
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.gather(self._finding, return_exceptions=True)
        await self._remoting.close()
