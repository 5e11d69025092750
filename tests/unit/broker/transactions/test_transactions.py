"""Transactions on a broker: half messages that nobody sees, their ends, and the questions about
those that do not end."""

from __future__ import annotations

import asyncio

import pytest
from tests.loops import in_loop
from tests.stand_ins import returns
from tests.unit.broker.transacting import BROKER, GIVEN_UP, HALF, OP, Transactor, World, in_a_world
from tests.unit.store.looked_up import find_by_key, message_at, message_in_queue

from turbopump.broker.transactions.checks import TransactionChecks
from turbopump.broker.transactions.half_messages import HalfMessage
from turbopump.config.broker_config import FlushDiskType
from turbopump.message.compression import compress
from turbopump.message.ids import decode_offset_msg_id
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import ZLIB, SysFlag
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.send import (
    ResumeCheckHalfMessage,
    SendMessageV2,
    TransactionOutcome,
)
from turbopump.remoting.wire import Wire
from turbopump.store.disk_space import SpaceWatch

QUICK = {
    "transaction_time_out": 6000,
    "transaction_check_interval": 30_000,
    "transaction_check_max": 3,
}


async def transactor(
    world: World, group: str = "sellers", client_id: str = "seller-1"
) -> Transactor:
    one = world.transactor(group)
    await one.announce(client_id)
    return one


async def committed(one: Transactor, topic: str = "T") -> list[bytes]:
    return await one.client.all_bodies(topic)


async def only_message(world: World, topic: str) -> ReceivedMessage:
    assert world.broker.store.max_offset(topic, 0) == 1
    message = message_in_queue(world.broker.store.lookup, topic, 0, 0)
    assert message is not None
    return message


# --- ending
# -----------------------------------------------------------------------------------------------


@in_loop(in_a_world)
async def test_a_half_message_is_seen_by_nobody_until_it_is_committed(world: World, /) -> None:
    one = await transactor(world)
    await one.client.create("T")
    half = await one.prepare(b"order 1")
    assert (half.queue_id, half.queue_offset, half.transaction_id) == (0, 0, "U" + b"order 1".hex())
    await asyncio.sleep(1)
    assert await committed(one) == []
    assert (await one.end(half, TransactionOutcome.COMMIT)).code == ResponseCode.SUCCESS
    assert await committed(one) == [b"order 1"]


@in_loop(in_a_world)
async def test_a_committed_message_is_stored_as_apache_stores_it(world: World, /) -> None:
    one = await transactor(world)
    await one.client.create("T", queues=4)
    body, flag = compress(b"much " * 2000, ZLIB, 5)
    half = await one.prepare(
        body, sys_flag=flag | SysFlag.TRANSACTION_PREPARED, KEYS="k1 k2", TAGS="paid", mine="yes"
    )
    at = decode_offset_msg_id(half.msg_id)[2]
    stored = message_at(world.broker.store.lookup, at)
    assert stored is not None
    assert (stored.topic, stored.queue_id, stored.sys_flag) == (HALF, 0, flag)
    assert stored.properties["REAL_TOPIC"] == "T"
    assert stored.properties["REAL_QID"] == "0"
    assert stored.properties["__transactionId__"] == stored.msg_id
    await one.end(half, TransactionOutcome.COMMIT)
    message = await only_message(world, "T")
    assert message.sys_flag == flag | SysFlag.TRANSACTION_COMMIT
    assert message.prepared_transaction_offset == at
    assert message.properties == stored.properties
    assert (message.body, message.tags, message.keys) == (b"much " * 2000, "paid", ["k1", "k2"])
    assert (message.born_host, message.born_timestamp) == (stored.born_host, stored.born_timestamp)
    found = find_by_key(world.broker.store.lookup, "T", "k2", 0, 1 << 50)
    assert [entry.message.queue_offset for entry in found] == [0]


@in_loop(in_a_world, **QUICK)
async def test_what_is_rolled_back_never_comes_and_is_not_asked_about(world: World, /) -> None:
    one = await transactor(world)
    await one.client.create("T")
    half = await one.prepare()
    assert (await one.end(half, TransactionOutcome.ROLLBACK)).code == ResponseCode.SUCCESS
    await asyncio.sleep(600)
    assert await committed(one) == []
    assert one.asked == []


