"""Compressed bodies, within bounds: there and back, cut, garbled, and bombs."""

import tracemalloc
import zlib

import pytest
import zstandard

from turbopump.errors import StoredMessageError
from turbopump.message.codec import decode_entry, encode_entry, encode_host
from turbopump.message.compression import compress, decompress
from turbopump.message.properties import LZ4, ZLIB, ZSTD, SysFlag

KINDS = [ZLIB, LZ4, ZSTD]
BODY = b"the quick brown fox " * 500 + bytes(range(256))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", [b"", b"x", BODY, bytes(300_000)])
def test_a_body_survives_compression(kind: int, body: bytes) -> None:
    data, flags = compress(body, kind)
    assert flags == SysFlag.COMPRESSED | kind
    assert decompress(data, flags) == body


def test_no_type_beside_the_flag_means_zlib_as_before_5_0() -> None:
    assert decompress(zlib.compress(BODY), SysFlag.COMPRESSED) == BODY


def test_zstd_without_its_content_size_is_read_too_as_java_streams_write_it() -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    data = stream.compress(BODY) + stream.flush()
    assert zstandard.frame_content_size(data) == -1
    assert decompress(data, SysFlag.COMPRESSED | ZSTD) == BODY


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_cut_anywhere_is_refused(kind: int) -> None:
    data, flags = compress(BODY, kind)
    for size in range(0, len(data), 7):
        with pytest.raises(StoredMessageError):
            decompress(data[:size], flags)


@pytest.mark.parametrize("kind", KINDS)
def test_garbage_is_refused(kind: int) -> None:
    with pytest.raises(StoredMessageError, match="cannot be read"):
        decompress(b"this was never compressed", SysFlag.COMPRESSED | kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_of_exactly_the_bound_passes_and_one_byte_more_does_not(kind: int) -> None:
    data, flags = compress(bytes(1000), kind)
    assert decompress(data, flags, size_max=1000) == bytes(1000)
    with pytest.raises(StoredMessageError, match="longer than the 999 bytes allowed"):
        decompress(data, flags, size_max=999)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_is_refused_without_its_size_in_memory(kind: int) -> None:
    bomb, flags = compress(bytes(100_000_000), kind)
    tracemalloc.start()
    try:
        with pytest.raises(StoredMessageError, match="longer than"):
            decompress(bomb, flags, size_max=1_000_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50_000_000


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(StoredMessageError, match="unknown compression type 7"):
        decompress(b"", SysFlag.COMPRESSED | 0x700)


def test_a_received_message_shows_its_body_decompressed_and_keeps_what_was_stored() -> None:
    data, flags = compress(BODY)
    host = encode_host("127.0.0.1", 1)
    message = decode_entry(
        encode_entry(
            queue_id=0,
            flag=0,
            queue_offset=0,
            physical_offset=0,
            sys_flag=flags,
            born_timestamp=0,
            born_host=host,
            store_timestamp=0,
            store_host=host,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=data,
            topic=b"T",
            properties=b"",
        )
    )
    assert (message.body, message.stored_body) == (BODY, data)
