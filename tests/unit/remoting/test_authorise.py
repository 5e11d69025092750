"""The seam between decoding and the handlers: what it is shown, and that nothing gets past it."""

from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.broker.talking import pull, talking
from tests.unit.protocol.headers import REQUESTS, filled
from tests.unit.remoting.transports import KeptTransport

from turbopump.broker.broker import Broker
from turbopump.errors import ResponseError
from turbopump.namesrv.server import NameServer
from turbopump.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from turbopump.protocol.command import Command, decode_command, encode_command
from turbopump.protocol.frame import JSON, ROCKETMQ, FrameReader, frame_head
from turbopump.protocol.request import Request
from turbopump.protocol.requests.namesrv import GetRouteInfo
from turbopump.protocol.requests.pull import PullMessage
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.response import Response
from turbopump.remoting.router import RequestContext, Router
from turbopump.remoting.served_requests import ServedRequests
from turbopump.remoting.wire import Wire

SIGNED = {"AccessKey": "billing", "Signature": "c2lnbmVk"}


def another_order(command: Command) -> bytes:
    """A JSON header that does not begin with its code, as clients in Go and C++ write it."""
    fields = {"extFields": command.ext, "code": command.code, "opaque": command.opaque}
    header = json.dumps(fields | {"flag": command.flag, "language": "GO", "version": 1}).encode()
    return frame_head(len(header), len(command.body), JSON) + header + command.body


def binary(command: Command) -> Command:
    made = copy.copy(command)
    made.serialize_type = ROCKETMQ
    return made


FORMS = {
    "one pass": encode_command,
    "another order": another_order,
    "binary": lambda command: encode_command(binary(command)),
}


def answers(connection: Wire, transport: KeptTransport, frame: bytes) -> list[Command]:
    transport.written.clear()
    connection.data_received(frame)
    connection._flush()
    return [decode_command(each) for each in FrameReader().feed(bytes(transport.written))]


def refuse(
    asked: list[tuple[Request[Any], RequestContext]], request: Request[Any], context: RequestContext
) -> Response:
    asked.append((request, context))
    return Response(code=ResponseCode.NO_PERMISSION, remark="not for you")


def note(handled: list[Request[Any]], request: Request[Any], _context: RequestContext) -> Response:
    handled.append(request)
    return Response()


@pytest.mark.parametrize("form", FORMS)
@in_loop
async def test_a_refusal_stops_every_request_in_every_form(form: str) -> None:
    asked: list[tuple[Request[Any], RequestContext]] = []
    handled: list[Request[Any]] = []

    router, transport = Router(partial(refuse, asked)), KeptTransport()
    for declared in REQUESTS:
        router.add(declared, partial(note, handled))
    connection = ServedRequests(router).wire
    connection.connection_made(transport)
    # The binary header has 16 bits for the code: Apache's own cannot carry POP's either.
    sendable = [each for each in REQUESTS if form != "binary" or each.code < 1 << 15]
    assert len(sendable) > 60
    for number, declared in enumerate(sendable):
        sent = filled(declared)
        command = Command(
            int(declared.code), opaque=number, ext=sent.to_ext() | SIGNED, body=b"the body"
        )
        (answer,) = answers(connection, transport, FORMS[form](command))
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "not for you")
        assert (answer.opaque, answer.flag) == (number, FLAG_RESPONSE)
        request, context = asked[-1]
        assert request == sent
        assert context.command.ext == command.ext
        assert (context.body, context.peer.peer_ip) == (b"the body", "127.0.0.1")
        command.flag = FLAG_ONEWAY
        assert answers(connection, transport, FORMS[form](command)) == []
    assert (len(asked), handled) == (2 * len(sendable), [])


@in_loop
async def test_what_is_permitted_is_handled_and_an_error_of_the_policy_is_an_answer() -> None:
    def judge(request: Request[Any], context: RequestContext) -> None:
        if context.body == b"fail":
            raise RuntimeError("the policy cannot be read")

    router, transport = Router(judge), KeptTransport()
    router.add(REQUESTS[0], lambda _request, context: Response(body=context.body))
    connection = ServedRequests(router).wire
    connection.connection_made(transport)
    for body, code in ((b"well", ResponseCode.SUCCESS), (b"fail", ResponseCode.SYSTEM_ERROR)):
        command = Command(int(REQUESTS[0].code), ext=filled(REQUESTS[0]).to_ext(), body=body)
        (answer,) = answers(connection, transport, encode_command(command))
        assert answer.code == code


def handle(handled: list[int], request: Request[Any], _context: RequestContext) -> Response:
    handled.append(int(type(request).code))
    return Response()


@pytest.mark.parametrize("flip", [False, True])
@in_loop
async def test_a_header_with_two_codes_is_judged_and_handled_as_one_and_the_same(
    flip: bool,
) -> None:
    """What is allowed for one code must not be done for another."""
    judged: list[tuple[int, int]] = []
    handled: list[int] = []

    def judge(request: Request[Any], context: RequestContext) -> None:
        judged.append((context.code, int(type(request).code)))

    router, transport = Router(judge), KeptTransport()
    two = [PullMessage, GetRouteInfo]
    for declared in two:
        router.add(declared, partial(handle, handled))
    connection = ServedRequests(router).wire
    connection.connection_made(transport)
    first, last = (int(each.code) for each in (two[::-1] if flip else two))
    fields = filled(GetRouteInfo).to_ext() | filled(PullMessage).to_ext()
    header = json.dumps({"code": first, "opaque": 7, "extFields": fields}, separators=(",", ":"))
    for text in (f'{header[:-1]},"code":{last}}}', f'{header[:-1]},"code": {last} }}'):
        frame = frame_head(len(text), 0, JSON) + text.encode()
        (answer,) = answers(connection, transport, frame)
        assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 7)
    assert judged == [(last, last)] * 2
    assert handled == [last] * 2


def no_pulls(request: Request[Any], context: RequestContext) -> Response | None:
    assert context.peer.peer.startswith("127.0.0.1")
    if isinstance(request, PullMessage | GetRouteInfo):
        return Response(code=ResponseCode.NO_PERMISSION, remark="not for you")
    return None


@in_loop
async def test_a_broker_and_a_name_server_ask_who_may_do_what(tmp_path: Path) -> None:
    async with talking(tmp_path, partial(Broker, authorise=no_pulls)) as talk:
        await talk.client.send(b"permitted")
        answer = await talk.client.ask(pull(0))
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "not for you")
    server, client = NameServer(authorise=no_pulls), RemotingClient()
    _, port = await server.start("127.0.0.1", 0)
    try:
        with pytest.raises(ResponseError, match="not for you"):
            await client.call(f"127.0.0.1:{port}", GetRouteInfo(topic="T"))
    finally:
        await client.close()
        await server.close()
