"""Make deliveries for unit tests of handlers, without a broker."""

from __future__ import annotations

from typing import Any

from turbopump.client.consumer.delivery import Delivery
from turbopump.message.message import Message
from turbopump.message.properties import encode_properties


class _NoQueue:
    """Owner of a message without a queue; it ignores every outcome."""

    dropped = False

    def delivery_done(self, message: Delivery) -> None: ...

    def delivery_failed(self, message: Delivery, delay: float | None, level: int) -> None: ...

    def delivery_abandoned(self, message: Delivery) -> None: ...


def delivery_of(message: Message, *, attempt: int = 1, **fields: Any) -> Delivery:
    """Return ``message`` as the handler of a consumer gets it, at its ``attempt``-th delivery.

    ``fields`` are those of ``turbopump.message.message.ReceivedMessage``, for example
    ``queue_offset=7`` or ``born_timestamp=…`` (0 by default).
    """
    values: dict[str, Any] = {
        "topic": message.topic,
        "stored_body": message.body,
        "properties_text": encode_properties(message.properties),
        "flag": message.flag,
        "queue_id": 0,
        "queue_offset": 0,
        "commit_log_offset": 0,
        "sys_flag": 0,
        "born_timestamp": 0,
        "born_host": ("127.0.0.1", 0),
        "store_timestamp": 0,
        "store_host": ("127.0.0.1", 10911),
        "reconsume_times": attempt - 1,
        "prepared_transaction_offset": 0,
        "body_crc": 0,
        "store_size": len(message.body),
        "broker_name": "broker-test",
    }
    delivery = Delivery(**{**values, **fields})
    delivery.deliver(_NoQueue(), attempt)
    return delivery
