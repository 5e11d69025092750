"""A group of three replicas in a simulated world: a name server, a controller, clients, and what
happens to them.

Every program runs in a process of its own on a host of its own, and is started again a while after
its end. ``failover_clients.py`` has the clients, ``failover_faults.py`` what goes wrong. The ledger
of the group judges what the clients saw.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from tests.simulation.failover_clients import (
    CLIENTS,
    GROUPS,
    OPERATOR,
    ORDERED_GROUP,
    PASSWORD,
    PORT,
    SUPER_USER,
    Clients,
)
from tests.simulation.world.group_ledger import GroupLedger
from tests.simulation.world.ledger import Queue, Violation
from tests.simulation.world.pipe import Link
from tests.simulation.world.process import ProcessKilled
from tests.simulation.world.simulation import Simulation
from tests.unit.broker.replicas import log_of

from turbopump.broker.broker import Broker
from turbopump.broker.replica.replica import Replica
from turbopump.config.broker_config import BrokerConfig, FlushDiskType
from turbopump.config.controller_config import ControllerConfig
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.controller.decision_file import DecisionFile
from turbopump.controller.groups import Group as DecidedGroup
from turbopump.controller.server import Controller
from turbopump.disk.disk import Disk
from turbopump.errors import TurbopumpError
from turbopump.message.codec import decode_entries
from turbopump.namesrv.server import NameServer
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.requests.controller import CleanBrokerData
from turbopump.store.message_store import MessageStore
from turbopump.store.repair import scrub

NAMESRV, CONTROLLER = "10.0.0.1", "10.0.0.2"
REPLICAS = ("10.0.1.1", "10.0.1.2", "10.0.1.3")
SERVERS = (NAMESRV, CONTROLLER, *REPLICAS)
HOSTS = (*SERVERS, *CLIENTS)
NAMESRV_ADDRESS, CONTROLLER_ADDRESS = f"{NAMESRV}:9876", f"{CONTROLLER}:9878"
BROKER = "broker-a"
STORE = Path("/store")

READY_S = 60.0
"""Longest time until a new group has a master with all replicas in sync."""
PROGRESS_S = 30.0
SCRUB_FIRST_S, SCRUB_AGAIN_S, SCRUB_S = 3.0, 10.0, 25.0
"""When a replica checks its whole log: after its start, and again. Longest time until it has."""
SETTLED_S = 120.0
"""Longest time, without faults and producers, until everything is consumed and all logs are the
same."""
CONTROLLER_DISK_S = (0.002, 0.06)
"""Time of a sync at the controller: enough for something to happen meanwhile."""
FAR_S = (0.002, 0.02, 0.08)
"""Longest latency between two servers that are far from each other, drawn for each direction."""
EVERY_CODE = ",".join(str(int(code)) for code in RequestCode)


@dataclass(frozen=True)
class Shape:
    """What differs from seed to seed beside the faults."""

    flush: FlushDiskType = FlushDiskType.SYNC_FLUSH
    rest_s: float = 12.0
    """Longest rest of a program between its end and its next start."""
    is_damaged: bool = True
    """False: no disk is damaged, so replicas need not check their logs."""
    is_far: bool = False
    """True: servers are far from each other, some farther than others. Then slaves are behind."""
    is_calm: bool = False
    """True: most often all replicas are in sync again before the next fault."""
    heartbeat_s: float = 0.5
    """Time between two heartbeats. Only they tell the controller what is confirmed."""
    dead_s: float = 3.0
    """Silence after which the controller takes a replica for dead."""

    @classmethod
    def of(cls, rng: random.Random) -> Shape:
        heartbeat_s, dead_s = rng.choice(((0.5, 3.0), (2.5, 5.0)))
        return cls(
            flush=rng.choice(list(FlushDiskType)),
            rest_s=rng.choice((0.3, 2.0, 6.0)),
            is_damaged=rng.random() < 0.4,
            is_far=rng.random() < 0.5,
            is_calm=rng.random() < 0.6,
            heartbeat_s=heartbeat_s,
            dead_s=dead_s,
        )


@dataclass(frozen=True)
class Mastership:
    """A replica took itself for the master of an epoch, from a moment on."""

    at: float
    epoch: int


class WatchedDecisions(DecisionFile):
    """File of a controller's decisions. The world hears of each one before its answer is sent."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        on_decision: Callable[[DecidedGroup | None, DecidedGroup | None], None],
    ) -> None:
        super().__init__(disk, directory)
        self._on_decision = on_decision

    async def replace(self, name: str, old: DecidedGroup | None, new: DecidedGroup | None) -> None:
        await super().replace(name, old, new)
        self._on_decision(old, new)


