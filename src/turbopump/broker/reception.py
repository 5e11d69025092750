"""Who answers which request: the one place where handlers are made of what they work with and put
into a router."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from turbopump.broker.cold_flow import ColdFlow
from turbopump.broker.consumers import ClientTable
from turbopump.broker.forwarding import FlushWait, Forwarding
from turbopump.broker.groups import RequestModes
from turbopump.broker.handlers.assignment import AssignmentHandler
from turbopump.broker.handlers.clients import ClientQuestionsHandler, ClientsHandler
from turbopump.broker.handlers.consumers import ConsumersHandler, GroupsHandler
from turbopump.broker.handlers.locks import LocksHandler
from turbopump.broker.handlers.offsets import OffsetControlHandler, OffsetsHandler
from turbopump.broker.handlers.pop import PopHandler
from turbopump.broker.handlers.pop_acks import PopAcksHandler
from turbopump.broker.handlers.pull import PullHandler
from turbopump.broker.handlers.queries import QueriesHandler
from turbopump.broker.handlers.recall import RecallHandler
from turbopump.broker.handlers.replies import RepliesHandler
from turbopump.broker.handlers.send import SendHandler
from turbopump.broker.handlers.send_back import SendBackHandler
from turbopump.broker.handlers.statistics import ColdFlowHandler, StatisticsHandler
from turbopump.broker.handlers.topics import TopicRecords, TopicsHandler
from turbopump.broker.handlers.transactions import TransactionsHandler
from turbopump.broker.held_pulls import HeldPulls
from turbopump.broker.interceptors import Interceptors
from turbopump.broker.pop.pop import Pop
from turbopump.broker.reading import Questions
from turbopump.broker.registration import TopicRoutes
from turbopump.broker.schedule.timers import Timers
from turbopump.broker.statistics import RuntimeInfo, Statistics
from turbopump.broker.tables import Tables
from turbopump.broker.transactions.transactions import Transactions
from turbopump.clock import Clock
from turbopump.config.broker_config import BrokerConfig
from turbopump.protocol.requests.assignment import (
    LockBatchMq,
    QueryAssignment,
    SetMessageRequestMode,
    UnlockBatchMq,
)
from turbopump.protocol.requests.clients import (
    CheckClientConfig,
    GetConsumerListByGroup,
    Heartbeat,
    UnregisterClient,
)
from turbopump.protocol.requests.consumers import (
    ConsumeMessageDirectly,
    GetAllProducerInfo,
    GetBrokerConsumeStats,
    GetConsumerConnectionList,
    GetConsumerRunningInfo,
    GetConsumeStats,
    GetProducerConnectionList,
    QueryConsumeTimeSpan,
    QuerySubscriptionByConsumer,
    QueryTopicConsumeByWho,
    QueryTopicsByConsumer,
)
from turbopump.protocol.requests.groups import (
    CreateGroup,
    CreateGroupList,
    DeleteGroup,
    GetAllGroups,
    GetGroup,
)
from turbopump.protocol.requests.offsets import (
    CloneGroupOffset,
    GetConsumerStatus,
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    QueryCorrectionOffset,
    ResetOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from turbopump.protocol.requests.pop import (
    AckMessage,
    BatchAckMessage,
    ChangeInvisibleTime,
    Notification,
    PeekMessage,
    PollingInfo,
    PopMessage,
)
from turbopump.protocol.requests.pull import (
    GetEarliestMsgStoreTime,
    LitePullMessage,
    PullMessage,
    QueryMessage,
    ViewMessageById,
)
from turbopump.protocol.requests.send import (
    ConsumerSendMsgBack,
    EndTransaction,
    RecallMessage,
    ResumeCheckHalfMessage,
    SendBatchMessage,
    SendMessage,
    SendMessageV2,
    SendReplyMessage,
    SendReplyMessageV2,
)
from turbopump.protocol.requests.statistics import (
    GetBrokerRuntimeInfo,
    GetColdFlow,
    RemoveColdFlow,
    SetCommitLogReadMode,
    UpdateColdFlow,
    ViewBrokerStatsData,
)
from turbopump.protocol.requests.topics import (
    CreateTopic,
    CreateTopicList,
    DeleteTopic,
    GetAllTopicConfig,
    GetTopicConfig,
    GetTopicStatsInfo,
)
from turbopump.remoting.connection import Connection
from turbopump.remoting.router import Router
from turbopump.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class Parts:
    """What a running broker is made of. Each handler is given what it needs of it, and no more."""

    config: BrokerConfig
    clock: Clock
    random: random.Random
    store: MessageStore
    store_host: tuple[str, int]
    tables: Tables
    clients: ClientTable[Connection]
    clients_handler: ClientsHandler
    held: HeldPulls
    interceptors: Interceptors
    forwarding: Forwarding
    flush_wait: FlushWait
    timers: Timers
    pop: Pop
    transactions: Transactions
    statistics: Statistics
    runtime_info: RuntimeInfo
    announce: Callable[[], Awaitable[None]]
    request_modes: RequestModes
    routes: TopicRoutes
    cold: ColdFlow


def add_handlers(router: Router, parts: Parts, *, pulls: bool) -> None:
    """All requests of a broker; a VIP port takes no ``pulls``."""
    config, store, tables = parts.config, parts.store, parts.tables
    topics, groups = tables.topics, tables.groups
    clock, forwarding, flush_wait = parts.clock, parts.forwarding, parts.flush_wait
    questions = Questions(store.cold_reads)

    send = SendHandler(
        config,
        store,
        topics,
        groups,
        clock,
        parts.random,
        parts.store_host,
        parts.announce,
        parts.interceptors,
        flush_wait,
    )
    router.add(SendMessage, send.send, may_wait=True)
    router.add(SendMessageV2, send.send, may_wait=True)
    router.add(SendBatchMessage, send.send, may_wait=True)
    recall = RecallHandler(config, store, topics, parts.timers, clock, parts.store_host, flush_wait)
    router.add(RecallMessage, recall.recall)
    transactions = TransactionsHandler(config, parts.transactions, clock)
    router.add(EndTransaction, transactions.end)
    router.add(ResumeCheckHalfMessage, transactions.resume)
    replies = RepliesHandler(
        config, topics, parts.clients, clock, forwarding, parts.store_host, send.check
    )
    router.add(SendReplyMessage, replies.reply)
    router.add(SendReplyMessageV2, replies.reply)

    if pulls:
        pull = PullHandler(
            config,
            store,
            topics,
            groups,
            tables.offsets,
            parts.clients,
            parts.held,
            parts.statistics,
            parts.cold,
        )
        router.add(PullMessage, pull.pull)
        router.add(LitePullMessage, pull.pull)
        pop = PopHandler(config, store, topics, groups, parts.pop, forwarding, clock, parts.random)
        router.add(PopMessage, pop.pop)
        router.add(PeekMessage, pop.peek)
        router.add(Notification, pop.notify)
        router.add(PollingInfo, pop.waiting)
    acks = PopAcksHandler(config, store, topics, tables.offsets, parts.pop, forwarding, clock)
    router.add(AckMessage, acks.acknowledge)
    router.add(BatchAckMessage, acks.acknowledge_batch)
    router.add(ChangeInvisibleTime, acks.change)
    assignment = AssignmentHandler(
        config, topics, groups, parts.request_modes, parts.routes, parts.clients
    )
    router.add(QueryAssignment, assignment.query)
    router.add(SetMessageRequestMode, assignment.set_mode)
    back = SendBackHandler(
        config,
        store.lookup,
        questions,
        topics,
        groups,
        parts.clients,
        forwarding,
        parts.statistics,
        parts.random,
    )
    router.add(ConsumerSendMsgBack, back.send_back)
    offsets = OffsetsHandler(store, topics, groups, tables.offsets, questions)
    router.add(QueryConsumerOffset, offsets.query)
    router.add(UpdateConsumerOffset, offsets.update)
    router.add(GetMaxOffset, offsets.maximum)
    router.add(GetMinOffset, offsets.minimum)
    router.add(SearchOffset, offsets.at_time)
    locks = LocksHandler(tables.locks, parts.clients, clock)
    router.add(LockBatchMq, locks.lock)
    router.add(UnlockBatchMq, locks.unlock)
    queries = QueriesHandler(config, store.lookup, questions)
    router.add(QueryMessage, queries.by_key)
    router.add(ViewMessageById, queries.by_offset)
    router.add(GetEarliestMsgStoreTime, queries.earliest)

    clients = parts.clients_handler
    router.add(Heartbeat, clients.heartbeat)
    router.add(UnregisterClient, clients.unregister)
    router.add(GetConsumerListByGroup, clients.consumer_list)
    router.add(CheckClientConfig, clients.check)
    records = TopicRecords(topics, tables.offsets, store, parts.statistics, parts.held)
    about_topics = TopicsHandler(config, records, questions, parts.announce)
    router.add(CreateTopic, about_topics.create)
    router.add(CreateTopicList, about_topics.create_list)
    router.add(DeleteTopic, about_topics.delete)
    router.add(GetTopicConfig, about_topics.one)
    router.add(GetAllTopicConfig, about_topics.list_all)
    router.add(GetTopicStatsInfo, about_topics.queues)
    figures = StatisticsHandler(parts.statistics, parts.runtime_info, store, questions)
    router.add(ViewBrokerStatsData, figures.view)
    router.add(GetBrokerRuntimeInfo, figures.runtime)
    cold = ColdFlowHandler(parts.cold, store.log)
    router.add(UpdateColdFlow, cold.update)
    router.add(RemoveColdFlow, cold.remove)
    router.add(GetColdFlow, cold.info)
    router.add(SetCommitLogReadMode, cold.read_mode)
    _add_operators(router, parts, questions)


def _add_operators(router: Router, parts: Parts, questions: Questions) -> None:
    """Consumer groups, where they stand, and who is in them."""
    config, store, tables, clients = parts.config, parts.store, parts.tables, parts.clients
    about_groups = GroupsHandler(tables.groups, tables.offsets)
    router.add(CreateGroup, about_groups.create)
    router.add(CreateGroupList, about_groups.create_list)
    router.add(DeleteGroup, about_groups.delete)
    router.add(GetAllGroups, about_groups.list_all)
    router.add(GetGroup, about_groups.one)
    control = OffsetControlHandler(
        config, store, tables.topics, tables.groups, tables.offsets, clients, parts.held, questions
    )
    router.add(ResetOffset, control.reset)
    router.add(CloneGroupOffset, control.clone)
    router.add(QueryCorrectionOffset, control.correction)
    consumers = ConsumersHandler(
        *(
            config.broker_name,
            f"{parts.store_host[0]}:{parts.store_host[1]}",
            store,
            tables.topics,
            tables.groups,
            tables.offsets,
            clients,
        ),
        *(parts.clients_handler.conflicts, parts.statistics, questions, parts.clock),
    )
    router.add(GetConsumerConnectionList, consumers.consumers)
    router.add(GetProducerConnectionList, consumers.producers)
    router.add(QueryTopicConsumeByWho, consumers.groups_of)
    router.add(QueryTopicsByConsumer, consumers.topics_of)
    router.add(GetConsumeStats, consumers.how_far)
    router.add(GetBrokerConsumeStats, consumers.all_standings)
    router.add(GetAllProducerInfo, consumers.all_producers)
    router.add(QuerySubscriptionByConsumer, consumers.subscription)
    router.add(QueryConsumeTimeSpan, consumers.time_span)
    asking = ClientQuestionsHandler(
        config.broker_name, store, tables.topics, tables.groups, clients, questions
    )
    router.add(GetConsumerStatus, asking.status)
    router.add(GetConsumerRunningInfo, asking.running_info)
    router.add(ConsumeMessageDirectly, asking.consume_directly)
