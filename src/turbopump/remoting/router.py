"""Router of requests: a table from request code to handler. It also handles each request.

A request is decoded and authorised, the handler is called, and its outcome is sent. Sockets are
unknown here.

A handler is called with the typed request and a ``RequestContext``. It returns one of three things:

* a ``Response`` with the reply that the request declares, as mypy checks;
* bytes, a whole answer frame (the fastest form);
* steps that return one of these: a generator (``turns.py``), or an awaitable, which runs in a task.

A handler without an answer returns ``HELD`` or ``NO_ROOM``. A reply with a body is encoded in
steps.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator
from enum import Enum
from functools import partial
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
from turbopump.remoting.answer_times import answer_key
from turbopump.remoting.backlog import PeerRequests
from turbopump.remoting.response import Refusal, Response, encode_response, refusal, response_steps
from turbopump.remoting.served_requests import ServedRequests, size_of
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
    """Outcome of a handler without an answer so far."""

    HELD = "held"
    NO_ROOM = "no room"


HELD: Final = Unanswered.HELD
"""Outcome of a handler that answers later, through ``RequestContext``, or never."""
NO_ROOM: Final = Unanswered.NO_ROOM
"""Outcome of a handler that has done nothing for want of room. The router calls the handler again
when there is room (``backlog.py``)."""

Ready = Response[ReplyT] | bytes | Literal[Unanswered.HELD]
Outcome = (
    Ready[ReplyT]
    | Steps[Ready[ReplyT] | Awaitable[Ready[ReplyT]]]
    | Awaitable[Ready[ReplyT]]
    | Literal[Unanswered.NO_ROOM]
)
RequestHandler = Callable[[Any, "RequestContext"], Outcome[Any]]

Authorise = Callable[[Request[Any], "RequestContext"], Refusal | Steps[Refusal | None] | None]
"""Function that authorises a request and returns None, or the answer that refuses the request.

For a request that names thousands of resources, the function returns steps. The router calls it for
every request, between decoding and the handler. Its arguments are the typed request and the
context. The context has the peer, every received header field (``command.ext``, with AccessKey and
Signature), and the raw body that a signature covers.

