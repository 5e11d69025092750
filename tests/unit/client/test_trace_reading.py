"""Reading of message traces."""

from __future__ import annotations

from turbopump.client.hooks import MessageKind
from turbopump.client.trace import (
    ContextCode,
    TracedMessage,
    end_transaction_record,
    pub_record,
    recall_record,
    sub_after_record,
    sub_before_record,
)
from turbopump.client.trace_reading import TracedAction, TraceKind, read_actions

TRACED = TracedMessage("orders", "M", "new", "k1 k2", 1000, "region", "sellers")


def test_what_our_clients_write_is_read() -> None:
    kind = MessageKind.NORMAL
    written = [
        pub_record(
            TRACED,
            store_host="h:1",
            body_size=4,
            cost_ms=7,
            kind=kind,
            offset_msg_id="O",
            success=True,
        ),
        end_transaction_record(
            TRACED,
            store_host="h:1",
            kind=kind,
            transaction_id="T",
            state="COMMIT_MESSAGE",
            from_check=False,
        ),
        recall_record(TRACED, success=False),
        sub_before_record(TRACED, request_id="R", retry_times=2),
        sub_after_record(
            TRACED,
            request_id="R",
            cost_ms=9,
            code=ContextCode.EXCEPTION,
            success=False,
            time_ms=1009,
            error="no stock",
        ),
    ]
    where = ("M", "c:1", "sellers")
    assert list(read_actions("".join(written).encode(), "c:1")) == [
        TracedAction(TraceKind.SENT, *where, 1000, "orders", success=True, cost_ms=7),
        TracedAction(
            TraceKind.TRANSACTION_ENDED, *where, 1000, "orders", transaction_state="COMMIT_MESSAGE"
        ),
        TracedAction(TraceKind.RECALLED, *where, 1000, "orders", success=False),
        TracedAction(TraceKind.HANDLING, *where, 1000, request_id="R", attempt=2),
        TracedAction(
            TraceKind.HANDLED,
            *where,
            1009,
            success=False,
            cost_ms=9,
            request_id="R",
            outcome=ContextCode.EXCEPTION,
            error="no stock",
        ),
    ]


def test_old_and_new_forms_of_a_send_are_read() -> None:
    def success(*more: str) -> bool | None:
        fields = "Pub", "1", "r", "g", "t", "M", "tag", "k", "h:1", "4", "7", "0", *more
        (action,) = read_actions("\x01".join(fields).encode())
        return action.success

    assert success("true") is True  # 4.x: without the offset message id
    assert success("O", "true") is True
    assert success("O", "false", "client:1") is False


def test_records_that_are_no_records_are_left_out() -> None:
    body = b"\xff\x02SubAfter\x01short\x02Pub\x01x\x02New\x01kind\x02Recall\x011\x02\x02"
    assert list(read_actions(body)) == []
