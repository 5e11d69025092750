"""Table from request code to handler, and the handling of one request: read, authorise, call the
handler, settle its outcome. It knows nothing of sockets.

A handler is called with the typed request and a ``RequestContext``. It returns one of three things:

* a ``Response`` with the reply that the request declares, as mypy checks;
* bytes, a whole answer frame (the hot way out);
* steps that return one of these: a generator (``turns.py``), or an awaitable, which runs in a task.

Where there is no answer it returns ``HELD`` or ``NO_ROOM``. A reply that is a body, of any size, is
encoded in steps.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator
from enum import Enum
from typing import Any, Final, Literal, Protocol, TypeVar, cast

import msgspec

from turbopump.errors import (
    BodyError,
    HeaderError,
    ProtocolError,
    ReadsRefusedError,
    TurbopumpError,
)
from turbopump.protocol import fastjson
from turbopump.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from turbopump.protocol.command import (
    FEW_FIELDS_SIZE,
    Command,
    TypedJsonHeader,
    decode_command,
    typed_json_decoder,
)
from turbopump.protocol.frame import JSON, Frame
from turbopump.protocol.request import ReplyT, Request, header_from_ext
from turbopump.remoting.response import Refusal, Response, encode_response, refusal, response_steps
from turbopump.remoting.served import Served, size_of
from turbopump.remoting.turns import Steps
from turbopump.remoting.wire import Wire
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_request_failed = RepeatedLine(log, logging.WARNING, "request failed code=%s peer=%s cause=%s")
_handler_failed = RepeatedLine(log, logging.ERROR, "request failed code=%s peer=%s cause=%r")

T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=Request[Any], covariant=True)
BodyT = TypeVar("BodyT", bound=msgspec.Struct, covariant=True)


class Unanswered(Enum):
    """Outcomes of a handler that are no answer."""

    HELD = "held"
    NO_ROOM = "no room"


HELD: Final = Unanswered.HELD
"""The answer comes later, by ``RequestContext.settle``, or never."""
NO_ROOM: Final = Unanswered.NO_ROOM
"""Nothing was done; the handler is to be called again when there is room (``backlog.py``)."""

Ready = Response[ReplyT] | bytes | Literal[Unanswered.HELD]
Outcome = (
    Ready[ReplyT]
    | Steps[Ready[ReplyT] | Awaitable[Ready[ReplyT]]]
    | Awaitable[Ready[ReplyT]]
    | Literal[Unanswered.NO_ROOM]
)
RequestHandler = Callable[[Any, "RequestContext"], Outcome[Any]]

Authorise = Callable[[Request[Any], "RequestContext"], Refusal | Steps[Refusal | None] | None]
"""Judge of requests: it returns None, or the answer that refuses the request. For a request that
names thousands of resources it returns steps.

