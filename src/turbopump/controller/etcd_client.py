"""Client of etcd's JSON gateway (v3 API over HTTP/1.1).

A call goes to the member that answered last, and to the others in turn if that one does not answer
in time. Each request has its own connection, so an answer never belongs to an earlier request. The
running event loop does all the work. Keys and their meaning are unknown here.

Source: https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway, etcd's ``rpc.proto``.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from typing import Any, Final, Protocol, cast

import msgspec

from turbopump.config.addresses import join_address
from turbopump.config.etcd import Etcd
from turbopump.remoting.tls import ClientContext, failure_words

log = logging.getLogger(__name__)

Json = dict[str, Any]
ANSWER_SIZE_MAX: Final = 64 << 20
SHOWN_SIZE: Final = 200
_END: Final = b"\r\n\r\n"
_OK: Final = 200

_INVALID_ARGUMENT: Final = 3
_PERMISSION_DENIED: Final = 7
_UNAUTHENTICATED: Final = 16
_NOT_EXECUTED: Final = frozenset({_INVALID_ARGUMENT, 5, _PERMISSION_DENIED, 9, _UNAUTHENTICATED})
"""Codes of gRPC that etcd answers before it executes a request; 5 is NOT_FOUND, 9
FAILED_PRECONDITION. After any other error the request may have been executed."""
_SIGN_IN_AGAIN: Final = ("invalid auth token", "user name is empty", "revision of auth store")
"""Parts of etcd's error messages after which a new token helps."""


class EtcdError(Exception):
    """Base class of the errors of a call. The text says which member failed, and how."""


class EtcdRefusedError(EtcdError):
    """Raised when etcd refused a request without executing it."""


class EtcdUnreachableError(EtcdError):
    """Raised when no member has answered. The request may have been executed, now or later."""


class EtcdCalls(Protocol):
    """Protocol of what makes calls to etcd."""

    async def call(self, method: str, request: Mapping[str, object]) -> Json:
        """Return the answer of one member.

        - ``method``: path below ``/v3/``, such as ``kv/txn``.

        Raises EtcdRefusedError or EtcdUnreachableError.
        """


