"""Every request code, by who sends it: the answer of the table (docs/reference/access-rules.md)."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from tests.loops import in_loop
from tests.stand_ins import returns
from tests.unit.auth.rules_page import page
from tests.unit.auth.signed import (
    ADMIN,
    ADMINISTRATOR,
    ANN,
    BOB,
    CLUSTERS,
    INNER,
    ON,
    USERS,
    Door,
    access,
    allow,
    asking,
    signed,
)
from tests.unit.protocol.headers import REQUESTS, filled

from turbopump.auth.access_control import NOT_KNOWN, AccessControl, AccessSettings
from turbopump.auth.accounts import Accounts, User
from turbopump.auth.policies import Action, Decision, Entry, Policies
from turbopump.auth.rules import RULES, Who
from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.command import Command, encode_command
from turbopump.protocol.frame import JSON, ROCKETMQ, frame_head
from turbopump.protocol.request import Request
from turbopump.protocol.requests.access import CreateAcl, CreateUser, ListUsers, UserInfo
from turbopump.protocol.requests.clients import LARGE_HEARTBEAT, Heartbeat
from turbopump.protocol.requests.send import (
    EndTransaction,
    SendMessageV2,
    SendReplyMessage,
    SendReplyMessageV2,
)
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.response import Refusal, Response
from turbopump.remoting.router import RequestContext, Router
from turbopump.remoting.turns import Steps
from turbopump.repeated_line import report_all
from turbopump.testing.broker_in_loop import RunningBroker, running_broker

DOC = Path(__file__).parents[3] / "docs" / "reference" / "access-rules.md"
BY_CODE: Final = {int(declared.code): declared for declared in REQUESTS}
TO_CLIENTS: Final = {39, 40, 220, 221, 307, 309, 326}
"""Codes that brokers send to clients."""
SENT: Final = msgspec.structs.asdict(filled(SendMessageV2))
QUEUE: Final = {"topic": "T", "brokerName": "b", "queueId": 0}
BODIES: Final[dict[int, object]] = {
    18: {"topicConfigList": [{"topicName": "T"}, {"topicName": "U"}]},
    34: {
        "clientID": "c",
        "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [{"topic": "T"}]}],
    },
    41: {"consumerGroup": "G", "clientId": "c", "mqSet": [QUEUE]},
    42: {"consumerGroup": "G", "clientId": "c", "mqSet": [QUEUE]},
    46: {"clientId": "c", "group": "G", "subscriptionData": {"topic": "T"}},
    200: {"groupName": "G"},
    225: {"groupConfigList": [{"groupName": "G"}, {"groupName": "H"}]},
    400: {"topic": "T", "consumerGroup": "G", "clientId": "c"},
    401: {"topic": "T", "consumerGroup": "G"},
    200151: {"acks": [{"c": "G", "t": "T", "q": 0}]},
}


def body(code: int) -> bytes:
    return json.dumps(BODIES[code]).encode() if code in BODIES else b""


def request(code: int) -> Request[Any]:
    made = filled(BY_CODE[code])
    assert isinstance(made, Request)
    return made


def test_every_code_has_a_rule_and_every_rule_a_line_in_the_docs() -> None:
    assert BY_CODE.keys() - RULES.keys() == TO_CLIENTS - {307, 309}
    assert DOC.read_text("utf-8") == page(), (
        "docs/reference/access-rules.md is stale: python -m tests.unit.auth.rules_page > "
        "docs/reference/access-rules.md"
    )


def test_every_rule_that_reads_a_body_is_tried_with_one() -> None:
    assert {code for code, rule in RULES.items() if rule.from_body} == BODIES.keys()


@pytest.mark.parametrize("code", sorted(RULES))
@pytest.mark.parametrize("secrets", ["no secrets", "secrets"])
@in_loop
async def test_the_answer_to_each_code_is_the_table_s(code: int, secrets: str) -> None:
    """Through a door behind which everything is handled, so that nothing else can refuse."""
    asked = request(code)
    if RULES[code].secrets is not None and secrets == "no secrets":
        asked = ListUsers()
    elif RULES[code].secrets is None and secrets == "secrets":
        return
    rule = RULES[code].for_request(asked)
    wanted = list(rule.needs(asked, body(code), CLUSTERS))
    exactly = [Entry(one.resource, frozenset(one.actions[-1:]), Decision.ALLOW) for one in wanted]

    def answered(control: Any, user: str | None, secret: str | None = None) -> bool:
        door = Door(control, [BY_CODE[code]])
        answer = door.send(signed(asked, body(code), user, secret))
        assert answer.code in (0, ResponseCode.NO_PERMISSION)
        assert bool(door.handled) == (answer.code == 0)
        return answer.code == 0

    assert not answered(access(), None)
    assert not answered(access(), ADMIN, "another secret")
    assert answered(access(), BOB) == (rule.who is Who.POLICY and not wanted)
    assert answered(access(), ADMIN)
    assert answered(access(), INNER) == (
        rule.who in (Who.BROKERS, Who.SECRETS) or (rule.who is Who.POLICY and not wanted)
    )
    if rule.who is not Who.POLICY:
        assert not answered(access(allow("*", Action.ALL)), ANN)
        return
    assert answered(access(allow("*", Action.ALL)), ANN)
    assert answered(access(*exactly), ANN)
    for one in wanted:
        less = [entry for entry in exactly if entry.resource != one.resource]
        assert not answered(access(*less), ANN), f"without {one}"


def answered_when_opened(opened: dict[str, Any], user: str | None) -> bool:
    control = access(allow("*", Action.ALL), allow("Cluster:*", Action.GET), **opened)
    door = Door(control, [ListUsers])
    return door.send(signed(ListUsers(nonce="n"), b"", user)).code == 0


@pytest.mark.parametrize(
    "opened",
    [
        {},
        {"authorization": False},
        {"unasked": frozenset({RequestCode.AUTH_LIST_USER})},
        {"unsigned": frozenset({RequestCode.AUTH_LIST_USER}), "authorization": False},
    ],
)
@in_loop
async def test_no_setting_gives_passwords_to_others_than_the_brokers_and_super_users(
    opened: dict[str, Any],
) -> None:
    assert [answered_when_opened(opened, user) for user in (None, ANN, BOB, INNER, ADMIN)] == [
        False,
        False,
        False,
        True,
        True,
    ]


async def answer_of(
    address: str, code: int, credentials: Credentials | None
) -> tuple[int, str | None]:
    async with asking(credentials) as client:
        command: Command = await client.exchange(address, request(code), body(code), timeout=20)
    return command.code, command.remark


async def check_all(running: RunningBroker, address: str, router: Router) -> None:
    """Strangers, and a user without policies, get nothing of what a running server serves; the
    administrator is never refused for who they are."""
    async with asking() as admin:
        await admin.call(running.namesrv, CreateUser(username="bob"), UserInfo(password="b"))
        await admin.call(running.broker_address, CreateUser(username="bob"), UserInfo(password="b"))
    wrong, bob = Credentials("admin", "no"), Credentials("bob", "b")
    for code in sorted(router.codes):
        stranger = await answer_of(address, code, None)
        assert stranger == (16, NOT_KNOWN.remark), code
        assert await answer_of(address, code, wrong) == stranger, code
        rule = RULES[code].for_request(request(code))
        needs_something = rule.who is not Who.POLICY or list(
            rule.needs(request(code), body(code), CLUSTERS)
        )
        answer, remark = await answer_of(address, code, bob)
        assert (answer == 16 and (remark or "").startswith("User:bob")) == bool(needs_something)
        if code not in (*DESTRUCTIVE, *HELD):
            _, remark = await answer_of(address, code, ADMINISTRATOR)
            assert not (remark or "").startswith(("access denied", "User:")), (code, remark)


HELD: Final = {200050, 200054}
"""Requests that are answered when there is a message."""
DESTRUCTIVE: Final = {104, 3002, 3003, 3006, 3007, 3008, 205}


@in_loop
async def test_a_running_broker_answers_each_code_as_the_table_says() -> None:
    async with running_broker(**ON) as running:
        await check_all(running, running.broker_address, running.broker.parts.listening.router)


@in_loop
async def test_a_running_name_server_answers_each_code_as_the_table_says() -> None:
    async with running_broker(**ON) as running:
        await check_all(running, running.namesrv, running.name_server.router)


MAY_PUBLISH: Final = (allow("Topic:T", Action.PUB),)
MAY_CONSUME: Final = (allow("Topic:T", Action.SUB), allow("Group:G", Action.SUB))


@pytest.mark.parametrize("kind", [SendReplyMessage, SendReplyMessageV2])
@pytest.mark.parametrize("may", [MAY_PUBLISH, MAY_CONSUME, ()], ids=["Pub", "Sub", "nothing"])
@in_loop
async def test_who_may_anything_replies_through_the_cluster_s_topic_others_need_pub(
    kind: type[Request[Any]], may: tuple[Entry, ...]
) -> None:
    answers = []
    for topic in ("DefaultCluster_REPLY_TOPIC", "Other_REPLY_TOPIC", "T"):
        asked = msgspec.structs.replace(filled(kind), topic=topic)
        answers.append(Door(access(*may), [kind]).send(signed(asked)).code)
    assert answers == [0 if may else 16, 16, 0 if may is MAY_PUBLISH else 16]


@pytest.mark.parametrize("may", [MAY_PUBLISH, MAY_CONSUME], ids=["Pub", "Sub"])
@in_loop
async def test_a_heartbeat_needs_sub_for_consumers_and_its_producers_count_with_pub(
    may: tuple[Entry, ...],
) -> None:
    producers = {"clientID": "c", "producerDataSet": [{"groupName": "CLIENT_INNER_PRODUCER"}]}
    consumes = BODIES[34] | producers  # type: ignore[operator]
    for beat, code in ((producers, 0), (consumes, 0 if may is MAY_CONSUME else 16)):
        door = Door(access(*may), [Heartbeat])
        assert door.send(signed(Heartbeat(), json.dumps(beat).encode())).code == code
        assert [each.may_produce for each in door.contexts] == [may is MAY_PUBLISH][code:]


@pytest.mark.parametrize("size", [1000, 7000], ids=["whole", "in pieces"])
@pytest.mark.parametrize("others", ["", "one that is denied"])
@in_loop
async def test_a_heartbeat_of_thousands_of_topics_leaves_others_their_turn(
    size: int, others: str
) -> None:
    control = access(allow("Topic:t*", Action.SUB), allow("Group:G", Action.SUB))
    steps = 0

    def authorise(request: Request[Any], context: RequestContext) -> Steps[Refusal | None]:
        nonlocal steps
        judging = control(request, context)
        assert judging is not None
        assert not isinstance(judging, Response)
        while True:
            try:
                next(judging)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            steps += 1
            yield

    topics = [{"topic": f"t{number}", "subString": "*"} for number in range(size)]
    topics += [{"topic": others, "subString": "*"}] if others else []
    beat = {"clientID": "c", "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": topics}]}
    body_ = json.dumps(beat).encode()
    assert (len(body_) > LARGE_HEARTBEAT) == (size > 1000)
    door = Door(authorise, [Heartbeat])
    door.take(encode_command(signed(Heartbeat(), body_)))
    async with asyncio.timeout(20):
        while not door.answers:
            await asyncio.sleep(0)
    (answer,) = door.answers
    assert (answer.code, len(door.handled)) == ((16, 0) if others else (0, 1))
    assert steps == size + 1


def audited(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Without what other threads log, and other lines that were counted."""
    return [record for record in caplog.records if record.name == "turbopump.audit"]