class Group:
    """Starts everything, keeps it running, and writes down what clients and the world see."""

    def __init__(self, simulation: Simulation, shape: Shape | None = None) -> None:
        self.simulation = simulation
        self.shape = shape or Shape.of(simulation.random)
        self.ledger = GroupLedger()
        self.clients = Clients(
            simulation,
            self.ledger,
            NAMESRV_ADDRESS,
            REPLICAS,
            self.master_at,
            self.reached,
            self._route_named,
        )
        self.replicas: dict[str, Replica] = {}
        self.controller: Controller | None = None
        self.damaged: set[str] = set()
        """Hosts whose disk lost something: others must have all that was acknowledged."""
        self.rest_s = self.shape.rest_s
        self.moments: dict[str, list[Callable[[str], None]]] = defaultdict(list)
        """Calls with a host, each made once, when a moment comes: see ``reached``."""
        self.was_damaged = False
        self.gone_ids: set[int] = set()
        """Ids of replicas whose stores were emptied. The operator removes them."""
        self.kept_down: set[str] = set()
        """Hosts whose programs are not started again for now."""
        self.hurried: set[str] = set()
        """Hosts whose programs start again almost at once, once."""
        self._usual_links: dict[tuple[str, str], Link] = {}
        self.masterships: dict[str, list[Mastership]] = defaultdict(list)
        self.events: list[str] = []
        """What happened, for a reader of a failed run."""
        self.counts: Counter[str] = Counter()
        self.healed: float | None = None
        self._name_server_lives = 0
        self._stops: dict[str, asyncio.Event] = {}
        self._ids: dict[str, set[int]] = {}
        """Id of the replica of each host since its store was emptied."""
        self._kept: dict[str, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._far = simulation.source("distances")
        self._outside = contextvars.copy_context()
        """What is done in it belongs to no process."""

    # --- life

    async def start(self) -> None:
        """Start everything, and wait for a master with all replicas in sync."""
        self.keep(NAMESRV, self._name_server)
        self.simulation.disk(CONTROLLER).sync_seconds = CONTROLLER_DISK_S
        for one in SERVERS:
            for other in SERVERS:
                if self.shape.is_far and one != other:
                    latency = self._far.choice(FAR_S)
                    self._usual_links[one, other] = Link(latency / 2, latency)
                    self.restore_link(one, other)
        self.keep(CONTROLLER, self._controller)
        for host in REPLICAS:
            self.keep(host, self._replica)
        self._watch = asyncio.create_task(self._watch_roles(), name="watch of the roles")
        await self.until(self.is_whole, READY_S, "a new group does not get ready")
        for host, program in self.clients.programs().items():
            self.keep(host, program)

    async def end(self) -> None:
        """Keep nothing any longer."""
        tasks = [*self._kept.values(), *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until something holds. Raises AssertionError after so many seconds."""
        deadline = self.now + seconds
        while not condition():
            self.check_alive()
            if self.now > deadline:
                raise AssertionError(f"{what} in {seconds:g} s\n{self.story()}")
            await asyncio.sleep(0.05)

    async def settle(self) -> None:
        """After the last fault: let all clients go on, then wait until nothing moves any more."""
        self.rest_s = 0.5
        await self.until(
            lambda: all(self.simulation.process(host).alive for host in HOSTS),
            60,
            "a program does not start again",
        )
        await self._clean_ids()
        self.healed = self.now
        self.note("all faults have ended")
        deadline = self.now + PROGRESS_S + 1
        while self.now < deadline and not self._all_succeeded():
            self.check_alive()
            await asyncio.sleep(0.2)
        self.clients.stop_changes()
        if self.was_damaged:
            await self._scrub()
        deadline = self.now + SETTLED_S
        while self.now < deadline and not self.is_settled():
            self.check_alive()
            await asyncio.sleep(0.5)

    async def _clean_ids(self) -> None:
        """Let the operator remove the ids of emptied replicas, which have new ones."""
        for gone in sorted(self.gone_ids):
            request = CleanBrokerData(
                cluster_name="DefaultCluster",
                broker_name=BROKER,
                broker_controller_ids_to_clean=str(gone),
            )
            ask = self.clients.operator.ask_controller(CONTROLLER_ADDRESS, request)
            code = await self.simulation.process(OPERATOR).start(ask)
            self.note(f"the operator removes the id {gone}: code {code}")

    async def _scrub(self) -> None:
        """Wait until each replica has checked its whole log once more, and mended what it found."""
        passes = {host: self._passes(host) for host in REPLICAS}
        deadline = self.now + SCRUB_S
        while self.now < deadline and any(self._passes(host) <= passes[host] for host in REPLICAS):
            await asyncio.sleep(0.2)

    def _passes(self, host: str) -> int:
        """How often the open broker of a host has checked its whole log."""
        broker = self.broker(host)
        scrubbing = None if broker is None else broker.parts.copying.scrubbing
        return 0 if scrubbing is None else scrubbing.numbers.passes

    def _all_succeeded(self) -> bool:
        """True once every client has got something done after the last fault."""
        successes = self.ledger.successes
        assert self.healed is not None
        return all(successes[client][-1:] > [self.healed] for client in CLIENTS)

    def is_settled(self) -> bool:
        """True once everything acknowledged is consumed, and all logs are the same."""
        return (
            not self.clients.sending
            and self.is_whole()
            and not any(self.ledger.missing(group, GROUPS[group]) for group in GROUPS)
            and len({self.end_of(host) for host in REPLICAS}) == 1
            and (not self.was_damaged or len({self._log(host) for host in REPLICAS}) == 1)
        )

    def _log(self, host: str) -> bytes:
        store = self.store(host)
        return b"" if store is None else log_of(store)

    async def verdict(self) -> list[str]:
        """Everything that is wrong in the end, as sentences. The master dies once more."""
        found = await self._read_facts()
        await self._until_nothing_moves()
        if found or self.master() is None:
            return [*found, *self._judged()]
        judged = self._judged() + await self._differing_tables()
        old = self.master()
        assert old is not None
        self.note(f"kill {old} for the last time")
        self.kept_down.add(old)
        self.simulation.end(old, power_cut=False)
        deadline = self.now + PROGRESS_S
        while self.master() in (None, old):
            if self.now > deadline:
                return [*judged, f"no master {PROGRESS_S:g} s after the last kill of the master"]
            await asyncio.sleep(0.1)
        facts = len(self.ledger.facts.reads)
        judged += await self._read_facts()
        del self.ledger.facts.reads[:facts]
        return judged + [f"after the last switch: {one}" for one in self.ledger.facts.violations()]

    async def _differing_tables(self) -> list[str]:
        """Facts that the replicas do not agree on. All of them have the same log."""
        deadline = self.now + 10
        while True:
            tables: dict[str, dict[str, object]] = {}
            for host in REPLICAS:
                ask = self.clients.operator.facts_of(f"{host}:{PORT}")
                try:
                    tables[host] = await self.simulation.process(OPERATOR).start(ask)
                except TurbopumpError as error:
                    tables[host] = {"the answer": error}
            found = []
            for key in self.ledger.facts.writes:
                values = {host: str(tables[host].get(key)) for host in REPLICAS}
                if len(set(values.values())) > 1:
                    found.append(f"tables differ in the end: {key} is {values}")
            if not found or self.now > deadline:
                return found
            await asyncio.sleep(0.5)

    async def _until_nothing_moves(self) -> None:
        """Wait until all logs are the same, for a while. Clients commit offsets now and then."""
        deadline = self.now + 10
        while self.now < deadline and len({self.end_of(host) for host in REPLICAS}) > 1:
            await asyncio.sleep(0.02)

    async def _read_facts(self) -> list[str]:
        """Let the operator read every fact at the master; return why that fails."""
        deadline = self.now + PROGRESS_S
        while True:
            try:
                master = self.master()
                if master is None:
                    return []
                if await self.master_of_route() == f"{master}:{PORT}":
                    await self.simulation.process(OPERATOR).start(self.clients.operator.read_all())
                    return []
                fault = f"the name server names another master than {master}"
            except TurbopumpError as error:
                fault = str(error)
            if self.now > deadline:
                return [f"the operator cannot read what there is in the end: {fault}"]
            await asyncio.sleep(0.5)

    def _judged(self) -> list[str]:
        master = self.master()
        if master is None:
            found = [f"no master {SETTLED_S:g} s after all faults had ended"]
            return [*found, *(str(one) for one in self._violations(REPLICAS[0]))]
        found = [str(one) for one in self._violations(master)]
        if not self.is_whole():
            found.append(f"in sync in the end are only {sorted(self.in_sync())}")
        found += [f"out of order: {one}" for one in self.clients.in_order.wrong]
        logs = {host: log_of(store) for host in REPLICAS if (store := self.store(host))}
        for host in REPLICAS:
            if logs.get(host) != logs[master]:
                end = "no log" if host not in logs else f"{_first_difference(logs, host, master)}"
                found.append(f"logs differ in the end: {host} from the master {master}: {end}")
        return found

    def _violations(self, master: str) -> list[Violation]:
        return self.ledger.violations(
            self.final_log(master),
            healed=self.healed,
            clients=CLIENTS,
            groups=GROUPS,
            ordered=[ORDERED_GROUP],
        )

    def final_log(self, host: str) -> dict[tuple[Queue, int], bytes]:
        """All messages that a replica has, by queue and offset."""
        store = self.store(host)
        return {} if store is None else dict(_messages(store))

    # --- what the world sees

    @property
    def now(self) -> float:
        return self.simulation.loop.time()

    def reached(self, moment: str, host: str) -> None:
        """Make the calls that wait for a moment: a ``send`` or ``change`` that the host answered, a
        ``master`` that it has become. The controller has ``elected`` it, or it has ``joined`` the
        set there: it does not know yet."""
        for call in self.moments.pop(moment, ()):
            self._outside.copy().run(call, host)

    def _decided(self, old: DecidedGroup | None, new: DecidedGroup | None) -> None:
        """The controller has made a decision durable, and sends its answer next."""
        if old is None or new is None:
            return
        hosts = {one.id: one.address.partition(":")[0] for one in new.replicas}
        if new.master is not None and new.master_epoch > old.master_epoch:
            self.reached("elected", hosts[new.master])
        for joined in sorted(set(new.electable) - set(old.electable)):
            self.reached("joined", hosts[joined])

    def restore_link(self, one: str, other: str) -> None:
        """Make a link as slow as it usually is."""
        link = self.simulation.network.link(one, other)
        usual = self._usual_links.get((one, other), self.simulation.network.default_link)
        link.latency_min, link.latency_max = usual.latency_min, usual.latency_max
        link.chunk_size_max = usual.chunk_size_max

    def _route_named(self, host: str | None) -> None:
        """The name server has named a host as the master, or none."""
        epochs = [one.epoch for one in self.masterships[host][-1:]] if host else []
        self.ledger.routes.named(
            self.now,
            life=self._name_server_lives,
            epoch=max(epochs, default=0),
            there=self._epoch_there(),
        )

    def _epoch_there(self) -> int:
        """The epoch of the newest master, if it and the name server hear each other; else 0."""
        master = self.master()
        if master is None or self.simulation.process(master).paused:
            return 0
        network = self.simulation.network
        if network.link(master, NAMESRV).cut or network.link(NAMESRV, master).cut:
            return 0
        role = self.replicas[master].role
        return 0 if role is None else role.master_epoch

    def note(self, event: str) -> None:
        self.events.append(f"{self.now:9.3f} {event}")

    def story(self) -> str:
        """What happened, one event a line."""
        roles = [f"{host}: {self.role_text(host)}" for host in REPLICAS]
        return "\n".join([f"shape: {self.shape}", *self.events, *roles])

    def role_text(self, host: str) -> str:
        replica, store = self.running(host), self.store(host)
        role = replica.role if replica is not None else None
        ends = "" if store is None else f" log {store.log.start}..{store.log.end}"
        return f"{role}{ends}"

    def running(self, host: str) -> Replica | None:
        """The replica of a host, if its process lives."""
        replica = self.replicas.get(host)
        return replica if replica is not None and self.simulation.process(host).alive else None

    def broker(self, host: str) -> Broker | None:
        replica = self.running(host)
        return None if replica is None else replica.broker

    def store(self, host: str) -> MessageStore | None:
        broker = self.broker(host)
        return None if broker is None else broker.store

    def end_of(self, host: str) -> int:
        store = self.store(host)
        return -1 if store is None else store.log.end

    def masters(self) -> list[str]:
        """Hosts that take themselves for the master, the highest epoch first."""
        found = [
            (replica.role.master_epoch, host)
            for host in REPLICAS
            if (replica := self.running(host)) is not None
            and replica.role is not None
            and replica.role.is_master
            and replica.broker is not None
        ]
        return [host for _, host in sorted(found, reverse=True)]

    def master(self) -> str | None:
        return next(iter(self.masters()), None)

    def in_sync(self) -> frozenset[int]:
        """The sync state set, as the master knows it."""
        master = self.master()
        if master is None:
            return frozenset()
        role = self.replicas[master].role
        return frozenset() if role is None else role.sync_state_set

    async def master_of_route(self) -> str | None:
        """The master's address, as the name server tells the operator."""
        ask = self.clients.operator.master_of_route()
        return await self.simulation.process(OPERATOR).start(ask)

    def is_whole(self) -> bool:
        """True if there is a master and all replicas are in sync."""
        return len(self.in_sync()) == len(REPLICAS)

    def master_at(self, host: str, begun: float, ended: float) -> int:
        """The last epoch of which a host was master at some moment between two; 0 if it was of
        none."""
        found = 0
        for one in self.masterships[host]:
            if one.at <= ended:
                found = one.epoch
        return found

    async def _watch_roles(self) -> None:
        """Write down who takes itself for the master, and which damage is mended."""
        last: dict[str, str] = {}
        while True:
            for host in REPLICAS:
                replica = self.running(host)
                role = None if replica is None else replica.role
                seen = self._seen(role)
                if seen == last.get(host):
                    continue
                last[host] = seen
                if role is not None:
                    self._ids[host] = {role.id}
                self.note(f"{host} {seen}")
                if role is not None and role.is_master:
                    known = self.masterships[host][-1:]
                    self.masterships[host].append(Mastership(self.now, role.master_epoch))
                    if not known or known[0].epoch != role.master_epoch:
                        self.counts["elections"] += 1
                        self.reached("master", host)
            for host in list(self.damaged):
                if self.is_mended(host):
                    self.damaged.discard(host)
                    self.note(f"{host} is whole again")
            await asyncio.sleep(0.02)

    @staticmethod
    def _seen(role: object) -> str:
        if role is None:
            return "has no role"
        return f"{role.part.value} of epoch {role.master_epoch} set {sorted(role.sync_state_set)}"  # type: ignore[attr-defined]

    def is_mended(self, host: str) -> bool:
        """True once a damaged replica has its master's log again, durably."""
        master = self.master()
        own = self.store(host)
        if master is None or own is None:
            return False
        role = self.replicas[host].role
        if role is None or role.id not in self.in_sync():
            return False
        of_master = self.store(master)
        assert of_master is not None
        if own.durable.value < own.log.end or own.log.end != of_master.log.end:
            return False
        return host == master or log_of(own) == log_of(of_master)

    # --- keeping programs

    def keep(self, host: str, program: Callable[[str], Awaitable[None]]) -> None:
        """Run the program on this host, again and again."""
        self._kept[host] = asyncio.create_task(self._supervise(host, program), name=f"keep {host}")

    def check_alive(self) -> None:
        """Raise what ended a program that nobody killed."""
        for task in self._kept.values():
            if task.done():
                task.result()

    def stop_cleanly(self, host: str) -> None:
        """Tell a replica to close, as SIGTERM does."""
        if host in self._stops:
            self._stops[host].set()

    async def _supervise(self, host: str, program: Callable[[str], Awaitable[None]]) -> None:
        while True:
            process = self.simulation.boot(host)
            try:
                await process.start(program(host))  # type: ignore[arg-type]
                self.note(f"{host} has closed")
                self.simulation.end(host, power_cut=False)
            except ProcessKilled:
                pass
            except (TurbopumpError, OSError) as error:
                self.note(f"{host} ends: {error}")
                self._refused(host, error)
            self.ledger.messages.disturbance()
            rest_s = 0.3 if host in self.hurried else self.rest_s
            self.hurried.discard(host)
            await asyncio.sleep(self.simulation.random.uniform(0.1, rest_s))
            while host in self.kept_down:
                await asyncio.sleep(0.05)

    def _refused(self, host: str, error: Exception) -> None:
        """A program ended with an error. A client finds nobody at its start; a replica whose files
        are damaged is emptied, as its operator would."""
        self.simulation.end(host, power_cut=False)
        if host in CLIENTS:
            return
        if host not in self.damaged:
            raise AssertionError(f"{host} ended with {error!r}\n{self.story()}") from error
        self.counts["emptied"] += 1
        self.gone_ids |= self._ids.pop(host, set())
        self.note(f"{host} is emptied")
        disk = self.simulation.disk(host)
        for path in list(disk.files):
            disk.replace(path, None)

    def source(self, host: str) -> random.Random:
        """A random source for one life of the program on a host: from now on."""
        return self.simulation.source(f"{host} from {self.now}")

    async def _name_server(self, host: str) -> None:
        self._name_server_lives += 1
        config = NamesrvConfig(bind_address=host)
        await NameServer(config, clock=self.simulation.clock(host)).start()
        await asyncio.Event().wait()

    async def _controller(self, host: str) -> None:
        config = ControllerConfig(bind_address=host, listen_port=9878)
        disk = self.simulation.disk(host).mount()
        directory = Path(config.controller_store_path).expanduser()
        self.controller = Controller(
            config,
            clock=self.simulation.clock(host),
            decisions=WatchedDecisions(disk, directory, self._decided),
        )
        await self.controller.start()
        await asyncio.Event().wait()

    async def _replica(self, host: str) -> None:
        replica = Replica(
            replica_config(host, self.shape),
            clock=self.simulation.clock(host),
            open_disk=self.simulation.disk(host).mount,
            source=self.source(host),
        )
        self.replicas[host] = replica
        stop = self._stops[host] = asyncio.Event()
        await replica.start()
        await stop.wait()
        await replica.close()


@contextmanager
def scrubbing_often() -> Iterator[None]:
    """Within the block, replicas check their logs each few seconds instead of once a day."""
    with (
        patch.object(scrub, "FIRST_REST_S", SCRUB_FIRST_S),
        patch.object(scrub, "REST_S", SCRUB_AGAIN_S),
    ):
        yield


def replica_config(host: str, shape: Shape) -> BrokerConfig:
    """Small files, so that a minute of messages fills several."""
    return BrokerConfig(
        broker_name=BROKER,
        bind_address=host,
        listen_port=10911,
        namesrv_addr=NAMESRV_ADDRESS,
        enable_controller_mode=True,
        controller_addr=CONTROLLER_ADDRESS,
        store_path_root_dir=str(STORE),
        flush_disk_type=shape.flush,
        broker_heartbeat_interval=int(shape.heartbeat_s * 1000),
        controller_heart_beat_timeout_mills=int(shape.dead_s * 1000),
        register_name_server_period=10_000,
        max_message_size=4096,
        mapped_file_size_commit_log=64 * 1024,
        mapped_file_size_consume_queue=20 * 100,
        max_hash_slot_num=50,
        max_index_num=200,
        default_topic_queue_nums=2,
        authentication_enabled=True,
        authentication_whitelist=EVERY_CODE,
        init_authentication_user=json.dumps({"username": SUPER_USER, "password": PASSWORD}),
        inner_client_authentication_credentials=json.dumps(
            {"accessKey": SUPER_USER, "secretKey": PASSWORD}
        ),
    )


def _messages(store: MessageStore) -> Iterator[tuple[tuple[Queue, int], bytes]]:
    """Messages of the topics of our producers."""
    for topic in Clients.TOPICS:
        for queue_id in range(Clients.QUEUES):
            offset = store.min_offset(topic, queue_id)
            while offset < store.max_offset(topic, queue_id):
                result = store.get(topic, queue_id, offset, 32)
                for message in decode_entries(result.data):
                    yield (Queue(topic, BROKER, queue_id), message.queue_offset), message.body
                if result.next_offset <= offset:
                    break
                offset = result.next_offset


def _first_difference(logs: dict[str, bytes], host: str, master: str) -> str:
    own, wanted = logs[host], logs[master]
    at = next(
        (n for n, (one, other) in enumerate(zip(own, wanted, strict=False)) if one != other),
        min(len(own), len(wanted)),
    )
    return f"{len(own)} bytes against {len(wanted)}, the same up to {at}"