class EtcdClient:
    """Makes calls to the members of one etcd cluster.

    - ``attempt_s``: seconds that each member may take.
    """

    def __init__(self, etcd: Etcd, attempt_s: float) -> None:
        self._etcd = etcd
        self._attempt_s = attempt_s
        self._tls = None if etcd.tls is None else ClientContext(etcd.tls)
        self._first = 0
        """Index of the member that answered last."""
        self._token = ""

    async def call(self, method: str, request: Mapping[str, object]) -> Json:
        """Return the answer of the first member that answers (see ``EtcdCalls``)."""
        try:
            return await self._signed_call(method, request)
        except EtcdRefusedError as error:
            if not (self._etcd.user and any(part in str(error) for part in _SIGN_IN_AGAIN)):
                raise
        self._token = ""
        return await self._signed_call(method, request)

    async def _signed_call(self, method: str, request: Mapping[str, object]) -> Json:
        if self._etcd.user and not self._token:
            name = {"name": self._etcd.user, "password": self._etcd.password}
            answer = await self._call_members("auth/authenticate", name)
            self._token = str(answer.get("token", ""))
        return await self._call_members(method, request)

    async def _call_members(self, method: str, request: Mapping[str, object]) -> Json:
        body = msgspec.json.encode(request)
        failures = []
        members = self._etcd.members
        first = self._first
        for number in range(len(members)):
            index = (first + number) % len(members)
            try:
                answer = await self._ask(members[index], method, body)
            except _MemberError as error:
                failures.append(f"{join_address(*members[index])}: {error}")
                continue
            self._first = index
            return answer
        raise EtcdUnreachableError("; ".join(failures))

    async def _ask(self, member: tuple[str, int], method: str, body: bytes) -> Json:
        """Return the answer of one member.

        Raises _MemberError if another one should be asked, EtcdRefusedError if not.
        """
        try:
            async with asyncio.timeout(self._attempt_s):
                status, text = await self._exchange(member, method, body)
        except TimeoutError:
            raise _MemberError(f"no answer within {self._attempt_s:.2f} s") from None
        except ssl.SSLError as error:
            raise _MemberError(failure_words(error)) from None
        except OSError as error:
            raise _MemberError(error.strerror or str(error) or type(error).__name__) from None
        try:
            answer = msgspec.json.decode(text, type=Json)
        except msgspec.MsgspecError:
            said = text[:SHOWN_SIZE].decode("ascii", "backslashreplace").strip()
            raise _MemberError(f"HTTP status {status}, not etcd's v3 API: {said!r}") from None
        if status == _OK and "error" not in answer:
            return answer
        return self._raise_refusal(member, answer)

    def _raise_refusal(self, member: tuple[str, int], answer: Json) -> Json:
        fault = answer.get("error", "")
        if isinstance(fault, dict):  # of a call that could have several answers
            answer = fault
            fault = fault.get("message", "")
        code = answer.get("code", answer.get("grpc_code", 0))
        if code in _NOT_EXECUTED:
            raise EtcdRefusedError(f"{join_address(*member)}: {fault} (code {code})")
        raise _MemberError(f"{fault} (code {code})")

    async def _exchange(
        self, member: tuple[str, int], method: str, body: bytes
    ) -> tuple[int, bytes]:
        """Send one request on a new connection, and return the status and body of the answer."""
        host, port = member
        loop = asyncio.get_running_loop()
        context = None if self._tls is None else self._tls.context_at(loop.time())
        request = self._head(member, method, len(body)) + body
        transport, connection = await loop.create_connection(
            lambda: _Connection(request, loop.create_future()), host, port, ssl=context
        )
        try:
            return decode_answer(await connection.answer)
        finally:
            transport.abort()

    def _head(self, member: tuple[str, int], method: str, size: int) -> bytes:
        fields = [
            f"POST /v3/{method} HTTP/1.1",
            f"Host: {join_address(*member)}",
            "Content-Type: application/json",
            f"Content-Length: {size}",
            "Connection: close",
        ]
        if self._token:
            fields.append(f"Authorization: {self._token}")
        return "\r\n".join(fields).encode() + _END


class _MemberError(Exception):
    """Raised when a member did not answer, or cannot execute requests now."""


class _Connection(asyncio.Protocol):
    """Connection for one request. ``answer`` gets all bytes when the member closes it."""

    def __init__(self, request: bytes, answer: asyncio.Future[bytes]) -> None:
        self.answer = answer
        self._request = request
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > ANSWER_SIZE_MAX and self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answer.done():
            return
        if exc is None:
            self.answer.set_result(bytes(self._received))
        else:
            self.answer.set_exception(exc)


def decode_answer(data: bytes) -> tuple[int, bytes]:
    """Return the status and the body of an answer of HTTP/1.1.

    Raises ConnectionError if the answer is incomplete, or is none.
    """
    head, end, body = data.partition(_END)
    if not end:
        raise ConnectionResetError("the connection ended before the answer")
    line, *lines = head.decode("latin-1").split("\r\n")
    fields = {}
    for name, _, value in (one.partition(":") for one in lines):
        fields[name.strip().lower()] = value.strip().lower()
    try:
        status = int(line.split(" ")[1])
        if fields.get("transfer-encoding") == "chunked":
            return status, _join_chunks(body)
        size = int(fields["content-length"])
    except (ValueError, LookupError):
        raise ConnectionAbortedError("the answer is not one of HTTP/1.1") from None
    if size != len(body):
        raise ConnectionResetError("the connection ended within the answer")
    return status, body


def _join_chunks(data: bytes) -> bytes:
    """Join a body in chunks (RFC 9112, section 7.1), without the fields behind it."""
    body = bytearray()
    at = 0
    while True:
        begin = data.index(b"\r\n", at) + 2
        size = int(data[at:begin].split(b";")[0], 16)
        if not size:
            return bytes(body)
        at = begin + size + 2
        if at > len(data):
            raise ConnectionResetError("the connection ended within the answer")
        body += data[begin : begin + size]
