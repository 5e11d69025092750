"""The history checker on histories of a broker that does nothing wrong, in any interleaving: it
accepts them; and on the same with one thing changed: it does not."""

import random
from dataclasses import replace

import pytest
from tests.simulation.world.ledger import Ledger, LedgerDelivery, Queue, Rule, Send

QUEUES = [Queue("orders", "broker-a", number) for number in range(2)]
GROUPS = ("accounting", "shipping")
IN_FLIGHT_MAX = 4
SEEDS = range(25)


class PerfectBroker:
    """Queues that keep all they are given; producers that send one message after the other;
    consumers that crash and come back."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ledger = Ledger(in_flight_max=IN_FLIGHT_MAX)
        self.stored: dict[Queue, list[bytes]] = {queue: [] for queue in QUEUES}
        self.sending: dict[str, tuple[Send, Queue, int | None]] = {}
        self.place = {(group, queue): 0 for group in GROUPS for queue in QUEUES}
        self.committed = dict(self.place)
        self.life = dict.fromkeys(GROUPS, 0)
        self.now = 0.0

    def run(self, steps: int = 150) -> Ledger:
        actions = [
            self.send,
            self.send,
            self.store,
            self.store,
            self.answer,
            self.answer,
            self.give,
            self.give,
            self.commit,
        ]
        for _ in range(steps):
            self.now += 1
            action = self.crash if self.rng.random() < 0.02 else self.rng.choice(actions)
            action()
        while self.sending:
            self.now += 1
            self.store()
            self.answer()
        while any(
            self.place[group, queue] < len(self.stored[queue])
            for group in GROUPS
            for queue in QUEUES
        ):
            self.give()
            self.commit()
        return self.ledger

    def send(self) -> None:
        name = f"producer-{self.rng.randrange(3)}"
        if name not in self.sending:
            body = b"%d by %s" % (len(self.ledger.sends), name.encode())
            self.sending[name] = (
                self.ledger.send(name, "orders", body, self.now),
                self.rng.choice(QUEUES),
                None,
            )

    def store(self) -> None:
        for name, (send, queue, offset) in self.sending.items():
            if offset is None and self.rng.random() < 0.5:
                self.stored[queue].append(send.body)
                self.sending[name] = send, queue, len(self.stored[queue]) - 1
                return

    def answer(self) -> None:
        for name, (send, queue, offset) in self.sending.items():
            luck = self.rng.random()
            if luck < 0.4:
                continue
            if luck < 0.5:
                send.maybe(self.now)
            elif offset is not None:
                send.acknowledged(queue, offset, self.now)
            elif luck < 0.6:
                send.refused(self.now)
            else:
                continue
            del self.sending[name]
            return

    def give(self) -> None:
        group, queue = self.rng.choice(GROUPS), self.rng.choice(QUEUES)
        offset = self.place[group, queue]
        if (
            offset < len(self.stored[queue])
            and offset - self.committed[group, queue] < IN_FLIGHT_MAX
        ):
            body = self.stored[queue][offset]
            self.ledger.delivered(group, f"{group}-1", queue, offset, body, self.life[group])
            self.place[group, queue] = offset + 1

    def commit(self) -> None:
        key = self.rng.choice(GROUPS), self.rng.choice(QUEUES)
        self.committed[key] = self.place[key]
        self.ledger.committed(*key, self.place[key])

    def crash(self) -> None:
        group = self.rng.choice(GROUPS)
        self.ledger.disturbance()
        self.life[group] += 1
        for queue in QUEUES:
            self.place[group, queue] = self.committed[group, queue]


def broken_rules(ledger: Ledger) -> set[Rule]:
    return {violation.rule for violation in ledger.violations(ordered=GROUPS)}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_that_does_nothing_wrong_is_never_accused(seed: int) -> None:
    ledger = PerfectBroker(seed).run()
    assert ledger.violations(ordered=GROUPS) == []
    assert len(ledger.acknowledged) > 5


def deliveries(ledger: Ledger) -> list[tuple[int, LedgerDelivery]]:
    return [
        (number, event)
        for number, event in enumerate(ledger.consumed)
        if isinstance(event, LedgerDelivery)
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_message_that_one_group_never_got_is_missed(seed: int) -> None:
    broker = PerfectBroker(seed)
    ledger = broker.run()
    victim = broker.rng.choice(ledger.acknowledged)
    gone = {
        number
        for number, event in deliveries(ledger)
        if event.body == victim.body and event.group == GROUPS[0]
    }
    ledger.consumed = [event for number, event in enumerate(ledger.consumed) if number not in gone]
    assert Rule.LOST in broken_rules(ledger)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_body_that_was_changed_on_its_way_is_noticed(seed: int) -> None:
    broker = PerfectBroker(seed)
    ledger = broker.run()
    number, event = broker.rng.choice(deliveries(ledger))
    ledger.consumed[number] = replace(event, body=event.body[:-1] + b"\xff")
    assert {Rule.PHANTOM, Rule.TWO_AT_ONE_OFFSET} & broken_rules(ledger)
    assert Rule.PHANTOM in broken_rules(ledger)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_place_that_got_another_body_after_a_restart_is_noticed(seed: int) -> None:
    """As if a message that had been read was lost, and its offset given to a later one."""
    broker = PerfectBroker(seed)
    ledger = broker.run()
    _, event = broker.rng.choice(deliveries(ledger))
    ledger.send("late", "orders", b"usurper", broker.now).acknowledged(
        event.queue, event.offset, broker.now + 1
    )
    assert Rule.TWO_AT_ONE_OFFSET in broken_rules(ledger)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_that_is_given_what_it_has_done_with_is_noticed(seed: int) -> None:
    broker = PerfectBroker(seed)
    ledger = broker.run()
    _, event = broker.rng.choice(deliveries(ledger))
    ledger.committed(event.group, event.queue, len(broker.stored[event.queue]))
    ledger.delivered(event.group, event.consumer, event.queue, event.offset, event.body, life=99)
    assert Rule.REGRESS in broken_rules(ledger)
