"""Blocking ``Admin``. Each operation calls the asyncio operation and waits for its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turbopump.admin import (
    admin,
    brokers,
    clients,
    dead_letters,
    groups,
    kv,
    messages,
    name_servers,
    offsets,
    replication,
    topics,
    users,
)
from turbopump.blocking.on_loop_thread import Facet, OnLoopThread, made_as, waits


class Topics(Facet[topics.Topics]):
    """Topics, as ``turbopump.admin.topics.Topics``."""

    names = waits(topics.Topics.names)
    settings = waits(topics.Topics.settings)
    queues = waits(topics.Topics.queues)
    create = waits(topics.Topics.create)


class Groups(Facet[groups.Groups]):
    """Consumer groups, as ``turbopump.admin.groups.Groups``."""

    names = waits(groups.Groups.names)
    members = waits(groups.Groups.members)
    lag = waits(groups.Groups.lag)
    settings = waits(groups.Groups.settings)
    put = waits(groups.Groups.put)
    delete = waits(groups.Groups.delete)


class Offsets(Facet[offsets.Offsets]):
    """Offsets of groups, as ``turbopump.admin.offsets.Offsets``."""

    show = waits(offsets.Offsets.show)
    reset = waits(offsets.Offsets.reset)
    reset_queue = waits(offsets.Offsets.reset_queue)
    set = waits(offsets.Offsets.set)
    clone = waits(offsets.Offsets.clone)


class Clients(Facet[clients.Clients]):
    """Connected clients, as ``turbopump.admin.clients.Clients``."""

    consumers = waits(clients.Clients.consumers)
    running_info = waits(clients.Clients.running_info)


class Messages(Facet[messages.Messages]):
    """Stored messages, as ``turbopump.admin.messages.Messages``."""

    by_id = waits(messages.Messages.by_id)
    at = waits(messages.Messages.at)
    by_key = waits(messages.Messages.by_key)
    by_time = waits(messages.Messages.by_time)


class GroupDeadLetters(Facet[dead_letters.GroupDeadLetters]):
    """Dead letters of groups, as ``turbopump.admin.dead_letters.GroupDeadLetters``."""

    groups = waits(dead_letters.GroupDeadLetters.groups)
    letters = waits(dead_letters.GroupDeadLetters.letters)


class Brokers(Facet[brokers.Brokers]):
    """Brokers, as ``turbopump.admin.brokers.Brokers``."""


class NameServers(Facet[name_servers.NameServers]):
    """Name servers, as ``turbopump.admin.name_servers.NameServers``."""


class Kv(Facet[kv.Kv]):
    """Key-value configuration, as ``turbopump.admin.kv.Kv``."""


class Users(Facet[users.Users]):
    """Users and policies, as ``turbopump.admin.users.Users``."""


class Replication(Facet[replication.Replication]):
    """Masters and slaves, as ``turbopump.admin.replication.Replication``."""

    states = waits(replication.Replication.states)


class Admin(OnLoopThread[admin.Admin]):
    """Operations on a cluster whose methods block the calling thread.

    Use it as ``with Admin("127.0.0.1:9876") as admin: admin.topics.create("orders")``. Settings,
    operations and errors are those of ``turbopump.admin.admin.Admin``. Many threads may use one.
    """

    @made_as(admin.Admin)
    def __init__(self, _settings: Mapping[str, Any]) -> None:
        self.topics = Topics(self, "topics")
        self.groups = Groups(self, "groups")
        self.offsets = Offsets(self, "offsets")
        self.clients = Clients(self, "clients")
        self.messages = Messages(self, "messages")
        self.dead_letters = GroupDeadLetters(self, "dead_letters")
        self.brokers = Brokers(self, "brokers")
        self.name_servers = NameServers(self, "name_servers")
        self.kv = Kv(self, "kv")
        self.users = Users(self, "users")
        self.replication = Replication(self, "replication")
