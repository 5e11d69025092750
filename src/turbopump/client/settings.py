"""The settings that clients share, and the settings of producers, as types."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any, TypedDict

from turbopump.auth.signatures import Credentials
from turbopump.client.environment import Environment, environment_of, name_server_addresses
from turbopump.client.hooks import SendHook
from turbopump.client.identity import InstanceSettings
from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.sending.back_pressure import BackPressure
from turbopump.client.sending.queue_chooser import LatencyFaults
from turbopump.clock import Clock
from turbopump.config.tls import ClientTls


class Surrounding(TypedDict, total=False):
    """Settings that all clients have: who a client is to the brokers, and ``clock``, ``random`` and
    ``local_ip`` in place of the system's."""

    instance_name: str | None
    unit_name: str | None
    unit_mode: bool
    vip_channel_enabled: bool
    async_permits: int
    oneway_permits: int
    credentials: Credentials | None
    namespace_v2: str | None
    tls: ClientTls | bool
    route_interval: float
    heartbeat_interval: float
    commit_interval: float
    call_timeout: float
    header_form: str
    clock: Clock | None
    random: random.Random | None
    local_ip: str | None


def client_settings(
    namesrv: str | list[str] | tuple[str, ...] | None,
    *,
    clock: Clock | None = None,
    random: random.Random | None = None,
    local_ip: str | None = None,
    **identity: Any,
) -> tuple[InstanceSettings, Environment]:
    """What a client makes of the settings that all have. Raises ConfigError for unusable ones,
    TypeError for a name that no setting has."""
    unknown = identity.keys() - Surrounding.__annotations__.keys()
    if unknown:
        names = ", ".join(sorted(unknown))
        raise TypeError(f"no such setting: {names}; docs/reference/client-settings.md has them all")
    settings = InstanceSettings(name_server_addresses(namesrv), **identity)
    return settings, environment_of(clock, random, local_ip)


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
