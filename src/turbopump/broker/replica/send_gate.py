"""Gate before the requests of a replica that store messages for clients.

The gate is open at a master with enough replicas in sync, and then costs nothing. Otherwise
requests wait before it, are refused, or are passed on to the master, so that clients with an old
route lose no time. One rule: a request is passed on again only if the master has certainly stored
nothing. If the master may have stored a request, the client gets no answer and decides itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, Final, cast

from turbopump.auth.signatures import ACCESS_KEY, SIGNATURE, RequestSigner
from turbopump.errors import CallTimeoutError, ConnectError, ConnectionLostError
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.command import Command, encode_command
from turbopump.protocol.requests.send import NOT_IN_SYNC
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.response import Refusal, Response, refusal
from turbopump.remoting.router import HELD, Outcome, Ready, RequestContext, RequestHandler, Router

GATED: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.RECALL_MESSAGE,
)
PASSED_ON: Final = "turbopumpPassedOn"
"""Header field of a request that another replica has passed on. No replica passes it on again,
because two replicas could take each other for the master."""
WAIT_S: Final = 2.5
"""Maximum seconds that a request waits before the gate. Producers wait 3 s for an answer."""
ANSWER_S: Final = 3.0
AGAIN_S: Final = 0.03
QUIET_CHECK_S: Final = 0.02
REFUSING_S: Final = 0.3
"""Seconds for which a broker that stops refuses requests before it ends their connections. A client
does not know what has become of a request whose connection ends."""
_NOT_STORED: Final = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY)


class GateState(Enum):
    """Way of the requests before the gate.

    - ``OPEN``: they are handled here.
    - ``HELD``: they wait.
    - ``ELSEWHERE``: they are passed on to the master, or wait until one is known.
    """

    OPEN = "open"
    HELD = "held"
    ELSEWHERE = "elsewhere"


class SendGate:
    """Gate before the requests of a replica that store messages for clients.

    - ``remoting``: connections to the master.
    - ``signer``: the signer of this broker's own account, or None.
    - ``passed_on``: the number of requests that the master has answered.
    """

    def __init__(self, remoting: RemotingClient, signer: RequestSigner | None) -> None:
        self._remoting = remoting
        self._signer = signer
        self._handlers: dict[Router, dict[int, RequestHandler]] = {}
        self._state = GateState.OPEN
        self._moved = asyncio.Event()
        self._closed_at = 0.0
        self._master: str | None = None
        self._reason = ""
        self.waiting = 0
        """Number of requests that wait before the gate, or for the master."""
        self.passed_on = 0
        self._last_passed_on = 0.0

    def add_router(self, router: Router) -> None:
        """Put the gate before the handlers of a router."""
        self._handlers[router] = {
            int(code): router.routes[code][1] for code in GATED if code in router.routes
        }

    @property
    def state(self) -> GateState:
        return self._state

    def open(self) -> None:
        """Let requests pass, also those that wait."""
        self._move(GateState.OPEN)

    def hold(self, reason: str) -> None:
        """Let requests wait. After ``WAIT_S`` they are refused, later ones at once.

        ``reason`` is the remark of the refusals.
        """
        self._reason = reason
        if self._state is not GateState.HELD:
            self._closed_at = asyncio.get_running_loop().time()
        self._move(GateState.HELD)

    async def refuse(self, reason: str, longest: float) -> None:
        """Refuse requests from now on, so that clients ask name servers for the new master.

        Nothing is stored for a refused request. The call waits until those that were passed on are
        answered, then ``REFUSING_S`` for the clients, and ``longest`` seconds at most.
        """
        self._reason = reason
        self._closed_at = -WAIT_S
        self._move(GateState.HELD)
        await asyncio.sleep(REFUSING_S)
        for _ in range(int(longest / QUIET_CHECK_S)):
            if not self.waiting:
                return
            await asyncio.sleep(QUIET_CHECK_S)

    def pass_on(self, master: str | None) -> None:
        """Pass requests on to the master at this address. None lets them wait for one."""
        self._master = master
        self._reason = "no master of this broker name is elected"
        self._move(GateState.ELSEWHERE)

    async def until_quiet(self, seconds: float, longest: float) -> None:
        """Wait until no request waits, and none has been passed on for ``seconds``.

        The call ends after ``longest`` seconds.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(int(longest / QUIET_CHECK_S)):
            quiet_since = max(began, self._last_passed_on)
            if not self.waiting and loop.time() - quiet_since >= seconds:
                return
            await asyncio.sleep(QUIET_CHECK_S)

    def _move(self, state: GateState) -> None:
        was_open = self._state is GateState.OPEN
        self._state = state
        if was_open and state is not GateState.OPEN:
            for router, handlers in self._handlers.items():
                for code in handlers:
                    router.redirect(code, self._gated(router))
        elif state is GateState.OPEN and not was_open:
            for router, handlers in self._handlers.items():
                for code, handler in handlers.items():
                    router.redirect(code, handler)
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _gated(self, router: Router) -> RequestHandler:
        handlers = self._handlers[router]

        async def handle(request: Any, context: RequestContext) -> Ready[Any]:
            self.waiting += 1
            try:
                # the router also takes the other outcomes of the handler that is called in the end
                return cast("Ready[Any]", await self._outcome(request, context, handlers))
            finally:
                self.waiting -= 1

        return handle

    async def _outcome(
        self, request: Any, context: RequestContext, handlers: Mapping[int, RequestHandler]
    ) -> Outcome[Any]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT_S
        while True:
            if self._state is GateState.OPEN:
                return handlers[context.code](request, context)
            if self._state is GateState.ELSEWHERE and self._master is not None:
                answer = await self._ask_master(self._master, context, deadline)
                if answer is not None:
                    return answer
                pause = AGAIN_S
            else:
                if self._state is GateState.HELD:
                    deadline = min(deadline, self._closed_at + WAIT_S)
                pause = deadline - loop.time()
            if loop.time() >= deadline:
                return self._refused()
            await self._until_moved(pause)

    async def _until_moved(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._moved.wait()
        except TimeoutError:
            pass

    def _refused(self) -> Refusal:
        code = ResponseCode.SERVICE_NOT_AVAILABLE
        if self._reason.startswith(NOT_IN_SYNC):
            code = ResponseCode.SYSTEM_ERROR  # as Apache's broker
        return refusal(code, self._reason)

    async def _ask_master(
        self, master: str, context: RequestContext, deadline: float
    ) -> Outcome[Any] | None:
        """Pass a request on, and return the master's answer. Return None if it stored nothing for
        now, and the request may be passed on again."""
        command = context.command
        if PASSED_ON in (command.ext or {}):
            return refusal(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"this broker is not the master: ask {master}"
            )
        loop = asyncio.get_running_loop()
        try:
            wire = await self._remoting.connect(
                master, timeout=max(deadline - loop.time(), AGAIN_S)
            )
        except ConnectError:
            return None
        opaque = wire.calls.next_opaque
        frame = encode_command(self._copy(command, opaque))
        if context.is_oneway:
            wire.send_frame(frame)
            return HELD
        try:
            answer: Command = await wire.start_call(opaque, frame, ANSWER_S)
        except (ConnectionLostError, CallTimeoutError):
            return HELD
        remark = answer.remark or ""
        not_stored = answer.code in _NOT_STORED or remark.startswith(NOT_IN_SYNC)
        if not_stored and loop.time() < deadline:
            return None
        self.passed_on += 1
        self._last_passed_on = loop.time()
        return Response(code=answer.code, remark=answer.remark, body=answer.body, ext=answer.ext)

    def _copy(self, command: Command, opaque: int) -> Command:
        """Return a request for the master. This broker's own signature replaces the client's, whose
        permissions were checked here."""
        ext = {**(command.ext or {}), PASSED_ON: "1"}
        if self._signer is not None:
            for name in (ACCESS_KEY, SIGNATURE):
                ext.pop(name, None)
            ext = self._signer(ext, command.body)
        return replace(command, opaque=opaque, ext=ext)
