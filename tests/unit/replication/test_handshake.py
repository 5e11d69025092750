"""Transcripts of the handshake on the HA port: what both sides say, and who is refused in which
words."""

import pytest
from tests.unit.replication.conversation import frame, report

from turbopump.auth.signatures import Credentials
from turbopump.errors import ProtocolError
from turbopump.replication.comparison import PROVE
from turbopump.replication.handshake import (
    HELLO,
    NONCE_SIZE,
    PROOF_SIZE,
    MasterHandshake,
    PeerRules,
    SlaveHandshake,
)

OURS = Credentials("broker", "secret")
THERE, LISTED = "10.0.0.2", "10.0.0.3"
RULES = PeerRules(closed=True, allowed=frozenset({LISTED}), credentials=OURS)
ONE, OTHER = b"\1" * NONCE_SIZE, b"\2" * NONCE_SIZE


def master(host: str = THERE, nonce: bytes = OTHER, rules: PeerRules = RULES) -> MasterHandshake:
    return MasterHandshake(rules, host, nonce)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_both_sides_prove_the_same_secret_and_what_follows_is_the_stream(size: int) -> None:
    slave, there = SlaveHandshake(OURS, ONE), master()
    to_master, to_slave = slave.begin(), b""
    assert to_master == HELLO + ONE
    said: dict[str, bytes] = {"slave": to_master, "master": b""}
    rests: dict[str, bytes | None] = {"slave": None, "master": None}
    while to_master or to_slave:
        piece, to_master = to_master[:size], to_master[size:]
        if piece:
            answer, rests["master"] = there.received(piece)
            to_slave += answer
            said["master"] += answer
        piece, to_slave = to_slave[:size], to_slave[size:]
        if piece:
            answer, rests["slave"] = slave.received(piece)
            to_master += answer
            said["slave"] += answer
    assert rests == {"slave": b"", "master": b""}
    assert {name: len(text) for name, text in said.items()} == dict.fromkeys(
        rests, len(HELLO) + NONCE_SIZE + PROOF_SIZE
    )
    assert said["master"].startswith(HELLO + OTHER)
    assert said["slave"][-PROOF_SIZE:] != said["master"][-PROOF_SIZE:]


def conversation(nonce: bytes = OTHER) -> tuple[bytes, bytes]:
    """All that each side says; the slave's nonce is ONE."""
    slave, there = SlaveHandshake(OURS, ONE), master(nonce=nonce)
    greeting = there.received(slave.begin()).said
    proof = slave.received(greeting).said
    return slave.begin() + proof, greeting + there.received(proof).said


def test_what_comes_behind_the_proofs_is_handed_on() -> None:
    slaves, masters = conversation()
    assert master().received(slaves + report(100)) == (masters, report(100))
    slave = SlaveHandshake(OURS, ONE)
    assert slave.received(masters + frame(100, b"abc")).rest == frame(100, b"abc")


def test_what_was_said_once_proves_nothing_to_another_connection() -> None:
    slaves, masters = conversation()
    with pytest.raises(ProtocolError, match="other innerClientAuthenticationCredentials"):
        master(nonce=b"\3" * NONCE_SIZE).received(slaves)
    with pytest.raises(ProtocolError, match="it belongs to another cluster"):
        SlaveHandshake(OURS, b"\3" * NONCE_SIZE).received(masters)


@pytest.mark.parametrize(
    "other", [Credentials("broker", "guess"), Credentials("another", "secret")]
)
def test_another_user_or_secret_is_refused_on_both_sides(other: Credentials) -> None:
    slave, there = SlaveHandshake(other, ONE), master()
    proof = slave.received(there.received(slave.begin()).said).said
    with pytest.raises(ProtocolError, match="other innerClientAuthenticationCredentials"):
        there.received(proof)
    rogue = master(rules=PeerRules(closed=True, credentials=other))
    slave = SlaveHandshake(OURS, ONE)
    slave.received(rogue.received(slave.begin()).said)
    with pytest.raises(ProtocolError, match="it belongs to another cluster"):
        slave.received(b"x" * PROOF_SIZE)


def test_a_master_shows_a_stranger_nothing_that_was_made_with_the_secret() -> None:
    answer = master().received(HELLO + ONE).said
    assert answer == HELLO + OTHER


def test_apaches_slave_is_served_if_its_address_is_allowed() -> None:
    assert master(LISTED).received(report(100)[:3]) == (b"", report(100)[:3])
    assert master(LISTED).received(PROVE[:5]) == (b"", PROVE[:5]), "it compares logs at once"
    with pytest.raises(ProtocolError, match=r"no credentials.*not in haAllowedPeers"):
        master(THERE).received(report(100))


def test_who_is_allowed_by_its_address_may_shake_hands_and_must_do_it_right() -> None:
    slaves, masters = conversation()
    assert master(LISTED).received(slaves) == (masters, b"")
    with pytest.raises(ProtocolError, match="other innerClientAuthenticationCredentials"):
        master(LISTED).received(slaves[:-1] + b"x")


@pytest.mark.parametrize("first", [b"\xff" * 8, b"\xffHTTP"])
def test_what_is_neither_an_offset_nor_a_handshake_is_refused(first: bytes) -> None:
    with pytest.raises(ProtocolError, match="it sent no handshake"):
        master().received(first)


def test_a_master_that_does_not_shake_hands_is_refused_in_words() -> None:
    with pytest.raises(ProtocolError, match=r"like Apache's brokers.*to haAllowedPeers here"):
        SlaveHandshake(OURS, ONE).received(frame(100))


@pytest.mark.parametrize(
    ("rules", "host", "encrypted", "words"),
    [
        (PeerRules(), THERE, False, None),
        (PeerRules(allowed=frozenset({LISTED})), LISTED, False, None),
        (PeerRules(allowed=frozenset({LISTED})), THERE, False, "not in haAllowedPeers"),
        (RULES, THERE, False, None),
        (PeerRules(closed=True), THERE, True, "has no innerClientAuthenticationCredentials"),
        (PeerRules(True, frozenset(), OURS, encrypted=True), THERE, True, None),
        (PeerRules(True, frozenset(), OURS, encrypted=True), THERE, False, "does not use TLS"),
        (PeerRules(True, frozenset({LISTED}), OURS, encrypted=True), LISTED, False, None),
        (PeerRules(encrypted=True), THERE, False, "does not use TLS"),
        (PeerRules(encrypted=True), THERE, True, None),
        (PeerRules(allowed=frozenset({LISTED}), encrypted=True), THERE, True, "not in haAllowed"),
        (PeerRules(False, frozenset({LISTED}), None, True, certified=True), THERE, True, None),
    ],
)
def test_some_are_refused_before_they_say_anything(
    rules: PeerRules, host: str, encrypted: bool, words: str | None
) -> None:
    refusal = rules.refusal(host, encrypted=encrypted)
    assert refusal is None if words is None else words in str(refusal)
