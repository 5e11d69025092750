"""Transactions through kills, power cuts and lost connections: what is committed comes at least
once, what is rolled back never, and nobody sees a half message.
"""

import asyncio
from collections import Counter
from pathlib import Path

from tests.simulation.figures import Figures
from tests.simulation.kept_programs import KeptPrograms
from tests.simulation.world.simulation import Simulation, simulate
from tests.unit.store.looked_up import message_in_queue

from turbopump.broker.broker import Broker
from turbopump.client.sending.send_result import SendStatus
from turbopump.client.transaction_producer import TransactionProducer, TransactionState
from turbopump.config.broker_config import BrokerConfig, FlushDiskType
from turbopump.errors import TurbopumpError
from turbopump.message.message import Message, ReceivedMessage

MINUTES = 3.0
"""How long the mischief of one seed lasts, in virtual time; what lies before a restart does not
matter for long."""
PEACE_MINUTES = 1.0

NAMESRV, BROKER = "10.0.0.1", "10.0.0.2"
PRODUCERS = ("10.0.1.1", "10.0.1.2")
TOPIC = "orders"
COMMIT, ROLLBACK, UNKNOWN = (
    TransactionState.COMMIT,
    TransactionState.ROLLBACK,
    TransactionState.UNKNOWN,
)


class World(KeptPrograms):
    """The data base of the producers (``decided``), what they know to be stored (``acknowledged``),
    whose commit they may have sent (``commit_told``), and what a consumer has read."""

    def __init__(self, simulation: Simulation, *, peace: bool = False) -> None:
        super().__init__(simulation, rest_s=20)
        self.peace = peace
        self.decided: dict[int, TransactionState] = {}
        self.acknowledged: set[int] = set()
        self.commit_told: set[int] = set()
        self.delivered: Counter[int] = Counter()
        self.too_early: list[int] = []
        self.questions = 0
        self.failures = 0
        self.producing = True
        self.broker: Broker | None = None
        self._numbers = 0
        self._read: dict[int, int] = {}
        self._stop: asyncio.Event | None = None

    def start(self) -> None:
        self.keep(NAMESRV, self.name_server)
        self.keep(BROKER, self._broker)
        for host in PRODUCERS:
            self.keep(host, self._producer)
        self._tasks.append(asyncio.create_task(self._consume()))

    async def make_mischief(self, seconds: float) -> None:
        loop, rng = self.simulation.loop, self.simulation.random
        end = loop.time() + seconds
        while loop.time() < end:
            await asyncio.sleep(rng.uniform(5, 60))
            self.check_alive()
            self.failures += 1
            deed = rng.random()
            if deed < 0.2:
                self.simulation.end(BROKER, power_cut=False)
            elif deed < 0.5:
                self.simulation.end(BROKER, power_cut=True)
            elif deed < 0.6:
                if self._stop is not None:
                    self._stop.set()
            elif deed < 0.8:
                self.simulation.end(rng.choice(PRODUCERS), power_cut=False)
            else:
                self.simulation.network.reset(BROKER, rng.choice(PRODUCERS))

    async def drain(self, seconds: float = 1800) -> None:
        """Until everything that was committed has come."""
        self.producing = False
        deadline = self.simulation.loop.time() + seconds
        while self.simulation.loop.time() < deadline and self.missing:
            await asyncio.sleep(10)
        await asyncio.sleep(100)
        self.check_alive()

    @property
    def missing(self) -> list[int]:
        return [
            number
            for number in sorted(self.acknowledged)
            if self.decided.get(number) is COMMIT and not self.delivered[number]
        ]

    # --- programs
    # ----------------------------------------------------------------------------------------------

    async def _broker(self, host: str) -> None:
        self.broker = None
        config = BrokerConfig(
            broker_name="broker-a",
            bind_address=host,
            namesrv_addr=f"{NAMESRV}:9876",
            store_path_root_dir=str(Path("/store")),
            flush_disk_type=FlushDiskType.SYNC_FLUSH,
            max_message_size=4096,
            mapped_file_size_commit_log=64 * 1024,
            mapped_file_size_consume_queue=20 * 100,
            max_hash_slot_num=50,
            max_index_num=200,
            default_topic_queue_nums=2,
            transaction_check_max=1000,
            transaction_check_interval=10_000,
        )
        broker = Broker(
            config,
            clock=self.simulation.clock(host),
            disk=self.simulation.disk(host).mount(),
            source=self.source(host),
        )
        await broker.start()
        self.broker = broker
        stop = self._stop = asyncio.Event()
        await stop.wait()
        self.broker = None
        await broker.close()

    async def _producer(self, host: str) -> None:
        rng = self.source(host)

        def tell(number: int, state: TransactionState) -> TransactionState:
            if state is COMMIT:
                self.commit_told.add(number)
            return state

        async def execute(_message: Message, number: object) -> TransactionState:
            assert isinstance(number, int)
            self.decided[number] = COMMIT if rng.random() < 0.6 else ROLLBACK
            await asyncio.sleep(rng.choice((0, 0, 0, 0.1, 12)))
            if rng.random() < 0.1:
                raise OSError("the data base is away")
            return UNKNOWN if rng.random() < 0.3 else tell(number, self.decided[number])

        async def check(message: ReceivedMessage) -> TransactionState:
            self.questions += 1
            if rng.random() < 0.2:
                return UNKNOWN
            number = int(message.body)
            return tell(
                number, self.decided.get(number, ROLLBACK if rng.random() < 0.5 else UNKNOWN)
            )

        producer = TransactionProducer(
            f"{NAMESRV}:9876",
            group="sellers",
            checker=check,
            executor=execute,
            clock=self.simulation.clock(host),
            random=rng,
            local_ip=host,
            retries=0 if self.peace else 2,
        )
        await producer.start()
        sending: set[asyncio.Task[None]] = set()
        while True:
            await asyncio.sleep(rng.uniform(0, 2))
            if self.producing:
                task = asyncio.create_task(self._send(producer))
                sending.add(task)
                task.add_done_callback(sending.discard)

    async def _send(self, producer: TransactionProducer) -> None:
        self._numbers += 1
        number = self._numbers
        try:
            result = await producer.send_in_transaction(Message(TOPIC, str(number)), number)
        except TurbopumpError:
            return
        if result.sent.status is SendStatus.OK:
            self.acknowledged.add(number)

    async def _consume(self) -> None:
        """Look at what is visible, as a consumer of the topic sees it, a few times a second."""
        while True:
            await asyncio.sleep(0.3)
            broker = self.broker
            if broker is None or not self.simulation.process(BROKER).alive:
                continue
            for queue_id in range(2):
                queue = broker.store.queues.find(TOPIC, queue_id)
                if queue is None:
                    continue
                while (index := self._read.get(queue_id, 0)) < queue.end.value:
                    message = message_in_queue(broker.store.lookup, TOPIC, queue_id, index)
                    assert message is not None
                    number = int(message.body)
                    if number not in self.commit_told or self.decided.get(number) is not COMMIT:
                        self.too_early.append(number)
                    self.delivered[number] += 1
                    self._read[queue_id] = index + 1