A request without a handler, or one that cannot be decoded, is authorised as ``UNREAD``. So only
users with a permission see the text of the error.
"""


class _UnreadRequest(Request[None]):
    """Request type of ``UNREAD``, the stand-in for requests that could not be decoded."""


UNREAD: Final = _UnreadRequest()


class RequestContext(msgspec.Struct, gc=False):
    """Context of one request for its handler: peer, header and body, and methods to answer.

    - ``served``: all requests of this peer.
    - ``command``: the command with every received header field, decoded on first use.
    - ``judge_topic``: function that authorises the topic of a message that the request names by
      offset only. ``authorise`` cannot know this topic.
    - ``may_produce``: False if the producers of a heartbeat do not count.
    - ``arrived``: the loop's time at which the request was read, or 0 during that turn.
    - ``suspended``: True if the request has waited for messages (long polling).
    """

    peer: Wire
    served: ServedRequests
    frame: Frame
    code: int
    opaque: int
    flag: int
    version: int
    body: bytes
    decoded: Command | None = None
    judge_topic: Callable[[str, str | None], Refusal | None] | None = None
    may_produce: bool = True
    arrived: float = 0.0
    suspended: bool = False

    @property
    def command(self) -> Command:
        if self.decoded is None:
            self.decoded = decode_command(self.frame)
        return self.decoded

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    def refused(self, topic: str, group: str | None = None) -> Refusal | None:
        """Authorise reading messages of ``topic``. Return None if the peer may read them, else the
        refusal.

        Handlers that find a message by its offset call this. ``group`` is the consuming group.
        """
        return None if self.judge_topic is None else self.judge_topic(topic, group)

    def answer(self, response: Response[Any]) -> None:
        """Send the answer to a request, after its handler has returned ``HELD``. A one-way request
        gets no answer."""
        if self.flag & FLAG_ONEWAY:
            self._count_answer(response.code)
        elif response.has_body:
            self._leave_turn()
            steps = response_steps(self.opaque, response)
            send = partial(self._send_encoded, code=response.code)
            self.served.run_steps(steps, send, _raise)
        else:
            self._count_answer(response.code)
            self.peer.send_frame(encode_response(self.opaque, response))

    def fail(self, error: Exception) -> None:
        """Answer the request with the error of its handler."""
        self.answer(failure_response(error, self))

    async def in_turns(self, steps: Steps[T]) -> T:
        """Run a generator in short steps, and return its result. Coroutine handlers use this for
        long work."""
        return await self.served.turns.outcome(self.served, steps)

    def settle(self, outcome: Outcome[Any]) -> None:
        """Process the outcome of a handler: send the answer, or start the work that produces it."""
        if outcome.__class__ is bytes:  # the fastest form
            if self.arrived or self.flag & FLAG_ONEWAY:
                self._send_encoded(outcome)
            else:
                self.served.note_answer(self.code)
                self.peer.send_frame(outcome)
        elif outcome is HELD:
            self._leave_turn()
        elif outcome is NO_ROOM:
            self.served.put_off(self.frame)
        elif isinstance(outcome, Response):
            self.answer(outcome)
        elif isinstance(outcome, Generator):
            self._leave_turn()
            self.served.run_steps(_with_frame(outcome, self.opaque), self.settle, self.fail)
        else:
            assert isinstance(outcome, Awaitable)
            self._leave_turn()
            self.served.start_task(outcome, size_of(self.frame), self.settle_awaited)

    def _leave_turn(self) -> None:
        """Remember when the request was read, because its answer may come in a later turn."""
        self.arrived = self.arrived or self.served.times.arrived

    def _send_encoded(self, frame: bytes, code: int = ResponseCode.SUCCESS) -> None:
        """Send an encoded answer with the response code ``code``."""
        self._count_answer(code)
        if not self.flag & FLAG_ONEWAY:
            self.peer.send_frame(frame)

    def _count_answer(self, response_code: int) -> None:
        key = answer_key(
            self.code,
            response_code,
            oneway=self.is_oneway,
            suspended=self.suspended,
            failed=self.peer.closed,
        )
        if self.arrived:
            self.served.times.count(key, self.arrived, self.peer.now())
        else:
            self.served.note_answer(key)

    async def settle_awaited(self, outcome: Awaitable[Ready[Any]]) -> None:
        """Await the answer of a handler and send it. If the handler fails, send its error."""
        try:
            ready = await outcome
        except Exception as error:
            self.fail(error)
        else:
            self.settle(ready)

    def settle_call(self, respond: Callable[[T], Outcome[Any]], what: T) -> None:
        """Call ``respond(what)`` and send the returned answer. If the call raises an error, send
        that error."""
        try:
            outcome = respond(what)
        except Exception as error:
            outcome = failure_response(error, self)
        self.settle(outcome)


def _with_frame(steps: Steps[Any], opaque: int) -> Steps[Any]:
    """Run a handler's steps, and encode a reply with a body in further steps.

    Returns the encoded frame, or the outcome of the steps if it has no such reply.
    """
    outcome = yield from steps
    if isinstance(outcome, Response) and outcome.has_body:
        return (yield from response_steps(opaque, outcome))
    return outcome


def _once_allowed(
    judging: Steps[Refusal | None], handler: RequestHandler, request: Any, context: RequestContext
) -> Steps[Any]:
    """Authorise a request in steps. If it is allowed, call its handler.

    Returns the outcome of the handler, or the refusal.
    """
    refused = yield from judging
    return handler(request, context) if refused is None else refused


def _raise(error: Exception) -> None:
    raise error


class RequestType(Protocol[RequestT, ReplyT]):
    """Type of a request class. It lets mypy check that the handler's reply fits the request."""

    @property
    def reply(self) -> type[ReplyT] | None: ...
    def __call__(self, *args: Any, **fields: Any) -> RequestT: ...


class RequestWithBodyType(RequestType[RequestT, ReplyT], Protocol[RequestT, BodyT, ReplyT]):
    """Type of a request class that declares a JSON body."""

    @property
    def body(self) -> type[BodyT]: ...


class _Number(msgspec.Struct):
    """Header fields of a request that a refusal needs."""

    code: int
    opaque: int
    flag: int = 0


_number_decoder: Final = msgspec.json.Decoder(_Number)


