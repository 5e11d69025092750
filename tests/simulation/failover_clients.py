"""Clients of a group of replicas, and what they see: producers, a plain group and an ordered one,
readers of single replicas, and operators.

Each client is a program of a host. Everything it is told goes to the ledger.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

from tests.handlers_in_order import HandlersInOrder
from tests.simulation.world.group_ledger import Acknowledged, GroupLedger, Write
from tests.simulation.world.ledger import Queue
from tests.simulation.world.simulation import Simulation

from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.client.consumer.delivery import Delivery
from turbopump.client.producer import Producer
from turbopump.client.push_consumer import ConsumeFrom, PushConsumer
from turbopump.client.sending.send_result import SendStatus
from turbopump.errors import TurbopumpError
from turbopump.message.codec import decode_entries
from turbopump.message.ids import decode_offset_msg_id
from turbopump.message.message import MessageQueue
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.access import CreateUser, DeleteUser, GetUser, UpdateUser, UserInfo
from turbopump.protocol.requests.groups import (
    CreateGroup,
    DeleteGroup,
    GetGroup,
    SubscriptionGroupConfig,
)
from turbopump.protocol.requests.namesrv import MASTER_ID, ClusterInfo, GetBrokerClusterInfo
from turbopump.protocol.requests.offsets import (
    OffsetReply,
    QueryConsumerOffset,
    ResetOffset,
    UpdateConsumerOffset,
)
from turbopump.protocol.requests.pull import PullMessage, PullMessageReply, PullSysFlag
from turbopump.protocol.requests.topics import CreateTopic, DeleteTopic, GetTopicConfig, TopicConfig
from turbopump.remoting.client import RemotingClient

PRODUCERS = ("10.0.2.1", "10.0.2.2")
ORDERED_PRODUCER = "10.0.2.3"
CONSUMERS = ("10.0.3.1", "10.0.3.2")
ORDERED_CONSUMER = "10.0.3.3"
READER = "10.0.4.1"
OPERATORS = ("10.0.5.1", "10.0.5.2", "10.0.5.3")
OPERATOR = OPERATORS[0]
"""The one that also asks what there is in the end."""
CLIENTS = (*PRODUCERS, ORDERED_PRODUCER, *CONSUMERS, ORDERED_CONSUMER, READER, *OPERATORS)
PLAIN, IN_ORDER = "plain", "in-order"
PLAIN_GROUP, ORDERED_GROUP = "accounting", "billing"
GROUPS = {PLAIN_GROUP: PLAIN, ORDERED_GROUP: IN_ORDER}
"""Consumer groups, each with its topic."""
SUPER_USER, PASSWORD = "operator", "12345678"
BURSTS = (1, 1, 2, 5)
SEND_TIMEOUTS_S = (1.0, 3.0, 12.0)
CHANGE_TIMEOUTS_S = (1.0, 5.0)
HELD_PULL_MS = 3000
BROKER = "broker-a"
PORT = 10911


class Clients:
    """All clients of one group. ``master_at`` tells the epoch in which a host acknowledged between
    two moments. ``reached`` is called at each answer to a send or a change, with the master's
    host, and ``route_named`` with each master that the name server names to an operator."""

    TOPICS: ClassVar = (PLAIN, IN_ORDER)
    QUEUES: ClassVar = 2

    def __init__(
        self,
        simulation: Simulation,
        ledger: GroupLedger,
        namesrv: str,
        replicas: Sequence[str],
        master_at: Callable[[str, float, float], int],
        reached: Callable[[str, str], None],
        route_named: Callable[[str | None], None],
    ) -> None:
        self.simulation = simulation
        self.ledger = ledger
        self.producing = True
        self.in_order = HandlersInOrder()
        self.operators = {
            host: Operator(simulation, ledger, namesrv, reached, route_named, name=f"of{number}")
            for number, host in enumerate(OPERATORS)
        }
        self.operator = self.operators[OPERATOR]
        self.counts: Counter[str] = Counter()
        self._namesrv = namesrv
        self._replicas = replicas
        self._master_at = master_at
        self._reached = reached
        self._rests_until = 0.0
        self._numbers = 0
        self._lives = 0
        self._refusals: Counter[str] = Counter()

    def programs(self) -> dict[str, Callable[[str], Awaitable[None]]]:
        """Programs by host."""
        return {
            **dict.fromkeys(PRODUCERS, self._produce),
            ORDERED_PRODUCER: self._produce_in_order,
            **dict.fromkeys(CONSUMERS, self._consume),
            ORDERED_CONSUMER: self._consume_in_order,
            READER: self._read,
            **{host: operator.run for host, operator in self.operators.items()},
        }

    def rest(self, seconds: float) -> None:
        """Let the producers send nothing for a while."""
        self._rests_until = self.now + seconds

    @property
    def _may_send(self) -> bool:
        return self.producing and self.now >= self._rests_until

    def stop_changes(self) -> None:
        """Let all clients but the consumers do nothing any more."""
        self.producing = False
        for operator in self.operators.values():
            operator.active = False

    @property
    def sending(self) -> bool:
        """True while a send is under way."""
        return any(send.ended == float("inf") for send in self.ledger.messages.sends[-20:])

    @property
    def now(self) -> float:
        return self.simulation.loop.time()

    def _source(self, host: str) -> random.Random:
        return self.simulation.source(f"{host} from {self.now}")

    def _options(self, host: str) -> dict[str, Any]:
        return {
            "clock": self.simulation.clock(host),
            "random": self._source(host),
            "local_ip": host,
        }

    # --- producers

    async def _produce(self, host: str) -> None:
        """Send to any queue, with the producer's own retries, often several messages at once: then
        a master that dies has some that its slaves lack."""
        rng = self._source(host)
        timeout = rng.choice(SEND_TIMEOUTS_S)
        producer = Producer(
            self._namesrv, group="sellers", send_timeout=timeout, **self._options(host)
        )
        await producer.start()
        while True:
            if self._may_send:
                count = rng.choice(BURSTS)
                await asyncio.gather(
                    *(self._send(host, producer, PLAIN, None) for _ in range(count))
                )
            await asyncio.sleep(rng.uniform(0, 0.3))

    async def _produce_in_order(self, host: str) -> None:
        """Send to queues of its choice, one message after the other."""
        rng = self._source(host)
        producer = Producer(self._namesrv, group="clerks", **self._options(host))
        await producer.start()
        while True:
            if self._may_send:
                queue = MessageQueue(IN_ORDER, BROKER, rng.randrange(self.QUEUES))
                await self._send(host, producer, IN_ORDER, queue)
            await asyncio.sleep(rng.uniform(0, 0.6))

    async def _send(
        self, host: str, producer: Producer, topic: str, queue: MessageQueue | None
    ) -> None:
        self._numbers += 1
        body = b"%d from %s" % (self._numbers, host.encode())
        send = self.ledger.messages.send(host, topic, body, self.now)
        at_kill = self.simulation.process(host).at_kill
        # Whoever is killed in between has begun a send of which nobody will ever know more.
        at_kill[send] = lambda: send.maybe(self.now)
        try:
            result = await producer.send(topic, body, queue=queue)
        except TurbopumpError as error:
            send.maybe(self.now)
            self._refusals[str(error)[-200:]] += 1
            await asyncio.sleep(0.2)
        else:
            if result.status is SendStatus.OK:
                master, _port, log_offset = decode_offset_msg_id(result.offset_msg_id)
                epoch = self._master_at(master, send.begun, self.now)
                self.ledger.acknowledged(
                    send,
                    Queue(topic, result.queue.broker_name, result.queue.queue_id),
                    result.queue_offset,
                    self.now,
                    Acknowledged(master, epoch, log_offset),
                )
                self.ledger.succeeded(host, self.now)
                self._reached("send", master)
            else:
                send.maybe(self.now)
        del at_kill[send]

    # --- consumers

    async def _consume(self, host: str) -> None:
        """Take a share of the plain topic."""
        self._lives += 1
        life = self._lives
        self.ledger.messages.disturbance()  # queues change hands
        consumer = PushConsumer(
            self._namesrv,
            group=PLAIN_GROUP,
            topic=PLAIN,
            consume_from=ConsumeFrom.FIRST,
            **self._options(host),
        )
        await consumer.start()
        async for message in consumer:
            queue = Queue(message.topic, message.broker_name, message.queue_id)
            self.ledger.messages.delivered(
                PLAIN_GROUP, host, queue, message.queue_offset, message.body, life
            )
            self.ledger.succeeded(host, self.now)

    async def _consume_in_order(self, host: str) -> None:
        """Handle the messages of each queue one after the other."""
        self._lives += 1
        life = self._lives
        process = self.simulation.process(host)
        self.ledger.messages.disturbance()

        async def handle(message: Delivery) -> None:
            at = message.queue_id, message.queue_offset
            self.in_order.begin(*at, process)
            good = False
            try:
                queue = Queue(message.topic, message.broker_name, message.queue_id)
                self.ledger.messages.delivered(
                    ORDERED_GROUP, host, queue, message.queue_offset, message.body, life
                )
                await asyncio.sleep(0.01)
                self.ledger.succeeded(host, self.now)
                good = True
            finally:
                self.in_order.end(*at, process, good=good)

        consumer = PushConsumer(
            self._namesrv,
            group=ORDERED_GROUP,
            topic=IN_ORDER,
            handler=handle,
            ordered=True,
            consume_from=ConsumeFrom.FIRST,
            **self._options(host),
        )
        await consumer.start()
        await asyncio.Event().wait()

    async def _read(self, host: str) -> None:
        """Read every queue of every replica, masters and slaves. A pull waits at the replica, so
        nothing that readers see for a moment is missed."""
        remoting = RemotingClient()
        newest: dict[tuple[str, int], int] = {}
        await asyncio.gather(
            *(
                self._read_queue(host, remoting, newest, f"{replica}:{PORT}", topic, queue_id)
                for replica in self._replicas
                for topic in self.TOPICS
                for queue_id in range(self.QUEUES)
            )
        )

    async def _read_queue(
        self,
        host: str,
        remoting: RemotingClient,
        newest: dict[tuple[str, int], int],
        address: str,
        topic: str,
        queue_id: int,
    ) -> None:
        """Read one queue of one replica from its end on, and a little before it after a fault."""
        rng = self._source(f"{host} of {address} {topic} {queue_id}")
        offset: int | None = None
        while True:
            if offset is None:
                offset = max(newest.get((topic, queue_id), 0) - rng.randrange(4), 0)
            request = PullMessage(
                consumer_group="auditors",
                topic=topic,
                queue_id=queue_id,
                queue_offset=offset,
                sys_flag=PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND,
                subscription="*",
                suspend_timeout_millis=HELD_PULL_MS,
                commit_offset=0,
            )
            try:
                answer = await remoting.exchange(address, request, timeout=HELD_PULL_MS / 1000 + 1)
            except TurbopumpError:
                offset = None
                await asyncio.sleep(rng.uniform(0.05, 0.3))
                continue
            if answer.code != ResponseCode.SUCCESS:
                offset = None
                await asyncio.sleep(rng.uniform(0, 0.1))
                continue
            queue = Queue(topic, BROKER, queue_id)
            for message in decode_entries(answer.body):
                self.ledger.messages.delivered(
                    "auditors", f"{host} from {address}", queue, message.queue_offset, message.body
                )
            newest[topic, queue_id] = offset = answer.header(PullMessageReply).next_begin_offset
            self.ledger.succeeded(host, self.now)


class Operator:
    """Makes, changes and deletes topics, groups and users, and sets offsets, one thing after the
    other, at the master that the name server names. ``name`` is part of all that it makes."""

    NAMES = 6

    def __init__(
        self,
        simulation: Simulation,
        ledger: GroupLedger,
        namesrv: str,
        reached: Callable[[str, str], None],
        route_named: Callable[[str | None], None],
        *,
        name: str,
    ) -> None:
        self.simulation = simulation
        self.ledger = ledger
        self._namesrv = namesrv
        self._reached = reached
        self._route_named = route_named
        self._name = name
        self._remoting: RemotingClient
        self._number = 0
        self._users: set[str] = set()
        self._groups: set[str] = set()
        self.active = True

    @property
    def now(self) -> float:
        return self.simulation.loop.time()

    async def run(self, host: str) -> None:
        """A program: do one thing after the other."""
        rng = self.simulation.source(f"{host} from {self.now}")
        self._remoting = _signing()
        deeds = (
            *(self._put_topic,) * 2,
            self._delete_topic,
            *(self._put_group,) * 2,
            self._delete_group,
            *(self._put_user,) * 2,
            self._delete_user,
            self._commit,
            self._reset,
        )
        while True:
            await asyncio.sleep(rng.uniform(0, 0.6))
            if self.active:
                await rng.choice(deeds)(host, rng)

    async def read_all(self) -> None:
        """Read every fact at the master. The operator's process calls it in the end."""
        master = await self.master_of_route()
        assert master is not None, "the name server knows no master"
        for key in list(self.ledger.facts.writes):
            begun = self.now
            value = await self._value(master, key)
            self.ledger.facts.read(key, value, begun, self.now, f"at {master}")

    async def facts_of(self, address: str) -> dict[str, object]:
        """The value of each fact at one broker."""
        return {key: await self._value(address, key) for key in list(self.ledger.facts.writes)}

    async def ask_controller(self, address: str, request: Request[Any]) -> int:
        """Ask the controller until it answers; return the code of the answer."""
        while True:
            try:
                return (await self._remoting.exchange(address, request, timeout=3)).code
            except TurbopumpError:
                await asyncio.sleep(0.5)

    # --- deeds

    async def _put_topic(self, host: str, rng: random.Random) -> None:
        name = f"topic{rng.randrange(self.NAMES)}{self._name}"
        self._number += 1
        queues = 1 + self._number % 1000
        request = CreateTopic(topic=name, read_queue_nums=queues, write_queue_nums=queues)
        await self._change(host, rng, f"topic {name}", queues, request)

    async def _delete_topic(self, host: str, rng: random.Random) -> None:
        name = f"topic{rng.randrange(self.NAMES)}{self._name}"
        await self._change(host, rng, f"topic {name}", None, DeleteTopic(topic=name))

    async def _put_group(self, host: str, rng: random.Random) -> None:
        name = f"group{rng.randrange(self.NAMES)}{self._name}"
        self._number += 1
        body = SubscriptionGroupConfig(group_name=name, retry_max_times=self._number)
        await self._change(
            host, rng, f"group {name}", self._number, CreateGroup(), fastjson.encode(body)
        )

    async def _delete_group(self, host: str, rng: random.Random) -> None:
        name = f"group{rng.randrange(self.NAMES)}{self._name}"
        await self._change(host, rng, f"group {name}", None, DeleteGroup(group_name=name))

    async def _put_user(self, host: str, rng: random.Random) -> None:
        """Each user is made once, and then made a super user or a normal one."""
        name = f"user{rng.randrange(self.NAMES)}{self._name}"
        kind = rng.choice(("Super", "Normal"))
        if name in self._users:
            request: Request[Any] = UpdateUser(username=name)
            info = UserInfo(username=name, user_type=kind)
        else:
            request = CreateUser(username=name)
            info = UserInfo(username=name, password="12345678", user_type=kind)
        if await self._change(host, rng, f"user {name}", kind, request, fastjson.encode(info)):
            self._users.add(name)

    async def _delete_user(self, host: str, rng: random.Random) -> None:
        name = f"user{rng.randrange(self.NAMES)}{self._name}"
        if await self._change(host, rng, f"user {name}", None, DeleteUser(username=name)):
            self._users.discard(name)

    async def _commit(self, host: str, rng: random.Random) -> None:
        """Commit the offset after the last message that was acknowledged."""
        group = f"keepers{self._name}"
        if not await self._has_group(host, rng, group):
            return
        queue_id = rng.randrange(Clients.QUEUES)
        offset = self._end(queue_id)
        if not offset:
            return
        request = UpdateConsumerOffset(
            consumer_group=group, topic=PLAIN, queue_id=queue_id, commit_offset=offset
        )
        await self._change(host, rng, f"offset {group} {queue_id}", offset, request)

    async def _reset(self, host: str, rng: random.Random) -> None:
        """Reset a group's offset in one queue to one that exists."""
        group = f"archivists{self._name}"
        if not await self._has_group(host, rng, group):
            return
        queue_id = rng.randrange(Clients.QUEUES)
        end = self._end(queue_id)
        if not end:
            return
        offset = 1 + rng.randrange(end)
        request = ResetOffset(
            group=group, topic=PLAIN, timestamp=-1, force=False, queue_id=queue_id, offset=offset
        )
        await self._change(host, rng, f"offset {group} {queue_id}", offset, request)

    async def _has_group(self, host: str, rng: random.Random, name: str) -> bool:
        """Make a group unless it was made; False if that failed."""
        if name not in self._groups:
            body = fastjson.encode(SubscriptionGroupConfig(group_name=name, retry_max_times=7))
            if not await self._change(host, rng, f"group {name}", 7, CreateGroup(), body):
                return False
            self._groups.add(name)
        return True

    def _end(self, queue_id: int) -> int:
        """The offset after the last acknowledged message of a queue of the plain topic."""
        offsets = [
            send.offset
            for send in self.ledger.messages.acknowledged
            if send.queue == Queue(PLAIN, BROKER, queue_id)
        ]
        return max(offsets, default=-1) + 1

    async def _change(
        self,
        host: str,
        rng: random.Random,
        key: str,
        value: object,
        request: Request[Any],
        body: bytes = b"",
    ) -> bool:
        """Ask the master for a change, and write down the outcome. Return True if it was done."""
        master = await self.master_of_route()
        if master is None:
            return False
        write = self.ledger.facts.write(key, value, self.now)
        at_kill = self.simulation.process(host).at_kill
        at_kill[write] = lambda: write.maybe(self.now)
        timeout = rng.choice(CHANGE_TIMEOUTS_S)
        done = await self._outcome(master, request, body, write, timeout)
        del at_kill[write]
        if done:
            self.ledger.succeeded(host, self.now)
            self._reached("change", master.partition(":")[0])
        return done

    async def _outcome(
        self, master: str, request: Request[Any], body: bytes, write: Write, timeout: float
    ) -> bool:
        try:
            answer = await self._remoting.exchange(master, request, body, timeout=timeout)
        except TurbopumpError:
            write.maybe(self.now)
            return False
        if answer.code != ResponseCode.SUCCESS:
            write.maybe(self.now)
            return False
        write.answered(self.now)
        return True

    # --- reading

    async def master_of_route(self) -> str | None:
        """The master's address, as the name server knows it."""
        try:
            answer = await self._remoting.exchange(self._namesrv, GetBrokerClusterInfo(), timeout=3)
            info = fastjson.decode(answer.body, ClusterInfo)
        except TurbopumpError:
            return None
        broker = info.broker_addr_table.get(BROKER)
        master = None if broker is None else broker.broker_addrs.get(MASTER_ID)
        self._route_named(None if master is None else master.partition(":")[0])
        return master

    async def _value(self, master: str, key: str) -> object:
        """The value of a fact at a broker; None if it has no such thing."""
        kind, name, *more = key.split()
        if kind == "topic":
            answer = await self._ask(master, GetTopicConfig(topic=name))
            if answer.code != ResponseCode.SUCCESS:
                return None
            return fastjson.decode(answer.body, TopicConfig).read_queue_nums
        if kind == "group":
            answer = await self._ask(master, GetGroup(group=name))
            if answer.code != ResponseCode.SUCCESS:
                return None
            return fastjson.decode(answer.body, SubscriptionGroupConfig).retry_max_times
        if kind == "user":
            answer = await self._ask(master, GetUser(username=name))
            if answer.code != ResponseCode.SUCCESS or not answer.body:
                return None
            return fastjson.decode(answer.body, UserInfo).user_type
        assert kind == "offset"
        request = QueryConsumerOffset(consumer_group=name, topic=PLAIN, queue_id=int(more[0]))
        answer = await self._ask(master, request)
        if answer.code != ResponseCode.SUCCESS:
            return None
        # RocketMQ: 0 for a group without an offset in a queue that has its first message
        return answer.header(OffsetReply).offset or None

    async def _ask(self, master: str, request: Request[Any]) -> Command:
        return await self._remoting.exchange(master, request, timeout=5)


def _signing() -> RemotingClient:
    return RemotingClient(signer=RequestSigner(Credentials(SUPER_USER, PASSWORD)))
