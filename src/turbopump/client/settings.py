"""The settings of clients as types, for those that hand them on."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import TypedDict

from turbopump.client.hooks import SendHook
from turbopump.client.identity import Credentials
from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.sending.back_pressure import BackPressure
from turbopump.client.sending.queue_chooser import LatencyFaults
from turbopump.clock import Clock


class Surrounding(TypedDict, total=False):
    """Settings that all have."""

    instance_name: str | None
    unit_name: str | None
    credentials: Credentials | None
    namespace_v2: str | None
    clock: Clock | None
    random: random.Random | None
    local_ip: str | None


class ProducerSettings(Surrounding, total=False):
    """The further settings of ``turbopump.client.producer.Producer``."""

    namespace: str | None
    send_timeout: float
    attempt_timeout: float | None
    retries: int
    retry_codes: Collection[int]
    retry_unless_ok: bool
    latency_faults: LatencyFaults | None
    compress_from: int | None
    compression: str
    compression_level: int | None
    body_size_max: int
    back_pressure: BackPressure | None
    auto_batch: AutoBatch | None
    hooks: Sequence[SendHook]
    trace: bool | str