class Router:
    """Table of a server's request types and their handlers.

    ``authorise`` authorises each request. None allows everything.
    """

    def __init__(self, authorise: Authorise | None = None) -> None:
        self.authorise = authorise
        self.routes: dict[int, tuple[type[Request[Any]], RequestHandler]] = {}
        # Headers of Apache's Java client and of ours begin with the code. These first bytes are the
        # key of a one-pass decoder, which is made for the first request of a code (0.8 ms each).
        self.decoders: dict[
            bytes, tuple[msgspec.json.Decoder[TypedJsonHeader[Any]], RequestHandler, int]
        ] = {}
        self._codes: dict[bytes, int] = {}
        self._patient: set[int] = set()
        self._patient_begins: set[bytes] = set()
        """First bytes of the headers of requests that may wait, up to the comma after the code, as
        most clients write them."""
        self.refusals: dict[int, Refusal] = {}
        """Refusals by request code, sent instead of "not supported"."""

    def refuse(self, code: int, remark: str) -> None:
        """Refuse every request with this request code. The answer has code 1 and the text
        ``remark``."""
        assert code not in self.routes, f"code {code} has a handler"
        self.refusals[int(code)] = refusal(ResponseCode.SYSTEM_ERROR, remark)

    def add(
        self,
        request_type: RequestType[RequestT, ReplyT],
        handler: Callable[[RequestT, RequestContext], Outcome[ReplyT]],
        *,
        may_wait: bool = False,
    ) -> None:
        """Register ``handler`` for requests of this type. Each request code has one handler.

        ``may_wait`` allows the requests to wait in the server's backlog. Only such a handler may
        return ``NO_ROOM``.
        """
        declared = cast("type[Request[Any]]", request_type)
        code = int(declared.code)
        assert code not in self.routes, f"code {code} has two handlers"
        self.routes[code] = (declared, handler)
        begin = b'{"code":%d,' % code
        self._codes[begin] = code
        if may_wait:
            self._patient.add(code)
            self._patient_begins.add(begin)

    def redirect(self, code: int, handler: RequestHandler) -> RequestHandler:
        """Replace the handler of a request code, and return the one before.

        Requests that have reached the former handler stay with it.
        """
        request_type, before = self.routes[code]
        self.routes[code] = (request_type, handler)
        for begin in [begin for begin, found in self.decoders.items() if found[2] == code]:
            del self.decoders[begin]
        return before

    def add_with_body(
        self,
        request_type: RequestWithBodyType[RequestT, BodyT, ReplyT],
        handler: Callable[[RequestT, BodyT, RequestContext], Outcome[ReplyT]],
    ) -> None:
        """Register a handler for requests with a JSON body. The handler also gets the decoded body.

        A missing body counts as an empty object. A body that cannot be decoded is refused with code
        1.
        """

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
        """Request codes that have a handler."""
        return frozenset(self.routes)

    def handle(self, frame: Frame, served: ServedRequests) -> None:
        """Handle a frame: call the handler of a request, or pass an answer to the waiting call."""
        found = None
        if frame.serialize_type == JSON:
            found = self.decode_typed(frame.header)
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
        self, frame: Frame, served: ServedRequests
    ) -> tuple[TypedJsonHeader[Any], RequestHandler] | None:
        """Decode a request in any header form. Return its typed header and its handler.

        Returns None if the frame is an answer, which is passed to its call, or if the request was
        refused.
        """
        try:
            command = decode_command(frame)
        except ProtocolError as error:
            served.give_up(error)
            return None
        if command.is_response:
            served.wire.calls.settle(command)
            return None
        found = self.resolve_command(command)
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

    def refuse_frame(
        self, frame: Frame, answer: Callable[[int], bytes], connection: PeerRequests
    ) -> None:
        """Refuse a request with the frame that ``answer`` makes from the request id."""
        head: Any = self._number(frame)
        if head is None:
            try:
                head = decode_command(frame)
            except ProtocolError as error:
                connection.give_up(error)
                return
        oneway = bool(head.flag & FLAG_ONEWAY)
        key = answer_key(head.code, ResponseCode.SYSTEM_BUSY, oneway=oneway)
        connection.times.turn.append(key)
        if not oneway:
            connection.wire.send_frame(answer(head.opaque))

    def decode_typed(self, header: bytes) -> tuple[TypedJsonHeader[Any], RequestHandler] | None:
        """Decode a JSON header and its typed fields in one pass. Return the typed header and the
        handler.

        Returns None for an answer, a long header, or a header that only ``resolve_command`` can
        decode or reject.
        """
        if len(header) > FEW_FIELDS_SIZE:
            return None  # the number of its fields must be checked first
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
            return (
                None  # if a code is given twice the last one counts: ``resolve_command`` finds it
            )
        return typed, found[1]

    def may_wait(self, frame: Frame) -> bool:
        """Return True if a request, in any header form, may wait in the backlog."""
        if frame.header[:12] in self._patient_begins and frame.serialize_type == JSON:
            return True  # the usual case
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
        """Decode only the code, id and flag of a request. Return None if ``decode_command`` is
        needed.

        This takes a third of the time of ``decode_typed``.
        """
        if frame.serialize_type != JSON or len(frame.header) > FEW_FIELDS_SIZE:
            return None
        try:
            return _number_decoder.decode(frame.header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def resolve_command(
        self, command: Command
    ) -> tuple[TypedJsonHeader[Any], RequestHandler] | Refusal:
        """Look up a command's request type. Return the typed request and its handler, or a
        refusal."""
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
    """Return the answer to a request after its handler has failed. The remark is one sentence about
    the error.

    The code is 1. If too many reads wait, the code is 2, and clients retry. A traceback is only
    logged.
    """
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
