"""Access rules. One table has a rule for every request code of the server.

A rule requires actions on the resources that the request names. One of several actions for a
resource is enough; all of several resources are needed. No request is open to users without an
account. A code without a rule is for Super users only. The generated page of
the rules (``docs/reference/access-rules.md``) has the differences from Apache's 5.3.3.

Two facts hold for all rules:

- The retry topic of a group belongs to the group: ``Sub`` on the group also permits publishing
  to it. The POP retry topic of a group for a topic counts as that topic (``consumed``).
- A request that names a message only by its position (33, 36, 37, 309, 323) is also checked for
  the topic of the message found there, by the handler that found it (``message``).

Source: apache/rocketmq ``DefaultAuthorizationContextBuilder``, ``@RocketMQAction`` of the header
classes. Users are unknown here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, Final, NamedTuple

from turbopump.auth.policies import Action, Resource, ResourceType
from turbopump.message.handles import original_topic
from turbopump.message.rules import DEFAULT_TOPIC, HALF_TOPIC, REPLY_TOPIC_END, RETRY_PREFIX
from turbopump.protocol import fastjson
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Request
from turbopump.protocol.requests.clients import ConsumerData, HeartbeatData, read_heartbeat

PUB, SUB, GET, LIST = Action.PUB, Action.SUB, Action.GET, Action.LIST
CREATE, UPDATE, DELETE = Action.CREATE, Action.UPDATE, Action.DELETE
"""Short names of the actions, for the table below."""

Names = str | None | Iterable[str | None]
"""One name of a resource, several names, or None."""
Reading = Callable[[Any, Any, Collection[str]], Names]
"""Function that returns names from a request, its body, and the clusters of the server."""


class Who(Enum):
    """Kinds of users that a rule admits.

    They are users whose policies allow the request, or users with a role that no policy gives.
    """

    POLICY = "policy"
    BROKERS = "the brokers' own account (innerClientAuthenticationCredentials) or a Super user"
    SUPER = "a Super user"
    SECRETS = "the brokers' own account or a Super user, also with authorizationEnabled=false"


class Need(NamedTuple):
    """Permission on one resource, which a request needs.

    Any one of the actions is enough.
    """

    resource: Resource
    actions: tuple[Action, ...]

    def __str__(self) -> str:
        return f"{self.resource} {'|'.join(self.actions)}"


@dataclass(frozen=True, slots=True)
class Ask:
    """Requirement of a rule: actions on the resources named by a request.

    - ``type``: type of these resources.
    - ``names``: function that returns their names.
    - ``actions``: actions of which one is enough.
    - ``about``: description of these resources for the page.
    - ``always``: True requires the actions on the empty name if the request names no resource.
    """

    type: ResourceType
    names: Reading
    actions: tuple[Action, ...]
    about: str = ""
    always: bool = True

    def __str__(self) -> str:
        about = f" {self.about}" if self.about else ""
        return f"{self.type}{about}: {' or '.join(self.actions)}"


@dataclass(frozen=True, slots=True)
class Rule:
    """Access rule for one request code: who may send such requests.

    - ``asks``: requirements, all of which must be met.
    - ``message``: actions of which one is needed on the topic of a message that is found.
    - ``from_body``: True if the body names the resources. ``pieces`` reads large bodies.
    - ``produces``: True if the request names producers. They count only if the user may publish to
      some topic.
    - ``somewhere``: actions of which one is needed on some topic, for a request without names.
    - ``key``: function that returns the header fields which decide about a frequent request.
    - ``secrets``: function that returns None unless the request is for passwords, which only
      ``Who.SECRETS`` may send.
    """

    asks: tuple[Ask, ...] = ()
    who: Who = Who.POLICY
    message: tuple[Action, ...] = ()
    from_body: bool = False
    pieces: Callable[[bytes], Iterator[Any]] | None = None
    produces: bool = False
    somewhere: tuple[Action, ...] = ()
    key: Callable[[Any], Hashable] | None = None
    secrets: Callable[[Any], object] | None = None

    def for_request(self, request: Request[Any]) -> Rule:
        """Return the rule for this request. It may be stricter than the general rule of the request
        code."""
        return self if self.secrets is None or self.secrets(request) is None else _SECRETS

    def needs(
        self, request: Request[Any], body: bytes, clusters: Collection[str]
    ) -> Iterator[Need]:
        """Yield every permission that a request needs, each once.

        Raises FastjsonError if the body cannot be decoded.
        """
        found: set[Need] = set()
        for content in self._contents(request, body):
            for ask in self.asks:
                for name in _each(ask.names(request, content, clusters), always=ask.always):
                    wanted = need(ask.type, name, ask.actions)
                    if wanted not in found:
                        found.add(wanted)
                        yield wanted

    def _contents(self, request: Request[Any], body: bytes) -> Iterator[Any]:
        if not self.from_body or request.body is None:
            yield None
        elif self.pieces is not None:
            yield from self.pieces(body)
        else:
            yield fastjson.decode_request(body or b"{}", request.body)

    @property
    def text(self) -> str:
        """Description of the users who may send the request, for the page of rules."""
        parts = [str(ask) for ask in self.asks] or [self.who.value]
        if self.somewhere:
            parts.append(f"through CLUSTER_REPLY_TOPIC {' or '.join(self.somewhere)} on some topic")
        if self.produces:
            parts.append("its groups of producers count with Pub on some topic")
        if self.message:
            parts.append(f"Topic of the message that is found: {' or '.join(self.message)}")
        if self.secrets is not None:
            parts.append(f"with passwords (`nonce`): {Who.SECRETS.value}")
        return "; ".join(dict.fromkeys(parts))


_SECRETS: Final = Rule(who=Who.SECRETS)


def need(type_: ResourceType, name: str, actions: tuple[Action, ...]) -> Need:
    """Return the permission to do one of these actions on a topic, group or cluster.

    A retry topic counts as its group.
    """
    if not name.startswith(RETRY_PREFIX) or type_ not in (ResourceType.TOPIC, ResourceType.GROUP):
        return Need(Resource(type_, name), actions)
    group = name.removeprefix(RETRY_PREFIX).partition("+")[0]  # %RETRY%group+topic: POP's
    if PUB in actions:
        actions = tuple(dict.fromkeys(SUB if one is PUB else one for one in actions))
    return Need(Resource(ResourceType.GROUP, group), actions)


def consumed(topic: str | None, group: str | None) -> Iterator[str]:
    """Yield the topic to authorise when a group consumes ``topic``.

    The group's own retry topic needs no check, because permission for the group includes it. The
    group's POP retry topic of a topic counts as that topic.
    """
    if topic != f"{RETRY_PREFIX}{group}":
        yield original_topic(topic or "", group or "")


def _each(names: Names, *, always: bool) -> Iterator[str]:
    if names is None or isinstance(names, str):
        if always or names:
            yield names or ""
    else:
        for name in names:
            yield name or ""


# --- Parts of rules.


def topic(*actions: Action, of: str = "topic", always: bool = True) -> Ask:
    """Return a requirement: actions on the topic in a header field."""
    read = attrgetter(of)
    return Ask(ResourceType.TOPIC, lambda request, *_: read(request), actions, always=always)


def group(*actions: Action, of: str = "consumer_group", always: bool = True) -> Ask:
    """Return a requirement: actions on the group in a header field."""
    read = attrgetter(of)
    about = "" if of in ("consumer_group", "group", "group_name") else of.replace("_", " ")
    return Ask(ResourceType.GROUP, lambda request, *_: read(request), actions, about, always)


def cluster(action: Action, of: str = "") -> Ask:
    """Return a requirement: an action on a cluster.

    The cluster is the one in the header field ``of``, or else every cluster of the server.
    """
    if not of:
        return Ask(ResourceType.CLUSTER, lambda _request, _body, clusters: clusters, (action,))
    read = attrgetter(of)
    return Ask(
        ResourceType.CLUSTER, lambda request, _body, clusters: read(request) or clusters, (action,)
    )


def topics(read: Reading, *actions: Action, about: str = "") -> Ask:
    """Return a requirement: actions on the topics from ``read``."""
    return Ask(ResourceType.TOPIC, read, actions, about, always=False)


def groups(read: Reading, *actions: Action) -> Ask:
    """Return a requirement: actions on the groups from ``read``."""
    return Ask(ResourceType.GROUP, read, actions, always=False)


def _sent(request: Any, _body: Any, clusters: Collection[str]) -> Names:
    """Return the topic of a reply, unless it is the shared reply topic of a cluster.

    A user who may consume requests may also reply to them.
    """
    return () if is_reply_topic(request.topic, clusters) else (request.topic,)


def _routed(request: Any, _body: Any, clusters: Collection[str]) -> Names:
    """Return the topic of a route, unless every client needs that route.

    Clients need some routes to reply, or to have a topic created.
    """
    known = request.topic == DEFAULT_TOPIC or is_reply_topic(request.topic, clusters)
    return () if known else (request.topic,)


def _measured(request: Any, _body: Any, _clusters: Collection[str]) -> Names:
    """Return the topic of a queue, unless it is the template of new topics.

    The template has no messages. Producers ask about it to check that a broker answers.
    """
    return () if request.topic == DEFAULT_TOPIC else (request.topic,)


def _ended(request: Any, _body: Any, _clusters: Collection[str]) -> Names:
    """Return the topic of a transaction, if the request names it.

    A client that answers a check names the topic of half messages, as the check does. That topic is
    not returned.
    """
    return () if request.topic in (None, "", HALF_TOPIC) else (request.topic,)


def is_reply_topic(name: str, clusters: Collection[str]) -> bool:
    """Return True if a topic carries the replies of one of these clusters."""
    return name.endswith(REPLY_TOPIC_END) and name.removesuffix(REPLY_TOPIC_END) in clusters


def _beats(body: bytes) -> Iterator[HeartbeatData]:
    """Yield the heartbeat in ``body``, in the parts that its handler reads. A large heartbeat has
    one part per consumer."""
    data = read_heartbeat(body)
    if isinstance(data, HeartbeatData):
        yield data
    else:
        for piece in data.consumer_data_set:
            consumer = fastjson.decode_request(bytes(piece), ConsumerData)
            yield HeartbeatData(consumer_data_set=(consumer,))


def _beating_groups(_request: Any, beat: Any, _clusters: Collection[str]) -> Names:
    return [each.group_name for each in beat.consumer_data_set]


def _beating_topics(_request: Any, beat: Any, _clusters: Collection[str]) -> Names:
    return [
        name
        for each in beat.consumer_data_set
        for one in each.subscription_data_set
        for name in consumed(one.topic, each.group_name)
    ]


def _locked_topics(_request: Any, body: Any, _clusters: Collection[str]) -> Names:
    return [name for queue in body.mq_set for name in consumed(queue.topic, body.consumer_group)]


def _acked_topics(_request: Any, body: Any, _clusters: Collection[str]) -> Names:
    return [name for ack in body.acks or () for name in consumed(ack.topic, ack.consumer_group)]


def _assigned_topic(_request: Any, body: Any, _clusters: Collection[str]) -> Names:
    return consumed(body.topic, body.consumer_group)


def _checked_topic(_request: Any, body: Any, _clusters: Collection[str]) -> Names:
    subscription = body.subscription_data
    return consumed(None if subscription is None else subscription.topic, body.group)


def _split(text: str | None, separator: str) -> list[str]:
    return [part for part in (text or "").split(separator) if part]


def _body(read: str) -> Reading:
    get = attrgetter(read)
    return lambda _request, body, _clusters: (get(body),)


def _bodies(items: str, name: str) -> Reading:
    read, get = attrgetter(items), attrgetter(name)
    return lambda _request, body, _clusters: [get(each) for each in read(body) or ()]


def consuming(*also: Action) -> Rule:
    """Return the rule for a request from a group about a consumed topic.

    The request needs Sub, or an action in ``also``, on both the topic and the group.
    """
    read = Ask(
        ResourceType.TOPIC,
        lambda request, *_: consumed(request.topic, request.consumer_group),
        (SUB, *also),
    )
    key = attrgetter("topic", "consumer_group")
    return Rule((read, group(SUB, *also)), key=key)


def sending() -> Rule:
    return Rule((topic(PUB),), key=attrgetter("topic"))


_OF_REPLIES: Final = "other than CLUSTER_REPLY_TOPIC"
_REPLYING: Final = Rule((topics(_sent, PUB, about=_OF_REPLIES),), somewhere=(PUB, SUB))

RULES: Final[Mapping[int, Rule]] = {
    # Messages out and in.
    RequestCode.SEND_MESSAGE: sending(),
    RequestCode.SEND_MESSAGE_V2: sending(),
    RequestCode.SEND_BATCH_MESSAGE: sending(),
    RequestCode.SEND_REPLY_MESSAGE: _REPLYING,
    RequestCode.SEND_REPLY_MESSAGE_V2: _REPLYING,
    RequestCode.RECALL_MESSAGE: Rule((topic(PUB),)),
    RequestCode.END_TRANSACTION: Rule(
        (topics(_ended, PUB, about="if given, other than RMQ_SYS_TRANS_HALF_TOPIC"),),
        message=(PUB,),
    ),
    RequestCode.PULL_MESSAGE: consuming(),
    RequestCode.LITE_PULL_MESSAGE: consuming(),
    RequestCode.POP_MESSAGE: consuming(),
    RequestCode.PEEK_MESSAGE: consuming(),
    RequestCode.ACK_MESSAGE: consuming(),
    RequestCode.BATCH_ACK_MESSAGE: Rule(
        (topics(_acked_topics, SUB), groups(_bodies("acks", "consumer_group"), SUB)), from_body=True
    ),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: consuming(),
    RequestCode.NOTIFICATION: consuming(),
    RequestCode.POLLING_INFO: consuming(GET),
    RequestCode.CONSUMER_SEND_MSG_BACK: Rule((group(SUB, of="group"),), message=(SUB,)),
    RequestCode.QUERY_MESSAGE: Rule((topic(SUB, GET),)),
    RequestCode.VIEW_MESSAGE_BY_ID: Rule((topic(SUB, GET, always=False),), message=(SUB, GET)),
    # Clients and their groups.
    RequestCode.HEART_BEAT: Rule(
        (groups(_beating_groups, SUB), topics(_beating_topics, SUB)),
        from_body=True,
        pieces=_beats,
        produces=True,
    ),
    RequestCode.UNREGISTER_CLIENT: Rule((group(SUB, always=False),)),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Rule((group(SUB, GET),)),
    RequestCode.CHECK_CLIENT_CONFIG: Rule(
        (groups(_body("group"), SUB), topics(_checked_topic, SUB)), from_body=True
    ),
    RequestCode.LOCK_BATCH_MQ: Rule(
        (groups(_body("consumer_group"), SUB), topics(_locked_topics, SUB)), from_body=True
    ),
    RequestCode.UNLOCK_BATCH_MQ: Rule(
        (groups(_body("consumer_group"), SUB), topics(_locked_topics, SUB)), from_body=True
    ),
    RequestCode.QUERY_ASSIGNMENT: Rule(
        (topics(_assigned_topic, SUB), groups(_body("consumer_group"), SUB)), from_body=True
    ),
    RequestCode.SET_MESSAGE_REQUEST_MODE: Rule(
        (topics(_assigned_topic, SUB, UPDATE), groups(_body("consumer_group"), UPDATE)),
        from_body=True,
    ),
    # Offsets.
    RequestCode.QUERY_CONSUMER_OFFSET: consuming(GET),
    RequestCode.UPDATE_CONSUMER_OFFSET: consuming(UPDATE),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Rule((topic(SUB, GET),)),
    RequestCode.GET_MAX_OFFSET: Rule(
        (topics(_measured, SUB, GET, about=f"(but {DEFAULT_TOPIC})"),)
    ),
    RequestCode.GET_MIN_OFFSET: Rule((topic(SUB, GET),)),
    RequestCode.GET_EARLIEST_MSG_STORETIME: Rule((topic(SUB, GET),)),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Rule((topic(UPDATE), group(UPDATE, of="group"))),
    RequestCode.CLONE_GROUP_OFFSET: Rule(
        (group(GET, of="src_group"), group(UPDATE, of="dest_group"), topic(UPDATE, always=False))
    ),
    RequestCode.QUERY_CORRECTION_OFFSET: Rule(
        (
            topic(GET),
            group(GET, of="compare_group"),
            groups(lambda request, *_: _split(request.filter_groups, ","), GET),
        )
    ),
    # Topics and groups.
    RequestCode.UPDATE_AND_CREATE_TOPIC: Rule(
        (
            topics(lambda request, *_: () if request.if_absent else (request.topic,), CREATE),
            Ask(
                ResourceType.TOPIC,
                lambda request, *_: (request.topic,) if request.if_absent else (),
                (PUB, CREATE),
                "of a producer's first send (ifAbsent)",
                always=False,
            ),
        )
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: Rule(
        (topics(_bodies("topic_config_list", "topic_name"), CREATE),), from_body=True
    ),
    RequestCode.DELETE_TOPIC_IN_BROKER: Rule((topic(DELETE),)),
    RequestCode.GET_TOPIC_CONFIG: Rule((topic(GET),)),
    RequestCode.GET_ALL_TOPIC_CONFIG: Rule((cluster(GET),)),
    RequestCode.GET_TOPIC_STATS_INFO: Rule((topic(GET),)),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: Rule((topic(GET),)),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Rule(
        (groups(_body("group_name"), CREATE),), from_body=True
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Rule(
        (groups(_bodies("group_config_list", "group_name"), CREATE),), from_body=True
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Rule((group(DELETE, of="group_name"),)),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Rule((group(GET, of="group"),)),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Rule((cluster(GET),)),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: Rule((group(UPDATE, of="group"), topic(UPDATE))),
    RequestCode.QUERY_CONSUME_QUEUE: Rule((topic(GET), group(GET, always=False))),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: Rule((group(GET),)),
    RequestCode.GET_CONSUME_STATS: Rule(
        (
            group(GET),
            topic(GET, always=False),
            topics(lambda request, *_: _split(request.topic_list, ";"), GET),
        )
    ),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: Rule((group(GET, of="group"),)),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: Rule((group(GET, of="group"), topic(GET))),
    RequestCode.QUERY_CONSUME_TIME_SPAN: Rule((topic(GET), group(GET, of="group"))),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Rule((topic(GET), group(GET, of="group"))),
    RequestCode.GET_CONSUMER_RUNNING_INFO: Rule((group(GET),)),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Rule(
        (group(SUB), topic(SUB, always=False)), message=(SUB,)
    ),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: Rule((topic(UPDATE, always=False),), message=(UPDATE,)),
    # A broker as a whole.
    RequestCode.UPDATE_BROKER_CONFIG: Rule((cluster(UPDATE),)),
    RequestCode.GET_BROKER_CONFIG: Rule((cluster(GET),)),
    RequestCode.GET_BROKER_RUNTIME_INFO: Rule((cluster(GET),)),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: Rule((cluster(GET),)),
    RequestCode.GET_ALL_PRODUCER_INFO: Rule((cluster(GET),)),
    RequestCode.VIEW_BROKER_STATS_DATA: Rule((cluster(GET),)),
    RequestCode.GET_BROKER_CONSUME_STATS: Rule((cluster(GET),)),
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: Rule((cluster(UPDATE),)),
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: Rule((cluster(UPDATE),)),
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: Rule((cluster(GET),)),
    RequestCode.SET_COMMITLOG_READ_MODE: Rule((cluster(UPDATE),)),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Rule((cluster(LIST),)),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: Rule((cluster(UPDATE),)),
    RequestCode.CLEAN_UNUSED_TOPIC: Rule((cluster(UPDATE),)),
    RequestCode.DELETE_EXPIRED_COMMITLOG: Rule((cluster(UPDATE),)),
    # A master and its slaves.
    RequestCode.GET_ALL_CONSUMER_OFFSET: Rule((cluster(GET),)),
    RequestCode.GET_ALL_DELAY_OFFSET: Rule((cluster(GET),)),
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: Rule((cluster(GET),)),
    RequestCode.GET_BROKER_HA_STATUS: Rule((cluster(GET),)),
    RequestCode.GET_TIMER_CHECK_POINT: Rule((cluster(GET),)),
    RequestCode.GET_TIMER_METRICS: Rule((cluster(GET),)),
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: Rule(who=Who.BROKERS),
    RequestCode.EXCHANGE_BROKER_HA_INFO: Rule(who=Who.BROKERS),
    RequestCode.RESET_MASTER_FLUSH_OFFSET: Rule(who=Who.BROKERS),
    # Name servers. Apache's have no access control at all.
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Rule(
        (topics(_routed, PUB, SUB, GET, about=f"{_OF_REPLIES} and {DEFAULT_TOPIC}"),)
    ),
    RequestCode.REGISTER_BROKER: Rule(who=Who.BROKERS),
    RequestCode.UNREGISTER_BROKER: Rule(who=Who.BROKERS),
    RequestCode.BROKER_HEARTBEAT: Rule(who=Who.BROKERS),
    RequestCode.QUERY_DATA_VERSION: Rule((cluster(GET, of="cluster_name"),)),
    RequestCode.GET_BROKER_MEMBER_GROUP: Rule((cluster(GET, of="cluster_name"),)),
    RequestCode.GET_BROKER_CLUSTER_INFO: Rule((cluster(GET),)),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Rule((cluster(LIST),)),
    RequestCode.GET_TOPICS_BY_CLUSTER: Rule((cluster(LIST, of="cluster"),)),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: Rule((cluster(LIST),)),
    RequestCode.GET_UNIT_TOPIC_LIST: Rule((cluster(LIST),)),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: Rule((cluster(LIST),)),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Rule((cluster(LIST),)),
    RequestCode.PUT_KV_CONFIG: Rule((cluster(UPDATE),)),
    RequestCode.GET_KV_CONFIG: Rule((cluster(GET),)),
    RequestCode.DELETE_KV_CONFIG: Rule((cluster(UPDATE),)),
    RequestCode.GET_KVLIST_BY_NAMESPACE: Rule((cluster(GET),)),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: Rule((cluster(UPDATE),)),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: Rule((cluster(UPDATE),)),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: Rule((cluster(UPDATE, of="cluster_name"),)),
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: Rule((cluster(UPDATE),)),
    RequestCode.UPDATE_NAMESRV_CONFIG: Rule((cluster(UPDATE),)),
    RequestCode.GET_NAMESRV_CONFIG: Rule((cluster(GET),)),
    # Controllers, and what they send to brokers.
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: Rule((cluster(UPDATE),)),
    RequestCode.CONTROLLER_ELECT_MASTER: Rule((cluster(UPDATE, of="cluster_name"),)),
    RequestCode.CONTROLLER_REGISTER_BROKER: Rule((cluster(UPDATE, of="cluster_name"),)),
    RequestCode.CONTROLLER_GET_REPLICA_INFO: Rule((cluster(GET),)),
    RequestCode.CONTROLLER_GET_METADATA_INFO: Rule((cluster(GET),)),
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: Rule((cluster(GET),)),
    RequestCode.GET_BROKER_EPOCH_CACHE: Rule((cluster(GET),)),
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: Rule((cluster(UPDATE),)),
    RequestCode.UPDATE_CONTROLLER_CONFIG: Rule((cluster(UPDATE),)),
    RequestCode.GET_CONTROLLER_CONFIG: Rule((cluster(GET),)),
    RequestCode.CLEAN_BROKER_DATA: Rule((cluster(UPDATE, of="cluster_name"),)),
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: Rule((cluster(GET, of="cluster_name"),)),
    RequestCode.CONTROLLER_APPLY_BROKER_ID: Rule((cluster(UPDATE, of="cluster_name"),)),
    # Accounts.
    RequestCode.AUTH_CREATE_USER: Rule(who=Who.SUPER),
    RequestCode.AUTH_UPDATE_USER: Rule(who=Who.SUPER),
    RequestCode.AUTH_DELETE_USER: Rule(who=Who.SUPER),
    RequestCode.AUTH_GET_USER: Rule((cluster(GET),)),
    RequestCode.AUTH_LIST_USER: Rule((cluster(GET),), secrets=attrgetter("nonce")),
    RequestCode.AUTH_CREATE_ACL: Rule(who=Who.SUPER),
    RequestCode.AUTH_UPDATE_ACL: Rule(who=Who.SUPER),
    RequestCode.AUTH_DELETE_ACL: Rule(who=Who.SUPER),
    RequestCode.AUTH_GET_ACL: Rule((cluster(GET),)),
    RequestCode.AUTH_LIST_ACL: Rule((cluster(GET),)),
}
