"""Settings that all clients share, and how a client class takes settings as keywords.

A client has one settings class: this one, or one that inherits it in ``sending/settings.py`` or
``consumer/settings.py``. Its fields are the keywords of the client's constructor, with their
defaults, rules and texts; the blocking clients and the tables of docs/reference/client-settings.md
follow them. This module must not know what a client does.
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
    is_name,
    is_seconds,
    setting,
    whole_from,
)
from turbopump.clock import Clock
from turbopump.config.tls import ClientTls, meant
from turbopump.errors import ConfigError
from turbopump.message.rules import NOT_SENDABLE_TOPICS, group_fault, topic_fault
from turbopump.remoting.permits import PERMITS

_NAME: Final = SettingRule(
    lambda value: value is None or is_name(value),
    "must be text that is not empty, in valid Unicode; omit it for the default",
)
_HEARTBEAT: Final = SettingRule(
    lambda value: is_seconds(value) and value < 120,
    "must be a number of seconds above 0 and below 120: brokers forget a client that is silent for "
    "so long",
    "s",
)
_HEADER_FORM: Final = SettingRule(
    lambda value: isinstance(value, str) and value in ("JSON", "ROCKETMQ"),
    "must be 'JSON' or 'ROCKETMQ'",
)
_TLS: Final = SettingRule(
    lambda value: isinstance(value, bool | ClientTls),
    "must be True, False or a ClientTls, as in ClientTls(trust='ca.pem')",
)
_GROUP: Final = SettingRule(
    lambda value: isinstance(value, str), "must be the name of a group, as in 'billing'"
)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of every client. Raises ConfigError for unusable ones."""

    namesrv: str | list[str] | tuple[str, ...] | None = None
    """Name servers: ``"host:9876"``, several as ``"a:9876;b:9876"`` or a list. None: those of the
    variable ``NAMESRV_ADDR``. The list cannot be changed while a client runs: give a host name
    where servers may move. No address server is asked (Java: ``fetchNameServerAddr``)."""
    _: KW_ONLY
    instance_name: str | None = setting(None, _NAME)
    """Part of the client id ``ip@instance_name[@unit_name]``: see
    docs/explanations/clients.md#client-ids. None: one per process. Java: ``instanceName``."""
    unit_name: str | None = setting(None, _NAME)
    """Part of the client id. Java: ``unitName``."""
    unit_mode: bool = setting(False, SWITCH)
    """True: heartbeats and sends say that the client is in unit mode: see
    docs/explanations/clients.md#unit-mode. Java: ``unitMode``."""
    async_permits: int = setting(PERMITS, whole_from(1))
    """Sends of a producer, and other calls of a client id, that may wait for their answers at once.
    Further ones wait for their turn, and fail when their timeout is over: nothing was stored then.
    Java: ``com.rocketmq.remoting.clientAsyncSemaphoreValue``."""
    oneway_permits: int = setting(PERMITS, whole_from(1))
    """Oneway sends that may wait to be written at once. Java:
    ``com.rocketmq.remoting.clientOnewaySemaphoreValue``."""
    credentials: Credentials | None = None
    """``Credentials(access_key, secret_key, security_token=None)``: each request is signed."""
    namespace_v2: str | None = setting(None, _NAME)
    """Namespace that each request names in its header. Java: ``namespaceV2``."""
    tls: ClientTls | bool = setting(False, _TLS)
    """True: TLS, and servers have a certificate that this machine trusts: see docs/guide/tls.md.
    ``ClientTls(trust=None, certificate=None, key=None, key_password=None, verify=True,
    check_host_name=True)`` says more. Java: ``useTLS``."""
    route_interval: float = setting(30.0, SECONDS)
    """Time between questions for routes. A route that is in doubt is asked for at once. Java:
    ``pollNameServerInterval``."""
    heartbeat_interval: float = setting(30.0, _HEARTBEAT)
    """Time between heartbeats to brokers. Below 120 s: brokers forget a client that is silent for
    so long. Java: ``heartbeatBrokerInterval``."""
    commit_interval: float = setting(5.0, SECONDS)
    """Time between commits of a consumer. A longer one means more messages twice after a crash.
    Java: ``persistConsumerOffsetInterval``."""
    call_timeout: float = setting(3.0, SECONDS)
    """Timeout of each question of a client's own: routes, heartbeats, offsets, locks, members of a
    group. Slow networks need more. Java: ``mqClientApiTimeout``."""
    header_form: str = setting("JSON", _HEADER_FORM)
    """``ROCKETMQ``: requests have binary headers, as Java's with
    ``rocketmq.serialize.type=ROCKETMQ``."""
    clock: Clock | None = setting(None, CLOCK)
    """Clock in place of the system's, for tests and docs/explanations/simulation.md."""
    random: Random | None = setting(None, RANDOM)
    """Random numbers in place of the system's, for tests and docs/explanations/simulation.md."""
    local_ip: str | None = setting(None, LOCAL_IP)
    """Address of this machine, a part of the client id. None: it is found."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "namesrv", name_server_addresses(self.namesrv))
        check_settings(self)
        if self.credentials is not None and not isinstance(self.credentials, Credentials):
            # their value is not shown
            raise ConfigError("credentials must be made as Credentials(access_key, secret_key)")

    @classmethod
    def keys(cls) -> list[str]:
        """Return the names of all settings, so that ``Producer(**settings)`` takes them."""
        return [known.name for known in fields(cls)]

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def shared_with(self, other: type[ClientSettings]) -> dict[str, Any]:
        """Return the settings that clients with ``other`` settings have, too."""
        return {known.name: self[known.name] for known in fields(other)}

    @property
    def name_servers(self) -> tuple[str, ...]:
        assert isinstance(self.namesrv, tuple)
        return self.namesrv

    @property
    def client_name(self) -> tuple[str | None, str | None]:
        """Instance and unit name. Brokers of a cluster take two instances with the same for one
        client."""
        return self.instance_name, self.unit_name

    @property
    def client_tls(self) -> ClientTls | None:
        """None: plain text."""
        return meant(self.tls)

    def signer(self) -> RequestSigner | None:
        """Return what signs every request; None: requests go as they are."""
        if self.credentials is None and self.namespace_v2 is None:
            return None
        return RequestSigner(self.credentials, self.namespace_v2)

    def environment(self) -> Environment:
        """Return a new environment: the system's clock and random numbers unless others are
        given."""
        return Environment(
            SYSTEM_CLOCK if self.clock is None else self.clock,
            SYSTEM_RANDOM if self.random is None else self.random,
            self.local_ip,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings(ClientSettings):
    """Settings of every client that belongs to a group. Raises ConfigError for unusable ones."""

    group: str
    """Name of the group."""
    namespace: str | None = setting(None, _NAME)
    """Topics and the group get the prefix ``namespace%`` on the wire. Messages and queues come to
    you without it. You see it only in the command that an error suggests, and in the words of a
    broker: brokers know no other name. Java: ``setNamespace``."""

    def __post_init__(self) -> None:
        ClientSettings.__post_init__(self)
        _GROUP.check("group", self.group)
        fault = group_fault(self.wire_group)
        if fault is not None:
            raise ConfigError(fault)

    @property
    def wire_group(self) -> str:
        """The group as brokers know it."""
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
    """Decorate a constructor that takes a settings object: users give the fields as keywords.

    Type checkers and editors see the fields' names, types and defaults; ``help()`` does too. The
    constructor raises TypeError for a name that no setting has.
    """
    known = inspect.signature(settings).parameters

    def decorate(
        init: Callable[[ClientT, SettingsT], None],
    ) -> Callable[Concatenate[ClientT, P], None]:
        @wraps(init)
        def init_by_keywords(self: ClientT, /, *args: P.args, **kwargs: P.kwargs) -> None:
            unknown = kwargs.keys() - known.keys()
            if unknown:
                raise TypeError(
                    f"no such setting: {', '.join(sorted(unknown))}; "
                    "docs/reference/client-settings.md has them all"
                )
            init(self, settings(*args, **kwargs))

        myself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        init_by_keywords.__signature__ = inspect.Signature([myself, *known.values()])  # type: ignore[attr-defined]
        return init_by_keywords

    return decorate
