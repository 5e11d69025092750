"""What a client computes before it sends, against what Apache's classes computed: signatures,
queues chosen, namespaces, traces."""

from __future__ import annotations

import pytest
from tests.golden.recorded import Recorded, of_kind

from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.client.hooks import MessageKind
from turbopump.client.namespace import unwrap, wrap
from turbopump.client.selectors import HashRing, by_hash
from turbopump.client.sending.outgoing import Outgoing, SendFrames
from turbopump.client.trace import (
    ContextCode,
    TracedMessage,
    end_transaction_record,
    pub_record,
    recall_record,
    sub_after_record,
    sub_before_record,
)
from turbopump.message.java import java_hash_code
from turbopump.message.message import Message, MessageQueue
from turbopump.protocol.command import decode_command
from turbopump.protocol.frame import FrameReader

QUEUES = [MessageQueue("Topic", broker, i) for broker in ("broker-a", "broker-b") for i in range(4)]
MESSAGE = Message("Topic", b"x")


def signer_of(recorded: Recorded, namespace: str | None = None) -> RequestSigner:
    return RequestSigner(
        Credentials(recorded["accessKey"], recorded["secretKey"], recorded["securityToken"]),
        namespace,
    )


@pytest.mark.parametrize("recorded", of_kind("signature"))
def test_any_request_is_signed_as_apaches_hook_signs_it(recorded: Recorded) -> None:
    ext = {
        k: v
        for k, v in recorded["ext"].items()
        if k not in ("AccessKey", "SecurityToken", "Signature")
    }
    assert signer_of(recorded)(ext, bytes.fromhex(recorded["body"])) == recorded["ext"]


@pytest.mark.parametrize(
    "recorded",
    [entry for entry in of_kind("signature") if "send" in entry.id or "namespaced" in entry.id],
)
def test_a_send_written_from_prepared_parts_has_the_same_signature(recorded: Recorded) -> None:
    ext = recorded["ext"]
    frames = SendFrames(ext["a"], signer_of(recorded, ext.get("ns")))
    properties, sys_flag, flag = ext["i"], int(ext["f"]), int(ext["h"])
    body = bytes.fromhex(recorded["body"])
    outgoing = Outgoing(ext["b"], body, properties, sys_flag, flag, msg_id="")
    queue = MessageQueue(ext["b"], ext["n"], int(ext["e"]))
    frame = frames.encode(outgoing, queue, 1, int(ext["g"]))
    ((cut),) = FrameReader().feed(frame)
    assert decode_command(cut).ext == ext


def test_a_secret_is_in_no_text() -> None:
    assert "secret" not in repr(Credentials("access", "secret", "secret-token"))


@pytest.mark.parametrize("recorded", of_kind("hash-selector"))
def test_a_key_chooses_the_queue_that_it_chooses_in_java(recorded: Recorded) -> None:
    key = recorded["key"]
    if recorded["type"] == "Double":
        key = float(key)
    assert java_hash_code(key) == recorded["hashCode"]
    assert QUEUES.index(by_hash(key)(QUEUES, MESSAGE)) == recorded["chosen"]


@pytest.mark.parametrize("recorded", of_kind("hash-ring"))
def test_a_ring_is_the_ring_of_apaches_router(recorded: Recorded) -> None:
    ring = HashRing(recorded["virtualNodes"])
    chosen = [QUEUES.index(ring.by(f"key-ä-{i}")(QUEUES, MESSAGE)) for i in range(40)]
    assert chosen == recorded["chosen"]


@pytest.mark.parametrize("recorded", of_kind("namespace"))
def test_names_are_wrapped_and_unwrapped_as_apache_does(recorded: Recorded) -> None:
    assert wrap("ns", recorded["resource"]) == recorded["wrapped"]
    assert unwrap("ns", recorded["resource"]) == recorded["unwrapped"]


@pytest.mark.parametrize("recorded", of_kind("trace"))
def test_a_trace_record_is_apaches(recorded: Recorded) -> None:
    held, kind = recorded["in"], MessageKind(recorded["in"]["kind"])
    message = TracedMessage(
        "Topic",
        "7F000001",
        held["tags"],
        held["keys"],
        time_ms=1700000000123,
        region="DefaultRegion",
        group="group",
    )
    if recorded["type"] == "Pub":
        text = pub_record(
            message,
            store_host="127.0.0.1:10911",
            body_size=1024,
            cost_ms=12,
            kind=kind,
            offset_msg_id="7F00000100002A9F0000000000000001",
            success=held["flag"],
        )
    elif recorded["type"] == "Recall":
        text = recall_record(message, success=held["flag"])
    elif recorded["type"] == "SubBefore":
        text = sub_before_record(message, request_id="7F000002", retry_times=held["retryTimes"])
    elif recorded["type"] == "SubAfter":
        text = sub_after_record(
            message,
            request_id="7F000002",
            cost_ms=12,
            code=ContextCode(held["contextCode"]),
            success=held["flag"],
            time_ms=1700000000123,
        )
    else:
        text = end_transaction_record(
            message,
            store_host="127.0.0.1:10911",
            kind=kind,
            transaction_id="7F000001",
            state=held["state"],
            from_check=held["flag"],
        )
    assert text == recorded["text"]
    assert sorted(message.trace_keys) == recorded["keys"]