@in_loop(in_a_world)
async def test_ended_transactions_go_to_the_op_queue_in_apaches_format(world: World, /) -> None:
    one = await transactor(world)
    await one.client.create("T")
    halves = [await one.prepare(b"%d" % number) for number in range(4)]
    for number in (2, 0, 1):
        await one.end(
            halves[number], TransactionOutcome.COMMIT if number else TransactionOutcome.ROLLBACK
        )
    await asyncio.sleep(2)
    assert world.broker.store.max_offset(OP, 0) == 0, "some together, three seconds after the first"
    await asyncio.sleep(2)
    mark = await only_message(world, OP)
    assert (mark.body, mark.tags) == (b"2,0,1,", "d")
    await asyncio.sleep(2)
    assert (world.offset(HALF), world.offset(OP)) == (3, 1)


@in_loop(in_a_world, transaction_op_msg_max_size=50)
async def test_many_ends_do_not_wait_to_be_written_down(world: World, /) -> None:
    one = await transactor(world)
    await one.client.create("T")
    for number in range(40):
        await one.end(await one.prepare(b"%d" % number), TransactionOutcome.ROLLBACK)
    await asyncio.sleep(0.1)
    assert world.broker.store.max_offset(OP, 0) == 2


@in_loop(in_a_world)
async def test_an_end_that_comes_twice_delivers_once_and_is_answered_well(world: World, /) -> None:
    one = await transactor(world)
    await one.client.create("T")
    half = await one.prepare()
    answers = await asyncio.gather(*(one.end(half, TransactionOutcome.COMMIT) for _ in range(5)))
    answers.append(await one.end(half, TransactionOutcome.ROLLBACK))
    await asyncio.sleep(60)
    answers.append(await one.end(half, TransactionOutcome.COMMIT))
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert await committed(one) == [b"x"]


