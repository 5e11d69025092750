"""Table of the client instances of a process. Clients with the same client id share connections,
routes and heartbeats.

One rule: a heartbeat can contain one consumer of a group, so a second consumer of that group gets
another instance. A client is refused only if it names an instance that already has such a member or
cannot be shared. Brokers would treat the two as one client. This module must not know what an
instance does. Source: apache/rocketmq ``ClientConfig.buildMQClientId``, ``MQClientManager``.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from operator import attrgetter
from typing import Any, Final

from turbopump.client.environment import Environment
from turbopump.client.heartbeat import InstanceMember
from turbopump.client.instance import ClientInstance, this_loop
from turbopump.client.loop_thread import never_runs_again
from turbopump.client.settings import ClientSettings
from turbopump.errors import ConfigError

BROADCAST_INSTANCE: Final = "DEFAULT"
"""Default instance name of broadcasting clients. The name is the same after a restart, because
offsets are stored under it. The second client of a group is ``DEFAULT#2``, and so on, so that two
clients do not write one file."""


@dataclass(slots=True)
class _Process:
    """Client instances of one process on one event loop.

    A test or simulation with another clock or other random numbers counts as a separate process.
    """

    name: str
    made: int = 0
    entries: list[_Entry] = field(default_factory=list)
    """Weak references to instances, so that an instance is freed with its event loop. The tasks of
    the loop keep the instance alive."""

    def instances(self) -> Iterator[tuple[ClientSettings, ClientInstance]]:
        for settings, entry in list(self.entries):
            instance = entry()
            if instance is not None:
                yield settings, instance

    def add_instance(self, settings: ClientSettings, instance: ClientInstance) -> None:
        self.entries[:] = [entry for entry in self.entries if entry[1]() is not None]
        added = (settings, weakref.ref(instance))
        self.entries.append(added)
        instance.on_end = lambda: self.entries.remove(added)

    def next_name(self) -> str:
        """Return a new instance name: ``<pid>#<random>``, then ``<pid>#<random>#2`` and so on."""
        self.made += 1
        return self.name if self.made == 1 else f"{self.name}#{self.made}"


_Entry = tuple[ClientSettings, weakref.ref[ClientInstance]]
_Processes = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, _Process]]
_processes: Final[_Processes] = weakref.WeakKeyDictionary()
_joining = threading.Lock()
"""Lock that a joining client acquires, because event loops of several threads read each other's
instances."""


def join_instance(
    settings: ClientSettings, environment: Environment, member: InstanceMember
) -> ClientInstance:
    """Add ``member`` to a client instance, and return the instance.

    The instance is an existing one that the client can share, or a new one, which is started.
    ``instance.leave(member)`` removes the member.

    Raises ConfigError if the named instance already has such a member, has other credentials or
    another ``namespace_v2``, or runs on another event loop.
    """
    _collect_dropped_loop(settings, environment)
    named = settings.instance_name is not None
    with _joining:
        shared = _shared_instance(settings, environment, member)
        return shared or _new_instance(settings, environment, member, named=named)


def join_broadcasting(
    settings: ClientSettings, environment: Environment, member: InstanceMember
) -> tuple[ClientSettings, ClientInstance]:
    """Add a broadcasting consumer to a client instance. The instance's name stays the same after a
    restart.

    Saved offsets are found by this name. A consumer without a name gets the first of ``DEFAULT``,
    ``DEFAULT#2``, … that no other of its group has in this process. Returns the settings with that
    name, and the instance.
    """
    if settings.instance_name is not None:
        return settings, join_instance(settings, environment, member)
    _collect_dropped_loop(replace(settings, instance_name=BROADCAST_INSTANCE), environment)
    with _joining:
        for number in count(1):
            name = BROADCAST_INSTANCE if number == 1 else f"{BROADCAST_INSTANCE}#{number}"
            named = replace(settings, instance_name=name)
            if all(instance.admits(member) for _, _, instance in _named(environment, named)):
                break
        shared = _shared_instance(named, environment, member)
        return named, shared or _new_instance(named, environment, member, named=False)


