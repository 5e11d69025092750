"""Handler of requests to read (26) and change (25) the configuration of a running broker.

A change is in force before it is answered. Source: apache/rocketmq
``AdminBrokerProcessor.updateBrokerConfig``, which can change nearly every key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from turbopump.clock import Clock
from turbopump.config import properties
from turbopump.config.running import ReadOnlyKeyError, RunningConfiguration
from turbopump.disk.disk import Disk
from turbopump.errors import ConfigError
from turbopump.log_keys import LogKeys
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.configuration import (
    GetBrokerConfig,
    GetBrokerConfigReply,
    UpdateBrokerConfig,
)
from turbopump.protocol.requests.topics import DataVersion
from turbopump.remoting.response import Response, refusal
from turbopump.remoting.router import RequestContext, Router

log = logging.getLogger(__name__)


@dataclass
class ConfigurationHandler:
    """Handler of requests to read and change the configuration of a running broker.

    ``on_change`` is called after each change, for the parts that keep a copy of a setting.
    """

    running: RunningConfiguration
    disk: Disk
    clock: Clock
    on_change: Callable[[], None]
    version: DataVersion = field(default_factory=DataVersion)

    def add_to(self, router: Router) -> None:
        router.add(GetBrokerConfig, self.get)
        router.add(UpdateBrokerConfig, self.update)

    def get(
        self, request: GetBrokerConfig, context: RequestContext
    ) -> Response[GetBrokerConfigReply]:
        return Response(
            GetBrokerConfigReply(version=fastjson.encode(self.version).decode()),
            body=properties.encode(self.running.all_texts()).encode(),
        )

    async def update(self, request: UpdateBrokerConfig, context: RequestContext) -> Response[None]:
        try:
            changed = self.running.change_keys(context.body.decode("utf-8", "replace"))
        except ReadOnlyKeyError as error:
            return refusal(ResponseCode.NO_PERMISSION, str(error))
        except ConfigError as error:
            return refusal(ResponseCode.SYSTEM_ERROR, str(error))
        self.version = DataVersion(counter=self.version.counter + 1, timestamp=self.clock.now_ms())
        self.on_change()
        log.warning("configuration changed %s peer=%s", LogKeys(changed), context.peer.peer)
        return Response(remark=await self.running.write_changes(changed, self.disk))