async def peace(simulation: Simulation) -> World:
    world = World(simulation, peace=True)
    world.start()
    await asyncio.sleep(60 * PEACE_MINUTES)
    await world.drain()
    await world.end()
    return world


async def war(simulation: Simulation) -> World:
    world = World(simulation)
    world.start()
    await asyncio.sleep(20)
    await world.make_mischief(60 * MINUTES)
    await world.drain()
    await world.end()
    return world


def tell(world: World, figures: Figures) -> None:
    ends = Counter(world.decided.values())
    figures.count(
        transactions=len(world.decided),
        committed=ends[COMMIT],
        rolled_back=ends[ROLLBACK],
        questions=world.questions,
    )
    figures.count(failures=world.failures, committed_and_lost=0, rolled_back_or_half_and_seen=0)
    figures.count(came_twice=world.delivered.total() - len(world.delivered))


def test_without_faults_each_committed_message_comes_once_and_no_other(
    seed: int, figures: Figures
) -> None:
    world = simulate(seed, peace)
    committed = {number for number, state in world.decided.items() if state is COMMIT}
    assert world.delivered == dict.fromkeys(committed, 1)
    assert world.too_early == []
    assert len(committed) > 30
    assert world.questions > 20
    tell(world, figures)


def test_through_kills_and_power_cuts_only_committed_transactions_are_delivered(
    seed: int, figures: Figures
) -> None:
    world = simulate(seed, war)
    assert world.missing == []
    assert world.too_early == []
    assert len([number for number in world.acknowledged if world.delivered[number]]) > 20
    assert world.questions > 20
    tell(world, figures)
