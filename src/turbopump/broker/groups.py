"""The consumer groups of this broker: ``config/subscriptionGroup.json``.

Source: apache/rocketmq ``SubscriptionGroupManager``. A group is made with Apache's defaults when it
is first heard of, if ``autoCreateSubscriptionGroup`` allows it.
"""

from __future__ import annotations

from typing import Final

from turbopump.clock import Clock
from turbopump.message.rules import group_fault
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from turbopump.store.json_table import JsonTable

SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


class GroupTable:
    """Group name to settings."""

    def __init__(self, table: JsonTable, clock: Clock, *, auto_create: bool) -> None:
        self._table = table
        self._clock = clock
        self._auto_create = auto_create
        self._saved = SubscriptionGroupWrapper()

    def load(self) -> None:
        """Read the file and add the system's groups. Raises OSError."""
        self._saved = self._table.load(
            lambda data: fastjson.decode(data, SubscriptionGroupWrapper), SubscriptionGroupWrapper
        )
        groups = self._saved.subscription_group_table
        for name in SYSTEM_GROUPS:
            groups.setdefault(name, SubscriptionGroupConfig(group_name=name))

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's settings; made now if that is allowed and the name is legal."""
        config = self._saved.subscription_group_table.get(group)
        if config is None and self._auto_create and group_fault(group) is None:
            config = SubscriptionGroupConfig(group_name=group)
            self.put(config)
        return config

    def names(self) -> list[str]:
        return list(self._saved.subscription_group_table)

    def knows(self, group: str) -> bool:
        """Whether the group exists already."""
        return group in self._saved.subscription_group_table

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create or change a group."""
        assert config.group_name is not None
        self._saved.subscription_group_table[config.group_name] = config
        self._saved.data_version = self._saved.data_version.next(self._clock.now_ms())
        self._table.save(fastjson.encode_indented(self._saved))

    def delete(self, group: str) -> bool:
        """Forget a group; False if there is none."""
        if self._saved.subscription_group_table.pop(group, None) is None:
            return False
        self._saved.forbidden_table.pop(group, None)
        self._saved.data_version = self._saved.data_version.next(self._clock.now_ms())
        self._table.save(fastjson.encode_indented(self._saved))
        return True

    def wrapper(self) -> SubscriptionGroupWrapper:
        """The whole table with its version."""
        return self._saved

    def save_now(self) -> None:
        self._table.save_now(fastjson.encode_indented(self._saved))