def _collect_dropped_loop(settings: ClientSettings, environment: Environment) -> None:
    """Collect event loops that the program dropped without closing their clients. Their instance
    names become free."""
    if settings.instance_name is None:
        return
    this = this_loop()
    with _joining:
        elsewhere = any(loop is not this for loop, _, _ in _named(environment, settings))
    if elsewhere:
        gc.collect()


def _shared_instance(
    settings: ClientSettings, environment: Environment, member: InstanceMember
) -> ClientInstance | None:
    for other, instance in _process_of(environment).instances():
        same = _one_client(other, settings) and not _differences(other, settings)
        if same and instance.admits(member):
            instance.join(member)
            return instance
    return None


def _new_instance(
    settings: ClientSettings, environment: Environment, member: InstanceMember, *, named: bool
) -> ClientInstance:
    """Create and start a client instance for ``member``.

    ``named`` is True if the user gave the name of the instance.
    """
    if named:
        _refuse_second(environment, settings, member)
    process = _process_of(environment)
    name = settings.instance_name or process.next_name()
    instance = ClientInstance(settings, name, environment)
    process.add_instance(settings, instance)
    instance.join(member)
    instance.start()
    return instance


def _process_of(environment: Environment) -> _Process:
    processes = _processes.setdefault(this_loop(), {})
    if environment.identity not in processes:
        processes[environment.identity] = _Process(environment.new_instance_name())
    return processes[environment.identity]


def _refuse_second(
    environment: Environment, settings: ClientSettings, member: InstanceMember
) -> None:
    name = settings.instance_name
    for loop, other, instance in _named(environment, settings):
        differences = _differences(other, settings)
        if loop is not asyncio.get_running_loop():
            differences.append("on another event loop")
        if not differences:
            raise ConfigError(
                f"this process already has a {member.kind} of group {member.group!r} "
                f"under instance_name={name!r}; pass another instance_name, or omit it: "
                "then each client gets a name of its own"
            )
        if name != BROADCAST_INSTANCE or not instance.admits(member):
            raise ConfigError(
                f"instance_name={name!r} is in use in this process {' and '.join(differences)}, "
                "and brokers would treat both as one client (replies reach the wrong "
                "one, messages are handled twice); pass another instance_name, or close "
                "the other client first"
            )


def _named(
    environment: Environment, settings: ClientSettings
) -> Iterator[tuple[asyncio.AbstractEventLoop, ClientSettings, ClientInstance]]:
    """Yield the instances of this process that have the same client id in the same cluster.

    Instances on an event loop that has ended are left out.
    """
    for loop, processes in list(_processes.items()):
        process = processes.get(environment.identity)
        if process is None or never_runs_again(loop):
            continue
        for other, instance in process.instances():
            if _one_client(other, settings):
                yield loop, other, instance


def _one_client(one: ClientSettings, other: ClientSettings) -> bool:
    """Return True if both settings lead to the same client id in the same cluster.

    Clients with a common name server are in the same cluster.
    """
    servers = set(one.name_servers) & set(other.name_servers)
    return one.client_name == other.client_name and bool(servers)


_INTERVALS: Final = attrgetter("route_interval", "heartbeat_interval", "commit_interval")


def _differences(one: ClientSettings, other: ClientSettings) -> list[str]:
    """Return the reasons why clients with these two settings cannot share an instance."""
    differences = []
    if one.credentials != other.credentials:
        differences.append("with other credentials")
    if one.namespace_v2 != other.namespace_v2:
        differences.append("with another namespace_v2")
    if one.client_tls != other.client_tls:
        differences.append("with another tls")
    if _INTERVALS(one) != _INTERVALS(other):
        differences.append("with other intervals")
    differences += [
        f"with another {name}"
        for name in ("header_form", "unit_mode", "async_permits", "call_timeout")
        if getattr(one, name) != getattr(other, name)
    ]
    if set(one.name_servers) != set(other.name_servers):
        differences.append("with other name servers of the same cluster")
    return differences


def _after_fork() -> None:
    """Create a new lock in a forked child, because no thread there would release the old one.

    The instances need no change, because they are stored under the parent's process id.
    """
    global _joining
    _joining = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
