"""Questions about transactions when the broker is killed again and again: each transaction stays
one, whatever copies of its half message the next run finds.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.loops import in_loop
from tests.stand_ins import returns
from tests.unit.broker.transacting import GIVEN_UP, HALF, Transactor, World, in_a_world
from tests.unit.store.looked_up import message_in_queue

from turbopump.broker.transactions.half_messages import read_half
from turbopump.broker.transactions.pending_halves import GIVEN_UP_KEPT, PendingHalves
from turbopump.message.message import ReceivedMessage
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import ResumeCheckHalfMessage, TransactionOutcome

PATIENT = {
    "transaction_time_out": 6000,
    "transaction_check_interval": 30_000,
    "transaction_check_max": 1000,
}
HASTY = {**PATIENT, "transaction_check_max": 3}
ORDERS = [b"%d" % number for number in range(10)]


async def transactor(world: World, client_id: str = "seller-1") -> Transactor:
    one = world.transactor()
    await one.announce(client_id)
    return one


async def until_asked(one: Transactor, questions: int = 1) -> None:
    async with asyncio.timeout(200):
        while len(one.asked) < questions:
            await asyncio.sleep(0.01)


async def a_round(one: Transactor) -> Counter[bytes]:
    """How often each message is asked about in the next round."""
    before = len(one.asked)
    await until_asked(one, before + 1)
    await asyncio.sleep(1)
    return Counter(asked.message.body for asked in one.asked[before:])


async def killed(world: World, number: int, *, power_cut: bool = False) -> Transactor:
    """Another producer of the group, on a broker that was killed and started again."""
    world.kill(power_cut=power_cut)
    await world.start()
    return await transactor(world, client_id=f"seller-{number}")


def letters(world: World) -> list[bytes]:
    found = [
        message_in_queue(world.broker.store.lookup, GIVEN_UP, 0, index)
        for index in range(world.broker.store.max_offset(GIVEN_UP, 0))
    ]
    return sorted(message.body for message in found if message is not None)


async def half_message(world: World, index: int) -> ReceivedMessage:
    message = message_in_queue(world.broker.store.lookup, HALF, 0, index)
    assert message is not None
    return message


@pytest.mark.parametrize("power_cut", [False, True])
@in_loop(in_a_world, **PATIENT)
async def test_kills_after_each_round_do_not_multiply_the_questions(
    world: World, /, power_cut: bool
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    for order in ORDERS:
        await one.prepare(order)
    await asyncio.sleep(20)
    for kill in range(2, 8):
        assert await a_round(one) == Counter(ORDERS)
        one = await killed(world, kill, power_cut=power_cut)
    for _ in range(2):
        assert await a_round(one) == Counter(ORDERS)
    if not power_cut:
        assert {asked.message.properties["TRANSACTION_CHECK_TIMES"] for asked in one.asked} == {
            "7",
            "8",
        }
    one.answer = returns(TransactionOutcome.COMMIT)
    await asyncio.sleep(100)
    assert sorted(await one.client.all_bodies("T")) == ORDERS
    assert world.offset(HALF) == world.broker.store.max_offset(HALF, 0)


@pytest.mark.parametrize("questions", [1, 4, 9])
@in_loop(in_a_world, **PATIENT)
async def test_a_kill_in_the_middle_of_a_round_leaves_one_half_message_of_each(
    world: World, /, questions: int
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    for order in ORDERS:
        await one.prepare(order)
    for kill in range(2, 6):
        died = asyncio.Event()

        def answer(
            _message: ReceivedMessage, one: Transactor = one, died: asyncio.Event = died
        ) -> None:
            if len(one.asked) == questions:
                world.kill()
                died.set()

        one.answer = answer
        await died.wait()
        await world.start()
        one = await transactor(world, client_id=f"seller-{kill}")
    for _ in range(3):
        assert await a_round(one) == Counter(ORDERS)


@in_loop(in_a_world, **HASTY)
async def test_kills_do_not_multiply_the_letters_about_what_is_given_up(world: World, /) -> None:
    one = await transactor(world)
    await one.client.create("T")
    halves = [await one.prepare(order) for order in ORDERS]
    for kill in range(2, 5):
        assert await a_round(one) == Counter(ORDERS)
        one = await killed(world, kill)
    for kill in range(5, 8):
        async with asyncio.timeout(200):
            while len(letters(world)) < len(ORDERS):
                await asyncio.sleep(0.01)
        one = await killed(world, kill)
    await asyncio.sleep(200)
    assert letters(world) == ORDERS
    assert one.asked == []
    assert world.offset(HALF) == world.broker.store.max_offset(HALF, 0)
    assert (await one.end(halves[3], TransactionOutcome.COMMIT)).code == ResponseCode.SUCCESS
    assert await one.client.all_bodies("T") == [ORDERS[3]], (
        "what was given up can still be committed"
    )


@in_loop(in_a_world, **HASTY)
async def test_a_resumed_half_message_is_checked_after_a_kill_and_gets_another_letter(
    world: World, /
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    await one.prepare(b"order")
    async with asyncio.timeout(500):
        while not letters(world):
            await asyncio.sleep(0.01)
    letter = message_in_queue(world.broker.store.lookup, GIVEN_UP, 0, 0)
    assert letter is not None
    request = ResumeCheckHalfMessage(topic=GIVEN_UP, msg_id=letter.offset_msg_id)
    assert (await one.client.ask(request)).code == ResponseCode.SUCCESS
    one = await killed(world, 2)
    await asyncio.sleep(300)
    assert len(one.asked) == 3
    assert letters(world) == [b"order", b"order"]


@in_loop(in_a_world, **PATIENT)
async def test_copies_that_an_older_broker_has_doubled_come_down_to_one(world: World, /) -> None:
    one = await transactor(world)
    await one.client.create("T")
    for order in ORDERS[:3]:
        await one.prepare(order)
    for checks in (1, 1, 2, 1, 2, 2, 3):
        for index in range(3):
            message = await half_message(world, index)
            copied = (
                f"{message.properties_text}TRAN_PREPARED_QUEUE_OFFSET\x01{index}\x02"
                f"TRANSACTION_CHECK_TIMES\x01{checks}\x02"
            )
            await world.broker.parts.delivering.forwarding.forward(
                message, HALF, 0, properties=copied
            )
    one = await killed(world, 2)
    for checks in (4, 5):
        assert await a_round(one) == Counter(ORDERS[:3])
        assert one.asked[-1].message.properties["TRANSACTION_CHECK_TIMES"] == str(checks)
    one.answer = returns(TransactionOutcome.COMMIT)
    await asyncio.sleep(100)
    assert sorted(await one.client.all_bodies("T")) == ORDERS[:3]


@in_loop(in_a_world, **PATIENT)
async def test_transactions_that_share_their_uniq_key_stay_several_through_kills(
    world: World, /
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    for _ in range(3):
        await one.prepare(b"same", UNIQ_KEY="a b#ö")
    for kill in range(2, 5):
        assert await a_round(one) == {b"same": 3}
        one = await killed(world, kill)
    one.answer = returns(TransactionOutcome.COMMIT)
    await asyncio.sleep(100)
    assert await one.client.all_bodies("T") == [b"same"] * 3


@in_loop(in_a_world, **PATIENT)
async def test_a_half_message_is_not_passed_over_for_one_that_only_names_its_offset(
    world: World, /
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    await one.prepare(b"mine")
    message = await half_message(world, 0)
    other = message.properties_text.replace(message.properties["UNIQ_KEY"], "OTHER")
    await world.broker.parts.delivering.forwarding.forward(
        message, HALF, 0, properties=f"{other}TRAN_PREPARED_QUEUE_OFFSET\x010\x02"
    )
    one = await killed(world, 2)
    assert await a_round(one) == {b"mine": 2}
    assert {asked.message.properties["UNIQ_KEY"] for asked in one.asked} == {
        "OTHER",
        message.properties["UNIQ_KEY"],
    }


def unreadable_copies(message: ReceivedMessage) -> object:
    return None if message.queue_offset == 1 else read_half(message)


@in_loop(in_a_world, **PATIENT)
async def test_a_half_message_is_asked_about_while_its_newer_copy_cannot_be_read(
    world: World, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    await one.prepare(b"order")
    await a_round(one)
    one = await killed(world, 2)
    await asyncio.sleep(10)
    with monkeypatch.context() as patch:
        patch.setattr("turbopump.broker.transactions.half_messages.read_half", unreadable_copies)
        await until_asked(one)
    assert one.asked[0].message.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    await asyncio.sleep(1)
    assert await a_round(one) == {b"order": 1}


def test_of_the_given_up_a_bounded_number_is_remembered() -> None:
    table = PendingHalves()
    taken = sum(
        table.note_given_up(letter=2 * number, origin=number) for number in range(GIVEN_UP_KEPT)
    )
    assert taken == GIVEN_UP_KEPT - 1
    table.note_given_up(letter=7, origin=1)
    assert table.given_up[1] == 2, "the newest comes first"
