"""Port with the health of a server for probes: `/livez` and `/readyz`.

`/livez` answers 200 while the event loop runs. `/readyz` answers 200 if the server is ready for
clients, else 503 with the reasons. The conditions of readiness are unknown here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from turbopump.config.addresses import join_address
from turbopump.config.health import HealthConfig
from turbopump.remoting.http_pages import JSON, HttpPages, Page, PageRequest

log = logging.getLogger(__name__)

LIVE: Final = "/livez"
READY: Final = "/readyz"

Reasons = Callable[[], list[str]]
"""Function that returns the reasons why a server is not ready, each a sentence."""


class HealthPort:
    """Port of one server for probes, at ``healthHost`` and ``healthPort``.

    - ``reasons``: returns the reasons why the server is not ready. Inside
      ``pages.answered_by_thread`` another thread calls the function.
    """

    def __init__(self, config: HealthConfig, reasons: Reasons) -> None:
        self._config = config
        self._reasons = reasons
        self.pages = HttpPages({LIVE: self._live, READY: self._ready})

    async def open(self) -> None:
        """Open the port if the configuration has one. Raises ConfigError if it cannot be opened."""
        config = self._config
        if config.health_port:
            address = await self.pages.listen(config.health_host, config.health_port)
            log.info("health pages ready address=%s", join_address(*address))

    def _live(self, request: PageRequest) -> Page:
        if _wants_json(request):
            return Page(HTTPStatus.OK, '{"alive": true}\n', JSON)
        return Page(HTTPStatus.OK, "alive\n")

    def _ready(self, request: PageRequest) -> Page:
        reasons = self._reasons()
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        if _wants_json(request):
            text = json.dumps({"ready": not reasons, "reasons": reasons}, ensure_ascii=False)
            return Page(status, f"{text}\n", JSON)
        return Page(status, "".join(f"{reason}\n" for reason in reasons or ["ready"]))


def _wants_json(request: PageRequest) -> bool:
    return request.query.get("format") == "json" or JSON in request.headers.get("accept", "")
