"""Settings of every client, and the decorator that turns a settings class into constructor
keywords.

A client has one settings class: ``ClientSettings``, or one that inherits it in
``sending/settings.py`` or ``consumer/settings.py``. Its fields are the keywords of the client's
constructor, with their defaults, rules and texts. The blocking clients and the tables of
docs/reference/client-settings.md use the same fields. This module must not know what a client does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from functools import wraps
from random import Random
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.client.environment import (
    CLOCK,
    LOCAL_IP,
    RANDOM,
    SYSTEM_CLOCK,
    SYSTEM_RANDOM,
    Environment,
    name_server_addresses,
)
from turbopump.client.namespace import wrap
from turbopump.client.setting_rules import (
    SECONDS,
    SWITCH,
    SettingRule,
    check_settings,
    is_a,
    is_name,
    is_seconds,
    setting,
    whole_from,
)
from turbopump.clock import Clock
from turbopump.config.tls import ClientTls, meant
from turbopump.documentation import page_url
from turbopump.errors import ConfigError
from turbopump.message.rules import NOT_SENDABLE_TOPICS, group_fault, topic_fault
from turbopump.remoting.permits import PERMITS

_NAME: Final = SettingRule(
    lambda value: value is None or is_name(value),
    "must be text that is not empty, in valid Unicode; omit it for the default",
)
_HEARTBEAT: Final = SettingRule(
    lambda value: is_seconds(value) and value < 120,
    "must be a number of seconds above 0 and below 120: brokers remove a client after "
    "120 s without a heartbeat",
    "s",
)
_HEADER_FORM: Final = SettingRule(
    lambda value: isinstance(value, str) and value in ("JSON", "ROCKETMQ"),
    "must be 'JSON' or 'ROCKETMQ'",
)
_TLS: Final = SettingRule(
    is_a(bool, ClientTls), "must be True, False or a ClientTls, as in ClientTls(trust='ca.pem')"
)
_GROUP: Final = SettingRule(is_a(str), "must be the name of a group, as in 'billing'")


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings that every client has.

    Raises ConfigError for unusable settings.
    """

    namesrv: str | list[str] | tuple[str, ...] | None = None
    """Name servers: ``"host:9876"``, several as ``"a:9876;b:9876"`` or a list. By default those of
    the variable ``NAMESRV_ADDR`` are used. The list cannot be changed while a client runs; use host
    names if servers may move. No address server is asked (Java: ``fetchNameServerAddr``)."""
    _: KW_ONLY
    instance_name: str | None = setting(None, _NAME)
    """Part of the client id ``ip@instance_name[@unit_name]``: see
    docs/explanations/clients.md#client-ids. By default each process has its own. Java:
    ``instanceName``."""
    unit_name: str | None = setting(None, _NAME)
    """Part of the client id. Java: ``unitName``."""
    unit_mode: bool = setting(False, SWITCH)
    """True marks heartbeats and sends as unit mode: see docs/explanations/clients.md#unit-mode.
    Java: ``unitMode``."""
    async_permits: int = setting(PERMITS, whole_from(1))
    """Maximum number of sends of a producer, and of other calls of a client id, that wait for
    answers. Further calls wait for a permit. A call that gets none before its timeout fails, and
    nothing was stored then. Java: ``com.rocketmq.remoting.clientAsyncSemaphoreValue``."""
    oneway_permits: int = setting(PERMITS, whole_from(1))
    """Maximum number of oneway sends that wait to be written. Java:
    ``com.rocketmq.remoting.clientOnewaySemaphoreValue``."""
    credentials: Credentials | None = None
    """Keys for signing each request: ``Credentials(access_key, secret_key,
    security_token=None)``."""
    namespace_v2: str | None = setting(None, _NAME)
    """Namespace in the header of each request. Java: ``namespaceV2``."""
    tls: ClientTls | bool = setting(False, _TLS)
    """True uses TLS; servers need a certificate that this machine trusts: see docs/guide/tls.md.
    ``ClientTls(trust=None, certificate=None, key=None, key_password=None, verify=True,
    check_host_name=True)`` sets the details. Java: ``useTLS``."""
    route_interval: float = setting(30.0, SECONDS)
    """Time between two requests for the same route. A route that may be outdated is fetched at
    once. Java: ``pollNameServerInterval``."""
    heartbeat_interval: float = setting(30.0, _HEARTBEAT)
    """Time between heartbeats to brokers. It must be below 120 s, after which brokers remove a
    silent client. Java: ``heartbeatBrokerInterval``."""
    commit_interval: float = setting(5.0, SECONDS)
    """Time between commits of a consumer. With a longer time, more messages are delivered twice
    after a crash. Java: ``persistConsumerOffsetInterval``."""
    call_timeout: float = setting(3.0, SECONDS)
    """Timeout of a client's internal requests: routes, heartbeats, offsets, locks, members of a
    group. Slow networks need more. Java: ``mqClientApiTimeout``."""
    header_form: str = setting("JSON", _HEADER_FORM)
    """Encoding of headers. ``ROCKETMQ`` sends binary headers, as Java's client with
    ``rocketmq.serialize.type=ROCKETMQ``."""
    clock: Clock | None = setting(None, CLOCK)
    """Replacement of the system's clock, for tests and docs/explanations/simulation.md."""
    random: Random | None = setting(None, RANDOM)
    """Replacement of the system's random numbers, for tests and docs/explanations/simulation.md."""
    local_ip: str | None = setting(None, LOCAL_IP)
    """IP address of this machine, a part of the client id. By default it is detected."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "namesrv", name_server_addresses(self.namesrv))
        check_settings(self)
        if self.credentials is not None and not isinstance(self.credentials, Credentials):
            # the error does not show the value, which may be a secret
            raise ConfigError("credentials must be made as Credentials(access_key, secret_key)")

    @classmethod
    def keys(cls) -> list[str]:
        """Return the names of all settings. Each is a keyword of the client, as in
        ``Producer(**settings)``."""
        return [known.name for known in fields(cls)]

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def shared_with(self, other: type[ClientSettings]) -> dict[str, Any]:
        """Return the values of the settings that the class ``other`` also declares, by name."""
        return {known.name: self[known.name] for known in fields(other)}

    @property
    def name_servers(self) -> tuple[str, ...]:
        assert isinstance(self.namesrv, tuple)
        return self.namesrv

    @property
    def client_name(self) -> tuple[str | None, str | None]:
        """Instance name and unit name of the client. Brokers treat two instances with the same
        names as one client."""
        return self.instance_name, self.unit_name

    @property
    def client_tls(self) -> ClientTls | None:
        """TLS settings, or None for connections without TLS."""
        return meant(self.tls)

    def signer(self) -> RequestSigner | None:
        """Return the object that signs requests, or None if requests are not signed."""
        if self.credentials is None and self.namespace_v2 is None:
            return None
        return RequestSigner(self.credentials, self.namespace_v2)

    def environment(self) -> Environment:
        """Return a new environment. Clock and random numbers come from these settings, or else from
        the system."""
        return Environment(
            SYSTEM_CLOCK if self.clock is None else self.clock,
            SYSTEM_RANDOM if self.random is None else self.random,
            self.local_ip,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings(ClientSettings):
    """Settings that every client of a group has.

    Raises ConfigError for unusable settings.
    """

    group: str
    """Name of the group."""
    namespace: str | None = setting(None, _NAME)
    """Prefix ``namespace%`` of topics and group in requests. Messages and queues have no prefix for
    you. You see it only in commands that an error suggests and in texts of a broker. Java:
    ``setNamespace``."""

    def __post_init__(self) -> None:
        ClientSettings.__post_init__(self)
        _GROUP.check("group", self.group)
        fault = group_fault(self.wire_group)
        if fault is not None:
            raise ConfigError(fault)

    @property
    def wire_group(self) -> str:
        """Name of the group as brokers know it, with the namespace."""
        return wrap(self.namespace, self.group)


def _is_trace(value: object) -> bool:
    if value is None or isinstance(value, bool):
        return True
    return (
        isinstance(value, str) and topic_fault(value) is None and value not in NOT_SENDABLE_TOPICS
    )


TRACE: Final = SettingRule(
    _is_trace,
    "must be True for RMQ_SYS_TRACE_TOPIC, False for no traces, or the name of a topic that may be "
    "sent to",
)


P = ParamSpec("P")
ClientT = TypeVar("ClientT")
SettingsT = TypeVar("SettingsT")


def keywords_of(
    settings: Callable[P, SettingsT],
) -> Callable[[Callable[[ClientT, SettingsT], None]], Callable[Concatenate[ClientT, P], None]]:
    """Return a decorator for a constructor. Users then pass the fields of a settings class as
    keywords.

    The constructor itself gets one settings object. Type checkers, editors and ``help()`` show the
    fields' names, types and defaults. The constructor raises TypeError for an unknown name, and for
    a missing one.
    """
    signature = inspect.signature(settings)
    known = signature.parameters

    def decorate(
        init: Callable[[ClientT, SettingsT], None],
    ) -> Callable[Concatenate[ClientT, P], None]:
        @wraps(init)
        def init_by_keywords(self: ClientT, /, *args: P.args, **kwargs: P.kwargs) -> None:
            unknown = kwargs.keys() - known.keys()
            if unknown:
                raise TypeError(
                    f"no such setting: {', '.join(sorted(unknown))}; "
                    f"{page_url('docs/reference/client-settings.md')} has them all"
                )
            signature.bind(*args, **kwargs)  # its TypeError does not name the settings class
            init(self, settings(*args, **kwargs))

        myself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        init_by_keywords.__signature__ = inspect.Signature([myself, *known.values()])  # type: ignore[attr-defined]
        return init_by_keywords

    return decorate
