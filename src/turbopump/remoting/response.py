"""Answer to a request, and its encoding as a frame."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, Generic, Never, cast, overload

import msgspec

from turbopump.protocol import fastjson
from turbopump.protocol.codes import FLAG_RESPONSE, ResponseCode
from turbopump.protocol.command import Command, encode_command
from turbopump.protocol.frame import FRAME_SIZE_MAX, frame_head
from turbopump.protocol.request import Header, ReplyT
from turbopump.remoting.turns import Steps

BODY_MAX: Final = FRAME_SIZE_MAX - 64 * 1024
"""Maximum bytes of an answer's body; the rest of the frame is for its header."""


class Response(Generic[ReplyT]):
    """Answer of a request handler: a code, a remark and a reply.

    - ``reply``: the reply that the request declares, as header fields or a JSON body.
    - ``body``: a body in another form than JSON.
    - ``ext``: header fields that the request does not declare.

    ``Response[SendReply]`` answers a ``Request[SendReply]``; a ``Refusal`` answers any request.
    """

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
        """True if the reply is sent as a JSON body instead of header fields."""
        return self.reply is not None and not isinstance(self.reply, Header)


Refusal = Response[Never]
"""Type of the answer that refuses a request of any type."""


def refusal(code: int, remark: str) -> Refusal:
    """Return a refusal: an answer with only a response code and a text."""
    return cast("Refusal", Response(code=code, remark=remark))


def encode_response(opaque: int, response: Response[Any]) -> bytes:
    """Encode a response as the frame that answers the request with the id ``opaque``."""
    reply, body, remark = response.reply, response.body, response.remark
    if reply is None and not body and not response.ext and remark is not None and remark.isascii():
        return _EncodedRefusal(int(response.code), remark).frame(opaque)
    if response.has_body:
        body = fastjson.encode(reply)
    return _response_frame(opaque, response, body)


def response_steps(opaque: int, response: Response[Any]) -> Steps[bytes]:
    """Encode a response with a large body, step by step. This generator yields after each short
    step."""
    body = yield from fastjson.encode_steps(response.reply)
    return _response_frame(opaque, response, body)


def _response_frame(opaque: int, response: Response[Any], body: bytes) -> bytes:
    ext = response.reply.to_ext() if isinstance(response.reply, Header) else {}
    if response.ext:
        ext.update(response.ext)
    if len(body) > BODY_MAX:  # no client would accept it
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
    """Return a function that encodes a refusal. The function takes the request id and returns the
    frame.

    Use it for many similar refusals: an overloaded broker refuses thousands a second.
    """
    if response.remark is None or not response.remark.isascii():
        return lambda opaque: encode_response(opaque, response)
    return _EncodedRefusal(int(response.code), response.remark).frame


class _EncodedRefusal:
    """Refusal that is already encoded, apart from the request id."""

    __slots__ = ("_begin", "_begins", "_end")

    def __init__(self, code: int, remark: str) -> None:
        begin, ident, said, end = _REFUSAL
        self._begin = b"%b%d%b" % (begin, code, ident)
        self._end = b"%b%b%b" % (said, _encode_remark(remark), end)
        self._begins: dict[int, bytes] = {}
        """Bytes before the request id, by the number of digits of the id. The lengths in the frame
        depend on that number."""

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
"""Parts of a refusal's header before, between and after its code, request id and remark."""
