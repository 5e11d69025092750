"""Answers as frames: what a handler said, and what is said for one that failed. It must not know of
connections' state."""

from __future__ import annotations

import logging

from turbopump.errors import TurbopumpError
from turbopump.protocol.codes import FLAG_RESPONSE, ResponseCode
from turbopump.protocol.command import Command, encode_command
from turbopump.remoting.router import RequestContext, Response

log = logging.getLogger(__name__)


def encode_response(opaque: int, response: Response) -> bytes:
    """The frame that answers request ``opaque``."""
    ext = response.header.to_ext() if response.header is not None else {}
    if response.ext:
        ext.update(response.ext)
    return encode_command(
        Command(
            response.code,
            opaque=opaque,
            flag=FLAG_RESPONSE,
            remark=response.remark,
            ext=ext or None,
            body=response.body,
        )
    )


def failure(error: Exception, context: RequestContext) -> Response:
    """The answer to a request whose handler failed: code 1 and one sentence; the traceback goes to
    our log only."""
    if isinstance(error, TurbopumpError):
        log.warning(
            "request failed code=%s peer=%s cause=%s", context.code, context.peer.peer, error
        )
        return Response(code=ResponseCode.SYSTEM_ERROR, remark=str(error))
    log.exception("request failed code=%s peer=%s", context.code, context.peer.peer)
    return Response(
        code=ResponseCode.SYSTEM_ERROR,
        remark=f"internal error {type(error).__name__} while handling request {context.code}; "
        "the server's log has the details",
    )