@in_loop(in_a_world)
async def test_ends_that_cannot_be_are_answered_with_apaches_codes_and_the_cause(
    world: World, /
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    half = await one.prepare()
    plain = await one.client.send(b"plain")
    wrong = [
        (
            await one.client.code(
                one.ending(half, TransactionOutcome.COMMIT, producer_group="buyers")
            ),
            "The producer group wrong",
        ),
        (
            await one.client.code(
                one.ending(half, TransactionOutcome.COMMIT, tran_state_table_offset=9)
            ),
            "The transaction state table offset wrong",
        ),
        (
            await one.client.code(one.ending(half, TransactionOutcome.COMMIT, commit_log_offset=3)),
            "Find prepared transaction message failed",
        ),
        (
            await one.client.code(one.ending(plain, TransactionOutcome.COMMIT)),
            "Find prepared transaction message failed",
        ),
        (await one.client.code(one.ending(half, 5)), "commitOrRollback field wrong"),
    ]
    for (code, remark), begins in wrong:
        assert code == ResponseCode.SYSTEM_ERROR
        assert remark.startswith(begins)
    assert await committed(one) == [b"plain"]


@in_loop(in_a_world)
async def test_an_unknown_state_is_not_answered_and_changes_nothing(world: World, /) -> None:
    one = await transactor(world)
    half = await one.prepare()
    await one.client.remoting.send_oneway(
        one.client.address, one.ending(half, TransactionOutcome.UNKNOWN)
    )
    await asyncio.sleep(1)
    assert (await one.end(half, TransactionOutcome.ROLLBACK)).code == ResponseCode.SUCCESS


@in_loop(in_a_world)
async def test_half_messages_that_cannot_be_are_refused(world: World, /) -> None:
    client = world.client()
    for text, part in (
        ("TRAN_MSG\x01true\x02PGROUP\x01p\x02TIMER_DELAY_SEC\x013\x02", "TIMER_DELAY_SEC"),
        ("TRAN_MSG\x01true\x02", "producer group"),
        (f"TRAN_MSG\x01true\x02PGROUP\x01p\x02a\x01{'i' * 32600}\x02", "32601 are allowed"),
    ):
        code, remark = await client.code(
            SendMessageV2(topic="T", queue_id=0, properties=text), b"x"
        )
        assert code == ResponseCode.MESSAGE_ILLEGAL
        assert part in remark


@in_loop(in_a_world, reject_transaction_message=True)
async def test_a_broker_may_refuse_transactions(world: World, /) -> None:
    request = SendMessageV2(topic="T", queue_id=0, properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02")
    code, remark = await world.client().code(request, b"x")
    assert code == ResponseCode.NO_PERMISSION
    assert "rejectTransactionMessage" in remark


# --- asking
# -----------------------------------------------------------------------------------------------


@in_loop(in_a_world, **QUICK)
async def test_an_unended_transaction_is_checked_after_the_time_out_then_once_an_interval(
    world: World, /
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    await asyncio.sleep(100)  # the broker has been up for a while
    began = asyncio.get_running_loop().time()
    half = await one.prepare(b"order 1", KEYS="k")
    await asyncio.sleep(5.9)
    assert one.asked == []
    await asyncio.sleep(60.3)
    assert [round(asked.at - began) for asked in one.asked] == [6, 36, 66]
    asked = one.asked[0]
    assert asked.request.topic == HALF
    assert asked.request.tran_state_table_offset == half.queue_offset + 1, (
        "it stands again behind the others"
    )
    assert asked.request.transaction_id == asked.request.msg_id == half.transaction_id
    assert asked.request.offset_msg_id is not None
    assert decode_offset_msg_id(asked.request.offset_msg_id)[2] == asked.request.commit_log_offset
    assert asked.request.bname == "broker-a"
    message = asked.message
    assert (message.topic, message.queue_id, message.body, message.keys) == (
        "T",
        0,
        b"order 1",
        ["k"],
    )
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"


@in_loop(in_a_world, **QUICK)
async def test_the_answer_to_a_question_ends_the_transaction(world: World, /) -> None:
    one = await transactor(world)
    await one.client.create("T")
    one.answer = lambda message: (
        TransactionOutcome.COMMIT if message.body == b"good" else TransactionOutcome.ROLLBACK
    )
    for body in (b"good", b"bad"):
        await one.prepare(body)
    await asyncio.sleep(600)
    assert await committed(one) == [b"good"]
    assert len(one.asked) == 2
    assert (world.offset(HALF), world.offset(OP)) == (4, world.broker.store.max_offset(OP, 0))


@in_loop(in_a_world, **QUICK)
async def test_a_late_end_by_the_first_offsets_ends_the_copy_that_was_asked_about_too(
    world: World, /
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    half = await one.prepare()
    await asyncio.sleep(70)
    asked = len(one.asked)
    assert asked == 2
    assert (await one.end(half, TransactionOutcome.COMMIT)).code == ResponseCode.SUCCESS
    one.answer = returns(TransactionOutcome.COMMIT)
    await asyncio.sleep(600)
    assert await committed(one) == [b"x"]
    assert len(one.asked) == asked


@in_loop(in_a_world, **QUICK)
async def test_after_the_last_check_a_transaction_is_given_up_and_can_be_resumed(
    world: World, /
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    await one.prepare(b"lost?")
    await asyncio.sleep(300)
    assert len(one.asked) == 3
    given_up = await only_message(world, GIVEN_UP)
    assert (given_up.body, given_up.properties["TRANSACTION_CHECK_TIMES"]) == (b"lost?", "3")
    assert world.offset(HALF) == world.broker.store.max_offset(HALF, 0)
    one.answer = returns(TransactionOutcome.COMMIT)
    request = ResumeCheckHalfMessage(topic=GIVEN_UP, msg_id=given_up.offset_msg_id)
    assert (await one.client.ask(request)).code == ResponseCode.SUCCESS
    await asyncio.sleep(100)
    assert await committed(one) == [b"lost?"]
    assert (await one.client.ask(request)).code == ResponseCode.SYSTEM_ERROR, "it has ended"
    nonsense = await one.client.ask(ResumeCheckHalfMessage(topic=GIVEN_UP, msg_id="7"))
    assert "not an offset message id" in (nonsense.remark or "")


@in_loop(in_a_world, **QUICK)
async def test_rounds_in_which_no_producer_is_there_do_not_count_and_cost_few_copies(
    world: World, /, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = await transactor(world), await transactor(world, group="buyers", client_id="b")
    await other.client.create("T")
    other.answer = returns(TransactionOutcome.COMMIT)
    for number in range(8):
        await one.prepare(b"%d" % number)
    await one.client.close()
    for number in range(120):  # of another group, asked about in every round of an hour
        await other.prepare(b"other %d" % number)
        await asyncio.sleep(30)
    assert len(other.asked) >= 119, "those who are away hold up nobody"
    assert world.broker.store.max_offset(GIVEN_UP, 0) == 0
    copies = world.broker.store.max_offset(HALF, 0) - 128 - len(other.asked)
    assert copies <= 8 * 15
    again = await transactor(world, client_id="seller-2")
    again.answer = returns(TransactionOutcome.COMMIT)
    await asyncio.sleep(61)
    assert [asked.message.body for asked in again.asked] == [b"%d" % number for number in range(8)]
    assert {asked.message.properties["TRANSACTION_CHECK_TIMES"] for asked in again.asked} == {"1"}
    assert len(await committed(again)) == 128
    assert world.offset(HALF) == world.broker.store.max_offset(HALF, 0)
    lines = [record.getMessage() for record in caplog.records if "wait" in record.getMessage()]
    assert lines == [
        "transactions wait: no producer of their group is connected, so they are not checked "
        "group=sellers"
    ]


@in_loop(in_a_world, **QUICK)
async def test_what_waits_for_a_producer_goes_on_through_kills_and_ends_by_its_first_offsets(
    world: World, /
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    halves = [await one.prepare(b"%d" % number) for number in range(3)]
    await one.client.close()
    for _ in range(5):
        await asyncio.sleep(200)
        world.kill()
        await world.start()
    late = world.transactor()
    assert (await late.end(halves[1], TransactionOutcome.COMMIT)).code == ResponseCode.SUCCESS
    again = await transactor(world, client_id="seller-2")
    again.answer = returns(TransactionOutcome.COMMIT)
    await asyncio.sleep(100)
    assert sorted(await committed(again)) == [b"0", b"1", b"2"]
    assert len(again.asked) == 2


@in_loop(in_a_world, **{**QUICK, "file_reserved_time": 1})
async def test_what_nobody_asks_for_is_given_up_when_it_is_too_old(world: World, /) -> None:
    one = await transactor(world)
    await one.client.create("T")
    await one.prepare(b"forgotten")
    await one.client.close()
    await asyncio.sleep(3600 + 400)
    letter = await only_message(world, GIVEN_UP)
    assert letter.body == b"forgotten"
    assert "TRANSACTION_CHECK_TIMES" not in letter.properties


@in_loop(in_a_world, **QUICK)
async def test_another_producer_of_the_group_is_asked_when_the_first_has_gone(
    world: World, /
) -> None:
    first, second = await transactor(world), await transactor(world, client_id="seller-2")
    stranger = await transactor(world, group="buyers", client_id="buyer")
    await second.client.create("T")
    await first.prepare()
    await first.client.close()
    second.answer = returns(TransactionOutcome.COMMIT)
    await asyncio.sleep(60)
    assert len(second.asked) == 1
    assert stranger.asked == []
    assert await committed(second) == [b"x"]


@in_loop(in_a_world, **QUICK)
async def test_the_producers_of_a_group_are_asked_in_turn(world: World, /) -> None:
    ones = [await transactor(world, client_id=f"seller-{number}") for number in range(3)]
    for number in range(30):
        await ones[0].prepare(b"%d" % number)
    await asyncio.sleep(40)
    assert [len(one.asked) for one in ones] == [10, 10, 10]


@in_loop(in_a_world, **QUICK)
async def test_a_message_may_delay_its_checks_and_does_not_hold_up_others(world: World, /) -> None:
    one = await transactor(world)
    await one.client.create("T")
    await asyncio.sleep(60)
    began = asyncio.get_running_loop().time()
    patient = await one.prepare(b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="300")
    await one.prepare(b"usual")
    await asyncio.sleep(200)
    assert {asked.message.body for asked in one.asked} == {b"usual"}
    await asyncio.sleep(140)
    first = next(asked for asked in one.asked if asked.message.body == b"patient")
    assert 300 <= first.at - began <= 331
    code, remark = await one.client.code(one.ending(patient, TransactionOutcome.COMMIT))
    assert code == ResponseCode.ILLEGAL_OPERATION
    assert "wait until the broker asks" in remark
    one.answer = returns(TransactionOutcome.COMMIT)
    await asyncio.sleep(40)
    assert await committed(one) == [b"patient"]


_HOUR_MS = 3_600_000
_WRONG_CLOCKS = {
    "73 hours slow": lambda now: now - 73 * _HOUR_MS,
    "at 1970": returns(0),
    "before 1970": returns(-_HOUR_MS),
    "an hour fast": lambda now: now + _HOUR_MS,
    "ten days fast": lambda now: now + 240 * _HOUR_MS,
    "at the end of time": returns(1 << 62),
}


@pytest.mark.parametrize("clock", _WRONG_CLOCKS)
@in_loop(in_a_world, **{**QUICK, "transaction_check_max": 15})
async def test_the_brokers_clock_decides_about_checks_whatever_the_producers_says(
    world: World, /, clock: str
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    born = _WRONG_CLOCKS[clock](world.simulation.clock(BROKER).now_ms())
    loop = asyncio.get_running_loop()
    await asyncio.sleep(40)  # rounds have begun
    began = loop.time()
    await one.prepare(b"usual", born_ms=born)
    await one.prepare(b"patient", born_ms=born, CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    await one.prepare(b"quick", born_ms=born, CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    half = await one.prepare(b"ended", born_ms=born, CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    await asyncio.sleep(50)
    assert (await one.end(half, TransactionOutcome.COMMIT)).code == ResponseCode.SUCCESS
    await asyncio.sleep(40)
    assert {asked.message.body for asked in one.asked} == {b"usual", b"quick"}
    one.answer = returns(TransactionOutcome.COMMIT)
    await asyncio.sleep(60)
    (patient,) = [asked for asked in one.asked if asked.message.body == b"patient"]
    assert 100 <= patient.at - began <= 131
    assert sorted(await committed(one)) == [b"ended", b"patient", b"quick", b"usual"]
    assert world.broker.store.max_offset(GIVEN_UP, 0) == 0


@in_loop(in_a_world, **{**QUICK, "file_reserved_time": 1})
async def test_what_is_too_old_by_the_brokers_clock_is_given_up_though_it_says_it_was_born_later(
    world: World, /
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    await one.prepare(b"forgotten", born_ms=1 << 62)
    await one.client.close()
    await asyncio.sleep(3500)
    assert world.broker.store.max_offset(GIVEN_UP, 0) == 0
    await asyncio.sleep(500)
    assert (await only_message(world, GIVEN_UP)).body == b"forgotten"


@in_loop(in_a_world, **QUICK)
async def test_a_patient_message_put_behind_the_others_is_ended_by_its_first_offsets(
    world: World, /
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    half = await one.prepare(b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="300")
    for _ in range(4):
        await one.end(await one.prepare(b"other"), TransactionOutcome.ROLLBACK)
        await asyncio.sleep(40)
    assert world.broker.store.max_offset(HALF, 0) > 5
    await one.end(half, TransactionOutcome.COMMIT)
    await asyncio.sleep(600)
    assert await committed(one) == [b"patient"]
    assert one.asked == []


@in_loop(in_a_world, **QUICK)
async def test_nothing_happens_while_nothing_is_pending_or_all_that_is_may_wait(
    world: World, /
) -> None:
    one = await transactor(world)
    await one.prepare(b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="7200")
    await asyncio.sleep(100)
    rounds = world.broker.store.max_offset(HALF, 0)
    await asyncio.sleep(7000)
    assert world.broker.store.max_offset(HALF, 0) == rounds
    assert one.asked == []


# --- restarts
# -----------------------------------------------------------------------------------------------


@in_loop(in_a_world, **QUICK)
async def test_after_a_clean_restart_pending_transactions_are_checked_and_ended_ones_not(
    world: World, /
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    halves = [await one.prepare(b"%d" % number) for number in range(5)]
    await one.end(halves[1], TransactionOutcome.COMMIT)
    await one.end(halves[4], TransactionOutcome.ROLLBACK)
    await world.stop()
    await world.start()
    again = await transactor(world, client_id="seller-2")
    again.answer = returns(TransactionOutcome.COMMIT)
    await again.end(halves[1], TransactionOutcome.COMMIT)
    await asyncio.sleep(100)
    assert sorted(asked.message.body for asked in again.asked) == [b"0", b"2", b"3"]
    assert sorted(await committed(again)) == [b"0", b"1", b"2", b"3"]


@in_loop(in_a_world, **QUICK)
async def test_after_a_kill_the_offset_is_found_and_copies_known_by_their_first_one(
    world: World, /
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    half = await one.prepare(b"late")
    ended = await one.prepare(b"early")
    await one.end(ended, TransactionOutcome.COMMIT)
    await asyncio.sleep(80)
    assert len(one.asked) == 2
    world.kill()
    await world.start()
    again = await transactor(world, client_id="seller-2")
    again.answer = returns(TransactionOutcome.COMMIT)
    assert (await again.end(half, TransactionOutcome.COMMIT)).code == ResponseCode.SUCCESS
    assert (await again.end(ended, TransactionOutcome.COMMIT)).code == ResponseCode.SUCCESS
    await asyncio.sleep(200)
    assert sorted(await committed(again)) == [b"early", b"late"]
    assert again.asked == []


@pytest.mark.parametrize("asked_before", [False, True])
@in_loop(in_a_world, **QUICK)
async def test_a_kill_before_a_commit_is_written_down_does_not_deliver_the_message_twice(
    world: World, /, asked_before: bool
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    half = await one.prepare(b"once")
    await one.prepare(b"pending")
    if asked_before:
        await asyncio.sleep(80)
    await one.end(half, TransactionOutcome.COMMIT)
    await asyncio.sleep(0.2)
    assert world.broker.store.max_offset(OP, 0) == 0
    world.kill()
    await world.start()
    again = await transactor(world, client_id="seller-2")
    again.answer = returns(TransactionOutcome.COMMIT)
    await asyncio.sleep(100)
    assert sorted(await committed(again)) == [b"once", b"pending"]
    assert {asked.message.body for asked in again.asked} == {b"pending"}


@in_loop(in_a_world, flush_disk_type=FlushDiskType.SYNC_FLUSH, **QUICK)
async def test_with_sync_flush_an_answered_commit_or_roll_back_survives_a_power_cut(
    world: World, /
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    good, bad = await one.prepare(b"good"), await one.prepare(b"bad")
    await one.end(good, TransactionOutcome.COMMIT)
    await one.end(bad, TransactionOutcome.ROLLBACK)
    world.kill(power_cut=True)
    await world.start()
    again = await transactor(world, client_id="seller-2")
    again.answer = returns(TransactionOutcome.COMMIT)
    await asyncio.sleep(100)
    assert await committed(again) == [b"good"]
    assert again.asked == []


# --- what is wrong with one is no harm to others
# -----------------------------------------------------------------------------


@in_loop(in_a_world, **QUICK)
async def test_a_half_message_without_details_or_beyond_treatment_does_not_hold_up_others(
    world: World, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = TransactionChecks.ask_producer

    async def failing(self: TransactionChecks, half: HalfMessage, producer: Wire) -> None:
        if half.message.body == b"poison":
            raise ZeroDivisionError
        await whole(self, half, producer)

    monkeypatch.setattr(TransactionChecks, "ask_producer", failing)

    one = await transactor(world)
    await one.client.create("T")
    one.answer = returns(TransactionOutcome.COMMIT)
    await world.broker.parts.delivering.forwarding.append(HALF, 0, b"whose?", "")
    await one.prepare(b"poison")
    await one.prepare(b"good")
    await asyncio.sleep(200)
    assert await committed(one) == [b"good"]
    assert world.offset(HALF) == world.broker.store.max_offset(HALF, 0)


@in_loop(in_a_world, **QUICK)
async def test_a_half_message_without_room_for_a_copys_properties_does_not_hold_up_others(
    world: World, /
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    one.answer = returns(TransactionOutcome.COMMIT)
    full = (
        "REAL_TOPIC\x01T\x02REAL_QID\x010\x02PGROUP\x01sellers\x02a\x01".ljust(32740, "i") + "\x02"
    )
    await world.broker.parts.delivering.forwarding.append(HALF, 0, b"full", full)
    await one.prepare(b"good")
    await asyncio.sleep(60)
    assert await committed(one) == [b"good"]
    assert (await only_message(world, GIVEN_UP)).body == b"full"
    assert world.offset(HALF) == world.broker.store.max_offset(HALF, 0)


@in_loop(in_a_world, **QUICK)
async def test_a_half_message_that_has_just_enough_room_is_asked_about_to_the_last(
    world: World, /
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    ends = len(
        "TRAN_MSG\x01true\x02PGROUP\x01sellers\x02UNIQ_KEY\x01U78\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02__transactionId__\x01U78\x02a\x01\x02"
    )
    with pytest.raises(AssertionError, match="have 32602 bytes"):
        await one.prepare(a="i" * (32602 - ends))
    await one.prepare(a="i" * (32601 - ends))
    await asyncio.sleep(300)
    assert len(one.asked) == 3
    assert (await only_message(world, GIVEN_UP)).properties["TRANSACTION_CHECK_TIMES"] == "3"


@in_loop(in_a_world, **QUICK)
async def test_while_the_store_takes_nothing_an_end_is_refused_and_checks_come_later(
    world: World, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await transactor(world)
    await one.client.create("T")
    half = await one.prepare()
    one.answer = returns(TransactionOutcome.COMMIT)
    world.broker.store.space.refusal = "the disk is full"
    monkeypatch.setattr(SpaceWatch, "has_room_beside_reserve", returns(False))
    code, remark = await one.client.code(one.ending(half, TransactionOutcome.COMMIT))
    assert code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "the disk is full" in remark
    await asyncio.sleep(4)
    world.broker.store.space.refusal = None
    await asyncio.sleep(60)
    assert await committed(one) == [b"x"]
