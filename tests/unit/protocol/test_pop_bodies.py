"""Acknowledgements in a batch, as Apache's ``BatchAckMessageRequestBody`` travels."""

from turbopump.protocol import fastjson
from turbopump.protocol.requests.pop import BatchAck, BatchAckBody, pack_bits, unpack_bits


def test_bits_are_javas_bit_set_bytes() -> None:
    assert pack_bits([0, 2, 9]) == bytes([5, 2])
    assert list(unpack_bits(bytes([5, 2, 0]))) == [0, 2, 9]
    assert pack_bits([]) == b""


def test_a_batch_is_written_with_apaches_short_names_and_read_back() -> None:
    ack = BatchAck(
        consumer_group="billing",
        topic="orders",
        retry="1",
        start_offset=4,
        queue_id=2,
        revive_queue_id=3,
        pop_time=5,
        invisible_time=6,
        bits=pack_bits([0, 9]),
    )
    body = BatchAckBody(broker_name="b", acks=(ack,))
    text = fastjson.encode(body)
    assert text == (
        b'{"acks":[{"b":"AQI=","c":"billing","it":6,"pt":5,"q":2,"r":"1","rq":3,"so":4,"t":"orders"}],'
        b'"brokerName":"b"}'
    )
    assert fastjson.decode(text, BatchAckBody) == body
