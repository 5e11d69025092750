"""Port with the metrics of a server for Prometheus: `/metrics`.

On the loopback interface the page needs no credentials. On any other interface the port speaks only
TLS if the server has a certificate, and asks for the name and the password of a user (HTTP Basic)
if the server has access control. The metrics themselves are unknown here.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from turbopump.config.addresses import is_loopback, join_address
from turbopump.config.metrics import MetricsConfig
from turbopump.config.tls import TlsMode
from turbopump.metrics.family import Metrics
from turbopump.metrics.prometheus_text import CONTENT_TYPE, text_pieces
from turbopump.remoting.http_pages import HttpPages, Page, PageRequest

log = logging.getLogger(__name__)

PATH: Final = "/metrics"

MayRead = Callable[[str, str, str], bool]
"""Function that returns True if a user may read the metrics. The arguments are the user's name, the
password, and the host of the peer."""


class MetricsPort:
    """Port of one server for Prometheus, at ``metricsPromExporterHost``.

    - ``may_read``: checks a user, or None if the server has no access control.
    """

    def __init__(
        self, config: MetricsConfig, metrics: Metrics, may_read: MayRead | None = None
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._may_read = may_read
        self._asks = not is_loopback(config.metrics_host) and may_read is not None
        self._pages = HttpPages({PATH: self._page})
        self.address: tuple[str, int] | None = None
        """Host and port, or None if the port is closed."""

    async def open(self, port: int) -> tuple[str, int]:
        """Open the port, 0 for a free one, and return its host and port. Raises ConfigError if that
        is impossible."""
        config = self._config
        tls = None
        if not is_loopback(config.metrics_host) and config.server_tls.certificate:
            tls = dataclasses.replace(config.server_tls, mode=TlsMode.ENFORCING)
        self.address = await self._pages.listen(config.metrics_host, port, tls)
        log.info("metrics page ready address=%s path=%s", join_address(*self.address), PATH)
        return self.address

    def close(self) -> None:
        """Close the port and its connections. The method may be called twice."""
        self._pages.close()
        self.address = None

    def _page(self, request: PageRequest) -> Page:
        if self._asks and not self._is_allowed(request):
            return Page(
                HTTPStatus.UNAUTHORIZED,
                "this page needs the name and the password of a user who may get the cluster\n",
                headers=(("WWW-Authenticate", 'Basic realm="metrics", charset="UTF-8"'),),
            )
        return Page(HTTPStatus.OK, text_pieces(self._metrics), CONTENT_TYPE)

    def _is_allowed(self, request: PageRequest) -> bool:
        assert self._may_read is not None
        scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
        name = password = ""
        if scheme.lower() == "basic":
            with contextlib.suppress(binascii.Error, ValueError):
                name, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        return self._may_read(name, password, request.host)  # also without a name: it is logged
