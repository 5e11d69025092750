"""Handlers of requests to read and change the configuration of a running server.

Each kind of server registers them under its own request codes. A change is in force before it is
answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from turbopump.config import properties
from turbopump.config.running import FileDisk, ReadOnlyKeyError, RunningConfiguration
from turbopump.errors import ConfigError
from turbopump.log_keys import LogKeys
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.request import Request
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import RequestContext, Router

log = logging.getLogger(__name__)


class ConfigurationHandlers:
    """Handlers of requests to read and change the configuration of one running server.

    - ``disk``: the storage for changed settings, or None to keep them in memory only.
    - ``on_change``: called after each change, before it is stored and answered.
    """

    def __init__(
        self,
        running: RunningConfiguration,
        disk: FileDisk | None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self._running = running
        self._disk = disk
        self._on_change = on_change

    def add_to(self, router: Router, get: type[Request[None]], update: type[Request[None]]) -> None:
        """Register these handlers with a router, for the requests of this kind of server."""
        router.add(get, self.get)
        router.add(update, self.update)

    def get(self, _request: Request[None], _context: RequestContext) -> Response[None]:
        return Response(body=self.text())

    def text(self) -> bytes:
        """Return all settings as the text of a properties file."""
        return properties.encode(self._running.all_texts()).encode()

    async def update(self, _request: Request[None], context: RequestContext) -> Response[None]:
        try:
            changed = self._running.change_keys(context.body.decode("utf-8", "replace"))
        except ReadOnlyKeyError as error:
            return refusal(ResponseCode.NO_PERMISSION, str(error))
        except ConfigError as error:
            return refusal(ResponseCode.SYSTEM_ERROR, str(error))
        if self._on_change is not None:
            self._on_change()
        log.warning("configuration changed %s peer=%s", LogKeys(changed), context.peer.peer)
        return Response(remark=await self._running.write_changes(changed, self._disk))
