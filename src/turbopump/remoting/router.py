"""Which handler answers which request. A table from request code to handler; knows nothing of
sockets.

A handler is called with the typed request and a ``RequestContext``. It returns a ``Response`` with
the reply that the request declares, as mypy checks; or steps that return one (``turns.py``), or an
awaitable of one; or bytes, a whole answer frame (the hot way out); or None: the answer comes later
through ``context.answer`` (a held pull), or never; or ``LATER``: it has done nothing and is to be
called again when there is room (``backlog.py``). A reply of any size is encoded in steps, too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    Never,
    Protocol,
    TypeVar,
    cast,
    overload,
)

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
    encode_command,
    typed_json_decoder,
)
from turbopump.protocol.frame import FRAME_SIZE_MAX, JSON, Frame, frame_head
from turbopump.protocol.request import Header, ReplyT, Request, header_from_ext
from turbopump.remoting.turns import Steps
from turbopump.repeated_line import RepeatedLine

if TYPE_CHECKING:
    from turbopump.remoting.connection import Connection


T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=Request[Any], covariant=True)
BodyT = TypeVar("BodyT", bound=msgspec.Struct, covariant=True)


class Response(Generic[ReplyT]):
    """What a handler answers: the reply that the request declares (header fields, or a JSON body),
    code, remark, a ``body`` in another form, and ``ext`` for header fields that are not declared.
    ``Response[SendReply]`` answers a ``Request[SendReply]``; a ``Refusal`` answers any."""

    __slots__ = ("body", "code", "ext", "remark", "reply")

    @overload
    def __init__(
        self: Response[None],
        reply: None = None,
        *,
        code: int = ...,
        remark: str | None = ...,
        body: bytes = ...,
        ext: dict[str, str] | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        reply: ReplyT,
        *,
        code: int = ...,
        remark: str | None = ...,
        body: bytes = ...,
        ext: dict[str, str] | None = ...,
    ) -> None: ...
    def __init__(
        self,
        reply: msgspec.Struct | None = None,
        *,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        body: bytes = b"",
        ext: dict[str, str] | None = None,
    ) -> None:
        self.reply = reply
        self.code = code
        self.remark = remark
        self.body = body
        self.ext = ext

    @property
    def has_body(self) -> bool:
        """Whether the reply is a body, of any size."""
        return self.reply is not None and not isinstance(self.reply, Header)


Refusal = Response[Never]
"""The answer to a request that is not fulfilled, of whatever type the request is."""


def refusal(code: int, remark: str) -> Refusal:
    """Why a request is not fulfilled, by number and in words."""
    return cast("Refusal", Response(code=code, remark=remark))


class Later(Enum):
    """The type of ``LATER``."""

    LATER = "later"


LATER: Final = Later.LATER

Outcome = (
    Response[ReplyT]
    | bytes
    | Steps[Response[ReplyT] | bytes | Awaitable[Response[ReplyT] | bytes | None] | None]
    | Awaitable[Response[ReplyT] | bytes | None]
    | Literal[Later.LATER]
    | None
)
RequestHandler = Callable[[Any, "RequestContext"], Outcome[Any]]

Authorise = Callable[[Request[Any], "RequestContext"], Refusal | Steps[Refusal | None] | None]
"""Says whether a request may be handled: None, or the answer that refuses it; of one that names
thousands of resources in steps, while others have their turn. It is asked between
decoding and the handler, for every request of a server, and sees the typed request, and in the
context every header field as it came (``command.ext``, with AccessKey and Signature), the raw body
that a signature covers, and the peer. Each server has a router, so it knows whose request it is. Of
a request that has no handler, or cannot be read, it sees ``UNREAD``: to be told that is a right,
too."""


class _UnreadRequest(Request[None]):
    """The type of ``UNREAD``."""


UNREAD: Final = _UnreadRequest()


class RequestContext(msgspec.Struct, gc=False):
    """What surrounds a request: who sent it, its body, and how to answer later.

    ``command`` is the whole command with every header field as it came; it is decoded when first
    asked for. ``judge_topic``: where ``authorise`` could not know the topic of a message that the
    request names by its place alone, what judges it (``refused``). ``may_produce``: whether the
    producers of a heartbeat count.
    """

    peer: Connection
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
        """Why who asks may not have a message of this topic, for handlers that have found it by its
        place; None: it may be had. ``group``: for whom it is consumed."""
        return None if self.judge_topic is None else self.judge_topic(topic, group)

    def answer(self, response: Response[Any]) -> None:
        """Send the answer now, if one is wanted; for handlers that returned None."""
        if not self.flag & FLAG_ONEWAY:
            self.peer.send_response(self.opaque, response)

    async def in_turns(self, steps: Steps[T]) -> T:
        """The outcome of work in steps, for handlers that wait."""
        return await self.peer.turns.outcome(self.peer, steps)

    def settle(self, outcome: Outcome[Any]) -> None:
        """Do with a later outcome what is done with one that a handler returns."""
        self.peer.settle(outcome, self)


class RequestType(Protocol[RequestT, ReplyT]):
    """The class of a request, as mypy is to see it: it makes a ``RequestT``, which is answered with
    a ``ReplyT``."""

    @property
    def reply(self) -> type[ReplyT] | None: ...
    def __call__(self, *args: Any, **fields: Any) -> RequestT: ...


class RequestWithBodyType(RequestType[RequestT, ReplyT], Protocol[RequestT, BodyT, ReplyT]):
    """The same of a request that declares its JSON body, a ``BodyT``."""

    @property
    def body(self) -> type[BodyT]: ...


class _Number(msgspec.Struct):
    """What of a header is wanted to refuse it."""

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
        """How their headers begin, as most clients write them: twelve bytes."""
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
        the server's line, if it has one; only such a handler may return ``LATER``."""
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
        """The same for a request that declares its JSON body: ``handler`` gets that too. No body is
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
        """Whether a request, which may have any form, is one that may stand in the line."""
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
    def number(frame: Frame) -> _Number | None:
        """The number and flag of a request, read in a third of the time that ``typed`` takes; None:
        ``decode_command`` reads them, or says what is wrong."""
        if frame.serialize_type != JSON or len(frame.header) > FEW_FIELDS_SIZE:
            return None
        try:
            return _number_decoder.decode(frame.header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def resolve(self, command: Command) -> tuple[TypedJsonHeader[Any], RequestHandler] | Refusal:
        """The same of a command in any form, or the answer that says why it has no handler."""
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


# --- Answers as frames

BODY_MAX: Final = FRAME_SIZE_MAX - 64 * 1024
"""Bytes of the body of an answer; the rest of the frame is for its header."""

log = logging.getLogger(__name__)
_request_failed = RepeatedLine(log, logging.WARNING, "request failed code=%s peer=%s cause=%s")
_handler_failed = RepeatedLine(log, logging.ERROR, "request failed code=%s peer=%s cause=%r")


def encode_response(opaque: int, response: Response[Any]) -> bytes:
    """The frame that answers request ``opaque``."""
    reply, body, remark = response.reply, response.body, response.remark
    if reply is None and not body and not response.ext and remark is not None and remark.isascii():
        return _EncodedRefusal(int(response.code), remark).frame(opaque)
    if response.has_body:
        body = fastjson.encode(reply)
    return _response_frame(opaque, response, body)


def response_steps(opaque: int, response: Response[Any]) -> Steps[bytes]:
    """The same in steps, for a reply that is a body of any size."""
    body = yield from fastjson.encode_steps(response.reply)
    return _response_frame(opaque, response, body)


def _response_frame(opaque: int, response: Response[Any], body: bytes) -> bytes:
    ext = response.reply.to_ext() if isinstance(response.reply, Header) else {}
    if response.ext:
        ext.update(response.ext)
    if len(body) > BODY_MAX:  # no client would take it
        remark = (
            f"the answer has {len(body)} bytes, and a frame has room for {BODY_MAX} of them; ask "
            "for a part of it, such as one topic or one group"
        )
        return encode_response(opaque, refusal(ResponseCode.SYSTEM_ERROR, remark))
    return encode_command(
        Command(
            response.code,
            opaque=opaque,
            flag=FLAG_RESPONSE,
            remark=response.remark,
            ext=ext or None,
            body=body,
        )
    )


def encoder_of(response: Refusal) -> Callable[[int], bytes]:
    """What makes the frame that answers a request from its number, for many that are refused alike:
    a broker that has more to do than it can refuses thousands a second."""
    if response.remark is None or not response.remark.isascii():
        return lambda opaque: encode_response(opaque, response)
    return _EncodedRefusal(int(response.code), response.remark).frame


class _EncodedRefusal:
    """An answer of nothing but code and remark, encoded but for the number of the request."""

    __slots__ = ("_begin", "_begins", "_end")

    def __init__(self, code: int, remark: str) -> None:
        begin, ident, said, end = _REFUSAL
        self._begin = b"%b%d%b" % (begin, code, ident)
        self._end = b"%b%b%b" % (said, _encode_remark(remark), end)
        self._begins: dict[int, bytes] = {}
        """What comes before a number of so many digits: lengths count them."""

    def frame(self, opaque: int) -> bytes:
        number = b"%d" % opaque
        begin = self._begins.get(len(number)) or self._begin_for(len(number))
        return begin + number + self._end

    def _begin_for(self, digits: int) -> bytes:
        size = len(self._begin) + digits + len(self._end)
        begin = self._begins[digits] = frame_head(size, 0) + self._begin
        return begin


_encode_remark: Final = msgspec.json.Encoder().encode
_REFUSAL: Final = re.split(
    b'3333333333|4444444444|"5555555555"',
    encode_command(Command(3_333_333_333, opaque=4_444_444_444, flag=1, remark="5555555555"))[8:],
)
"""The header of a refusal, between code, opaque and remark."""


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
