"""Which clients of a process share an instance, and so connections, routes and heartbeats: those of one client id.

One rule: a group stands once in an instance's heartbeats as a consumer, so a second consumer of a group gets an instance of its own; only
who asks for one by an equal, explicit name is refused. It must not know what an instance does.
Source: apache/rocketmq ``ClientConfig.buildMQClientId``, ``MQClientManager``.
"""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import dataclass, field
from typing import Any, Final

from turbopump.client.heartbeat import Member
from turbopump.client.identity import InstanceSettings
from turbopump.client.instance import ClientInstance
from turbopump.client.surroundings import Surroundings
from turbopump.errors import ConfigError


@dataclass(slots=True)
class _Process:
    """The instances of one process on one event loop. A test or simulation that brings its own clock or random is a process of its own."""

    name: str
    made: int = 0
    instances: list[tuple[InstanceSettings, ClientInstance]] = field(default_factory=list)

    def next_name(self) -> str:
        """``<pid>#<random>`` for the first instance without a name, ``<pid>#<random>#2`` for the second; none is used twice."""
        self.made += 1
        return self.name if self.made == 1 else f"{self.name}#{self.made}"


_processes: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, _Process]]] = weakref.WeakKeyDictionary()


def join_instance(settings: InstanceSettings, surroundings: Surroundings, member: Member) -> ClientInstance:
    """The instance that ``member`` belongs to from now on, started; ``instance.leave(member)`` gives it back.

    Raises ConfigError if the name was given and has such a member already.
    """
    process = _process_of(surroundings)
    for other, instance in process.instances:
        if other == settings and instance.admits(member):
            instance.join(member)
            return instance
    if settings.instance_name is not None:
        _refuse_duplicate(process, settings, member)
    name = settings.instance_name or process.next_name()
    instance = ClientInstance(
        settings.name_servers,
        instance_name=name,
        unit_name=settings.unit_name,
        surroundings=surroundings,
        dress=settings.dress(),
    )
    entry = (settings, instance)
    process.instances.append(entry)
    instance.on_end = lambda: process.instances.remove(entry)
    instance.join(member)
    instance.start()
    return instance


def _process_of(surroundings: Surroundings) -> _Process:
    processes = _processes.setdefault(asyncio.get_running_loop(), {})
    key = surroundings.identity
    process = processes.get(key)
    if process is None:
        process = processes[key] = _Process(surroundings.new_instance_name())
    return process


def _refuse_duplicate(process: _Process, settings: InstanceSettings, member: Member) -> None:
    for other, instance in process.instances:
        if other.client_name == settings.client_name and not instance.admits(member):
            raise ConfigError(
                f"this process has a {member.kind} of group {member.group!r} under instance_name={settings.instance_name!r} already; "
                "give another instance_name, or none: then each gets what it needs"
            )
