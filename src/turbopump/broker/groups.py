"""Tables of the consumer groups: settings, bans, and the choice of pull or pop.

The settings are saved in ``config/subscriptionGroup.json``. A group is created with Apache's
defaults at its first use, if ``autoCreateSubscriptionGroup`` allows that. Source: apache/rocketmq
``SubscriptionGroupManager``.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from turbopump.broker.saved_table import EncodedMap, SavedTable
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.disk.json_table import JsonTable
from turbopump.message.rules import RETRY_PREFIX, group_fault
from turbopump.protocol.requests.assignment import (
    MessageRequestMode,
    MessageRequestModeTable,
    SetMessageRequestModeRequestBody,
)
from turbopump.protocol.requests.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from turbopump.protocol.requests.topics import PERM_READ, DataVersion
from turbopump.remoting.turns import Turns
from turbopump.repeated_line import RepeatedLine

log = logging.getLogger(__name__)
_group_made = RepeatedLine(log, logging.INFO, "group made group=%s")

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
_READ_BANNED: Final = PERM_READ
"""Bit in ``forbiddenTable`` for a group that may not read a topic. RocketMQ: ``1 <<
PermName.INDEX_PERM_READ``."""


class GroupChange(msgspec.Struct, kw_only=True, rename="camel"):
    """Settings and bans of one consumer group after a change, and the version of the table.

    ``config`` is None if the group does not exist.
    """

    version: DataVersion
    config: SubscriptionGroupConfig | None = None
    bans: dict[str, int] = {}


class GroupTable(SavedTable[SubscriptionGroupWrapper]):
    """Table of the settings of consumer groups, by name.

    ``bans`` has the forbidden permissions by group and topic.
    """

    def __init__(
        self, file: JsonTable, clock: Clock, *, auto_create: bool, turns: Turns | None = None
    ) -> None:
        super().__init__(file, SubscriptionGroupWrapper, turns)
        self._clock = clock
        self.auto_create = auto_create
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._entries = EncodedMap(self._groups.__getitem__)
        self._maps = {"subscriptionGroupTable": self._entries}
        self._rest = SubscriptionGroupWrapper()
        self.bans = self._rest.forbidden_table

    def load(self) -> None:
        """Read the groups from the file, and add the groups of the system.

        Raises OSError if the file cannot be read.
        """
        saved = self._load()
        self._groups.update(saved.subscription_group_table)
        for name in SYSTEM_GROUPS:
            self._groups.setdefault(name, SubscriptionGroupConfig(group_name=name))
        self._entries.add(*self._groups)
        self._rest = msgspec.structs.replace(saved, subscription_group_table={})
        self.bans = self._rest.forbidden_table

    def find_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the settings of a group, and create the group if it does not exist.

        Return None if the group does not exist and may not be created, or its name is invalid.
        """
        config = self._groups.get(group)
        if config is None and self.auto_create and group_fault(group) is None:
            config = SubscriptionGroupConfig(group_name=group)
            self.put(config)
        return config

    def names(self) -> list[str]:
        return list(self._groups)

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the settings of a group, or None if the group does not exist."""
        return self._groups.get(group)

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create a group or replace its settings, and save the table."""
        assert config.group_name is not None
        if config.group_name not in self._groups:
            _group_made(config.group_name, kind=config.group_name)
        self._groups[config.group_name] = config
        self._entries.add(config.group_name)
        self._changed(config.group_name)

    def apply_change(self, name: str, change: GroupChange) -> None:
        """Apply a change of the master's table that the log has brought."""
        if change.config is not None:
            self._groups[name] = change.config
            self._entries.add(name)
        elif self._groups.pop(name, None) is not None:
            self._entries.remove(name)
        if change.bans:
            self.bans[name] = change.bans
        else:
            self.bans.pop(name, None)
        self._rest.data_version = change.version
        self.revision += 1
        self._dirty = True
        self.save()

    def copy(self, table: SubscriptionGroupWrapper, *, whole: bool) -> None:
        """Copy the groups, the bans and the version of a master's table.

        If ``whole`` is True, ``table`` has all groups of the master, and other groups are deleted
        here. The groups of the system stay.
        """
        given = table.subscription_group_table
        for name, config in given.items():
            if self._groups.get(name) != config:
                self._groups[name] = config
                self._entries.add(name)
        for name in [one for one in self._groups if whole and one not in given]:
            if name not in SYSTEM_GROUPS:
                del self._groups[name]
                self._entries.remove(name)
        self.bans.clear()
        self.bans.update(table.forbidden_table)
        self._rest.data_version = table.data_version
        self.revision += 1
        self._dirty = True
        self.save()

    def delete(self, group: str) -> bool:
        """Delete a group and its bans. Return False if the group does not exist."""
        if self._groups.pop(group, None) is None:
            return False
        self._entries.remove(group)
        if self.bans.pop(group, None) is not None:
            self.revision += 1
        self._changed(group)
        return True

    def is_banned(self, group: str, topic: str) -> bool:
        """Return True if an operator has banned a group from reading a topic."""
        return bool(self.bans.get(group, {}).get(topic, 0) & _READ_BANNED)

    def ban(self, group: str, topic: str, *, banned: bool) -> None:
        """Ban a group from reading a topic, or end the ban.

        RocketMQ: ending one ban of a group ends all of them, until a restart.
        """
        topics = self.bans.setdefault(group, {})
        bits = topics.get(topic, 0) & ~_READ_BANNED
        if banned:
            topics[topic] = bits | _READ_BANNED
        else:
            topics[topic] = bits
        self.revision += 1
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self.bans[group]
        self._changed(group)

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self._groups)

    def _content(self) -> SubscriptionGroupWrapper:
        return self._rest

    def _changed(self, group: str) -> None:
        version = self._rest.data_version.next(self._clock.now_ms())
        self._rest.data_version = version
        self._dirty = True
        self.save()
        if self.note_change is not None:
            config = self._groups.get(group)
            bans = self.bans.get(group, {})
            self.note_change(group, GroupChange(version=version, config=config, bans=bans))