The router asks it for every request, between decoding and the handler. It sees the typed request,
and in the context every header field as it came (``command.ext``, with AccessKey and Signature),
the raw body that a signature covers, and the peer. For a request that has no handler, or cannot be
read, it sees ``UNREAD``: to be told that is a right, too."""


class _UnreadRequest(Request[None]):
    """The type of ``UNREAD``."""


UNREAD: Final = _UnreadRequest()


class RequestContext(msgspec.Struct, gc=False):
    """The surroundings of a request: the peer that sent it, its body, and how to answer later.

    ``served`` holds the requests of this peer. ``command`` is the whole command with every header
    field as it came; it is decoded when first asked for. ``judge_topic`` judges the topic of a
    message that the request names by its offset alone, which ``authorise`` cannot know
    (``refused``). ``may_produce``: False if the producers of a heartbeat do not count.
    """

    peer: Wire
    served: Served
    frame: Frame
    code: int
    opaque: int
    flag: int
    version: int
    body: bytes
    decoded: Command | None = None
    judge_topic: Callable[[str, str | None], Refusal | None] | None = None
    may_produce: bool = True

    @property
    def command(self) -> Command:
        if self.decoded is None:
            self.decoded = decode_command(self.frame)
        return self.decoded

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    def refused(self, topic: str, group: str | None = None) -> Refusal | None:
        """Return the refusal of a message of this topic, for handlers that have found it by its
        offset; None: the peer may have it. ``group``: the group that consumes it."""
        return None if self.judge_topic is None else self.judge_topic(topic, group)

    def answer(self, response: Response[Any]) -> None:
        """Send the answer now, if one is wanted; for handlers that returned ``HELD``."""
        if self.flag & FLAG_ONEWAY:
            return
        if response.has_body:
            steps = response_steps(self.opaque, response)
            self.served.run_steps(steps, self.peer.send_frame, _raise)
        else:
            self.peer.send_frame(encode_response(self.opaque, response))

    def fail(self, error: Exception) -> None:
        """Answer that the handler failed."""
        self.answer(failure_response(error, self))

    async def in_turns(self, steps: Steps[T]) -> T:
        """Return the outcome of work in steps, for handlers that wait."""
        return await self.served.turns.outcome(self.served, steps)

    def settle(self, outcome: Outcome[Any]) -> None:
        """Send the outcome of a handler, now or when it is there."""
        if outcome.__class__ is bytes:  # the hot way out
            if not self.flag & FLAG_ONEWAY:
                self.peer.send_frame(outcome)
        elif outcome is HELD:
            return
        elif outcome is NO_ROOM:
            self.served.put_off(self.frame)
        elif isinstance(outcome, Response):
            self.answer(outcome)
        elif isinstance(outcome, Generator):
            self.served.run_steps(_with_frame(outcome, self.opaque), self.settle, self.fail)
        else:
            assert isinstance(outcome, Awaitable)
            self.served.start_task(outcome, size_of(self.frame), self.settle_awaited)

    async def settle_awaited(self, outcome: Awaitable[Ready[Any]]) -> None:
        """Send an outcome that must be awaited."""
        try:
            ready = await outcome
        except Exception as error:
            self.fail(error)
        else:
            self.settle(ready)

    def settle_call(self, respond: Callable[[T], Outcome[Any]], what: T) -> None:
        """Send what ``respond`` makes of ``what``, or the answer that it failed."""
        try:
            outcome = respond(what)
        except Exception as error:
            outcome = failure_response(error, self)
        self.settle(outcome)


def _with_frame(steps: Steps[Any], opaque: int) -> Steps[Any]:
    """The outcome of the steps, encoded by more of them if it is an answer with a body."""
    outcome = yield from steps
    if isinstance(outcome, Response) and outcome.has_body:
        return (yield from response_steps(opaque, outcome))
    return outcome


def _once_allowed(
    judging: Steps[Refusal | None], handler: RequestHandler, request: Any, context: RequestContext
) -> Steps[Any]:
    """The outcome of the handler for a request that is judged in steps, or why it is refused."""
    refused = yield from judging
    return handler(request, context) if refused is None else refused


def _raise(error: Exception) -> None:
    raise error


class RequestType(Protocol[RequestT, ReplyT]):
    """The class of a request, as mypy is to see it: it makes a ``RequestT``, which is answered with
    a ``ReplyT``."""

    @property
    def reply(self) -> type[ReplyT] | None: ...
    def __call__(self, *args: Any, **fields: Any) -> RequestT: ...


class RequestWithBodyType(RequestType[RequestT, ReplyT], Protocol[RequestT, BodyT, ReplyT]):
    """Class of a request that declares its JSON body, a ``BodyT``."""

    @property
    def body(self) -> type[BodyT]: ...


class _Number(msgspec.Struct):
    """Fields of a header that a refusal needs."""

    opaque: int
    flag: int = 0


_number_decoder: Final = msgspec.json.Decoder(_Number)


class Router:
    """A table from request code to (request type, handler). ``authorise``: who may do what; None:
    everyone may do everything."""

    def __init__(self, authorise: Authorise | None = None) -> None:
        self.authorise = authorise
        self.routes: dict[int, tuple[type[Request[Any]], RequestHandler]] = {}
        # RocketMQ clients written in Java and ours begin a header with its code: that is the key to
        # a one-pass decoder, which is made when the first such request comes (0.8 ms each).
        self.decoders: dict[
            bytes, tuple[msgspec.json.Decoder[TypedJsonHeader[Any]], RequestHandler, int]
        ] = {}
        self._codes: dict[bytes, int] = {}
        self._patient: set[int] = set()
        self._patient_begins: set[bytes] = set()
        """First twelve bytes of their headers, as most clients write them."""
        self.refusals: dict[int, Refusal] = {}
        """Codes that are known, and answered with a reason instead of "not supported"."""

    def refuse(self, code: int, remark: str) -> None:
        """Answer this request code with 1 and these words, whatever the request says."""
        assert code not in self.routes, f"code {code} has a handler"
        self.refusals[int(code)] = refusal(ResponseCode.SYSTEM_ERROR, remark)

    def add(
        self,
        request_type: RequestType[RequestT, ReplyT],
        handler: Callable[[RequestT, RequestContext], Outcome[ReplyT]],
        *,
        may_wait: bool = False,
    ) -> None:
        """Let ``handler`` answer requests of this type. Each code has one handler. ``may_wait``: in
        the server's line, if it has one; only such a handler may return ``NO_ROOM``."""
        declared = cast("type[Request[Any]]", request_type)
        code = int(declared.code)
        assert code not in self.routes, f"code {code} has two handlers"
        self.routes[code] = (declared, handler)
        begin = b'{"code":%d,' % code
        self._codes[begin] = code
        if may_wait:
            self._patient.add(code)
            self._patient_begins.add(begin)

    def add_with_body(
        self,
        request_type: RequestWithBodyType[RequestT, BodyT, ReplyT],
        handler: Callable[[RequestT, BodyT, RequestContext], Outcome[ReplyT]],
    ) -> None:
        """Add a request that declares its JSON body: ``handler`` gets that too. No body is
        an empty one. One that cannot be read is refused with code 1."""

        def handle(request: Any, context: RequestContext) -> Outcome[ReplyT]:
            type_ = request_type.body
            try:
                body = fastjson.decode_request(context.body or b"{}", type_)
            except BodyError as error:
                name = type_.__name__
                raise BodyError(f"the body cannot be read as {name}: {error}") from None
            return handler(request, body, context)

        self.add(request_type, handle)

    @property
    def codes(self) -> frozenset[int]:
        """Every request code that has a handler."""
        return frozenset(self.routes)

    def handle(self, frame: Frame, served: Served) -> None:
        """Handle a request now; give an answer to the call that waits for it."""
        found = None
        if frame.serialize_type == JSON:
            found = self.typed(frame.header)
        if found is None:
            found = self._read_tolerantly(frame, served)
            if found is None:
                return
        header, handler = found
        context = RequestContext(
            served.wire,
            served,
            frame,
            header.code,
            header.opaque,
            header.flag,
            header.version,
            frame.body,
        )
        outcome: Outcome[Any]
        try:
            judged = None if self.authorise is None else self.authorise(header.ext, context)
            if judged is None:
                outcome = handler(header.ext, context)
            elif isinstance(judged, Response):
                outcome = judged
            else:
                outcome = _once_allowed(judged, handler, header.ext, context)
        except Exception as error:
            outcome = failure_response(error, context)
        context.settle(outcome)

    def _read_tolerantly(
        self, frame: Frame, served: Served
    ) -> tuple[TypedJsonHeader[Any], RequestHandler] | None:
        """A request in any form, and who answers it; None if it is an answer, or has been refused
        for what it is."""
        try:
            command = decode_command(frame)
        except ProtocolError as error:
            served.give_up(error)
            return None
        if command.is_response:
            served.wire.calls.settle(command)
            return None
        found = self.resolve(command)
        if isinstance(found, Response):
            context = RequestContext(
                served.wire,
                served,
                frame,
                command.code,
                command.opaque,
                command.flag,
                command.version,
                frame.body,
                command,
            )
            refused = None if self.authorise is None else self.authorise(UNREAD, context)
            context.answer(refused if isinstance(refused, Response) else found)
            return None
        return found

    def refuse_frame(self, frame: Frame, answer: Callable[[int], bytes], served: Served) -> None:
        """Answer a request that was not handled with what ``answer`` makes of its number."""
        head: Any = self._number(frame)
        if head is None:
            try:
                head = decode_command(frame)
            except ProtocolError as error:
                served.give_up(error)
                return
        if not head.flag & FLAG_ONEWAY:
            served.wire.send_frame(answer(head.opaque))

    def typed(self, header: bytes) -> tuple[TypedJsonHeader[Any], RequestHandler] | None:
        """A JSON header decoded in one pass, and who answers it; None: it is an answer, or long, or
        ``resolve`` reads it or says what is wrong."""
        if len(header) > FEW_FIELDS_SIZE:
            return None  # its fields are counted first
        found = self.decoders.get(header[:12])  # {"code":310, as most clients write it
        if found is None:
            comma = header.find(b",", 8, 20)
            begin = header[: comma + 1]
            found = self.decoders.get(begin)
            if found is None:
                code = self._codes.get(begin)
                if code is None:
                    return None
                request_type, handler = self.routes[code]
                found = self.decoders[begin] = (typed_json_decoder(request_type), handler, code)
        try:
            typed = found[0].decode(header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if typed.flag & FLAG_RESPONSE or typed.code != found[2]:
            return None  # of two codes the last counts: ``resolve`` knows whose it is
        return typed, found[1]

    def may_wait(self, frame: Frame) -> bool:
        """Return True if a request, in any form, may wait in the line."""
        if frame.header[:12] in self._patient_begins and frame.serialize_type == JSON:
            return True  # nearly always
        if frame.serialize_type == JSON and frame.header.startswith(b'{"code":'):
            code = frame.header[8:24].partition(b",")[0]
            if code.strip().isdigit():
                return int(code) in self._patient
        try:
            command = decode_command(frame)
        except ProtocolError:
            return False
        return command.code in self._patient and not command.is_response

    @staticmethod
    def _number(frame: Frame) -> _Number | None:
        """The number and flag of a request, read in a third of the time that ``typed`` takes; None:
        ``decode_command`` reads them, or says what is wrong."""
        if frame.serialize_type != JSON or len(frame.header) > FEW_FIELDS_SIZE:
            return None
        try:
            return _number_decoder.decode(frame.header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def resolve(self, command: Command) -> tuple[TypedJsonHeader[Any], RequestHandler] | Refusal:
        """Return the typed request and the handler of a command in any form, or the answer that
        says why it has no handler."""
        route = self.routes.get(command.code)
        if route is None:
            return self.refusals.get(command.code) or refusal(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {command.code} not supported",
            )
        request_type, handler = route
        try:
            request = header_from_ext(request_type, command.ext or {})
        except HeaderError as error:
            name = request_type.__name__
            return refusal(
                ResponseCode.SYSTEM_ERROR, f"{name} ({command.code}) cannot be read: {error}"
            )
        return TypedJsonHeader(
            command.code, command.opaque, request, command.flag, command.version
        ), handler


def failure_response(error: Exception, context: RequestContext) -> Refusal:
    """The answer to a request whose handler failed: code 1 and one sentence; the traceback goes to
    our log only. Code 2, which clients try again, where too many reads wait."""
    if isinstance(error, TurbopumpError):
        _request_failed(context.code, context.peer.peer, error, kind=(context.code, type(error)))
        busy = isinstance(error, ReadsRefusedError)
        return refusal(ResponseCode.SYSTEM_BUSY if busy else ResponseCode.SYSTEM_ERROR, str(error))
    _handler_failed(
        context.code, context.peer.peer, error, kind=(context.code, type(error)), exc_info=True
    )
    return refusal(
        ResponseCode.SYSTEM_ERROR,
        f"internal error {type(error).__name__} while handling request {context.code}; "
        "the server's log has the details",
    )
