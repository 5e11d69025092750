"""Handler of requests to read (26) and change (25) the configuration of a running broker.

The answer to 26 also counts the changes. Source: apache/rocketmq
``AdminBrokerProcessor.updateBrokerConfig``, which can change nearly every key.
"""

from __future__ import annotations

from collections.abc import Callable

from turbopump.clock import Clock
from turbopump.config.running import RunningConfiguration
from turbopump.disk.disk import Disk
from turbopump.protocol import fastjson
from turbopump.protocol.requests.configuration import (
    GetBrokerConfig,
    GetBrokerConfigReply,
    UpdateBrokerConfig,
)
from turbopump.protocol.requests.topics import DataVersion
from turbopump.remoting.configuration_handlers import ConfigurationHandlers
from turbopump.remoting.response import Response
from turbopump.remoting.router import RequestContext, Router


class ConfigurationHandler:
    """Handler of requests to read and change the configuration of a running broker.

    ``on_change`` is called after each change, for the parts that keep a copy of a setting.
    """

    def __init__(
        self, running: RunningConfiguration, disk: Disk, clock: Clock, on_change: Callable[[], None]
    ) -> None:
        self._handlers = ConfigurationHandlers(running, disk, self._changed)
        self._clock = clock
        self._on_change = on_change
        self._version = DataVersion()

    def add_to(self, router: Router) -> None:
        router.add(GetBrokerConfig, self.get)
        router.add(UpdateBrokerConfig, self._handlers.update)

    def get(
        self, _request: GetBrokerConfig, _context: RequestContext
    ) -> Response[GetBrokerConfigReply]:
        version = fastjson.encode(self._version).decode()
        return Response(GetBrokerConfigReply(version=version), body=self._handlers.text())

    def _changed(self) -> None:
        counter = self._version.counter + 1
        self._version = DataVersion(counter=counter, timestamp=self._clock.now_ms())
        self._on_change()
