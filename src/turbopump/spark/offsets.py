"""Places in queues, and their JSON form in checkpoints and options.

::

    {"v":1,"topics":{"T":{"broker-a":{"0":123,"1":456}}}}   123 is the next offset to read

The one rule: this is a persisted format. Checkpoints live for years and Spark compares them as
text, so a place always has one text (sorted), version 1 never changes, and another version is
refused. It must not know about brokers or Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from turbopump.errors import ConfigError
from turbopump.message.message_queue import MessageQueue

VERSION: Final = 1
EARLIEST: Final = -2
LATEST: Final = -1
"""Stand for a queue's ends where a user gives offsets, as in Spark's Kafka source and
rocketmq-spark; never in a checkpoint."""

Offsets = dict[MessageQueue, int]


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> dict[str, Any]:
    """The versioned form, as a dict in sorted order for Spark to write."""
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        topics.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[
            str(queue.queue_id)
        ] = offsets[queue]
    return {"v": VERSION, "topics": topics}


def decode_offsets(
    text: str | Mapping[str, Any], *, what: str = "the checkpoint", symbolic: bool = False
) -> Offsets:
    """The places in a versioned form, or in the plain ``{"T":{"broker-a":{"0":123}}}`` that people
    write.

    ``symbolic`` allows -1 (latest) and -2 (earliest). Raises ConfigError that names ``what`` and
    the part that is wrong.
    """
    value: Any = text
    if isinstance(text, str):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{what} is not JSON: {error}") from None
    if isinstance(value, Mapping) and "v" in value:
        if value["v"] != VERSION:
            raise ConfigError(
                f"{what} has version {value['v']!r}; this turbopump reads version {VERSION}: use "
                "the release that wrote it"
            )
        value = value.get("topics")
    offsets: Offsets = {}
    lowest = EARLIEST if symbolic else 0
    for topic, brokers in _object(value, what, "topics").items():
        for broker, queues in _object(brokers, what, topic).items():
            for queue_id, offset in _object(queues, what, f"{topic}, {broker}").items():
                where = f"{topic}, {broker}, queue {queue_id}"
                if not (queue_id.isascii() and queue_id.isdigit()):
                    raise ConfigError(f"{what}: {where}: a queue is named by its number")
                if not isinstance(offset, int) or isinstance(offset, bool) or offset < lowest:
                    allowed = "0 or more, -1 (latest) or -2 (earliest)" if symbolic else "0 or more"
                    raise ConfigError(
                        f"{what}: {where}: the offset {offset!r} is not a whole number, {allowed}"
                    )
                offsets[MessageQueue(topic, broker, int(queue_id))] = offset
    return offsets


def _object(value: Any, what: str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{what}: {where}: an object is expected, as in "
            f'{{"T":{{"broker-a":{{"0":123}}}}}}, not {value!r}'
        )
    return value
