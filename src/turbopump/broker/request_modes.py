"""Whether a group pulls or pops a topic: ``config/messageRequestMode.json``. Source:
apache/rocketmq ``MessageRequestModeManager``."""

from __future__ import annotations

from turbopump.config.broker_config import BrokerConfig
from turbopump.message.rules import RETRY_PREFIX
from turbopump.protocol import fastjson
from turbopump.protocol.bodies.assignment import (
    MessageRequestMode,
    MessageRequestModeTable,
    SetMessageRequestModeRequestBody,
)
from turbopump.store.json_table import JsonTable


class RequestModes:
    """Topic and group to mode."""

    def __init__(self, config: BrokerConfig, file: JsonTable) -> None:
        self._config = config
        self._file = file
        self._modes: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}

    def load(self) -> None:
        """Read the file. Raises OSError."""
        saved = self._file.load(
            lambda data: fastjson.decode(data, MessageRequestModeTable), MessageRequestModeTable
        )
        self._modes = {
            topic: dict(groups) for topic, groups in saved.message_request_mode_map.items()
        }

    def find(self, topic: str, group: str) -> SetMessageRequestModeRequestBody:
        """What was said, else the default. Retry topics are pulled."""
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
        """Say it, and save, beside the loop."""
        self._modes.setdefault(topic, {})[group] = mode
        self._file.save(self._encode())

    def save_now(self) -> None:
        if self._modes:
            self._file.save_now(self._encode())

    def _encode(self) -> bytes:
        return fastjson.encode_indented(
            MessageRequestModeTable(message_request_mode_map=self._modes)
        )