class RequestModes(SavedTable[MessageRequestModeTable]):
    """Table of the request modes, pull or pop, by topic and group.

    The table is saved in ``config/messageRequestMode.json``. Source: apache/rocketmq
    ``MessageRequestModeManager``.
    """

    def __init__(self, config: BrokerConfig, file: JsonTable, turns: Turns | None = None) -> None:
        super().__init__(file, MessageRequestModeTable, turns)
        self._config = config
        self._modes: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}
        self._entries = EncodedMap(self._modes.__getitem__)
        self._maps = {"messageRequestModeMap": self._entries}

    def load(self) -> None:
        """Read the table from its file.

        Raises OSError if the file cannot be read.
        """
        saved = self._load().message_request_mode_map
        self._modes.update((topic, dict(groups)) for topic, groups in saved.items())
        self._entries.add(*self._modes)

    def find(self, topic: str, group: str) -> SetMessageRequestModeRequestBody:
        """Return the request mode of a group for a topic. Return the broker's default if no
        operator has set a mode.

        By default retry topics are pulled.
        """
        said = self._modes.get(topic, {}).get(group)
        if said is not None:
            return said
        mode = MessageRequestMode(self._config.default_message_request_mode)
        if topic.startswith(RETRY_PREFIX) or mode is MessageRequestMode.PULL:
            return SetMessageRequestModeRequestBody(topic=topic, consumer_group=group)
        share = self._config.default_pop_share_queue_num
        return SetMessageRequestModeRequestBody(
            topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=share
        )

    def put(self, topic: str, group: str, mode: SetMessageRequestModeRequestBody) -> None:
        """Set the request mode of a group for a topic, and save the table."""
        self._modes.setdefault(topic, {})[group] = mode
        self._entries.add(topic)
        self._dirty = True
        self.save()
        if self.note_change is not None:
            self.note_change(topic, self._modes[topic])

    def apply_change(self, topic: str, modes: dict[str, SetMessageRequestModeRequestBody]) -> None:
        """Apply a change of the master's table that the log has brought."""
        self._modes[topic] = modes
        self._entries.add(topic)
        self._dirty = True
        self.save()

    def copy(self, table: MessageRequestModeTable, *, whole: bool) -> None:
        """Copy the request modes of a master.

        If ``whole`` is True, ``table`` has all modes of the master, and other modes are deleted
        here.
        """
        modes = table.message_request_mode_map
        for topic, groups in modes.items():
            if self._modes.get(topic) != groups:
                self._modes[topic] = dict(groups)
                self._entries.add(topic)
                self._dirty = True
        for topic in [one for one in self._modes if whole and one not in modes]:
            del self._modes[topic]
            self._entries.remove(topic)
            self._dirty = True
        self.save()

    def save_now(self) -> None:
        if self._modes:
            super().save_now()

    def _content(self) -> MessageRequestModeTable:
        return MessageRequestModeTable()
