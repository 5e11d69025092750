"""Every argument of every client, given what is wrong for it: refused in a sentence that names it,
where the client is made."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from turbopump import blocking
from turbopump.auth.signatures import Credentials
from turbopump.client.consumer.subscription import Sql
from turbopump.client.dead_letters import DeadLetters, ResendTo, resend, would_resend
from turbopump.client.idempotence import IdempotentConsumer, MemoryStore, SqliteStore
from turbopump.client.idempotence.store import RedisStore
from turbopump.client.lite_pull_consumer import LitePullConsumer
from turbopump.client.message_finder import MessageFinder
from turbopump.client.producer import Producer
from turbopump.client.pull_consumer import PullConsumer
from turbopump.client.push_consumer import PushConsumer
from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.sending.back_pressure import BackPressure
from turbopump.client.sending.queue_chooser import LatencyFaults
from turbopump.client.sending.settings import DEFAULT_GROUP
from turbopump.client.simple_consumer import SimpleConsumer
from turbopump.client.transaction_producer import TransactionProducer
from turbopump.errors import ConfigError, NotStartedError
from turbopump.message.message import Message, MessageQueue

INF: Final = float("inf")
WRONG: Final = (
    None,
    "1",
    "",
    "\udc80",
    b"x",
    -1,
    0,
    1.5,
    True,
    INF,
    float("nan"),
    object(),
    [],
    2**64,
)
"""What people give by mistake; some settings can use some of it."""

USABLE: Final[dict[str, tuple[object, ...]]] = {
    "namesrv": (),
    "group": ("1",),
    "topic": (None, "1"),
    "topics": ([],),
    "tags": ("1", ""),
    "handler": (None,),
    "handler_batch": (None,),
    "checker": (),
    "executor": (None,),
    "threads": (),
    "consume_from": (),
    "concurrency": (),
    "ordered": (True,),
    "suspend_time": (1.5, 2**64),
    "consume_timeout": (1.5, 2**64),
    "timeout": (1.5, 2**64),
    "broadcast": (True,),
    "offsets_directory": (None, "1", "\udc80"),
    "max_reconsume_times": (None, 0),
    "allocation": (),
    "close_timeout": (0, 1.5, 2**64),
    "client_rebalance": (True,),
    "pop_invisible_time": (),
    "pop_batch": (),
    "pop_threshold": (),
    "disk": (None,),
    "auto_commit": (True,),
    "pull_batch": (),
    "queue_messages_max": (),
    "queue_span_max": (),
    "topic_messages_max": (None,),
    "topic_bytes_max": (None, 2**64),
    "queue_bytes_max": (2**64,),
    "messages_max": (),
    "instance_name": (None, "1"),
    "unit_name": (None, "1"),
    "unit_mode": (True,),
    "async_permits": (),
    "oneway_permits": (),
    "route_interval": (1.5, 2**64),
    "heartbeat_interval": (1.5,),
    "commit_interval": (1.5, 2**64),
    "call_timeout": (1.5, 2**64),
    "header_form": (),
    "credentials": (None,),
    "tls": (True,),
    "namespace": (None, "1"),
    "namespace_v2": (None, "1"),
    "send_timeout": (1.5, 2**64),
    "attempt_timeout": (None, 1.5, 2**64),
    "retries": (0,),
    "retry_codes": ([],),
    "retry_unless_ok": (True,),
    "latency_faults": (None,),
    "compress_from": (None, 0, 2**64),
    "compression": (),
    "compression_level": (None, 0),
    "body_size_max": (),
    "back_pressure": (None,),
    "auto_batch": (None,),
    "hooks": ([],),
    "trace": (None, "1", True),
    "clock": (None,),
    "random": (None,),
    "local_ip": (None,),
    # IdempotentConsumer and its stores
    "key": ("1",),
    "store": (),
    "name": ("1", ""),
    "keep": (1.5,),
    "lease": (1.5,),
    "wait": (0, 1.5, 2**64),
    "max_keys": (),
    "path": ("1", "\udc80"),
    "durable": (True,),
    "url": (),
    "prefix": ("1",),
    # AutoBatch, BackPressure, LatencyFaults, Credentials
    "hold": (1.5,),
    "size": (),
    "total_size": (2**64,),
    "messages": (2**64,),
    "latency_max_ms": (),
    "not_available_ms": (),
    "detector": (True,),
    "detect_interval": (1.5, 2**64),
    "detect_timeout": (1.5, 2**64),
    "access_key": ("1",),
    "secret_key": ("1",),
    "security_token": (None, "1"),
}
"""Of ``WRONG``, what the setting can use all the same."""
BESIDE: Final[dict[str, dict[str, object]]] = {
    "tags": {"topic": "orders"},
    "offsets_directory": {"broadcast": True},
    "suspend_time": {"ordered": True},
    "handler_batch": {"handler": print},
}
"""What must be given for a setting to count."""

Make = Callable[..., object]
CLIENT: Final[dict[str, object]] = {"namesrv": "127.0.0.1:9876", "group": "g"}
TRANSACTION: Final[dict[str, object]] = {**CLIENT, "checker": print}
NO_GROUP: Final[dict[str, object]] = {"namesrv": "127.0.0.1:9876"}
IDEMPOTENT: Final[dict[str, object]] = {"key": "order_id", "store": MemoryStore()}
KEYS: Final[dict[str, object]] = {"access_key": "a", "secret_key": "s"}
MADE: Final[tuple[tuple[Make, type, dict[str, object]], ...]] = (
    *(
        (kind, kind, CLIENT)
        for kind in (Producer, PushConsumer, PullConsumer, LitePullConsumer, SimpleConsumer)
    ),
    *(
        (getattr(blocking, kind.__name__), kind, CLIENT)
        for kind in (Producer, PushConsumer, PullConsumer, LitePullConsumer)
    ),
    (blocking.SimpleConsumer, SimpleConsumer, CLIENT),
    (TransactionProducer, TransactionProducer, TRANSACTION),
    (blocking.TransactionProducer, TransactionProducer, TRANSACTION),
    (MessageFinder, MessageFinder, NO_GROUP),
    (blocking.MessageFinder, MessageFinder, NO_GROUP),
    (DeadLetters, DeadLetters, NO_GROUP),
    (IdempotentConsumer, IdempotentConsumer, IDEMPOTENT),
    (blocking.IdempotentConsumer, blocking.IdempotentConsumer, IDEMPOTENT),
    (MemoryStore, MemoryStore, {}),
    (SqliteStore, SqliteStore, {"path": "done.db"}),
    (RedisStore, RedisStore, {"url": "redis://127.0.0.1:6379/0"}),
    *((kind, kind, {}) for kind in (AutoBatch, BackPressure, LatencyFaults)),
    (Credentials, Credentials, KEYS),
)
"""What is called, whose arguments it takes, and what it needs in any case."""


NEEDS_REDIS: Final = pytest.mark.skipif(
    find_spec("redis") is None, reason="needs the extra turbopump[redis]"
)


def every_argument() -> Iterator[Any]:
    for make, takes, needed in MADE:
        for name in inspect.signature(takes).parameters:
            marks = NEEDS_REDIS if make is RedisStore else ()
            yield pytest.param(
                make,
                name,
                needed,
                id=f"{make.__module__.split('.')[1]}-{takes.__name__}-{name}",
                marks=marks,
            )


@pytest.mark.parametrize(("make", "name", "needed"), list(every_argument()))
def test_what_a_setting_cannot_use_is_refused_by_name_where_the_client_is_made(
    make: Make, name: str, needed: dict[str, object]
) -> None:
    given = {**needed, **BESIDE.get(name, {})}
    for value in WRONG:
        usable = [use for use in USABLE[name] if type(use) is type(value) and use == value]
        if (name, make) == ("size", BackPressure):
            usable = [value] if value == 2**64 else []
        if usable:
            make(**{**given, name: value})
        else:
            with pytest.raises(ConfigError, match=SAID.get(name, rf"\b{name}\b")) as told:
                make(**{**given, name: value})
            assert repr(value)[:80] in str(told.value) or name in NOT_SHOWN, (
                "it says what was given"
            )


SAID: Final = {"namesrv": "name server"}
NOT_SHOWN: Final = {
    "credentials",
    "access_key",
    "secret_key",
    "security_token",
    "group",
    "topic",
    "namesrv",
}
"""Secrets; and names whose fault is said in a sentence of its own."""

PRODUCER: Final = Producer("127.0.0.1:9876")
PULL: Final = PullConsumer("127.0.0.1:9876", group="g")
LITE: Final = LitePullConsumer("127.0.0.1:9876", group="g")
SIMPLE: Final = SimpleConsumer("127.0.0.1:9876", group="g")
QUEUE: Final = MessageQueue("orders", "broker-a", 0)
MESSAGE: Final = Message("orders", b"x")
CALLS: Final[list[tuple[str, Callable[[Any], Coroutine[Any, Any, object]]]]] = [
    ("timeout", lambda value: PRODUCER.send(MESSAGE, timeout=value)),
    ("timeout", lambda value: PRODUCER.send_batch([MESSAGE], timeout=value)),
    ("timeout", lambda value: PRODUCER.start_send(MESSAGE, timeout=value)),
    ("timeout", lambda value: PRODUCER.request(MESSAGE, timeout=value)),
    ("timeout", lambda value: PRODUCER.recall("orders", "handle", timeout=value)),
    ("wait", lambda value: PULL.pull(QUEUE, 0, wait=value)),
    ("timeout", lambda value: PULL.pull(QUEUE, 0, timeout=value)),
    ("max_messages", lambda value: PULL.pull(QUEUE, 0, value)),
    ("offset", lambda value: PULL.pull(QUEUE, value)),
    ("offset", lambda value: PULL.commit(QUEUE, value)),
    ("max_messages", lambda value: LITE.poll(max_messages=value)),
    ("timeout", lambda value: SIMPLE.receive(timeout=value)),
    ("max_messages", lambda value: SIMPLE.receive(value)),
    ("invisible_seconds", lambda value: SIMPLE.receive(invisible_seconds=value)),
    ("timeout", lambda value: SIMPLE.ack([], timeout=value)),
]


@pytest.mark.parametrize(
    "value", [INF, float("nan"), "1", True, object()], ids=["inf", "nan", "text", "True", "object"]
)
@pytest.mark.parametrize(("name", "call"), CALLS)
def test_a_call_refuses_what_is_no_number_before_it_does_anything(
    name: str, call: Callable[[Any], Coroutine[Any, Any, object]], value: object
) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}=.* must be"):
        asyncio.run(call(value))


def test_a_poll_may_wait_without_end_but_not_for_no_number() -> None:
    with pytest.raises(ConfigError, match="timeout=nan must be a number of seconds"):
        asyncio.run(LITE.poll(float("nan")))
    with pytest.raises(NotStartedError):
        asyncio.run(LITE.poll(INF))


@pytest.mark.parametrize("topic", [5, None, b"orders"])
def test_what_is_no_topic_is_none_wherever_it_is_asked_for(topic: Any) -> None:
    for call in (
        PRODUCER.publish_queues(topic),
        PRODUCER.recall(topic, "x"),
        LITE.subscribe(topic),
        SIMPLE.subscribe(topic),
    ):
        with pytest.raises(ConfigError, match=r"topic=.* must be the name of a topic"):
            asyncio.run(call)


@pytest.mark.parametrize("tags", [5, None, "\udc80", ["A"]])
def test_what_is_no_tag_is_refused_with_what_is_expected(tags: Any) -> None:
    for call in (
        LITE.subscribe("orders", tags),
        SIMPLE.subscribe("orders", tags),
        LITE.assign([QUEUE], tags),
    ):
        with pytest.raises(
            ConfigError, match=r"tags=.* must be \* for all messages, 'A \|\| B', Tags"
        ):
            asyncio.run(call)


@pytest.mark.parametrize("filter_", [5, None, "", "price > '\udc80'"])
def test_a_filter_is_text(filter_: Any) -> None:
    with pytest.raises(ConfigError, match="is not a SQL92 filter"):
        Sql(filter_)


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer, SimpleConsumer])
@pytest.mark.parametrize("tags", ["new", "A || B", Sql("price > 100")])
def test_tags_that_are_of_no_topic_are_not_passed_over(kind: type, tags: Any) -> None:
    for make in (kind, getattr(blocking, kind.__name__)):
        with pytest.raises(
            ConfigError,
            match=r"tags=.* without topic=.* pass the topic too, or "
            r"call subscribe\(topic, tags\)",
        ):
            make("127.0.0.1:9876", group="g", tags=tags)
        make("127.0.0.1:9876", group="g", tags="*")


@pytest.mark.parametrize(("make", "needed"), [(make, needed) for make, _, needed in MADE])
def test_the_name_server_that_is_not_given_is_that_of_the_environment(
    make: Make, needed: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "namesrv" not in needed:
        return
    others = {name: value for name, value in needed.items() if name != "namesrv"}
    for wrong in ("", "10.0.0.1", "a:1;b"):
        monkeypatch.setenv("NAMESRV_ADDR", wrong)
        with pytest.raises(ConfigError, match=r"name server address|NAMESRV_ADDR"):
            make(**others)
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876;10.0.0.2:9876")
    make(**others)


CLIENTS: Final = [
    pytest.param(
        make,
        needed | ({"topic": "orders"} if "topic" in inspect.signature(takes).parameters else {}),
        id=f"{make.__module__.split('.')[1]}-{takes.__name__}-{number}",
    )
    for number, (make, takes, needed) in enumerate(MADE)
    if "namesrv" in needed
]


@pytest.mark.parametrize(("make", "needed"), CLIENTS)
def test_a_client_is_neither_pickled_nor_copied_and_says_so(
    make: Make, needed: dict[str, object]
) -> None:
    client = make(**needed)
    for again in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            again(client)


@pytest.mark.parametrize(("make", "needed"), CLIENTS)
def test_a_client_that_is_started_without_asyncio_says_what_to_use(
    make: Any, needed: dict[str, object]
) -> None:
    client = make(**needed)
    if not inspect.iscoroutinefunction(client.start):
        return  # a blocking one
    starting = client.start()
    with pytest.raises(NotStartedError, match=r"use turbopump\.blocking, under trio in a thread"):
        starting.send(None)


@pytest.mark.parametrize("wrong", ["a:1,b:2", ["a:1, b:2"], "a:1;b:2,c:3", "a,b:1"])
def test_name_servers_that_are_separated_by_commas_are_refused_with_what_separates_them(
    wrong: Any,
) -> None:
    with pytest.raises(ConfigError, match="contains a comma: separate several with ;"):
        Producer(wrong)


def test_transactions_are_not_of_the_group_whose_members_cannot_answer_for_them() -> None:
    for make in (TransactionProducer, blocking.TransactionProducer):
        for group in ("DEFAULT_PRODUCER", DEFAULT_GROUP):
            with pytest.raises(
                ConfigError,
                match=rf"group='{group}' is the group of producers without one.* of your own$",
            ):
                make("127.0.0.1:9876", group=group, checker=print)


def test_a_producer_is_not_of_the_group_of_all_of_apaches_without_one() -> None:
    for make in (Producer, blocking.Producer):
        with pytest.raises(
            ConfigError, match=r"group='DEFAULT_PRODUCER' is .* of your own, or omit it$"
        ):
            make("127.0.0.1:9876", group="DEFAULT_PRODUCER")
        assert make("127.0.0.1:9876").group == DEFAULT_GROUP


def test_what_is_wrapped_by_an_idempotent_consumer_is_a_function() -> None:
    for make in (IdempotentConsumer, blocking.IdempotentConsumer):
        with pytest.raises(ConfigError, match="handler='handle' must be a function"):
            make(key="order_id", store=MemoryStore())("handle")  # type: ignore[operator]
        with pytest.raises(ConfigError, match=r"store=.* must be a store: SqliteStore"):
            make(key="order_id", store=MemoryStore)


@NEEDS_REDIS
def test_a_redis_that_is_no_address_is_told_of_where_the_store_is_made() -> None:
    with pytest.raises(
        ConfigError,
        match=r"url='127.0.0.1:6379' must be the address of a Redis, as in "
        r"redis://host:6379/0",
    ):
        RedisStore("127.0.0.1:6379")


FINDER: Final = MessageFinder("127.0.0.1:9876")
LETTERS: Final = DeadLetters("127.0.0.1:9876")
FOLDER: Final = Path("journals")


async def unplain(_letter: object) -> bool:
    return False


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (partial(FINDER.queues, 5), "topic=5 must be the name of a topic"),  # type: ignore[arg-type]
        (partial(FINDER.view, "orders", 5), "msg_id=5 must be a message id"),  # type: ignore[arg-type]
        (partial(FINDER.by_unique_id, "orders", ""), "unique_id='' must be a message id"),
        (partial(FINDER.at, "orders", 5), "queue='orders' must be a MessageQueue: one of"),  # type: ignore[arg-type]
        (partial(FINDER.at, QUEUE, "5"), "offset='5' must be a whole number"),  # type: ignore[arg-type]
        (partial(FINDER.by_key, "orders", "a b"), "key='a b' must be a key: .* without the space"),
        (partial(FINDER.by_key, "orders", b"k"), "key=b'k' must be a key"),  # type: ignore[arg-type]
        (
            partial(FINDER.by_key, "orders", "k", 0),
            "max_messages=0 must be a whole number, 1 or more",
        ),
        (
            partial(FINDER.by_time, "orders", "today"),
            "begin='today' must be ms since 1970, or a datetime",
        ),  # type: ignore[arg-type]
        (partial(FINDER.by_time, "orders", 0, 1.5), "end=1.5 must be ms since 1970"),  # type: ignore[arg-type]
        (partial(resend, LETTERS, "", FOLDER), "group='' must be the name of a group"),
        (partial(resend, LETTERS, "g", "journals"), "journal='journals' must be the path"),  # type: ignore[arg-type]
        (partial(resend, LETTERS, "g", FOLDER, "retry"), "to='retry' must be ResendTo.ORIGIN or"),  # type: ignore[arg-type]
        (
            partial(resend, LETTERS, "g", FOLDER, wanted=unplain),
            "wanted=.* must be a plain function",
        ),  # type: ignore[arg-type]
        (
            partial(resend, LETTERS, "g", FOLDER, rate=0),
            "rate=0 must be a number of letters a second above 0",
        ),
        (
            partial(resend, LETTERS, "g", FOLDER, in_doubt="send"),
            "in_doubt='send' must be InDoubt.LEAVE",
        ),  # type: ignore[arg-type]
        (partial(resend, LETTERS, "g", FOLDER, settle=-1), "settle=-1 must be"),
        (partial(would_resend, LETTERS, "g", FOLDER, ResendTo.RETRY, 5), "wanted=5 must be"),  # type: ignore[arg-type]
    ],
)
def test_what_finds_and_resends_refuses_arguments_that_it_cannot_use(
    call: Callable[[], Coroutine[Any, Any, object]], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        asyncio.run(call())


@pytest.mark.parametrize(
    "make", [Producer, PushConsumer, LitePullConsumer, PullConsumer, SimpleConsumer, MessageFinder]
)
def test_a_setting_that_does_not_exist_is_named(make: Make) -> None:
    needed = {} if make is MessageFinder else {"group": "g"}
    with pytest.raises(
        TypeError, match=r"no such setting: retires; https://.*/client-settings\.html"
    ):
        make("127.0.0.1:9876", retires=3, unit_name="u", **needed)


def test_a_missing_setting_is_named_without_the_class_that_holds_it() -> None:
    with pytest.raises(TypeError, match=r"^missing a required .*argument: 'group'$"):
        PushConsumer("127.0.0.1:9876", topic="orders")  # type: ignore[call-arg]
