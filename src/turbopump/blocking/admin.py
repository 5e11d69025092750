"""Blocking ``Admin``. Each operation calls the asyncio operation and waits for its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turbopump.admin import (
    admin,
    brokers,
    clients,
    controllers,
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
    all_settings = waits(topics.Topics.all_settings)
    queues = waits(topics.Topics.queues)
    route = waits(topics.Topics.route)
    clusters = waits(topics.Topics.clusters)
    groups = waits(topics.Topics.groups)
    create = waits(topics.Topics.create)
    alter = waits(topics.Topics.alter)
    hidden_by = waits(topics.Topics.hidden_by)
    put_all = waits(topics.Topics.put_all)
    delete = waits(topics.Topics.delete)
    delete_on_broker = waits(topics.Topics.delete_on_broker)
    delete_routes = waits(topics.Topics.delete_routes)


class Groups(Facet[groups.Groups]):
    """Consumer groups, as ``turbopump.admin.groups.Groups``."""

    names = waits(groups.Groups.names)
    settings = waits(groups.Groups.settings)
    all_settings = waits(groups.Groups.all_settings)
    create = waits(groups.Groups.create)
    alter = waits(groups.Groups.alter)
    put = waits(groups.Groups.put)
    put_all = waits(groups.Groups.put_all)
    delete = waits(groups.Groups.delete)
    members = waits(groups.Groups.members)
    subscription = waits(groups.Groups.subscription)
    topics = waits(groups.Groups.topics)
    lag = waits(groups.Groups.lag)
    may_read = waits(groups.Groups.may_read)
    allow_reading = waits(groups.Groups.allow_reading)
    set_mode = waits(groups.Groups.set_mode)
    mode = waits(groups.Groups.mode)


class Offsets(Facet[offsets.Offsets]):
    """Offsets of groups, as ``turbopump.admin.offsets.Offsets``."""

    show = waits(offsets.Offsets.show)
    times = waits(offsets.Offsets.times)
    bounds = waits(offsets.Offsets.bounds)
    first_stored_ms = waits(offsets.Offsets.first_stored_ms)
    at_time = waits(offsets.Offsets.at_time)
    reset = waits(offsets.Offsets.reset)
    reset_queue = waits(offsets.Offsets.reset_queue)
    reset_silently = waits(offsets.Offsets.reset_silently)
    set = waits(offsets.Offsets.set)
    clone = waits(offsets.Offsets.clone)


class Clients(Facet[clients.Clients]):
    """Connected clients, as ``turbopump.admin.clients.Clients``."""

    consumers = waits(clients.Clients.consumers)
    producers = waits(clients.Clients.producers)
    all_producers = waits(clients.Clients.all_producers)
    running_info = waits(clients.Clients.running_info)
    offsets = waits(clients.Clients.offsets)
    consume_directly = waits(clients.Clients.consume_directly)


class Messages(Facet[messages.Messages]):
    """Stored messages, as ``turbopump.admin.messages.Messages``."""

    queues = waits(messages.Messages.queues)
    by_id = waits(messages.Messages.by_id)
    at = waits(messages.Messages.at)
    by_key = waits(messages.Messages.by_key)
    by_time = waits(messages.Messages.by_time)
    tracks = waits(messages.Messages.tracks)
    trace = waits(messages.Messages.trace)
    resume_check = waits(messages.Messages.resume_check)
    queue_units = waits(messages.Messages.queue_units)


class GroupDeadLetters(Facet[dead_letters.GroupDeadLetters]):
    """Dead letters of groups, as ``turbopump.admin.dead_letters.GroupDeadLetters``."""

    groups = waits(dead_letters.GroupDeadLetters.groups)
    letters = waits(dead_letters.GroupDeadLetters.letters)
    reason = waits(dead_letters.GroupDeadLetters.reason)
    would_resend = waits(dead_letters.GroupDeadLetters.would_resend)
    resend = waits(dead_letters.GroupDeadLetters.resend)


class Brokers(Facet[brokers.Brokers]):
    """Brokers, as ``turbopump.admin.brokers.Brokers``."""

    list = waits(brokers.Brokers.list)
    find = waits(brokers.Brokers.find)
    figures = waits(brokers.Brokers.figures)
    settings = waits(brokers.Brokers.settings)
    change_settings = waits(brokers.Brokers.change_settings)
    statistics = waits(brokers.Brokers.statistics)
    consume_stats = waits(brokers.Brokers.consume_stats)
    clean_expired_queues = waits(brokers.Brokers.clean_expired_queues)
    clean_unused_topics = waits(brokers.Brokers.clean_unused_topics)
    delete_expired_log = waits(brokers.Brokers.delete_expired_log)
    cold_reads = waits(brokers.Brokers.cold_reads)
    set_cold_read_limits = waits(brokers.Brokers.set_cold_read_limits)
    remove_cold_read_limit = waits(brokers.Brokers.remove_cold_read_limit)
    set_read_ahead = waits(brokers.Brokers.set_read_ahead)


class NameServers(Facet[name_servers.NameServers]):
    """Name servers, as ``turbopump.admin.name_servers.NameServers``."""

    @property
    def addresses(self) -> list[str]:
        """Addresses of all name servers, as given to this object."""
        return self._ready().addresses

    settings = waits(name_servers.NameServers.settings)
    change_settings = waits(name_servers.NameServers.change_settings)
    wipe_write_permission = waits(name_servers.NameServers.wipe_write_permission)
    restore_write_permission = waits(name_servers.NameServers.restore_write_permission)
    is_writable = waits(name_servers.NameServers.is_writable)


class Kv(Facet[kv.Kv]):
    """Key-value configuration, as ``turbopump.admin.kv.Kv``."""

    get = waits(kv.Kv.get)
    list = waits(kv.Kv.list)
    put = waits(kv.Kv.put)
    delete = waits(kv.Kv.delete)
    ordered_queues = waits(kv.Kv.ordered_queues)
    set_ordered_queues = waits(kv.Kv.set_ordered_queues)
    delete_ordered_queues = waits(kv.Kv.delete_ordered_queues)
    ordered_topics = waits(kv.Kv.ordered_topics)


class Users(Facet[users.Users]):
    """Users and policies, as ``turbopump.admin.users.Users``."""

    list = waits(users.Users.list)
    get = waits(users.Users.get)
    policies = waits(users.Users.policies)
    create = waits(users.Users.create)
    change = waits(users.Users.change)
    delete = waits(users.Users.delete)
    add_policy = waits(users.Users.add_policy)
    change_policy = waits(users.Users.change_policy)
    delete_policy = waits(users.Users.delete_policy)


class Replication(Facet[replication.Replication]):
    """Masters and slaves, as ``turbopump.admin.replication.Replication``."""

    states = waits(replication.Replication.states)
    status = waits(replication.Replication.status)
    slaves = waits(replication.Replication.slaves)
    epochs = waits(replication.Replication.epochs)
    problems = waits(replication.Replication.problems)
    differing_accounts = waits(replication.Replication.differing_accounts)
    reset_master_flush_offset = waits(replication.Replication.reset_master_flush_offset)


class Controllers(Facet[controllers.Controllers]):
    """Controllers, as ``turbopump.admin.controllers.Controllers``."""

    addresses = waits(controllers.Controllers.addresses)
    states = waits(controllers.Controllers.states)
    leader = waits(controllers.Controllers.leader)
    replicas = waits(controllers.Controllers.replicas)
    logs = waits(controllers.Controllers.logs)
    elect = waits(controllers.Controllers.elect)
    clean = waits(controllers.Controllers.clean)
    settings = waits(controllers.Controllers.settings)
    change_settings = waits(controllers.Controllers.change_settings)


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
        self.controllers = Controllers(self, "controllers")
