"""Answers of a broker to a pull or pop, made of any numbers."""

from __future__ import annotations

from turbopump.message.codec import encode_entry, encode_host
from turbopump.protocol.requests.pop import PopMessageReply


def entry(offset: int, body: bytes, sys_flag: int = 0) -> bytes:
    """A stored message of topic T."""
    return encode_entry(
        queue_id=0,
        flag=0,
        queue_offset=offset,
        physical_offset=0,
        sys_flag=sys_flag,
        born_timestamp=1,
        born_host=encode_host("127.0.0.1", 1),
        store_timestamp=1,
        store_host=encode_host("127.0.0.1", 1),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        topic=b"T",
        properties=b"",
    )


def reply(
    offsets: str | None = None, starts: str | None = None, counts: str | None = None
) -> PopMessageReply:
    """Of a pop, with these texts about its messages."""
    return PopMessageReply(
        pop_time=1,
        invisible_time=1,
        revive_qid=0,
        rest_num=0,
        msg_offset_info=offsets,
        start_offset_info=starts,
        order_count_info=counts,
    )