@in_loop
async def test_denials_that_are_alike_are_one_line_with_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "turbopump.audit"):
        for topic in ("U", "V", "U", "U"):
            asked = SendMessageV2(**{**SENT, "topic": topic})
            Door(access(*MAY_PUBLISH), [SendMessageV2]).send(signed(asked))
        report_all()
    line = "denied user=ann code=310 asked=Topic:{} Pub peer=127.0.0.1:1 rule=no policy{}"
    assert [record.getMessage() for record in audited(caplog)] == [
        line.format("U", ""),
        line.format("V", ""),
        line.format("U", " more=2 in_seconds=10"),
    ]


@in_loop
async def test_a_code_that_is_not_served_is_told_to_users_alone() -> None:
    door = Door(access(), [])
    unknown = request(RequestCode.SEND_MESSAGE)
    for user, secret, code in (
        (None, None, ResponseCode.NO_PERMISSION),
        (ANN, "another", ResponseCode.NO_PERMISSION),
        (ANN, None, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
    ):
        door = Door(access(), [])
        assert door.send(signed(unknown, b"", user, secret)).code == code


@in_loop
async def test_nobody_learns_whether_a_user_exists() -> None:
    asked = request(RequestCode.GET_MAX_OFFSET)
    answers = set()
    for user, secret in ((ANN, "another"), ("nobody", "x"), (ANN, None)):
        control = access()
        if secret is None:  # disabled
            users = control.accounts.users
            off = replace(users[ANN], enabled=False)
            control.accounts = replace(control.accounts, users={**users, ANN: off})
        answer = Door(control, [type(asked)]).send(signed(asked, b"", user, secret))
        answers.add((answer.code, answer.remark))
    assert answers == {(16, NOT_KNOWN.remark)}


@in_loop
async def test_a_decision_is_not_kept_in_mind_beyond_a_change_of_policy() -> None:
    control = access(allow("Topic:*", Action.PUB))
    asked = request(RequestCode.SEND_MESSAGE_V2)
    assert Door(control, [type(asked)]).send(signed(asked)).code == 0
    assert Door(control, [type(asked)]).send(signed(asked)).code == 0
    control.accounts = replace(control.accounts, policies={})
    assert Door(control, [type(asked)]).send(signed(asked)).code == 16


@in_loop
async def test_whoever_was_asked_about_a_transaction_may_name_the_topic_of_half_messages() -> None:
    # RocketMQ's clients answer with the topic that the broker's question names
    control = access(allow("Topic:T", Action.PUB))
    asked = {
        "producer_group": "g",
        "tran_state_table_offset": 0,
        "commit_log_offset": 0,
        "commit_or_rollback": 8,
    }
    door = Door(control, [EndTransaction])
    answers = [
        door.send(signed(EndTransaction(topic=topic, **asked))).code
        for topic in ("RMQ_SYS_TRANS_HALF_TOPIC", "T", "U")
    ]
    assert answers == [0, 0, 16]
    refused = [door.contexts[0].refused(topic) is not None for topic in ("T", "U")]
    assert refused == [False, True]


@in_loop
async def test_a_source_is_asked_for_again_from_another_address() -> None:
    here = access(allow("Topic:*", Action.PUB, sources=["127.0.0.0/8"]))
    elsewhere = access(allow("Topic:*", Action.PUB, sources=["10.0.0.0/8"]))
    asked = request(RequestCode.SEND_MESSAGE_V2)
    assert Door(here, [type(asked)]).send(signed(asked)).code == 0
    assert Door(elsewhere, [type(asked)]).send(signed(asked)).code == 16


@pytest.mark.parametrize("form", ["json", "binary", "large", "with spaces"])
@in_loop
async def test_a_header_of_any_form_is_signed_by_its_fields(form: str) -> None:
    many = {f"x{number}": "é" * 100 for number in range(700)} if form == "large" else {}
    door = Door(access(allow("Topic:T", Action.PUB)), [SendMessageV2])
    asked = SendMessageV2(**{**SENT, "topic": "T", "properties": "k\x01é\x02"})
    for fault, code in (("", 0), ("another topic", 16), ("another body", 16)):
        command = signed(asked, b"body")
        command.ext = RequestSigner(Credentials(ANN, USERS[ANN].password))(
            {**(command.ext or {}), **many}, b"body"
        )
        command.serialize_type = ROCKETMQ if form == "binary" else JSON
        if fault == "another topic":
            command.ext["b"] = "TT"
        if fault == "another body":
            command.body = b"Body"
        assert door.send(command, spaced=form == "with spaces").code == code


@pytest.mark.parametrize(
    "value", [b'"\xff"', b'"\xc3"', b"7"], ids=["no UTF-8", "half a character", "a number"]
)
@in_loop
async def test_fields_that_cannot_be_read_make_a_stranger_of_who_asks(value: bytes) -> None:
    """Those that the request does not declare: of them the handler would not have known."""
    fields = b'"topic":"T","queueId":0,"AccessKey":"ann","Signature":%b' % value
    header = b'{"code":30,"opaque":1,"extFields":{%b}}' % fields
    asked = BY_CODE[RequestCode.GET_MAX_OFFSET]
    (answer,) = Door(access(), [asked]).take(frame_head(len(header), 0) + header)
    assert (answer.code, answer.remark) == (16, NOT_KNOWN.remark)


@in_loop
async def test_without_authorization_every_user_may_but_not_change_users() -> None:
    control = access(authorization=False)
    asked = request(RequestCode.SEND_MESSAGE_V2)
    assert Door(control, [type(asked)]).send(signed(asked)).code == 0
    assert Door(control, [type(asked)]).send(signed(asked, b"", None)).code == 16
    assert Door(control, [CreateUser]).send(signed(CreateUser(username="x"))).code == 16


@in_loop
async def test_codes_may_be_served_without_a_signature_or_a_policy() -> None:
    asked = request(RequestCode.GET_MAX_OFFSET)
    unsigned = access(unsigned=frozenset({30}), unasked=frozenset({30}))
    assert Door(unsigned, [type(asked)]).send(signed(asked, b"", None)).code == 0
    unasked = access(unasked=frozenset({30}))
    assert Door(unasked, [type(asked)]).send(signed(asked)).code == 0
    assert Door(unasked, [type(asked)]).send(signed(asked, b"", None)).code == 16


@in_loop
async def test_whoever_has_not_signed_is_not_taken_for_a_user_called_as_nobody_is() -> None:
    accounts = Accounts({"-": User("-", "s")}, {"-": Policies([allow("Topic:*", Action.PUB)])})
    settings = AccessSettings(unsigned=frozenset({310}))
    asked = request(RequestCode.SEND_MESSAGE_V2)
    door = Door(AccessControl(accounts, settings, returns(CLUSTERS)), [type(asked)])
    answers = [door.send(signed(asked, b"", user, "s")).code for user in ("-", None, "-", None)]
    assert answers == [0, 16, 0, 16]


@in_loop
async def test_the_audit_log_says_who_what_from_where_and_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    control = access(allow("Topic:T", Action.PUB))
    allowed = SendMessageV2(**{**SENT, "topic": "T"})
    with caplog.at_level(logging.DEBUG, "turbopump.audit"):
        Door(control, [SendMessageV2]).send(signed(allowed))
        Door(control, [SendMessageV2]).send(signed(SendMessageV2(**{**SENT, "topic": "U"})))
        Door(control, [SendMessageV2]).send(signed(allowed, b"", "mallory", "x"))
    told = [(record.levelname, record.getMessage()) for record in audited(caplog)]
    assert told == [
        (
            "DEBUG",
            "allowed user=ann code=310 asked=Topic:T Pub peer=127.0.0.1:1 "
            "rule=Allow Pub on Topic:T",
        ),
        ("WARNING", "denied user=ann code=310 asked=Topic:U Pub peer=127.0.0.1:1 rule=no policy"),
        (
            "WARNING",
            "denied user=mallory code=310 asked=- peer=127.0.0.1:1 rule=not signed rightly",
        ),
    ]
    assert "secret" not in str(told)


@in_loop
async def test_the_audit_log_says_what_a_super_user_has_changed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    changes: list[tuple[Request[Any], bytes, str]] = [
        (CreateUser(username="eve"), b'{"password":"secret"}', "code=3001 asked=User:eve"),
        (CreateAcl(subject="User:eve"), b"{}", "code=3006 asked=User:eve"),
        (CreateTopic(topic="T"), b"", "code=17 asked=Topic:T Create"),
    ]
    with caplog.at_level(logging.INFO, "turbopump.audit"):
        for change, body, _ in changes:
            Door(access(), [type(change)]).send(signed(change, body, ADMIN))
    assert [record.getMessage() for record in audited(caplog)] == [
        f"allowed user=admin {says} peer=127.0.0.1:1 rule=Super" for _, _, says in changes
    ]
