"""Accounts on their way: only the secret and the request that they were asked by open them."""

from __future__ import annotations

import pytest

from turbopump.auth.sealing import NONCE_SIZE, seal, unseal, version_of
from turbopump.errors import ProtocolError

NONCE = bytes(range(NONCE_SIZE))


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 136, 200_000])
def test_what_was_sealed_is_opened_by_the_same_secret_and_request_alone(size: int) -> None:
    content = bytes(number % 251 for number in range(size))
    sealed = seal(content, "secret", "asked", NONCE)
    assert len(sealed) == NONCE_SIZE + size + 32
    assert unseal(sealed, "secret", "asked") == content
    for secret, asked in (("secret2", "asked"), ("secret", "asked2"), ("secret", "")):
        with pytest.raises(ProtocolError, match="not sealed with the secret of this request"):
            unseal(sealed, secret, asked)


def test_no_byte_can_be_changed_added_or_left_out() -> None:
    sealed = seal(b'{"users": []}', "secret", "asked", NONCE)
    changed = [
        sealed[:at] + bytes([sealed[at] ^ bit]) + sealed[at + 1 :]
        for at in range(len(sealed))
        for bit in (1, 128)
    ]
    cut = [sealed[:size] for size in range(len(sealed))]
    for data in (*changed, *cut, sealed + b"\0", b"\0" + sealed):
        with pytest.raises(ProtocolError):
            unseal(data, "secret", "asked")


def test_nothing_of_the_content_or_of_the_secret_shows_and_no_answer_has_the_keys_of_another() -> (
    None
):
    content = b"a password " * 100
    one, other = (seal(content, "secret", "asked", bytes([n]) * NONCE_SIZE) for n in (1, 2))
    assert one[NONCE_SIZE:] != other[NONCE_SIZE:]
    again = seal(content, "secret", "asked again", bytes([1]) * NONCE_SIZE)
    assert again[NONCE_SIZE:] != one[NONCE_SIZE:]
    for sealed in (one, other, again):
        assert b"password" not in sealed
        assert b"secret" not in sealed
        # a key stream that repeats would show where the content does
        body = sealed[NONCE_SIZE:-32]
        assert len({body[at : at + 11] for at in range(0, len(body), 11)}) == 100
    assert version_of(content, "secret") != version_of(content, "other")
    assert version_of(content, "secret") != version_of(content + b"x", "secret")
