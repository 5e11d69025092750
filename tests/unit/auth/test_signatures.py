"""Signatures of requests, checked as they are made."""

from __future__ import annotations

import hmac
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbopump.auth.signatures import (
    ACCESS_KEY,
    SIGNATURE,
    UNIQUE_KEY_QUERY,
    V4_9_3,
    Credentials,
    RequestSigner,
    SigningKey,
    signed_content,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SECRETS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80).filter(
    str.strip
)


@given(st.dictionaries(TEXTS, TEXTS, max_size=5), st.binary(max_size=50), SECRETS)
def test_what_a_client_has_signed_is_taken(
    fields: dict[str, str], body: bytes, secret: str
) -> None:
    sent = RequestSigner(Credentials("ann", secret))(fields, body)
    content = signed_content(sent, body, 479)
    key = SigningKey(secret)
    assert key.has_signed(content, sent[SIGNATURE])
    assert not key.has_signed(content + b"x", sent[SIGNATURE])
    assert not SigningKey(secret + "x").has_signed(content, sent[SIGNATURE])


@given(SECRETS, st.binary(max_size=200))
def test_a_key_signs_as_hmac_does(secret: str, content: bytes) -> None:
    made = b64encode(hmac.digest(secret.encode(), content, "sha1")).decode()
    assert SigningKey(secret).has_signed(content, made)


def test_apaches_own_signature_is_taken() -> None:
    fields = {"a": "g", "b": "T", ACCESS_KEY: "ak", SIGNATURE: "WaoxN/cxjjbEnHqe6ITuiZOdiSI="}
    content = signed_content(fields, b"x", 479)
    assert content == b"akgTx"
    assert SigningKey("sk").has_signed(content, fields[SIGNATURE])


@pytest.mark.parametrize("signature", ["", "é", "WaoxN/cxjjbEnHqe6ITuiZOdiSI", "=" * 1000])
def test_another_text_is_no_signature(signature: str) -> None:
    assert not SigningKey("sk").has_signed(b"akgTx", signature)


def test_old_clients_do_not_sign_the_flag_of_a_query_by_unique_key() -> None:
    fields = {ACCESS_KEY: "ak", UNIQUE_KEY_QUERY: "true", "key": "k", SIGNATURE: "?"}
    assert signed_content(fields, b"", V4_9_3) == b"akk"
    assert signed_content(fields, b"", V4_9_3 + 2) == b"aktruek"


def test_many_kinds_of_requests_are_signed_rightly() -> None:
    for number in range(2000):  # more than are kept in mind
        fields = {ACCESS_KEY: "ak", f"b{number}": "2", "a": "1", SIGNATURE: "?"}
        assert signed_content(fields, b"", 479) == b"ak12"
